"""Each rule of recovery, dropped: what a process or its journal would be without it. For `test_sim_nodes_mutants`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from antecede.errors import BadJournal
from antecede.link import Frame, Link
from antecede.process import journal as journal_module
from antecede.process import restarts
from antecede.process.anchor import Anchor
from antecede.process.bulk import Bulk
from antecede.process.core import Core
from antecede.process.inputs import Acknowledge, Input, Restart, Turn
from antecede.process.journal import Journal
from antecede.process.views.change import Changing
from antecede.process.views.members import Plan
from antecede.process.views.membership import Membership
from antecede.process.views.notes import State, Stopped
from antecede.process.views.removal import Removal
from antecede.process.views.round import Counts
from antecede.process.write_ahead import WriteAhead
from antecede.sim.nodes.node import SimNode

Patch = Callable[[pytest.MonkeyPatch], None]


# Writing ahead


def speak_early(patch: pytest.MonkeyPatch) -> None:
    """Frames leave before the input that they follow from is durable."""
    patch.setattr(WriteAhead, "hold_frames", lambda self, frames: False)


def hand_over_early(patch: pytest.MonkeyPatch) -> None:
    """A message is handed over before its arrival is durable."""
    patch.setattr(WriteAhead, "hold_messages", lambda self, arrived: None)


# The journal


def trust_rows(patch: pytest.MonkeyPatch) -> None:
    """Checksums are not compared."""
    patch.setattr(journal_module, "_crc", lambda position, count, record, before: 0)


def leave_large_records(patch: pytest.MonkeyPatch) -> None:
    """What stands beside the tables is not synced before they refer to it."""
    patch.setattr(Bulk, "sync", lambda self: None)


def write_over(patch: pytest.MonkeyPatch) -> None:
    """A snapshot begins anew in the same file, over what the tables still refer to."""

    def turn(self: Bulk) -> None:
        self.end = 0

    patch.setattr(Bulk, "turn", turn)


def leave_the_anchor(patch: pytest.MonkeyPatch) -> None:
    """An anchor that is new is not synced."""
    patch.setattr(Anchor, "_made", True, raising=False)
    real = Anchor.__init__

    def init(self: Anchor, files: Any) -> None:
        real(self, files)
        self._made = True

    patch.setattr(Anchor, "__init__", init)


def blame_the_journal(patch: pytest.MonkeyPatch) -> None:
    """A disk without room at the start is told as damage."""
    real = Journal.recover

    def recover(self: Journal, new: Core) -> Core:
        try:
            return real(self, new)
        except OSError as error:
            raise BadJournal(self.place, f"is damaged: {error}") from None

    patch.setattr(Journal, "recover", recover)


def forget_the_end(patch: pytest.MonkeyPatch) -> None:
    """The last row of inputs is not replayed."""
    real = Journal._inputs

    def inputs(self: Journal, rows: Sequence[Any]) -> Any:
        return real(self, rows[:-1])

    patch.setattr(Journal, "_inputs", inputs)
    patch.setattr(Journal, "recover", _without_tip(Journal.recover))


def _without_tip(real: Any) -> Any:
    def recover(self: Journal, new: Core) -> Core:
        tables = self._disk.tables

        def cut() -> Any:
            found = tables()
            if not found.inputs:
                return found
            rows = found.inputs[:-1]
            last = rows[-1] if rows else found.snapshots[0]
            return type(found)(found.snapshots, rows, [(last[0], last[5])])

        self._disk.tables = cut  # type: ignore[method-assign]
        self._check_anchor = lambda: None  # type: ignore[method-assign]
        try:
            return real(self, new)
        finally:
            self._disk.tables = tables  # type: ignore[method-assign]

    return recover


def never_shorten(patch: pytest.MonkeyPatch) -> None:
    """No snapshot takes the place of inputs."""
    patch.setattr(Journal, "wants_snapshot", lambda self, more: False)


def snapshot_before(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is that of the state before the inputs that it takes the place of."""
    real = SimNode.begin_write

    def begin_write(self: SimNode) -> None:
        before = getattr(self, "_earlier", None)
        self._earlier = self.core.snapshot()  # type: ignore[attr-defined]
        if before is not None and self.journal.wants_snapshot(self.written - self.durable):
            batch = self.ahead.take_batch()
            self.system.plan_write(self, lambda: self.end_write(batch, before))
            return
        real(self)

    patch.setattr(SimNode, "begin_write", begin_write)


# Coming back


def forget_the_taken(patch: pytest.MonkeyPatch) -> None:
    """What was taken and not acknowledged does not come again, and nobody is told."""
    real = restarts.come_back

    def restart(self: Core, given: Restart, now: int) -> Any:
        out = real(self, given, now)
        self.again = deque()
        self.taken.clear()
        return out

    patch.setattr(restarts, "come_back", restart)


def forget_repeats(patch: pytest.MonkeyPatch) -> None:
    """What may have been taken before a restart is handed over as if nobody had seen it."""
    patch.setattr(restarts, "list_deliverable", lambda core: iter(()))


