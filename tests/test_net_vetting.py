"""Notes about a change that no sound process sends: refused in one place, and whoever heard them is as it was."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import islice, product
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from antecede.errors import BadParameter, WireError
from antecede.link import Frame
from antecede.model import View
from antecede.process.core import Core
from antecede.process.inputs import Propose, Send
from antecede.process.views import pieces
from antecede.process.views.leader import JOINERS
from antecede.process.views.members import Joiner, Plan, Roll
from antecede.process.views.notes import (
    MARK,
    MEMORY_FACTOR,
    Ahead,
    Ask,
    Go,
    Install,
    Installed,
    Later,
    Note,
    Report,
    Resume,
    Settle,
    State,
    Stop,
    Stopped,
    Withdrawn,
    decode_note,
    encode_note,
)
from antecede.wire.bundles import encode_bundle

NAMES = ("a", "b", "c")
FIRST = Roll.first(NAMES, {"all": NAMES})
LEAVE = Plan(leave=("c",))
HUGE = (1 << 64) - 1
NOBODY: dict[int, int] = {}


class One:
    """One process, and what the others tell it."""

    def __init__(self, me: str, protocol: str = "matrix") -> None:
        self.core = Core.new(protocol, View(NAMES), me, epoch=1, roll=FIRST)
        self.numbers = dict.fromkeys(range(3), 0)
        for peer in self.core.links:
            self.core.arrive(peer, Frame(1, 1, 0, 0, 0, None, True, True), now=0)

    def payload(self, source: int, payload: bytes) -> None:
        self.numbers[source] += 1
        self.core.arrive(source, Frame(1, 1, self.numbers[source], 0, 0, payload), now=0)
        self.core.turn(now=0)

    def hear(self, source: int, *notes: Note) -> None:
        for note in notes:
            assert not self.core.refused
            self.payload(source, encode_note(note))

    def state(self) -> dict[str, Any]:
        """All but how many notes there were."""
        return self.core.changing.snapshot() | {"heard": None, "told": None}


def make_follower(me: str = "b") -> One:
    """One that follows `a` in round 2, and has reported."""
    one = One(me)
    one.hear(0, Stop(2, FIRST, LEAVE), Settle(2))
    assert one.core.changing.membership.settled
    return one


def make_leader(stage: str = "stop") -> One:
    """`a`, which leads round 2."""
    one = One("a")
    one.core.apply(Propose(LEAVE), now=0)
    one.core.turn(now=0)
    if stage == "flush":
        one.hear(1, Stopped(2, ()))
        one.hear(2, Stopped(2, ()))
    assert one.core.changing.membership.led is not None
    assert one.core.changing.membership.led.stage == stage
    return one


def later(**change: Any) -> Roll:
    return replace(FIRST.follow(2, LEAVE, {}), **change)


def join_d(by: int = 0, **change: Any) -> Roll:
    plan = Plan(join=(Joiner("d", "", (), NAMES[by]),))
    return replace(FIRST.follow(2, plan, {}), **change)


def as_sent(note: Note, old: bytes, new: bytes) -> bytes:
    """A note that cannot even be made here."""
    data = encode_note(note)
    assert data.count(old) == 1
    return data.replace(old, new)


REFUSED: dict[str, tuple[One, int, Note | bytes]] = {
    "a round beyond all counting": (One("b"), 0, Stop(HUGE, FIRST, LEAVE)),
    "a round before all others": (One("b"), 0, Stop(-1, FIRST, LEAVE)),
    "a stop for one that is removed": (One("b"), 0, Stop(2, FIRST, Plan(remove=("b",)))),
    "a stop by one that removes itself": (One("b"), 0, Stop(2, FIRST, Plan(remove=("a",)))),
    "a stop with another view of our number": (One("b"), 0, Stop(2, replace(FIRST, groups={}), LEAVE)),
    "a stop with other founders": (One("b"), 0, Stop(2, replace(FIRST, founders=2), LEAVE)),
    "a stop with other names": (One("b"), 0, Stop(2, replace(FIRST, names=("a", "x", "c")), LEAVE)),
    "a stop with a view that we know nothing of": (One("b"), 0, Stop(3, later(), Plan())),
    "a view where nothing changes": (One("b"), 0, Install(later())),
    "a view before all have stopped": (make_leader("stop"), 1, Install(later())),
    "a view of one that does not lead": (make_follower(), 2, Install(later())),
    "a view of another round": (make_follower(), 0, Install(later(number=3))),
    "a view without us": (make_follower("c"), 0, Install(later(left=(), removed=(2,)))),
    "a view that lost someone": (make_follower(), 0, Install(later(left=()))),
    "a view that counts what we have not sent": (make_follower(), 0, Install(later(sent=(0, 5, 0)))),
    "a view with one that nobody knows": (
        make_follower(),
        0,
        Install(later(names=(*NAMES, "d"), sent=(0, 0, 0, 0), members=(0, 1, 3))),
    ),
    "a view in which an old member joins": (make_follower(), 0, Install(later(donors={1: 0}))),
    "a view that is shorter": (
        make_follower(),
        0,
        Install(later(names=("a", "b"), sent=(0, 0), founders=2, left=())),
    ),
    "a view that left whom nobody knows": (
        make_follower(),
        0,
        as_sent(Install(later()), b"\xa4left\x91\x02", b"\xa4left\x91\x63"),
    ),
    "a donor that nobody knows": (
        make_follower(),
        0,
        as_sent(Install(join_d()), b"\xa6donors\x81\x03\x00", b"\xa6donors\x81\x03\x63"),
    ),
    "a view with a negative count": (
        make_follower(),
        0,
        as_sent(Install(later()), b"\xa4sent\x93\x00", b"\xa4sent\x93\xff"),
    ),
    "to settle a round that is over": (One("b"), 0, Settle(1)),
    "to settle, by one that does not lead": (make_follower(), 2, Settle(2)),
    "who was not asked is ahead": (One("a"), 1, Ahead(later())),
    "one is ahead of a round that all have stopped for": (make_leader("flush"), 1, Ahead(later())),
    "a view that only we can make": (make_leader("flush"), 1, Stop(3, later(), Plan())),
    "later than can be counted": (make_leader("stop"), 1, Later(HUGE)),
    "cut off from one that nobody knows": (make_leader("stop"), 1, Stopped(2, ("x",))),
    "cut off from whom it tells": (make_leader("stop"), 1, Stopped(2, ("a",))),
    "a report about one that nobody knows": (make_leader("flush"), 1, Report(2, {99: 1}, NOBODY, 0)),
    "a report about one before the first": (make_leader("flush"), 1, Report(2, NOBODY, {-1: 1}, 0)),
    "a report of less than nothing": (make_leader("flush"), 1, Report(2, {0: -1}, NOBODY, 0)),
    "a report of more than can be counted": (make_leader("flush"), 1, Report(2, {0: HUGE}, NOBODY, 0)),
    "a report of fewer messages than there were": (make_leader("flush"), 1, Report(2, NOBODY, NOBODY, -1)),
    "one asks for another to leave": (One("a"), 1, Ask(LEAVE)),
    "one asks for whom another has asked": (One("a"), 1, Ask(Plan(join=(Joiner("d", "", (), "c"),)))),
    "one asks to be removed": (One("a"), 1, Ask(Plan(remove=("b",)))),
    "one asks for a name that nobody can read": (
        One("a"),
        1,
        Ask(Plan(join=(Joiner("d" * 999, "", (), "b"),))),
    ),
    "one withdraws more than can be": (One("a"), 1, Withdrawn(("d",) * 9999, 1)),
    "a stop of one that does not lead": (One("c"), 1, Stop(2, FIRST, LEAVE)),
    "a stop of one that does not lead, for nothing": (One("a"), 2, Stop(2, FIRST, Plan(remove=("b",)))),
    "to resume, by one that does not lead": (make_follower(), 2, Resume(2)),
    "to resume what another begins": (One("b"), 2, Resume(2)),
    "no note at all": (One("b"), 0, MARK + b"\x93\x01"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_note_that_no_sound_process_sends_is_refused(case):
    one, source, note = REFUSED[case]
    before = one.state()
    one.payload(source, note if isinstance(note, bytes) else encode_note(note))
    assert one.core.refused[source].kind in ("BadFrame", "WireError")
    assert one.state() == before
    Core.restore(one.core.snapshot())


def test_notes_that_are_only_late_are_taken():
    one = make_follower()
    one.hear(0, Later(1), Go(1), Settle(1), Install(FIRST), Install(later()), Install(later()), Go(2))
    assert one.core.changing.roll == later()
    assert not one.core.refused
    assert one.core.changing.membership.going


def test_one_that_takes_no_part_cannot_report_for_another():
    """It used to be counted among those that had to report."""
    one = One("a")
    one.core.apply(Propose(Plan(remove=("c",))), now=0)
    one.hear(1, Stopped(2, ("c",)))
    # `c` is cut off, so that nothing of it is heard at all.
    one.payload(2, encode_note(Report(2, NOBODY, NOBODY, 0)))
    assert 2 not in one.core.links
    membership = one.core.changing.membership
    assert membership.led is not None
    assert set(membership.led.reports) == {0}


def test_packets_of_one_that_has_left_are_refused():
    one = make_follower()
    one.hear(0, Install(later()))
    there = One("c")
    there.core.apply(Send((1,), b"too late"), now=0)
    packets = there.core.out[1].packets()
    one.payload(2, encode_bundle(packets))
    assert one.core.refused[2].kind == "BadFrame"
    assert not one.core.inbox


@pytest.mark.parametrize("protocol", ["matrix", "history"])
def test_what_was_sent_in_an_earlier_view_is_not_read_as_of_this_one(protocol):
    """Its acknowledgement may be lost, and its receiver with it."""
    one = One("b", protocol)
    one.core.apply(Send((2,), b"one"), now=0)
    one.core.turn(now=0)
    one.hear(0, Stop(2, FIRST, Plan(leave=("a",))), Settle(2))
    one.hear(0, Install(FIRST.follow(2, Plan(leave=("a",)), {1: 1})), Go(2))
    assert one.core.links[2].unacknowledged
    assert Core.restore(one.core.snapshot()).snapshot() == one.core.snapshot()
    one.core.apply(Send((2,), b"two"), now=0)
    one.core.turn(now=0)
    one.core.apply(Propose(Plan(remove=("c",))), now=0)
    change = one.core.changing.ready[-1]
    assert [(lost.sender, lost.first, lost.to) for lost in change.lost] == [("b", 2, ("c",))]  # type: ignore[union-attr]


def test_one_that_was_never_heard_stops_nobody():
    """A member can name whom it likes as one that joins: all would wait for it in the next change."""
    one = One("a")
    ghosts = tuple(Joiner(f"ghost {k:02}", "", (), "b") for k in range(2 * JOINERS))
    one.hear(1, Ask(Plan(join=ghosts)))
    for _ in range(3):
        for place in (1, 2):
            one.hear(place, *answers(one))
    membership: Any = one.core.changing.membership
    assert len(membership.roll.members) == 3 + JOINERS
    one.hear(2, Ask(LEAVE))
    assert membership.going
    assert not membership.led
    progress = membership.progress()
    assert progress is not None
    assert (progress.stage, progress.leave) == ("wanted", ("c",))
    assert progress.awaits == tuple(joiner.name for joiner in ghosts[:JOINERS])
    # All come at last, and then it begins.
    begun = []
    for place in membership.roll.members[3:]:
        one.core.arrive(place, Frame(1, 1, 0, 0, 0, None, True, True), now=0)
        begun.append(one.core.changing.membership.led is not None)
    assert begun == [False] * (JOINERS - 1) + [True]


def answers(one: One) -> list[Note]:
    """What a member that does all that it is told to says next."""
    led = one.core.changing.membership.led
    if led is None:
        return []
    says: dict[str, Note] = {
        "stop": Stopped(led.round, ()),
        "flush": Report(led.round, NOBODY, NOBODY, 0),
        "install": Installed(led.round),
    }
    return [says[led.stage]]


def test_a_state_without_end_is_refused_and_whoever_waits_for_it_knows(monkeypatch):
    monkeypatch.setattr(pieces, "STATE_BYTES", 1000)
    core = Core.new("matrix", View((*NAMES, "d")), "d", epoch=1, roll=join_d())
    core.arrive(0, Frame(1, 1, 0, 0, 0, None, True, True), now=0)
    turnover = core.changing.turnover
    for number in (1, 2):
        assert not core.changing.orphaned
        core.arrive(0, Frame(1, 1, number, 0, 0, encode_note(State(bytes(600), False))), now=0)
    assert core.refused[0].kind == "BadFrame"
    assert "more than 1000 bytes" in core.refused[0].why
    assert core.changing.orphaned
    assert core.changing.turnover > turnover, "a driver looks, and tells its application"
    with pytest.raises(BadParameter, match="1001 bytes, and may return 1000"):
        pieces.check_state(bytes(1001))
    pieces.check_state(bytes(1000))


# Memory

HEAVY = "\u0101"
"""One character that takes three bytes of MessagePack, and eighty of memory."""


def name_many(count: int) -> list[str]:
    """Different names, five bytes each."""
    return ["".join(pair) for pair in islice(product(map(chr, range(0x80, 0x7FF)), repeat=2), count)]


def describe(**fields: Any) -> dict[str, Any]:
    empty = {
        "number": 1,
        "names": [],
        "members": [],
        "sent": [],
        "groups": {},
        "addresses": {},
        "founders": 0,
    }
    return {**empty, **fields}


DENSE: dict[str, Callable[[int], list[Any]]] = {
    "names that leave": lambda size: [0, {"leave": [HEAVY] * (size // 3)}],
    "groups of one that joins": lambda size: [
        0,
        {"join": [{"name": "", "address": "", "groups": [HEAVY] * (size // 3), "by": ""}]},
    ],
    "names that are cut": lambda size: [2, 1, [HEAVY] * (size // 3)],
    "names that are withdrawn": lambda size: [11, [HEAVY] * (size // 3), 0],
    "counts of a report": lambda size: [4, 1, dict.fromkeys(range(size // 6), 1), {}, 0],
    "names of a view": lambda size: [
        5,
        describe(names=name_many(size // 6), sent=[0] * (size // 6), members=[]),
    ],
    "members of a view": lambda size: [5, describe(members=[-100] * (size // 2))],
    "groups of a view": lambda size: [5, describe(groups={name: [] for name in name_many(size // 12)})],
    "addresses of a view": lambda size: [
        5,
        describe(addresses=dict.fromkeys(name_many(size // 8), HEAVY)),
    ],
}


@pytest.mark.parametrize("dense", DENSE)
def test_a_note_takes_no_more_memory_than_is_stated(dense):
    data = MARK + msgspec.msgpack.encode(DENSE[dense](1 << 20))
    assert 1 << 18 < len(data) <= 5 << 18
    tracemalloc.start()
    try:
        with suppress(WireError):
            decode_note(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most <= MEMORY_FACTOR * len(data), f"{most / len(data):.1f} times its bytes"
