"""The oracle finds every planted fault, only those, and agrees with vector clocks on random runs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede.errors import BadRun
from antecede.model import Event, Id, View
from antecede.oracle import Copy, Verdict, Violation, check, happened_before

FIELDS = ("violations", "skipped", "fifo_breaks", "duplicates", "unsent", "unaddressed", "undelivered")


def run(text: str) -> list[Event]:
    """Events from words: `0!1>1,2` process 0 sends its message 1 to 1 and 2; `2?0.1` process 2 delivers it.

    `2<0.1` receives. Events are separated by spaces.
    """
    events = []
    for word in text.split():
        if "!" in word:
            process, rest = word.split("!")
            number, to = rest.split(">")
            targets = tuple(int(q) for q in to.split(",") if q)
            events.append(Event(int(process), "send", int(process), int(number), targets))
        else:
            kind = "deliver" if "?" in word else "receive"
            process, rest = word.split("?" if kind == "deliver" else "<")
            sender, number = rest.split(".")
            events.append(Event(int(process), kind, int(sender), int(number)))  # type: ignore[arg-type]
    return events


def msg(text: str) -> Id:
    sender, number = text.split(".")
    return int(sender), int(number)


def late(text: str) -> Violation:
    """`0.1 0.2 1.1 @2`: a chain, and where its first message was overtaken by its last."""
    *chain, at = text.split()
    ids = tuple(map(msg, chain))
    return Violation(ids[0], ids[-1], int(at.removeprefix("@")), ids)


def copy(text: str) -> Copy:
    """`0.1 @2`."""
    message, at = text.split()
    return Copy(msg(message), int(at.removeprefix("@")))


# name: run, what is found in it (and nothing else)
CASES: dict[str, tuple[str, dict[str, list[str]]]] = {
    "nothing happens": ("", {}),
    "one message": ("0!1>1 1?0.1", {}),
    "the triangle in order": ("0!1>2 0!2>1 1?0.2 1!1>2 2?0.1 2?1.1", {}),
    "the triangle": (
        "0!1>2 0!2>1 1?0.2 1!1>2 2?1.1 2?0.1",
        {"violations": ["0.1 0.2 1.1 @2"]},
    ),
    "the triangle, listed process by process from the last": (
        "2?1.1 2?0.1 1?0.2 1!1>2 0!1>2 0!2>1",
        {"violations": ["0.1 0.2 1.1 @2"]},
    ),
    "concurrent messages may come in any order": ("0!1>2 1!1>2 2?1.1 2?0.1", {}),
    "a receive is no delivery": ("0!1>2 0!2>1 1?0.2 1!1>2 2<1.1 2?0.1 2?1.1", {}),
    "what was only received is not known yet": ("0!1>2 0!2>1 1<0.2 1!1>2 1?0.2 2?1.1 2?0.1", {}),
    "a chain through four processes": (
        "0!1>4 0!2>1 1?0.2 1!1>2 2?1.1 2!1>3 3?2.1 3!1>4 4?3.1 4?0.1",
        {"violations": ["0.1 0.2 1.1 2.1 3.1 @4"]},
    ),
    "a chain through the overtaken message's own multicast": (
        "0!1>1,2 1?0.1 1!1>2 2?1.1 2?0.1",
        {"violations": ["0.1 1.1 @2"]},
    ),
    "of two chains the shorter is told": (
        "0!1>1,3 0!2>2 2?0.2 2!1>1 1?0.1 1?2.1 1!1>3 3?1.1 3?0.1",
        {"violations": ["0.1 1.1 @3"]},
    ),
    "one message overtakes two, each is found": (
        "0!1>2 0!2>2 0!3>1 1?0.3 1!1>2 2?1.1 2?0.1 2?0.2",
        {"violations": ["0.1 0.3 1.1 @2", "0.2 0.3 1.1 @2"]},
    ),
    "two overtake one, the first is the witness": (
        "0!1>2 0!2>1 1?0.2 1!1>2 1!2>2 2?1.2 2?1.1 2?0.1",
        {"violations": ["1.1 1.2 @2", "0.1 0.2 1.2 @2"], "fifo_breaks": ["1.1 1.2 @2"]},
    ),
    "one message is overtaken at two processes": (
        "0!1>1,2 0!2>1,2 1?0.2 1?0.1 2?0.2 2?0.1",
        {"violations": ["0.1 0.2 @1", "0.1 0.2 @2"], "fifo_breaks": ["0.1 0.2 @1", "0.1 0.2 @2"]},
    ),
    "a fifo break whose first witness has another sender": (
        "0!1>2 0!2>1,2 1?0.2 1!1>2 2?1.1 2?0.2 2?0.1",
        {"violations": ["0.2 1.1 @2", "0.1 0.2 1.1 @2"], "fifo_breaks": ["0.1 0.2 @2"]},
    ),
    "the send's position decides, not the number": ("0!7>1 0!3>1 1?0.7 1?0.3", {}),
    "self-sends in order": ("0!1>0 0!2>0 0?0.1 0?0.2", {}),
    "self-sends out of order": (
        "0!1>0 0!2>0 0?0.2 0?0.1",
        {"violations": ["0.1 0.2 @0"], "fifo_breaks": ["0.1 0.2 @0"]},
    ),
    "an answer overtakes the sender's own copy": (
        "0!1>0,1 1?0.1 1!1>0 0?1.1 0?0.1",
        {"violations": ["0.1 1.1 @0"]},
    ),
    "the own copy comes first": ("0!1>0,1 0?0.1 1?0.1 1!1>0 0?1.1", {}),
    "sending after a message does not make it late": ("0!1>1 1!1>0 1?0.1 0?1.1", {}),
    "delivered twice": ("0!1>1 1?0.1 1?0.1", {"duplicates": ["0.1 @1"]}),
    "delivered three times": ("0!1>1 1?0.1 1?0.1 1?0.1", {"duplicates": ["0.1 @1", "0.1 @1"]}),
    "the second delivery is a duplicate, not overtaken": (
        "0!1>1 0!2>1 1?0.1 1?0.2 1?0.1",
        {"duplicates": ["0.1 @1"]},
    ),
    "the same message at two processes is no duplicate": ("0!1>1,2 1?0.1 2?0.1", {}),
    "never sent": ("1?0.1", {"unsent": ["0.1 @1"]}),
    "what was never sent overtakes nothing": ("0!2>1 1?0.2 1?0.1", {"unsent": ["0.1 @1"]}),
    "not addressed": ("0!1>1 1?0.1 2?0.1", {"unaddressed": ["0.1 @2"]}),
    "not addressed, and yet it carries news": (
        "0!1>2 0!2>1 3?0.2 1?0.2 3!1>2 2?3.1 2?0.1",
        {"unaddressed": ["0.2 @3"], "violations": ["0.1 0.2 3.1 @2"]},
    ),
    "never delivered": ("0!1>1,2 2?0.1", {"undelivered": ["0.1 @1"]}),
    "never delivered, and overtaken": (
        "0!1>2 0!2>1 1?0.2 1!1>2 2?1.1",
        {"skipped": ["0.1 0.2 1.1 @2"], "undelivered": ["0.1 @2"]},
    ),
    "everything at once": (
        "0!1>1 0!2>1 0!3>2 1?0.2 1?0.1 1?0.1 1?0.3 1?2.1",
        {
            "violations": ["0.1 0.2 @1"],
            "fifo_breaks": ["0.1 0.2 @1"],
            "duplicates": ["0.1 @1"],
            "unsent": ["2.1 @1"],
            "unaddressed": ["0.3 @1"],
            "undelivered": ["0.3 @2"],
        },
    ),
}


def list_found(verdict: Verdict) -> dict[str, list[Violation] | list[Copy]]:
    return {field: list(getattr(verdict, field)) for field in FIELDS if getattr(verdict, field)}


def list_planted(findings: Mapping[str, list[str]]) -> dict[str, list[Violation] | list[Copy]]:
    order = ("violations", "skipped", "fifo_breaks")
    return {
        field: [late(text) for text in texts] if field in order else [copy(text) for text in texts]
        for field, texts in findings.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_finds_what_was_planted_and_nothing_else(name):
    text, findings = CASES[name]
    verdict = check(run(text))
    assert list_found(verdict) == list_planted(findings)
    assert verdict.ok == (not findings)
    assert verdict.deliveries == text.count("?")


def test_unfinished_run_owes_no_delivery():
    assert check(run("0!1>1,2 2?0.1"), complete=False).ok


def test_unfinished_run_is_broken_as_soon_as_a_message_is_overtaken():
    verdict = check(run("0!1>2 0!2>1 1?0.2 1!1>2 2?1.1"), complete=False)
    assert list_found(verdict) == list_planted({"skipped": ["0.1 0.2 1.1 @2"]})
    assert not verdict.ok


def test_order_is_judged_only_where_asked():
    events = run("0!1>1,2 0!2>1,2 1?0.2 1?0.1 2?0.2 2?0.1")
    assert [v.at for v in check(events, at={2}).violations] == [2]
    assert [v.at for v in check(events, at={2}).fifo_breaks] == [2]
    assert check(events, at=()).ok
    assert not check(run("0!1>1 1?0.1 1?0.1"), at=()).ok, "a duplicate is wrong wherever it is"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("0!1>1 0!2>1 1?0.1 1?0.2", {"none", "fifo", "causal"}),
        ("0!1>2 0!2>1 1?0.2 1!1>2 2?1.1 2?0.1", {"none", "fifo"}),
        ("0!1>1 0!2>1 1?0.2 1?0.1", {"none"}),
        ("0!1>1 1?0.1 1?0.1", set()),
        ("0!1>1", set()),
    ],
)
def test_a_run_keeps_the_weaker_orders_too(text, kept):
    verdict = check(run(text))
    assert {order for order in ("none", "fifo", "causal") if verdict.keeps(order)} == kept


def test_control_is_no_part_of_the_order():
    events = run("0!1>2 0!2>1 1?0.2 1!1>2 2?1.1 2?0.1")
    events[1] = Event(0, "send", 0, 2, (1,), control=True)
    events[2] = Event(1, "deliver", 0, 2, control=True)
    assert check(events).ok


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("0!1>1 0!1>1", "events[1]", "message 1 of process 0 is sent a second time, after events[0]"),
        ("0?0.1 0!1>0", "happened-before", "events[0]"),
        ("0?1.1 0!1>1 1?0.1 1!1>0", "happened-before", "cycle"),
        ("0!1>3", "events[0]", "no process 3: processes are 0 to 2"),
        ("0!1>1 5?0.1", "events[1]", "no process 5: processes are 0 to 2"),
        ("0!1>1 1?7.1", "events[1]", "no process 7: processes are 0 to 2"),
    ],
)
def test_what_cannot_be_a_run_is_refused(text, place, reason):
    with pytest.raises(BadRun) as refused:
        check(run(text), processes=3)
    assert refused.value.place == place
    assert reason in refused.value.reason


def test_a_send_by_another_than_the_sender_is_refused():
    with pytest.raises(BadRun, match=r"events\[0\]: process 1 sends message 1 of process 0"):
        check([Event(1, "send", 0, 1, (2,))])


def test_a_cycle_is_told_event_by_event():
    with pytest.raises(BadRun) as refused:
        happened_before(run("0?1.1 0!1>1 1?0.1 1!1>0"))
    assert refused.value.reason.count("events[") == 5, "four events, and the first again"


def test_happened_before_is_the_closure_of_program_order_and_messages():
    order = happened_before(run("0!1>2 0!2>1 1?0.2 2<0.1 1!1>2 2?1.1"))
    before = {(a, b) for a in range(6) for b in range(6) if order.before(a, b)}
    assert before == {(0, 1), (0, 2), (0, 4), (0, 5), (1, 2), (1, 4), (1, 5), (2, 4), (2, 5), (4, 5)}
    assert order.past((1, 1)) == {(0, 1), (0, 2)}
    assert order.past((0, 1)) == frozenset()


def test_findings_are_told_in_words():
    text, _ = CASES["everything at once"]
    assert check(run(text)).explain(View.numbered(3), {(0, 1): "x"}).splitlines() == [
        "violation: p2 delivered x after p1.2, which it causally precedes: x -> p1.2",
        "fifo break: p2 delivered x after p1.2, which its sender sent later",
        "duplicate: p2 delivered x again",
        "unsent: p2 delivered p3.1, which nobody sent",
        "unaddressed: p2 delivered p1.3, which was not addressed to it",
        "undelivered: p3 never delivered p1.3, which was addressed to it",
    ]
    skipped = check(run("0!1>2 0!2>1 1?0.2 1!1>2 2?1.1"), complete=False)
    assert str(skipped) == (
        "skipped: #2 delivered #1.1, but not #0.1, which causally precedes it: #0.1 -> #0.2 -> #1.1"
    )
    assert str(check(run("0!1>1 1?0.1"))) == "1 delivery, nothing wrong"


# A second computation, with vector clocks, which shares no thought with the first.

STEP = st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 14), st.integers(0, 10**6))


def random_run(steps: list[tuple[int, bool, int, int]]) -> list[Event]:
    """A run on a network that reorders, and now and then delivers twice, to a stranger, or what nobody sent."""
    events: list[Event] = []
    sent = [0] * 4
    on_the_way: list[tuple[int, Id]] = []
    for process, sends, targets, draw in steps:
        here = [message for q, message in on_the_way if q == process]
        if sends or not here:
            sent[process] += 1
            to = tuple(q for q in range(4) if (targets + 1) >> q & 1)
            events.append(Event(process, "send", process, sent[process], to))
            on_the_way += [(q, (process, sent[process])) for q in to]
        else:
            message = here[draw % len(here)]
            at = draw % 4 if draw % 17 == 3 else process
            if draw % 13 != 5 and at == process:
                on_the_way.remove((process, message))
            if draw % 19 == 7:
                message = (draw % 4, 1000 + draw)
            events.append(Event(at, "deliver", *message))
    return events


def by_clocks(events: list[Event]) -> tuple[set[tuple[Id, int]], set[tuple[Id, int]]]:
    """The overtaken and the skipped (message, process) pairs, by vector clocks over sends.

    `news[q]` is the merge of the clocks of what q delivered: m from p is overtaken at q exactly when news[q][p] already
    counts m. For q != p that is q's own clock, as q learns of p's sends only by deliveries.
    """
    clocks = [[0] * 4 for _ in range(4)]
    news = [[0] * 4 for _ in range(4)]
    stamps: dict[Id, tuple[int, ...]] = {}
    delivered: set[tuple[Id, int]] = set()
    overtaken = set()
    for event in events:
        p, m = event.process, event.id
        if event.kind == "send":
            clocks[p][p] += 1
            stamps[m] = tuple(clocks[p])
        elif m in stamps:
            if (m, p) not in delivered and news[p][m[0]] >= stamps[m][m[0]]:
                overtaken.add((m, p))
            delivered.add((m, p))
            news[p] = list(map(max, news[p], stamps[m]))
            clocks[p] = list(map(max, clocks[p], stamps[m]))
    owed = {(event.id, q) for event in events for q in event.to if event.kind == "send"}
    skipped = {(m, q) for m, q in owed - delivered if news[q][m[0]] >= stamps[m][m[0]]}
    return overtaken, skipped


def is_chain(events: list[Event], chain: tuple[Id, ...]) -> bool:
    """Whether each message's sender had sent or delivered the one before it."""
    for first, second in pairwise(chain):
        own = [(e.kind, e.id) for e in events if e.process == second[0]]
        known = own[: own.index(("send", second))]
        if ("send", first) not in known and ("deliver", first) not in known:
            return False
    return True


