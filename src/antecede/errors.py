"""One tree of errors. Each says whose fault it was, with the facts as fields.

AntecedeError
├── CallerError
│   ├── UnknownProcess
│   ├── NoDestination
│   ├── BadParameter
│   ├── CannotWrite
│   ├── CannotListen
│   ├── NoSpark
│   ├── Closed
│   ├── WrongLoop
│   ├── NotDrained
│   ├── NotMember
│   ├── Unsupported
│   └── NotEligible
├── PeerError
│   ├── Misrouted
│   ├── BadStamp
│   ├── BadHello
│   ├── Refused
│   ├── BadFrame
│   └── WireError
├── NodeFailed
└── InputError
    ├── BadConfig
    ├── BadJournal
    ├── BadSnapshot
    ├── BadProgram
    ├── BadExperiment
    ├── BadTrace
    └── BadRun

A raised error leaves the machine as it was. Broken invariants are assertions: bugs, not errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

__all__ = [
    "AntecedeError",
    "BadExperiment",
    "BadConfig",
    "BadFrame",
    "BadHello",
    "BadJournal",
    "BadParameter",
    "BadProgram",
    "BadRun",
    "BadSnapshot",
    "BadStamp",
    "BadTrace",
    "CallerError",
    "CannotListen",
    "CannotWrite",
    "Closed",
    "InputError",
    "Misrouted",
    "NoDestination",
    "NoSpark",
    "NodeFailed",
    "NotDrained",
    "NotEligible",
    "NotMember",
    "PeerError",
    "Refused",
    "UnknownProcess",
    "Unsupported",
    "WireError",
    "WrongLoop",
]


class AntecedeError(Exception):
    """The root of every error that Antecede raises on purpose."""


class CallerError(AntecedeError):
    """The caller asked for something that cannot be."""


class PeerError(AntecedeError):
    """A peer sent something wrong."""


class InputError(AntecedeError):
    """A file or value that was read is wrong."""


class FromPeer(PeerError):
    """A peer sent something wrong. `reason` is a sentence about it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class AtPlace(InputError):
    """An input is wrong at a place: a file, a line, a key. `reason` is a sentence about that place."""

    joint: ClassVar[str] = ": "

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(f"{place}{self.joint}{reason}")


class UnknownProcess(CallerError):
    """A name or number is not in the view."""

    def __init__(self, process: str | int, view: Sequence[str]) -> None:
        self.process = process
        self.view = tuple(view)
        shown = ", ".join(self.view[:8]) + (", ..." if len(self.view) > 8 else "")
        super().__init__(f"process {process!r} is not in the view of {len(self.view)} ({shown})")


class NoDestination(CallerError):
    """A message has no destination."""

    def __init__(self, sender: str) -> None:
        self.sender = sender
        super().__init__(f"{sender} sends to nobody: a message needs at least one destination")


class BadParameter(CallerError):
    """A protocol, a topology or a call cannot be built with this parameter."""

    def __init__(self, owner: str, parameter: str, found: object, expected: str) -> None:
        self.owner, self.parameter, self.found, self.expected = owner, parameter, found, expected
        super().__init__(f"{owner}: {parameter} is {found}, expected {expected}")


class CannotWrite(CallerError, OSError):
    """There is no room, or no right, to write there."""

    def __init__(self, place: str, reason: str, left: str) -> None:
        self.place, self.reason, self.left = place, reason, left
        super().__init__(f"{place}: cannot write: {reason}; {left}")


class CannotListen(CallerError, OSError):
    """An address is taken, or does not belong to this machine."""

    def __init__(self, owner: str, address: str, reason: str) -> None:
        self.owner, self.address, self.reason = owner, address, reason
        super().__init__(f"{owner}: cannot listen at {address}: {reason}")


class Closed(CallerError):
    """The application closed this node, or has not started it."""

    def __init__(self, node: str, why: str) -> None:
        self.node, self.why = node, why
        super().__init__(f"node {node} {why}")


class WrongLoop(CallerError):
    """A node was used in another event loop than the one that started it."""

    def __init__(self, node: str) -> None:
        self.node = node
        super().__init__(f"node {node} runs in another event loop: use it in the one that started it")


