"""What a stream says of itself after each micro-batch, and the directory in which it says it.

One file a micro-batch, `00000000000000000042.json`, whole once visible, and only the newest are kept: whoever looks
needs no query to answer, and a query that runs for months leaves no more than one that ran for an hour.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from antecede.errors import CannotWrite

__all__ = ["CAUSES_MOST", "KEPT", "Board", "Cause", "Found", "Status", "describe_causes"]

KEPT: Final = 600
"""Files: ten minutes of micro-batches of a second."""

CAUSES_MOST: Final = 20
"""Causes that a status names: there may be more."""
PROCESSES_MOST: Final = 64
"""What a status tells one by one. Beyond that it tells how many more there are."""


class Cause(Struct, frozen=True):
    """A cause that has not come: messages `first` to `last` of a sender, and how many are held for it at a receiver."""

    receiver: str
    sender: str
    first: int
    last: int
    held: int
    since_ms: int
    """When the first of those came, in the time of the wall."""
    group: str = ""
    """Which of several systems of the same processes."""
    counted: str = "sender"
    """By whose count: `sender` or `channel`, as `antecede.model.Awaited` has it. `id`: `sender` is an identifier.
    `cycle`: `sender` is a cycle of identifiers that are here, `a -> b -> a`."""

    @property
    def words(self) -> str:
        """What has not come.

        >>> lost = Cause(receiver="p4", sender="p8", first=89, last=89, held=7, since_ms=0)
        >>> lost.words, msgspec.structs.replace(lost, first=14, last=14, counted="channel").words
        ('p8 89', 'the 14th message from p8 to p4')
        """
        if self.counted in ("id", "cycle"):
            return self.sender
        alone = self.first == self.last
        if self.counted == "channel":
            which = (
                name_ordinal(self.first)
                if alone
                else f"{name_ordinal(self.first)} to {name_ordinal(self.last)}"
            )
            return f"the {which} message from {self.sender} to {self.receiver}"
        return f"{self.sender} {self.first}" if alone else f"{self.sender} {self.first}–{self.last}"

    @property
    def place(self) -> str:
        """Where they are held. A partition of rows is the list of its values, as JSON.

        >>> Cause(receiver='["eu", 7]', sender="m1", first=0, last=0, held=1, since_ms=0, counted="id").place
        'eu, 7'
        """
        values = [self.receiver]
        if self.receiver.startswith("["):
            with suppress(ValueError):
                values = json.loads(self.receiver)
        return ", ".join(map(str, [*values, self.group] if self.group else values))


def name_ordinal(number: int) -> str:
    """
    >>> [name_ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 112)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '112th']
    """
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ends.get(number % 10, 'th')}"


def describe_causes(causes: Sequence[Cause], held: int, shown: int = 3) -> str:
    """What holds up those that are held.

    >>> lost = [Cause("p4", "p8", 89, 89, 1000, 0), Cause("p1", "p2", 7, 8, 370, 0)]
    >>> describe_causes(lost, 1370)
    '3 messages hold up 1,370: p8 89, p2 7–8'
    >>> describe_causes(lost[:1], 1)
    '1 message holds up 1: p8 89'
    >>> describe_causes([Cause("", "a -> b -> a", 0, 0, 2, 0, counted="cycle"), *lost], 1372)
    '3 messages and 1 cycle hold up 1,372: a -> b -> a, p8 89, p2 7–8'
    >>> describe_causes([Cause(place, "root", 0, 0, 1, 0, counted="id") for place in "abcdefghijklmnopqrst"], 62)
    'at least 20 messages hold up 62: root'
    """
    cycles = sum(cause.counted == "cycle" for cause in causes)
    many = sum(cause.last - cause.first + 1 for cause in causes) - cycles
    counted = ((many, "message"), (cycles, "cycle"))
    parts = [f"{count:,} {what}{'' if count == 1 else 's'}" for count, what in counted if count]
    words = list(dict.fromkeys(cause.words for cause in causes))
    names = ", ".join(words[:shown]) + (", ..." if len(words) > shown else "")
    hold = "holds" if many + cycles == 1 else "hold"
    least = "at least " if len(causes) >= CAUSES_MOST else ""
    return f"{least}{' and '.join(parts)} {hold} up {held:,}: {names}"


class Found(Struct, frozen=True):
    """Something that live verification found."""

    run: str
    kind: str
    process: str
    sender: str | None = None
    number: int | None = None
    by_sender: str | None = None
    by_number: int | None = None


class Status(Struct, frozen=True, kw_only=True):
    """A query after one micro-batch. Counts with `all_` are since the first batch."""

    query: str
    batch: int
    time_ms: int
    """When the batch ended, in the time of the wall."""
    duration_ms: int
    rows_in: int
    rows_out: int
    held: int = 0
    oldest_ms: int | None = None
    """Since when the oldest of those waits."""
    causes: tuple[Cause, ...] = ()
    """What they wait for, that with the most held first."""
    frontier: dict[str, dict[str, int]] = {}
    """Receiver -> sender -> how much of that sender's it has delivered, by the protocol's own count."""
    more_receivers: int = 0
    all_given_up: int = 0
    all_late: int = 0
    all_refused: int = 0
    all_found: int = 0
    found: tuple[Found, ...] = ()
    """The newest findings."""
    ended: str | None = None
    """Why the query is at its end, if it is."""


ENCODER: Final = msgspec.json.Encoder()
DECODER: Final = msgspec.json.Decoder(Status)


class Board:
    """The directory, for who writes and for who reads.

    >>> import tempfile
    >>> board = Board(tempfile.mkdtemp())
    >>> for batch in range(3):
    ...     board.write(Status(query="q", batch=batch, time_ms=0, duration_ms=9, rows_in=1, rows_out=1), keep=2)
    >>> [status.batch for status in board.read()], [status.batch for status in board.read(after=1)]
    ([1, 2], [2])
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    def write(self, status: Status, keep: int = KEPT) -> None:
        """A batch that was done before, and is done again after a crash, replaces what it said then."""
        path = self.directory / f"{status.batch:020}.json"
        aside = path.with_suffix(f".{os.getpid()}.part")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            aside.write_bytes(ENCODER.encode(status))
            aside.replace(path)
            for old in self._list_files()[:-keep]:
                old.unlink(missing_ok=True)
        except OSError as error:
            with suppress(OSError):
                aside.unlink()
            raise CannotWrite(
                str(path), error.strerror or str(error), "the status of a stream is lost"
            ) from None

    def read(self, after: int = -1, most: int = KEPT) -> list[Status]:
        """The newest, of later batches than `after`, in order. What is no status is passed over."""
        found = []
        for path in self._list_files()[-most:]:
            if int(path.stem) > after and (status := _read_status(path)) is not None:
                found.append(status)
        return found

    def _list_files(self) -> list[Path]:
        return sorted(path for path in self.directory.glob("*.json") if path.stem.isdigit())


def _read_status(path: Path) -> Status | None:
    try:
        return DECODER.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):  # Removed since it was listed, or somebody else's.
        return None
