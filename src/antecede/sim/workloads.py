"""Who says what to whom, and when.

    uniform           to one other process, any (size=3: to three)
    ring              to the next process
    client-server     clients ask a server, which answers when it delivers the request (servers=1)
    chain             a request is passed on from process to process, the last one answers the first (length=4)
    hot               much of it to one process (share=50%, at=p1)
    groups            to a group that the process belongs to (size=4, count=as many as processes), or to those that the
                      topology has: group i has the processes i, i+1, ..., so neighbours overlap; or to those given
                      by their members (members=p1+p2+p3/p3+p4)
    local             to a group of its department (share=90%) or else, as often, to one of its organisation or of the
                      whole system. Processes of a department and of an organisation are numbered one after the other
                      (blocks=16/32; a quarter and a half of all unless told). In a department groups are as above
                      (size=4); everyone starts one more with others of other departments, or organisations
    broadcast         to everyone
    monitor           observations, to one process that watches (share=50%, at=p1), the rest between the others
    document          edits to everyone; whoever reads one may comment on it, to everyone (comments=0.5 an edit)
    mix               several of these by weight: mix:uniform=8,broadcast=1,chain=1
    script            steps from a file: see `antecede.sim.scripts`
Arguments of all of them
    rate=10/s         how often each process that starts something does so
    arrivals=...      exponential (the default), constant or uniform times between two such sends
    payload=32        bytes of a message

What follows a delivery (an answer, a comment) is sent at that delivery, and counts as a message like the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from antecede.errors import BadParameter
from antecede.model import Message, View
from antecede.sim.chance import Words, pick
from antecede.sim.delays import Delay
from antecede.sim.specs import ONE, Options, Spec, count, rate, share, size, word

__all__ = ["WORKLOADS", "Draft", "Workload", "create"]

Draft: TypeAlias = tuple[tuple[int, ...], bytes]
"""A message to be sent: destinations in increasing order, and payload."""

Groups: TypeAlias = Sequence[Sequence[int]]


class Workload:
    """What the processes of a run do. Chance is passed in; nothing is remembered but what a payload says."""

    reacts = False
    """Whether deliveries lead to sends."""

    def __init__(
        self, view: View, words: Words, options: Options, groups: Groups = (), part: int = 0
    ) -> None:
        self.view, self.words, self.n = view, words, len(view)
        mean = options.option("rate", rate, 10**8)
        arrivals = options.option("arrivals", word, "exponential")
        if arrivals == "uniform":
            self.gap = Delay.parse(f"uniform:0,{2 * mean}ns", "workload")
        else:
            self.gap = Delay.parse(f"{arrivals}:{mean}ns", "workload")
        self.payload_bytes = options.option("payload", size, 32)
        self.blank = bytes(self.payload_bytes)
        self.singles = [(process,) for process in range(self.n)]
        self.all = tuple(range(self.n))
        self.part = part
        """Which part of a mix this is; payloads that matter say it."""
        self.setup(options, groups)

    def setup(self, options: Options, groups: Groups) -> None:
        """Take what only this workload has."""

    offer: Callable[[Any, int, Message], None] | None = None
    """If the application decides when to deliver: called with the engine when a message becomes eligible."""

    def idle(self, engine: Any) -> None:
        """Nothing is under way and nobody sends on their own account: the time for another round, if there is one."""

    def starters(self) -> Sequence[int]:
        """The processes that send on their own account."""
        return self.all

    def first(self) -> int:
        """When a process starts: at any time within its first gap."""
        return self.gap.mean_ns * next(self.words) >> 32

    def draft(self, process: int) -> Draft:
        """What a process sends next on its own account."""
        raise NotImplementedError

    def follow(self, process: int, message: Message) -> list[Draft]:
        """What a process sends because it delivered this."""
        return []

    def _other(self, process: int) -> int:
        """Any other process."""
        other = next(self.words) * (self.n - 1) >> 32
        return other + (other >= process)

    def _others(self, process: int, size: int) -> tuple[int, ...]:
        """So many other processes."""
        chosen: set[int] = set()
        while len(chosen) < size:
            chosen.add(self._other(process))
        return tuple(sorted(chosen))

    def _tag(self, *numbers: int) -> bytes:
        """A payload that begins with this part of the mix and these numbers."""
        head = bytes((self.part,)) + b"".join(number.to_bytes(2, "big") for number in numbers)
        return head + self.blank[len(head) :]

    def _tags(self, message: Message, k: int) -> list[int] | None:
        """The numbers that a payload of this part begins with."""
        payload = message.payload
        if len(payload) < 1 + 2 * k or payload[0] != self.part:
            return None
        return [int.from_bytes(payload[1 + 2 * i : 3 + 2 * i], "big") for i in range(k)]

    def _needs(self, least: int) -> None:
        if self.n < least:
            raise BadParameter("workload", f"it needs {least} processes or more, not {self.n}")

    def _process(self, owner: str, what: str, text: str) -> int:
        return self.view.id(text)


class Uniform(Workload):
    def setup(self, options: Options, groups: Groups) -> None:
        self._needs(2)
        self.size = options.option("size", count, 1)
        if not 1 <= self.size < self.n:
            raise BadParameter(
                "workload", f"size must be 1 to {self.n - 1}, the number of other processes, not {self.size}"
            )

    def draft(self, process: int) -> Draft:
        if self.size == 1:
            other = next(self.words) * (self.n - 1) >> 32
            return self.singles[other + (other >= process)], self.blank
        return self._others(process, self.size), self.blank


class Ring(Workload):
    def setup(self, options: Options, groups: Groups) -> None:
        self._needs(2)

    def draft(self, process: int) -> Draft:
        return self.singles[(process + 1) % self.n], self.blank


class ClientServer(Workload):
    reacts = True

    def setup(self, options: Options, groups: Groups) -> None:
        self._needs(2)
        self.servers = options.option("servers", count, 1)
        if not 1 <= self.servers < self.n:
            raise BadParameter(
                "workload",
                f"servers must be 1 to {self.n - 1}, so that there is a client, not {self.servers}",
            )
        self.request, self.answer = self._tag(1), self._tag(0)

    def starters(self) -> Sequence[int]:
        return range(self.servers, self.n)

    def draft(self, process: int) -> Draft:
        if process < self.servers:  # Only in a mix: a server that asks, asks anybody.
            return self.singles[self._other(process)], self.request
        return self.singles[pick(self.words, self.servers)], self.request

    def follow(self, process: int, message: Message) -> list[Draft]:
        tags = self._tags(message, 1)
        return [(self.singles[message.sender], self.answer)] if tags == [1] else []


class Chain(Workload):
    reacts = True

    def setup(self, options: Options, groups: Groups) -> None:
        self._needs(2)
        self.length = options.option("length", count, 4)
        if not 2 <= self.length <= 1000:
            raise BadParameter(
                "workload", f"length must be 2 to 1000, a request and its answer at least, not {self.length}"
            )

    def draft(self, process: int) -> Draft:
        return self.singles[self._other(process)], self._tag(self.length - 1, process)

    def follow(self, process: int, message: Message) -> list[Draft]:
        tags = self._tags(message, 2)
        if tags is None or not tags[0]:
            return []
        left, origin = tags
        onward = origin if left == 1 and origin != process else self._other(process)
        return [(self.singles[onward], self._tag(left - 1, origin))]


class Hot(Workload):
    def setup(self, options: Options, groups: Groups) -> None:
        self._needs(2)
        self.share = options.option("share", share, ONE // 2)
        self.at = options.option("at", self._process, 0)

    def draft(self, process: int) -> Draft:
        if process != self.at and next(self.words) < self.share:
            return self.singles[self.at], self.blank
        return self.singles[self._other(process)], self.blank


class Monitor(Hot):
    """The same, but the process that is told starts nothing of its own."""

    def starters(self) -> Sequence[int]:
        return self.all[: self.at] + self.all[self.at + 1 :]


class OverlappingGroups(Workload):
    def setup(self, options: Options, groups: Groups) -> None:
        given = [tuple(sorted(set(group))) for group in groups]
        if options.has("members"):
            given = options.option("members", self._members, [])
        elif options.has("size") or options.has("count") or not given:
            given = self._overlap_groups(options)
        self.groups = _by_member(given, self.n)

    def _members(self, owner: str, what: str, text: str) -> list[tuple[int, ...]]:
        """p1+p2+p3/p3+p4: the groups by their members."""
        return [tuple(sorted({self.view.id(p) for p in group.split("+")})) for group in text.split("/")]

    def _overlap_groups(self, options: Options) -> list[tuple[int, ...]]:
        self._needs(2)
        members = options.option("size", count, min(4, self.n))
        total = options.option("count", count, self.n)
        if not 2 <= members <= self.n or total < 1:
            raise BadParameter(
                "workload",
                f"groups must be one or more, of 2 to {self.n} processes, not {total} of {members}",
            )
        starts = [i * self.n // total for i in range(total)]
        return [tuple(sorted((start + k) % self.n for k in range(members))) for start in starts]

    def starters(self) -> Sequence[int]:
        return [process for process in self.all if self.groups[process]]

    def draft(self, process: int) -> Draft:
        mine = self.groups[process] or [self.singles[self._other(process)]]
        return mine[next(self.words) * len(mine) >> 32], self.blank


class Local(Workload):
    def setup(self, options: Options, groups: Groups) -> None:
        self.share = options.option("share", share, ONE * 9 // 10)
        halves = [] if self.n % 4 or self.n < 8 else [self.n // 4, self.n // 2]
        blocks = [*options.option("blocks", self._blocks, halves), self.n]
        size = options.option("size", count, min(4, blocks[0]))
        if any(outer % inner or outer <= inner for inner, outer in pairwise(blocks)):
            found = "/".join(map(str, blocks[:-1]))
            raise BadParameter(
                "workload", f"blocks must each be a part of the next, and of {self.n}, not {found}"
            )
        if not 2 <= size <= blocks[0]:
            raise BadParameter(
                "workload", f"size must be 2 to {blocks[0]}, the processes of a department, not {size}"
            )
        near = [[p - p % blocks[0] + (p + k) % blocks[0] for k in range(size)] for p in self.all]
        self.levels = [_by_member(near, self.n)]
        for inner, outer in pairwise(blocks):
            far = [(p, *self._beyond(p, inner, outer, size - 1)) for p in self.all]
            self.levels.append(_by_member(far, self.n))

    def _blocks(self, owner: str, what: str, text: str) -> list[int]:
        return [max(1, count(owner, what, part)) for part in text.split("/")]

    def _beyond(self, process: int, inner: int, outer: int, size: int) -> set[int]:
        """So many of the same outer block, and of other inner ones."""
        chosen: set[int] = set()
        first, mine = process - process % outer, process // inner
        while len(chosen) < size:
            other = first + pick(self.words, outer)
            if other // inner != mine:
                chosen.add(other)
        return chosen

    def draft(self, process: int) -> Draft:
        far = next(self.words) >= self.share and len(self.levels) > 1
        mine = self.levels[1 + pick(self.words, len(self.levels) - 1) if far else 0][process]
        return mine[pick(self.words, len(mine))], self.blank


def _by_member(groups: Iterable[Sequence[int]], n: int) -> list[list[tuple[int, ...]]]:
    """Process -> the groups that it is in, each without it."""
    found: list[list[tuple[int, ...]]] = [[] for _ in range(n)]
    for group in groups:
        members = sorted(set(group))
        for process in members if len(members) > 1 else ():
            found[process].append(tuple(p for p in members if p != process))
    return found


class Broadcast(Workload):
    def draft(self, process: int) -> Draft:
        return self.all, self.blank


class Document(Workload):
    """Each reader of an edit, or of a comment, comments with the same small probability."""

    reacts = True

    def setup(self, options: Options, groups: Groups) -> None:
        self._needs(2)
        comments = options.option("comments", share, ONE // 2)
        self.chance = comments // (self.n - 1)
        self.edit = self._tag()

    def draft(self, process: int) -> Draft:
        return self.all, self.edit

    def follow(self, process: int, message: Message) -> list[Draft]:
        if message.sender == process or self._tags(message, 0) is None or next(self.words) >= self.chance:
            return []
        return [(self.all, self.edit)]


class Mix(Workload):
    """Parts by weight. A part's own arguments are its defaults."""

    def setup(self, options: Options, groups: Groups) -> None:
        self.parts: list[Workload] = []
        self.table: list[int] = []
        for name, weight in options.rest().items():
            if name not in WORKLOADS or name == "mix":
                raise BadParameter.choice(
                    "workload", "a part of the mix", name, [n for n in WORKLOADS if n != "mix"]
                )
            spec = Options("workload", Spec(name, (), {"payload": str(self.payload_bytes)}))
            self.table += [len(self.parts)] * count("workload", name, weight)
            self.parts.append(WORKLOADS[name](self.view, self.words, spec, groups, len(self.parts) + 1))
        if not self.table:
            raise BadParameter(
                "workload", "mix has no parts: write parts with weights, such as mix:uniform=8,broadcast=1"
            )
        self.reacts = any(part.reacts for part in self.parts)

    def draft(self, process: int) -> Draft:
        return self.parts[self.table[pick(self.words, len(self.table))]].draft(process)

    def follow(self, process: int, message: Message) -> list[Draft]:
        return [draft for part in self.parts if part.reacts for draft in part.follow(process, message)]


WORKLOADS: Mapping[str, type[Workload]] = {
    "uniform": Uniform,
    "ring": Ring,
    "client-server": ClientServer,
    "chain": Chain,
    "hot": Hot,
    "groups": OverlappingGroups,
    "local": Local,
    "broadcast": Broadcast,
    "monitor": Monitor,
    "document": Document,
    "mix": Mix,
}


def create(text: str, view: View, words: Words, groups: Groups = ()) -> Workload:
    """The workload that a text describes.

    >>> from antecede.sim.chance import stream
    >>> ring = create("ring:rate=20/s", View.numbered(3), stream(0, "workload"))
    >>> ring.draft(2)[0], ring.gap.mean_ns
    ((0,), 50000000)
    """
    spec = Spec.parse("workload", text)
    if spec.name not in WORKLOADS:
        raise BadParameter.choice("workload", "the name", spec.name, [*WORKLOADS, "script"])
    options = Options("workload", spec)
    workload = WORKLOADS[spec.name](view, words, options, groups)
    options.end()
    return workload
