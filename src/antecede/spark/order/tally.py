"""What an order needs to know before it sorts, counted in one reading of the files by tasks of our own.

Where footers tell each run's rows and the span of its clocks, the cells of the sort (`position.Grid`) are known before
a row is read. So one pass over seven columns counts everything: which indices each process has, which messages are sent
and which delivered, and how many rows fall into each cell. Spark would take three passes for that, and more for each
row: here a row is a few integers of NumPy, and only words of 64 numbers go on to Spark, which puts them together.

A task's rows are (what, run, line, word, one, two):

  INDEX     line: a process. word: `index >> 6`. one: rows in it. two: a bit for each index
  ENDS      line: a process. one, two: its least and its largest index
  MESSAGE   line: a sender. word: `number >> 6`. one, two: a bit for each number that is sent, that is delivered
  CELL      line: a cell of the sort, as text. one: rows in it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import functions as F

from antecede.errors import BadTrace
from antecede.spark.order.gaps import refused
from antecede.spark.order.position import Cells, Grid, partitions_for
from antecede.spark.trace.api import Trace
from antecede.trace.columns import integers, kinds_of, refuse_nulls
from antecede.trace.parquet import batches_of
from antecede.trace.plan import Chunk, Part, Stretch, by_run, chunked, in_turn, stream_size
from antecede.trace.schema import DELIVER, SEND
from antecede.verification.tasks import Assignment

__all__ = ["Tally", "Tallied", "tallied"]

INDEX, ENDS, MESSAGE, CELL = range(4)

COLUMNS: Final = ("process", "index", "kind", "sender", "number", "control", "clock")
TOLD: Final = pa.schema(
    [
        ("what", pa.int8()),
        ("run", pa.string()),
        ("line", pa.string()),
        ("word", pa.int64()),
        ("one", pa.int64()),
        ("two", pa.int64()),
    ]
)
SPARK_TOLD: Final = "what byte, run string, line string, word long, one long, two long"
TOGETHER: Final = 1 << 20
"""Rows whose words are made together: the more, the fewer words."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Tallied:
    grid: Grid
    cells: Cells
    """`__cell` and `__rows`, as `position` has them."""
    partitions: int
    complete: bool
    """Whether every message that is delivered is sent."""


def tallied(trace: Trace, partitions: int | None) -> Tallied | None:
    """Everything that is counted before the sort; None where the footers do not tell enough to begin."""
    if trace.files is None:
        return None
    own, blind = by_run(trace.files, {row["run"] for row in trace.runs.select("run").collect()})
    if blind or not own:
        return None
    known = spans(own)
    total = sum(known["__rows"].to_pylist())
    if partitions is None:
        parallel = int(trace.spark.conf.get("spark.sql.shuffle.partitions") or 1)
        partitions = partitions_for(total, parallel)
    grid, size = Grid.of(known, ["run"], partitions), stream_size(total)
    parts = (part for run in sorted(own) for part in in_turn(run, own[run], size))
    found = counted(trace, list(chunked(parts, size)), grid)
    refuse_gaps(found.filter(pc.equal(found["what"], INDEX)))
    cells = found.filter(pc.equal(found["what"], CELL))
    number = cells["line"].cast(pa.int64()).to_numpy()
    complete = not pc.any(pc.greater(found["lacking"], 0)).as_py()
    return Tallied(grid, {"__cell": number, "__rows": cells["rows"].to_numpy()}, partitions, complete)


def refuse_gaps(lines: pa.Table) -> None:
    """Events whose index does not count them; the first process that has some, so that it is always the same."""
    for row in lines.sort_by([("run", "ascending"), ("line", "ascending")]).to_pylist():
        if not (row["first"] == 0 and row["last"] == row["rows"] - 1 and row["rows"] == row["different"]):
            raise refused({**row, "process": row["line"], "empty": 0})


def spans(own: dict[str, list[Stretch]]) -> pa.Table:
    """Each run's rows, and its least and largest clock."""
    rows = []
    for run, stretches in own.items():
        clocks = [s.group.clocks for s in stretches if s.group.clocks is not None]
        low, high = min(low for low, _ in clocks), max(high for _, high in clocks)
        rows.append((run, sum(s.group.rows for s in stretches), low, high))
    return pa.table(
        dict(zip(("run", "__rows", "__low", "__high"), map(list, zip(*rows, strict=True)), strict=True))
    )


