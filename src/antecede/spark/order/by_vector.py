"""Messages or events that carry vectors, in causal order: by the sum of the entries.

A vector counts events: its own entry numbers the event itself, 1, 2, 3, ... at each process, and entry i tells how
many of process i's events happened before. Vector clocks of logs are such, and the stamps of causal broadcast, where
the events are the messages (Birman, Schiper & Stephenson 1991). An entry that is absent is 0. If i precedes j, no entry
of i's vector is larger than j's, and one is smaller: so the sum of the entries grows along happened-before.

The vectors are taken at their word: whether they agree with each other is another question, which `ingest` answers for
logs. Where a table has one set of messages for each receiver, the receiver is a column of `partition_by`: positions,
gaps and waiting are then its own. (Not so for stamps of multicasts, which count messages that the receiver never gets.)

Steps. Tasks read the vectors once and count in NumPy: which numbers are there, as words of 64 bits; the largest number
that anybody refers to, for each process; and how many rows fall into each cell of the sort. A partition whose rows have
no number, or one that another row has, or an entry that is null or negative, is refused. Then the sort.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
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

from antecede.errors import BadParameter
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.frames import quote
from antecede.spark.order.gaps import list_holes
from antecede.spark.order.position import Cells, Grid, count_cells, default_partitions, sort_rows

__all__ = ["ByVector", "explain_refused", "find_missing", "order_by_vector"]

WHOLE: Final = (LongType, IntegerType, ShortType, ByteType)
FINE: Final = 512
"""Cells into which the sums of a batch are counted, about: several for each cell of the sort."""

WORD, LAST, CELL, FAULT = range(4)
FAULTS: Final = (
    "no name of its process",
    "no vector",
    "an entry that is null",
    "a negative entry",
    "no number of its own",
)


class ByVector(Struct, frozen=True):
    """Which columns say what."""

    process: str
    vector: str
    partition_by: tuple[str, ...] = ()


def order_by_vector(rows: DataFrame, asked: ByVector, *, partitions: int | None = None) -> DataFrame:
    """The rows with `position` and `waits_for`: for each process that a row waits for, the first missing number.

    This reads the columns that are asked for at once, to count. What it counted, a small part of the rows, stays on
    disk as long as the result is used.
    """
    refuse_columns(rows, asked)
    with raise_task_errors():
        # Read to check, to find what is missing, and to cut the sort.
        counts = count_vectors(rows, asked).localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        groups = group_columns(asked)
        bad = refused_groups(counts, groups).toArrow()
        missing = list_gaps(counts, groups)
        if len(bad):
            counts = keep_others(counts, bad, groups)
            missing = keep_others(missing, bad, groups)
        keyed = rows.withColumns(name_groups(asked))
        refused = None
        if len(bad):
            refused = rows.withColumns(name_groups(asked)).join(known_table(rows, bad), groups, "left_semi")
            keyed = keep_others(keyed, bad, groups)
        is_map = isinstance(rows.schema[asked.vector].dataType, MapType)
        values = F.map_values(quote(asked.vector)) if is_map else F.col(quote(asked.vector))
        total = F.aggregate(values, F.lit(0).cast("long"), lambda sum, value: sum + value)
        own = take_entry(is_map, asked.vector, F.col(quote(asked.process)))
        keyed = keyed.withColumns({"__key": total, "__own": own.cast("long")})
        grid, cells, partitions = lay_grid(counts, groups, rows, partitions)
        marked, waits = mark_waiting(keyed, groups, missing, is_map, asked)
        kept = [F.col(quote(name)) for name in rows.columns]
        if grid is None:
            ordered = marked.withColumn("position", F.lit(None).cast("long"))
        else:
            grid, cells = count_cells(marked, groups, grid, partitions, cells)
            ordered = sort_rows(marked, groups, [quote(asked.process), "__own"], grid, cells, partitions)
    found = ordered.select(*kept, "position", waits.alias("waits_for"))
    if refused is not None:
        empty = F.array().cast(found.schema["waits_for"].dataType)
        none = F.lit(None).cast("long").alias("position")
        found = found.unionByName(refused.select(*kept, none, empty.alias("waits_for")))
    return found


def refuse_columns(rows: DataFrame, asked: ByVector) -> None:
    """Columns that are not there, or of another type."""
    named = {"process": asked.process, "vector": asked.vector}
    named |= {f"partition_by {place + 1}": name for place, name in enumerate(asked.partition_by)}
    for what, name in named.items():
        if rows.columns.count(name) != 1:
            raise BadParameter("order", what, name, f"one of the columns {', '.join(rows.columns)}")
    kind, own = rows.schema[asked.vector].dataType, rows.schema[asked.process].dataType
    match kind:
        case MapType(keyType=StringType(), valueType=value) if isinstance(value, WHOLE):
            wanted: tuple[type[DataType], ...] = (StringType,)
        case ArrayType(elementType=value) if isinstance(value, WHOLE):
            wanted = WHOLE
        case _:
            found = f"{asked.vector} of type {kind.simpleString()}"
            raise BadParameter("order", "vector", found, "map<string,bigint> or array<bigint>")
    if not isinstance(own, wanted):
        found = f"{asked.process} of type {own.simpleString()} with vectors of type {kind.simpleString()}"
        raise BadParameter("order", "process", found, "names with maps, positions with arrays")


def take_entry(is_map: bool, vector: str, process: Column) -> Column:
    """An entry of a vector, or null."""
    column = F.col(quote(vector))
    return F.try_element_at(column, process) if is_map else F.get(column, process)


def group_columns(asked: ByVector) -> list[str]:
    """Names of our own for the columns that tell partitions apart; without any, all rows are one."""
    return [f"__group{place}" for place, _ in enumerate(asked.partition_by)] or ["__group0"]


def name_groups(asked: ByVector) -> dict[str, Column]:
    """Partitions by names of our own. A null is a name like any other, and Spark joins no nulls."""
    if not asked.partition_by:
        return {"__group0": F.lit("")}
    return {
        f"__group{place}": F.coalesce(F.concat(F.lit("="), F.col(quote(name)).cast("string")), F.lit("null"))
        for place, name in enumerate(asked.partition_by)
    }


# What is counted


def count_vectors(rows: DataFrame, asked: ByVector) -> DataFrame:
    """All that tasks count, as rows (what, groups..., process, one, two, three).

    WORD    of a process: `number >> 6`, a bit for each number, rows
    LAST    of a process: the largest entry
    CELL    bits, `sum >> bits`, rows
    FAULT   of a process: which of `FAULTS`, rows
    """
    is_map = isinstance(rows.schema[asked.vector].dataType, MapType)
    process = F.col(quote(asked.process)).cast("string" if is_map else "long").alias("__process")
    groups = group_columns(asked)
    columns = rows.select(
        *(column.alias(name) for name, column in name_groups(asked).items()),
        process,
        F.col(quote(asked.vector)).alias("__vector"),
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


def count_batches(
    batches: Iterable[pa.RecordBatch], groups: list[str], is_map: bool
) -> Iterator[pa.RecordBatch]:
    """In a task: what `count_vectors` lists, of each batch."""
    for batch in batches:
        if len(batch):
            yield from count_batch(batch, groups, is_map)


def count_batch(batch: pa.RecordBatch, groups: list[str], is_map: bool) -> Iterator[pa.RecordBatch]:
    named = number_groups(batch, groups)
    vectors = Vectors.of(batch, is_map)
    fault = vectors.find_faults()

    def give(what: int, group: Any, process: pa.Array, one: Any, two: Any, three: Any) -> pa.RecordBatch:
        first = pa.array(named.first[group])
        columns = {"what": pa.array(np.full(len(group), what, np.int8))}
        columns |= {name: batch.column(name).take(first) for name in groups}
        columns |= {"process": process, "one": one, "two": two, "three": three}
        return pa.record_batch({name: pa.array(column) for name, column in columns.items()})

    bad = np.flatnonzero(fault >= 0)
    if len(bad):
        zeros = np.zeros(len(bad), np.int64)
        yield give(FAULT, named.group[bad], vectors.process.take(pa.array(bad)), fault[bad], zeros, zeros + 1)
    good = np.flatnonzero(fault < 0)
    if not len(good):
        return
    group, own, total = named.group[good], vectors.own[good], vectors.sums()[good]
    # Numbers of each process, as words.
    code = encode(vectors.process.take(pa.array(good)))
    word = own >> 6
    order = np.lexsort((word, code, group))
    starts = find_starts(group[order], code[order], word[order])
    rows = good[order[starts]]
    bits = np.bitwise_or.reduceat(np.left_shift(np.int64(1), own[order] & 63), starts)
    many = np.diff(np.append(starts, len(order)))
    yield give(WORD, named.group[rows], vectors.process.take(pa.array(rows)), word[order[starts]], bits, many)
    # Cells of the sums: as wide as keeps their number small.
    order = np.lexsort((total, group))
    starts = find_starts(group[order])
    ends = np.append(starts[1:], len(order)) - 1
    span = total[order[ends]] - total[order[starts]]
    share = np.maximum(1, FINE * np.diff(np.append(starts, len(order))) // len(order))
    width = np.array([int(one).bit_length() for one in span // share], np.int64)
    bits_of = np.zeros(int(group.max()) + 1, np.int64)
    bits_of[group[order[starts]]] = width
    cell = total >> bits_of[group]
    starts = find_starts(group[order], cell[order])
    rows = order[starts]
    none = pa.nulls(len(rows), vectors.process.type)
    many = np.diff(np.append(starts, len(order)))
    yield give(CELL, group[rows], none, bits_of[group[rows]], cell[rows], many)
    # The largest entries.
    group, process, last = vectors.find_lasts(named.group, fault < 0)
    yield give(LAST, group, process, last, np.zeros(len(last), np.int64), np.zeros(len(last), np.int64))


class Named(Struct):
    """The partitions of a batch: each row's number, and the first row of each."""

    group: Any
    first: Any


