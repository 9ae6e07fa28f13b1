"""`tracing` and TLA+ logs at native speed: whole blocks of lines become columns, and few lines become Python objects.

A kernel goes through a block line by line (`jsonscan`). A line that it is not sure of goes to the reader of its format
in `antecede.trace.foreign`, which alone decides what is read and what is rejected. So the rows are those of that
reader, whatever the kernel knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from antecede.jit import native
from antecede.spark.ingest.jsonscan import Names, gathered, interned, members, own_entry, text_of
from antecede.spark.ingest.words import PAD, first, load, marks_of, same
from antecede.trace.foreign import tlaplus, tracing
from antecede.trace.foreign.lines import BLOCK, Line, Part, one, to_here
from antecede.trace.foreign.log import READ, Rows

__all__ = ["ENCODED", "encoded", "plain", "read"]


def packed(*texts: bytes) -> tuple[Any, Any]:
    """Texts one after the other, and where each begins and the last ends."""
    bounds = np.cumsum([0, *map(len, texts)])
    return np.frombuffer(b"".join(texts) + bytes(PAD), np.uint8), bounds


@native
def tracing_rows(
    buffer: Any, starts: Any, ends: Any, names: Any, bounds: Any, split: int, inner: Any, inside: Any,
    processes: Any, tags: Any, out: Any, said: Any, told: Any, codes: Any, values: Any, seen: Any,
    spans: Any, token: Any,
) -> int:  # fmt: skip
    """Lines of `tracing`: sure or not, process, own entry, tag, entries so far; where its token and its fields are."""
    used = 0
    for row in range(len(starts)):
        out[row, 0], out[row, 4] = 0, used
        over = members(
            buffer, starts[row], ends[row], names, bounds, split, -1, 2, spans,
            row, processes, seen, codes, values, used,
        )  # fmt: skip
        if (
            over < 0
            or spans[0, 0] < 0
            or spans[1, 0] < 0
            or spans[2, 0] < 0
            or spans[3, 0] < 0
            or spans[4, 0] < 0
        ):
            continue
        if buffer[spans[0, 0]] != 34 or buffer[spans[1, 0]] != 34:
            continue
        process = interned(buffer, spans[0, 0] + 1, spans[0, 1] - 1, *processes)
        tag = interned(buffer, spans[1, 0] + 1, spans[1, 1] - 1, *tags)
        own = own_entry(process, codes, values, used, over)
        if process < 0 or tag < 0 or own == 0:
            continue
        if tag < 2:
            known = members(
                buffer, spans[3, 0], spans[3, 1], inner, inside, 1, -1, -1, token,
                row, processes, seen, codes, values, 0,
            )  # fmt: skip
            if known < 0 or token[0, 0] < 0 or buffer[token[0, 0]] != 34 or token[0, 1] - token[0, 0] < 3:
                continue
            said[row, 0, 0], said[row, 0, 1] = token[0, 0] + 1, token[0, 1] - 1
        used = over
        told[row, 0, 0], told[row, 0, 1] = spans[4, 0], spans[4, 1]
        told[row, 1, 0], told[row, 1, 1] = spans[3, 0], spans[3, 1]
        out[row, 0], out[row, 1], out[row, 2], out[row, 3], out[row, 4] = 1, process, own, tag, used
    return used


@native
def tlaplus_rows(
    buffer: Any, starts: Any, ends: Any, names: Any, bounds: Any, split: int, inner: Any, inside: Any,
    processes: Any, tags: Any, out: Any, said: Any, told: Any, codes: Any, values: Any, seen: Any,
    spans: Any, token: Any,
) -> int:  # fmt: skip
    """Lines of a TLA+ trace, likewise. Tags 0 and 1 are `>` and `<`, 2 is `d`."""
    used = 0
    for row in range(len(starts)):
        out[row, 0], out[row, 4] = 0, used
        over = members(
            buffer, starts[row], ends[row], names, bounds, split, 2, 6, spans,
            row, processes, seen, codes, values, used,
        )  # fmt: skip
        if over < 0 or spans[0, 0] < 0 or spans[1, 0] < 0 or spans[2, 0] < 0 or spans[6, 0] < 0:
            continue
        if spans[0, 1] - spans[0, 0] != 3 or buffer[spans[0, 0]] != 34:
            continue
        sign = buffer[spans[0, 0] + 1]
        tag = 0 if sign == 62 else 1 if sign == 60 else 2 if sign == 100 else -1
        start, end = text_of(buffer, spans[1, 0], spans[1, 1])
        if tag < 0 or start < 0:
            continue
        if tag < 2:
            # The node of a send is its sender's, that of a receive its receiver's.
            at, last = spans[3 + tag, 0], spans[3 + tag, 1]
            if at >= 0 and buffer[at] == 34:
                at, last = at + 1, last - 1
            if at < 0 or not same(buffer, start, end, buffer, at, last):
                continue
        process = interned(buffer, start, end, *processes)
        own = own_entry(process, codes, values, used, over)
        if process < 0 or own == 0:
            continue
        used = over
        for piece in range(3):
            told[row, piece, 0], told[row, piece, 1] = spans[3 + piece, 0], spans[3 + piece, 1]
        out[row, 0], out[row, 1], out[row, 2], out[row, 3], out[row, 4] = 1, process, own, tag, used
    return used


class Format:
    """What the two formats differ in."""

    def __init__(
        self,
        line: Line,
        kernel: Callable[..., int],
        outer: tuple[bytes, ...],
        split: int,
        inner: tuple[bytes, ...],
        tags: tuple[bytes, ...],
        fields: tuple[bytes, ...],
        tokens: bool,
    ) -> None:
        self.line, self.kernel, self.tags, self.tokens = line, kernel, tags, tokens
        self.names = (*packed(*outer), split, *packed(*inner))
        self.fields = packed(*fields)
        self.pieces = len(fields) - 1


FORMATS: Final = {
    "tracing": Format(
        tracing.read,
        tracing_rows,
        (b"TracerIdentity", b"Tag", b"VectorClock", b"Body", b"TraceID"),
        5,
        (b"Token",),
        (b"GenerateTokenTrace", b"ReceiveTokenTrace"),
        (b'{"TraceID":', b',"Body":', b"}"),
        True,
    ),
    "tlaplus": Format(
        tlaplus.read,
        tlaplus_rows,
        (b"event", b"node", b"pkt", b"snd", b"rcv", b"msg", b"vc"),
        3,
        (),
        (b">", b"<", b"d"),
        (b'{"snd":', b',"rcv":', b',"msg":', b"}"),
        False,
    ),
}


def read(file: IO[bytes], part: Part, format: str, block: int = BLOCK) -> Iterator[pa.RecordBatch]:
    """What a part says, as `antecede.trace.foreign.lines.read` gives it, but for the order of rows in a block."""
    chosen = FORMATS[format]
    processes, tags = Names(), Names(*chosen.tags)
    number = part.line
    for buffer, size in blocks(file, part, block):
        lines = Block(buffer, size, part, number, chosen)
        yield from lines.batches(processes, tags)
        number += len(lines.starts)


def blocks(file: Any, part: Part, block: int) -> Iterator[tuple[Any, int]]:
    """The lines of a part, whole, many at a time: a buffer, and how much of it they are. The next ones overwrite them.

    These are the lines that `antecede.trace.foreign.lines.blocks` gives.
    """
    left = to_here(file, part)
    room, held = bytearray(block + PAD), 0
    while left > 0:
        size = file.readinto(memoryview(room)[held : held + min(len(room) - PAD - held, left)])
        # A file that is shorter than it was ends here.
        left = left - size if size else 0
        held += size
        cut = room.rfind(b"\n", 0, held) + 1 if left else held
        if cut:
            yield np.frombuffer(room, np.uint8), cut
            room[: held - cut], held = room[cut:held], held - cut
        elif held == len(room) - PAD:
            # One line is longer than all this.
            room = room + bytearray(len(room))


@native
def line_ends(buffer: Any, size: int, ends: Any) -> int:
    """Where the newlines are, and how many."""
    found = 0
    for at in range(0, size, 8):
        marks = marks_of(load(buffer, at), NEWLINES)
        while marks:
            ends[found] = at + first(marks)
            found += 1
            marks &= marks - np.uint64(1)
    while found and ends[found - 1] >= size:
        found -= 1
    return found


NEWLINES: Final = np.uint64(0x0A0A0A0A0A0A0A0A)


class Block:
    """Whole lines, and what the kernel finds in them."""

    def __init__(self, buffer: Any, size: int, part: Part, first: int, format: Format) -> None:
        self.buffer, self.size, self.part, self.first, self.format = buffer, size, part, first, format
        ends = np.empty(size + 9, np.int64)
        count = line_ends(buffer, size, ends)
        if not count or ends[count - 1] < size - 1:
            ends[count] = size
            count += 1
        self.ends = ends[:count]
        self.starts = np.r_[0, self.ends[:-1] + 1]

    def batches(self, processes: Names, tags: Names) -> Iterator[pa.RecordBatch]:
        size, format = len(self.starts), self.format
        # Sure or not, process, own entry, tag, entries up to here.
        out = np.empty((size, 5), np.int64)
        said = np.zeros((size, 1, 2), np.int64)
        told = np.empty((size, format.pieces, 2), np.int64)
        # An entry has five bytes at least. What is not used is never touched.
        most = self.size // 5 + 1
        codes, values = np.empty(most, np.int32), np.empty(most, np.int64)
        seen = np.full(Names.MOST + 1, -1, np.int64)
        used = format.kernel(
            self.buffer, self.starts, self.ends, *format.names, processes.table, tags.table, out, said, told,
            codes, values, seen, np.empty((8, 2), np.int64), np.empty((8, 2), np.int64),
        )  # fmt: skip
        sure = np.flatnonzero(out[:, 0])
        if len(sure):
            entries = codes[:used], values[:used]
            yield self._columns(out[sure], sure, said, told, entries, processes, tags)
        if len(sure) < size:
            yield self._others(np.flatnonzero(out[:, 0] == 0))

    def _columns(
        self, out: Any, sure: Any, said: Any, told: Any, entries: Any, processes: Names, tags: Names
    ) -> pa.RecordBatch:
        size = len(sure)
        names, words = pa.array(processes.texts(), pa.string()), pa.array(tags.texts(), pa.string())
        tag = out[:, 3].astype(np.int32)
        offsets = np.r_[0, out[:, 4]].astype(np.int32)
        keys = pa.DictionaryArray.from_arrays(pa.array(entries[0]), names)
        known = tag < 2 if self.format.tokens else np.zeros(size, bool)
        columns = {
            "run": constant(self.part.run, size),
            "process": pa.DictionaryArray.from_arrays(pa.array(out[:, 1].astype(np.int32)), names),
            "index": pa.array(out[:, 2] - 1),
            "kind": pa.DictionaryArray.from_arrays(pa.array(tag, mask=tag > 1), KINDS),
            "message": strings(gathered(self.buffer, said, sure, *NOTHING), ~known),
            "vector": pa.MapArray.from_arrays(pa.array(offsets), keys, pa.array(entries[1])),
            "text": pa.DictionaryArray.from_arrays(pa.array(tag), words),
            "fields": strings(gathered(self.buffer, told, sure, *self.format.fields)),
            "file": constant(self.part.file, size),
            "line": pa.array(sure + self.first),
            "reason": pa.nulls(size, pa.string()),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in READ.names], schema=ENCODED)

    def _others(self, which: Any) -> pa.RecordBatch:
        rows = Rows(self.part.file)
        for at in which.tolist():
            content = self.buffer[self.starts[at] : self.ends[at]].tobytes()
            one(rows, self.part.run, self.first + at, content, self.format.line)
        return rows.batch()


KINDS: Final = pa.array(["send", "deliver"], pa.string())
NOTHING: Final = packed(b"", b"")


def constant(text: str, size: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), pa.array([text], pa.string()))


def strings(told: tuple[Any, Any], absent: Any = None) -> pa.Array:
    """Strings of their offsets and bytes."""
    offsets, data = told
    made = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
    return made if absent is None else pc.if_else(pa.array(absent), pa.scalar(None, pa.string()), made)


NAMED: Final = ("run", "process", "kind", "text", "file")
CODES: Final = pa.dictionary(pa.int32(), pa.string())
ENCODED: Final = pa.schema(
    [
        field.with_type(
            CODES
            if field.name in NAMED
            else pa.map_(CODES, pa.int64())
            if field.name == "vector"
            else field.type
        )
        for field in READ
    ]
)
"""`READ` with names as integers: what the kernels give, and what Parquet takes without looking at a name."""


TOLD: Final = ENCODED.set(ENCODED.get_field_index("text"), READ.field("text"))
"""The same for logs whose texts are all different."""


def encoded(batch: pa.RecordBatch, schema: pa.Schema = ENCODED) -> pa.RecordBatch:
    """The batch with names as integers."""
    if batch.schema.field("process").type == CODES:
        return batch
    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        if field.name == "vector":
            keys = column.keys.dictionary_encode()
            column = pa.MapArray.from_arrays(column.offsets, keys, column.items, mask=column.is_null())
        columns.append(column.dictionary_encode() if field.type == CODES else column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with plain strings, as Spark takes it."""
    if batch.schema.field("process").type != CODES:
        return batch
    columns = []
    for column in batch.columns:
        if pa.types.is_map(column.type):
            keys = column.keys.dictionary_decode()
            column = pa.MapArray.from_arrays(column.offsets, keys, column.items, mask=column.is_null())
        columns.append(column.dictionary_decode() if column.type == CODES else column)
    return pa.RecordBatch.from_arrays(columns, schema=READ)
