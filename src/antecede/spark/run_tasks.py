"""How this package hands out work: to N tasks, each with a payload of its own, or to tasks that get whole partitions.

    rows = run_tasks(spark, ["a.parquet", "b.parquet"], count_rows)          # [120, 80], in the order of the payloads
    table = plan_tasks(spark, chunks, read_chunk, "run string, rows bigint") # a DataFrame: what the chunks hold

A payload is any value that pickles. Each goes to one task, and each task gets one: `range` with as many partitions as
numbers is the only source of which Spark says how many rows a partition has, and nothing is shuffled. It is the same on
this machine, on a cluster and through Spark Connect.

Few bytes of payload travel inside the function, which every task gets whole: nothing starts faster. More bytes travel
as a broadcast table, from which a task takes its own row: a thousand tasks would else read each other's payloads.

An error of ours that `work` raises is raised again here as what it was (`antecede.spark.errors`). `run_tasks` runs
every task, and then raises the error of the first payload that has one: always the same.

Where rows are the work, those of a partition are brought together, and a task gets some whole partitions at a time, as
a table in Arrow (`map_partitions`). `split_partitions` says which are too large for that.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from antecede.errors import AntecedeError
from antecede.jit import kernels_for
from antecede.spark.errors import decode_error, encode_error, mark_errors
from antecede.spark.frames import hide_null_lists, join_by, quote, show_null_lists

__all__ = [
    "FULL", "Large", "bring_together", "extend_partitions", "find_starts", "map_partitions", "plan_tasks", "run_tasks",
    "split_partitions",
]  # fmt: skip

INSIDE_BYTES: Final = 4 << 20
"""Payloads of so many bytes in all travel inside the function."""

ANSWERS: Final = pa.schema({"task": pa.int64(), "answer": pa.binary(), "error": pa.string()})

NEVER: Final = np.iinfo(np.int64).min
"""The time of what has none."""
FULL: Final = 1_000_000
"""Rows of a partition that one task takes with all their columns."""
BUCKETS: Final = 1 << 16
"""Partitions are counted in so many buckets before they are counted one by one."""
TOGETHER: Final = 1 << 16
"""Rows of small partitions that are ordered in one call."""

Numbers = NDArray[np.int64]
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


# Tasks that get whole partitions


class Large(NamedTuple):
    """Partitions that no task should hold: their rows with `__part`, their names by that number, their sizes."""

    rows: DataFrame
    names: DataFrame
    sizes: list[int]


def split_partitions(
    rows: DataFrame, partition_by: tuple[str, ...], full: int
) -> tuple[DataFrame | None, Large | None]:
    """The rows of partitions with up to so many rows, and those of larger ones. This counts them at once."""
    spark = rows.sparkSession
    if not partition_by:
        total = rows.count()
        if total <= full:
            return rows, None
        names = spark.createDataFrame([(0,)], "__part int")
        return None, Large(rows.withColumn("__part", F.lit(0)), names, [total])
    groups = [quote(name) for name in partition_by]
    # Names are counted by their hashes first: few groups, no text. Most tables have no bucket that is too large.
    bucket = F.pmod(F.xxhash64(*groups), F.lit(BUCKETS))
    crowded = rows.groupBy(bucket.alias("bucket")).count().where(F.col("count") > full).toArrow()
    if not len(crowded):
        return rows, None
    some = rows.where(bucket.isin(*crowded["bucket"].to_pylist()))
    counts = some.groupBy(*groups).agg(F.count(F.lit(1)).alias("__rows")).where(F.col("__rows") > full)
    if not len(large := counts.toArrow()):
        return rows, None
    known = large.drop_columns(["__rows"]).append_column("__part", pa.array(range(len(large)), pa.int32()))
    names = spark.createDataFrame(
        known, StructType([*counts.schema.fields[:-1], StructField("__part", IntegerType())])
    )
    others = join_by(rows, F.broadcast(names), partition_by, "left_anti")
    those = join_by(rows, F.broadcast(names), partition_by)
    return others, Large(those, names, large["__rows"].to_pylist())


def extend_partitions(
    rows: DataFrame,
    partition_by: Sequence[str],
    own: Mapping[str, Column],
    work: Callable[[pa.Table, list[str]], pa.Table],
    added: Sequence[StructField],
    *,
    sort: Sequence[str] = (),
    enough: int = TOGETHER,
) -> DataFrame:
    """The rows with columns that tasks add, which hold whole partitions.

    `work` gets some partitions with the columns of the rows and `own`, and the names of those to keep. It may put rows
    in another order. Rows of a partition come sorted as `sort` says.
    """
    rows, hidden = hide_null_lists(rows)
    # After the exchange: what is made of other columns need not be shuffled.
    together = bring_together(rows, partition_by, sort)
    together = together.withColumns(dict(own)) if own else together
    columns, schema = rows.columns, StructType([*rows.schema, *added])
    done = map_partitions(together, lambda table: work(table, columns), schema, enough=enough)
    return show_null_lists(done, hidden)


def bring_together(rows: DataFrame, partition_by: Iterable[str], sort: Sequence[str] = ()) -> DataFrame:
    """The rows with `__hash`: those of a partition one after the other, in one task."""
    names = [quote(name) for name in partition_by]
    if not names:
        return rows.withColumn("__hash", F.lit(0).cast("long")).repartition(1)
    hashed = rows.withColumn("__hash", F.xxhash64(*names))
    return hashed.repartition("__hash").sortWithinPartitions("__hash", *sort)


def map_partitions(
    together: DataFrame,
    work: Callable[[pa.Table], pa.Table],
    schema: StructType | str,
    *,
    enough: int = TOGETHER,
) -> DataFrame:
    """What `work` makes of whole partitions, some at a time, of rows that are brought together."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in whole_pieces(batches, enough=enough):
            with kernels_for(len(table)):
                done = work(table.combine_chunks())
            yield from done.to_batches(max_chunksize=1 << 16)

    return together.mapInArrow(mark_errors(run), schema)


