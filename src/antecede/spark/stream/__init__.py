"""Causal order for a live stream: rows come in as they arrive, and go out after what they follow.

    antecede.spark.order   takes a streaming DataFrame as it takes a table (`api`)
    PACKETS          the columns of a packet; `packets_of` and `simulated` make such rows
    Watch, status_of what a query is doing, after each micro-batch
    waiting          what waits, for which message of whom, since when
    PROVIDER, ROCKSDB   the setting that streams by causes need, and its value

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
