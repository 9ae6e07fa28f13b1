"""Causal order for a live stream: packets come in as they arrive, and go out as they may be delivered.

    deliver_stream   a streaming DataFrame of packets -> messages in causal order, with positions
    PACKETS          what goes in; `packets_of` and `simulated` make such rows
    Watch, status_of what a query is doing, after each micro-batch
    waiting          what waits, for which message of whom, since when

docs/stream.md is the tour; `bucket` is how it works without Spark.
"""

from antecede.spark.stream.listener import Watch
from antecede.spark.stream.order import deliver_stream
from antecede.spark.stream.packets import DELIVERED, PACKETS, packets_of, simulated
from antecede.spark.stream.status import Cause, Progress, Status, status_of, waiting

__all__ = [
    "deliver_stream",
    "PACKETS",
    "DELIVERED",
    "packets_of",
    "simulated",
    "Watch",
    "Progress",
    "Status",
    "Cause",
    "status_of",
    "waiting",
]
