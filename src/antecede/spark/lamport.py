"""Clocks for traces that have none: from program order and message edges alone.

The clock of an event is a number such that sorting by (clock, process, index) never puts an event before one that
happened before it (Lamport 1978). Rules
  1. the first event of a process has 0, and each later one more than the one before it;
  2. a delivery has more than the send of its message. A delivery whose send is not there waits for nothing.
Every event counts, receives and control packets too: they have an `index`, and sort with the others.

Who computes. A run of up to `LARGEST` events is one group of rows in one task, in which a line of events for each
process is followed until it waits for a send that is yet to come; that send wakes it (`antecede.spark.lines`). A longer run
is cut first into pieces that a task can hold, along cuts that no message crosses backwards (`antecede.spark.cuts`):
then a piece waits for nothing in later ones, and pieces are computed side by side. Its clocks go on from piece to piece,
so they are not the smallest possible, but they depend on the rows alone, never on how they are spread over partitions.

A cycle has no order: a `BadTrace` names the processes and messages in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from antecede.spark.trace import SPARK_EVENTS, Trace

__all__ = ["with_clock", "LARGEST"]

LARGEST: Final = 4_000_000
"""Events that one task orders at a time: about 1 GB of its memory."""


def with_clock(trace: Trace, *, largest: int = LARGEST) -> Trace:
    """The same trace with a clock in every row: its own where a run has it throughout, else a computed one.

    `events` of the result has all the columns of the contract, `clock` without nulls, rows in no particular order; it
    is computed by the plan, each time that it is used: persist it, or write it, if you use it twice. If no row lacks a
    clock, the trace itself comes back, files and all. The clocks that a run has are taken at their word.

    To know which it is, this reads one column of the trace at once; runs longer than `largest` are read once more to
    be cut. A cycle shows as a `BadTrace` when the result is used (inside `antecede.spark.faults.told`).
    """
    raise NotImplementedError
