"""One receiver of a stream: its machine, how many it was given, and since when the rest waits.

The machine decides everything. Whatever it offers is delivered at once, first what was offered first: so the order of
delivery follows from the order of arrival alone, however the rows were cut into micro-batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from antecede.errors import NotEligible
from antecede.model import Effect, Id, Message, Packet
from antecede.protocols import restore
from antecede.protocols.machine import SNAPSHOT_VERSION
from antecede.protocols.receiver import Receiver
from antecede.spark.stream.settings import Settings

__all__ = ["Lane", "Output"]


class Output(NamedTuple):
    """A message that comes out; `lacks` are causes that were given up, as (sender, first, last, counted)."""

    lane: Lane
    position: int
    message: Message
    late: bool
    lacks: tuple[tuple[int, int, int, str], ...]


class Lane:
    """A receiver in a group of processes."""

    __slots__ = ("group", "machine", "position", "since")

    def __init__(self, group: str, machine: Receiver) -> None:
        self.group = group
        self.machine = machine
        self.position = 0
        """Of the next delivery."""
        self.since: dict[Id, int] = {}
        """Held message -> when it came, in milliseconds."""

    def take(self, packet: Packet[Any], now: int, out: list[Output]) -> None:
        """A packet arrives. One that cannot be is a `PeerError`, and changes nothing."""
        effects = self.machine.receive(packet)
        if effects:
            self._deliver(effects, out)
        message = packet.message
        if message is not None and self.machine.holds(message.id):
            self.since.setdefault(message.id, now)

    def _deliver(self, effects: Iterable[Effect], out: list[Output]) -> None:
        machine, queue = self.machine, deque(effects)
        while queue:
            message = queue.popleft()
            if not isinstance(message, Message):
                continue
            late, lacks = machine.late(message), machine.lacks(message)
            causes = tuple((a.sender, a.first, a.last, a.counted) for a in lacks)
            out.append(Output(self, self.position, message, late, causes))
            self.position += 1
            self.since.pop(message.id, None)
            queue += machine.deliver(message)

    def expire(self, now: int, patience: int, out: list[Output]) -> None:
        """Give up what messages have waited for too long."""
        while True:
            tired = [key for key, since in self.since.items() if since + patience <= now]
            if not tired or not self._give_up(tired, out):
                return

    def _give_up(self, tired: list[Id], out: list[Output]) -> bool:
        """Whether anything could be given up for these."""
        before = len(out)
        skipped = False
        for gap in self.machine.missing(tired):
            try:
                self._deliver(self.machine.skip(*gap), out)
                skipped = True
            except NotEligible:
                # Something that it follows is here, and goes first: the next round has it.
                continue
        return skipped or len(out) > before

    def dump(self) -> list[Any]:
        since = [[*key, since] for key, since in sorted(self.since.items())]
        return [self.group, self.machine.me, self.position, self.machine.snapshot()["state"], since]

    @classmethod
    def load(cls, settings: Settings, state: list[Any]) -> Lane:
        group, me, position, machine, since = state
        snapshot = {"antecede": SNAPSHOT_VERSION, "me": me, "state": machine, **settings.decided()}
        snapshot["view"] = snapshot.pop("processes")
        restored = restore(snapshot)
        assert isinstance(restored, Receiver)
        lane = cls(group, restored)
        lane.position = position
        lane.since = {(sender, number): came for sender, number, came in since}
        return lane
