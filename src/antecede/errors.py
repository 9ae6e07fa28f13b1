"""One tree of errors. The class says whose fault it was, `place` where, and `reason` what is wrong and what to do.

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
    ├── BadMachine
    ├── BadTrace
    └── BadRun

A raised error leaves the machine as it was. Broken invariants are assertions: bugs, not errors.

A reason is a sentence: what was given, and what must be given instead ("queue must be 1 or more, not 0").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Self

__all__ = [
    "AntecedeError",
    "BadExperiment",
    "BadConfig",
    "BadFrame",
    "BadHello",
    "BadJournal",
    "BadMachine",
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
    "WrongType",
]


def show_place(place: str) -> str:
    """A place for people: a file on this machine's disk by its path, however it was asked for.

    >>> show_place("file:///tmp/a.csv, line 3"), show_place("s3a://lake/trace")
    ('/tmp/a.csv, line 3', 's3a://lake/trace')
    """
    return re.sub("^file:/+", "/", place)


class AntecedeError(Exception):
    """The root of every error that Antecede raises on purpose."""


class AtPlace(AntecedeError):
    """Something is wrong at a place: a call, a file, a line, a key. `reason` is a sentence about it."""

    joint: ClassVar[str] = ": "

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = show_place(place), reason
        super().__init__(f"{self.place}{self.joint}{reason}")


class CallerError(AntecedeError):
    """The caller asked for something that cannot be."""


class WrongType(CallerError, TypeError):
    """An argument is of another type than a call takes. The sentence says what to give instead."""

    def __init__(self, what: str, expected: str, found: object, hint: str = "") -> None:
        # The name of its type alone: an error that is kept must not keep what was given alive.
        self.what, self.expected, self.found, self.hint = what, expected, type(found).__name__, hint
        super().__init__(f"{what} is {expected}, not {self.found}" + (f": {hint}" if hint else ""))


class PeerError(AntecedeError):
    """A peer sent something wrong."""


class InputError(AntecedeError):
    """A file or value that was read is wrong."""


class FromPeer(PeerError):
    """A peer sent something wrong. `reason` is a sentence about it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


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


class BadParameter(AtPlace, CallerError):
    """A protocol, a topology or a call cannot take this parameter. `place` is the call or what it makes."""

    @classmethod
    def choice(cls, place: str, what: str, given: object, known: Iterable[str]) -> Self:
        """None of the values that there are.

        >>> print(BadParameter.choice("order", "--by", "time", ("receiver", "closed")))
        order: --by must be one of receiver, closed, not 'time'
        """
        return cls(place, f"{what} must be one of {', '.join(known)}, not {given!r}")


class CannotWrite(CallerError, OSError):
    """The disk is full, or this process may not write there."""

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
    """A node was used in another event loop, or another thread, than the one that started it."""

    def __init__(self, node: str) -> None:
        self.node = node
        super().__init__(
            f"node {node} runs in another event loop: use it in the one, and the thread, that started it"
        )


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


class Unsupported(AtPlace, CallerError):
    """The protocol does not offer this: labels, a set of destinations, and so on."""


class NoSpark(AtPlace, CallerError):
    """Spark does not start, or is not where it was said to be. Its sentence begins with the Spark that was asked."""

    joint = " "


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

    def __init__(self, process: str, source: str, reason: str) -> None:
        self.process, self.source, self.reason = process, source, reason
        super().__init__(f"{process} refused a packet of {source}: {reason}")


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
    """The bytes are not a packet: they are garbage, truncated, too large, or of another version."""

    def __init__(self, reason: str, at: int | None = None) -> None:
        self.at = at
        super().__init__(reason)

    def __str__(self) -> str:
        return self.reason if self.at is None else f"not a packet at byte {self.at}: {self.reason}"


class BadConfig(AtPlace, InputError):
    """A configuration describes no node."""


class BadJournal(AtPlace, InputError):
    """A journal is damaged, in use, or belongs to another node. Its sentence begins with the journal."""

    joint = " "


class BadSnapshot(InputError):
    """A snapshot has another protocol, process, view or version. `reason` is a sentence about it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    @classmethod
    def changed(cls, what: str, found: object, wanted: object) -> Self:
        """A checkpoint of a stream with other settings.

        >>> print(BadSnapshot.changed("buckets", 16, 4))
        the checkpoint was written with buckets 16, not 4: give the query the same, or a new checkpoint
        """
        return cls(
            f"the checkpoint was written with {what} {found}, not {wanted}: give the query the "
            "same, or a new checkpoint"
        )

    @classmethod
    def version(cls, what: str, found: object, known: object) -> Self:
        """A version that this release does not read.

        >>> print(BadSnapshot.version("the link", 9, "1 to 3"))
        the link has a snapshot of version 9; this release reads version 1 to 3: take a release that reads version 9
        """
        return cls(
            f"{what} has a snapshot of version {found}; this release reads version {known}: "
            f"take a release that reads version {found}"
        )


class BadProgram(AtPlace, InputError):
    """A program for the explorer cannot be run."""


class BadMachine(AtPlace, InputError):
    """A file that was named as a protocol has no machine that can run, or its code raised an error."""


class BadExperiment(AtPlace, InputError):
    """An experiment file describes no runs. Its sentence begins with the place."""

    joint = " "


class BadTrace(AtPlace, InputError):
    """A trace is incomplete or damaged, or there is none."""


class BadRun(AtPlace, InputError):
    """Events cannot be a run."""
