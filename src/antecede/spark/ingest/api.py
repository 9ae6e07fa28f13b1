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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from antecede.errors import BadParameter
from antecede.spark.errors import raise_task_errors
from antecede.spark.frames import escape_path, refuse_other_tables
from antecede.spark.ingest import to_trace
from antecede.spark.ingest.clocks import FINDINGS, check_clocks
from antecede.spark.ingest.rows import (
    SPARK_LOG,
    SPARK_REJECTED,
    list_log_files,
    map_columns,
    read_here,
    read_log_files,
    read_table,
)
from antecede.spark.trace import SPARK_EVENTS, SPARK_RUNS
from antecede.storage import absolute, join, whole
from antecede.trace.foreign import shiviz
from antecede.trace.foreign.formats import TABLE, refuse_request

__all__ = ["Counts", "Ingested", "ingest", "ingest_table"]


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
    vectors: int
    """Events with a vector clock."""
    tied: int
    """Events whose time, or clock, is that of the event before them at their process."""


@dataclass(frozen=True)
class Ingested:
    """What a log says, as DataFrames."""

    log: DataFrame
    format: str
    path: str | None = None
    """Where it was written."""
    _read: DataFrame | None = field(default=None, repr=False)
    """All that was read, if it is not written: events, with what else a table says, and rows with a reason."""
    _counts: Counts | None = field(default=None, repr=False)
    _here: bool = field(default=False, repr=False)
    """Whether what was read is in this process: reading it again costs nothing."""

    # Planned when they are asked for: a plan of many steps takes longer to make than a small log to read.

    @cached_property
    def clocks(self) -> DataFrame:
        return self._at("clocks") if self.path else check_clocks(self.log)

    @cached_property
    def events(self) -> DataFrame:
        return (
            self._at("events") if self.path else to_trace.make_events(self._full, self._messages, self.clocks)
        )

    @cached_property
    def rejected(self) -> DataFrame:
        if self._read is None:
            return self._at("rejected")
        return self._unread.unionByName(to_trace.find_repeated_sends(self._full, self._messages))

    @cached_property
    def runs(self) -> DataFrame:
        if self.path:
            return self._at("runs.parquet")
        return to_trace.make_runs(self._full, self.events, self.rejected, self.clocks, self.format)

    @cached_property
    def _messages(self) -> DataFrame:
        return to_trace.collect_messages(self._full)

    @property
    def _unread(self) -> DataFrame:
        assert self._read is not None
        return self._read.where("reason is not null").select(SPARK_REJECTED.names)

    @property
    def _full(self) -> DataFrame:
        return self.log if self._read is None else self._read.where("reason is null")

    def _at(self, name: str) -> DataFrame:
        assert self.path is not None
        return at(self.log.sparkSession, self.path, name)

    def write(self, out: str | os.PathLike[str], *, replace: bool = False) -> Ingested:
        """Write a directory, whole or not at all, and give what is there. The logs are read once."""
        assert self._read is not None, "it is written already"
        with raise_task_errors(), whole(out, replace=replace) as aside:
            if self._here:
                counts = self._write(aside)
            else:
                with to_trace.keep_aside(self._read, aside) as read:
                    counts = of_rows(read, self.format)._write(aside)
        spark, place = self.log.sparkSession, absolute(out)
        return Ingested(at(spark, place, "log"), self.format, place, _counts=counts)

    def _write(self, aside: str) -> Counts:
        spark = self.log.sparkSession
        named = F.count_if(F.col("kind").isNotNull() & F.col("message").isNotNull())
        log = write_counted(self.log, join(aside, "log"), known=named, vectors=F.count("vector"))
        # A log that names no messages needs no plans for them: making a plan takes longer than reading a small log.
        known, place = log["known"], join(aside, "events")
        clocks = self.clocks if known else check_clocks(self.log, messages=False)
        wrong = write_counted(clocks, join(aside, "clocks"))
        clocks = at(spark, aside, "clocks")
        if known:
            events = to_trace.make_events(self._full, self._messages, clocks)
            messages = to_trace.write_events(events, known, place)
        else:
            messages = to_trace.write_no_events(place)
        rejected = write_counted(self.rejected if known else self._unread, join(aside, "rejected"))
        parts = at(spark, aside, "events"), at(spark, aside, "rejected")
        runs = to_trace.make_runs(self._full, *parts, clocks, self.format)
        told = to_trace.write_runs(runs, join(aside, "runs.parquet"))
        return Counts(
            runs=len(told),
            events=log["rows"],
            rejected=rejected["rows"],
            clocks=wrong["rows"],
            messages=messages,
            unknown=sum("unknown" in run for run in told),
            vectors=log["vectors"],
            tied=sum(run.get("tied", 0) for run in told),
        )

    def counts(self) -> Counts:
        """What was written, in numbers."""
        assert self._counts is not None, "write it first"
        return self._counts


def write_counted(table: DataFrame, path: str, **more: Column) -> dict[str, int]:
    """Write a table, and count its rows, and more, in the same job."""
    seen = Observation()
    counts = {"rows": F.count(F.lit(1)), **more}
    table.observe(seen, *(column.alias(name) for name, column in counts.items())).write.parquet(path)
    return seen.get


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
    table their meaning (docs/ingest.md). With `run`, all files are one run of that name; else each is its own.
    """
    refuse_request(format, pattern, delimiter, mapping)
    many = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not many:
        raise BadParameter("ingest", "name one file or more")
    if mapping is not None:
        return ingest_table(read_table(spark, many, mapping), mapping, run=run)
    asked = shiviz.expressions(pattern, delimiter)
    source = list_log_files(spark, many, format, asked, run)
    here = read_here(spark, source)
    if here is not None:
        return of_rows(here, format, here=True)
    return of_rows(read_log_files(spark, source), format)


def ingest_table(table: DataFrame, mapping: Mapping[str, str], *, run: str | None = None) -> Ingested:
    """Read a DataFrame as a log. `mapping` says which of its columns is which of ours."""
    refuse_other_tables("ingest", table)
    rows = map_columns(table, mapping, run)
    if "sender" in mapping:
        identity = F.to_json(F.struct("sender", "number", "control"))
        known = F.col("sender").isNotNull() & F.col("number").isNotNull()
        rows = rows.withColumn("message", F.when(known, identity))
    return of_rows(rows, TABLE)


def of_rows(read: DataFrame, format: str, *, here: bool = False) -> Ingested:
    """What follows from events and from lines that could not be read."""
    return Ingested(read.where("reason is null").select(SPARK_LOG.names), format, _read=read, _here=here)


# Files

SCHEMAS: Final = {
    "log": SPARK_LOG,
    "rejected": SPARK_REJECTED,
    "clocks": FINDINGS,
    "events": SPARK_EVENTS,
    "runs.parquet": SPARK_RUNS,
}


def at(spark: SparkSession, directory: str, name: str) -> DataFrame:
    return spark.read.schema(SCHEMAS[name]).parquet(escape_path(join(directory, name)))
