"""What a process decides for whoever drives it, a node or the simulator: what waits for the disk, what is handed over
next, whether there is room, and what happens first after a restart."""

from __future__ import annotations

import pytest
from msgspec import Struct

from antecede.model import View
from antecede.process.core import Core
from antecede.process.inputs import Arrive, Propose, Restart, Send, Take, Turn, Withdraw
from antecede.process.restarts import list_first_inputs
from antecede.process.room import Room
from antecede.process.views.members import Joiner, Plan
from antecede.process.write_ahead import WriteAhead


def make_pair() -> tuple[Core, Core]:
    view = View.of("a", "b")
    a, b = (Core.new("matrix", view, name, epoch=1) for name in ("a", "b"))
    b.arrive(0, a.hail(1), 0)
    a.arrive(1, b.hail(0), 0)
    return a, b


def test_frames_wait_for_all_inputs_before_them_and_leave_in_order():
    ahead: WriteAhead[str] = WriteAhead(0)
    for frame in ("one", "two", "three"):
        ahead.write(Turn())
        assert ahead.hold_frames([frame])
    assert len(ahead.take_batch()) == 3
    assert ahead.commit(2) == ["one", "two"]
    assert ahead.hold_frames(["four"])
    assert ahead.commit(1) == ["three", "four"]
    assert not ahead.hold_frames(["five"])


def test_who_has_nothing_to_write_and_nothing_to_say_is_idle():
    ahead: WriteAhead[str] = WriteAhead(0)
    ahead.write(Turn())
    idle = [ahead.idle]
    ahead.hold_frames(["one"])
    ahead.take_batch()
    idle.append(ahead.idle)
    ahead.commit(1)
    assert [*idle, ahead.idle] == [False, False, True]


def test_a_message_is_fresh_until_the_input_with_which_it_arrived_is_durable():
    ahead: WriteAhead[str] = WriteAhead(5)
    ahead.write(Turn())
    ahead.hold_messages([(0, 1)])
    ahead.write(Turn())
    ahead.hold_messages([(0, 2)])
    ahead.commit(1)
    assert ahead.fresh == {(0, 2): 7}
    ahead.commit(1)
    assert ahead.fresh == {}


def test_what_was_taken_before_a_restart_is_offered_first_and_nothing_that_is_fresh():
    a, _ = make_pair()
    for payload in (b"one", b"two", b"three"):
        a.apply(Send((0,), payload), 0)
    a.apply(Take(0, 1), 0)
    a.apply(Restart(), 0)
    offered = a.offer(())
    assert getattr(offered, "payload", None) == b"one"
    assert a.offer((), sender=1) is None
    a.again.popleft()
    assert a.offer({(0, 2)}) is None
    assert getattr(a.offer(()), "payload", None) == b"two"


def test_a_process_is_drained_when_peers_have_acknowledged_all_that_it_sent():
    a, b = make_pair()
    assert a.is_drained(a.links)
    a.apply(Send((1,), b"hello"), 0)
    assert not a.is_drained([])
    [(_, frame)] = a.apply(Turn(), 0)
    assert a.is_drained([])
    assert not a.is_drained(a.links)
    b.apply(Arrive.of(0, frame), 0)
    for _, answer in b.tick(0, 10**9):
        a.arrive(1, answer, 0)
    assert a.is_drained(a.links)


def test_who_wanted_to_join_by_a_process_that_came_back_is_withdrawn():
    a, _ = make_pair()
    assert list_first_inputs(a, True, None) == [Restart(True, None)]
    # As one that leads, it knows who wants to join by others, too.
    joiners = tuple(Joiner(name, "", (), by) for name, by in (("c", "a"), ("d", "b")))
    a.changing.membership.wanted = Plan(join=joiners)
    assert list_first_inputs(a, False, None) == [Restart(False, None), Withdraw(("c",))]


class Limits(Struct):
    queue: int = 10
    queue_bytes: int = 1000
    held: int = 10


@pytest.mark.parametrize(
    ("limits", "to", "size", "times"),
    [
        (Limits(queue=3), (1,), 1, 3),
        (Limits(queue_bytes=100), (1,), 100, 1),
        (Limits(held=2), (0,), 1, 2),
    ],
)
def test_there_is_room_until_a_limit_is_reached(limits, to, size, times):
    a, _ = make_pair()
    room, sent = Room(a, limits), 0
    while room.has_room(to) and sent < 20:
        a.apply(Send(to, bytes(size)), 0)
        a.apply(Turn(), 0)
        sent += 1
    assert sent == times


def test_there_is_no_room_for_a_peer_that_asked_for_a_pause_nor_while_the_view_changes():
    a, _ = make_pair()
    paused: set[int] = set()
    room = Room(a, Limits(), paused)
    assert room.has_room((1,))
    paused.add(1)
    assert not room.has_room((1,))
    assert room.has_room((0,))
    paused.clear()
    a.apply(Propose(Plan(leave=("a",))), 0)
    assert not room.has_room((1,))