def whole_pieces(batches: Iterable[pa.RecordBatch], enough: int = TOGETHER) -> Iterator[pa.Table]:
    """Batches of rows that are sorted by `__hash`, as tables that each hold all rows of its values."""
    complete: list[pa.RecordBatch] = []
    current: list[pa.RecordBatch] = []
    for batch in batches:
        if not len(batch):
            continue
        start = find_last_start(batch.column("__hash"))
        if current and (start or current[-1].column("__hash")[0] != batch.column("__hash")[0]):
            # The rows before `start` end what was current, if they belong to it, or are complete by themselves.
            complete += current
            current = []
        if start:
            complete.append(batch.slice(0, start))
        current.append(batch.slice(start))
        if sum(map(len, complete)) >= enough:
            yield pa.Table.from_batches(complete)
            complete = []
    if complete or current:
        yield pa.Table.from_batches(complete + current)


def find_last_start(column: pa.Array) -> int:
    """The first row that has the value of the last, of sorted rows."""
    return int(np.append(0, pc.run_end_encode(column).run_ends.to_numpy())[-2])


# Columns


def find_starts(*columns: Any) -> Numbers:
    """Where rows differ from the row before.

    >>> find_starts(np.array([4, 4, 4, 7]), np.array([0, 0, 1, 1])).tolist()
    [0, 2, 3]
    """
    new = np.zeros(len(columns[0]), np.bool_)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def times_of(column: pa.Array) -> Numbers:
    """Times as integers that compare alike; what has none comes first."""
    if pa.types.is_floating(column.type):
        bits = column.fill_null(-np.inf).to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
        whole = bits.view(np.int64)
        return np.asarray(np.where(whole < 0, ~whole ^ np.int64(NEVER), whole))
    return np.asarray(column.fill_null(int(NEVER)).to_numpy(zero_copy_only=False), np.int64)


def number_groups(table: pa.Table | pa.RecordBatch, names: Iterable[str]) -> Numbers:
    """Number the partitions of a table, in the order in which they come."""
    columns = [one_array(table[name]) for name in names]
    columns = [one.indices if pa.types.is_dictionary(one.type) else one for one in columns]
    # Rows of a partition mostly stand together, and to compare them is faster than to look up each name.
    new = np.arange(len(table)) == 0
    for column in columns:
        new[pc.run_end_encode(column).run_ends.to_numpy()[:-1]] = True
    starts = np.flatnonzero(new)
    codes = np.zeros(len(starts), np.int64)
    for place, column in enumerate(columns):
        encoded = pc.dictionary_encode(column.take(pa.array(starts)), "encode")
        own = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if place:
            both = pa.array(codes * (int(own.max(initial=0)) + 1) + own).dictionary_encode()
            own = both.indices.to_numpy().astype(np.int64)
        codes = own
    return np.repeat(codes, np.diff(np.append(starts, len(table))))
