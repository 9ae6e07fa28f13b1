"""Traces: what happened in runs, as Parquet that the simulator writes and the pipeline reads.

schema   the one definition of the columns
writer   one run, streamed into a trace
reader   a trace read back, in order
rows     rows of integers on their way into Arrow
layout   where the files are, and how they become visible
"""

from antecede.trace.reader import events_of, read_events, read_runs
from antecede.trace.schema import (
    ABSENT,
    DELIVER,
    EVENTS,
    KINDS,
    ORDER,
    ORDER_KEY,
    READ,
    RECEIVE,
    RUN_KEY,
    RUNS,
    SEND,
    RunInfo,
)
from antecede.trace.writer import GROUPS_PER_FILE, ROW_GROUP, TraceWriter

__all__ = [
    "TraceWriter", "RunInfo", "SEND", "RECEIVE", "DELIVER", "ABSENT", "read_events", "read_runs", "events_of",
    "EVENTS", "READ", "RUNS", "KINDS", "ORDER", "ORDER_KEY", "RUN_KEY", "ROW_GROUP", "GROUPS_PER_FILE",
]  # fmt: skip
