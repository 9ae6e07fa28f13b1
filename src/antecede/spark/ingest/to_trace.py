"""From a log to a trace: who sent what, to whom, and what remains unknown.

A log names a message as it likes, by a token for example: the same at its send and at its deliveries. In a trace it is
(sender, number): the sender is the process that sent it, numbers count each sender's messages from 1. `index` counts
the events of a process that are in the trace. A message that was sent twice has its first send; the other is rejected.
One that was delivered and never sent is one of `NOBODY`'s.

A log that does not say to whom a message was sent is taken to mean those that delivered it. Then a message that was
delivered nowhere leaves the run unknown: nobody can tell whether it is missing.

`clock` is the sum of an event's vector, which grows along happened-before if the clocks are right. In a run whose
clocks are not, it is null.

A file of events says that it is in order (`antecede.trace.schema`), so readers need no sort: that is a note in the
footer, which Spark's own writer cannot make. So tasks write with PyArrow, and this process writes a few events. A task
writes under a hidden name and then renames the file: a task that is tried again, or runs twice, changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from antecede.spark.frames import escape_path, unite
from antecede.spark.ingest.rows import SPARK_REJECTED
from antecede.spark.trace import SPARK_EVENTS, describe_run, fit_columns
from antecede.storage import join, place, put, remove_directory
from antecede.trace.schema import EVENTS, ORDER, ORDER_KEY, RUNS

__all__ = [
    "NOBODY", "collect_messages", "find_repeated_sends", "keep_aside", "make_events", "make_runs", "write_events",
    "write_no_events", "write_runs",
]  # fmt: skip

NOBODY: Final = "(nobody)"
"""The sender of what was never sent."""

NO_MESSAGES: Final = "the log does not say which messages were sent and delivered"


def collect_messages(log: DataFrame) -> DataFrame:
    """A row for each message of a log: run, message, send (where), sender, number, to."""
    told = log.where("kind is not null and message is not null")
    send = F.struct("process", "index", "file", "line")
    delivered = F.sort_array(F.collect_set(F.when(F.col("kind") == "deliver", F.col("process"))))
    # A table may tell what a log of text does not.
    given = {name: F.min(name) for name in ("sender", "number") if name in log.columns}
    to = F.max(F.when(F.col("kind") == "send", F.col("to"))) if "to" in log.columns else F.lit(None)
    found = told.groupBy("run", "message").agg(
        F.min(F.when(F.col("kind") == "send", send)).alias("send"),
        F.coalesce(to, delivered).alias("to"),
        *(column.alias(f"given_{name}") for name, column in given.items()),
    )
    sender = F.coalesce(
        *(F.col(f"given_{name}") for name in given if name == "sender"), "send.process", F.lit(NOBODY)
    )
    own = Window.partitionBy("run", "sender").orderBy("send.index", "send.file", "send.line", "message")
    count = F.row_number().over(own).cast("bigint")
    number = F.coalesce(*(F.col(f"given_{name}") for name in given if name == "number"), count)
    told = found.withColumn("sender", sender).withColumn("number", number)
    return told.select("run", "message", "send", "to", "sender", "number")


def make_events(log: DataFrame, found: DataFrame, clocks: DataFrame) -> DataFrame:
    """The trace's events: those whose message is known (`SPARK_EVENTS`)."""
    told = log.where("kind is not null and message is not null").drop("sender", "number", "to")
    kept = told.join(found, ["run", "message"]).where((F.col("kind") != "send") | is_first())
    wrong = clocks.select("run").distinct().withColumn("wrong", F.lit(True))
    own = Window.partitionBy("run", "process").orderBy("index", "file", "line")
    total = F.aggregate(F.map_values("vector"), F.lit(0).cast("bigint"), lambda sum, entry: sum + entry)
    columns: dict[str, Column] = {
        "index": F.row_number().over(own).cast("bigint") - 1,
        "to": F.when(F.col("kind") == "send", F.col("to")),
        "control": column_or(log, "control", F.lit(False)),
        "time_ns": F.coalesce("time_ns", F.lit(0)),
        "clock": column_or(log, "clock", F.when(F.col("wrong").isNull(), total)),
    }
    kept_columns = {name: F.col(name) for name in kept.columns}
    timed = kept.join(F.broadcast(wrong), "run", "left")
    return timed.select(fit_columns(SPARK_EVENTS, kept_columns | columns))


