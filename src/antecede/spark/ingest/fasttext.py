"""ShiViz and GoVector logs at native speed, if one of the two usual expressions reads them (`foreign.twolines`).

What a search for one of these does in two lines follows from them, from where the match before ended, and from nothing
else. So a kernel takes records of which it is sure, in plain ASCII and one after the other. The next lines go to `re`
(`antecede.trace.foreign.shiviz`), which alone decides about anything else; then the kernel goes on.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from antecede.jit import inlined, native
from antecede.spark.ingest.fastlines import CODES, NOTHING, TOLD, constant, line_ends, strings
from antecede.spark.ingest.jsonscan import Names, gathered, interned, own_entry, vector
from antecede.spark.ingest.words import HIGH, LOW, ONES, PAD, SPACES, byte, first, load, marks_of
from antecede.trace.foreign.lines import BLOCK, Part
from antecede.trace.foreign.log import READ
from antecede.trace.foreign.shiviz import Reader
from antecede.trace.foreign.twolines import event_first, opening_end

__all__ = ["read"]

MOST: Final = 1 << 10
"""Records that `re` reads before the kernel is tried again, at most."""

TABS: Final = np.uint64(0x0909090909090909)


# The kernel


@inlined
def told_end(buffer: Any, at: int, end: int) -> int:
    """Where the first byte is that is neither printable ASCII nor a tab, or any place from `end` on."""
    while at < end:
        word = load(buffer, at)
        low = word & LOW
        marks = (word | ~(low + SPACES) | (low + ONES)) & HIGH & ~marks_of(word, TABS)
        if marks:
            return at + first(marks)  # type: ignore[no-any-return]
        at += 8
    return at


@inlined
def host_end(buffer: Any, at: int, end: int) -> int:
    """Where the host ends in a line that begins as a record's does: a host, a space, a brace; -1 in any other."""
    while at < end and 32 < byte(buffer, at) < 127:
        at += 1
    return at if at + 1 < end and byte(buffer, at) == 32 and byte(buffer, at + 1) == 123 else -1


@inlined
def text_end(buffer: Any, size: int, start: int, end: int) -> int:
    """Where the text of a line ends. A carriage return before a newline is part of it."""
    return end - 1 if start < end < size and byte(buffer, end - 1) == 13 else end