class NotDrained(CallerError):
    """The node was closed before its peers had all that it sent.

    `left` has the number of messages that each peer did not acknowledge.
    """

    def __init__(self, node: str, left: Mapping[str, int]) -> None:
        self.node, self.left = node, dict(left)
        told = ", ".join(f"{count} by {name}" for name, count in self.left.items())
        super().__init__(f"node {node} was closed before all messages were acknowledged: {told} were not")


class NotMember(CallerError):
    """The node left, was removed, or never became a member."""

    def __init__(self, node: str, why: str) -> None:
        self.node, self.why = node, why
        super().__init__(f"node {node} {why}")


class NodeFailed(AntecedeError):
    """A node stopped, because something happened that nobody expected.

    `during` says what the node was doing; `cause` is what happened, and `__cause__` too.
    """

    def __init__(self, node: str, during: str, cause: BaseException) -> None:
        self.node, self.during, self.cause = node, during, cause
        self.__cause__ = cause
        super().__init__(f"node {node} failed {during}: {type(cause).__name__}: {cause}"[:1000])


class Unsupported(CallerError):
    """The protocol does not offer this: labels, a set of destinations, and so on."""

    def __init__(self, protocol: str, what: str) -> None:
        self.protocol, self.what = protocol, what
        super().__init__(f"{protocol}: {what}")


class NoSpark(CallerError):
    """Spark does not start, or is not where it was said to be."""

    def __init__(self, which: str, why: str) -> None:
        self.which, self.why = which, why
        super().__init__(f"{which}: {why}")


class NotEligible(CallerError):
    """The message may not be delivered now."""

    def __init__(self, process: str, message: tuple[int, int], why: str) -> None:
        self.process, self.message, self.why = process, message, why
        super().__init__(f"{process} cannot deliver message {message[1]} of #{message[0]} now: {why}")


class Misrouted(PeerError):
    """A packet is for another process, or comes from outside the view."""

    def __init__(self, process: str, reason: str) -> None:
        self.process, self.reason = process, reason
        super().__init__(f"{process} refused a packet: {reason}")


class BadStamp(PeerError):
    """A stamp has another protocol or size, or contradicts its message."""

    def __init__(self, process: str, source: str, found: str, expected: str) -> None:
        self.process, self.source, self.found, self.expected = process, source, found, expected
        super().__init__(f"{process} refused a packet of {source}: stamp {found}, expected {expected}")


class Refused(PeerError):
    """A peer sent what no sound process sends, and is heard no more.

    `kind` is the error for which it was refused, and `why` its sentence.
    """

    def __init__(self, peer: str, kind: str, why: str) -> None:
        self.peer, self.kind, self.why = peer, kind, why
        super().__init__(f"{peer} is refused for good: {why}")


class BadFrame(FromPeer):
    """A peer sent a frame that no sound end of a link sends: one of the two has lost its state."""


class BadHello(FromPeer):
    """A peer has another name, view, protocol or version, or cannot prove its name."""


class WireError(FromPeer):
    """Bytes are no packet: garbage, truncated, too large, or of another version."""

    def __init__(self, reason: str, at: int | None = None) -> None:
        self.at = at
        super().__init__(reason)

    def __str__(self) -> str:
        return self.reason if self.at is None else f"not a packet at byte {self.at}: {self.reason}"


class BadConfig(AtPlace):
    """A configuration describes no node."""


class BadJournal(AtPlace):
    """A journal is damaged, in use, or belongs to another node. Its sentence begins with the journal."""

    joint = " "


class BadSnapshot(InputError):
    """A snapshot has another protocol, process, view or version."""

    def __init__(self, field: str, found: object, expected: object) -> None:
        self.field, self.found, self.expected = field, found, expected
        super().__init__(f"snapshot: {field} is {found!r}, expected {expected!r}")


class BadProgram(AtPlace):
    """A program for the explorer cannot be run."""


class BadExperiment(AtPlace):
    """An experiment file describes no runs."""


class BadTrace(InputError):
    """A trace is incomplete, damaged, or no trace."""

    def __init__(self, place: str, found: str, expected: str) -> None:
        self.place, self.found, self.expected = place, found, expected
        super().__init__(f"{place}: found {found}, expected {expected}")


class BadRun(AtPlace):
    """Events cannot be a run."""