def column_or(log: DataFrame, name: str, otherwise: Column) -> Column:
    """What a table says in a column, if it has it."""
    return F.coalesce(F.col(name), otherwise) if name in log.columns else otherwise


def is_first() -> Column:
    return F.struct("process", "index", "file", "line") == F.col("send")


def find_repeated_sends(log: DataFrame, found: DataFrame) -> DataFrame:
    """Sends of a message that was sent before (`SPARK_REJECTED`)."""
    sends = log.where("kind = 'send' and message is not null").drop("sender", "number", "to")
    reason = F.concat(F.lit("its message was sent before, by "), F.col("sender"))
    again = sends.join(found, ["run", "message"]).where(~is_first())
    return again.withColumn("reason", reason).select(SPARK_REJECTED.names)


def make_runs(
    log: DataFrame, events: DataFrame, rejected: DataFrame, clocks: DataFrame, format: str
) -> DataFrame:
    """A row for each run of the log (`SPARK_RUNS`), with the reason if its order cannot be told."""
    tied = "tied" if "tied" in log.columns else "false"
    parts = (
        log.selectExpr(
            "run", "process own", "message IS NULL AND kind IS NOT NULL anonymous", f"{tied} tied"
        ),
        events.selectExpr("run", "sender", "`to`", "true messages", "size(`to`) = 0 undelivered"),
        rejected.selectExpr("run", "true rejected"),
        clocks.selectExpr("run", "true wrong"),
    )
    counts = ("anonymous", "tied", "messages", "undelivered", "rejected", "wrong")
    by_run = unite(parts).groupBy("run")
    told = by_run.agg(
        F.collect_set("own").alias("own"),
        F.array_union(F.collect_set("sender"), F.flatten(F.collect_set("to"))).alias("others"),
        *(F.count_if(name).alias(name) for name in counts),
    )
    told = told.where("size(own) > 0")
    parameters = F.struct(
        F.lit(format).alias("format"),
        F.when(F.col("tied") > 0, F.col("tied")).alias("tied"),
        explain_unknown().alias("unknown"),
    )
    processes = F.sort_array(F.array_union("own", "others"))
    own = {"run": F.col("run"), "parameters": F.to_json(parameters), "processes": processes}
    return told.select(describe_run(own))


def explain_unknown() -> Column:
    """Why the order of a run cannot be told, or null."""

    def say_count(column: str, one: str, many: str) -> Column:
        number = F.col(column)
        said = F.when(number == 1, F.lit(one)).otherwise(F.concat(number.cast("string"), F.lit(f" {many}")))
        return F.when(number > 0, said)

    reasons = F.concat_ws(
        "; ",
        F.when((F.col("messages") == 0) | (F.col("anonymous") > 0), F.lit(NO_MESSAGES)),
        say_count(
            "undelivered",
            "a message was delivered nowhere, and the log does not say to whom it was sent",
            "messages were delivered nowhere, and the log does not say to whom they were sent",
        ),
        say_count("rejected", "one line could not be read", "lines could not be read"),
        say_count("wrong", "an entry of a clock is wrong", "entries of clocks are wrong"),
    )
    return F.when(reasons != "", reasons)


# Files

FULL: Final = 1_000_000
"""Events of a file at most, about."""
FEW: Final = 20_000
"""Events that this process writes by itself: a task would take longer to start."""
STRINGS: Final = [field.name for field in EVENTS if pa.types.is_string(field.type)]


@contextmanager
def keep_aside(table: DataFrame, directory: str) -> Iterator[DataFrame]:
    """The table, written into a hidden place of a directory and read back from there.

    One that is persisted keeps its plan, and each step that follows analyses all of it again: for a plan of many steps
    and few rows that takes longer than all the work.
    """
    path = join(directory, "_aside")
    table.write.parquet(path)
    yield table.sparkSession.read.schema(table.schema).parquet(escape_path(path))
    remove_directory(path)


