"""One tree of errors. Each says whose fault it was, with the facts as fields.

AntecedeError
├── CallerError               the program that uses Antecede asked for something that cannot be
│   ├── UnknownProcess        a name or number that is not in the view
│   ├── NoDestination         a message to nobody
│   ├── BadParameter          a protocol or topology cannot be built like this
│   ├── CannotWrite           there is no room, or no right, to write there; an OSError too
│   ├── CannotListen          an address is taken, or is none of this machine; an OSError too
│   ├── NoSpark               Spark does not start, or is not where it was said to be
│   ├── Closed                a node that its application closed, or has not started, is asked for something
│   ├── WrongLoop             a node is asked for something in another event loop than its own
│   ├── NotDrained            a node was closed before its peers had all that it sent, and was to say so
│   ├── NotMember             a node that left, was removed, or never became a member is asked for something
│   ├── Unsupported           the protocol does not offer this (labels, a set of destinations ...)
│   └── NotEligible           a delivery of a message that may not be delivered now
├── PeerError                 another process, or whoever claims to be one, sent something wrong
│   ├── Misrouted             a packet for someone else, or from outside the view
│   ├── BadStamp              a stamp of another protocol, of another size, or that contradicts its message
│   ├── BadHello              a peer of another name, view, protocol or version, or one that cannot prove its name
│   ├── Refused               a peer that sent what no sound process sends, and is heard no more
│   ├── BadFrame              a frame that no sound end of a link sends: one of the two has lost its state
│   └── WireError             bytes that are no packet: garbage, truncated, too large, another version
├── NodeFailed                a node stopped, because something happened that nobody expected: its `__cause__`
└── InputError                a file or a value that was read is wrong
    ├── BadConfig             a configuration that describes no node
    ├── BadJournal            a journal that is damaged, in use, or another node's
    ├── BadSnapshot           a snapshot of another protocol, process, view or version
    ├── BadProgram            a program for the explorer that cannot be run
    ├── BadExperiment         an experiment file that describes no runs
    ├── BadTrace              a trace that is incomplete, damaged, or no trace
    └── BadRun                events that cannot be a run

A raised error leaves the machine as it was. Broken invariants are assertions: bugs, not errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


class UnknownProcess(CallerError):
    def __init__(self, process: str | int, view: Sequence[str]) -> None:
        self.process = process
        self.view = tuple(view)
        shown = ", ".join(self.view[:8]) + (", ..." if len(self.view) > 8 else "")
        super().__init__(f"process {process!r} is not in the view of {len(self.view)} ({shown})")


class NoDestination(CallerError):
    def __init__(self, sender: str) -> None:
        self.sender = sender
        super().__init__(f"{sender} sends to nobody: a message needs at least one destination")


class BadParameter(CallerError):
    def __init__(self, owner: str, parameter: str, found: object, expected: str) -> None:
        self.owner, self.parameter, self.found, self.expected = owner, parameter, found, expected
        super().__init__(f"{owner}: {parameter} is {found}, expected {expected}")


class CannotWrite(CallerError, OSError):
    def __init__(self, place: str, reason: str, left: str) -> None:
        self.place, self.reason, self.left = place, reason, left
        super().__init__(f"{place}: cannot write: {reason}; {left}")


class CannotListen(CallerError, OSError):
    def __init__(self, owner: str, address: str, reason: str) -> None:
        self.owner, self.address, self.reason = owner, address, reason
        super().__init__(f"{owner}: cannot listen at {address}: {reason}")


class Closed(CallerError):
    def __init__(self, node: str, why: str) -> None:
        self.node, self.why = node, why
        super().__init__(f"node {node} {why}")


class WrongLoop(CallerError):
    def __init__(self, node: str) -> None:
        self.node = node
        super().__init__(f"node {node} runs in another event loop: use it in the one that started it")


class NotDrained(CallerError):
    """`left` has the number of messages that each peer did not acknowledge."""

    def __init__(self, node: str, left: Mapping[str, int]) -> None:
        self.node, self.left = node, dict(left)
        told = ", ".join(f"{count} by {name}" for name, count in self.left.items())
        super().__init__(f"node {node} was closed before all messages were acknowledged: {told} were not")


class NotMember(CallerError):
    def __init__(self, node: str, why: str) -> None:
        self.node, self.why = node, why
        super().__init__(f"node {node} {why}")


class NodeFailed(AntecedeError):
    """`during` says what the node was doing; `cause` is what happened, and `__cause__` too."""

    def __init__(self, node: str, during: str, cause: BaseException) -> None:
        self.node, self.during, self.cause = node, during, cause
        self.__cause__ = cause
        super().__init__(f"node {node} failed {during}: {type(cause).__name__}: {cause}"[:1000])


class Unsupported(CallerError):
    def __init__(self, protocol: str, what: str) -> None:
        self.protocol, self.what = protocol, what
        super().__init__(f"{protocol}: {what}")


class NoSpark(CallerError):
    def __init__(self, which: str, why: str) -> None:
        self.which, self.why = which, why
        super().__init__(f"{which}: {why}")


class NotEligible(CallerError):
    def __init__(self, process: str, message: tuple[int, int], why: str) -> None:
        self.process, self.message, self.why = process, message, why
        super().__init__(f"{process} cannot deliver message {message[1]} of #{message[0]} now: {why}")


class Misrouted(PeerError):
    def __init__(self, process: str, found: str, expected: str) -> None:
        self.process, self.found, self.expected = process, found, expected
        super().__init__(f"{process} refused a packet {found}, expected {expected}")


class BadStamp(PeerError):
    def __init__(self, process: str, source: str, found: str, expected: str) -> None:
        self.process, self.source, self.found, self.expected = process, source, found, expected
        super().__init__(f"{process} refused a packet of {source}: stamp {found}, expected {expected}")


class Refused(PeerError):
    """`kind` is the error for which it was refused, and `why` its sentence."""

    def __init__(self, peer: str, kind: str, why: str) -> None:
        self.peer, self.kind, self.why = peer, kind, why
        super().__init__(f"{peer} is refused for good: {why}")


class BadFrame(PeerError):
    def __init__(self, found: str, expected: str) -> None:
        self.found, self.expected = found, expected
        super().__init__(f"refused a frame: found {found}, expected {expected}")


class BadHello(PeerError):
    def __init__(self, found: str, expected: str) -> None:
        self.found, self.expected = found, expected
        super().__init__(f"refused a peer: found {found}, expected {expected}")


class WireError(PeerError):
    def __init__(self, found: str, expected: str, at: int | None = None) -> None:
        self.found, self.expected, self.at = found, expected, at
        place = "" if at is None else f" at byte {at}"
        super().__init__(f"not a packet{place}: found {found}, expected {expected}")


class BadConfig(InputError):
    def __init__(self, place: str, found: str, expected: str) -> None:
        self.place, self.found, self.expected = place, found, expected
        super().__init__(f"{place}: found {found}, expected {expected}")


class BadJournal(InputError):
    def __init__(self, place: str, found: str, expected: str) -> None:
        self.place, self.found, self.expected = place, found, expected
        super().__init__(f"{place}: found {found}, expected {expected}")


class BadSnapshot(InputError):
    def __init__(self, field: str, found: object, expected: object) -> None:
        self.field, self.found, self.expected = field, found, expected
        super().__init__(f"snapshot: {field} is {found!r}, expected {expected!r}")


class BadProgram(InputError):
    def __init__(self, place: str, found: str, expected: str) -> None:
        self.place, self.found, self.expected = place, found, expected
        super().__init__(f"{place}: found {found}, expected {expected}")


class BadExperiment(InputError):
    def __init__(self, place: str, found: str, expected: str) -> None:
        self.place, self.found, self.expected = place, found, expected
        super().__init__(f"{place}: found {found}, expected {expected}")


class BadTrace(InputError):
    def __init__(self, place: str, found: str, expected: str) -> None:
        self.place, self.found, self.expected = place, found, expected
        super().__init__(f"{place}: found {found}, expected {expected}")


class BadRun(InputError):
    def __init__(self, place: str, found: str, expected: str) -> None:
        self.place, self.found, self.expected = place, found, expected
        super().__init__(f"{place}: found {found}, expected {expected}")
