"""Every schedule of a change in systems of two and three: what is promised holds, and each of its rules is needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antecede.process.views.change import Changing
from antecede.process.views.members import Joiner, Plan, Roll
from antecede.process.views.membership import Membership
from antecede.process.views.notes import Ahead, AnyNote, Report, Stop, Stopped
from antecede.process.views.round import Counts
from tests.view_explore import Story, explore


def leave(name: str) -> tuple[str, Plan]:
    return name, Plan(leave=(name,))


def remove(name: str, by: str) -> tuple[str, Plan]:
    return by, Plan(remove=(name,))


def join(by: str) -> tuple[str, Plan]:
    return by, Plan(join=(Joiner("d", "", ("all",), by),))


CHAIN = (("a", "bc", ""), ("b", "c", "a"), ("c", "a", ""))
"""An answer, and a message that goes the other way."""
PAIR = (("a", "ab", ""), ("b", "a", "a"))
ONE = (("b", "c", ""),)

STORIES = {
    **{f"{x} leaves": Story("abc", CHAIN, (leave(x),)) for x in "abc"},
    **{f"one joins by {x}": Story("ab", PAIR, (join(x),)) for x in "ab"},
    **{
        f"{x} dies, {y} has it removed": Story("abc", CHAIN, (remove(x, y),), x)
        for x in "abc"
        for y in "abc"
        if x != y
    },
    **{
        f"{z} leaves, {x} dies": Story("abc", ONE, (remove(x, "b" if x == "a" else "a"), leave(z)), x)
        for x in "abc"
        for z in "abc"
        if x != z
    },
    **{
        f"{z} leaves, {x} dies, {y} has it removed": Story("abc", ONE, (remove(x, y), leave(z)), x)
        for z, x, y in ("abc", "acb", "bac")
    },
    **{
        f"one joins by {z}, {x} dies": Story(
            "ab", PAIR[:1], (remove(x, "b" if x == "a" else "a"), join(z)), x
        )
        for x in "ab"
        for z in "ab"
    },
    **{f"one joins by {x}, or not": Story("ab", PAIR, (join(x),), withdraws=True) for x in "ab"},
    "one joins by c, or not": Story("abc", ONE, (join("c"),), withdraws=True),
    "one joins or not, one leaves": Story("ab", ONE[:0], (join("a"), leave("b")), withdraws=True),
    "one leaves, then one joins or not": Story("abc", (), (leave("c"), join("a")), withdraws=True),
    "one joins or not, one dies": Story("ab", PAIR[:1], (join("b"), remove("a", "b")), "a", withdraws=True),
    "one joins or not, permits are under way": Story(
        "ab", PAIR, (join("b"),), protocol="permit", withdraws=True
    ),
    **{
        f"one joins by {x} and may never come, {x} dies": Story(
            members, says, (remove(x, by), join(x)), x, may_stay_away=True
        )
        for members, says, x, by in (
            ("ab", PAIR[:1], "a", "b"),
            ("ab", PAIR[:1], "b", "a"),
            ("abc", (), "c", "a"),
        )
    },
    "one joins and may never come, whoever vouches for it has it removed": Story(
        "ab", PAIR[:1], (join("b"), remove("d", "b")), may_stay_away=True
    ),
    "one joins and may never come, one leaves": Story(
        "ab", (), (join("b"), leave("a"), remove("d", "b")), may_stay_away=True
    ),
    "two leave": Story("abc", ONE, (leave("a"), leave("c"))),
    "one of two leaves": Story("ab", PAIR, (leave("a"),)),
    "one joins, permits are under way": Story("ab", PAIR, (join("b"),), protocol="permit"),
    "c leaves, permits are under way": Story("abc", ONE, (leave("c"),), protocol="permit"),
    "a dies, permits are awaited": Story("abc", CHAIN, (remove("a", "c"),), "a", protocol="permit"),
    "c dies, permits are awaited": Story("abc", CHAIN, (remove("c", "b"),), "c", protocol="permit"),
}


@pytest.mark.parametrize("name", STORIES)
def test_every_schedule_keeps_what_is_promised(name):
    found = explore(STORIES[name])
    assert not found.wrong, "\n".join([found.wrong, *found.path])
    assert found.complete
    assert found.ends


# Each rule is needed: without it some schedule goes wrong


Patch = Callable[[pytest.MonkeyPatch], None]


def settle_at_once(patch: pytest.MonkeyPatch) -> None:
    """The leader waits for the first that has stopped, not for all."""
    real = Membership._has_stopped

    def has_stopped(self: Membership, source: int, note: Stopped) -> None:
        if self.led is not None and self.led.round == note.round and self.led.stage == "stop":
            self.led.stopped.update(self.roll.members)
        real(self, source, note)

    patch.setattr(Membership, "_has_stopped", has_stopped)


def send_on(patch: pytest.MonkeyPatch) -> None:
    """Who was told to stop goes on sending."""
    real = Membership._stop

    def stop(self: Membership, leader: int, note: Stop) -> None:
        real(self, leader, note)
        self.going = True

    patch.setattr(Membership, "_stop", stop)


def count_nothing(patch: pytest.MonkeyPatch) -> None:
    """The leader decides when all have reported, whatever they count."""
    real = Membership._has_reported

    def has_reported(self: Membership, source: int, note: Report) -> None:
        real(self, source, Report(note.round, {}, {}, note.sent))

    patch.setattr(Membership, "_has_reported", has_reported)


def count_gaps(patch: pytest.MonkeyPatch) -> None:
    """What came early is counted, though something before it is still under way."""
    real = Changing.counts

    def counts(self: Changing) -> Counts | None:
        found, links = real(self), self._core.links
        if found is None:
            return None
        into = {
            peer: found.into[peer] + max(getattr(link, "early", ()), default=link.received) - link.received
            for peer, link in links.items()
        }
        return Counts(found.out, into, found.sent)

    patch.setattr(Changing, "counts", counts)


def report_early(patch: pytest.MonkeyPatch) -> None:
    """A process reports though something waits to leave it."""
    real = Changing.counts

    def counts(self: Changing) -> Counts | None:
        out, self._core.out = self._core.out, {}
        try:
            return real(self)
        finally:
            self._core.out = out

    patch.setattr(Changing, "counts", counts)


def go_early(patch: pytest.MonkeyPatch) -> None:
    """The leader lets sends go on as soon as it has installed the view itself."""
    real = Membership._finish

    def finish(self: Membership) -> None:
        if self.led is not None:
            self.led.awaited.clear()
        real(self)

    patch.setattr(Membership, "_finish", finish)


def hear_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Whoever is removed is still heard."""
    patch.setattr(Changing, "cut", lambda self, place: None)


