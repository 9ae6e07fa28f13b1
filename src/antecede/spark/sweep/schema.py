"""The columns of results.jsonl as Spark reads them: docs/experiments.md tells what they mean."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

__all__ = ["RESULTS"]

TEXTS: Final = ("case", "run", "protocol", "network", "workload", "topology", "faults", "command", "version")
NUMBERS: Final = (
    "processes", "messages", "seed", "sent", "delivered", "undelivered", "held", "unsent", "packets",
    "control_packets", "control_bytes", "duration_ns", "resent", "crashes", "frames", "frame_bytes",
)  # fmt: skip
SPREADS: Final = ("stamp_entries", "stamp_bytes", "delay_ns", "waiting_ns")

SPREAD: Final = StructType(
    [StructField("mean", DoubleType()), *(StructField(name, LongType()) for name in ("p50", "p99", "max"))]
)

RESULTS: Final = StructType(
    [
        *(StructField(name, StringType()) for name in TEXTS),
        # Values differ in their types from protocol to protocol.
        StructField("parameters", MapType(StringType(), StringType())),
        *(StructField(name, LongType()) for name in NUMBERS),
        *(StructField(name, SPREAD) for name in SPREADS),
        StructField("waiting_share", DoubleType()),
        StructField("stuck", ArrayType(StringType())),
        StructField("measured", MapType(StringType(), MapType(StringType(), LongType()))),
        StructField("cpu_seconds", DoubleType()),
    ]
)
