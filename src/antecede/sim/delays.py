"""How long things take: distributions as tables of quantiles, in whole nanoseconds.

    constant:50ms            always the same
    uniform:10ms,90ms        anything between two times
    exponential:50ms         with this mean
    lognormal:50ms,sigma=1   with this mean; sigma is the deviation of the logarithm
    empirical:FILE           as measured: a file with one time a line (`1.5ms`; a bare number is in milliseconds)

A table has 4096 values (or one), the quantiles at the middle of 4096 equal shares; a random word of 32 bits picks one.
They are computed with `decimal`, whose results are the same everywhere, and scaled so that the mean of the table is
the mean that was asked for. The longest exponential delay is therefore 9 times the mean.

>>> table = Delay.parse("exponential:50ms")
>>> table.mean_ns, max(table.values) // 10**6
(50000000, 450)
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from antecede.errors import BadParameter, InputError
from antecede.sim.chance import Words
from antecede.sim.specs import Options, Spec, duration, word

__all__ = ["DISTRIBUTIONS", "Delay"]

DISTRIBUTIONS = ("constant", "uniform", "exponential", "lognormal", "empirical")
BITS = 12
SIZE = 1 << BITS


class Delay(Struct, frozen=True):
    """A distribution of times."""

    values: tuple[int, ...]
    """Quantiles, in increasing order."""
    shift: int
    """What turns a word of 32 bits into a position in them."""

    @classmethod
    def parse(cls, text: str, owner: str = "delay") -> Delay:
        options = Options(owner, Spec.parse(owner, text))
        delay = cls.take(options)
        options.end()
        return delay

    @classmethod
    def take(cls, options: Options) -> Delay:
        """The distribution that a spec names; what else stands in the spec is left."""
        owner, name = options.owner, options.spec.name
        match name:
            case "constant":
                return cls.constant(options.value("delay", duration))
            case "uniform":
                low, high = options.value("least", duration), options.value("most", duration)
                if low > high:
                    raise BadParameter(owner, f"{options.spec} must have the lesser time first")
                return cls.of(_uniform(low, high))
            case "exponential":
                return cls.exponential(options.value("mean", duration))
            case "lognormal":
                mean = options.value("mean", duration)
                return cls.of(_stretch(_lognormal(options.value("sigma", _sigma, Decimal(1))), mean))
            case "empirical":
                return cls.of(_read_times(options.value("file", word)))
        raise BadParameter.choice(owner, "the distribution", name, DISTRIBUTIONS)

    @classmethod
    def constant(cls, time: int) -> Delay:
        return cls((time,), 32)

    @classmethod
    def exponential(cls, mean: int) -> Delay:
        return cls.of(_exponential_times(mean))

    @classmethod
    def of(cls, values: Sequence[int]) -> Delay:
        """A table of one value, or of 4096."""
        assert len(values) in (1, SIZE), "a table that a word can index"
        return cls(tuple(values), 32 if len(values) == 1 else 32 - BITS)

    @property
    def mean_ns(self) -> int:
        return sum(self.values) // len(self.values)

    def draw(self, words: Words) -> int:
        return self.values[next(words) >> self.shift]


def _uniform(low: int, high: int) -> list[int]:
    return [low + (high - low) * (2 * i + 1) // (2 * SIZE) for i in range(SIZE)]


@lru_cache(maxsize=1)
def _exponential() -> tuple[Decimal, ...]:
    with localcontext() as context:
        context.prec = 20
        return tuple(-(Decimal(2 * i + 1) / (2 * SIZE)).ln() for i in reversed(range(SIZE)))


@lru_cache(maxsize=64)
def _exponential_times(mean: int) -> tuple[int, ...]:
    """Kept, because short runs of a soak use the same few again and again and would do little but compute them."""
    return tuple(_stretch(_exponential(), mean))


@lru_cache(maxsize=8)
def _lognormal(sigma: Decimal) -> tuple[Decimal, ...]:
    with localcontext() as context:
        context.prec = 20
        upper = [_normal(Decimal(2 * i + 1) / (2 * SIZE)) for i in range(SIZE // 2, SIZE)]
        return tuple((sigma * z).exp() for z in (*(-z for z in reversed(upper)), *upper))


def _stretch(shape: Sequence[Decimal], mean: int) -> list[int]:
    """The shape, stretched to this mean, rounded so that the mean of the integers is right to the nanosecond."""
    with localcontext() as context:
        context.prec = 30
        factor = mean * len(shape) / sum(shape, Decimal(0))
        exact = [value * factor for value in shape]
        values = [int(value) for value in exact]
    missing = mean * len(values) - sum(values)
    return [value + (i >= len(values) - missing) for i, value in enumerate(values)]


# The normal distribution's quantiles: Wichura 1988, algorithm AS 241 (PPND7), accurate to seven figures.
_A = tuple(map(Decimal, ("3.3871327179", "50.434271938", "159.29113202", "59.109374720")))
_B = tuple(map(Decimal, ("1", "17.895169469", "78.757757664", "67.187563600")))
_C = tuple(map(Decimal, ("1.4234372777", "2.7568153900", "1.3067284816", "0.17023821103")))
_D = tuple(map(Decimal, ("1", "0.73700164250", "0.12021132975")))


def _normal(p: Decimal) -> Decimal:
    """The value that a normal variable stays below with probability p, for 0.5 <= p <= 1 - 1e-6."""
    q = p - Decimal("0.5")
    if q <= Decimal("0.425"):
        r = Decimal("0.180625") - q * q
        return q * _polynomial(_A, r) / _polynomial(_B, r)
    r = (-(1 - p).ln()).sqrt() - Decimal("1.6")
    return _polynomial(_C, r) / _polynomial(_D, r)


def _polynomial(coefficients: Sequence[Decimal], x: Decimal) -> Decimal:
    result = Decimal(0)
    for coefficient in reversed(coefficients):
        result = result * x + coefficient
    return result


def _sigma(owner: str, what: str, text: str) -> Decimal:
    try:
        sigma = Decimal(text)
    except ArithmeticError:
        sigma = Decimal(-1)
    if not sigma.is_finite() or not 0 < sigma <= 5:
        raise BadParameter(owner, f"{what} must be a number above 0, at most 5, not {text!r}")
    return sigma


def _read_times(path: str) -> list[int]:
    """The quantiles of the times in a file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "no text in UTF-8"
        raise InputError(f"{path}: {why}; it must be a file with one time a line") from error
    times = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.partition("#")[0].strip()
        if entry:
            bare = entry.replace(".", "", 1).isdigit()
            times.append(duration(f"{path}:{number}", "delay", entry + "ms" * bare))
    if not times:
        raise InputError(f"{path}: the file has no times; it must have one a line")
    times.sort()
    return [times[(2 * i + 1) * len(times) // (2 * SIZE)] for i in range(SIZE)]
