"""Short texts that say what to simulate: `exponential:50ms,loss=1%` is a name, and arguments with and without a key.

>>> spec = Spec.parse("network", "uniform:10ms,90ms,fifo=true")
>>> spec.name, spec.values, spec.options
('uniform', ('10ms', '90ms'), {'fifo': 'true'})
>>> print(spec)
uniform:10ms,90ms,fifo=true
>>> duration("network", "delay", "2.5ms")
2500000

Everything becomes an integer here, with `decimal` and never by way of binary floating point, so that the same text
means the same numbers on every machine: times are nanoseconds, shares are parts of 2**32.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import TypeVar

from msgspec import Struct

from antecede.errors import BadParameter

__all__ = [
    "ONE",
    "Options",
    "Spec",
    "bits_per_second",
    "boolean",
    "count",
    "duration",
    "rate",
    "share",
    "size",
]

ONE = 1 << 32
"""A share of one: shares are compared with random words of 32 bits."""

T = TypeVar("T")

_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z%/]*)")
_TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_SIZES = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "KiB": 1 << 10, "MiB": 1 << 20}
_BITS = {"bit/s": 1, "kbit/s": 10**3, "Mbit/s": 10**6, "Gbit/s": 10**9}


class Spec(Struct, frozen=True):
    """A name with arguments, as it was written."""

    name: str
    values: tuple[str, ...] = ()
    options: dict[str, str] = {}

    @classmethod
    def parse(cls, owner: str, text: str) -> Spec:
        name, _, rest = text.strip().partition(":")
        values: list[str] = []
        options: dict[str, str] = {}
        for item in filter(None, (part.strip() for part in rest.split(","))):
            key, equals, value = (part.strip() for part in item.partition("="))
            if not equals:
                values.append(item)
            elif not key or not value or key in options:
                raise BadParameter(owner, f"arguments must be key=value, each key once, not {item!r}")
            else:
                options[key] = value
        if not name:
            raise BadParameter(owner, f"{text!r} has no name: write one of those that --help lists")
        return cls(name, tuple(values), options)

    def __str__(self) -> str:
        items = [*self.values, *(f"{key}={value}" for key, value in self.options.items())]
        return self.name + (":" + ",".join(items) if items else "")


class Options:
    """The arguments of a spec, taken one by one; what nobody took is refused by `end`."""

    def __init__(self, owner: str, spec: Spec) -> None:
        self.owner = owner
        self.spec = spec
        self._values = list(spec.values)
        self._options = dict(spec.options)
        self._known: list[str] = []

    def value(self, what: str, read: Callable[[str, str, str], T], default: T | None = None) -> T:
        """The next argument without a key, or the one with this key."""
        self._known.append(what)
        if what in self._options:
            return read(self.owner, what, self._options.pop(what))
        if self._values:
            return read(self.owner, what, self._values.pop(0))
        if default is None:
            raise BadParameter(self.owner, f"{self.spec} needs {what}: write {self.spec.name}:{what.upper()}")
        return default

    def option(self, key: str, read: Callable[[str, str, str], T], default: T) -> T:
        """The argument with this key, if it is there."""
        self._known.append(key)
        return read(self.owner, key, self._options.pop(key)) if key in self._options else default

    def has(self, key: str) -> bool:
        return key in self._options

    def rest(self) -> dict[str, str]:
        """All that is left and has a key."""
        rest, self._options = self._options, {}
        return rest

    def end(self) -> None:
        left = [*self._values, *(f"{key}={value}" for key, value in self._options.items())]
        if left:
            known = ", ".join(self._known) or "no arguments"
            raise BadParameter(self.owner, f"{self.spec.name} does not take {left[0]!r}; it takes {known}")


def _parse_number(owner: str, what: str, text: str, units: dict[str, int], example: str) -> Decimal:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise BadParameter(owner, f"{what} must be {example}, not {text!r}")
    return Decimal(match[1]) * units[match[2]]


def duration(owner: str, what: str, text: str) -> int:
    """Nanoseconds: `50ms`, `1.5s`, `200us`; `0` needs no unit."""
    if text.strip() == "0":
        return 0
    return int(_parse_number(owner, what, text, _TIMES, "a time such as 50ms, 200us or 1.5s"))


def size(owner: str, what: str, text: str) -> int:
    """Bytes: `100`, `4kB`, `1KiB`."""
    return int(_parse_number(owner, what, text, _SIZES, "a size such as 100, 4kB or 1KiB"))


def bits_per_second(owner: str, what: str, text: str) -> int:
    """`10Mbit/s`."""
    found = int(_parse_number(owner, what, text, _BITS, "a bandwidth such as 10Mbit/s"))
    if found < 1:
        raise BadParameter(owner, f"{what} must be more than 0, not {text!r}")
    return found


def rate(owner: str, what: str, text: str) -> int:
    """How often a process sends, `10/s`, as the mean time between two sends in nanoseconds."""
    number = _parse_number(owner, what, text.removesuffix("/s"), {"": 1}, "a rate such as 10/s")
    if not Decimal("0.000001") <= number <= 10**9:
        raise BadParameter(owner, f"{what} must be from 0.000001/s to 1000000000/s, not {text!r}")
    return max(1, int(10**9 / number))


def share(owner: str, what: str, text: str) -> int:
    """A part of a whole, `0.2` or `20%`, as a part of 2**32."""
    found = _parse_number(owner, what, text, {"": 100, "%": 1}, "a share such as 0.2 or 20%")
    if found > 100:
        raise BadParameter(owner, f"{what} must be at most 1, or 100%, not {text!r}")
    return int(found * ONE / 100)


def count(owner: str, what: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise BadParameter(owner, f"{what} must be a whole number, not {text!r}")
    return int(text)


def boolean(owner: str, what: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise BadParameter.choice(owner, what, text, ("true", "false"))
    return text == "true"


def word(owner: str, what: str, text: str) -> str:
    return text
