"""Messages or events that carry vectors, in causal order: by the sum of the entries.

A vector counts events: its own entry numbers the event itself, 1, 2, 3, ... at each process, and entry i tells how
many of process i's events happened before. Vector clocks of logs are such, and the stamps of causal broadcast, where
the events are the messages (Birman, Schiper & Stephenson 1991). An entry that is absent is 0. If i precedes j, no entry
of i's vector is larger than j's, and one is smaller: so the sum of the entries grows along happened-before.

The vectors are taken at their word: whether they agree with each other is another question, which `ingest` answers for
logs. Where a table has one set of messages for each receiver, the receiver is a column of `partition_by`: positions,
gaps and waiting are then its own. (Not so for stamps of multicasts, which count messages that the receiver never gets.)

With `time` the key of a row is the greatest of its own time and its causes' keys, and the sum decides between equal
keys. Then a task holds the rows of a whole partition, 8 bytes for each entry of a vector; without `time`, none does.

Steps. Tasks read the vectors once and count in NumPy: which numbers are there, as words of 64 bits; the largest number
that anybody refers to, for each process; and how many rows fall into each cell of the sort. A partition whose rows have
no number, or one that another row has, or an entry that is null or negative, is refused. Then the sort.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, LongType, MapType, StringType, StructField, StructType

from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.frames import (
    VECTOR_FAULTS,
    ByVector,
    read_time,
    refuse_column_names,
    refuse_unlike_vectors,
)
from antecede.spark.order.graph import count_from_starts
from antecede.spark.order.position import Grid, count_cells, default_partitions, sort_rows
from antecede.spark.order.vectors import (
    CELL,
    FAULT,
    LAST,
    WORD,
    Vectors,
    climb_times,
    count_batches,
    list_holes,
)
from antecede.spark.run_tasks import extend_partitions, number_groups, times_of

__all__ = ["READ", "TOLD", "explain_refused", "find_missing", "order_rows", "refuse_columns"]

READ: Final[tuple[str, ...]] = ()
TOLD: Final = ("process", "first", "last")


def order_rows(rows: DataFrame, asked: ByVector, partitions: int | None = None) -> DataFrame:
    """The rows with `position` and `waits_for`: for each process that a row waits for, the first missing number.

    This reads the columns that are asked for at once, to count. What it counted, a small part of the rows, stays on
    disk as long as the result is used.
    """
    groups, kept = group_columns(asked), rows.columns
    named = keyed = rows.withColumns(name_groups(asked))
    with raise_task_errors():
        # Read to check, to find what is missing, and to cut the sort.
        counts = count_vectors(rows, asked).localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        told = refused_groups(counts, groups).toArrow()
        bad = F.broadcast(rows.sparkSession.createDataFrame(told)) if len(told) else None
        missing = list_gaps(counts, groups)
        if bad is not None:
            counts, missing, keyed = (
                table.join(bad, groups, "left_anti") for table in (counts, missing, named)
            )
        is_map = isinstance(rows.schema[asked.vector].dataType, MapType)
        values = F.map_values(asked.vector) if is_map else F.col(asked.vector)
        total = F.aggregate(values, F.lit(0).cast("long"), lambda sum, value: sum + value)
        own = take_entry(is_map, asked.vector, F.col(asked.process))
        keyed = keyed.withColumns({"__key": total, "__own": own.cast("long")})
        marked, waits = mark_waiting(keyed, groups, missing, is_map, asked)
        if asked.time is not None:
            ordered = sort_by_time(marked, groups, asked)
        else:
            ties = [asked.process, "__own"]
            ordered = sort_by_sum(marked, groups, ties, counts, partitions)
    found = ordered.select(*kept, "position", waits.alias("waits_for"))
    if bad is not None:
        empty = F.array().cast(found.schema["waits_for"].dataType).alias("waits_for")
        none = F.lit(None).cast("long").alias("position")
        found = found.unionByName(named.join(bad, groups, "left_semi").select(*kept, none, empty))
    return found


def sort_by_time(rows: DataFrame, groups: list[str], asked: ByVector) -> DataFrame:
    """The rows with `position`, by keys: the greatest of their own times and their causes' keys."""
    assert asked.time is not None
    process = F.col(asked.process)
    is_map = isinstance(rows.schema[asked.vector].dataType, MapType)
    own = {
        "__time": read_time(rows, asked.time),
        "__process": process if is_map else process.cast("long"),
        "__vector": F.col(asked.vector),
    }
    work = partial(climb_and_sort, groups=groups, is_map=is_map)
    return extend_partitions(rows, groups, own, work, [StructField("position", LongType())])


