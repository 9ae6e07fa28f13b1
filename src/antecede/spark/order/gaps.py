"""Sets of numbers as words of 64 bits: which are there, which are not.

The numbers of a process grow by one, so a set of them is dense: a word for each 64 of them, `number >> 6`, is a
sixty-fourth of the rows, and Spark puts words together by an aggregation that never leaves its Java. Numbers that lie
far apart give a word each: right too, and no shorter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from antecede.errors import BadTrace
from antecede.trace.schema import KINDS

__all__ = ["bit", "explain_wrong", "find_gaps", "list_holes", "survey_runs", "find_unsent", "word"]

Numbers = NDArray[np.int64]


def word(number: str) -> Column:
    return F.shiftright(F.col(number), 6)


def bit(number: str) -> Column:
    return F.expr(f"shiftleft(1L, cast(`{number}` & 63 as int))")


# Traces


def survey_runs(events: DataFrame) -> pa.Table:
    """For each run: its `rows`, the least and largest clock as `low` and `high`, how many rows lack one, and `wrong`.

    `wrong` is null, or says why the run is none: events of no run or process, or whose index does not count them.
    """
    words = events.groupBy("run", "process", word("index").alias("word")).agg(
        F.count(F.lit(1)).alias("rows"),
        F.bit_count(F.bit_or(bit("index"))).alias("different"),
        F.min("index").alias("first"),
        F.max("index").alias("last"),
        *clocks("clock", "clock", F.count_if(F.col("clock").isNull())),
    )
    sums = [F.sum(name).alias(name) for name in ("rows", "different")]
    ends = F.min("first").alias("first"), F.max("last").alias("last")
    empty = F.count_if(F.expr("run is null or process is null or word is null")).alias("empty")
    lines = words.groupBy("run", "process").agg(*sums, *ends, empty, *clocks("low", "high", F.sum("lacking")))
    counted = "first = 0 and last = rows - 1 and rows = different and empty = 0"
    # One is enough to refuse them all; the first, so that it is always the same.
    wrong = F.expr(f"not coalesce({counted}, false)")
    about = F.struct("process", "rows", "different", "first", "last", "empty")
    runs = lines.groupBy("run").agg(
        F.sum("rows").alias("rows"),
        F.min(F.when(wrong, about)).alias("wrong"),
        *clocks("low", "high", F.sum("lacking")),
    )
    return runs.withColumn("wrong", F.to_json("wrong")).toArrow().sort_by("run")


def explain_wrong(surveyed: pa.Table) -> list[tuple[str | None, BadTrace]]:
    """The runs that are none, and why."""
    wrong = surveyed.filter(surveyed["wrong"].is_valid()).to_pylist()
    return [
        (row["run"], describe_run({"run": row["run"], "process": None, **json.loads(row["wrong"])}))
        for row in wrong
    ]


def clocks(low: str, high: str, lacking: Column) -> tuple[Column, ...]:
    return F.min(low).alias("low"), F.max(high).alias("high"), lacking.alias("lacking")


def describe_run(row: dict[str, object]) -> BadTrace:
    place = f"run {row['run']}, process {row['process']}"
    if row["empty"]:
        return BadTrace(place, "an event has no run, process or index")
    if row["rows"] != row["different"]:
        return BadTrace(
            place, f"{row['rows']} events have {row['different']} different indices; each needs its own"
        )
    return BadTrace(
        place,
        f"{row['rows']} events have indices {row['first']} to {row['last']}; indices must count 0, 1, 2, ...",
    )


WRONG: Final = "kind is null or sender is null or number is null or control is null or kind not in " + str(
    KINDS
)


def find_unsent(events: DataFrame) -> tuple[pa.Table, DataFrame]:
    """Messages that are delivered and not sent, (run, sender, number); and before that the runs with some, or `wrong`.

    Events are `wrong` that lack a value that all have, or are of a kind that there is not.
    """
    said = events.where(f"{WRONG} or (not control and kind != 'receive')")
    words = said.groupBy("run", "sender", word("number").alias("word")).agg(
        F.bit_or(F.when(F.col("kind") == "send", bit("number"))).alias("sent"),
        F.bit_or(F.when(F.col("kind") == "deliver", bit("number"))).alias("delivered"),
        F.count_if(F.expr(WRONG)).alias("wrong"),
    )
    lacks = "delivered & ~coalesce(sent, 0L)"
    found = (
        words.where(f"wrong > 0 or {lacks} != 0").groupBy("run").agg(F.sum("wrong").alias("wrong")).toArrow()
    )
    bits = F.expr(f"filter(sequence(0, 63), b -> shiftright({lacks}, b) & 1 = 1)")
    number = F.expr("shiftleft(word, 6) + offset").alias("number")
    each = words.where(f"{lacks} != 0").select("run", "sender", "word", F.explode(bits).alias("offset"))
    missing = each.select("run", "sender", number)
    if not len(found):
        # Known to be empty: nobody has to look again.
        missing = events.sparkSession.createDataFrame([], missing.schema)
    return found, missing


# Vectors


def find_gaps(
    line: Numbers, words: Numbers, bits: Numbers, last: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """What is missing of 1 to `last` in each line, as ranges: the line, the first number and the last.

    Words come sorted by line and by word. A line without numbers has one word of no bits.

    >>> find_gaps(np.array([0, 1]), np.array([0, 0]), np.array([0b10110, 0]), np.array([6, 2]))
    (array([0, 0, 1]), array([3, 5, 1]), array([3, 6, 2]))
    """
    there = np.unpackbits(bits.astype("<i8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little").view(
        bool
    )
    rows, offsets = np.nonzero(there)
    lines, firsts = np.unique(line, return_index=True)
    # Each line's numbers between two that are not missing: 0, which is before the first, and last + 1.
    group = np.concatenate([line[rows], lines, lines])
    number = np.concatenate([words[rows] * 64 + offsets, np.zeros(len(lines), np.int64), last[firsts] + 1])
    order = np.lexsort((number, group))
    group, number = group[order], number[order]
    found = np.flatnonzero((np.diff(number) > 1) & (group[1:] == group[:-1]))
    return group[found], number[found] + 1, number[found + 1] - 1


def list_holes(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """`find_gaps` for a task: rows (names..., word, bits, last), sorted by names and word, to (names..., first, last).

    All words of a task are held: a sixty-fourth of the rows that they stand for.
    """
    held = list(batches)
    if not sum(map(len, held)):
        return
    table = pa.Table.from_batches(held).combine_chunks()
    new = np.zeros(len(table), bool)
    for name in names:
        column = table[name].combine_chunks()
        new[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    line = np.cumsum(new)
    columns = (table[name].to_numpy() for name in ("word", "bits", "last"))
    group, first, last = find_gaps(line, *columns)
    starts = np.flatnonzero(np.append(True, new[1:]))
    found = table.select(list(names)).take(starts[group])
    found = found.append_column("first", pa.array(first)).append_column("last", pa.array(last))
    yield from found.combine_chunks().to_batches()