@native
def records(
    buffer: Any, size: int, starts: Any, ends: Any, at: int, before: bool, processes: Any, seen: Any,
    out: Any, said: Any, codes: Any, values: Any, row: int, used: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Enter the records that follow each other from line `at` on: process, own entry, line, entries so far.

    Gives the line after them, and how many rows and entries there are then.
    """
    while at + 1 < len(ends):
        clock, event = (at + 1, at) if before else (at, at + 1)
        start, begin = starts[clock], starts[event]
        end, over = text_end(buffer, size, start, ends[clock]), text_end(buffer, size, begin, ends[event])
        host = host_end(buffer, start, end)
        if host <= start or told_end(buffer, begin, over) < over:
            break
        # After a record, an event that looks like one is the second line of another.
        if before and host_end(buffer, begin, over) >= 0:
            break
        # The line is its stamp: no other attempt has it.
        closes, total = vector(buffer, host + 1, end, at, processes, seen, codes, values, used)
        if closes != end:
            break
        process = interned(buffer, start, host, *processes)
        own = own_entry(process, codes, values, used, total)
        if process < 0 or own == 0:
            break
        used = total
        said[row, 0, 0], said[row, 0, 1] = begin, over
        out[row, 0], out[row, 1], out[row, 2], out[row, 3] = process, own, at, used
        row += 1
        at += 2
    return at, row, used


# Reading


def read(file: Any, part: Part, reader: Reader, block: int = BLOCK) -> Iterator[pa.RecordBatch]:
    """What a part says, as `antecede.trace.foreign.shiviz.read` gives it, but for the order of rows in a block.

    `reader` is what `twolines.known` gave, and the part is one of those that `twolines.cuts` allows.
    """
    start, number = part.start, part.line
    if start == 0:
        start, number = opening_end(file, reader), reader.line
        if rows := reader.rows():
            yield rows
    file.seek(start)
    yield from Records(part, number, reader).batches(file, part.end - start, block)


class Records:
    """The records of a part, from its first line to its last."""

    def __init__(self, part: Part, number: int, reader: Reader) -> None:
        self.part, self.number, self.reader = part, number, reader
        self.before = event_first(reader)
        self.names = Names()
        self.behind: str | None = None
        """What is left of the line before, if the search goes on in it."""
        self.most = 1
        """Records that `re` reads next. Where the kernel is of no use, it is tried ever less."""

    def batches(self, file: Any, left: int, block: int) -> Iterator[pa.RecordBatch]:
        room, held = bytearray(block + PAD), 0
        while left > 0:
            size = file.readinto(memoryview(room)[held : held + min(len(room) - PAD - held, left)])
            # A file that is shorter than it was ends here.
            left = left - size if size else 0
            held += size
            whole = room.rfind(b"\n", 0, held) + 1 if left else held
            done = yield from self._block(np.frombuffer(room, np.uint8), whole, final=not left)
            room[: held - done], held = room[done:held], held - done
            if held == len(room) - PAD:
                # A record is longer than all this.
                room = room + bytearray(len(room))

    def _block(self, buffer: Any, size: int, final: bool) -> Generator[pa.RecordBatch, None, int]:
        """Read lines, and tell how many bytes of them are done. The last may have to wait for the next."""
        starts, ends = edges(buffer, size)
        count = len(ends)
        out, said = np.empty((count // 2 + 1, 4), np.int64), np.empty((count // 2 + 1, 1, 2), np.int64)
        # An entry has five bytes at least. What is not used is never touched.
        codes, values = np.empty(size // 5 + 1, np.int32), np.empty(size // 5 + 1, np.int64)
        seen = np.full(Names.MOST + 1, -1, np.int64)
        at = rows = used = 0
        while at < count:
            known = rows
            if self.behind is None or self.behind == "\n":
                at, rows, used = records(
                    buffer, size, starts, ends, at, self.before, self.names.table, seen,
                    out, said, codes, values, rows, used,
                )  # fmt: skip
            if rows > known:
                self.most, self.behind = 1, "\n"
            to = min(at + 4 * self.most, count)
            last = final and to == count
            if at == count or (to - at < 2 and not last):
                break
            data = buffer[starts[at] : starts[to]].tobytes()
            lines, self.behind = self.reader.stretch(data, self.behind, self.number + at, self.most, last)
            at = min(at + lines, to)
            self.most = min(2 * self.most, MOST)
        if rows:
            yield self._columns(buffer, out[:rows], said, codes[:used], values[:used])
        if others := self.reader.rows():
            yield others
        self.number += at
        return int(starts[at])

    def _columns(self, buffer: Any, out: Any, said: Any, codes: Any, values: Any) -> pa.RecordBatch:
        size = len(out)
        names = pa.array(self.names.texts(), pa.string())
        offsets = np.r_[0, out[:, 3]].astype(np.int32)
        keys = pa.DictionaryArray.from_arrays(pa.array(codes), names)
        columns = {
            "run": constant(self.part.run, size),
            "process": pa.DictionaryArray.from_arrays(pa.array(out[:, 0].astype(np.int32)), names),
            "index": pa.array(out[:, 1] - 1),
            "kind": pa.nulls(size, CODES),
            "message": pa.nulls(size, pa.string()),
            "vector": pa.MapArray.from_arrays(pa.array(offsets), keys, pa.array(values)),
            "text": strings(gathered(buffer, said, np.arange(size), *NOTHING)),
            "fields": pa.nulls(size, pa.string()),
            "file": constant(self.part.file, size),
            "line": pa.array(out[:, 2] + self.number),
            "reason": pa.nulls(size, pa.string()),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in READ.names], schema=TOLD)


def edges(buffer: Any, size: int) -> tuple[Any, Any]:
    """Where lines begin, with the end of all, and where they end."""
    ends = np.empty(size + 9, np.int64)
    count = line_ends(buffer, size, ends)
    if size and (not count or ends[count - 1] < size - 1):
        ends[count] = size
        count += 1
    return np.r_[0, ends[: max(count - 1, 0)] + 1, [size] * (count > 0)].astype(np.int64), ends[:count]
