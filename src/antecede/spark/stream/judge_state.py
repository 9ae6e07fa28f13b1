"""What a judge keeps from one micro-batch to the next: what waits, who knows of which sends, and how it is written.

With C_q the clock of process q over sends (`antecede.spark.stream.judge` decides which event's turn it is):
  send of m by i       C_i[i] += 1, the ordinal of m; m takes C_i along
  delivery of m at q   C_q takes in what m brought. The messages of i that are addressed to q, are not there, and have
                       ordinals that C_q[i] passes by it, are overtaken by m; those of m's own sender with lower
                       ordinals are broken by it (FIFO)
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from antecede.errors import BadSnapshot

__all__ = ["Clocks", "Flight", "Id", "Process", "State", "Step", "decode_state", "encode_state"]

VERSION: Final = 1

Id = tuple[int, int]
"""Sender and number."""


class Step(Struct, array_like=True):
    """An event that waits for its turn. Sender -1: nothing to be judged, a receive or a control packet."""

    sender: int
    number: int
    to: list[int] | None
    """On a send."""


class Flight(Struct, array_like=True):
    """A message that was sent."""

    sender: int
    number: int
    ordinal: int
    clock: bytes
    left: set[int]
    given: set[int]
    since_ms: int
    overtaken: dict[int, Id] = {}
    """Process that it is addressed to -> the first message that overtook it there."""
    broken: dict[int, Id] = {}
    """The same, of the same sender."""
    given_up: set[int] = set()

    @property
    def id(self) -> Id:
        return self.sender, self.number


class Process(Struct, array_like=True):
    """Where a process is."""

    name: str
    next: int = 0
    sends: int = 0
    seen: int = 0
    """How many of its own sends others have told it of."""
    steady: bool = True
    """Whether it has numbered its messages 1, 2, 3 ..."""
    held: dict[int, Step] = {}
    """By index."""
    since_ms: int | None = None
    """Since when it waits for an event or for a send."""
    told: bool = False
    """Whether a gap was told."""


Lanes = dict[int, dict[int, Flight]]
"""Sender -> ordinal -> a message of it, in order."""


class Clocks:
    """Of all processes of a run, by their numbers."""

    def __init__(self) -> None:
        self.size = 0
        self._known = np.zeros((0, 0), np.int64)
        """[q, i]: how many sends of i are known at q."""
        self._highest = np.zeros((0, 0), np.int64)
        """[q, i]: the highest ordinal of i's messages that were delivered at q."""
        self._unpassed: list[Lanes] = []
        """Of each process: the messages to it that are not there, and not overtaken."""
        self._unbroken: list[Lanes] = []
        """The same, for FIFO."""

    def add(self) -> None:
        """One more process."""
        self.size += 1
        self._unpassed.append({})
        self._unbroken.append({})
        if self.size > len(self._known):
            self._known, self._highest = _larger(self._known), _larger(self._highest)

    def sent(self, i: int, ordinal: int) -> bytes:
        """One more send of a process. Returns what the message takes along."""
        self._known[i, i] = ordinal
        return self._known[i, : self.size].tobytes()

    def overtaken(self, q: int, flight: Flight, seen: int) -> bool:
        """Whether a message that is delivered now comes too late. `seen`: as in `learn`."""
        known = seen if q == flight.sender else self._known[q, flight.sender]
        return bool(known >= flight.ordinal)

    def broken(self, q: int, flight: Flight) -> bool:
        """Whether a later one of the same sender was delivered before."""
        return bool(self._highest[q, flight.sender] > flight.ordinal)

    def learn(self, q: int, flight: Flight, process: Process) -> None:
        """The process learns what the message brought; messages that are not there yet are overtaken by it."""
        brought = np.frombuffer(flight.clock, np.int64)
        mine = self._known[q, : len(brought)]
        np.maximum(mine, brought, out=mine)
        i, id = flight.sender, flight.id
        if q < len(brought):
            process.seen = max(process.seen, int(brought[q]))
        lanes = self._unpassed[q]
        # Only senders that have something under way to q: what is in a lane, the clock had not passed before.
        for sender in list(lanes):
            known = process.seen if sender == q else int(mine[sender]) if sender < len(mine) else 0
            for ordinal in _upto(lanes[sender], known):
                _drop(lanes, sender, ordinal).overtaken[q] = id
        lanes = self._unbroken[q]
        for ordinal in _upto(lanes.get(i, {}), flight.ordinal - 1):
            _drop(lanes, i, ordinal).broken[q] = id
        if self._highest[q, i] < flight.ordinal:
            self._highest[q, i] = flight.ordinal

    def watch(self, flight: Flight) -> None:
        """Look out for what overtakes the message, at each of its destinations."""
        for q in flight.left:
            if q not in flight.overtaken:
                self._unpassed[q].setdefault(flight.sender, {})[flight.ordinal] = flight
            if q not in flight.broken:
                self._unbroken[q].setdefault(flight.sender, {})[flight.ordinal] = flight

    def unwatch(self, q: int, flight: Flight) -> None:
        if q not in flight.overtaken:
            _drop(self._unpassed[q], flight.sender, flight.ordinal)
        if q not in flight.broken:
            _drop(self._unbroken[q], flight.sender, flight.ordinal)

    def dump(self) -> tuple[bytes, bytes]:
        n = self.size
        return self._known[:n, :n].tobytes(), self._highest[:n, :n].tobytes()

    def load(self, known: bytes, highest: bytes) -> None:
        """What was dumped, of as many processes."""
        n = self.size
        for kept, table in ((known, self._known), (highest, self._highest)):
            table[:n, :n] = np.frombuffer(kept, np.int64).reshape(n, n)


def _larger(table: NDArray[np.int64]) -> NDArray[np.int64]:
    size = max(4, 2 * len(table))
    larger = np.zeros((size, size), np.int64)
    larger[: len(table), : len(table)] = table
    return larger


def _drop(lanes: Lanes, sender: int, ordinal: int) -> Flight:
    lane = lanes[sender]
    flight = lane.pop(ordinal)
    if not lane:
        del lanes[sender]
    return flight


def _upto(lane: dict[int, Flight], ordinal: int) -> list[int]:
    """The ordinals of a lane up to this one. They were put in in order."""
    passed = []
    for one in lane:
        if one > ordinal:
            break
        passed.append(one)
    return passed


class State(Struct, array_like=True):
    """All of it. `clocks` and `highest` are n x n numbers."""

    version: int
    deliveries: int
    processes: list[Process]
    clocks: bytes
    highest: bytes
    flights: list[Flight]
    remembered: list[Flight]
    orphans: list[tuple[Id, set[int]]]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(State)

encode_state = _ENCODER.encode


def decode_state(snapshot: bytes) -> State:
    """The inverse. A snapshot of another version is refused."""
    try:
        state = _DECODER.decode(snapshot)
    except msgspec.MsgspecError as error:
        version = _version(snapshot)
        if version == VERSION:
            raise BadSnapshot(
                f"the checkpoint does not have the state of live verification: {error}"
            ) from None
        raise BadSnapshot.version("live verification", version, VERSION) from None
    if state.version != VERSION:
        raise BadSnapshot.version("live verification", state.version, VERSION)
    return state


def _version(snapshot: bytes) -> object:
    try:
        found = msgspec.msgpack.decode(snapshot)
    except msgspec.MsgspecError:
        return "none"
    return found[0] if isinstance(found, list) and found else "none"