def forget_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement is written as nothing."""
    real = Journal.append

    def append(self: Journal, inputs: Sequence[Input], *more: Any) -> None:
        real(self, [Turn() if isinstance(one, Acknowledge) else one for one in inputs], *more)

    patch.setattr(Journal, "append", append)


def forget_what_gathered(patch: pytest.MonkeyPatch) -> None:
    """What had gathered for a peer when the process died is not sent."""
    real = restarts.come_back

    def restart(self: Core, given: Restart, now: int) -> Any:
        for waiting in self.out.values():
            waiting.take()
        return real(self, given, now)

    patch.setattr(restarts, "come_back", restart)


def count_gaps_as_received(patch: pytest.MonkeyPatch) -> None:
    """A link acknowledges all before what came early."""
    real = Link._take_payload

    def arrived(self: Link, frame: Frame, now: int) -> list[Any]:
        payloads = real(self, frame, now)
        if self._early and not self.ordered:
            self.received += self._early.bit_length()
            self._early = 0
        return payloads

    patch.setattr(Link, "_take_payload", arrived)


def resend_nothing(patch: pytest.MonkeyPatch) -> None:
    """A frame that is lost is not sent again."""
    patch.setattr(Link, "_resend", lambda self, now: [])
    patch.setattr(Link, "resume", lambda self, now: [])


def take_repeats(patch: pytest.MonkeyPatch) -> None:
    """A frame that arrives twice is handed over twice."""
    real = Link._take_payload

    def arrived(self: Link, frame: Frame, now: int) -> list[Any]:
        payloads = real(self, frame, now)
        return payloads or ([] if self.ordered else [frame.payload])

    patch.setattr(Link, "_take_payload", arrived)


# Views


def lose_pieces_order(patch: pytest.MonkeyPatch) -> None:
    """The pieces of a state are put together in the order of their arrival."""
    real = Changing._receive_state
    patch.setattr(
        Changing,
        "_receive_state",
        lambda self, source, note: real(self, source, State(note.piece, note.last)),
    )


def count_early(patch: pytest.MonkeyPatch) -> None:
    """What came early is counted, though something before it is still under way."""
    real = Changing.counts

    def counts(self: Changing) -> Counts | None:
        found, links = real(self), self._core.links
        if found is None:
            return None
        into = {peer: found.into[peer] + link._early.bit_length() for peer, link in links.items()}
        return Counts(found.out, into, found.sent)

    patch.setattr(Changing, "counts", counts)


def give_no_state(patch: pytest.MonkeyPatch) -> None:
    """One that joins does not wait for its state."""
    patch.setattr(Changing, "await_state", lambda self, donor: None)


def leave_without_a_state(patch: pytest.MonkeyPatch) -> None:
    """One that joined leaves before it has its state."""
    patch.setattr(Changing, "may_leave", property(lambda self: not self.owed and not any(self._notes())))


def leave_with_a_debt(patch: pytest.MonkeyPatch) -> None:
    """One leaves before it has given the state that it owes to one that joined."""
    patch.setattr(Changing, "may_leave", property(lambda self: self.donor is None))


def remember_leaves(patch: pytest.MonkeyPatch) -> None:
    """A wish to leave stays, though another has joined since by whoever has it."""
    patch.setattr(Plan, "without_leaves", lambda self, names: self)


def tell_once(patch: pytest.MonkeyPatch) -> None:
    """What is missing of the removed is told as it is when the change settles: not what arrives later waits for."""
    settle, note = Changing.settle, Removal.note

    def settle_and_note(self: Changing, removed: tuple[int, ...]) -> None:
        self.removal._settles = True  # type: ignore[attr-defined]
        settle(self, removed)
        if self.removal.removed:
            note(self.removal)
        self.removal._settles = False  # type: ignore[attr-defined]

    def note_while_settling(self: Removal) -> None:
        if getattr(self, "_settles", False):
            note(self)

    patch.setattr(Changing, "settle", settle_and_note)
    patch.setattr(Removal, "note", note_while_settling)


def hear_again(patch: pytest.MonkeyPatch) -> None:
    """A leader that left and was removed since comes back into the round, if that is begun anew for something else."""
    real = Membership._left

    def left(self: Membership) -> Plan:
        cut, self.cut = self.cut, set()
        try:
            return real(self)
        finally:
            self.cut = cut

    patch.setattr(Membership, "_left", left)


def keep_a_wish(patch: pytest.MonkeyPatch) -> None:
    """One that is behind does not tell what one that is ahead asked for to the one that it waits for to lead."""
    patch.setattr(Membership, "_tell_successor", lambda self, plan: None)


def end_without_a_word(patch: pytest.MonkeyPatch) -> None:
    """One that leads, and learns that it has left, does not tell those that follow it."""
    begin_again, has_stopped = Membership._begin_again, Membership._has_stopped

    def end(self: Membership) -> None:
        if self.led is not None and self.led.stage == "stop" and not self.is_member:
            self.led = None
        begin_again(self)

    def ignore(self: Membership, source: int, note: Stopped) -> None:
        if self.led is not None:
            has_stopped(self, source, note)

    patch.setattr(Membership, "_begin_again", end)
    patch.setattr(Membership, "_has_stopped", ignore)


RECOVERY: tuple[Patch, ...] = (
    speak_early, hand_over_early, trust_rows, leave_large_records, write_over, leave_the_anchor,
    blame_the_journal, forget_the_end, never_shorten, snapshot_before, forget_the_taken,
    forget_repeats, forget_acknowledgements, forget_what_gathered, count_gaps_as_received, resend_nothing,
    take_repeats,
)  # fmt: skip
VIEWS: tuple[Patch, ...] = (
    lose_pieces_order, count_early, give_no_state, leave_without_a_state, leave_with_a_debt, remember_leaves,
    tell_once, hear_again, keep_a_wish, end_without_a_word,
)  # fmt: skip
