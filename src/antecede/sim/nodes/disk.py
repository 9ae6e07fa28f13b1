"""A disk in memory under a real journal: it keeps what disks keep, and fails as disks fail.

The tables change as a whole, as those of a database with a write-ahead log do. What was written to a file and not
synced is in the system's memory: it outlives the process, but not the power. Of what was on its way when the power
failed, each sector of a file may have arrived or not, and a file that had grown may have its old length.

>>> from random import Random
>>> disk = MemoryDisk(lambda: None, Random(1), full=True)
>>> disk.write("anchor", 0, b"twelve bytes")
12
>>> disk.lose_power()
>>> disk.read("anchor", 0, 99) in (b"", b"twelve bytes")
True
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from antecede.process.disk import Row, Tables

__all__ = ["MemoryDisk"]

SECTOR = 512
UNDO = 4
"""Writes that are remembered one by one until a file is synced: with more, all that it held before."""


class MemoryDisk:
    """The disk of one journal. `effect` is called before and after whatever reaches it: a crash may come there."""

    def __init__(self, effect: Callable[[], None], random: Random, full: bool) -> None:
        self._effect, self._random, self._full = effect, random, full
        self.pid, self.old = 1, False
        self.boots = 1
        self.refuses = False
        """There is no room: whatever is written is refused."""
        self.syncs_fail = 0
        """So many of the next syncs fail."""
        self._snapshots: list[Row] = []
        self._inputs: list[Row] = []
        self._tips: list[tuple[Any, Any]] = []
        self._stable: tuple[list[Row], list[Row], list[tuple[Any, Any]]] = ([], [], [])
        """The tables as they are on the disk, where they are not synced with each transaction."""
        self._since: list[tuple[list[Row], list[Row], list[tuple[Any, Any]]]] = []
        """The tables after each transaction that is not on the disk."""
        self._files: dict[str, bytearray] = {}
        self._unsynced: dict[str, tuple[int, list[tuple[int, bytes]]]] = {}
        """Files that were written to since a sync: their size then, and what stood at each place before."""

    # As a journal uses it

    @property
    def boot(self) -> bytes:
        return self.boots.to_bytes(16, "big")

    def path(self, name: str) -> str:
        return f"memory-{name}"

    def tables(self) -> Tables:
        return Tables(list(self._snapshots), list(self._inputs), list(self._tips))

    def insert(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        self._effect()
        self._check_room()
        if self._full and self._fails():
            # Nobody knows what is on the disk by now: a database that is opened again may find it.
            if self._random.random() < 0.5:
                self._inputs += rows
                self._tips = [(rows[-1][0], rows[-1][5])]
            raise OSError(errno.EIO, "Input/output error")
        self._inputs += rows
        self._tips = [(rows[-1][0], rows[-1][5])]
        self._note()
        self._effect()

    def replace(self, snapshot: Row) -> None:
        self._effect()
        self._check_room()
        failing = self._full and self._fails()
        if not failing or self._random.random() < 0.5:
            self._snapshots, self._inputs = [snapshot], []
            self._tips = [(snapshot[0], snapshot[5])]
        if failing:
            raise OSError(errno.EIO, "Input/output error")
        self._note()
        self._effect()

    def _note(self) -> None:
        if not self._full:
            self._since.append((list(self._snapshots), list(self._inputs), list(self._tips)))

    def checkpoint(self) -> None:
        if self._fails():
            raise OSError(errno.EIO, "Input/output error")
        self._settle()

    def _settle(self) -> None:
        self._stable = list(self._snapshots), list(self._inputs), list(self._tips)
        self._since = []

    def upgrade(self) -> None:
        raise AssertionError("no earlier version wrote this")

    def close(self) -> None:
        self._effect()

    def size(self, name: str) -> int | None:
        return len(self._files[name]) if name in self._files else None

    def read(self, name: str, start: int, size: int) -> bytes:
        return bytes(self._files[name][start : start + size])

    def write(self, name: str, start: int, data: bytes | memoryview) -> int:
        self._effect()
        self._check_room()
        size = len(data)
        if size > SECTOR and self._random.random() < 0.1:
            # A write may take less than it is given.
            size = self._random.randrange(1, size)
        file = self._files.setdefault(name, bytearray())
        if name not in self._unsynced:
            self._unsynced[name] = len(file), []
        undo = self._unsynced[name][1]
        if not undo or undo[-1][0] != start or len(undo[-1][1]) != size:
            # The same place again: what stood there before the first of them counts.
            undo.append((start, bytes(file[start : start + size])))
            if len(undo) % UNDO == 0:
                undo[:] = [(0, self._before(name))]
        if len(file) < start:
            file.extend(bytes(start - len(file)))
        file[start : start + size] = data[:size]
        return size

    def _before(self, name: str) -> bytes:
        """What a file held when it was synced last."""
        size, undo = self._unsynced[name]
        before = bytearray(self._files[name])
        for start, old in reversed(undo):
            before[start : start + len(old)] = old
        return bytes(before[:size])

    def sync(self, name: str) -> None:
        self._effect()
        if self._fails():
            raise OSError(errno.EIO, "Input/output error")
        self._unsynced.pop(name, None)

    def _check_room(self) -> None:
        if self.refuses:
            raise OSError(errno.ENOSPC, "No space left on device")

    def _fails(self) -> bool:
        if self.syncs_fail:
            self.syncs_fail -= 1
            return True
        return False

    # What goes wrong

    def clone(self) -> MemoryDisk:
        """Another disk with the same on it."""
        other = MemoryDisk(lambda: None, self._random, self._full)
        other.pid, other.boots = self.pid, self.boots
        other._snapshots, other._inputs, other._tips = (
            list(self._snapshots),
            list(self._inputs),
            list(self._tips),
        )
        other._files = {name: bytearray(file) for name, file in self._files.items()}
        return other

    @property
    def bytes(self) -> int:
        """All that it holds."""
        rows = (*self._snapshots, *self._inputs)
        return sum(len(row[2] or b"") for row in rows) + sum(map(len, self._files.values()))

    @property
    def rows(self) -> int:
        return len(self._inputs)

    def lose_power(self) -> None:
        """What was not synced may be lost: of tables the last transactions, of files any sector."""
        random, self.boots = self._random, self.boots + 1
        if not self._full:
            states = [self._stable, *self._since]
            snapshots, inputs, tips = states[random.randrange(len(states))]
            self._snapshots, self._inputs, self._tips = list(snapshots), list(inputs), list(tips)
            self._settle()
        for name in self._unsynced:
            self._files[name] = bytearray(_tear(self._before(name), bytes(self._files[name]), random))
        self._unsynced.clear()

    def flip(self) -> Callable[[], None]:
        """Flip a bit somewhere; a call of the answer flips it back."""
        random = self._random
        places: list[tuple[str, int]] = [("file", k) for k in range(len(self._files))]
        places += [("snapshot", 0)] * len(self._snapshots)
        places += [("inputs", k) for k in range(len(self._inputs))]
        places += [("tip", k) for k in range(len(self._tips))]
        kind, k = places[random.randrange(len(places))]
        if kind == "file":
            file = self._files[list(self._files)[k]]
            if not file:
                return lambda: None
            at, bit = random.randrange(len(file)), 1 << random.randrange(8)
            file[at] ^= bit

            def restore() -> None:
                file[at] ^= bit

            return restore
        tables: dict[str, list[Any]] = {
            "snapshot": self._snapshots,
            "inputs": self._inputs,
            "tip": self._tips,
        }
        table = tables[kind]
        whole = table[k]
        table[k] = _flip_field(whole, random)

        def put_back() -> None:
            table[k] = whole

        return put_back


def _tear(before: bytes, after: bytes, random: Random) -> bytes:
    """A file of which some sectors were written, and others were not."""
    if len(after) > len(before) and random.random() < 0.3:
        after = after[: len(before)]
    result = bytearray(after)
    for start in range(0, len(after), SECTOR):
        if random.random() < 0.5:
            old = before[start : start + SECTOR]
            # What was never there is zeros, where the file has its new length.
            result[start : start + SECTOR] = old + bytes(len(after[start : start + SECTOR]) - len(old))
    return bytes(result)


def _flip_field(row: tuple[Any, ...], random: Random) -> tuple[Any, ...]:
    fields = [k for k, field in enumerate(row) if field is not None and field != b""]
    k = fields[random.randrange(len(fields))]
    field = row[k]
    if isinstance(field, bytes):
        at = random.randrange(len(field))
        field = field[:at] + bytes([field[at] ^ 1 << random.randrange(8)]) + field[at + 1 :]
    else:
        field ^= 1 << random.randrange(32)
    return (*row[:k], field, *row[k + 1 :])
