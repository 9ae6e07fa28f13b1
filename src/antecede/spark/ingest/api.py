"""Foreign logs become traces: ShiViz and GoVector text, `tracing` JSON Lines, NDJSON of TLA+ models, and any table.

    read = ingest(spark, ["chord.log"], "shiviz", pattern=r"(?<host>\\S*) (?<clock>{.*})\\n(?<event>.*)")
    read.log, read.rejected, read.clocks, read.events, read.runs

  log        every event that was read (`SPARK_LOG`)
  rejected   every line that was not, with its file, number and reason (`SPARK_REJECTED`)
  clocks     where vector clocks contradict each other (`antecede.spark.ingest.clocks`)
  events     the trace: sends and deliveries whose message is known (`SPARK_EVENTS`)
  runs       its runs (`SPARK_RUNS`); where something cannot be told, `parameters` says why under `unknown`

These are read whenever they are asked for. `write` makes a directory of them, which is a trace: `runs.parquet`,
`events/`, and beside them `log/`, `rejected/` and `clocks/`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.errors import BadParameter
from antecede.spark.ingest import to_trace as identities
from antecede.spark.ingest.clocks import FINDINGS, consistency
from antecede.spark.ingest.schema import SPARK_LOG, SPARK_REJECTED
from antecede.spark.ingest.table import mapped, table_of
from antecede.spark.ingest.tasks import FORMATS, LogFiles, log_files, read
from antecede.spark.ingest.writer import write_log
from antecede.spark.storage import absolute, escaped, join, place, put, readable, whole
from antecede.spark.trace.api import SPARK_EVENTS, SPARK_RUNS
from antecede.trace import RUNS
from antecede.trace.foreign import shiviz

__all__ = ["Counts", "Ingested", "ingest", "ingest_table"]

TABLE: Final = "table"


@dataclass(frozen=True)
class Counts:
    """What was read, in numbers: what the command line says."""

    runs: int
    events: int
    rejected: int
    clocks: int
    messages: int
    unknown: int
    """Runs whose order cannot be told."""


@dataclass(frozen=True)
class Ingested:
    """What a log says, as DataFrames."""

    log: DataFrame
    format: str
    path: str | None = None
    """Where it was written."""
    _source: LogFiles | None = field(default=None, repr=False)
    _told: DataFrame | None = field(default=None, repr=False)
    """The log, with what else a table says."""
    _unread: DataFrame | None = field(default=None, repr=False)

    # Planned when they are asked for: a plan of many steps takes longer to make than a small log to read.

    @cached_property
    def clocks(self) -> DataFrame:
        return self._at("clocks") if self.path else consistency(self.log)

    @cached_property
    def events(self) -> DataFrame:
        return self._at("events") if self.path else identities.events(self._full, self._found, self.clocks)

    @cached_property
    def rejected(self) -> DataFrame:
        if self._unread is None:
            return self._at("rejected")
        return self._unread.unionByName(identities.rejected_sends(self._full, self._found))

    @cached_property
    def runs(self) -> DataFrame:
        if self.path:
            return self._at("runs.parquet")
        return identities.runs(self.log, self.events, self.rejected, self.clocks, self.format)

    @cached_property
    def _found(self) -> DataFrame:
        return identities.messages(self._full)

    @property
    def _full(self) -> DataFrame:
        return self.log if self._told is None else self._told

    def _at(self, name: str) -> DataFrame:
        assert self.path is not None
        return at(self.log.sparkSession, self.path, name)

    def write(self, out: str | os.PathLike[str], *, replace: bool = False) -> Ingested:
        """Write a directory, whole or not at all, and give what is there. The logs are read once."""
        with whole(out, replace=replace) as aside:
            self._write(aside)
        return written(self.log.sparkSession, absolute(out), self.format)

    def _write(self, aside: str) -> None:
        """Write the log first. All the rest is made of the files that are there then: no log is parsed again."""
        spark = self.log.sparkSession
        told = None
        if self._source is not None and readable(aside):
            told = write_log(spark, self._source, aside)
        else:
            self.log.write.parquet(join(aside, "log"))
            (self.rejected if self._unread is None else self._unread).write.parquet(join(aside, "rejected"))
        log = at(spark, aside, "log")
        known = told is None or told.sends + told.deliveries > 0
        consistency(log, messages=known).write.parquet(join(aside, "clocks"))
        clocks = at(spark, aside, "clocks")
        # A table says more than a log has columns for.
        full = self._told if self._source is None and self._told is not None else log
        if known:
            found = identities.messages(full)
            identities.events(full, found, clocks).write.parquet(join(aside, "events"))
            sends = at(spark, aside, "events").where("kind = 'send'").count()
            if told is None or told.sends > sends:
                resent = identities.rejected_sends(full, found)
                resent.write.mode("append").parquet(join(aside, "rejected"))
        else:
            spark.createDataFrame([], SPARK_EVENTS).coalesce(1).write.parquet(join(aside, "events"))
        events, rejected = at(spark, aside, "events"), at(spark, aside, "rejected")
        write_runs(identities.runs(log, events, rejected, clocks, self.format), join(aside, "runs.parquet"))

    def counts(self) -> Counts:
        """Count everything, in one job."""
        unknown = self.runs.where(F.get_json_object("parameters", "$.unknown").isNotNull())
        tables = {
            "runs": self.runs,
            "events": self.log,
            "rejected": self.rejected,
            "clocks": self.clocks,
            "messages": self.events.where("kind = 'send'"),
            "unknown": unknown,
        }
        parts = [table.select(F.lit(name).alias("name")) for name, table in tables.items()]
        told = {
            row["name"]: row["count"]
            for row in reduce(DataFrame.union, parts).groupBy("name").count().collect()
        }
        return Counts(**{name: told.get(name, 0) for name in tables})


def ingest(
    spark: SparkSession,
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format: str,
    *,
    pattern: str | None = None,
    delimiter: str | None = None,
    mapping: Mapping[str, str] | None = None,
    run: str | None = None,
) -> Ingested:
    """Read files and directories of a format: shiviz, tracing, tlaplus or table.

    `pattern` and `delimiter` are the expressions of a ShiViz log (docs/ingest.md), `mapping` gives the columns of a
    table their meaning (`antecede.spark.ingest.table`). With `run`, all files are one run of that name; else each is
    its own.
    """
    many = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if format not in (*FORMATS, TABLE):
        raise BadParameter("ingest", "format", format, f"one of {', '.join((*FORMATS, TABLE))}")
    if format != "shiviz" and (pattern or delimiter):
        raise BadParameter("ingest", "pattern", f"given for {format}", "it for shiviz only")
    if (format == TABLE) != (mapping is not None):
        raise BadParameter(
            "ingest", "map", "given" if mapping else "missing", "it for a table, and only there"
        )
    if not many:
        raise BadParameter("ingest", "files", "none", "one or more")
    if mapping is not None:
        return ingest_table(table_of(spark, many, mapping), mapping, run=run)
    asked = shiviz.expressions(pattern, delimiter)
    source = log_files(spark, many, format, asked, run)
    table = read(spark, source)
    return derived(events_in(table), unread_in(table), format, source)


def ingest_table(table: DataFrame, mapping: Mapping[str, str], *, run: str | None = None) -> Ingested:
    """Read a DataFrame as a log. `mapping` says which of its columns is which of ours."""
    told = mapped(table, mapping, run).withColumn("line", F.lit(None).cast("bigint"))
    told = told.withColumn("text", F.coalesce("text", F.col("row"))).withColumn("fields", F.col("row"))
    if "sender" in mapping:
        identity = F.to_json(F.struct("sender", "number", "control"))
        known = F.col("sender").isNotNull() & F.col("number").isNotNull()
        told = told.withColumn("message", F.when(known, identity))
    good = told.where("reason is null").drop("reason", "row")
    bad = told.where("reason is not null").withColumn("text", F.col("row"))
    return derived(good, bad.select(SPARK_REJECTED.names), TABLE)


def events_in(table: DataFrame) -> DataFrame:
    return table.where("reason is null").select(SPARK_LOG.names)


def unread_in(table: DataFrame) -> DataFrame:
    return table.where("reason is not null").select(SPARK_REJECTED.names)


def derived(log: DataFrame, unread: DataFrame, format: str, source: LogFiles | None = None) -> Ingested:
    """What follows from events and from lines that could not be read."""
    return Ingested(log.select(SPARK_LOG.names), format, _source=source, _told=log, _unread=unread)


# Files

SCHEMAS: Final = {
    "log": SPARK_LOG,
    "rejected": SPARK_REJECTED,
    "clocks": FINDINGS,
    "events": SPARK_EVENTS,
    "runs.parquet": SPARK_RUNS,
}


def at(spark: SparkSession, directory: str, name: str) -> DataFrame:
    return spark.read.schema(SCHEMAS[name]).parquet(escaped(join(directory, name)))


def written(spark: SparkSession, directory: str, format: str) -> Ingested:
    """What `write` left in a directory."""
    return Ingested(at(spark, directory, "log"), format, directory)


def write_runs(runs: DataFrame, path: str) -> None:
    """The table of runs as one file, which is what a trace has. One task writes it: a row a run."""

    def one_file(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [row for batch in batches for row in batch.to_pylist()]
        system, inside = place(path)
        pq.write_table(pa.Table.from_pylist(rows, RUNS), inside, filesystem=system)
        yield pa.RecordBatch.from_pydict({"rows": [len(rows)]})

    if not runs.coalesce(1).mapInArrow(one_file, "rows bigint").collect():
        # Where there is no row there is no task.
        empty = pa.BufferOutputStream()
        pq.write_table(RUNS.empty_table(), empty)
        put(path, empty.getvalue().to_pybytes())
