"""Causal order for a live stream of events that name their causes: an identifier, and those of what it follows.

A row comes out when all of its causes have come out, in its own partition. No Spark: `operator` keeps the state.

  emitted    identifiers that came out, for the time `remember`. A cause that is not among them has not come, or is
             older: it is waited for, and named
  held       rows whose causes have not all come out. A row that comes out wakes those that name it
  given up   after `patience` the causes of a row that are not here, or not those of its causes, are given up. Rows that
             name them come out as `released`, with `waits_for`; if such a cause comes after all, it comes out as `late`
  repeated   an identifier that came out before comes out again at once, and says so

Rows of a micro-batch are taken by time, where there is one, and then by identifier: not as they come, so that a
micro-batch that is repeated gives the same.

What is held is the head of the state, what came out are its pieces (`operator`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import repeat, takewhile
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from antecede.spark.stream.bucket import (
    DELIVERED,
    LATE,
    RELEASED,
    REPEATED,
    BucketSettings,
    Missing,
    Output,
    WaitingRoom,
    encode_columns,
)
from antecede.spark.stream.kernel import Numbers
from antecede.spark.stream.status import Status
from antecede.watch.status import CAUSES_MOST

__all__ = ["CausesBucket", "CausesSettings"]

NONE: Final[dict[Any, None]] = {}

Key = tuple[str, Any]
"""A partition, and an identifier in it."""


class CausesSettings(BucketSettings, frozen=True):
    id: str = "__id"
    """The column of identifiers, of the type that causes have."""

    def make(self) -> CausesBucket:
        return CausesBucket(self)


class Held(Struct):
    """A row that waits; `rows` are its places in the table, more than one if it came more than once."""

    rows: list[int]
    since: int
    missing: set[Any]
    lacks: list[Any]
    """Causes that were given up."""


class CausesBucket(WaitingRoom):
    """Partitions of a stream.

    >>> bucket = CausesBucket(CausesSettings())
    >>> def rows(*events):
    ...     columns = [("__partition", pa.string()), ("__id", pa.string()), ("__causes", pa.list_(pa.string()))]
    ...     named = [{"__partition": "", "__id": id, "__causes": causes} for id, causes in events]
    ...     return pa.Table.from_pylist(named, pa.schema(columns))
    >>> out, status = bucket.advance(rows(("reply", ["question"]), ("hello", [])), 0)
    >>> out["__id"].to_pylist(), [(cause.sender, cause.held) for cause in status.causes]
    (['hello'], [('question', 1)])
    >>> bucket.advance(rows(("question", ["hello"])), 1)[0].select(["__id", "position"]).to_pylist()
    [{'__id': 'question', 'position': 1}, {'__id': 'reply', 'position': 2}]
    """

    form = "causes"
    memory = ("emitted", "ages", "positions")
    told = CAUSES_MOST

    def __init__(self, settings: CausesSettings) -> None:
        super().__init__(settings)
        self.held: dict[Key, Held] = {}
        self.waiters: dict[Key, list[Key]] = {}
        """Cause -> the rows that wait for it."""
        self.given_up: dict[Key, int] = {}
        """Cause -> when it was given up."""
        self.emitted: defaultdict[str, dict[Any, None]] = defaultdict(dict)
        """Partition -> the identifiers that came out. No sets, and no pairs of both: Spark looks for garbage after each
        task, in every set and pair that is kept, but not in a dictionary that has texts or numbers alone."""
        self.ages: deque[tuple[int, dict[str, tuple[Any, ...]]]] = deque()
        """The same by time."""
        self.positions: dict[str, tuple[int, int]] = {}
        """Partition -> its next position, and when it was given one last; those that were given one long ago first."""
        self.fresh: defaultdict[str, list[Any]] = defaultdict(list)
        """Partition of which something is new since the last step -> the identifiers that came out."""
        self.forgot = -1
        """When it was last forgotten what is too old."""
        self._unnamed = 0

    def advance(self, rows: pa.Table | None, now: int) -> tuple[pa.Table | None, Status]:
        self.fresh.clear()
        self._forget(now)
        return super().advance(rows, now)

    def decide(self, table: pa.Table, came: int, now: int, out: Output) -> Numbers:
        old = len(table) - came
        for key in [key for key in self.waiters if self.has_emitted(*key)]:
            # A query that remembers for longer than the one before knows it again.
            self._emit(list(self._wake(key)), out)
        if came:
            rows = table.slice(old)
            keys = [name for name in ("__time", self.settings.id) if name in rows.column_names]
            order = pc.sort_indices(rows, [(key, "ascending") for key in keys])
            names = ("__partition", self.settings.id, "__causes")
            own = (rows[name].take(order).to_pylist() for name in names)
            self._take_all(zip((order.to_numpy() + old).tolist(), *own, strict=True), now, out)
        if self.settings.patience_ms is not None:
            self._expire(now - self.settings.patience_ms, now, out)
        partitions = table["__partition"].take(np.array(out.rows, np.int64))
        out.positions.frombytes(self._place(partitions, now).tobytes())
        self._note_ages(self.fresh.items(), now)
        kept = [row for one in self.held.values() for row in one.rows]
        places = iter(range(len(kept)))
        for one in self.held.values():
            one.rows = [next(places) for _ in one.rows]
        return np.array(kept, np.int64)

    def _take_all(self, rows: Iterable[tuple[int, str, Any, list[Any]]], now: int, out: Output) -> None:
        emitted, held, waiters, given_up = self.emitted, self.held, self.waiters, self.given_up
        for row, partition, id, causes in rows:
            known = emitted.get(partition, NONE)
            # Most rows come after their causes, and nothing waits for them.
            if id is None or id in known or given_up or (held and (partition, id) in held):
                self._take(row, partition, id, causes, now, out)
                continue
            for cause in causes:
                if cause not in known:
                    self._take(row, partition, id, causes, now, out)
                    break
            else:
                out.rows.append(row)
                self._remember(partition, id)
                if waiters and (key := (partition, id)) in waiters:
                    self._emit(self._wake(key), out)

    def has_emitted(self, partition: str, id: Any) -> bool:
        return id in self.emitted.get(partition, NONE)

    def _remember(self, partition: str, id: Any) -> None:
        """Note that this came out."""
        self.fresh[partition].append(id)
        self.emitted[partition][id] = None

    def _take(self, row: int, partition: str, id: Any, causes: list[Any], now: int, out: Output) -> None:
        if id is None:
            # Nobody can name it: it needs a key of its own while it waits, and none afterwards.
            self._unnamed += 1
            key: Key = (partition, (self._unnamed,))
        else:
            key = (partition, id)
            if self.has_emitted(*key):
                out.add(row, REPEATED)
                return
            if key in self.held:
                self.held[key].rows.append(row)
                return
        missing, lacks = set(), []
        for cause in causes:
            named = (partition, cause)
            if self.has_emitted(*named):
                continue
            if named in self.given_up:
                lacks.append(cause)
            elif cause not in missing:
                missing.add(cause)
                self.waiters.setdefault(named, []).append(key)
        one = Held([row], now, missing, lacks)
        if missing:
            self.held[key] = one
        else:
            self._emit([(key, one)], out)

    def _emit(self, ready: Iterable[tuple[Key, Held]], out: Output) -> None:
        """Let rows out, and what waited for them alone."""
        queue = deque(ready)
        while queue:
            key, one = queue.popleft()
            partition, id = key
            lacks = [cause for cause in one.lacks if not self.has_emitted(partition, cause)] or None
            late = self.given_up.pop(key, None) is not None
            for copy, row in enumerate(one.rows):
                kind = REPEATED if copy else LATE if late else DELIVERED if lacks is None else RELEASED
                out.add(row, kind, waits=None if copy else lacks)
            if isinstance(id, tuple):
                continue
            self._remember(partition, id)
            queue.extend(self._wake(key))

    def _wake(self, key: Key) -> Iterator[tuple[Key, Held]]:
        """Those that wait for nothing else than this."""
        for waiter in self.waiters.pop(key, ()):
            one = self.held.get(waiter)
            if one is not None and key[1] in one.missing:
                one.missing.discard(key[1])
                if not one.missing:
                    del self.held[waiter]
                    yield waiter, one

    # Time

    def _expire(self, before: int, now: int, out: Output) -> None:
        """Give up what rows have waited for since then."""
        while tired := [key for key, one in self.held.items() if one.since <= before]:
            for key in tired:
                if key in self.held:
                    # Rows that wait for each other in a cycle lack nothing else.
                    cycle = sorted(((key[0], one) for one in self.held[key].missing), key=str)
                    for cause in self._find_roots(key) or cycle:
                        self._give_up(cause, now, out)

    def _give_up(self, cause: Key, now: int, out: Output) -> None:
        self.given_up[cause] = now
        for waiter in list(self.waiters.get(cause, ())):
            one = self.held.get(waiter)
            if one is not None and cause[1] in one.missing:
                one.lacks.append(cause[1])
        self._emit(list(self._wake(cause)), out)

    def _find_roots(self, key: Key) -> list[Key]:
        """What a row waits for, directly or through others, and is not here."""
        seen, todo = {key}, [key]
        roots: list[Key] = []
        while todo:
            for cause in self.held[todo.pop()].missing:
                named = (key[0], cause)
                if named not in seen:
                    seen.add(named)
                    (todo if named in self.held else roots).append(named)
        return sorted(roots, key=str)

    def _forget(self, now: int) -> None:
        """Forget identifiers that came out too long ago, and partitions of which nothing came out since.

        Those that hold something are renewed: what waits goes on where they were."""
        self.forgot, before = now, now - self.settings.remember_ms
        while self.ages and self.ages[0][0] <= before:
            for partition, ids in self.ages.popleft()[1].items():
                known = self.emitted[partition]
                for id in ids:
                    known.pop(id, None)
                if not known:
                    del self.emitted[partition]
        for key in [key for key, when in self.given_up.items() if when <= before]:
            del self.given_up[key]
        old = list(takewhile(lambda name: self.positions[name][1] <= before, self.positions))
        holding = {partition for partition, _ in self.held} if old else set()
        for partition in old:
            position, _ = self.positions.pop(partition)
            if partition in holding:
                self.positions[partition] = position, now
                self.fresh[partition] = []

    def _note_ages(self, fresh: Iterable[tuple[str, Iterable[Any]]], now: int) -> None:
        if ages := {partition: tuple(ids) for partition, ids in fresh if ids}:
            self.ages.append((now, ages))

    # What comes out

    def finish(self, table: pa.Table, out: Output) -> pa.Table:
        found = out.finish(table.drop_columns(["__since"]), pa.list_(table[self.settings.id].type))
        return found.drop_columns(["reason"])

    def _place(self, partitions: pa.ChunkedArray, now: int) -> Numbers:
        """The next positions of these partitions, one for each row."""
        values, codes = encode_columns([partitions])
        # The last one is for null, and there is none.
        names = [name for (name,) in values[:-1]]
        order = np.argsort(codes, kind="stable")
        counts = np.bincount(codes, minlength=len(names))
        base = np.array([self.positions.pop(name, (0, 0))[0] for name in names], np.int64)
        positions = np.empty(len(codes), np.int64)
        starts = np.cumsum(counts) - counts
        positions[order] = np.arange(len(codes)) + np.repeat(base - starts, counts)
        for name, end in zip(names, (base + counts).tolist(), strict=True):
            self.positions[name] = end, now
            self.fresh.setdefault(name, [])
        return positions

    def list_missing(self, most: int | None = None) -> Iterator[Missing]:
        """Causes that are not here, and cycles."""
        missing = [key for key in self.waiters if key not in self.held and not self.has_emitted(*key)]
        direct = sorted(missing, key=lambda key: (-len(self.waiters[key]), str(key)))[:most]
        cycles = self.find_cycles()
        caught = {row for cycle in cycles for row in cycle}
        for key, words, counted in (
            *((key, str(key[1]), "id") for key in direct),
            *((one[0], " -> ".join(str(id) for _, id in (*one, one[0])), "cycle") for one in cycles[:most]),
        ):
            # Rows of a cycle would not come out if the cause came.
            held = self._list_waiters(key) - (caught if counted == "id" and most is not None else set())
            if held:
                places = np.array([row for one in held for row in self.held[one].rows], np.int64)
                yield Missing(key[0], "", words, None, None, counted, places)

    def identify_held(self, table: pa.Table) -> Iterable[tuple[str, str | None, str | None, int | None]]:
        ids = table[self.settings.id].cast(pa.string()).to_pylist()
        return zip(table["__partition"].to_pylist(), repeat(None), ids, repeat(None), strict=False)

    def _list_waiters(self, key: Key) -> set[Key]:
        """The rows that wait for this, directly or through others."""
        seen, todo = set[Key](), [key]
        while todo:
            for waiter in self.waiters.get(todo.pop(), ()):
                if waiter in self.held and waiter not in seen:
                    seen.add(waiter)
                    todo.append(waiter)
        return seen

    def find_cycles(self) -> list[list[Key]]:
        """Rows that are held and wait for each other: each is a cause of the next, and the last one of the first."""
        waits = {
            key: [named for cause in one.missing if (named := (key[0], cause)) in self.held]
            for key, one in self.held.items()
        }
        left = {key: len(causes) for key, causes in waits.items()}
        todo = [key for key, many in left.items() if not many]
        while todo:
            key = todo.pop()
            del left[key]
            for waiter in self.waiters.get(key, ()):
                if waiter in left:
                    left[waiter] -= 1
                    if not left[waiter]:
                        todo.append(waiter)
        # Those that are left are in a cycle, or wait for one.
        found: list[list[Key]] = []
        passed = set[Key]()
        for at in left:
            path: dict[Key, None] = {}
            while at not in passed:
                passed.add(at)
                path[at] = None
                at = min(named for named in waits[at] if named in left)
            if at in path:
                cycle = list(path)[list(path).index(at) :][::-1]
                least = cycle.index(min(cycle))
                found.append(cycle[least:] + cycle[:least])
        return sorted(found)

    # What is kept

    def list_state(self) -> dict[str, Any]:
        held = [
            [*key, one.rows, one.since, sorted(one.missing, key=str), one.lacks]
            for key, one in self.held.items()
        ]
        given_up = [[*key, when] for key, when in self.given_up.items()]
        return {**super().list_state(), "held": held, "given_up": given_up, "forgot": self.forgot}

    def list_fresh(self) -> dict[str, Any] | None:
        """The next positions of partitions, and what came out."""
        return {one: [self.positions[one][0], ids] for one, ids in self.fresh.items()} or None

    def remember(self, entry: Any, when: int) -> None:
        # As it was forgotten then: an identifier may have come again, and is known by the later one.
        self._forget(when)
        for partition, (position, ids) in entry.items():
            if ids:
                self.emitted[partition].update(dict.fromkeys(ids))
            self.positions.pop(partition, None)
            self.positions[partition] = position, when
        self._note_ages(((partition, ids) for partition, (_, ids) in entry.items()), when)

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._forget(state["forgot"])
        for partition, id, rows, since, missing, lacks in state["held"]:
            key = (partition, tuple(id) if isinstance(id, list) else id)
            self._unnamed = max(self._unnamed, id[0] if isinstance(id, list) else 0)
            self.held[key] = Held(rows, since, set(missing), lacks)
            for cause in missing:
                self.waiters.setdefault((partition, cause), []).append(key)
        self.given_up = {(partition, id): when for partition, id, when in state["given_up"]}