def wait_for_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Nothing that waits for the removed is let go."""
    real = Changing.settle
    patch.setattr(Changing, "settle", lambda self, removed: real(self, ()))


def forget_once(patch: pytest.MonkeyPatch) -> None:
    """What waits for the removed is let go when the round settles, and not again after something else arrives."""
    real = Changing.settle

    def settle(self: Changing, removed: tuple[int, ...]) -> None:
        real(self, removed)
        self.removal.removed = ()

    patch.setattr(Changing, "settle", settle)


def decide_anew(patch: pytest.MonkeyPatch) -> None:
    """Who has what a dead leader decided follows the next one without a word."""
    real = Membership._stop

    def stop(self: Membership, leader: int, note: Stop) -> None:
        real(
            self, leader, Stop(note.round, max(note.roll, self.roll, key=lambda roll: roll.number), note.plan)
        )

    patch.setattr(Membership, "_stop", stop)


def leave_behind(patch: pytest.MonkeyPatch) -> None:
    """A leader does not install what others have and it has not."""
    patch.setattr(Membership, "_catch_up", lambda self, roll: None)


def lead_others(patch: pytest.MonkeyPatch) -> None:
    """Who has left with what was decided goes on leading."""

    def begin_again(self: Membership) -> None:
        self.wanted = self._left()
        if self.led is not None and self.led.stage == "stop":
            self._begin()

    patch.setattr(Membership, "_begin_again", begin_again)


def wait_for_the_leader(patch: pytest.MonkeyPatch) -> None:
    """Nobody takes over from a leader that is removed while it leads."""
    real = Membership._consider

    def consider(self: Membership) -> None:
        if self.going or self.leader == self.me or self.led is not None:
            real(self)

    patch.setattr(Membership, "_consider", consider)


def repeat_a_round(patch: pytest.MonkeyPatch) -> None:
    """A round has the number of the last one."""
    real = Membership._begin

    def begin(self: Membership) -> None:
        self.promised -= self.promised > self.roll.number
        real(self)

    patch.setattr(Membership, "_begin", begin)


def live_early(patch: pytest.MonkeyPatch) -> None:
    """One that joins begins to live as soon as one member has the view."""
    patch.setattr(Membership, "firm", property(lambda self: True))


def part_at_once(patch: pytest.MonkeyPatch) -> None:
    """Whoever left is forgotten when the view is installed, not when all have it."""
    real = Changing.install

    def install(self: Changing, roll: Roll) -> None:
        real(self, roll)
        self.part(roll)

    patch.setattr(Changing, "install", install)


def stay_stopped(patch: pytest.MonkeyPatch) -> None:
    """A round that is called off leaves all where they are."""
    patch.setattr(Membership, "_resume", lambda self, leader, round: None)


def resume_now_only(patch: pytest.MonkeyPatch) -> None:
    """A word that a round is off is forgotten if it overtakes the word that it began."""
    real = Membership._resume

    def resume(self: Membership, leader: int, round: int) -> None:
        if round <= self.promised:
            real(self, leader, round)

    patch.setattr(Membership, "_resume", resume)


def vouch_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """One that never came stays a member, though the member that let it join was removed."""
    patch.setattr(Membership, "list_unheard", lambda self: {})


def let_in_whom_the_dead_asked(patch: pytest.MonkeyPatch) -> None:
    """One joins though the member that it asked is removed, and nobody knows whether it lives."""
    real = Membership._left

    def left(self: Membership) -> Plan:
        return Plan(join=self.wanted.left(self.roll).join) | real(self)

    patch.setattr(Membership, "_left", left)


def tell_members_alone(patch: pytest.MonkeyPatch) -> None:
    """A leader that has left with its own view does not hear whom it need not wait for."""
    real = Membership.ask

    def ask(self: Membership, plan: Plan) -> None:
        leader, self.leader = self.leader, self.me
        real(self, plan)
        self.leader = leader

    patch.setattr(Membership, "ask", ask)


def leave_without_a_word(patch: pytest.MonkeyPatch) -> None:
    """Who has left does not tell the view to one that waits for it to lead."""
    real = Membership._say

    def say(self: Membership, dest: int, note: AnyNote) -> None:
        if not (isinstance(note, Ahead) and not self.is_member):
            real(self, dest, note)

    patch.setattr(Membership, "_say", say)


NEEDED: dict[Patch, tuple[str, str]] = {
    settle_at_once: ("c leaves, a dies", "refuses"),
    send_on: ("one joins by b", "is not so"),
    count_nothing: ("one joins by b, a dies", "refuses"),
    count_gaps: ("a leaves, c dies", "is stuck"),
    report_early: ("one joins, permits are under way", "refuses"),
    go_early: ("a leaves, c dies", "refuses"),
    hear_the_dead: ("a dies, c has it removed", "refuses"),
    wait_for_the_dead: ("a dies, b has it removed", "messages"),
    forget_once: ("a dies, c has it removed", "messages"),
    decide_anew: ("b leaves, a dies", "refuses"),
    leave_behind: ("b leaves, a dies", "is stuck"),
    lead_others: ("b leaves, a dies", "refuses"),
    wait_for_the_leader: ("one joins by b, a dies", "is stuck"),
    repeat_a_round: ("one joins by b, a dies", "two views of one number"),
    live_early: ("one joins by b, a dies", "has the dead among its members"),
    part_at_once: ("b leaves, c dies", "is stuck"),
    stay_stopped: ("one joins by b, or not", "is stuck"),
    vouch_for_nobody: ("one joins by b and may never come, b dies", "is stuck"),
    let_in_whom_the_dead_asked: ("one joins by b and may never come, b dies", "never came"),
    tell_members_alone: ("a leaves, b dies, c has it removed", "is stuck"),
    leave_without_a_word: ("b leaves, a dies, c has it removed", "is stuck"),
    resume_now_only: ("one joins by b, or not", "is stuck"),
}


@pytest.mark.parametrize("rule", NEEDED, ids=lambda rule: rule.__name__)
def test_without_this_rule_some_schedule_goes_wrong(rule, monkeypatch):
    story, told = NEEDED[rule]
    rule(monkeypatch)
    found = explore(STORIES[story])
    assert told in found.wrong
    assert found.path
