"""Diagrams and transcripts, as they look."""

from __future__ import annotations

from textwrap import dedent

import pytest

from antecede.diagram import render, transcript
from antecede.errors import BadRun
from antecede.model import Event, Id, View

VIEW = View.numbered(3)
x, y, z = (0, 1), (0, 2), (1, 1)
NAMES: dict[Id, str] = {x: "x", y: "y", z: "z"}


def send(message: Id, *to: int) -> Event:
    return Event(message[0], "send", *message, to)


def receive(process: int, message: Id) -> Event:
    return Event(process, "receive", *message)


def deliver(process: int, message: Id) -> Event:
    return Event(process, "deliver", *message)


START = [send(x, 2), send(y, 1), receive(1, y), deliver(1, y), send(z, 2)]
TRIANGLE = [*START, receive(2, z), deliver(2, z), receive(2, x), deliver(2, x)]
HELD = [*START, receive(2, z), receive(2, x), deliver(2, x), deliver(2, z)]


def picture(text: str) -> str:
    return dedent(text).strip("\n").rstrip()


def test_the_triangle():
    assert render(TRIANGLE, VIEW, NAMES, marks={(x, 2)}) == picture(
        """
        p1 ━━●x━━●y━━━━━━━━━━━━━━━━━━
             │   └───┐
        p2 ━━┿━━━━━━━○y━━●z━━━━━━━━━━
             │           └───┐
             └───────────────┼───┐
        p3 ━━━━━━━━━━━━━━━━━━○z━━✗x━━

        ● sent   ○ delivered   ✗ overtaken
        """
    )


def test_a_held_message_is_seen_to_arrive_and_to_be_delivered_later():
    assert render(HELD, VIEW, NAMES) == picture(
        """
        p1 ━━●x━━●y━━━━━━━━━━━━━━━━━━━━━━
             │   └───┐
        p2 ━━┿━━━━━━━○y━━●z━━━━━━━━━━━━━━
             │           └───┐
             └───────────────┼───┐
        p3 ━━━━━━━━━━━━━━━━━━◌z━━○x━━○z━━

        ● sent   ◌ received and held   ○ delivered
        """
    )


def test_pure_ascii():
    text = render(HELD, VIEW, NAMES, marks={(z, 2)}, ascii=True)
    assert text == picture(
        """
        p1 ==*x==*y======================
             |   '---.
        p2 ==|=======>y==*z==============
             |           '---.
             '---------------|---.
        p3 ==================:z==>x==!z==

        * sent   : received and held   > delivered   ! overtaken
        """
    )
    assert text.isascii()


def test_one_line_for_each_process_without_arrows():
    assert render(HELD, VIEW, NAMES, arrows=False) == picture(
        """
        p1 ━━●x━━●y━━━━━━━━━━━━━━━━━━━━━━
        p2 ━━━━━━━━━━○y━━●z━━━━━━━━━━━━━━
        p3 ━━━━━━━━━━━━━━━━━━◌z━━○x━━○z━━

        ● sent   ◌ received and held   ○ delivered
        """
    )


def test_a_wide_run_is_cut_between_events_and_continues_below():
    assert render(HELD, VIEW, NAMES, width=20) == picture(
        """
        p1 ━━●x━━●y━━━━━━
             │   └───┐
        p2 ━━┿━━━━━━━○y━━
             └───────────
        p3 ━━━━━━━━━━━━━━

        p1 ━━━━━━━━━━━━━━
        p2 ━━●z━━━━━━━━━━
             └───┐
           ──────┼───┐
        p3 ━━━━━━◌z━━○x━━

        p1 ━━━━━━
        p2 ━━━━━━
        p3 ━━○z━━

        ● sent   ◌ received and held   ○ delivered
        """
    )


@pytest.mark.parametrize("width", [1, 12, 40, 80, 110])
def test_no_line_is_wider_than_asked_unless_one_event_is(width):
    events = [event for n in range(1, 30) for event in (send((0, n), 1, 2), deliver(2, (0, n)))]
    lines = render(events, VIEW, width=width).splitlines()[:-1]
    one_event = len("p1 ━━○p1.10━━")
    assert max(map(len, lines)) <= max(width, one_event)
    assert sum(line.count("●") for line in lines) == 29, "and no event is lost"
    assert sum(line.count("○") for line in lines) == 29


