"""A query from its start to its end, and its checkpoint: whose it is, how far the query came, and what it counted.

The one loop that runs a query of a command, until it is stopped or, with `once`, until all is done that was there.

Spark itself starts a query on whatever a checkpoint holds, and one with a new checkpoint on whatever lies at its
output: micro-batches that have the numbers of the other query's are then taken for written, and lost. So a query leaves
a note of what it is in its checkpoint, `antecede.json`, and the next one is compared with it.

`totals.json` has the counts of all micro-batches up to one, written when a query ends, so that an answer at the end
costs the same however much was written before. A query that was killed has counted more than was written: then the
output is counted again, once, at the end of the next run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Required, TypedDict, Unpack

import msgspec
from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from antecede.errors import BadParameter, CannotWrite, show_place
from antecede.spark.frames import escape_path, files, quote
from antecede.spark.stream.status import observed_metrics, posting
from antecede.storage import absolute, join, local, open_file, put, readable, vacant

__all__ = [
    "Checkpoint", "Counted", "Noting", "Query", "Totals", "make_session", "run_query", "write_findings",
]  # fmt: skip

NOTE: Final = "antecede.json"
TOTALS: Final = "totals.json"
COLUMNS: Final = "columns.json"
"""What the files of a query were when it first started."""
EMPTY: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
OBSERVED: Final = "found"
POLL_S: Final = 1
"""Between two looks at whether to stop."""


class Counted(NamedTuple):
    """What a micro-batch came to: how many of each kind, and examples."""

    counts: Mapping[str, int]
    examples: Mapping[str, Any] = {}


class Totals(Struct):
    """Counts by kind of all micro-batches up to `batch`, and an example of each kind where one is named."""

    batch: int = -1
    counts: dict[str, int] = {}
    examples: dict[str, dict[str, Any]] = {}

    def add(self, batch: int, counted: Counted) -> None:
        """One more micro-batch. One that was counted is not counted again."""
        if batch > self.batch:
            self.batch = batch
            for kind, many in counted.counts.items():
                self.counts[kind] = self.counts.get(kind, 0) + many
            self.examples = {**counted.examples, **self.examples}


class Noting(TypedDict, total=False):
    """How a query runs: until all that is there is done (`once`), or until `stop` says so."""

    once: Required[bool]
    every_s: float
    stop: Callable[[], bool]
    note: Callable[[Mapping[str, int]], None]
    """Told of each micro-batch how many of each kind it found."""


@dataclass(frozen=True)
class Query:
    """What a command runs, and how it is counted."""

    command: str
    identity: Mapping[str, Any]
    """What makes it this query, and no other."""
    out: str | os.PathLike[str]
    build: Callable[[SparkSession], DataStreamWriter]
    count: Callable[[Any], Counted | None]
    """Of what Spark reports of a micro-batch."""
    recount: Callable[[SparkSession], Counted]
    """Of all that was written: after a query that was killed."""
    timed: bool
    """Whether it acts when time has passed and nothing came."""
    columns: Struct | None = None
    """What its files are, to be kept."""


def run_query(
    spark: SparkSession,
    checkpoint: Checkpoint,
    query: Query,
    *,
    once: bool,
    every_s: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[Mapping[str, int]], None] = lambda counts: None,
) -> Totals:
    """Start a query, stay until its end, and count what all of its micro-batches came to."""
    # Refused before it is noted whose the checkpoint is.
    query.build(spark)
    checkpoint.claim(query)
    totals = checkpoint.read_totals(spark)
    counted = Totals() if totals is None else totals
    # A query that waits for time to pass runs empty micro-batches for ever, unless it is told not to.
    own = make_session(spark, {EMPTY: "false"}) if once and query.timed else spark
    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": f"{every_s} seconds"}
    writer = query.build(own).trigger(**trigger)

    def count(progress: Any) -> None:
        if (found := query.count(progress)) is not None:
            counted.add(progress.batchId, found)
            note(found.counts)

    with posting(own, checkpoint.place):
        stay(writer.start(), stop, count)
    last = checkpoint.find_last(spark, "commits")
    if totals is None or counted.batch != last:
        counted = Totals(last, *map(dict, query.recount(spark)))
        if not once:
            # Something may be written that is not committed: it will be counted again.
            return counted
    checkpoint.put(TOTALS, msgspec.json.encode(counted))
    return counted


def make_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A session with the same settings, and these: other queries of the caller's session keep theirs."""
    own = spark.newSession()
    for name, value in {**spark.conf.getAll, **settings}.items():
        if own.conf.isModifiable(name):
            own.conf.set(name, value)
    return own


