"""The four things that packets are made of, to bytes and back: numbers, sets of processes, counts and text.

uint      an unsigned integer below 2**63, seven bits a byte, lowest first, the high bit set on all but the last byte
          (LEB128), in the fewest bytes: at most nine. 2**63, because a trace holds numbers as signed 64-bit integers.
set       a set of processes: uint h; h & 3 is the form, h >> 2 its size k
            0  the first k processes
            1  process k alone
            2  a bitmap of k bytes, process p being bit p % 8 of byte p // 8; the last byte is not zero
            3  k uints: the least member, then for each next one how many processes it leaves out
          Form 0 if it fits, else 1 if it fits, else 2 unless it is longer than k of form 3, else 3.
counts    positive uints, one after the other; how many is known from what stands before
vector    n counts, where n is known: the set of those that are not zero, then these
text      uint length, UTF-8
blob      uint length, bytes

One value has one encoding: a reader refuses every other. `Limits` are looked at before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress, count
from typing import NoReturn

from msgspec import Struct
from msgspec.structs import asdict

from antecede.errors import BadParameter, WireError, WrongType
from antecede.model import bits

__all__ = ["MAX_UINT", "OWN", "Limits", "Reader", "Writer", "check_count", "list_members"]

MAX_UINT = (1 << 63) - 1
ROOM = 256
"""Bytes of a packet besides its payload, label, context, destinations and a stamp that grows with the view."""
FIRST, ONE, BITMAP, LIST = range(4)
SMALL = 1024
"""Sets of so many processes are not counted: a packet has no room for enough of them."""
SPREAD = 32
"""The larger sets of a packet take at most so many times `packet_bytes` in memory: three bytes can mean 8 KiB."""
_DIGITS = bytes.maketrans(b"01", b"\0\1")


class Limits(Struct, frozen=True, gc=False):
    """How large a packet may be. The defaults let a whole matrix of 1024 processes pass.

    >>> Limits(processes=8)
    Limits(packet_bytes=4194304, payload_bytes=1048576, processes=8, entries=1048576, label_bytes=1024)
    """

    packet_bytes: int = 4 << 20
    payload_bytes: int = 1 << 20
    processes: int = 1 << 16
    """The size of the view: a process is a number below it."""
    entries: int = 1 << 20
    """Of a stamp: identifiers of a history or a log, counts of a vector or a matrix."""
    label_bytes: int = 1024

    def check(self) -> None:
        """Refuse limits under which a payload of the largest size would not fit into a packet.

        A stamp that grows (a matrix, a history) may still not fit: then the `send` is refused that would make it.

        >>> Limits(payload_bytes=8 << 20).check()
        Traceback (most recent call last):
        antecede.errors.BadParameter: limits: packet_bytes must be 8399104 or more for payload_bytes, not 4194304
        """
        for name, value in asdict(self).items():
            check_count("limits", name, value)
        least = self.payload_bytes + 2 * self.label_bytes + self.processes // 8 + ROOM
        if self.packet_bytes < least:
            raise BadParameter(
                "limits", f"packet_bytes must be {least} or more for payload_bytes, not {self.packet_bytes}"
            )

    def widen(self, other: Limits) -> Limits:
        """The limits that let everything pass that one of both lets pass.

        >>> Limits(packet_bytes=100, processes=9).widen(Limits(packet_bytes=200, processes=8)).processes
        9
        """
        mine, theirs = asdict(self), asdict(other)
        return Limits(**{name: max(value, theirs[name]) for name, value in mine.items()})


def check_count(place: str, name: str, value: object) -> None:
    """Refuse what is no number of things: a journal keeps it, and is read by its type."""
    if type(value) is not int:
        raise WrongType(f"{place}.{name}", "a whole number", value)
    if not 1 <= value <= MAX_UINT:
        raise BadParameter(
            place, f"{name} must be {'1 or more' if value < 1 else 'below 2**63'}, not {value}"
        )


OWN = Limits(MAX_UINT, MAX_UINT, MAX_UINT, MAX_UINT, MAX_UINT)
"""For what this process has written itself, under whatever limits there were then."""


def _most(limits: Limits) -> str:
    return f"at most {SPREAD * limits.packet_bytes}"


def _header(members: int) -> int:
    """The uint that a set starts with."""
    size, k = members.bit_length(), members.bit_count()
    if k == size:
        return k << 2 | FIRST
    if k == 1:
        return (size - 1) << 2 | ONE
    length = (size + 7) >> 3
    return length << 2 | BITMAP if length <= k else k << 2 | LIST


def list_members(members: int) -> Iterable[int]:
    """`bits`, but the time does not grow with the number of members where that is large."""
    if members.bit_count() << 3 < members.bit_length():
        return bits(members)
    return compress(count(), bin(members)[:1:-1].encode().translate(_DIGITS))


class Writer:
    """Values to bytes. What cannot be written, or would not be read again, is the caller's error."""

    __slots__ = ("limits", "out", "room")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.out = bytearray()
        self.room = SPREAD * limits.packet_bytes
        """Bytes that sets may still take in memory."""

    def uint(self, value: int) -> None:
        if 0 <= value < 128:
            self.out.append(value)
            return
        if not 0 <= value <= MAX_UINT:
            raise BadParameter("packet", f"a number must be 0 or more and below 2**63, not {value}")
        while value > 127:
            self.out.append(value & 127 | 128)
            value >>= 7
        self.out.append(value)

    def process(self, process: int) -> None:
        if not 0 <= process < self.limits.processes:
            self.refuse(f"a process must be 0 or more and below {self.limits.processes}, not {process}")
        self.uint(process)

    def members(self, members: int) -> None:
        """A set as the bits of an integer."""
        if members < 0 or members.bit_length() > self.limits.processes:
            found = members.bit_length() - 1 if members >= 0 else members
            self.refuse(f"a process must be 0 or more and below {self.limits.processes}, not {found}")
        if members.bit_length() > SMALL:
            self.room -= members.bit_length() >> 3
            if self.room < 0:
                self.refuse(
                    f"large sets in its stamp take more memory than is allowed: {_most(self.limits)} bytes"
                )
        header = _header(members)
        self.uint(header)
        if header & 3 == BITMAP:
            self.out += members.to_bytes(header >> 2, "little")
        elif header & 3 == LIST:
            expected = 0
            for member in bits(members):
                self.uint(member - expected)
                expected = member + 1

    def counts(self, values: Sequence[int]) -> None:
        if not values:
            return
        if min(values) < 1:
            self.refuse(f"a count must be 1 or more, not {min(values)}")
        if max(values) < 128:
            self.out += bytes(values)
            return
        for value in values:
            self.uint(value)

    def vector(self, values: Sequence[int]) -> None:
        if 0 not in values:
            self.members((1 << len(values)) - 1)
            self.counts(values)
            return
        self.members(int("0" + "".join(["1" if value else "0" for value in reversed(values)]), 2))
        self.counts([value for value in values if value])

    def text(self, text: str) -> None:
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise BadParameter(
                "packet", f"the label must be Unicode text, and {text!r} is not: {error.reason}"
            ) from error
        if len(raw) > self.limits.label_bytes:
            self.refuse(f"the label has {len(raw)} bytes, and may have {self.limits.label_bytes}")
        self.uint(len(raw))
        self.out += raw

    def blob(self, raw: bytes) -> None:
        if len(raw) > self.limits.payload_bytes:
            self.refuse(f"the payload has {len(raw)} bytes, and may have {self.limits.payload_bytes}")
        self.uint(len(raw))
        self.out += raw

    def reserve(self, entries: int) -> None:
        """A stamp with so many entries is being written."""
        if entries > self.limits.entries:
            self.refuse(f"the stamp has {entries} entries, and may have {self.limits.entries}")

    def refuse(self, reason: str) -> NoReturn:
        raise BadParameter("packet", reason)


