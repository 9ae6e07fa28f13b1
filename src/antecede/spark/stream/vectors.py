"""Causal order for a live stream of events that carry vectors, without Spark: a bucket of partitions.

A vector counts events, as in `antecede.spark.order.by_vector`: its own entry numbers the event, 1, 2, 3, ... at each
process, and entry i tells how many of process i's events happened before. A row comes out when the one before it of its
process has come out, in its own partition, and as many of the others' as its vector says. The compiled kernel decides
(`kernel`); `Step` has what it does not know: rows that were given up before they came, what a row was released without,
copies, and rows that are refused.

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

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from antecede.jit import kernels_for
from antecede.jit.hashtable import grown, new_table
from antecede.spark.stream import kernel
from antecede.spark.stream.kernel import Numbers, Root, Waits, find_roots
from antecede.spark.stream.operator import read_state
from antecede.spark.stream.packets import encode_names, finish_rows, from_ipc, join_rows, to_ipc
from antecede.spark.stream.status import Cause, Status, sort_causes

__all__ = ["VectorBucket", "VectorSettings", "list_held"]

STATE_VERSION: Final = 3
FAULTS: Final = (
    "",
    "no name of its process",
    "no vector",
    "an entry that is null",
    "a negative entry",
    "no number of its own",
)
KINDS: Final = np.array(["delivered", "late", "released", "repeated", "refused"], dtype=object)
ON_TIME, LATE, RELEASED, REPEATED, REFUSED = range(5)
NUMBERS: Final = ("places", "touched", "homes", "delivered")
"""What a state has as numbers."""
BATCHES: Final = 100
"""Micro-batches that compiled kernels are expected to serve, at least."""


class VectorSettings(Struct, frozen=True):
    """Which columns say what, and how long to wait and to remember."""

    process: str
    vector: str
    patience_ms: int | None = None
    remember_ms: int = 604_800_000
    buckets: int = 1
    columns: dict[str, str] = {}
    """What the state is about, in words: a query with other columns does not go on with it."""

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
        table = join_rows(self.table, rows)
        if table is None:
            self._forget(now)
            return None, Status(now_ms=now)
        read, old = self._read(table), len(table) - came
        step = Step(self, read, self._sort(table, read, old))
        self.touched[read.lane[old:]] = now
        since = table["__since"].to_numpy()
        while self.settings.patience_ms is not None:
            tired = step.held[since[step.held] + self.settings.patience_ms <= now]
            if not len(tired):
                break
            step.give_up(tired)
        self.table, self.waits = table.take(step.held), step.waits
        status = self._describe(step, since[step.held], came, now)
        found = self._finish(table, step)
        self._forget(now)
        return found, status

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

    def _finish(self, table: pa.Table, step: Step) -> pa.Table:
        kinds = np.array(step.kinds, np.int64)
        name = pa.string() if any(isinstance(one, str) for one in self.processes) else pa.int64()
        named = list(self.processes)
        lacks = {
            at: [{"process": named[code], "number": first} for code, first in one]
            for at, one in step.lacks.items()
        }
        waits = pa.list_(pa.struct([("process", name), ("number", pa.int64())]))
        reasons = list(map(step.reasons.get, range(len(kinds)))) if step.reasons else [None] * len(kinds)
        position = pa.array(step.positions, pa.int64(), mask=kinds == REFUSED)
        texts = (pa.array(column, pa.string()) for column in (KINDS[kinds], reasons))
        found = table.take(np.array(step.out, np.int64)).drop_columns(["__since"])
        return finish_rows(found, position, lacks, waits, *texts)

    def _describe(self, step: Step, since: Numbers, came: int, now: int) -> Status:
        kinds = np.bincount(np.array(step.kinds, np.int64), minlength=len(KINDS)).tolist()
        causes = (
            Cause(
                self.names[lane],
                who,
                root.first,
                root.last,
                len(root.blocked),
                int(since[root.blocked].min()),
            )
            for lane, who, root in self.find_roots(kernel.MOST)
        )
        return Status(
            now_ms=now,
            rows_in=came,
            delivered=kinds[ON_TIME] + kinds[RELEASED],
            late=kinds[LATE],
            gave_up=kinds[RELEASED],
            refused=kinds[REFUSED],
            held=len(since),
            oldest_ms=int(since.min()) if len(since) else None,
            causes=sort_causes(causes),
            frontier=self._frontier(),
        )

    def find_roots(self, most: int | None) -> Iterator[tuple[int, str, Root]]:
        """What is missing, in which partition and of whom."""
        named = list(self.processes)
        for lane, root in find_roots(self.waits, self.delivered, most):
            yield lane, str(named[self.homes[root.source, 1]]), root

    def _frontier(self) -> dict[str, int]:
        if len(self.processes) > 64:
            return {}
        most = np.zeros(len(self.processes), np.int64)
        np.maximum.at(most, self.homes[:, 1], self.delivered[: len(self.homes)])
        return {str(name): int(most[code]) for name, code in self.processes.items() if most[code]}

    # Time

    @property
    def deadline(self) -> int | None:
        """When patience with something here ends."""
        if self.settings.patience_ms is None or self.table is None or not len(self.table):
            return None
        return int(pc.min(self.table["__since"]).as_py()) + self.settings.patience_ms

    def _forget(self, now: int) -> None:
        """Forget partitions from which nothing came for long, when they are half of all that are known."""
        many = len(self.names)
        kept = self.touched[:many] + self.settings.remember_ms > now
        kept[np.unique(self.waits.lane)] = True
        if not many or 2 * int(kept.sum()) > many:
            return
        stay = kept[self.homes[:, 0]]
        # Names of processes that nothing is known of any more go, too.
        names, used = list(self.processes), np.unique(self.homes[stay, 1])
        self.processes = {names[code]: place for place, code in enumerate(used.tolist())}
        homes = (np.cumsum(kept) - 1)[self.homes[stay, 0]], np.searchsorted(used, self.homes[stay, 1])
        places = np.cumsum(stay) - 1
        self.gaps = {int(places[channel]): gaps for channel, gaps in self.gaps.items() if stay[channel]}
        self.names = [name for name, here in zip(self.names, kept.tolist(), strict=True) if here]
        counts = self.places[:many][kept], self.touched[:many][kept], self.delivered[: len(stay)][stay]
        self._restore(*counts, np.stack(homes, 1))

    def _restore(self, places: Numbers, touched: Numbers, delivered: Numbers, homes: Numbers) -> None:
        """Go on with these partitions and channels; `names`, `processes` and `gaps` are those already."""
        self.partitions = {name: number for number, name in enumerate(self.names)}
        self.places, self.touched, self.delivered = places.copy(), touched.copy(), delivered.copy()
        self.homes, self.channels = np.zeros((0, 2), np.int64), new_table(len(homes))
        ones = np.ones(len(homes), np.int64)
        with kernels_for(len(homes)):
            lane, code = (np.ascontiguousarray(part) for part in homes.T)
            self.number_channels(lane, code, ones, ones)

    # What is kept

    def dump(self) -> bytes:
        many, known = len(self.names), len(self.homes)
        numbers = (self.places[:many], self.touched[:many], self.homes, self.delivered[:known])
        state = {
            "antecede vectors": STATE_VERSION,
            "buckets": self.settings.buckets,
            "columns": self.settings.columns,
            "read": [self.settings.process, self.settings.vector],
            "partitions": self.names,
            "processes": list(self.processes),
            **{name: part.tobytes() for name, part in zip(NUMBERS, numbers, strict=True)},
            "gaps": [[channel, gaps] for channel, gaps in sorted(self.gaps.items())],
            "held": None if self.table is None else to_ipc(self.table),
        }
        return msgspec.msgpack.encode(state)

    @classmethod
    def load(cls, data: bytes, settings: VectorSettings) -> VectorBucket:
        state = read_state(data, "vectors", STATE_VERSION, settings.buckets, settings.columns)
        bucket = cls(settings)
        bucket.names = state["partitions"]
        bucket.processes = {name: code for code, name in enumerate(state["processes"])}
        bucket.gaps = {channel: [(first, last) for first, last in gaps] for channel, gaps in state["gaps"]}
        places, touched, homes, delivered = (np.frombuffer(state[name], np.int64) for name in NUMBERS)
        bucket._restore(places, touched, delivered, homes.reshape(-1, 2))
        bucket.table = None if state["held"] is None else from_ipc(state["held"])
        return bucket


def list_held(state: dict[str, Any]) -> list[dict[str, Any]]:
    """What waits in a bucket with this state, as rows of `WAITING`: its partition, process and number."""
    process, vector = state["read"]
    settings = VectorSettings(process, vector, buckets=state["buckets"])
    bucket = VectorBucket.load(msgspec.msgpack.encode(state), settings)
    # Nothing comes, so nothing comes out: what is held is read.
    bucket.advance(None, 0)
    if bucket.table is None or not len(bucket.table):
        return []
    named, read = list(bucket.processes), bucket._read(bucket.table)
    awaits: dict[int, list[dict[str, Any]]] = {}
    for _, sender, root in bucket.find_roots(None):
        missing = {"sender": sender, "first": root.first, "last": root.last, "counted": "sender"}
        for row in root.blocked.tolist():
            awaits.setdefault(row, []).append(missing)
    own = (bucket.table[name].to_pylist() for name in ("__partition", "__since"))
    return [
        {
            "group": partition,
            "receiver": None,
            "sender": str(named[read.code[row]]),
            "number": int(read.number[row]),
            "since_ms": since,
            "awaits": awaits.get(row, []),
        }
        for row, (partition, since) in enumerate(zip(*own, strict=True))
    ]


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


class Step:
    """One micro-batch of a bucket: what comes out of the rows that were held and those that came."""

    def __init__(self, bucket: VectorBucket, read: Vectors, order: Numbers) -> None:
        self.bucket, self.read = bucket, read
        self.out: list[int] = []
        self.positions: list[int] = []
        self.kinds: list[int] = []
        self.lacks: dict[int, list[tuple[int, int]]] = {}
        self.reasons: dict[int, str] = {}
        self.forced: dict[int, list[tuple[int, int]]] = {}
        """Rows of a circle -> what they go without."""
        self.waits = Waits.none()
        """What the rows that are held wait for."""
        row, size = np.repeat(np.arange(len(read.lane)), read.last - read.first), len(read.lane)
        good, bad = order[read.fault[order] == 0], order[read.fault[order] > 0]
        ones = np.ones(len(good), np.int64)
        self.channel = np.zeros(size, np.int64)
        self.channel[good] = bucket.number_channels(read.lane[good], read.code[good], ones, ones)
        self.process = bucket.number_channels(read.lane[row], read.named, read.counts, self.channel[row])
        self.last = read.last.copy()
        self.held: Numbers = good
        self._run()
        for at in bad.tolist():
            self.reasons[len(self.out)] = FAULTS[read.fault[at]]
            self._emit(at, 0, REFUSED)

    def _run(self) -> None:
        """Let the kernel take the rows that are held, and note what comes out and what is left."""
        bucket, read, held = self.bucket, self.read, self.held
        position, channel, late = read.number[held], self.channel[held], self._find_late(held)
        needs = read.first[held], self.last[held], self.process, read.counts
        rows = kernel.Rows(read.lane[held], channel, position, position, *needs, late)
        ended = rows.run(bucket.delivered, bucket.places)
        assert ended == -1, "every vector has a number"
        self._note(held[rows.order], rows.placed, late[rows.order])
        delivered = bucket.delivered[channel] >= position
        again = (rows.state == kernel.DROPPED) | ((rows.state == kernel.COPY) & delivered)
        for row in held[again].tolist():
            lane = read.lane[row]
            self._emit(row, int(bucket.places[lane]), REPEATED)
            bucket.places[lane] += 1
        left = np.flatnonzero((rows.state == kernel.HELD) | ((rows.state == kernel.COPY) & ~delivered))
        self.held, self.waits = held[left], rows.waits(left)

    def _find_late(self, rows: Numbers) -> NDArray[np.int8]:
        """Which rows were given up before they came."""
        late = np.zeros(len(rows), np.int8)
        if self.bucket.gaps:
            behind = self.bucket.delivered[self.channel[rows]] >= self.read.number[rows]
            for at in np.flatnonzero(behind).tolist():
                gaps = self.bucket.gaps.get(int(self.channel[rows[at]]), ())
                late[at] = find_gap(gaps, int(self.read.number[rows[at]])) is not None
        return late

    def _note(self, rows: Numbers, placed: Numbers, late: NDArray[np.int8]) -> None:
        """Rows come out, in this order."""
        if not self.bucket.gaps and not self.forced:
            self.out += rows.tolist()
            self.positions += placed.tolist()
            self.kinds += [ON_TIME] * len(rows)
            return
        for row, place, was_late in zip(rows.tolist(), placed.tolist(), late.tolist(), strict=True):
            lacks = self._lacks(row)
            if lacks:
                self.lacks[len(self.out)] = lacks
            kind = RELEASED if lacks else ON_TIME
            if was_late:
                # A second copy of it finds nothing that was given up.
                kind = (
                    LATE if self._close_gap(int(self.channel[row]), int(self.read.number[row])) else REPEATED
                )
            self._emit(row, place, kind)

    def _lacks(self, row: int) -> list[tuple[int, int]]:
        """Processes whose event just before this one has not come, and the first number that has not."""
        read, bucket = self.read, self.bucket
        found = []
        for entry in range(read.first[row], read.last[row]):
            channel = int(self.process[entry])
            own = channel == self.channel[row]
            asked = int(read.number[row]) - 1 if own else int(read.counts[entry])
            if own and read.named[entry] != read.code[row]:
                continue
            gap = find_gap(bucket.gaps.get(channel, ()), asked)
            if gap is not None:
                found.append((int(read.named[entry]), gap[0]))
        return [*found, *(one for one in self.forced.get(row, ()) if one not in found)]

    def _force(self, row: int) -> None:
        """Let a row go without what it names."""
        read, delivered = self.read, self.bucket.delivered
        entries = np.arange(read.first[row], read.last[row])
        other = entries[self.process[entries] != self.channel[row]]
        lacks = other[delivered[self.process[other]] < read.counts[other]]
        self.forced[row] = [(int(read.named[at]), int(delivered[self.process[at]]) + 1) for at in lacks]
        self.last[row] = read.first[row]
        own, before = int(self.channel[row]), int(read.number[row]) - 1
        if delivered[own] < before:
            # Those before it of its process may be here, and come late.
            self.bucket.gaps.setdefault(own, []).append((int(delivered[own]) + 1, before))
            delivered[own] = before

    def _close_gap(self, channel: int, number: int) -> bool:
        """What was given up has come. Whether it was given up."""
        gaps = self.bucket.gaps.get(channel, [])
        gap = find_gap(gaps, number)
        if gap is None:
            return False
        del self.bucket.gaps[channel]
        left = [one for one in gaps if one != gap]
        left += [one for one in ((gap[0], number - 1), (number + 1, gap[1])) if one[0] <= one[1]]
        if left:
            self.bucket.gaps[channel] = sorted(left)
        return True

    def _emit(self, row: int, place: int, kind: int) -> None:
        self.out.append(row)
        self.positions.append(place)
        self.kinds.append(kind)

    def give_up(self, tired: Numbers) -> None:
        """Give up what these rows wait for and is not here, and go on."""
        bucket, asked = self.bucket, np.isin(self.held, tired)
        every = find_roots(self.waits, bucket.delivered, None)
        roots = [root for _, root in every if asked[root.blocked].any()]
        # The first of each source: what is beyond a row that is here is for that row to wait for.
        first: dict[int, Root] = {}
        for root in roots:
            if root.source not in first or root.first < first[root.source].first:
                first[root.source] = root
        for channel, root in sorted(first.items()):
            if bucket.delivered[channel] == root.first - 1:
                bucket.gaps.setdefault(channel, []).append((root.first, root.last))
                bucket.delivered[channel] = root.last
        if not any(bucket.delivered[channel] == root.last for channel, root in first.items()):
            # Vectors that contradict each other wait in a circle: the least of them goes without what it names.
            least = tired[np.lexsort((self.read.code[tired], self.read.total[tired]))[0]]
            self._force(int(least))
        self._run()


def find_gap(gaps: Iterable[tuple[int, int]], number: int) -> tuple[int, int] | None:
    return next((gap for gap in gaps if gap[0] <= number <= gap[1]), None)


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
