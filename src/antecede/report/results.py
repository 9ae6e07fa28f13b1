"""What a page is made of: a trace, and what a directory of results holds already. Any of these may be missing:

    trace/           the trace
    findings/        what `verify` found
    verdicts/        its verdict of each run
    measures/        runs/, processes/, channels/, histograms/: what `measure` found
    failures.jsonl   runs of a sweep that failed

Spark reads them, and of a small trace on this machine's disk this process, so that no Java starts (`Small`). Tables are
Spark's or Arrow's accordingly: `antecede.report.queries` asks both the same.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from antecede.report.queries import Rows, Table, collect_rows
from antecede.spark.frames import escape_path, files
from antecede.spark.measure.api import TABLES, count_here, describe_runs, make_table
from antecede.spark.measure.chains import follow_files, tied
from antecede.storage import absolute, join, local
from antecede.trace import EVENTS
from antecede.trace.footers import LocalTrace
from antecede.trace.foreign.formats import is_stated
from antecede.trace.plan import Plan, plan
from antecede.verification import schema

__all__ = ["FINDINGS", "VERDICTS", "Results", "Small", "measure_small", "read_results", "read_small"]

FINDINGS: Final = from_arrow_schema(schema.FINDINGS)
VERDICTS: Final = from_arrow_schema(schema.VERDICTS)
FAILURES: Final = "run string, reason string, command string"

SMALL_EVENTS: Final = 100_000
"""Events of a trace up to which this process reads it."""


class Results(Struct, frozen=True):
    """What was written; None is not there."""

    findings: Table | None
    verdicts: Table | None
    measures: dict[str, Table] | None
    """Its tables by name: all four, or nothing."""
    failures: Rows


def read_results(path: str | os.PathLike[str], spark: SparkSession | None = None) -> Results:
    """What is in a directory of results, or beside the trace of one: read by Spark, or by this process."""
    root = absolute(path)

    def read(columns: StructType | str, *names: str) -> Table | None:
        place = join(root, *names)
        if spark is None:
            found = list_files(place, "[!._]*.parquet")
            return pa.concat_tables(map(pq.read_table, found)) if found else None
        found = files(spark, place)
        return spark.read.schema(columns).parquet(*map(escape_path, found)) if found else None

    measures = {name: read(columns, "measures", name) for name, columns in TABLES.items()}
    return Results(
        read(FINDINGS, "findings"),
        read(VERDICTS, "verdicts"),
        None if None in measures.values() else measures,
        read_failures(join(root, "failures.jsonl"), spark),
    )


def read_failures(place: str, spark: SparkSession | None) -> Rows:
    if spark is None:
        texts = [Path(file).read_text("utf-8") for file in list_files(place, "*.jsonl")]
        return [json.loads(line) for text in texts for line in text.splitlines() if line.strip()]
    found = files(spark, place, "*.jsonl")
    table = spark.read.schema(FAILURES).json([*map(escape_path, found)]) if found else None
    return [] if table is None else collect_rows(table)


def list_files(place: str, pattern: str) -> Sequence[str]:
    """The file at a local place, or those of the directory that have such a name."""
    path = local(place)
    assert path is not None
    return [path] if os.path.isfile(path) else sorted(glob.glob(os.path.join(glob.escape(path), pattern)))


# A small trace


class Small(Struct, frozen=True):
    """A trace whose events are all here."""

    read: LocalTrace
    path: str
    """What the user named: results may stand there."""
    runs: Rows
    events: pa.Table
    planned: Plan


def read_small(read: LocalTrace, path: str) -> Small | None:
    """The trace; None if it is large, if Spark alone can put its events in order, or spans state its causality."""
    runs = sorted(read.runs.to_pylist(), key=lambda run: str(run["run"]).encode())
    if read.rows > SMALL_EVENTS or any(is_stated(run["parameters"]) for run in runs):
        return None
    processes = {run["run"]: tuple(run["processes"]) for run in runs}
    planned = plan(read.files, processes, merged=tied(read.files))
    if "pack" in planned.ways.values():
        return None
    tables = [pq.read_table(local(file.path), columns=EVENTS.names) for file in read.files]
    events = pa.concat_tables([EVENTS.empty_table(), *(table.cast(EVENTS) for table in tables)])
    return Small(read, path, runs, events, planned)


def measure_small(trace: Small) -> dict[str, Table]:
    """The tables of `measure`, added up here: runs, processes, channels, histograms."""
    processes = {run["run"]: tuple(run["processes"]) for run in trace.runs}
    known, _ = describe_runs(trace.runs, follow_files(trace.read.files, trace.planned, processes))
    facts = count_here(trace.planned, known)
    return {name: make_table(name, facts, known) for name in TABLES}