def number_groups(batch: pa.RecordBatch, groups: list[str]) -> Named:
    codes = np.zeros(len(batch), np.int64)
    for name in groups:
        own = encode(batch.column(name))
        codes = encode(pa.array(codes * (int(own.max()) + 1) + own)) if len(groups) > 1 else own
    _, first = np.unique(codes, return_index=True)
    return Named(codes, first)


def encode(column: pa.Array) -> Any:
    """A number for each value, from 0, in the order in which they come."""
    return pc.dictionary_encode(column, "encode").indices.to_numpy().astype(np.int64)


def find_starts(*columns: Any) -> Any:
    """Where sorted rows differ from the row before."""
    new = np.zeros(len(columns[0]), np.bool_)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


class Vectors:
    """The vectors of a batch: entries one after the other, or a matrix if all have one length."""

    def __init__(
        self, process: pa.Array, vectors: Any, keys: Any, values: Any, parents: Any, width: int
    ) -> None:
        self.process, self.vectors, self.keys, self.parents, self.width = (
            process,
            vectors,
            keys,
            parents,
            width,
        )
        self.null = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        self.values = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)

    @classmethod
    def of(cls, batch: pa.RecordBatch, is_map: bool) -> Vectors:
        process, vectors = batch.column("__process"), batch.column("__vector")
        if is_map:
            lists = pa.ListArray.from_arrays(vectors.offsets, vectors.items, mask=vectors.is_null())
            keyed = pa.ListArray.from_arrays(vectors.offsets, vectors.keys, mask=vectors.is_null())
            parents = pc.list_parent_indices(lists).to_numpy()
            return cls(process, lists, keyed.flatten(), lists.flatten(), parents, 0)
        lengths = pc.list_value_length(vectors)
        if not lengths.null_count and pc.min(lengths) == pc.max(lengths) and lengths[0].as_py():
            return cls(process, vectors, None, vectors.flatten(), None, lengths[0].as_py())
        parents = pc.list_parent_indices(vectors).to_numpy()
        filled = lengths.fill_null(0).to_numpy()
        starts = np.cumsum(filled) - filled
        keys = pa.array(np.arange(len(parents)) - starts[parents])
        return cls(process, vectors, keys, vectors.flatten(), parents, 0)

    def sums(self) -> Any:
        if self.width:
            return self.values.reshape(-1, self.width).sum(axis=1)
        total = np.zeros(len(self.process), np.int64)
        np.add.at(total, self.parents, self.values)
        return total

    def find_faults(self) -> Any:
        """For each row the first of `FAULTS` that it has, or -1; and its own number as `own`."""
        rows = len(self.process)
        fault = np.full(rows, -1, np.int64)
        self.own = self._own_numbers()
        fault[self.own < 1] = 4
        parents = np.repeat(np.arange(rows), self.width) if self.width else self.parents
        fault[parents[self.values < 0]] = 3
        if self.null is not None:
            fault[parents[self.null]] = 2
        fault[self.vectors.is_null().to_numpy(zero_copy_only=False)] = 1
        fault[self.process.is_null().to_numpy(zero_copy_only=False)] = 0
        return fault

    def _own_numbers(self) -> Any:
        rows = len(self.process)
        if self.width:
            place = self.process.fill_null(-1).to_numpy(zero_copy_only=False)
            inside = (place >= 0) & (place < self.width)
            matrix = self.values.reshape(rows, self.width)
            return np.where(inside, matrix[np.arange(rows), np.where(inside, place, 0)], 0)
        own = np.zeros(rows, np.int64)
        mine = pc.equal(self.keys, self.process.take(pa.array(self.parents)))
        mine = mine.fill_null(False).to_numpy(zero_copy_only=False)
        own[self.parents[mine]] = self.values[mine]
        return own

    def find_lasts(self, group: Any, good: Any) -> tuple[Any, pa.Array, Any]:
        """The largest entry of each process in each partition: (partition, process, entry)."""
        if self.width:
            order = np.argsort(group[good], kind="stable")
            rows = np.flatnonzero(good)[order]
            starts = find_starts(group[rows])
            matrix = self.values.reshape(-1, self.width)
            last = np.maximum.reduceat(
                matrix if len(rows) == len(matrix) and len(starts) == 1 else matrix[rows], starts
            )
            places = np.tile(np.arange(self.width, dtype=np.int64), len(starts))
            return np.repeat(group[rows[starts]], self.width), pa.array(places), last.ravel()
        some = good[self.parents]
        parents, values, keys = self.parents[some], self.values[some], self.keys.filter(pa.array(some))
        code = encode(keys)
        order = np.lexsort((code, group[parents]))
        starts = find_starts(group[parents][order], code[order])
        if not len(order):
            return order, keys, order
        return (
            group[parents][order[starts]],
            keys.take(pa.array(order[starts])),
            np.maximum.reduceat(values[order], starts),
        )


