"""Causal order for a live stream of events that carry vectors, without Spark: a bucket of partitions.

A vector counts events, as in `antecede.spark.order.by_vector`: its own entry numbers the event, 1, 2, 3, ... at each
process, and entry i tells how many of process i's events happened before. A row comes out when the one before it of its
process has come out, in its own partition, and as many of the others' as its vector says (`counts`).

  held       rows that wait. They are read again with the rows of the next micro-batch
  given up   after `patience`: rows come out as `released`, with `waits_for`; what was given up and comes, as `late`
  repeated   a number that came out before comes out again at once, and says so
  refused    a row without a process, a vector or a number of its own, or with a negative entry: it has no position

Rows of a micro-batch are taken by time, where one is named, by the sum of their entries and then by process, as the
batch sorts them, so that a micro-batch that is repeated gives the same.

A partition that holds nothing and from which nothing came for the time
`remember` is forgotten: its numbers begin again at 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from antecede.jit import kernels_for
from antecede.jit.hashtable import grown, new_table
from antecede.spark.frames import VECTOR_FAULTS
from antecede.spark.stream import kernel
from antecede.spark.stream.bucket import (
    REPEATED,
    BucketSettings,
    Missing,
    Output,
    WaitingRoom,
    encode_columns,
)
from antecede.spark.stream.counts import Counts, Step, enlarge
from antecede.spark.stream.kernel import Numbers
from antecede.spark.stream.status import Status

__all__ = ["VectorBucket", "VectorSettings"]

BATCHES: Final = 100
"""Micro-batches that compiled kernels are expected to serve, at least."""


class VectorSettings(BucketSettings, frozen=True):
    process: str
    vector: str

    def make(self) -> VectorBucket:
        return VectorBucket(self)


class VectorBucket(WaitingRoom):
    """Partitions of a stream.

    >>> bucket = VectorBucket(VectorSettings("who", "clock"))
    >>> def rows(*events):
    ...     columns = [("__partition", pa.string()), ("who", pa.string()), ("clock", pa.map_(pa.string(), pa.int64()))]
    ...     table = [{"__partition": "", "who": who, "clock": list(clock.items())} for who, clock in events]
    ...     return pa.Table.from_pylist(table, pa.schema(columns))
    >>> out, status = bucket.advance(rows(("bob", {"ann": 1, "bob": 1}), ("cy", {"cy": 1})), 0)
    >>> out["who"].to_pylist(), [(cause.words, cause.held) for cause in status.causes]
    (['cy'], [('ann 1', 1)])
    >>> bucket.advance(rows(("ann", {"ann": 1})), 1)[0].select(["who", "position"]).to_pylist()
    [{'who': 'ann', 'position': 1}, {'who': 'bob', 'position': 2}]
    """

    form = "vectors"

    def __init__(self, settings: VectorSettings) -> None:
        super().__init__(settings)
        self.partitions: dict[str, int] = {}
        """By number: they are the lanes of `counts`."""
        self.processes: dict[Any, int] = {}
        self.channels = new_table(64)
        """(partition, process) -> channel."""
        self.homes: Numbers = np.zeros((0, 2), np.int64)
        """Channel -> partition and process."""
        self.touched: Numbers = np.zeros(0, np.int64)
        """Partition -> when something of it came last."""
        self.counts = Counts()

    # A micro-batch

    def advance(self, rows: pa.Table | None, now: int) -> tuple[pa.Table | None, Status]:
        many = sum(len(part) for part in (rows, self.table) if part is not None)
        # A stream goes on: what is compiled for this micro-batch serves those to come.
        with kernels_for(BATCHES * many):
            found = super().advance(rows, now)
        self._forget(now)
        return found

    def decide(self, table: pa.Table, came: int, now: int, out: Output) -> Numbers:
        read, old = self._read(table), len(table) - came
        self.touched[read.lane[old:]] = now
        order = self._sort(table, read, old)
        good, bad = order[read.fault[order] == 0], order[read.fault[order] > 0]
        ones = np.ones(len(good), np.int64)
        own = np.zeros(len(table), np.int64)
        own[good] = self._number_channels(read.lane[good], read.code[good], ones, ones)
        row = np.repeat(np.arange(len(table)), read.last - read.first)
        process = self._number_channels(read.lane[row], read.named, read.counts, own[row])
        self.counts.make_room(len(self.partitions), len(self.homes))
        number, lane = read.number[good], read.lane[good]
        entries = read.first[good], read.last[good], process, read.counts
        step = Step(self.counts, lane, own[good], number, number, *entries)
        rows = step.rows
        step.expire(self.is_tired(table, now)[good])
        named = list(self.processes)
        for at in bad.tolist():
            out.refuse(at, VECTOR_FAULTS[read.fault[at] - 1])
        out.add_step(
            good, step, lambda one: {"process": named[self.homes[one.channel, 1]], "number": one.first}
        )
        came_out = self.counts.delivered[own[good]] >= number
        again = (rows.state == kernel.DROPPED) | ((rows.state == kernel.COPY) & came_out)
        for at, one in zip(good[again].tolist(), lane[again].tolist(), strict=True):
            out.add(at, REPEATED, int(self.counts.places[one]))
            self.counts.places[one] += 1
        left = np.flatnonzero((rows.state == kernel.HELD) | ((rows.state == kernel.COPY) & ~came_out))
        self.counts.waits = step.find_waits(left)
        return np.asarray(good[left])

    def _sort(self, table: pa.Table, read: Vectors, old: int) -> Numbers:
        """What was held, as it was; what came by time, by the sum of its entries, and then by process."""
        names = list(self.processes)
        rank = np.zeros(len(names) + 1, np.int64)
        rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        keys = [rank[read.code[old:]], read.total[old:]]
        if "__time" in table.column_names:
            keys.append(table["__time"].slice(old).fill_null(0).to_numpy())
        return np.concatenate([np.arange(old), old + np.lexsort(keys)])

    def _read(self, table: pa.Table) -> Vectors:
        lane = number_column(self.partitions, table["__partition"])
        self.touched = enlarge(self.touched, len(self.partitions))
        code = number_column(self.processes, table[self.settings.process])
        keys, count, first, last, nulls = flatten(table[self.settings.vector])
        if keys is None:
            # An array: the place of an entry is its process.
            keys = pa.array(np.arange(len(count)) - np.repeat(first, last - first))
        named = number_column(self.processes, pa.chunked_array([keys]))
        row = np.repeat(np.arange(len(lane)), last - first)
        number = np.zeros(len(lane), np.int64)
        mine = named == code[row]
        number[row[mine]] = count[mine]
        fault = np.zeros(len(lane), np.int64)
        fault[number < 1] = 5
        fault[row[count < 0]] = 4
        fault[row[nulls]] = 3
        fault[table[self.settings.vector].is_null().to_numpy(zero_copy_only=False)] = 2
        fault[code < 0] = 1
        sums = np.concatenate([[0], np.cumsum(count)])
        return Vectors(lane, code, number, sums[last] - sums[first], fault, first, last, named, count)

    def _number_channels(self, lane: Numbers, code: Numbers, count: Numbers, own: Numbers) -> Numbers:
        """The channel of each entry; an entry of 0 has that of its row, `own`."""
        into = np.zeros(len(code), np.int64)
        cursor = np.array([0, len(self.homes)], np.int64)
        while kernel.number_channels(lane, code, count, own, self.channels, into, cursor) < len(code):
            self.channels = grown(self.channels)
        if cursor[1] > len(self.homes):
            homes = np.zeros((cursor[1], 2), np.int64)
            homes[: len(self.homes)] = self.homes
            homes[into] = np.where((count > 0)[:, None], np.stack([lane, code], 1), homes[into])
            self.homes = homes
        return into

    # What comes out

    def finish(self, table: pa.Table, out: Output) -> pa.Table:
        name = pa.string() if any(isinstance(one, str) for one in self.processes) else pa.int64()
        waits = pa.list_(pa.struct([("process", name), ("number", pa.int64())]))
        return out.finish(table.drop_columns(["__since"]), waits)

    def list_missing(self, most: int | None = None) -> Iterator[Missing]:
        names, partitions = list(self.processes), list(self.partitions)
        for lane, root in self.counts.find_roots(most):
            what = str(names[self.homes[root.source, 1]]), root.first, root.last
            yield Missing(partitions[lane], "", *what, "sender", root.blocked)

    def identify_held(self, table: pa.Table) -> Iterable[tuple[str, str | None, str | None, int | None]]:
        names = table[self.settings.process].cast(pa.string()).to_pylist()
        numbers = self._read(table).number.tolist()
        return zip(table["__partition"].to_pylist(), repeat(None), names, numbers, strict=False)

    def find_frontier(self) -> dict[str, int]:
        if len(self.processes) > 64:
            return {}
        most = np.zeros(len(self.processes), np.int64)
        np.maximum.at(most, self.homes[:, 1], self.counts.delivered[: len(self.homes)])
        return {str(name): int(most[code]) for name, code in self.processes.items() if most[code]}

    # Time

    def _forget(self, now: int) -> None:
        """Forget partitions from which nothing came for long, when they are half of all that are known."""
        many, counts = len(self.partitions), self.counts
        kept = self.touched[:many] + self.settings.remember_ms > now
        kept[np.unique(counts.waits.lane)] = True
        if not many or 2 * int(kept.sum()) > many:
            return
        stay = np.flatnonzero(kept[self.homes[:, 0]])
        # Names of processes that nothing is known of any more go, too.
        partitions, names, used = list(self.partitions), list(self.processes), np.unique(self.homes[stay, 1])
        homes = (np.cumsum(kept) - 1)[self.homes[stay, 0]], np.searchsorted(used, self.homes[stay, 1])
        lanes = np.flatnonzero(kept)
        self._restore(
            [partitions[lane] for lane in lanes.tolist()],
            [names[code] for code in used.tolist()],
            np.stack(homes, 1),
            self.touched[lanes],
            counts.pick(lanes, stay),
        )

    def _restore(
        self, partitions: list[str], processes: list[Any], homes: Numbers, touched: Numbers, counts: Counts
    ) -> None:
        """Go on with these partitions, processes and channels."""
        self.touched, self.counts = touched, counts
        self.partitions = {name: lane for lane, name in enumerate(partitions)}
        self.processes = {name: code for code, name in enumerate(processes)}
        self.homes, self.channels = np.zeros((0, 2), np.int64), new_table(len(homes))
        ones = np.ones(len(homes), np.int64)
        with kernels_for(len(homes)):
            lane, code = (np.ascontiguousarray(part) for part in homes.T)
            self._number_channels(lane, code, ones, ones)

    # What is kept

    def list_state(self) -> dict[str, Any]:
        many, known = len(self.partitions), len(self.homes)
        return super().list_state() | {
            "partitions": list(self.partitions),
            "processes": list(self.processes),
            "homes": self.homes.tobytes(),
            "touched": self.touched[:many].tobytes(),
            "counts": self.counts.dump(many, known),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        homes, touched = (np.frombuffer(state[name], np.int64).copy() for name in ("homes", "touched"))
        counts = Counts.load(state["counts"])
        self._restore(state["partitions"], state["processes"], homes.reshape(-1, 2), touched, counts)


def number_column(known: dict[Any, int], column: pa.ChunkedArray) -> Numbers:
    """The number of each value, -1 for null; new ones get the numbers that follow."""
    values, code = encode_columns([column])
    numbers = [-1 if name is None else known.setdefault(name, len(known)) for (name,) in values]
    found: Numbers = np.array(numbers, np.int64)[code]
    return found


class Vectors(NamedTuple):
    """Rows as arrays: the entries of row i are those from `first[i]` to `last[i]`."""

    lane: Numbers
    code: Numbers
    """The process of each row, -1 for none."""
    number: Numbers
    total: Numbers
    fault: Numbers
    first: Numbers
    last: Numbers
    named: Numbers
    """The process of each entry."""
    counts: Numbers


def flatten(column: pa.ChunkedArray) -> tuple[pa.Array | None, Numbers, Numbers, Numbers, Numbers]:
    """Names of the entries (of a map), the entries, where those of each row begin and end, and which are null."""
    one = column.combine_chunks()
    one = pa.concat_arrays(one.chunks) if isinstance(one, pa.ChunkedArray) else one
    ends = one.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    is_map = pa.types.is_map(one.type)
    values = (one.items if is_map else one.values).cast(pa.int64())
    values = values.slice(int(ends[0]), int(ends[-1] - ends[0])) if len(ends) else values
    keys = one.keys.slice(int(ends[0]), int(ends[-1] - ends[0])) if is_map else None
    ends = ends - ends[0] if len(ends) else np.zeros(1, np.int64)
    nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)) if values.null_count else ()
    counts = values.fill_null(0).to_numpy(zero_copy_only=False)
    # Arrow's own memory is read-only: another type, for which all would be compiled again.
    return keys, np.array(counts, np.int64), ends[:-1].copy(), ends[1:].copy(), np.array(nulls, np.int64)