def counted(trace: Trace, chunks: Sequence[Chunk], grid: Grid) -> pa.Table:
    """A row for each line: (what, run, line, rows, different, first, last, lacking)."""
    orders = trace.spark.createDataFrame(
        [(chunk.serial, Assignment(chunk, {}).encode()) for chunk in chunks], "serial int, blob binary"
    )
    names = grid.names["run"].to_pylist()
    cutting = {
        run: (group, int(low), int(high), int(width), bool(many))
        for group, (run, low, high, width, many) in enumerate(
            zip(names, grid.low, grid.high, grid.width, grid.many, strict=True)
        )
    }

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                for part in Assignment.decode(row["blob"]).chunk.parts:
                    yield from part_tally(part, cutting[part.run])

    told = orders.repartitionById(len(chunks), F.col("serial")).mapInArrow(work, SPARK_TOLD)
    # Of a message `one` is a set of bits: to add those up means nothing, and overflows.
    rows = F.when(F.col("what").isin(INDEX, CELL), F.col("one"))
    words = told.groupBy("what", "run", "line", "word").agg(
        F.sum(rows).alias("rows"),
        F.bit_or("one").alias("sent"),
        F.bit_or("two").alias("bits"),
        F.min("one").alias("first"),
        F.max("two").alias("last"),
    )
    lacks = (F.col("what") == MESSAGE) & (F.expr("bits & ~sent") != 0)
    ends = F.col("what") == ENDS
    # The ends of a process go with its indices: one line of the result.
    what = F.when(ends, F.lit(INDEX).cast("byte")).otherwise(F.col("what")).alias("what")
    lines = words.groupBy(what, "run", "line").agg(
        F.sum("rows").alias("rows"),
        F.sum(F.when(~ends, F.bit_count("bits"))).alias("different"),
        F.min(F.when(ends, F.col("first"))).alias("first"),
        F.max(F.when(ends, F.col("last"))).alias("last"),
        F.count_if(lacks).alias("lacking"),
    )
    return lines.toArrow()


# In tasks


def part_tally(part: Part, cutting: tuple[int, int, int, int, bool]) -> Iterator[pa.RecordBatch]:
    tally = Tally(part.run, cutting)
    for piece in part.pieces:
        for batch in batches_of(piece, COLUMNS):
            tally.feed(batch, f"{piece.path}, run {part.run}")
            if tally.rows >= TOGETHER:
                yield tally.flushed()
    yield tally.flushed()


class Tally:
    """The rows of a run, counted."""

    def __init__(self, run: str, cutting: tuple[int, int, int, int, bool]) -> None:
        self.run, self.cutting = run, cutting
        self.rows = 0
        self._lines: dict[str, int] = {}
        self._kept: dict[str, list[Numbers]] = {name: [] for name in ("index", "sent", "delivered", "cell")}

    def feed(self, batch: pa.RecordBatch, place: str) -> None:
        refuse_nulls(batch, place)
        if batch["clock"].null_count:
            raise BadTrace(place, "an event without a clock", "one in each, as the footer says")
        kind = kinds_of(batch["kind"], place)
        plain = ~batch["control"].to_numpy(zero_copy_only=False)
        sender, number = self._codes(batch["sender"]), integers(batch["number"])
        sent, delivered = plain & (kind == SEND), plain & (kind == DELIVER)
        self._kept["index"].append(pairs(self._codes(batch["process"]), integers(batch["index"])))
        self._kept["sent"].append(pairs(sender[sent], number[sent]))
        self._kept["delivered"].append(pairs(sender[delivered], number[delivered]))
        self._kept["cell"].append(cells_of(integers(batch["clock"]), *self.cutting))
        self.rows += len(batch)

    def flushed(self) -> pa.RecordBatch:
        """What was fed since the last time, as rows."""
        names = pa.array(list(self._lines), pa.string())
        index, sent, delivered = (joined(self._kept[name]) for name in ("index", "sent", "delivered"))
        cells, counts = np.unique(np.concatenate(self._kept["cell"] or [EMPTY]), return_counts=True)
        line, word, rows, bits = words_of(index)
        parts = [(INDEX, names.take(line), word, rows, bits)]
        firsts = np.flatnonzero(np.diff(line, prepend=-1))
        lasts = np.append(firsts[1:], len(line)) - 1 if len(line) else firsts
        low = (word[firsts] << 6) + lowest(bits[firsts])
        high = (word[lasts] << 6) + highest(bits[lasts])
        parts.append((ENDS, names.take(line[firsts]), np.zeros(len(firsts), np.int64), low, high))
        nothing = np.zeros_like
        for made, is_sent in ((words_of(sent), True), (words_of(delivered), False)):
            line, word, _, bits = made
            both = (bits, nothing(bits)) if is_sent else (nothing(bits), bits)
            parts.append((MESSAGE, names.take(line), word, *both))
        zeros = np.zeros(len(cells), np.int64)
        parts.append((CELL, pa.array(cells).cast(pa.string()), zeros, counts.astype(np.int64), zeros))
        self._kept = {name: [] for name in self._kept}
        self.rows = 0
        return self._batch(parts)

    def _batch(self, parts: list[tuple[int, pa.Array, Numbers, Numbers, Numbers]]) -> pa.RecordBatch:
        sizes = [len(names) for _, names, _, _, _ in parts]
        columns = [
            np.repeat(np.array([what for what, *_ in parts], np.int8), sizes),
            pa.array([self.run] * sum(sizes), pa.string()),
            pa.concat_arrays([names for _, names, _, _, _ in parts]),
            *(np.concatenate([part[i] for part in parts]) for i in (2, 3, 4)),
        ]
        return pa.record_batch([pa.array(column) for column in columns], schema=TOLD)

    def _codes(self, column: pa.Array) -> Numbers:
        """A number for each name that this task has met."""
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        known = self._lines
        table = [known.setdefault(name, len(known)) for name in column.dictionary.to_pylist()]
        return np.array(table or [0], np.int64)[integers(column.indices)] if len(column) else EMPTY


