"""What goes wrong in a run, as values; `antecede.sim.troubles` makes it happen.

    loss:1%                              of what crosses the network is lost
    duplicate:1%                         arrives twice
    partition:p1,p2|p3@2s-5s             nothing passes between these groups (and the rest) from 2 s to 5 s
    pause:p2@1s-3s                       the process stands still; what comes for it waits
    crash:p3@2s-4s                       the process loses its memory and all that comes for it, and comes back at 4 s
                                         from its snapshot and journal
    partition:random:mean=10s,down=1s    again and again, after a time with this mean, for a time with this mean, any
    pause:random:..., crash:random:...   process or half of them; rate=0.1/s says the same as mean=10s

Several are written with `;` between them. Random ones begin no more once the last message is sent, and all end, so
that the run can always be completed.

>>> [str(fault) for fault in parse("loss:1%; crash:p3@2s-4s; crash:random:mean=10s,down=500ms")]
['loss:1%', 'crash:p3@2s-4s', 'crash:random:mean=10s,down=500ms']
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from antecede.errors import BadParameter
from antecede.model import View
from antecede.sim.specs import ONE, Options, Spec, duration, rate, share

__all__ = [
    "Always",
    "Fault",
    "Outage",
    "Partition",
    "Random",
    "check",
    "needs_journal",
    "needs_links",
    "parse",
]


class Always(Struct, frozen=True):
    """A share of what crosses the network, of 2**32, is lost or arrives twice."""

    kind: Literal["loss", "duplicate"]
    share: int

    def __str__(self) -> str:
        return f"{self.kind}:{_percent(self.share)}"


class Partition(Struct, frozen=True):
    """Nothing passes between these groups for a while. Whoever is in none of them is in one with the other such."""

    groups: tuple[tuple[str, ...], ...]
    start_ns: int
    end_ns: int

    def __str__(self) -> str:
        groups = "|".join(",".join(group) for group in self.groups)
        return f"partition:{groups}@{_time(self.start_ns)}-{_time(self.end_ns)}"


class Outage(Struct, frozen=True):
    """A process does not run for a while: a pause keeps its memory and what comes for it, a crash loses both."""

    kind: Literal["pause", "crash"]
    process: str
    start_ns: int
    end_ns: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.process}@{_time(self.start_ns)}-{_time(self.end_ns)}"


class Random(Struct, frozen=True):
    """Such faults again and again."""

    kind: Literal["partition", "pause", "crash"]
    mean_ns: int
    """Between the beginnings of two, anywhere."""
    down_ns: int
    """How long one lasts in the mean."""

    def __str__(self) -> str:
        return f"{self.kind}:random:mean={_time(self.mean_ns)},down={_time(self.down_ns)}"


Fault: TypeAlias = Always | Partition | Outage | Random

KINDS = ("loss", "duplicate", "partition", "pause", "crash")


def parse(text: str | Iterable[str]) -> tuple[Fault, ...]:
    """The faults that a text describes, or several texts; `none` is none."""
    texts = [part.strip() for one in ([text] if isinstance(text, str) else text) for part in one.split(";")]
    return tuple(_parse(part) for part in texts if part not in ("", "none"))


def _parse(text: str) -> Fault:
    kind, _, rest = text.partition(":")
    match kind:
        case "loss" | "duplicate":
            found = share("faults", kind, rest)
            if found > ONE * 9 // 10:
                raise BadParameter(
                    "faults",
                    f"{kind} must be at most 90%, so that something arrives in the end, not {rest!r}",
                )
            return Always(kind, found)
        case "partition" | "pause" | "crash":
            if rest.partition(":")[0].strip() == "random":
                return _random(kind, rest)
            who, start, end = _parse_outage(text, rest)
            if kind == "partition":
                return Partition(_groups(text, who), start, end)
            return Outage(kind, who, start, end)
    raise BadParameter.choice("faults", "a kind", kind, KINDS)


def _random(kind: Literal["partition", "pause", "crash"], text: str) -> Random:
    options = Options("faults", Spec.parse("faults", text))
    mean = options.option("rate", rate, 0) or options.option("mean", duration, 10 * 10**9)
    down = options.option("down", duration, 10**9)
    options.end()
    if mean < 1 or down < 1:
        raise BadParameter("faults", f"{kind} must have times longer than 0, and is {text!r}")
    return Random(kind, mean, down)


def _parse_outage(text: str, rest: str) -> tuple[str, int, int]:
    who, at, times = rest.rpartition("@")
    start, dash, end = times.partition("-")
    if not at or not dash or not who.strip():
        raise BadParameter("faults", f"a fault must be who@start-end, such as crash:p3@2s-4s, not {text!r}")
    found = duration("faults", "start", start), duration("faults", "end", end)
    if found[0] >= found[1]:
        raise BadParameter("faults", f"the end must be later than the start, {start.strip()}, not {end!r}")
    return who.strip(), *found


def _groups(text: str, who: str) -> tuple[tuple[str, ...], ...]:
    groups = tuple(
        tuple(name.strip() for name in group.split(",") if name.strip()) for group in who.split("|")
    )
    names = [name for group in groups for name in group]
    if not all(groups) or len(set(names)) != len(names):
        raise BadParameter(
            "faults",
            f"a partition must have groups of different processes, such as p1,p2|p3, and is {text!r}",
        )
    return groups


def check(faults: Sequence[Fault], view: View) -> None:
    """Refuse faults of processes that are not there, and of one process at the same time."""
    outages: dict[str, list[Outage]] = {}
    for fault in faults:
        if isinstance(fault, Partition):
            for name in (name for group in fault.groups for name in group):
                view.id(name)
        elif isinstance(fault, Outage):
            view.id(fault.process)
            for other in outages.setdefault(fault.process, []):
                if fault.start_ns <= other.end_ns and other.start_ns <= fault.end_ns:
                    raise BadParameter(
                        "faults", f"{fault} comes during {other}: a process can have one at a time"
                    )
            outages[fault.process].append(fault)


def needs_links(faults: Iterable[Fault]) -> bool:
    """Whether packets can be lost or repeated, so that reliable links must carry them."""
    return any(fault.kind != "pause" if not isinstance(fault, Partition) else True for fault in faults)


def needs_journal(faults: Iterable[Fault]) -> bool:
    """Whether processes can lose their memory."""
    return any(isinstance(fault, Outage | Random) and fault.kind == "crash" for fault in faults)


def _time(ns: int) -> str:
    for unit, length in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns % length == 0:
            return f"{ns // length}{unit}"
    return f"{ns}ns"


def _percent(part: int) -> str:
    """The shortest percentage that means this share."""
    for digits in range(10):
        text = f"{part * 100 / ONE:.{digits}f}%"
        if share("faults", "share", text) == part:
            return text
    return f"{part * 100 / ONE:.12f}%"
