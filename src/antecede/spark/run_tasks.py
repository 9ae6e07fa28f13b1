"""N tasks, each with a payload of its own: the one way in which this package hands out work.

    rows = run_tasks(spark, ["a.parquet", "b.parquet"], count_rows)          # [120, 80], in the order of the payloads
    table = plan_tasks(spark, chunks, read_chunk, "run string, rows bigint") # a DataFrame: what the chunks hold

A payload is any value that pickles. Each goes to one task, and each task gets one: `range` with as many partitions as
numbers is the only source of which Spark says how many rows a partition has, and nothing is shuffled. It is the same on
this machine, on a cluster and through Spark Connect.

Few bytes of payload travel inside the function, which every task gets whole: nothing starts faster. More bytes travel
as a broadcast table, from which a task takes its own row: a thousand tasks would else read each other's payloads.

An error of ours that `work` raises is raised again here as what it was (`antecede.spark.errors`). `run_tasks` runs
every task, and then raises the error of the first payload that has one: always the same.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from antecede.errors import AntecedeError
from antecede.spark.errors import decode_error, encode_error, mark_errors

__all__ = ["plan_tasks", "run_tasks"]

INSIDE_BYTES: Final = 4 << 20
"""Payloads of so many bytes in all travel inside the function."""

ANSWERS: Final = pa.schema({"task": pa.int64(), "answer": pa.binary(), "error": pa.string()})

Payload = TypeVar("Payload")
Answer = TypeVar("Answer")


def run_tasks(
    spark: SparkSession, payloads: Sequence[Payload], work: Callable[[Payload], Answer]
) -> list[Answer]:
    """Run `work` on each payload, one a task, and collect its answers: small values that pickle, in order."""

    def answer(numbered: tuple[int, Payload]) -> Iterator[pa.RecordBatch]:
        task, payload = numbered
        row: dict[str, Any] = {"task": task, "answer": None, "error": None}
        try:
            row["answer"] = pickle.dumps(work(payload))
        except AntecedeError as error:
            row["error"] = encode_error(error)
        yield pa.RecordBatch.from_pylist([row], schema=ANSWERS)

    schema = "task bigint, answer binary, error string"
    # `toArrow` swallows a Ctrl-C: it waits for the job that the signal ended, and raises that job's error instead.
    rows = plan_tasks(spark, list(enumerate(payloads)), answer, schema).collect()
    found = sorted(rows, key=lambda row: row["task"])
    for row in found:
        if row["error"] is not None:
            raise decode_error(row["error"])
    return [pickle.loads(row["answer"]) for row in found]


def plan_tasks(
    spark: SparkSession,
    payloads: Sequence[Payload],
    work: Callable[[Payload], Iterable[pa.RecordBatch]],
    schema: StructType | str,
) -> DataFrame:
    """The rows that `work` gives for each payload, one a task, as a table. The tasks run when the table is read.

    An error of ours leaves such a task in an exception: read the table within `raise_task_errors`.
    """
    if not payloads:
        return spark.createDataFrame([], schema)
    pickled = [pickle.dumps(payload) for payload in payloads]
    tasks = spark.range(0, len(pickled), 1, len(pickled))
    if sum(map(len, pickled)) <= INSIDE_BYTES:

        def by_number(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in (number for batch in batches for number in batch.column("id").to_pylist()):
                yield from work(pickle.loads(pickled[number]))

        return tasks.mapInArrow(mark_errors(by_number), schema)

    def by_row(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for payload in (payload for batch in batches for payload in batch.column("payload")):
            yield from work(pickle.loads(payload.as_buffer()))

    table = pa.table(
        {"id": pa.array(range(len(pickled)), pa.int64()), "payload": pa.array(pickled, pa.binary())}
    )
    own = tasks.join(F.broadcast(spark.createDataFrame(table)), "id").select("payload")
    return own.mapInArrow(mark_errors(by_row), schema)
