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
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from antecede.spark.errors import raise_task_errors
from antecede.spark.frames import REMEMBER, ByCauses, parse_duration, rename_columns
from antecede.spark.stream.bucket import Bucket, BucketSettings, from_ipc, to_ipc
from antecede.spark.stream.operator import BUCKETS, PROVIDER, ROCKSDB, ByPartition, run_buckets
from antecede.spark.stream.query import Checkpoint, Noting, Totals, make_session, write_findings
from antecede.spark.stream.status import Status
from antecede.spark.tables import StreamFiles
from antecede.spark.verify.by_causes import alias_judged, findings_schema, refuse_request, select_judged
from antecede.spark.verify.growing import GrowingPartition
from antecede.storage import absolute

__all__ = ["JudgingBucket", "JudgingSettings", "verify_files", "verify_live"]

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
) -> DataFrame:
    """A streaming DataFrame of findings; `asked.time` is the column of positions. Write it in append mode."""
    refuse_request(rows, asked, consumer)
    rows, asked, consumer, own = alias_judged(rows, asked, consumer)
    schema = findings_schema(rows, asked, consumer)
    settings = JudgingSettings(
        asked.partition_by,
        to_arrow_schema(schema, timezone="UTC").serialize().to_pybytes(),
        patience_ms=None if patience is None else parse_duration("verify", "patience", patience),
        remember_ms=parse_duration("verify", "remember", remember or REMEMBER),
        buckets=BUCKETS,
    )
    judged = select_judged(rows, asked, consumer)
    # Columns of partitions stay as they are: findings name them.
    assign, keys = ByPartition.of(judged, asked.partition_by)
    added = judged.select("*", *keys)
    found = run_buckets(added, settings, assign, schema, owner="verify", remembers=True)
    return rename_columns(found, own)


class JudgingSettings(BucketSettings, frozen=True):
    partition_by: tuple[str, ...]
    findings: bytes
    """The schema of findings, as Arrow has it."""

    def make(self) -> JudgingBucket:
        return JudgingBucket(self)


class JudgingBucket(Bucket):
    """Partitions of a stream, and what was told of them."""

    form = "judging"
    memory = ("partitions", "ages", "unchecked")

    def __init__(self, settings: JudgingSettings) -> None:
        super().__init__(settings)
        self.schema = pa.ipc.read_schema(pa.py_buffer(settings.findings))
        self.partitions: dict[str, GrowingPartition] = {}
        self.ages: deque[tuple[int, Identifiers]] = deque()
        """What came, by time."""
        self.unchecked: deque[tuple[int, Identifiers]] = deque()
        """The same of what was not asked for causes that are missing."""
        self.checked = -1
        """Up to when rows were asked."""
        self.forgot = -1
        """When it was last forgotten what is too old."""
        self.told: dict[Told, int] = {}
        """-> when."""
        self.fresh: pa.Table | None = None
        """The rows that came in the last step."""

    @property
    def wait_ms(self) -> int:
        """How long a cause may be missing."""
        patience, remember = self.settings.patience_ms, int(self.settings.remember_ms)
        return remember if patience is None else min(patience, remember)

    @property
    def deadline(self) -> int | None:
        return self.unchecked[0][0] + self.wait_ms if self.unchecked else None

    @property
    def visited(self) -> int:
        """Events that were looked at to judge others."""
        return sum(partition.visited for partition in self.partitions.values())

    def advance(self, rows: pa.Table | None, now: int) -> tuple[pa.Table | None, Status]:
        """Take rows, and tell what is found."""
        self.fresh = rows
        # What is about to be forgotten is asked before.
        found = self._tell(self._find_missing(now - self.settings.remember_ms), now)
        self._forget(now)
        touched = set() if rows is None else self._take(rows, now)
        found += self._tell((one for name in sorted(touched) for one in self._judge(name)), now)
        found += self._tell(self._find_missing(now - self.wait_ms), now)
        self.checked = max(self.checked, now - self.wait_ms)
        status = Status(now_ms=now, rows_in=0 if rows is None else len(rows), delivered=len(found))
        return pa.Table.from_pylist(found, self.schema) if found else None, status

    def _take(self, rows: pa.Table, now: int) -> set[str]:
        """Let partitions grow. Which of them did?"""
        names = self.settings.partition_by
        columns = [rows[name].to_pylist() for name in ROWS]
        # They come first, and rows of an earlier state may have them under other names.
        own = [rows[place].to_pylist() for place in range(len(names))]
        values = zip(*own, strict=True) if own else repeat(())
        came: dict[str, list[Any]] = {}
        for (name, id, mark, causes, consumer, at), here in zip(
            zip(*columns, strict=True), values, strict=False
        ):
            partition = self.partitions.get(name)
            if partition is None:
                partition = self.partitions[name] = GrowingPartition(here)
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

    def _tell(self, found: Iterable[Finding], now: int) -> list[dict[str, Any]]:
        """What was not told before, as rows; nothing of a partition that is refused."""
        rows = []
        for one in found:
            told: Told = (one.kind, one.partition, one.consumer, one.id)
            if told in self.told or ("refused", one.partition, None, None) in self.told:
                continue
            self.told[told] = now
            values = zip(self.settings.partition_by, self.partitions[one.partition].values, strict=True)
            rows.append({**one._asdict(), **dict(values)})
        return rows

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

    def list_state(self) -> dict[str, Any]:
        told = [[*told, when] for told, when in self.told.items()]
        return {"checked": self.checked, "forgot": self.forgot, "told": told}

    def list_fresh(self) -> bytes | None:
        return None if self.fresh is None else to_ipc(self.fresh)

    def remember(self, entry: bytes, when: int) -> None:
        # An event that was forgotten before it came again is a new one.
        self._forget(when)
        self._take(from_ipc(entry), when)

    def load_state(self, state: dict[str, Any]) -> None:
        self._forget(state["forgot"])
        self.checked = state["checked"]
        self.told = {(kind, where, consumer, id): when for kind, where, consumer, id, when in state["told"]}
        while self.unchecked and self.unchecked[0][0] <= self.checked:
            self.unchecked.popleft()
        for partition in self.partitions.values():
            # It was told of them when they came.
            partition.late, partition.again = {}, {}


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
) -> Totals:
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