def stay(query: StreamingQuery, stop: Callable[[], bool], note: Callable[[Any], None]) -> None:
    """Wait for the end of a query, or stop it. `note` gets what Spark reports of each micro-batch."""
    noted = ""

    def look() -> None:
        nonlocal noted
        for progress in query.recentProgress:
            # Compare times, not batch ids: an empty trigger reports the id of the next micro-batch.
            if progress.timestamp > noted:
                noted = progress.timestamp
                note(progress)

    try:
        while not (query.awaitTermination(POLL_S) or stop()):
            look()
    finally:
        query.stop()
    look()
    if (error := query.exception()) is not None:
        raise error


class Checkpoint:
    """The directory of a query's checkpoint, on any storage. What PyArrow cannot read has no note and no totals."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = absolute(place)

    @property
    def fresh(self) -> bool:
        """Whether no query has begun with this checkpoint. Of storage that we cannot look at, one may have."""
        return readable(self.place) and vacant(join(self.place, "offsets"))

    def claim(self, query: Query) -> None:
        """Refuse a checkpoint or an output of another query; else note whose the checkpoint is."""
        target, new = absolute(query.out), self.fresh
        if readable(self.place) and readable(target):
            wanted = msgspec.json.encode(query.identity)
            if not new:
                self._compare(query.command, msgspec.json.decode(wanted))
            if new and not vacant(target):
                advice = "take a new place, or the checkpoint of the query that wrote it"
                raise BadParameter(query.command, f"the output {query.out} is there already: {advice}")
            if vacant(target) and not vacant(join(self.place, "commits")):
                other = f"the query of {show_place(self.place)} has written to another"
                raise BadParameter(
                    query.command, f"the output {query.out} is empty, and {other}: give that one"
                )
            for directory in filter(None, (local(target), local(self.place))):
                try:
                    os.makedirs(directory, exist_ok=True)
                except OSError as error:
                    reason = error.strerror or str(error)
                    raise CannotWrite(directory, reason, "nothing was written") from None
            self.put(NOTE, wanted)
        if query.columns is not None:
            self.put(COLUMNS, msgspec.json.encode(query.columns))

    def _compare(self, command: str, what: Mapping[str, Any]) -> None:
        try:
            data = self.read(NOTE)
            # Without a note: begun by a query of one's own, or before there were notes. Its state tells.
            noted = what if data is None else msgspec.json.decode(data, type=dict[str, Any])
        except (OSError, msgspec.MsgspecError) as error:
            reason = f"the checkpoint {show_place(self.place)} has a note that cannot be read: {error}"
            raise BadParameter(command, reason) from None
        for name in (*what, *noted):
            if noted.get(name) != what.get(name):
                own, other = show_value(what.get(name)), show_value(noted.get(name))
                place = show_place(self.place)
                reason = f"the checkpoint {place} is of a query with {name} {other}, not {own}: "
                reason += "give the query the same, or a new checkpoint and output"
                raise BadParameter(command, reason)

    def read(self, name: str) -> bytes | None:
        """A file that `put` wrote, if it did."""
        try:
            with open_file(join(self.place, name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        if readable(self.place):
            put(join(self.place, name), data)

    def read_columns(self) -> bytes | None:
        """What the files of the query were. A query of an older version has kept nothing."""
        return self.read(COLUMNS) if readable(self.place) and not self.fresh else None

    def find_last(self, spark: SparkSession, log: str) -> int:
        """The last micro-batch that Spark has planned (`offsets`) or committed (`commits`), or -1.

        Rows of one that is planned may be written though it is not committed.
        """
        names = [file.rpartition("/")[2] for file in files(spark, join(self.place, log), "*")]
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def read_totals(self, spark: SparkSession) -> Totals | None:
        """The counts up to the last micro-batch that was planned, if they were written.

        One that was planned and not committed is repeated. Of rows that are written already Spark then counts nothing.
        """
        last = self.find_last(spark, "offsets")
        if last < 0:
            return Totals()
        if not readable(self.place) or last != self.find_last(spark, "commits"):
            return None
        try:
            totals = msgspec.json.decode(self.read(TOTALS) or b"", type=Totals)
        except (OSError, msgspec.MsgspecError):
            # Written by an older version, or by a query that was killed.
            return None
        return totals if totals.batch == last else None


def show_value(value: Any) -> str:
    """
    >>> show_value(["ann", "bob"]), show_value(None), show_value("fifo"), show_value(["", "root"]), show_value([""])
    ('ann, bob', 'none', 'fifo', "'', root", "''")
    """
    if isinstance(value, list):
        return ", ".join(str(one) or "''" for one in value) or "none"
    return "none" if value is None or value == {} else show_place(str(value))


# Findings, as Parquet


def write_findings(
    spark: SparkSession,
    find: Callable[[SparkSession], DataFrame],
    kinds: Sequence[str],
    identity: Mapping[str, Any],
    out: str,
    checkpoint: Checkpoint,
    *,
    timed: bool,
    columns: Struct | None = None,
    **noting: Unpack[Noting],
) -> Totals:
    """Write findings of these kinds as Parquet: a streaming DataFrame with a column `kind`, which `find` makes."""
    schema = find(spark).schema

    def build(own: SparkSession) -> DataStreamWriter:
        found = find(own).observe(OBSERVED, *aggregates(kinds, schema))
        writer = found.writeStream.format("parquet").option("path", absolute(out))
        return writer.option("checkpointLocation", checkpoint.place)

    def count(progress: Any) -> Counted | None:
        metrics = observed_metrics(progress, OBSERVED)
        return None if metrics is None else read_metrics(metrics, kinds, schema)

    def recount(own: SparkSession) -> Counted:
        """Count all that was written."""
        written = own.read.schema(schema).parquet(escape_path(absolute(out)))
        found = written.agg(*aggregates(kinds, schema)).first()
        assert found is not None
        return read_metrics(found.asDict(), kinds, schema)

    query = Query("verify --stream", identity, out, build, count, recount, timed, columns)
    totals = run_query(spark, checkpoint, query, **noting)
    counts = {kind: totals.counts[kind] for kind in kinds if totals.counts.get(kind)}
    examples = {kind: totals.examples[kind] for kind in kinds if kind in totals.examples}
    return Totals(totals.batch, counts, examples)


def aggregates(kinds: Sequence[str], schema: StructType) -> list[Column]:
    """For each kind how many there are, and the first of them."""
    row = F.struct(*(F.col(quote(name)) for name in schema.names))
    counts = [F.count_if(F.col("kind") == kind).alias(kind) for kind in kinds]
    firsts = [F.to_json(F.min(F.when(F.col("kind") == kind, row))).alias(f"first_{kind}") for kind in kinds]
    return counts + firsts


def read_metrics(metrics: Mapping[str, Any], kinds: Sequence[str], schema: StructType) -> Counted:
    """What `aggregates` gave."""
    firsts = {kind: metrics[f"first_{kind}"] for kind in kinds if metrics[f"first_{kind}"] is not None}
    none = dict.fromkeys(schema.names)
    examples = {kind: {**none, **msgspec.json.decode(text)} for kind, text in firsts.items()}
    return Counted({kind: metrics[kind] for kind in kinds if metrics[kind]}, examples)
