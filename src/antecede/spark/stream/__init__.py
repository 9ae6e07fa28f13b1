"""Causal order for a live stream: rows come in as they arrive, and go out after what they follow.

docs/stream.md is the tour; `causes`, `vectors` and `stamps` are how it works without Spark.
"""

from antecede.spark.stream.operator import PROVIDER, ROCKSDB
from antecede.spark.stream.packets import PACKETS, packets_of, simulated
from antecede.spark.stream.status import Cause, Progress, Status, Watch, status_of, waiting

__all__ = [
    "PACKETS",
    "packets_of",
    "simulated",
    "Watch",
    "Progress",
    "Status",
    "Cause",
    "status_of",
    "waiting",
    "PROVIDER",
    "ROCKSDB",
]