class Reader:
    """Bytes to values. Bytes that `Writer` would not have written are refused with their place."""

    __slots__ = ("at", "data", "limits", "room")

    def __init__(self, data: bytes | memoryview, limits: Limits) -> None:
        self.data: memoryview | bytes = data
        self.limits = limits
        self.at = 0
        self.room = SPREAD * limits.packet_bytes

    def uint(self) -> int:
        at = self.at
        if at >= len(self.data):
            self.refuse("it ends where a number begins")
        byte = self.data[at]
        self.at = at + 1
        return byte if byte < 128 else self._long_uint(at)

    def _long_uint(self, start: int) -> int:
        raw = self.data[start : start + 9]
        value = 0
        for place, byte in enumerate(raw):
            value |= (byte & 127) << 7 * place
            if byte < 128:
                if not byte:
                    self.refuse("a number ends in a zero byte: it must have the fewest bytes", start)
                self.at = start + place + 1
                return value
        if len(raw) == 9:
            raise WireError("a number has more than 9 bytes: it must be below 2**63", start)
        raise WireError("it ends within a number", len(self.data))

    def process(self) -> int:
        start = self.at
        process = self.uint()
        if process >= self.limits.processes:
            self._no_process(process, start)
        return process

    def members(self) -> int:
        """A set as the bits of an integer."""
        start = self.at
        header = self.uint()
        form, k = header & 3, header >> 2
        if k > self.limits.processes:
            self.refuse(f"a set has {k} members: at most {self.limits.processes} are allowed", start)
        if form == FIRST:
            if k > SMALL:
                self._charge(k, start)
            return (1 << k) - 1
        if form == ONE:
            members = 1 << k
        elif form == BITMAP:
            members = int.from_bytes(self.take(k), "little")
        else:
            members = self._list(k)
        if members.bit_length() > self.limits.processes:
            self._no_process(members.bit_length() - 1, start)
        if members.bit_length() > SMALL:
            self._charge(members.bit_length(), start)
        if _header(members) != header:
            self.refuse(f"a set of {k} is in form {form}, and form {_header(members) & 3} is shorter", start)
        return members

    def _charge(self, size: int, start: int) -> None:
        """A set of so many bits comes into being."""
        self.room -= size >> 3
        if self.room < 0:
            self.refuse(f"large sets take too much memory: {_most(self.limits)} bytes are allowed", start)

    def _list(self, k: int) -> int:
        members = expected = 0
        for _ in range(k):
            start = self.at
            expected += self.uint()
            if expected >= self.limits.processes:
                self._no_process(expected, start)
            members |= 1 << expected
            expected += 1
        return members

    def counts(self, k: int) -> Sequence[int]:
        at = self.at
        raw = self.take(k)  # Each takes a byte at least, so this refuses what cannot be there.
        if raw.isascii():
            if 0 in raw:
                self.refuse("a count is 0, and must be 1 or more", at + raw.index(0))
            return raw
        self.at = at
        return [self._count() for _ in range(k)]

    def _count(self) -> int:
        count = self.uint()
        if not count:
            self.refuse("a count is 0, and must be 1 or more", self.at - 1)
        return count

    def size(self) -> int:
        """The length of the vectors that follow."""
        start = self.at
        n = self.uint()
        if n > self.limits.processes:
            self.refuse(f"vectors have {n} entries: at most {self.limits.processes} are allowed", start)
        return n

    def vector(self, n: int) -> tuple[int, ...]:
        start = self.at
        members = self.members()
        if members.bit_length() > n:
            self.refuse(f"a vector of {n} has an entry of process {members.bit_length() - 1}", start)
        values = self.counts(members.bit_count())
        if len(values) == n:
            return tuple(values)
        vector = [0] * n
        for position, value in zip(list_members(members), values, strict=True):
            vector[position] = value
        return tuple(vector)

    def text(self) -> str:
        size = self._length("label", self.limits.label_bytes)
        start = self.at
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            self.refuse(f"a text is no UTF-8: {error.reason}", start + error.start)

    def blob(self) -> bytes:
        return self.take(self._length("payload", self.limits.payload_bytes))

    def _length(self, what: str, most: int) -> int:
        start = self.at
        size = self.uint()
        if size > most:
            self.refuse(f"a {what} has {size} bytes: at most {most} are allowed", start)
        return size

    def reserve(self, entries: int, at: int) -> None:
        """A stamp claims so many entries."""
        if entries > self.limits.entries:
            self.refuse(f"a stamp has {entries} entries: at most {self.limits.entries} are allowed", at)

    def take(self, size: int) -> bytes:
        at = self.at
        if size > len(self.data) - at:
            self.refuse(f"it ends {len(self.data) - at} bytes later, and {size} are needed")
        self.at = at + size
        return self.data[at : self.at]  # type: ignore[return-value]

    def _no_process(self, process: int, at: int) -> NoReturn:
        self.refuse(f"there is no process {process}: numbers are below {self.limits.processes}", at)

    def refuse(self, reason: str, at: int | None = None) -> NoReturn:
        raise WireError(reason, self.at if at is None else at)