def climb_and_sort(table: pa.Table, columns: list[str], groups: list[str], is_map: bool) -> pa.Table:
    """In a task: the rows of whole partitions."""
    [batch] = table.to_batches()
    group = number_groups(batch, groups)
    key = climb_times(group, Vectors.of(batch, is_map), times_of(batch.column("__time")))
    keyed = table.append_column("__place", pa.array(group)).append_column("__climbed", pa.array(key))
    by = ("__place", "__climbed", "__key", "__process", "__own")
    ordered = keyed.sort_by([(name, "ascending") for name in by])
    position = count_from_starts(ordered["__place"].to_numpy())
    return ordered.select(columns).append_column("position", pa.array(position))


def refuse_columns(rows: DataFrame, asked: ByVector) -> None:
    """Columns that are not there, or of another type."""
    named = {"process": asked.process, "vector": asked.vector, "time": asked.time}
    refuse_column_names("order", rows, named, asked.partition_by)
    refuse_unlike_vectors(rows, asked.process, asked.vector)


def take_entry(is_map: bool, vector: str, process: Column) -> Column:
    """An entry of a vector, or null."""
    column = F.col(vector)
    return F.try_element_at(column, process) if is_map else F.get(column, process)


def group_columns(asked: ByVector) -> list[str]:
    """Names of our own for the columns that tell partitions apart; without any, all rows are one."""
    return [f"__group{place}" for place, _ in enumerate(asked.partition_by)] or ["__group0"]


def name_groups(asked: ByVector) -> dict[str, Column]:
    """Partitions by names of our own. A null is a name like any other, and Spark joins no nulls."""
    if not asked.partition_by:
        return {"__group0": F.lit("")}
    return {
        f"__group{place}": F.coalesce(F.concat(F.lit("="), F.col(name).cast("string")), F.lit("null"))
        for place, name in enumerate(asked.partition_by)
    }


# What is counted


def count_vectors(rows: DataFrame, asked: ByVector) -> DataFrame:
    """All that tasks count, as rows (what, groups..., process, one, two, three).

    WORD    of a process: `number >> 6`, a bit for each number, rows
    LAST    of a process: the largest entry
    CELL    bits, `sum >> bits`, rows
    FAULT   of a process: which of `VECTOR_FAULTS`, rows
    """
    is_map = isinstance(rows.schema[asked.vector].dataType, MapType)
    process = F.col(asked.process).cast("string" if is_map else "long").alias("__process")
    groups = group_columns(asked)
    columns = rows.select(
        *(column.alias(name) for name, column in name_groups(asked).items()),
        process,
        F.col(asked.vector).alias("__vector"),
    )
    schema = StructType(
        [
            StructField("what", ByteType()),
            *(StructField(name, StringType()) for name in groups),
            StructField("process", StringType() if is_map else LongType()),
            *(StructField(name, LongType()) for name in ("one", "two", "three")),
        ]
    )
    told = columns.mapInArrow(mark_errors(partial(count_batches, groups=groups, is_map=is_map)), schema)
    sums = told.groupBy(
        "what", *groups, "process", F.when(F.col("what") != LAST, F.col("one")).alias("__one"),
        F.when(F.col("what") == CELL, F.col("two")).alias("__two"),
    ).agg(
        F.max("one").alias("one"),
        F.when(F.col("what") == WORD, F.bit_or("two")).otherwise(F.max("two")).alias("two"),
        F.sum("three").alias("three"),
    )  # fmt: skip
    return sums.drop("__one", "__two")


# What is made of it


def refused_groups(counts: DataFrame, groups: list[str]) -> DataFrame:
    """(groups..., process, fault, rows, low): partitions with a fault, or with a number that two rows have."""
    twice = (F.col("what") == WORD) & (F.col("three") != F.bit_count("two"))
    wrong = counts.where((F.col("what") == FAULT) | twice)
    fault = F.when(F.col("what") == FAULT, F.col("one")).otherwise(F.lit(len(VECTOR_FAULTS)))
    about = F.struct(
        fault.alias("fault"), "process", F.col("three").alias("rows"), F.shiftleft("one", 6).alias("low")
    )
    first = wrong.groupBy(*groups).agg(F.min(about).alias("first"))
    return first.select(*groups, "first.*")


def list_gaps(counts: DataFrame, groups: list[str]) -> DataFrame:
    """The numbers that are referred to and not there, as ranges: (groups..., process, first, last)."""
    last = counts.where(F.col("what") == LAST).select(*groups, "process", F.col("one").alias("last"))
    words = counts.where(F.col("what") == WORD).select(
        *groups, "process", F.col("one").alias("word"), F.col("two").alias("bits")
    )
    # Whoever is there refers to itself, so nobody is lost.
    both = last.join(words, [*groups, "process"], "left")
    filled = both.withColumns(
        {"word": F.coalesce("word", F.lit(0)), "bits": F.coalesce("bits", F.lit(0))}
    ).select(*groups, "process", "word", "bits", "last")
    fields = [counts.schema[name] for name in (*groups, "process")]
    ends = [StructField("first", LongType()), StructField("last", LongType())]
    together = filled.repartition(*groups, "process").sortWithinPartitions(*groups, "process", "word")
    return together.mapInArrow(partial(list_holes, names=[*groups, "process"]), StructType(fields + ends))