# What is made of it


def refused_groups(counts: DataFrame, groups: list[str]) -> DataFrame:
    """(groups..., process, fault, rows, low): partitions with a fault, or with a number that two rows have."""
    twice = (F.col("what") == WORD) & (F.col("three") != F.bit_count("two"))
    wrong = counts.where((F.col("what") == FAULT) | twice)
    fault = F.when(F.col("what") == FAULT, F.col("one")).otherwise(F.lit(len(FAULTS)))
    about = F.struct(
        fault.alias("fault"), "process", F.col("three").alias("rows"), F.shiftleft("one", 6).alias("low")
    )
    first = wrong.groupBy(*groups).agg(F.min(about).alias("first"))
    return first.select(*groups, "first.*")


def known_table(rows: DataFrame, bad: pa.Table) -> DataFrame:
    groups = [name for name in bad.column_names if name.startswith("__group")]
    return F.broadcast(rows.sparkSession.createDataFrame(bad.select(groups)))


def keep_others(rows: DataFrame, bad: pa.Table, groups: list[str]) -> DataFrame:
    return rows.join(known_table(rows, bad), groups, "left_anti")


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


def lay_grid(
    counts: DataFrame, groups: list[str], rows: DataFrame, partitions: int | None
) -> tuple[Grid | None, Cells, int]:
    """The cells of the sort, counted already: those of the tasks, put together."""
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
        return None, {}, 1
    partitions = default_partitions(rows, total) if partitions is None else partitions
    grid = Grid.of(table.drop_columns(["__finest"]), groups, partitions, table["__finest"].to_numpy())
    many = F.broadcast(rows.sparkSession.createDataFrame(grid.table()))
    number = F.expr("shiftright(two, cast(__bits - one as int)) - shiftright(__low, __bits)")
    cell = F.expr("shiftleft(__group, 32)") + F.when(F.col("__many"), number).otherwise(F.lit(0))
    counted = (
        cells.join(many, groups).groupBy(cell.alias("__cell")).agg(F.sum("three").alias("__rows")).toArrow()
    )
    return grid, {name: counted[name].to_numpy() for name in ("__cell", "__rows")}, partitions


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
    return name_again(gaps, good, asked).select(*map(quote, asked.partition_by), "process", "first", "last")


