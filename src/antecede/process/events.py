"""The events of a process that are in no trace yet: a part of its state, so that a crash loses none of them.

An event has its index in the process's own order, for ever, and the last time that the process was told. Whoever writes
a trace takes `events`, writes them, and says so by the input `Recorded`; what a crash comes between is written again.

>>> from antecede.model import Message
>>> record = Record(on=True)
>>> record.note(Time(5))
>>> for kind in ("send", "deliver"):
...     record.event(kind, Message(0, 1, (0,)))
>>> [(event.index, event.kind, event.time_ns) for event in record.events]
[(0, 'send', 5), (1, 'deliver', 5)]
>>> record.note(Recorded(1))
>>> [event.kind for event in Record.restore(record.snapshot()).events], record.index
(['deliver'], 2)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from antecede.model import Message
from antecede.process.inputs import Recorded, Time
from antecede.protocols.machine import plain, typed

__all__ = ["Entry", "Kind", "Record"]

Kind = Literal["send", "receive", "deliver"]


class Entry(Struct, frozen=True, gc=False, array_like=True):
    """One event."""

    index: int
    kind: Kind
    sender: int
    number: int
    to: tuple[int, ...]
    """On a send."""
    label: str
    time_ns: int


class Record:
    """What is kept of the events of one process."""

    def __init__(self, on: bool = False, index: int = 0, time_ns: int = 0) -> None:
        self.on = on
        self.index, self.time_ns = index, time_ns
        """Of the next event."""
        self.events: list[Entry] = []

    def event(self, kind: Kind, message: Message) -> None:
        if self.on:
            to = message.to if kind == "send" else ()
            entry = Entry(self.index, kind, message.sender, message.number, to, message.label, self.time_ns)
            self.events.append(entry)
            self.index += 1

    def note(self, given: Time | Recorded) -> None:
        if isinstance(given, Time):
            # A clock that is set back must not show events in another order than theirs.
            self.time_ns = max(self.time_ns, given.time_ns)
        elif self.events:
            del self.events[: max(0, given.index - self.events[0].index)]

    def snapshot(self) -> dict[str, Any]:
        return {"on": self.on, "index": self.index, "time_ns": self.time_ns, "events": plain(self.events)}

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> Record:
        record = cls(bool(snapshot["on"]), int(snapshot["index"]), int(snapshot["time_ns"]))
        record.events = typed(snapshot["events"], list[Entry])
        return record