def sort_by_sum(
    rows: DataFrame, groups: list[str], ties: list[str], counts: DataFrame, partitions: int | None
) -> DataFrame:
    """The rows with `position`, by `__key`. The cells of the sort are counted already: those of tasks, put together."""
    cells = counts.where(F.col("what") == CELL)
    bounds = F.expr("shiftleft(two, cast(one as int))"), F.expr("shiftleft(two + 1, cast(one as int)) - 1")
    known = cells.groupBy(*groups).agg(
        F.sum("three").alias("__rows"),
        F.min(bounds[0]).alias("__low"),
        F.max(bounds[1]).alias("__high"),
        F.max("one").alias("__finest"),
    )
    table = known.toArrow()
    total = int(pc.sum(table["__rows"]).as_py() or 0)
    if not total:
        return rows.withColumn("position", F.lit(None).cast("long"))
    partitions = default_partitions(rows, total) if partitions is None else partitions
    grid = Grid.of(table.drop_columns(["__finest"]), groups, partitions, table["__finest"].to_numpy())
    many = F.broadcast(rows.sparkSession.createDataFrame(grid.table()))
    number = F.expr("shiftright(two, cast(__bits - one as int)) - shiftright(__low, __bits)")
    cell = F.expr("shiftleft(__group, 32)") + F.when(F.col("__many"), number).otherwise(F.lit(0))
    summed = (
        cells.join(many, groups).groupBy(cell.alias("__cell")).agg(F.sum("three").alias("__rows")).toArrow()
    )
    counted = {name: summed[name].to_numpy() for name in ("__cell", "__rows")}
    return sort_rows(rows, groups, ties, *count_cells(rows, groups, grid, partitions, counted), partitions)


def mark_waiting(
    rows: DataFrame, groups: list[str], missing: DataFrame, is_map: bool, asked: ByVector
) -> tuple[DataFrame, Column]:
    """The rows, and what each waits for."""
    firsts = missing.groupBy(*groups, "process").agg(F.min("first").alias("number"))
    lists = firsts.groupBy(*groups).agg(
        F.sort_array(F.collect_list(F.struct("process", "number"))).alias("__firsts")
    )
    known = lists.toArrow()
    empty = F.array().cast(lists.schema["__firsts"].dataType)
    if not len(known):
        # After the sort: a constant need not be shuffled.
        return rows, empty
    table = F.broadcast(rows.sparkSession.createDataFrame(known, lists.schema))
    waits = F.filter(
        "__firsts", lambda first: take_entry(is_map, asked.vector, first["process"]) >= first["number"]
    )
    joined = rows.join(table, groups, "left")
    return joined.withColumn("__waits", F.coalesce(waits, empty)).drop("__firsts"), F.col("__waits")


# What comes of it


def find_missing(ordered: DataFrame, asked: ByVector) -> DataFrame:
    """(partition columns, process, first, last): ranges of numbers that are missing."""
    good = ordered.where("position is not null")
    gaps = list_gaps(count_vectors(good, asked), group_columns(asked))
    return name_again(gaps, good, asked).select(*asked.partition_by, "process", "first", "last")


def explain_refused(ordered: DataFrame, asked: ByVector) -> DataFrame:
    """(partition columns, rows, reason) of each partition that is refused."""
    bad = ordered.where("position is null")
    rows = name_again(
        refused_groups(count_vectors(bad, asked), group_columns(asked)).drop("rows"), bad, asked
    )
    named = F.when(F.col("process").isNull(), F.lit("a row")).otherwise(
        F.concat(F.lit("a row of process "), F.col("process").cast("string"))
    )
    faults = F.array(*map(F.lit, VECTOR_FAULTS))
    has = F.concat(named, F.lit(" has "), F.get(faults, F.col("fault").cast("int")))
    low = F.col("low").cast("string")
    twice = F.concat(
        F.lit("process "), F.col("process").cast("string"), F.lit(" has two rows of one number, near "), low
    )
    reason = F.when(F.col("fault") < len(VECTOR_FAULTS), has).otherwise(twice)
    return rows.select(*asked.partition_by, "rows", reason.alias("reason"))


def name_again(found: DataFrame, rows: DataFrame, asked: ByVector) -> DataFrame:
    """Partitions by their own columns, and how many rows they have."""
    groups = group_columns(asked)
    own = [F.first(name).alias(name) for name in asked.partition_by]
    counts = rows.withColumns(name_groups(asked)).groupBy(*groups).agg(F.count(F.lit(1)).alias("rows"), *own)
    return found.join(counts, groups)
