"""Causal order for a live stream of events that carry vectors, without Spark: a bucket of partitions.

A vector counts events, as in `antecede.spark.order.by_vector`: its own entry numbers the event, 1, 2, 3, ... at each
process, and entry i tells how many of process i's events happened before. A row comes out when the one before it of its
process has come out, in its own partition, and as many of the others' as its vector says. The compiled kernel decides
(`kernel`).

  held       rows that wait. They are read again with the rows of the next micro-batch
  given up   after `patience`, what a row waits for and is not here counts as if it had come out. Rows whose newest
             event of a process was given up come out as `released`, with `waits_for`; if it comes after all, as `late`
  repeated   a number that came out before comes out again at once, and says so
  refused    a row without a process, a vector or a number of its own, or with a negative entry: it has no position

Rows of a micro-batch are taken by time, where one is named, by the sum of their entries and then by process, as the
batch sorts them, so that a micro-batch that is repeated gives the same.

A partition that holds nothing and from which nothing came for the time
`remember` is forgotten: its numbers begin again at 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from antecede.jit import kernels_for
from antecede.jit.hashtable import grown, new_table
from antecede.spark.stream import kernel
from antecede.spark.stream.operator import read_state
from antecede.spark.stream.packets import encode_names, from_ipc, join_rows, make_lists, to_ipc
from antecede.spark.stream.roots import Waits, find_roots
from antecede.spark.stream.status import Status, sort_causes
from antecede.spark.stream.vector_step import LATE, ON_TIME, REFUSED, RELEASED, Step, Vectors
from antecede.watch.status import Cause

__all__ = ["VectorBucket", "VectorSettings"]

STATE_VERSION: Final = 1
FAULTS: Final = {
    1: "no name of its process",
    2: "no vector",
    3: "an entry that is null",
    4: "a negative entry",
    5: "no number of its own",
}
KINDS: Final = np.array(["delivered", "late", "released", "repeated", "refused"], dtype=object)

BATCHES: Final = 100
"""Micro-batches that compiled kernels are expected to serve, at least."""

Numbers = NDArray[np.int64]


class VectorSettings(Struct, frozen=True):
    """Which columns say what, and how long to wait and to remember."""

    process: str
    vector: str
    patience_ms: int | None = None
    remember_ms: int = 604_800_000
    buckets: int = 1

    def open(self, state: bytes | None) -> VectorBucket:
        return VectorBucket(self) if state is None else VectorBucket.load(state, self)


class VectorBucket:
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

    def __init__(self, settings: VectorSettings) -> None:
        self.settings = settings
        self.partitions: dict[str, int] = {}
        self.names: list[str] = []
        """Partitions by number."""
        self.processes: dict[Any, int] = {}
        self.channels = new_table(64)
        """(partition, process) -> channel."""
        self.homes: Numbers = np.zeros((0, 2), np.int64)
        """Channel -> partition and process."""
        self.delivered: Numbers = np.zeros(0, np.int64)
        """Channel -> how many of its events came out, or were given up."""
        self.places: Numbers = np.zeros(0, np.int64)
        """Partition -> the next position."""
        self.touched: Numbers = np.zeros(0, np.int64)
        """Partition -> when something of it came last."""
        self.gaps: dict[int, list[tuple[int, int]]] = {}
        """Channel -> what was given up and has not come, as ranges of numbers."""
        self.table: pa.Table | None = None
        """The rows that are held, with `__since`."""
        self.waits = Waits.none()

    # A micro-batch

    def advance(self, rows: pa.Table | None, now: int) -> tuple[pa.Table | None, Status]:
        """Take rows, and give up what was waited for too long. None comes out while there was no row at all."""
        came = 0 if rows is None else len(rows)
        # A stream goes on: what is compiled for this micro-batch serves those to come.
        with kernels_for(BATCHES * (came + (0 if self.table is None else len(self.table)))):
            return self._advance(rows, came, now)

    def _advance(self, rows: pa.Table | None, came: int, now: int) -> tuple[pa.Table | None, Status]:
        if rows is not None:
            rows = rows.append_column("__since", pa.array(np.full(came, now, np.int64)))
            rows = self._sort(rows)
        table = join_rows(self.table, rows)
        if table is None:
            self._forget(now)
            return None, Status(now_ms=now)
        old = len(table) - came
        read = self._read(table)
        self.touched[read.lane[old:]] = now
        step = Step(self, read)
        step.take()
        while self.settings.patience_ms is not None:
            since = table["__since"].to_numpy()
            tired = step.held[since[step.held] + self.settings.patience_ms <= now]
            if not len(tired):
                break
            step.give_up(tired)
        self.table = table.take(step.held)
        self.waits = step.waits()
        found, status = self._finish(table, step, came, now)
        self._forget(now)
        return found, status

    def _sort(self, rows: pa.Table) -> pa.Table:
        """Rows by time, by the sum of their entries, and then by process."""
        counts, first, last = flatten(rows[self.settings.vector])[1:4]
        total = sum_entries(counts, first, last)
        process = encode_names(rows[self.settings.process])
        known = process.dictionary.to_pylist()
        rank = np.zeros(len(known) + 1, np.int64)
        rank[sorted(range(len(known)), key=known.__getitem__)] = np.arange(len(known))
        codes = process.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
        keys = [rank[codes], total]
        if "__time" in rows.column_names:
            keys.append(rows["__time"].fill_null(0).to_numpy())
        return rows.take(np.lexsort(keys))

    def _read(self, table: pa.Table) -> Vectors:
        lane = self._number_partitions(table["__partition"])
        own = encode_names(table[self.settings.process])
        codes = self._number_processes(own.dictionary)
        code = np.append(codes, -1)[
            own.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False).astype(np.int64)
        ]
        keys, count, first, last, nulls = flatten(table[self.settings.vector])
        if keys is None:
            # An array: the place of an entry is its process.
            place = np.arange(len(count)) - np.repeat(first, last - first)
            known = pa.array(np.arange(int(place.max(initial=-1)) + 1))
            named = self._number_processes(known)[place] if len(place) else place
        else:
            encoded = keys.dictionary_encode()
            numbered = self._number_processes(encoded.dictionary)
            named = numbered[encoded.indices.to_numpy(zero_copy_only=False)] if len(count) else count
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
        return Vectors(lane, code, number, sum_entries(count, first, last), fault, first, last, named, count)

    def _number_partitions(self, column: pa.ChunkedArray) -> Numbers:
        encoded = encode_names(column)
        numbers = []
        for name in encoded.dictionary.to_pylist():
            number = self.partitions.setdefault(name, len(self.names))
            if number == len(self.names):
                self.names.append(name)
            numbers.append(number)
        self.places, self.touched = (enlarge(part, len(self.names)) for part in (self.places, self.touched))
        found: Numbers = np.array(numbers, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
        return found

    def _number_processes(self, names: pa.Array) -> Numbers:
        known = self.processes
        return np.array([known.setdefault(name, len(known)) for name in names.to_pylist()], np.int64)

    def number_channels(self, lane: Numbers, code: Numbers, count: Numbers, own: Numbers) -> Numbers:
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
            self.delivered = enlarge(self.delivered, len(homes))
        return into

    # What comes out

    def _finish(self, table: pa.Table, step: Step, came: int, now: int) -> tuple[pa.Table, Status]:
        kinds, lacks = np.array(step.kinds, np.int64), step.lacks
        found = table.take(np.array(step.out, np.int64)).drop_columns(["__since"])
        found = found.append_column("position", pa.array(step.positions, pa.int64(), mask=kinds == REFUSED))
        name = pa.string() if any(isinstance(one, str) for one in self.processes) else pa.int64()
        waits = pa.list_(pa.struct([("process", name), ("number", pa.int64())]))
        named = self._names_of_processes()
        told = {
            at: [{"process": named[code], "number": first} for code, first in one]
            for at, one in lacks.items()
        }
        found = found.append_column("waits_for", make_lists(len(kinds), told, waits))
        found = found.append_column("kind", pa.array(KINDS[kinds], pa.string()))
        reasons = [FAULTS[fault] for fault in step.faults]
        reason = pa.concat_arrays(
            [pa.nulls(len(kinds) - len(reasons), pa.string()), pa.array(reasons, pa.string())]
        )
        found = found.append_column("reason", reason)
        held = table["__since"].to_numpy()[step.held]
        status = Status(
            now_ms=now,
            rows_in=came,
            delivered=int(np.isin(kinds, (ON_TIME, RELEASED)).sum()),
            late=int((kinds == LATE).sum()),
            gave_up=int((kinds == RELEASED).sum()),
            refused=int((kinds == REFUSED).sum()),
            held=len(held),
            held_bytes=0 if self.table is None else self.table.nbytes,
            oldest_ms=int(held.min()) if len(held) else None,
            causes=sort_causes(self._causes(held)),
            frontier=self._frontier(),
            receivers=len(self.names),
        )
        return found, status

    def _causes(self, since: Numbers) -> Iterator[Cause]:
        """What is missing, and how many rows each of it holds up."""
        named = self._names_of_processes()
        for lane, root in find_roots(self.waits, self.delivered):
            code = int(self.homes[root.source, 1])
            first = int(since[root.blocked].min())
            yield Cause(
                self.names[lane], str(named[code]), root.first, root.last, len(root.blocked), first,
                counted="sender",
            )  # fmt: skip

    def _frontier(self) -> dict[str, int]:
        if len(self.processes) > 64:
            return {}
        most = np.zeros(len(self.processes), np.int64)
        np.maximum.at(most, self.homes[:, 1], self.delivered[: len(self.homes)])
        return {str(name): int(most[code]) for name, code in self.processes.items() if most[code]}

    def _names_of_processes(self) -> list[Any]:
        return list(self.processes)

    # Time

    @property
    def deadline(self) -> int | None:
        """When patience with something here ends."""
        if self.settings.patience_ms is None or self.table is None or not len(self.table):
            return None
        return int(pc.min(self.table["__since"]).as_py()) + self.settings.patience_ms

    def _forget(self, now: int) -> None:
        """Forget partitions from which nothing came for long, when they are half of all that are known."""
        old = self.touched[: len(self.names)] + self.settings.remember_ms <= now
        old[np.unique(self.waits.lane)] = False
        if not len(old) or 2 * int(old.sum()) < len(old):
            return
        self._restore(
            [name for name, gone in zip(self.names, old.tolist(), strict=True) if not gone],
            self.places[: len(old)][~old],
            self.touched[: len(old)][~old],
            *self._keep_channels(~old),
        )

    def _keep_channels(self, kept: NDArray[np.bool_]) -> tuple[Any, Any, Any]:
        number = np.cumsum(kept) - 1
        stay = kept[self.homes[:, 0]]
        homes = self.homes[stay]
        homes[:, 0] = number[homes[:, 0]]
        # Names of processes that nothing is known of any more go, too.
        names, used = list(self.processes), np.unique(homes[:, 1])
        self.processes = {names[code]: place for place, code in enumerate(used.tolist())}
        homes[:, 1] = np.searchsorted(used, homes[:, 1])
        places = np.cumsum(stay) - 1
        gaps = {int(places[channel]): gaps for channel, gaps in self.gaps.items() if stay[channel]}
        return homes, self.delivered[: len(stay)][stay], gaps

    def _restore(
        self, names: list[str], places: Any, touched: Any, homes: Any, delivered: Any, gaps: Any
    ) -> None:
        self.names, self.partitions = names, {name: number for number, name in enumerate(names)}
        self.places, self.touched, self.delivered = (np.array(one) for one in (places, touched, delivered))
        self.homes, self.gaps = np.zeros((0, 2), np.int64), gaps
        self.channels = new_table(len(homes))
        ones = np.ones(len(homes), np.int64)
        with kernels_for(len(homes)):
            self.number_channels(
                np.ascontiguousarray(homes[:, 0]), np.ascontiguousarray(homes[:, 1]), ones, ones
            )

    # What is kept

    def dump(self) -> bytes:
        many = len(self.names)
        state = {
            "antecede vectors": STATE_VERSION,
            "buckets": self.settings.buckets,
            "columns": [self.settings.process, self.settings.vector],
            "partitions": self.names,
            "processes": list(self.processes),
            "places": self.places[:many].tobytes(),
            "touched": self.touched[:many].tobytes(),
            "homes": self.homes.tobytes(),
            "delivered": self.delivered[: len(self.homes)].tobytes(),
            "gaps": [[channel, gaps] for channel, gaps in sorted(self.gaps.items())],
            "held": None if self.table is None else to_ipc(self.table),
        }
        return msgspec.msgpack.encode(state)

    @classmethod
    def load(cls, data: bytes, settings: VectorSettings) -> VectorBucket:
        state = read_state(data, "vectors", STATE_VERSION, settings.buckets)
        bucket = cls(settings)
        bucket.processes = {name: code for code, name in enumerate(state["processes"])}
        gaps = {channel: [(first, last) for first, last in gaps] for channel, gaps in state["gaps"]}
        numbers = [
            np.frombuffer(state[name], np.int64) for name in ("places", "touched", "homes", "delivered")
        ]
        places, touched, homes, delivered = numbers
        bucket._restore(state["partitions"], places, touched, homes.reshape(-1, 2), delivered, gaps)
        bucket.table = None if state["held"] is None else from_ipc(state["held"])
        return bucket

    @classmethod
    def list_held(cls, state: dict[str, Any]) -> list[dict[str, Any]]:
        """What waits in a bucket with this state, as rows of `WAITING`: its partition, process and number."""
        if state["held"] is None or not len(table := from_ipc(state["held"])):
            return []
        process, vector = state["columns"]
        settings = VectorSettings(process, vector, buckets=state["buckets"])
        bucket = cls.load(msgspec.msgpack.encode(state), settings)
        # Nothing comes, so nothing comes out: what is held is read.
        bucket.advance(None, 0)
        named, read = bucket._names_of_processes(), bucket._read(table)
        awaits: dict[int, list[dict[str, Any]]] = {}
        for _, root in find_roots(bucket.waits, bucket.delivered, None):
            sender = str(named[bucket.homes[root.source, 1]])
            missing = {"sender": sender, "first": root.first, "last": root.last, "counted": "sender"}
            for row in root.blocked.tolist():
                awaits.setdefault(row, []).append(missing)
        return [
            {
                "group": partition,
                "receiver": None,
                "sender": str(named[read.code[row]]),
                "number": int(read.number[row]),
                "since_ms": since,
                "awaits": awaits.get(row, []),
            }
            for row, (partition, since) in enumerate(
                zip(table["__partition"].to_pylist(), table["__since"].to_pylist(), strict=True)
            )
        ]


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


def sum_entries(counts: Numbers, first: Numbers, last: Numbers) -> Numbers:
    """The sum of the entries of each row."""
    sums = np.concatenate([[0], np.cumsum(counts)])
    total: Numbers = sums[last] - sums[first]
    return total


def enlarge(values: Numbers, size: int) -> Numbers:
    """With room for so many, and for as many again when it grows."""
    if size <= len(values):
        return values
    larger = np.zeros(max(8, 2 * size), np.int64)
    larger[: len(values)] = values
    return larger
