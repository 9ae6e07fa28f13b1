"""A scan that looks for the sends of some messages, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.jit import native
from antecede.jit.hashtable import EMPTY, find, table_of
from antecede.trace.columns import Rows
from antecede.trace.schema import SEND
from antecede.verification.blob import pack, unpack
from antecede.verification.findings import Ids
from antecede.verification.scanner import columns_of

__all__ = ["Search", "Found"]

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Found:
    """The sends found in one chunk, in order. Destinations of r: `to[start[r] : start[r + 1]]`."""

    sender: Array
    number: Array
    position: Array
    """Which row of the chunk it is."""
    start: Array
    to: Array

    def __len__(self) -> int:
        return len(self.sender)

    def encode(self) -> bytes:
        return pack("found", {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def decode(cls, data: bytes) -> Found:
        return cls(**unpack("found", data))


class Search:
    """Reads the rows of one chunk, in order, for the sends of these messages."""

    def __init__(self, ids: Ids) -> None:
        self._wanted = table_of(ids.sender, ids.number)
        self._position = 0
        self._found: list[Found] = []

    def feed(self, rows: Rows) -> None:
        columns = columns_of(rows)
        hits = np.empty(len(rows), np.int64)
        hits = hits[: seek(columns, self._wanted, hits)]
        sends = rows.take(hits)
        offsets = sends.offsets.astype(np.int64)
        self._found.append(Found(sends.sender, sends.number, self._position + hits, offsets, sends.to))
        self._position += len(rows)

    def finish(self) -> Found:
        none = np.zeros(0, np.int64)
        parts = [
            *self._found,
            Found(none.astype(np.int32), none, none, np.zeros(1, np.int64), none.astype(np.int32)),
        ]
        ends = np.cumsum([0, *(len(part.to) for part in parts)])
        starts = [part.start[:-1] + end for part, end in zip(parts, ends, strict=False)]
        columns = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Found)}
        return Found(**columns | {"start": np.append(np.concatenate(starts), ends[-1])})


@native
def seek(rows, wanted, hits):  # type: ignore[no-untyped-def]
    """The rows that send one of the wanted, into `hits`. Returns how many they are."""
    count = 0
    for row in range(len(rows.kind)):
        if rows.kind[row] != SEND or rows.control[row]:
            continue
        if wanted[find(wanted, rows.sender[row], rows.number[row]), 1] != EMPTY:
            hits[count] = row
            count += 1
    return count
