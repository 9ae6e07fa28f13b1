"""A trace as the steps of the pipeline take it: DataFrames, and the files behind them where there are any.

`Trace.read` checks what can be told without reading rows: the files are whole, and have the columns and types of
`antecede.trace.schema`. What the rows say is checked by the step that reads them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from antecede.errors import BadTrace
from antecede.spark.frames import alias_columns, escape_path, files, refuse_other_tables, rename_columns
from antecede.spark.run_tasks import run_tasks
from antecede.storage import absolute, join, local, readable
from antecede.trace import EVENTS, RUNS
from antecede.trace.footers import (
    Footer,
    locate,
    open_parquet,
    read_footer,
    read_local_trace,
    read_runs_table,
)
from antecede.trace.schema import refuse_columns, version

__all__ = ["SPARK_EVENTS", "SPARK_RUNS", "Trace", "describe_run", "fit_columns", "refuse_files"]

FOOTERS: Final = 16
"""A footer takes some milliseconds on a disk and some fifty from an object store; a task reads about as many."""

SPARK_EVENTS: Final = from_arrow_schema(EVENTS)
SPARK_RUNS: Final = from_arrow_schema(RUNS)


@dataclass(frozen=True)
class Trace:
    """The events of runs, and what is known of the runs."""

    events: DataFrame
    runs: DataFrame
    path: str | None = None
    """The directory it was read from."""
    files: tuple[Footer, ...] | None = None
    """The event files, where tasks can read them by themselves: then `events` is exactly what is in them."""
    table: pa.Table | None = None
    """`runs`, where the driver has read them."""

    @property
    def spark(self) -> SparkSession:
        return self.events.sparkSession

    @classmethod
    def read(cls, spark: SparkSession, path: str | os.PathLike[str]) -> Trace:
        """The trace in a directory, or in `trace/` of a directory of results."""
        inside = local(path)
        if inside is not None and os.path.isdir(inside):
            # The driver sees what tasks see, and a job takes longer to start than to read some footers.
            here = read_local_trace(path)
            return cls(
                read_events(spark, here.root), table_of(spark, here.runs), here.root, here.files, here.runs
            )
        root, tables = locate(absolute(path), partial(files, spark))
        events = read_events(spark, root)
        found = sorted((absolute(unquote(file)) for file in events.inputFiles()), key=str.encode)
        if not found:
            raise BadTrace(
                join(root, "events"), "there are no Parquet files: the events of the trace's runs are missing"
            )
        read = tuple(read_footers(spark, tables, found)) if readable(root) else None
        runs = spark.read.schema(SPARK_RUNS).parquet(*map(escape_path, tables))
        return cls(events, runs, root, read)

    @cached_property
    def known_runs(self) -> pa.Table:
        """The table of runs, on the driver: run, protocol, processes, parameters. Of a table it is read once."""
        if self.table is not None:
            return self.table
        return self.runs.select("run", "protocol", "processes", "parameters").toArrow()

    def without(self, file: Footer) -> Trace:
        """The same trace with one file less, of those that it was read from."""
        left = tuple(one for one in self.files or () if one != file)
        reading = self.spark.read.schema(SPARK_EVENTS)
        return replace(self, events=reading.parquet(*(escape_path(one.path) for one in left)), files=left)

    @classmethod
    def of(cls, events: DataFrame, runs: DataFrame | None = None) -> Trace:
        """A trace of any DataFrame that has its columns; without `runs`, only what the events tell is known of them.

        Columns that may be null may be absent. Other columns stay.
        """
        refuse_other_tables("trace", events)
        absent = [field for field in SPARK_EVENTS if field.nullable and field.name not in events.columns]
        if absent:
            events = events.withColumns({field.name: F.lit(None).cast(field.dataType) for field in absent})
        refuse_types(events, SPARK_EVENTS)
        if runs is None:
            runs = unknown_runs(events)
        refuse_types(runs, SPARK_RUNS)
        rows, own = alias_columns(events, SPARK_EVENTS.names)
        others = [name for name in rows.columns if name not in SPARK_EVENTS.names]
        events = rename_columns(rows.select(*SPARK_EVENTS.names, *others), own)
        return cls(events, runs.select(SPARK_RUNS.names))


def read_events(spark: SparkSession, root: str) -> DataFrame:
    """The events below a directory: one argument of the plan, however many files there are."""
    reading = spark.read.schema(SPARK_EVENTS).option("pathGlobFilter", "*.parquet")
    try:
        return reading.parquet(escape_path(join(root, "events")))
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise BadTrace(
                join(root, "events"), "the directory is missing: it has the events of the trace's runs"
            ) from None
        raise


def table_of(spark: SparkSession, runs: pa.Table) -> DataFrame:
    return spark.createDataFrame(runs.select(SPARK_RUNS.names), SPARK_RUNS)


def refuse_types(table: DataFrame, schema: StructType) -> None:
    for field in schema:
        if field.name not in table.columns:
            raise BadTrace(
                "the table", f"column {field.name} is missing; the columns are {', '.join(table.columns)}"
            )
        found = table.schema[field.name].dataType.simpleString()
        if found != field.dataType.simpleString():
            raise BadTrace(
                "the table",
                f"column {field.name} has type {found}, and must have type {field.dataType.simpleString()}",
            )


def unknown_runs(events: DataFrame) -> DataFrame:
    """A row for each run of the events, with what can be told from them."""
    # Someone may be written to, and never heard of again.
    nobody = F.array().cast("array<string>")
    everyone = F.array_distinct(F.concat(F.array("process", "sender"), F.coalesce("to", nobody)))
    named = events.select("run", F.explode(everyone).alias("process"))
    told = named.groupBy("run").agg(F.sort_array(F.collect_set("process")).alias("processes"))
    own = {name: F.col(name) for name in told.columns}
    return told.select(describe_run(own | {"parameters": F.lit("{}"), "version": F.lit("")}))


def describe_run(columns: Mapping[str, Column]) -> list[Column]:
    """The columns of `runs`, for runs of which no protocol is known."""
    usual = {"protocol": F.lit("unknown"), "started_ns": F.lit(0), "version": F.lit(version())}
    return fit_columns(SPARK_RUNS, usual | {**columns})


def fit_columns(schema: StructType, columns: Mapping[str, Column]) -> list[Column]:
    """The columns of a schema, in its order and of its types. Those that are not given are null."""
    # By names of types: a cast to a type that says that a list has no nulls would be refused.
    types = {field.name: field.dataType.simpleString() for field in schema}
    return [columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in types.items()]


# Footers: read by tasks where the driver cannot read them or they are many. Some hundred bytes a row group come back.


def read_footers(spark: SparkSession, runs: Sequence[str], events: Sequence[str]) -> list[Footer]:
    """The footer of each event file, in the order of their names. One job, which reads the tables of runs too.

    A file that is not whole or lacks a column is refused, and so are two runs of one name.
    """

    def read(task: tuple[str, Sequence[str]]) -> list[Footer]:
        what, paths = task
        if what == "runs":
            read_runs_table(paths)
            return []
        return [read_footer(path) for path in paths]

    found = run_tasks(spark, [("runs", list(runs)), *(("events", share) for share in shares(events))], read)
    return sorted((footer for share in found for footer in share), key=lambda footer: footer.path.encode())


def refuse_files(
    spark: SparkSession, paths: Sequence[str], schema: pa.Schema, optional: Collection[str] = ()
) -> None:
    """Refuse files that are not whole Parquet, or lack a column of the schema, before anything is made of them."""

    def look(share: Sequence[str]) -> None:
        for path in share:
            with open_parquet(path) as source:
                found = pq.read_metadata(source).schema.to_arrow_schema()
            absent = [name for name in optional if name not in found.names]
            refuse_columns(path, found, pa.schema([field for field in schema if field.name not in absent]))

    run_tasks(spark, shares(paths), look)


def shares(paths: Sequence[str]) -> list[list[str]]:
    ordered = sorted(paths, key=str.encode)
    return [ordered[first : first + FOOTERS] for first in range(0, len(ordered), FOOTERS)]
