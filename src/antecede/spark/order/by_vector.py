"""Messages or events that carry vectors, in causal order: by the sum of the entries.

A vector counts events: its own entry numbers the event itself, 1, 2, 3, ... at each process, and entry i tells how
many of process i's events happened before. Vector clocks of logs are such, and the stamps of causal broadcast, where
the events are the messages (Birman, Schiper & Stephenson 1991). An entry that is absent is 0.

The vectors are taken at their word: whether they agree with each other is another question, which `ingest` answers for
logs. Where a table has one set of messages for each receiver, name the receiver among the columns of `group`:
positions, gaps and waiting are then its own. (Not so for stamps of multicasts, which count messages that the receiver
never gets.)

Steps. Which numbers are there, as words of 64 bits; the largest number that anybody refers to, for each process, found
by tasks in NumPy; what lacks between 1 and that. Then the sort.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from antecede.errors import BadTrace
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.order.api import Ordered
from antecede.spark.order.gaps import bit, holes, word
from antecede.spark.order.position import positioned

__all__ = ["order_stamped"]

WHOLE: Final = (LongType, IntegerType, ShortType, ByteType)


def order_stamped(
    rows: DataFrame,
    *,
    group: Sequence[str] = ("run",),
    process: str = "process",
    vector: str = "vector",
    partitions: int | None = None,
) -> Ordered:
    """A table of messages or events with vectors, in causal order.

    `vector` is a map from names of processes to numbers, and `process` a name; or it is an array, and `process` a
    position in it, from 0. `group` names the columns that tell one set of messages from another; it may be empty.

    The result's `rows` have all the columns of the table, then `position`, `waits`, and `waits_for`: for each process
    that it waits for, the first number that is missing. Its `missing` has the columns of `group`, `process`, `first`
    and `last`: ranges of numbers that are missing. A row without a vector, without a number of its own, or with one
    that another row has too, is a `BadTrace`.

    This reads the columns of `group`, `process` and `vector` at once, to count; it keeps which numbers are there, a
    sixty-fourth of the rows, until `release`.
    """
    refuse_columns(rows, group, process, vector)
    is_map = isinstance(rows.schema[vector].dataType, MapType)
    # Spark sorts within groups: without columns that tell them apart, all rows are one.
    groups = list(group) or ["__all"]
    named = rows if group else rows.withColumn("__all", F.lit(0))
    numbered = named.withColumn("__own", entry(is_map, vector, F.col(process)).cast("long"))
    # Positions of any width are numbers alike.
    whose = F.col(process).cast("string" if is_map else "long").alias("process")
    columns = numbered.select(*groups, whose, "__own", F.col(vector).alias("__vector"))
    values = F.map_values(vector) if is_map else F.col(vector)
    total = F.aggregate(values, F.lit(0).cast("long"), lambda total, value: total + value)
    with raise_task_errors():
        words = numbers_of(columns, groups)
        missing = lacking(columns, words, groups, is_map)
        marked = mark(numbered, groups, missing, is_map, vector)
        placed = positioned(
            marked.withColumn("__sum", total), groups, "__sum", [process, "__own"], partitions=partitions
        )
    ordered = placed.select(*rows.columns, "position", "waits", "waits_for")
    return Ordered(ordered, missing.drop("__all"), "vector", tuple(group), (words,))


def refuse_columns(rows: DataFrame, group: Sequence[str], process: str, vector: str) -> None:
    """Columns that are not there, or of another type."""
    for name in (*group, process, vector):
        if name not in rows.columns:
            raise BadTrace("table", f"columns {', '.join(rows.columns)}", f"also {name}")
    kind, own = rows.schema[vector].dataType, rows.schema[process].dataType
    match kind:
        case MapType(keyType=StringType(), valueType=value) if isinstance(value, WHOLE):
            wanted: tuple[type[DataType], ...] = (StringType,)
        case ArrayType(elementType=value) if isinstance(value, WHOLE):
            wanted = WHOLE
        case _:
            found = f"column {vector} of type {kind.simpleString()}"
            raise BadTrace("table", found, "map<string,bigint> or array<bigint>")
    if not isinstance(own, wanted):
        found = f"column {process} of type {own.simpleString()} with vectors of type {kind.simpleString()}"
        raise BadTrace("table", found, "names with maps, positions with arrays")


def entry(is_map: bool, vector: str, process: Column) -> Column:
    """An entry of a vector, or null."""
    return F.try_element_at(F.col(vector), process) if is_map else F.get(F.col(vector), process)


# What is missing


def numbers_of(columns: DataFrame, group: list[str]) -> DataFrame:
    """The numbers that are there, as words. Rows without a number, or with that of another, are refused."""
    words = columns.groupBy(*group, "process", word("__own").alias("word")).agg(
        F.bit_or(bit("__own")).alias("bits"),
        F.count(F.lit(1)).alias("rows"),
        F.coalesce(F.min("__own"), F.lit(0)).alias("least"),
    )
    # Read to check, to find what is missing, and to list it.
    words.persist(StorageLevel.MEMORY_AND_DISK)
    refuse_numbers(words, group)
    return words


def lacking(columns: DataFrame, words: DataFrame, group: list[str], is_map: bool) -> DataFrame:
    """The numbers that are referred to and not there, as ranges: (group..., process, first, last)."""
    last = referred(columns, group, is_map)
    # Whoever is there refers to itself, so nobody is lost.
    both = last.join(words, [*group, "process"], "left")
    filled = both.select(
        *group,
        "process",
        F.coalesce("word", F.lit(0)).alias("word"),
        F.coalesce("bits", F.lit(0)).alias("bits"),
        "last",
    )
    fields = [columns.schema[name] for name in (*group, "process")]
    ends = [StructField("first", LongType()), StructField("last", LongType())]
    together = filled.repartition(*group, "process").sortWithinPartitions(*group, "process", "word")
    return together.mapInArrow(
        mark_errors(partial(holes, names=[*group, "process"])), StructType(fields + ends)
    )


def refuse_numbers(words: DataFrame, group: list[str]) -> None:
    """Rows that have no number of their own, or one that another has."""
    empty = F.greatest(*(F.col(name).isNull() for name in (*group, "process")))
    wrong = words.where(empty | (F.col("least") < 1) | (F.col("rows") != F.bit_count("bits")))
    for row in wrong.orderBy(*group, "process", "word").limit(1).toArrow().to_pylist():
        where = place(row, group)
        if None in [row[name] for name in (*group, "process")]:
            raise BadTrace(where, "a row without a name", f"a value for {', '.join([*group, 'process'])}")
        if row["least"] < 1:
            raise BadTrace(where, "a row whose vector has no number of its own", "1 or more in its own entry")
        low = row["word"] * 64
        found = f"{row['rows']} rows with numbers from {low} to {low + 63}, some of them equal"
        raise BadTrace(where, found, "one row for each number")


def place(row: dict[str, Any], group: Sequence[str]) -> str:
    names = [f"{name} {row[name]}" for name in group if name != "__all"]
    return ", ".join([*names, f"process {row['process']}"])


def referred(columns: DataFrame, group: list[str], is_map: bool) -> DataFrame:
    """The largest entry of each process in each group: as many rows as there are processes, known from now on."""
    spark = columns.sparkSession
    process = columns.schema["process"]
    fields = [columns.schema[name] for name in group]
    schema = StructType([*fields, process, StructField("last", LongType()), StructField("least", LongType())])
    task = partial(extremes, group=group, is_map=is_map)
    found = columns.select(*group, "__vector").mapInArrow(mark_errors(task), schema)
    ends = found.groupBy(*group, "process").agg(F.max("last").alias("last"), F.min("least").alias("least"))
    table = ends.toArrow()
    for row in table.filter(pc.less(table["least"], 0)).slice(0, 1).to_pylist():
        raise BadTrace(place(row, group), f"an entry of {row['least']}", "0 or more")
    return F.broadcast(
        spark.createDataFrame(table.drop_columns(["least"]), StructType([*fields, process, schema["last"]]))
    )


def extremes(batches: Iterator[pa.RecordBatch], group: list[str], is_map: bool) -> Iterator[pa.RecordBatch]:
    """For a task: (group..., process, last, least) of each batch."""
    for batch in batches:
        if not len(batch):
            continue
        vectors = batch.column("__vector")
        lengths = pc.list_value_length(vectors) if not is_map else None
        if lengths is not None and lengths.null_count == 0 and pc.min(lengths) == pc.max(lengths):
            yield from square(batch, vectors, group, lengths[0].as_py())
        else:
            yield from ragged(batch, vectors, group, is_map)


def square(batch: pa.RecordBatch, vectors: Any, group: list[str], n: int) -> Iterator[pa.RecordBatch]:
    """Arrays of one length: a matrix, whose rows are sorted by group."""
    matrix = vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(batch), n)
    table = pa.table({name: batch.column(name) for name in group} | {"row": np.arange(len(batch))})
    table = table.group_by(group, use_threads=False).aggregate([("row", "list")])
    sets = table["row_list"].combine_chunks()
    starts = sets.offsets.to_numpy()[:-1]
    ordered = matrix[sets.flatten().to_numpy()] if len(table) > 1 else matrix
    ends = {"last": np.maximum.reduceat(ordered, starts), "least": np.minimum.reduceat(ordered, starts)}
    columns = {name: table[name].combine_chunks().take(np.repeat(np.arange(len(table)), n)) for name in group}
    columns["process"] = pa.array(np.tile(np.arange(n), len(table)))
    columns |= {name: pa.array(ends[name].ravel(), pa.int64()) for name in ends}
    yield pa.record_batch(columns)


def ragged(batch: pa.RecordBatch, vectors: Any, group: list[str], is_map: bool) -> Iterator[pa.RecordBatch]:
    """Maps, or arrays of several lengths."""
    if is_map:
        lists = pa.ListArray.from_arrays(vectors.offsets, vectors.keys)
        keys, values = vectors.keys, vectors.items
        parents = pc.list_parent_indices(lists)
    else:
        parents, values = pc.list_parent_indices(vectors), vectors.flatten()
        starts = vectors.offsets.to_numpy()[:-1] - vectors.offsets[0].as_py()
        keys = pa.array(np.arange(len(values)) - starts[parents.to_numpy()])
    columns = {name: batch.column(name).take(parents) for name in group}
    table = pa.table(columns | {"process": keys, "value": values.cast(pa.int64())})
    found = table.group_by([*group, "process"], use_threads=False).aggregate(
        [("value", "max"), ("value", "min")]
    )
    found = found.rename_columns([*group, "process", "last", "least"])
    yield from found.combine_chunks().to_batches()


# What waits


def mark(rows: DataFrame, group: list[str], missing: DataFrame, is_map: bool, vector: str) -> DataFrame:
    """The rows, with whether each waits, and for what."""
    firsts = missing.groupBy(*group, "process").agg(F.min("first").alias("number"))
    lists = firsts.groupBy(*group).agg(
        F.sort_array(F.collect_list(F.struct("process", "number"))).alias("__firsts")
    )
    known = lists.toArrow()
    kind = lists.schema["__firsts"].dataType
    if not len(known):
        none = rows.withColumn("waits", F.lit(False))
        return none.withColumn("waits_for", F.array().cast(kind))
    table = F.broadcast(rows.sparkSession.createDataFrame(known, lists.schema))
    waits_for = F.filter("__firsts", lambda first: entry(is_map, vector, first["process"]) >= first["number"])
    joined = rows.join(table, group, "left")
    told = joined.withColumn("waits_for", F.coalesce(waits_for, F.array().cast(kind)))
    return told.withColumn("waits", F.size("waits_for") > 0).drop("__firsts")
