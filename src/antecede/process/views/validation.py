"""Refuses notes about a change that no sound process sends, before they change anything.

A `BadFrame` ends the connection with whoever said it, and the process lives. This is the one place that doubts notes:
what comes after it (`membership`, `change`) takes them as they are.

Rules
  numbers    rounds and counts are such as can be reached by counting (`LEAP`, `members.HIGHEST`), and positions are on
             the roll
  views      a view is ours, one before it, or the one that follows it: the same names in the same places, and whoever
             is no member any more has left or was removed. A view of our number is ours.
  next view  it was not made without us: we have reported for it, and nothing is left to do since. The leader gives it,
             or one that is ahead of us, if we lead, or if it led or was to lead and has left; nobody tells us of one
             that has removed us
  leader     a round that we follow is settled, and a view let go, by the one that leads it; or let go by any member, if
             the leader is none any more
  members    who takes part in our round says that it has stopped, and reports; nobody who talks to us has cut us off
  wishes     a member asks for those to join that have asked it, and for nobody to leave but itself; names, addresses
             and groups are short, and not many
  stop       whoever says stop leads: every member before it is one that it removes, or that was removed here before

What a member says may still be a lie: one that is believed to be a member can name others as crashed, and so lead; the
first of the members can stop all, until it is removed; each member can bring in others that nobody ever hears, up to
`membership.JOINERS`, and then nobody joins or leaves until they are removed. Only that it cannot break the process that
hears it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from antecede.errors import BadFrame
from antecede.process.views.members import HIGHEST, Joiner, Plan, Roll
from antecede.process.views.notes import (
    Ahead,
    AnyNote,
    Ask,
    Go,
    Install,
    Later,
    Report,
    Resume,
    Settle,
    Stop,
    Stopped,
    Withdrawn,
)

if TYPE_CHECKING:
    from antecede.process.views.membership import Membership
    from antecede.process.views.round import Body

__all__ = ["check_joiner", "vet"]

NAME_BYTES, NAMES = 255, 4096
"""Of a name, an address or a group; and in one wish, at most."""
LEAP = 1 << 32
"""More rounds than can begin without our hearing of them. If one could name any, the last would soon be reached."""


def vet(membership: Membership, body: Body, source: int, note: AnyNote) -> None:
    """Raise `BadFrame` if no sound process at this position says this to one in this state."""
    why = _doubt(membership, source, note)
    if why is None and isinstance(note, (Stop, Install, Ahead)):
        why = _doubt_view(membership, body, note.roll)
    if why is not None:
        raise BadFrame(f"{membership.roll.names[source]} sent a note about the view, {why}: {note!r}"[:300])


def _doubt(now: Membership, source: int, note: AnyNote) -> str | None:
    """What is wrong with a note, if something is; but for the view in it."""
    match note:
        case Stop(round, _, plan):
            names = now.roll.names
            if not _near(now, round) or names[now.me] in plan.remove or names[source] in plan.remove:
                return "which does not lead us"
            before = [place for place in note.roll.without(plan.remove) if place < source]
            if source not in note.roll.members or not now.cut.issuperset(before):
                return "which is not the first of those that stay"
        case Ask(plan):
            return _doubt_wish(now, source, plan)
        case Withdrawn(told, _) if not _are_short(told):
            return "with names that are too long, or too many"
        case Resume(round) if round >= now.promised:
            before = [place for place in now.roll.members if place < source]
            if not _near(now, round) or not now.cut.issuperset(before):
                return "which does not lead this round"
            if round == now.promised and source != now.leader:
                return "which does not lead this round"
        case Settle(round) if round == now.promised:
            if source != now.leader or round <= now.roll.number:
                return "which does not lead this round"
        case Go(number) if number == now.roll.number == now.promised and not now.going:
            if source != now.leader and (now.leader in now.roll.members or source not in now.roll.members):
                return "which does not lead this view"
        case Install(roll) if roll.number > now.roll.number:
            if source != now.leader or roll.number != now.promised or not now.settled:
                return "which has decided nothing"
        case Ahead(roll) if roll.number > now.roll.number:
            if now.going or (now.led is not None and now.led.stage != "stop"):
                return "which was not asked"
        case Later(round) if not _near(now, round):
            return "beyond all counting"
        case Stopped() | Report():
            return _doubt_answer(now, source, note)
    return None


def _doubt_wish(now: Membership, source: int, plan: Plan) -> str | None:
    name = now.roll.names[source]
    if any(joiner.by != name for joiner in plan.join) or not set(plan.leave) <= {name}:
        return "which speaks for others"
    if name in plan.remove:
        return "which wants to be removed"
    told = [one for joiner in plan.join for one in _list_names(joiner)]
    return None if _are_short((*told, *plan.remove)) else "with names that are too long, or too many"


def _list_names(joiner: Joiner) -> tuple[str, ...]:
    return (joiner.name, joiner.address, *joiner.groups)


def check_joiner(joiner: Joiner) -> str | None:
    """Why nobody may ask others to let this one join, if so: they would refuse whoever asks."""
    if _are_short(_list_names(joiner)) and all((joiner.name, *joiner.groups)):
        return None
    return (
        f"names, groups and addresses have 1 to {NAME_BYTES} characters each, and there are at most {NAMES}"
    )


def _are_short(names: Sequence[str]) -> bool:
    return len(names) <= NAMES and all(len(name) <= NAME_BYTES for name in names)


def _doubt_answer(now: Membership, source: int, note: Stopped | Report) -> str | None:
    roll, led = now.roll, now.led
    stage = "stop" if isinstance(note, Stopped) else "flush"
    asked = led is not None and (led.round, led.stage) == (note.round, stage)
    if led is not None and asked and source not in roll.without(led.plan.remove):
        return "which takes no part"
    if isinstance(note, Stopped):
        strange = not set(note.cut) <= set(roll.names) or roll.names[now.me] in note.cut
        return "which hears others than we know, or not us" if strange else None
    places = range(len(roll.names))
    # What came early is not counted, but the notes among it are, so what was got may be below 0.
    known = all(place in places and _countable(abs(count)) for place, count in note.into.items())
    known = known and all(place in places and _countable(count) for place, count in note.out.items())
    return None if known and roll.sent[source] <= note.sent < HIGHEST else "which counts what is not there"


def _doubt_view(now: Membership, body: Body, roll: Roll) -> str | None:
    """What is wrong with a view, if something is."""
    names, known = roll.names, now.roll.names
    short = min(len(names), len(known))
    if names[:short] != known[:short] or roll.founders != now.roll.founders:
        return "of another system"
    if roll.number <= now.roll.number:
        same = roll == now.roll if roll.number == now.roll.number else len(names) == short > now.me
        return None if same else "with a past that is not ours"
    if now.me in roll.removed or not _follows(now.roll, roll):
        return "with a view that does not follow from ours"
    if now.led is not None and now.led.round == roll.number:
        return "with a view that only we can make"
    mine = now.reported
    if mine is None or mine.round != roll.number or mine.sent != roll.sent[now.me] or body.counts() is None:
        return "with a view that was made without us"
    error = body.accepts(roll.shown) if now.me in roll.members else None
    return None if error is None else f"with a view that cannot be: {error}"


def _follows(roll: Roll, later: Roll) -> bool:
    """Whether one view can be the one after another."""
    members, joined = set(roll.members), set(range(len(roll.names), len(later.names)))
    stay = members & set(later.members)
    return (
        len(later.names) >= len(roll.names)
        and set(later.members) == stay | joined
        and set(later.donors) == (joined if stay else set())
        and sorted((*later.left, *later.removed)) == sorted(members - stay)
        and all(before <= after for before, after in zip(roll.sent, later.sent, strict=False))
    )


def _countable(number: int) -> bool:
    return 0 <= number < HIGHEST


def _near(now: Membership, round: int) -> bool:
    return 0 <= round < now.promised + LEAP
