"""Verify a live stream of events that name their causes: findings as they can be told, in the columns of the batch.

A row is judged with what it changes (growing.py), by the definitions of the batch; what was told is not told again:

  violation   once for each cause and consumer, in the micro-batch in which the cause, an effect that the consumer was
              handed before it, and the events that link the two have all come
  duplicate   once for each event and consumer
  refused     once for each partition, of which nothing else is told then
  missing     a cause that is nowhere when the row that names it has been here for `patience` or, without patience, is
              about to be forgotten

Rows are remembered for the time `remember`: a cause that came earlier counts as missing. A violation whose parts come
further apart is not found. Rows may come in any order: consumers and identifiers of violations are those of the batch
(where a consumer was handed an event twice, if the first copy came first); `by` and `chain` are of what had come when
the violation was told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Final, NamedTuple, Unpack

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from antecede.spark.duration import REMEMBER, parse_duration
from antecede.spark.errors import raise_task_errors
from antecede.spark.frames import ByCauses, rename_columns
from antecede.spark.stream.bucket import from_ipc, to_ipc
from antecede.spark.stream.operator import (
    BUCKETS,
    PROVIDER,
    ROCKSDB,
    ByPartition,
    Trail,
    read_state,
    run_buckets,
)
from antecede.spark.stream.query import Checkpoint, make_session
from antecede.spark.stream.status import Status
from antecede.spark.stream.verify import Findings, Noting, write_findings
from antecede.spark.tables import StreamFiles
from antecede.spark.verify.by_causes import alias_judged, findings_schema, refuse_request, select_judged
from antecede.spark.verify.growing import GrowingPartition
from antecede.storage import absolute

__all__ = ["JudgingBucket", "JudgingSettings", "verify_files", "verify_live"]

STATE_VERSION: Final = 3

KINDS: Final = ("violation", "duplicate", "missing", "refused")

ROWS: Final = ("__partition", "__id", "__mark", "__causes", "__consumer", "__at")

Identifiers = dict[str, tuple[Any, ...]]
"""Of each partition."""
Told = tuple[str, str, Any, Any]
"""A finding that was told: its kind, partition, consumer and identifier."""


class Finding(NamedTuple):
    kind: str
    partition: str
    consumer: Any = None
    id: Any = None
    by: Any = None
    chain: list[Any] | None = None
    reason: str | None = None


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
    rows, asked, consumer, own = alias_judged(rows, asked, consumer)
    schema = findings_schema(rows, asked, consumer)
    settings = JudgingSettings(
        asked.partition_by,
        to_arrow_schema(schema, timezone="UTC").serialize().to_pybytes(),
        None if patience is None else parse_duration("verify", "patience", patience),
        parse_duration("verify", "remember", remember or REMEMBER),
        buckets,
    )
    judged = select_judged(rows, asked, consumer)
    # Columns of partitions stay as they are: findings name them.
    assign, keys = ByPartition.of(judged, asked.partition_by)
    added = judged.select("*", *keys)
    found = run_buckets(added, settings, assign, schema, owner="verify", remember_ms=settings.remember_ms)
    return rename_columns(found, own)


class JudgingSettings(Struct, frozen=True):
    partition_by: tuple[str, ...]
    findings: bytes
    """The schema of findings, as Arrow has it."""
    patience_ms: int | None = None
    remember_ms: int = 604_800_000
    buckets: int = BUCKETS

    def open(
        self, state: bytes | None, pieces: Iterable[bytes] = (), earlier: JudgingBucket | None = None
    ) -> JudgingBucket:
        return JudgingBucket(self) if state is None else JudgingBucket.load(state, pieces, self, earlier)


class JudgingBucket:
    """Partitions of a stream, and what was told of them."""

    def __init__(self, settings: JudgingSettings) -> None:
        self.settings = settings
        self.schema = pa.ipc.read_schema(pa.py_buffer(settings.findings))
        self.trail = Trail()
        self.partitions: dict[str, GrowingPartition] = {}
        self.fresh: pa.Table | None = None
        """The rows that came in the last step."""
        self.told: dict[Told, int] = {}
        """-> when."""
        self.ages: deque[tuple[int, Identifiers]] = deque()
        """What came, by time."""
        self.unchecked: deque[tuple[int, Identifiers]] = deque()
        """The same of what was not asked for causes that are missing."""
        self.forgot = self.forgot_before = -1
        """When it was last forgotten what is too old, and when before the last step."""
        self.checked = -1
        """Up to when rows were asked."""

    @property
    def wait_ms(self) -> int:
        """How long a cause may be missing."""
        patience = self.settings.patience_ms
        return self.settings.remember_ms if patience is None else min(patience, self.settings.remember_ms)

    @property
    def deadline(self) -> int | None:
        """When a row is next to be asked for causes that are missing."""
        return self.unchecked[0][0] + self.wait_ms if self.unchecked else None

    @property
    def visited(self) -> int:
        """Events that were looked at to judge others."""
        return sum(partition.visited for partition in self.partitions.values())

    def advance(self, rows: pa.Table | None, now: int) -> tuple[pa.Table | None, Status]:
        """Take rows, and tell what is found."""
        came = 0 if rows is None else len(rows)
        self.fresh, self.forgot_before = None, self.forgot
        touched: set[str] = set()
        if rows is not None:
            self.fresh = rows.append_column("__since", pa.array(np.full(came, now, np.int64)))
            touched = self._take(rows, now)
        due = now - self.wait_ms
        found = [one for name in sorted(touched) for one in self._judge(name)]
        found += self._find_missing(due)
        told = self._tell(found, now)
        self.checked = max(self.checked, due)
        self._forget(now)
        status = Status(now_ms=now, rows_in=came, delivered=0 if told is None else len(told))
        return told, status

    def _take(self, rows: pa.Table, now: int) -> set[str]:
        """Let partitions grow. Which of them did?"""
        names = self.settings.partition_by
        columns = [rows[name].to_pylist() for name in ROWS]
        # They come first, and rows of an earlier state may have them under other names.
        values = (
            zip(*(rows[place].to_pylist() for place, _ in enumerate(names)), strict=True)
            if names
            else repeat(())
        )
        came: dict[str, list[Any]] = {}
        for row, own in zip(zip(*columns, strict=True), values, strict=False):
            name, id, mark, causes, consumer, at = row
            partition = self.partitions.get(name)
            if partition is None:
                partition = self.partitions[name] = GrowingPartition(own)
            partition.take(id, mark, causes or (), consumer, at, now)
            came.setdefault(name, []).append(id)
        identifiers = {name: tuple(ids) for name, ids in came.items()}
        self.ages.append((now, identifiers))
        self.unchecked.append((now, identifiers))
        return {*came}

    def _judge(self, name: str) -> Iterator[Finding]:
        """What is found in a partition that has grown."""
        partition = self.partitions[name]
        late, again = partition.late, partition.again
        partition.late, partition.again = {}, {}
        if (fault := partition.fault) is not None:
            yield Finding("refused", name, reason=fault)
            return
        for consumer, id in again:
            copies = partition.events[id].copies[consumer]
            yield Finding("duplicate", name, consumer, id, reason=f"handed over {copies:,} times")
        for consumer, id in late:
            if ("violation", name, consumer, id) not in self.told and (
                why := partition.explain_late(consumer, id)
            ) is not None:
                yield Finding("violation", name, consumer, id, *why)

    def _find_missing(self, due: int) -> Iterator[Finding]:
        """Causes of rows that have waited long enough for them."""
        while self.unchecked and self.unchecked[0][0] <= due:
            for name, ids in self.unchecked.popleft()[1].items():
                partition = self.partitions.get(name)
                if partition is None:
                    continue
                for lost in (lost for id in ids for lost in partition.find_missing(id)):
                    by, many = partition.name_effect(lost)
                    words = f"named by {many:,} event{'s' * (many != 1)}"
                    yield Finding("missing", name, None, lost, by, [lost, by], words)

    def _tell(self, found: Iterable[Finding], now: int) -> pa.Table | None:
        """What was not told before; nothing of a partition that is refused."""
        rows = []
        for one in found:
            told: Told = (one.kind, one.partition, one.consumer, one.id)
            if told in self.told or ("refused", one.partition, None, None) in self.told:
                continue
            self.told[told] = now
            values = dict(zip(self.settings.partition_by, self.partitions[one.partition].values, strict=True))
            rows.append({**one._asdict(), **values})
        return pa.Table.from_pylist(rows, self.schema) if rows else None

    def _forget(self, now: int) -> None:
        self.forgot, before = now, now - self.settings.remember_ms
        while self.ages and self.ages[0][0] <= before:
            for name, ids in self.ages.popleft()[1].items():
                partition = self.partitions.get(name)
                if partition is None:
                    continue
                for id in ids:
                    partition.forget(id, before)
                if not partition.events:
                    del self.partitions[name]
        self.told = {told: when for told, when in self.told.items() if when > before}

    # What is kept

    def dump(self) -> bytes:
        state = {
            "antecede judging": STATE_VERSION,
            "buckets": self.settings.buckets,
            "checked": self.checked,
            "forgot": self.forgot,
            "told": [[*told, when] for told, when in self.told.items()],
        }
        return msgspec.msgpack.encode(state)

    def dump_fresh(self, now: int) -> bytes | None:
        """The rows that came."""
        if self.fresh is None:
            return None
        return msgspec.msgpack.encode([[now, to_ipc(self.fresh), self.forgot_before]])

    @classmethod
    def load(
        cls,
        head: bytes,
        pieces: Iterable[bytes],
        settings: JudgingSettings,
        earlier: JudgingBucket | None = None,
    ) -> JudgingBucket:
        """The bucket with this head and these pieces, in order: all, or those since `earlier`, which is spent."""
        state = read_state(head, "judging", STATE_VERSION, settings.buckets)
        bucket = cls(settings) if earlier is None else earlier
        for when, rows, before in (one for piece in pieces for one in msgspec.msgpack.decode(piece)):
            # An event that was forgotten before it came again is a new one.
            bucket._forget(before)
            bucket._take(from_ipc(rows), when)
        bucket._forget(state["forgot"])
        bucket.checked = state["checked"]
        bucket.told = {(kind, where, consumer, id): when for kind, where, consumer, id, when in state["told"]}
        while bucket.unchecked and bucket.unchecked[0][0] <= bucket.checked:
            bucket.unchecked.popleft()
        for partition in bucket.partitions.values():
            # It was told of them when they came.
            partition.late, partition.again = {}, {}
        return bucket


# Files that appear


def verify_files(
    spark: SparkSession,
    files: StreamFiles,
    asked: ByCauses,
    consumer: str,
    out: str,
    checkpoint: str,
    *,
    patience: str | None = None,
    remember: str | None = None,
    **noting: Unpack[Noting],
) -> Findings:
    """Events in files that appear -> findings as Parquet. Started again, it goes on where it was."""
    kept = Checkpoint(checkpoint)
    own = make_session(spark, {PROVIDER: ROCKSDB})
    with raise_task_errors():
        table = files.describe(own, "verify --stream", kept)

        def find(session: SparkSession) -> DataFrame:
            rows = files.read(session, table)
            return verify_live(rows, asked, consumer, patience=patience, remember=remember)

        identity = {"command": "verify", "input": absolute(files.path), "consumer": consumer}
        identity |= msgspec.to_builtins(asked)
        return write_findings(own, find, KINDS, identity, out, kept, timed=True, columns=table, **noting)
