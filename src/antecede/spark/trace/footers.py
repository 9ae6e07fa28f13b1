"""The footers of a trace's files, read by tasks where the driver cannot read them or they are many.

Some hundred bytes a row group come back, never a row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from antecede.spark.run_tasks import run_tasks
from antecede.trace.footers import Footer, open_parquet, read_footer, read_runs_table
from antecede.trace.reader import refuse_columns

__all__ = ["footers", "refuse_files"]

FOOTERS = 16
"""A footer takes some milliseconds on a disk and some fifty from an object store; a task reads about as many."""


def footers(spark: SparkSession, runs: Sequence[str], events: Sequence[str]) -> list[Footer]:
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
