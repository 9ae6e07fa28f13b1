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

from antecede.spark.storage import absolute, escaped, files, join

__all__ = ["Recorded", "recorded"]


def spread(*quantities: str) -> str:
    """Columns of a distribution: the mean, and quantiles that are whole numbers."""
    return ", ".join(f"{q}_mean double, {q}_p50 long, {q}_p99 long, {q}_max long" for q in quantities)


FINDINGS: Final = (
    "run string, kind string, process string, sender string, number long, by_sender string, by_number long, "
    "`index` long, chain array<struct<sender: string, number: long>>"
)
VERDICTS: Final = (
    "run string, verdict string, reason string, deliveries long, violations long, fifo_breaks long, "
    "duplicates long, unsent long, unaddressed long, undelivered long"
)
MEASURES: Final = {
    "runs": "run string, protocol string, processes int, events long, sends long, copies long, deliveries long, "
    f"control_packets long, control_per_message double, "
    f"{spread('stamp_entries', 'stamp_bytes', 'delay_ns', 'wait_ns')}, "
    "wait_share double, concurrency double, longest_chain long, duration_ns long",
    "processes": "run string, process string, sends long, deliveries long, control_packets long, "
    f"{spread('delay_ns', 'wait_ns')}",
    "channels": f"run string, sender string, receiver string, messages long, deliveries long, {spread('delay_ns')}",
    "histograms": "run string, quantity string, low long, high long, count long",
}


@dataclass(frozen=True)
class Recorded:
    """Tables that were written; None is not there."""

    findings: DataFrame | None
    verdicts: DataFrame | None
    measures: dict[str, DataFrame] | None
    """Its tables by name: all four, or nothing."""
    failures: DataFrame | None

    @property
    def verified(self) -> bool:
        return self.findings is not None and self.verdicts is not None


def recorded(spark: SparkSession, path: str | os.PathLike[str]) -> Recorded:
    """What is in a directory of results, or beside the trace of one."""
    root = absolute(path)
    measures = {name: table(spark, join(root, "measures", name), schema) for name, schema in MEASURES.items()}
    there = {name: found for name, found in measures.items() if found is not None}
    return Recorded(
        table(spark, join(root, "findings"), FINDINGS),
        table(spark, join(root, "verdicts"), VERDICTS),
        there if len(there) == len(MEASURES) else None,
        failures(spark, root),
    )


def table(spark: SparkSession, path: str, schema: str) -> DataFrame | None:
    found = files(spark, path)
    return spark.read.schema(schema).parquet(*map(escaped, found)) if found else None


def failures(spark: SparkSession, root: str) -> DataFrame | None:
    found = files(spark, join(root, "failures.jsonl"), "*.jsonl")
    return (
        spark.read.schema("run string, reason string, command string").json([*map(escaped, found)])
        if found
        else None
    )
