"""What a directory of results holds already, so that it need not be computed again.

    trace/           the trace
    findings/        what `verify` found
    verdicts/        its verdict of each run
    measures/        runs/, processes/, channels/, histograms/: what `measure` found
    failures.jsonl   runs of a sweep that failed

Any of these may be missing. Each is read with the columns that its step writes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from antecede.spark.measure.figures import TABLES
from antecede.spark.storage import absolute, escape_path, files, join
from antecede.verification import schema

__all__ = ["Results", "read_results"]

FINDINGS: Final = from_arrow_schema(schema.FINDINGS)
VERDICTS: Final = from_arrow_schema(schema.VERDICTS)


@dataclass(frozen=True)
class Results:
    """Tables that were written; None is not there."""

    findings: DataFrame | None
    verdicts: DataFrame | None
    measures: dict[str, DataFrame] | None
    """Its tables by name: all four, or nothing."""
    failures: DataFrame | None


def read_results(spark: SparkSession, path: str | os.PathLike[str]) -> Results:
    """What is in a directory of results, or beside the trace of one."""
    root = absolute(path)
    measures = {
        name: read_table(spark, join(root, "measures", name), columns) for name, columns in TABLES.items()
    }
    there = {name: found for name, found in measures.items() if found is not None}
    return Results(
        read_table(spark, join(root, "findings"), FINDINGS),
        read_table(spark, join(root, "verdicts"), VERDICTS),
        there if len(there) == len(TABLES) else None,
        read_failures(spark, root),
    )


def read_table(spark: SparkSession, path: str, columns: StructType | str) -> DataFrame | None:
    found = files(spark, path)
    return spark.read.schema(columns).parquet(*map(escape_path, found)) if found else None


def read_failures(spark: SparkSession, root: str) -> DataFrame | None:
    found = files(spark, join(root, "failures.jsonl"), "*.jsonl")
    return (
        spark.read.schema("run string, reason string, command string").json([*map(escape_path, found)])
        if found
        else None
    )