@given(st.lists(STEP, max_size=60))
def test_agrees_with_vector_clocks(steps):
    events = random_run(steps)
    verdict = check(events, processes=4)
    overtaken, skipped = by_clocks(events)
    assert sorted(verdict.marks) == sorted((v.overtaken, v.at) for v in verdict.violations)
    assert verdict.marks == overtaken
    assert {(v.overtaken, v.at) for v in verdict.skipped} == skipped
    assert {(v.overtaken, v.at) for v in verdict.fifo_breaks} <= overtaken
    for v in (*verdict.violations, *verdict.skipped, *verdict.fifo_breaks):
        assert (v.chain[0], v.chain[-1]) == (v.overtaken, v.by)
        assert is_chain(events, v.chain)


@given(st.lists(STEP, max_size=40), st.permutations(range(4)))
def test_only_each_process_own_order_matters(steps, processes):
    events = random_run(steps)
    regrouped = [event for process in processes for event in events if event.process == process]
    first, second = check(events), check(regrouped)
    assert {(v.overtaken, v.by, v.at, len(v.chain)) for v in first.violations} == {
        (v.overtaken, v.by, v.at, len(v.chain)) for v in second.violations
    }
    for field in ("fifo_breaks", "duplicates", "unsent", "unaddressed"):
        assert getattr(first, field) == getattr(second, field)
    for field in ("skipped", "undelivered"):
        assert len(getattr(first, field)) == len(getattr(second, field))


@given(st.lists(STEP, max_size=40))
def test_counts_agree_with_plain_counting(steps):
    events = random_run(steps)
    verdict = check(events)
    sends = {event.id: event.to for event in events if event.kind == "send"}
    deliveries = [(event.id, event.process) for event in events if event.kind == "deliver"]
    assert verdict.deliveries == len(deliveries)
    assert len(verdict.duplicates) == len(deliveries) - len(set(deliveries))
    assert {(c.message, c.at) for c in verdict.unsent} == {d for d in deliveries if d[0] not in sends}
    strangers = {(m, q) for m, q in deliveries if m in sends and q not in sends[m]}
    assert {(c.message, c.at) for c in verdict.unaddressed} == strangers
    owed = {(m, q) for m, to in sends.items() for q in to}
    assert {(c.message, c.at) for c in verdict.undelivered} == owed - set(deliveries)