def explain_refused(ordered: DataFrame, asked: ByVector) -> DataFrame:
    """(partition columns, rows, reason) of each partition that is refused."""
    bad = ordered.where("position is null")
    rows = name_again(
        refused_groups(count_vectors(bad, asked), group_columns(asked)).drop("rows"), bad, asked
    )
    named = F.when(F.col("process").isNull(), F.lit("a row")).otherwise(
        F.concat(F.lit("a row of process "), F.col("process").cast("string"))
    )
    faults = F.array(*map(F.lit, FAULTS))
    has = F.concat(named, F.lit(" has "), F.get(faults, F.col("fault").cast("int")))
    low = F.col("low").cast("string")
    twice = F.concat(
        F.lit("process "), F.col("process").cast("string"), F.lit(" has two rows of one number, near "), low
    )
    reason = F.when(F.col("fault") < len(FAULTS), has).otherwise(twice)
    return rows.select(*map(quote, asked.partition_by), "rows", reason.alias("reason"))


def name_again(found: DataFrame, rows: DataFrame, asked: ByVector) -> DataFrame:
    """Partitions by their own columns, and how many rows they have."""
    groups = group_columns(asked)
    own = [F.first(quote(name)).alias(name) for name in asked.partition_by]
    counts = rows.withColumns(name_groups(asked)).groupBy(*groups).agg(F.count(F.lit(1)).alias("rows"), *own)
    return found.join(counts, groups)