EMPTY: Final = np.zeros(0, np.int64)


def pairs(line: Numbers, number: Numbers) -> Numbers:
    """Two columns: lines and numbers."""
    return np.stack([line, number])


def joined(kept: list[Numbers]) -> Numbers:
    return np.concatenate(kept, axis=1) if kept else np.zeros((2, 0), np.int64)


def words_of(kept: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Sorted by line and word: line, word, how many numbers fell into it, and a bit for each.

    >>> words_of(np.array([[0, 0, 1, 0], [3, 1, 64, 3]]))
    (array([0, 1]), array([0, 1]), array([3, 1]), array([10,  1]))
    """
    line, number = kept
    if not len(line):
        return EMPTY, EMPTY, EMPTY, EMPTY
    word = number >> 6
    low, high = int(word.min()), int(word.max())
    if (high - low + 1) * (int(line.max()) + 1) < 1 << 57:
        # One number is sorted several times faster than two.
        key = ((line * (high - low + 1) + (word - low)) << 6) | (number & 63)
        key.sort()
        places, bits = key >> 6, key & 63
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        line, word = np.divmod(places[starts], high - low + 1)
        word += low
    else:
        order = np.lexsort((number, line))
        line, word, bits = line[order], word[order], number[order] & 63
        starts = np.flatnonzero((np.diff(line, prepend=-1) != 0) | (np.diff(word, prepend=word[0]) != 0))
        line, word = line[starts], word[starts]
    rows = np.diff(np.append(starts, len(bits)))
    one = np.left_shift(np.int64(1), bits)
    return line, word, rows, np.bitwise_or.reduceat(one, starts)


def lowest(bits: Numbers) -> Numbers:
    """The place of the lowest bit of each.

    >>> lowest(np.array([1, 12, -1 << 63])).tolist(), highest(np.array([1, 12, -1 << 63])).tolist()
    ([0, 2, 63], [0, 3, 63])
    """
    found: Numbers = unpacked(bits).argmax(axis=1).astype(np.int64)
    return found


def highest(bits: Numbers) -> Numbers:
    found: Numbers = 63 - unpacked(bits)[:, ::-1].argmax(axis=1).astype(np.int64)
    return found


def unpacked(bits: Numbers) -> NDArray[np.uint8]:
    eighths = np.ascontiguousarray(bits.astype("<i8")).view(np.uint8).reshape(-1, 8)
    return np.unpackbits(eighths, axis=1, bitorder="little")


def cells_of(clock: Numbers, group: int, low: int, high: int, width: int, many: bool) -> Numbers:
    """The cell of each row: as `position.located` has it, where a quotient of Spark goes towards zero.

    >>> cells_of(np.array([-5, 0, 7, 99]), 1, -5, 20, 4, True) - (1 << 32)
    array([0, 1, 2, 6])
    """
    if not many:
        return np.full(len(clock), group << 32, np.int64)
    return (
        (group << 32) + quotient(np.clip(clock, low, high), width) - int(quotient(np.array([low]), width)[0])
    )


def quotient(number: Numbers, by: int) -> Numbers:
    """Towards zero."""
    down = number // by
    found: Numbers = down + ((number < 0) & (down * by != number))
    return found
