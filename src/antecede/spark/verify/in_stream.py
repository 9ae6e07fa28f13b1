"""Verify a live stream of events that name their causes: findings as they can be told, in the columns of the batch.

Rows of a partition are judged together, as the batch judges them (`by_causes.judge_table`), whenever one of them came;
what was told is not told again:

  violation   once for each cause and consumer, in the micro-batch in which the cause, an effect that the consumer was
              handed before it, and the events that link the two have all come
  duplicate   once for each event and consumer
  refused     once for each partition
  missing     a cause that is nowhere when the row that names it has been here for `patience` or, without patience, is
              about to be forgotten

Rows are remembered for the time `remember`: a cause that came earlier counts as missing. A violation whose parts come
further apart is not found. Rows may come in any order: consumers and identifiers of violations are those of the batch
(where a consumer was handed an event twice, if the first copy came first); `by` and `chain` are of what had come when
the violation was told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from antecede.errors import BadSnapshot
from antecede.jit import kernels_for
from antecede.spark.duration import REMEMBER, parse_duration
from antecede.spark.order.causes import ByCauses
from antecede.spark.stream.memory import remember_rows
from antecede.spark.stream.operator import BUCKETS, name_partition, unpack
from antecede.spark.stream.packets import from_ipc, to_ipc
from antecede.spark.stream.status import Status
from antecede.spark.verify.by_causes import findings_schema, refuse_request, select_judged
from antecede.spark.verify.tasks import judge_table

__all__ = ["JudgingBucket", "JudgingSettings", "verify_live"]

STATE_VERSION: Final = 1

Told = tuple[str, str, Any, Any]
"""A finding that was told: its kind, partition, consumer and identifier."""


def verify_live(
    rows: DataFrame,
    asked: ByCauses,
    consumer: str,
    *,
    patience: str | None = None,
    remember: str | None = None,
    buckets: int = BUCKETS,
) -> DataFrame:
    """A streaming DataFrame of findings; `asked.time` is the column of positions. Write it in append mode."""
    refuse_request(rows, asked, consumer)
    schema = findings_schema(rows, asked, consumer)
    settings = JudgingSettings(
        asked.partition_by,
        to_arrow_schema(schema, timezone="UTC").serialize().to_pybytes(),
        None if patience is None else parse_duration("verify", "patience", patience),
        parse_duration("verify", "remember", remember or REMEMBER),
        buckets,
    )
    bucket, partition = name_partition(asked.partition_by, buckets)
    # Columns of partitions stay as they are: findings name them.
    judged = select_judged(rows, asked, consumer).select(bucket, partition, "*")
    return unpack(remember_rows("verify", judged, settings, buckets), schema)


class JudgingSettings(Struct, frozen=True):
    partition_by: tuple[str, ...]
    findings: bytes
    """The schema of findings, as Arrow has it."""
    patience_ms: int | None = None
    remember_ms: int = 604_800_000
    buckets: int = BUCKETS

    def open(self, state: bytes | None, pieces: Iterable[bytes]) -> JudgingBucket:
        return JudgingBucket(self) if state is None else JudgingBucket.load(state, pieces, self)


class JudgingBucket:
    """Partitions of a stream, and what was told of them."""

    def __init__(self, settings: JudgingSettings) -> None:
        self.settings = settings
        self.schema = pa.ipc.read_schema(pa.py_buffer(settings.findings))
        self.serial = 0
        self.rows: pa.Table | None = None
        """What is remembered, with `__since`."""
        self.fresh: pa.Table | None = None
        self.told: dict[Told, int] = {}
        """-> when."""
        self.checked = -1
        """Rows that came up to then were asked for causes that are missing."""

    @property
    def wait_ms(self) -> int:
        """How long a cause may be missing."""
        patience = self.settings.patience_ms
        return self.settings.remember_ms if patience is None else min(patience, self.settings.remember_ms)

    @property
    def deadline(self) -> int | None:
        """When a row is next to be asked for causes that are missing."""
        if self.rows is None:
            return None
        waiting = pc.filter(self.rows["__since"], pc.greater(self.rows["__since"], self.checked))
        return int(pc.min(waiting).as_py()) + self.wait_ms if len(waiting) else None

    def advance(self, rows: pa.Table | None, now: int) -> tuple[pa.Table | None, Status]:
        """Take rows, and tell what is found."""
        self.serial += 1
        came = 0 if rows is None else len(rows)
        self.fresh = None
        if rows is not None:
            self.fresh = rows.append_column("__since", pa.array(np.full(came, now, np.int64)))
            kept = [] if self.rows is None else [self.rows]
            self.rows = pa.concat_tables([*kept, self.fresh], promote_options="permissive")
        due = now - self.wait_ms
        found = self._judge(due, now)
        self.checked = max(self.checked, due)
        self._forget(now)
        held = 0 if self.rows is None else len(self.rows)
        status = Status(
            now_ms=now, rows_in=came, delivered=0 if found is None else len(found), receivers=held
        )
        return found, status

    def _judge(self, due: int, now: int) -> pa.Table | None:
        """What is found in partitions with new rows, and in those with rows that have waited long enough."""
        if self.rows is None:
            return None
        since = self.rows["__since"]
        asked = pc.and_(pc.greater(since, self.checked), pc.less_equal(since, due))
        if self.fresh is not None:
            asked = pc.or_(asked, pc.equal(since, now))
        touched = pc.unique(pc.filter(self.rows["__partition"], asked))
        if not len(touched):
            return None
        table = self.rows.filter(pc.is_in(self.rows["__partition"], touched)).combine_chunks()
        partitions = self._name_partitions(table)
        with kernels_for(len(table)):
            parts = judge_table(table.drop_columns(["__partition", "__since"]), self.settings.partition_by)
        new = []
        for part in parts:
            part = part.filter(pc.not_equal(part["kind"], "partition"))
            if not len(part):
                continue
            keys = [part[name].to_pylist() for name in ("kind", "consumer", "id")]
            names = [partitions[key] for key in self._keys(part)]
            ripe = self._find_ripe(part, names, table, due)
            fresh = []
            for at, (kind, consumer, id) in enumerate(zip(*keys, strict=True)):
                told = (kind, names[at], consumer, id)
                if ripe[at] and told not in self.told:
                    self.told[told] = now
                    fresh.append(at)
            new.append(part.take(pa.array(fresh, pa.int64())).select(self.schema.names))
        return pa.concat_tables(new).cast(self.schema) if new else None

    def _name_partitions(self, table: pa.Table) -> dict[tuple[Any, ...], str]:
        """The values of the partition columns -> the partition."""
        return dict(zip(self._keys(table), table["__partition"].to_pylist(), strict=True))

    def _keys(self, table: pa.Table) -> list[tuple[Any, ...]]:
        columns = [table[name].to_pylist() for name in self.settings.partition_by]
        return list(zip(*columns, strict=True)) if columns else [()] * len(table)

    def _find_ripe(self, part: pa.Table, names: list[str], table: pa.Table, due: int) -> list[bool]:
        """What may be told: a cause that is missing only when a row has named it for long enough."""
        if part["kind"][0].as_py() != "missing":
            return [True] * len(part)
        old = table.filter(pc.less_equal(table["__since"], due))
        columns = [old[name].to_pylist() for name in ("__partition", "__causes")]
        named = {(where, cause) for where, causes in zip(*columns, strict=True) for cause in causes or ()}
        return [(name, id) in named for name, id in zip(names, part["id"].to_pylist(), strict=True)]

    def _forget(self, now: int) -> None:
        before = now - self.settings.remember_ms
        if self.rows is not None:
            self.rows = self.rows.filter(pc.greater(self.rows["__since"], before))
            self.rows = self.rows.combine_chunks() if len(self.rows) else None
        self.told = {told: when for told, when in self.told.items() if when > before}

    # What is kept

    def dump(self) -> bytes:
        state = {
            "antecede judging": STATE_VERSION,
            "serial": self.serial,
            "buckets": self.settings.buckets,
            "checked": self.checked,
            "told": [[*told, when] for told, when in self.told.items()],
        }
        return msgspec.msgpack.encode(state)

    def dump_fresh(self, now: int) -> bytes | None:
        """The rows that came."""
        return None if self.fresh is None else msgspec.msgpack.encode([[now, to_ipc(self.fresh)]])

    @classmethod
    def load(cls, head: bytes, pieces: Iterable[bytes], settings: JudgingSettings) -> JudgingBucket:
        state = msgspec.msgpack.decode(head)
        if state.get("antecede judging") != STATE_VERSION:
            found = state.get("antecede judging")
            raise BadSnapshot("version of the stream that is verified", found, STATE_VERSION)
        if state["buckets"] != settings.buckets:
            raise BadSnapshot("buckets of the stream", state["buckets"], settings.buckets)
        bucket = cls(settings)
        bucket.serial, bucket.checked = state["serial"], state["checked"]
        bucket.told = {(kind, where, consumer, id): when for kind, where, consumer, id, when in state["told"]}
        tables = [from_ipc(rows) for piece in pieces for _, rows in msgspec.msgpack.decode(piece)]
        if tables:
            bucket.rows = pa.concat_tables(tables, promote_options="permissive").sort_by("__since")
        return bucket
