"""buffer: Mattern & Fünfrocken 1995, section 3.2: an output and an input buffer, and acknowledgements between them.

Rules (section 3.2)
  send             append to the output buffer
  post             transmit the head of the output buffer when the previous message has been acknowledged
  get              acknowledge; append to the input buffer
  deliver          the head of the input buffer, and only the head: nothing here tells which messages are concurrent

Footnote 4 (`pipelined=True`, needs channels that do not reorder): messages to the same destinations as those in
flight are posted without waiting.

Beyond the paper, which sends to one process:
- Multicast: the first to get a copy could answer to the second before the copy arrives there. So each copy stands in
  its place in the input buffer, closed, until every destination has acknowledged; then the sender releases it. It is
  acknowledged at arrival, so nothing deadlocks.
- A message of a process to itself goes to its input buffer at the send: whatever follows from it stands behind it.

A stamp has no entries.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec import Struct

from antecede.model import Awaited, Control, Effect, Id, Message, Packet, Stamp, View, Waiting, bits, mask
from antecede.protocols.queue import Queue

__all__ = ["Acknowledge", "Buffer", "Posted", "Release"]


class Posted(Stamp, frozen=True, gc=False):
    """A message on its way from an output buffer to an input buffer."""

    def entries(self, n: int) -> int:
        return 0


class Acknowledge(Control, frozen=True, gc=False):
    """The message with this number stands in the input buffer."""

    number: int


class Release(Control, frozen=True, gc=False):
    """Every destination has acknowledged the message with this number."""

    number: int


class Flight(Struct):
    message: Message
    unacknowledged: int
    """The destinations that have not acknowledged, as a set of bits."""


class Buffer(Queue):
    name = "buffer"
    stamps = (Posted, Acknowledge, Release)
    commuting = (Acknowledge, Release)
    state = {
        **Queue.state,
        "_output": deque[Message],
        "_flight": dict[int, Flight],
        "_got": list[int],
        "_closed": set[Id],
    }

    def __init__(self, view: View, me: str | int, pipelined: bool = False) -> None:
        super().__init__(view, me)
        self.pipelined = pipelined
        self._output: deque[Message] = deque()
        self._flight: dict[int, Flight] = {}
        self._got = [0] * self.n
        """The highest number got from each sender: with one in flight, or FIFO channels, numbers only grow."""
        self._closed: set[Id] = set()
        """Multicasts in the input buffer that are not released."""

    @property
    def parameters(self) -> dict[str, Any]:
        return {"pipelined": self.pipelined}

    @property
    def needs_fifo(self) -> bool:
        return self.pipelined

    # The output buffer

    def _send(self, message: Message) -> list[Effect]:
        effects: list[Effect] = self._enqueue(message) if self.me in message.to else []
        if message.to != (self.me,):
            self._output.append(message)
            effects += self._post()
        return effects

    def _post(self) -> list[Effect]:
        effects: list[Effect] = []
        output, me = self._output, self.me
        while output and self._may_post(output[0]):
            message = output.popleft()
            others = message.to if me not in message.to else tuple(dest for dest in message.to if dest != me)
            self._flight[message.number] = Flight(message, mask(others))
            for dest in others:
                effects.append(Packet(me, dest, Posted(), message))
        return effects

    def _may_post(self, message: Message) -> bool:
        if not self._flight:
            return True
        # All that is in flight has the same destinations, so the latest speaks for all.
        return self.pipelined and next(reversed(self._flight.values())).message.to == message.to

    def _note_acknowledged(self, source: int, number: int) -> list[Effect]:
        flight = self._flight.get(number)
        if flight is None:
            return []
        flight.unacknowledged &= ~(1 << source)
        if flight.unacknowledged:
            return []
        del self._flight[number]
        effects: list[Effect] = []
        if self._needs_release(flight.message):
            effects += [
                Packet(self.me, dest, Release(number)) for dest in flight.message.to if dest != self.me
            ]
        return effects + self._post()

    # The input buffer

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        stamp, source, message = packet.stamp, packet.source, packet.message
        if message is not None:
            if message.number <= self._got[source]:
                return []
            self._got[source] = message.number
            if self._needs_release(message):
                self._closed.add(message.id)
            effects: list[Effect] = [Packet(self.me, source, Acknowledge(message.number))]
            return effects + self._enqueue(message)
        if isinstance(stamp, Acknowledge):
            return self._note_acknowledged(source, stamp.number)
        released = (source, stamp.number)
        if released not in self._closed:
            return []
        self._closed.remove(released)
        return [self._inbox[0]] if self._inbox[0].id == released else []

    def _needs_release(self, message: Message) -> bool:
        """A message with one copy on the network cannot be overtaken by an answer to its other copies."""
        return len(message.to) > 2 or (len(message.to) == 2 and message.sender not in message.to)

    def _open(self, message: Message) -> bool:
        return not self._closed or message.id not in self._closed

    def _reason(self, message: Message) -> str:
        return f"until {self.view.name(message.sender)} knows that every destination has it"

    def forget(self, process: int) -> list[Effect]:
        """As if it had acknowledged all that we sent, and released all that it sent."""
        shut = bool(self._inbox) and not self._open(self._inbox[0])
        self._closed = {message for message in self._closed if message[0] != process}
        effects: list[Effect] = [self._inbox[0]] if shut and self._open(self._inbox[0]) else []
        for number in list(self._flight):
            effects += self._note_acknowledged(process, number)
        return effects

    def waiting(self) -> list[Waiting]:
        in_flight = tuple(Awaited(self.me, number, number) for number in sorted(self._flight))
        unacknowledged = mask(
            dest for flight in self._flight.values() for dest in bits(flight.unacknowledged)
        )
        names = ", ".join(self.view.name(dest) for dest in bits(unacknowledged))
        reason = f"in the output buffer until {names} has acknowledged"
        return super().waiting() + [Waiting(message, in_flight, "unsent", reason) for message in self._output]

    def _check(self, packet: Packet[Any]) -> None:
        stamp = packet.stamp
        if isinstance(stamp, Acknowledge) and stamp.number > self.sent:
            raise self._bad_stamp(
                packet, f"it acknowledges message {stamp.number}, and the last one sent is {self.sent}"
            )