def test_multicast_to_everyone_leaves_both_ways():
    events = [send(z, 0, 1, 2), deliver(1, z), deliver(2, z), deliver(0, z)]
    assert render(events, VIEW, NAMES) == picture(
        """
        p1 ━━━━━━━━━━━━━━○z━━
             ┌───────────┘
        p2 ━━●z━━○z━━━━━━━━━━
             └───────┐
        p3 ━━━━━━━━━━○z━━━━━━

        ● sent   ○ delivered
        """
    )


def test_multicast_forks_and_what_has_not_arrived_is_dotted():
    events = [send(x, 1, 2), deliver(2, x), send(y, 1), deliver(1, x)]
    assert render(events, VIEW) == picture(
        """
        p1 ━━●p1.1━━━━━━━━━●p1.2━━━━━━━━━
             │             └╌╌
             ├────────────────────┐
        p2 ━━┿━━━━━━━━━━━━━━━━━━━━○p1.1━━
             └──────┐
        p3 ━━━━━━━━━○p1.1━━━━━━━━━━━━━━━━

        ● sent   ○ delivered   ╌╌ not arrived
        """
    )


def test_messages_go_up_as_well_and_names_may_differ_in_length():
    hi = (2, 1)
    events = [send(hi, 0, 1), deliver(1, hi), deliver(0, hi)]
    assert render(events, View.of("ann", "bob", "c"), {hi: "hi"}) == picture(
        """
        ann ━━━━━━━━━━━━○hi━━
              ┌─────────┘
        bob ━━┿━━━━○hi━━━━━━━
              ├────┘
        c   ━━●hi━━━━━━━━━━━━

        ● sent   ○ delivered
        """
    )


def test_faulty_runs_are_drawn_too():
    """Delivered at a stranger, twice, and without ever having been sent."""
    events = [send(x, 1), deliver(2, x), deliver(1, x), deliver(1, x), deliver(1, (2, 5))]
    assert render(events, VIEW, NAMES) == picture(
        """
        p1 ━━●x━━━━━━━━━━━━━━━━━━━━━
             ├───────┐
        p2 ━━┿━━━━━━━○x━━○x━━○p3.5━━
             └───┐
        p3 ━━━━━━○x━━━━━━━━━━━━━━━━━

        ● sent   ○ delivered
        """
    )


def test_control_is_not_drawn_and_does_not_make_a_message_held():
    control = Event(1, "receive", 0, 9, control=True)
    with_control = [send(x, 1), receive(1, x), control, deliver(1, x)]
    assert render(with_control, VIEW) == render([send(x, 1), deliver(1, x)], VIEW)


def test_a_packet_received_again_after_its_delivery_is_not_held():
    events = [send(x, 1), deliver(1, x), receive(1, x)]
    assert render(events, VIEW) == render(events[:2], VIEW)
    assert transcript(events, VIEW).endswith("3. p2 receives p1.1 (from p1)")


def test_nothing_happened():
    assert render([], VIEW) == "p1 ━━━━\np2 ━━━━\np3 ━━━━"
    assert transcript([], VIEW) == ""


@pytest.mark.parametrize(
    ("events", "place", "reason"),
    [
        ([deliver(1, x), send(x, 1)], "events[0]", "the deliver of p1.1 comes before its send at events[1]"),
        ([send(x, 1), deliver(7, x)], "events[1]", "there is no process 7: the view has 0 to 2"),
        ([send(x, 3)], "events[0]", "there is no process 3: the view has 0 to 2"),
    ],
)
def test_what_cannot_be_drawn_is_refused(events, place, reason):
    with pytest.raises(BadRun) as refused:
        render(events, VIEW)
    assert (refused.value.place, refused.value.reason) == (place, reason)


def test_transcript_tells_each_event_in_words():
    control = [Event(0, "send", 0, 9, (1,), control=True), Event(1, "receive", 0, 9, control=True)]
    events = [*HELD, *control, send((2, 1), 0, 1, 2), deliver(2, (2, 1))]
    assert transcript(events, VIEW, NAMES, marks={(z, 2)}) == dedent(
        """\
         1. p1 sends x to p3
         2. p1 sends y to p2
         3. p2 receives y (from p1)
         4. p2 delivers y (from p1)
         5. p2 sends z to p3
         6. p3 receives z (from p2) and holds it
         7. p3 receives x (from p1)
         8. p3 delivers x (from p1)
         9. p3 delivers z (from p2), overtaken
        10. p1 sends control to p2
        11. p2 receives control (from p1)
        12. p3 sends p3.1 to p1, p2 and p3
        13. p3 delivers p3.1 (from itself)"""
    )