def write_events(events: DataFrame, rows: int, directory: str) -> int:
    """Write so many events, sorted by (run, clock, process, index); give the number of messages sent."""
    if rows == 0:
        return write_no_events(directory)
    keys = ("run", "clock", "process", "index")
    files = -(-rows // FULL)
    spread = events.repartitionByRange(files, *keys) if files > 1 else events.repartition(1)
    ordered = spread.sortWithinPartitions(*keys)
    if rows <= FEW:
        return write_sorted(ordered.toArrow().to_batches(), directory)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"sends": [write_sorted(batches, directory)]})

    return sum(row["sends"] for row in ordered.mapInArrow(write, "sends bigint").collect())


def write_no_events(directory: str) -> int:
    """The same of none: a directory without a file is no table."""
    EventFile(directory, "00000.parquet", {ORDER_KEY: ORDER}).write_empty()
    return 0


def write_runs(runs: DataFrame, path: str) -> list[dict[str, Any]]:
    """Write the table of runs as one file, which is what a trace has, by their names; give the parameters of each."""
    rows = sorted((row.asDict() for row in runs.collect()), key=lambda row: row["run"].encode())
    put(path, to_bytes(pa.Table.from_pylist(rows, RUNS)))
    return [json.loads(row["parameters"]) for row in rows]


def to_bytes(table: pa.Table) -> bytes:
    data = pa.BufferOutputStream()
    pq.write_table(table, data)
    return bytes(data.getvalue().to_pybytes())


# In tasks


def write_sorted(batches: Iterable[pa.RecordBatch], directory: str) -> int:
    """Write a task's events; give how many of them are sends.

    Runs without clocks have files of their own, in no order.
    """
    context = TaskContext.get()
    part = context.partitionId() if context else 0
    sends = 0
    writers = {
        True: EventFile(directory, f"{part:05d}.parquet", {ORDER_KEY: ORDER}),
        False: EventFile(directory, f"{part:05d}-unordered.parquet", {}),
    }
    try:
        for batch in batches:
            sends += pc.sum(pc.equal(batch.column("kind"), "send")).as_py() or 0
            for events in part_runs(pa.Table.from_batches([batch]).cast(EVENTS)):
                writers[events["clock"].null_count == 0].write(events)
        for writer in writers.values():
            writer.show()
    except BaseException:
        for writer in writers.values():
            writer.drop()
        raise
    return sends


def part_runs(events: pa.Table) -> Iterator[pa.Table]:
    """The events of each run: sorted events are cut where their run changes."""
    if not len(events):
        return
    run = events["run"].combine_chunks()
    changes = pc.not_equal(run[1:], run[:-1]).to_numpy(zero_copy_only=False)
    ends = [*(np.flatnonzero(changes) + 1), len(events)]
    for start, end in pairwise([0, *ends]):
        yield events.slice(int(start), int(end - start))


class EventFile:
    """A file of events that is not seen before it is whole. Each run has row groups of its own."""

    def __init__(self, directory: str, name: str, notes: dict[bytes, bytes]) -> None:
        self._system, self._directory = place(directory)
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else 0
        self._path = f"{self._directory}/{name}"
        self._aside = f"{self._directory}/.{name}.{attempt}.part"
        self._notes = notes
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.Table] = []

    def write(self, events: pa.Table) -> None:
        """Add events of one run."""
        if self._held and self._held[0]["run"][0] != events["run"][0]:
            self._flush()
        self._held.append(events)
        if sum(map(len, self._held)) >= 1 << 17:
            self._flush()

    def show(self) -> None:
        """Make the file visible, if it has events."""
        self._flush()
        if self._writer is not None:
            self._writer.add_key_value_metadata(self._notes)
            self._writer.close()
            self._system.move(self._aside, self._path)

    def write_empty(self) -> None:
        self._open()
        self.show()

    def drop(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._system.delete_file(self._aside)

    def _flush(self) -> None:
        if self._held:
            self._open().write_table(pa.concat_tables(self._held))
            self._held = []

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            self._system.create_dir(self._directory, recursive=True)
            self._writer = pq.ParquetWriter(
                self._aside, EVENTS, filesystem=self._system, use_dictionary=STRINGS
            )
        return self._writer
