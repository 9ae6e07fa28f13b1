"""The explorer: what it finds, that it misses nothing, and that what it finds can be replayed."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from antecede import oracle
from antecede.errors import BadProgram, BadRun, Unsupported
from antecede.explore import Explorer, _Search, explore
from antecede.model import Event, View, bits
from antecede.program import Program, enumerate_programs, parse
from antecede.protocols import PROTOCOLS, create
from antecede.protocols.fifo import Fifo
from antecede.protocols.receiver import Receiver
from antecede.replay import explain, replay
from antecede.steps import Make, Order, identity

CAUSAL = [
    name
    for name, kind in PROTOCOLS.items()
    if kind.order == "causal" and name not in ("monitor", "broadcast")
]

TRIANGLE = parse("p1: send x to p3; send y to p2\np2: receive y; send z to p3\np3:")

# Mattern & Fünfrocken 1995, sections 4.1 and 4.2
AGAINST_THE_ORDER = parse(
    "p1: send x to p3; send y to p2\np2: receive; send z to p3\np3: receive from p2; receive from p1"
)
OVERLAPPING_CROWNS = parse(
    """
    p1: send e to p2; send d to p3; receive a; receive b
    p2: send c to p3; send b to p1; receive e; receive f
    p3: send a to p1; send f to p2; receive c; receive d
    """
)
NESTED_CROWNS = parse(
    """
    p1: send e to p2; send d to p3; receive b; receive a
    p2: send c to p3; send b to p1; receive f; receive e
    p3: send a to p1; send f to p2; receive d; receive c
    """
)
LAST = parse("p1: send x to p2\np2: receive from p1; receive from p3\np3: send y to p2")


def machines(protocol: str, view: View, **parameters: Any) -> Make:
    parameters = {**PROTOCOLS[protocol].tightest(len(view)), **parameters}
    return lambda process: create(protocol, view, process, **parameters)


def verdict(protocol: str, program: Program, **parameters: Any) -> str:
    return explore(program, machines(protocol, program.view, **parameters)).verdict


# What it says


@pytest.mark.parametrize("protocol", CAUSAL)
def test_the_triangle_holds_under_causal_protocols(protocol: str) -> None:
    assert verdict(protocol, TRIANGLE) == "holds"


@pytest.mark.parametrize("protocol", ["unordered", "fifo"])
def test_the_triangle_breaks_the_controls(protocol: str) -> None:
    explorer = Explorer(machines(protocol, TRIANGLE.view))
    found = explain(explorer, explorer.run(TRIANGLE))
    assert found.why == "p3 delivers z before x, which happened before it"
    assert "5. p2 sends z to p3" in found.transcript
    assert found.transcript.endswith("p3 delivers x (from p1), overtaken")


@pytest.mark.parametrize(
    ("protocol", "order", "expected"),
    [
        ("unordered", "causal", "broken"),
        ("unordered", "fifo", "broken"),
        ("unordered", "none", "holds"),
        ("fifo", "causal", "broken"),
        ("fifo", "fifo", "holds"),
    ],
)
def test_no_more_is_demanded_than_was_asked_for(protocol: str, order: Order, expected: str) -> None:
    program = parse("p1: send x to p3; send w to p3; send y to p2\np2: receive; send z to p3\np3:")
    assert explore(program, machines(protocol, program.view), order=order).verdict == expected


@pytest.mark.parametrize(
    ("program", "protocol", "expected"),
    [
        (AGAINST_THE_ORDER, "matrix", "never finishes"),
        (AGAINST_THE_ORDER, "buffer", "never finishes"),
        (AGAINST_THE_ORDER, "unordered", "broken"),
        (OVERLAPPING_CROWNS, "matrix", "holds"),
        (OVERLAPPING_CROWNS, "buffer", "blocks"),
        (NESTED_CROWNS, "matrix", "holds"),
        (NESTED_CROWNS, "buffer", "never finishes"),
        (LAST, "matrix", "holds"),
        (LAST, "history", "holds"),
        (LAST, "buffer", "blocks"),
        (LAST, "permit", "blocks"),
        (LAST, "underway", "holds"),
    ],
)
def test_selective_receives_block_where_the_paper_says(
    program: Program, protocol: str, expected: str
) -> None:
    assert verdict(protocol, program) == expected


def test_a_blocked_run_says_who_waits_for_what() -> None:
    explorer = Explorer(machines("buffer", LAST.view))
    found = explain(explorer, explorer.run(LAST))
    assert found.kind == "blocked"
    assert found.waits == (
        "p2 waits at: receive from p1",
        "p2 could deliver y",
        "p2 holds x (held): waits for y; behind the head of the input buffer",
        "p2 has not delivered x, y",
    )


def test_a_send_waits_for_what_it_answers() -> None:
    program = parse("p1: send x to p2\np2: send y to p1 after x")
    [run] = Explorer(machines("unordered", program.view)).runs(program)
    assert run == (("send x", "deliver y"), ("deliver x", "send y"))


def test_messages_with_different_labels_do_not_delay_each_other() -> None:
    text = "p1: send x to p3 label red; send y to p2 label {0}\np2: receive y; send z to p3 label {0}\np3:"
    alike, apart = parse(text.format("red")), parse(text.format("blue"))
    orders = [
        {run[2] for run in Explorer(machines("history", program.view)).runs(program)}
        for program in (alike, apart)
    ]
    assert orders == [
        {("deliver x", "deliver z")},
        {("deliver x", "deliver z"), ("deliver z", "deliver x")},
    ]
    assert verdict("history", alike) == verdict("history", apart) == "holds"


def test_order_is_promised_at_the_monitor_alone() -> None:
    at_p3 = machines("monitor", TRIANGLE.view, monitor="p3")
    assert explore(TRIANGLE, at_p3).verdict == "holds"
    runs = Explorer(machines("monitor", TRIANGLE.view, monitor="p1")).runs(TRIANGLE)
    assert any(run[2] == ("deliver z", "deliver x") for run in runs)


def test_a_program_that_the_machines_cannot_run_is_refused() -> None:
    with pytest.raises(BadProgram, match="program: has 3 processes, and there are machines for 2"):
        explore(TRIANGLE, machines("matrix", View.numbered(2)))
    with pytest.raises(Unsupported, match="broadcast: message x"):
        explore(TRIANGLE, machines("broadcast", TRIANGLE.view))
    with pytest.raises(Unsupported, match="matrix: message x: it cannot order by label 'red'"):
        explore(parse("p1: send x to p1 label red"), machines("matrix", View.numbered(1)))


def test_a_search_that_is_stopped_knows_nothing() -> None:
    program = parse(
        "p1: send a to p1, p2, p3; send d to p2\np2: send b to p1, p2, p3\np3: send c to p1, p2, p3"
    )
    found = explore(program, machines("permit", program.view), stop=lambda: True)
    assert (found.verdict, found.complete) == ("unknown", False)


# All small programs


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_program_of_two_messages_keeps_what_the_protocol_promises(protocol: str) -> None:
    view = View.numbered(3)
    explorer = Explorer(machines(protocol, view), order=PROTOCOLS[protocol].order)
    for program in programs_for(protocol, 3, 2):
        assert explorer.run(program).verdict == "holds", program


@pytest.mark.parametrize("protocol", [*CAUSAL, "monitor"])
def test_every_program_of_three_unicasts_keeps_causal_order(protocol: str) -> None:
    explorer = Explorer(machines(protocol, View.numbered(3)))
    for program in programs_for(protocol, 3, 3, unicast=True):
        assert explorer.run(program).verdict == "holds", program


def test_a_pipelined_buffer_relies_on_channels_that_keep_their_order() -> None:
    make = machines("buffer", View.numbered(3), pipelined=True)
    explorer = Explorer(make)
    for program in programs_for("buffer", 3, 3, unicast=True):
        assert explorer.run(program).verdict == "holds", program
    explorer.steps.fifo = False
    twice = parse("p1: send a to p2; send b to p2\np2:\np3:")
    assert explorer.run(twice).verdict != "holds"


def programs_for(protocol: str, n: int, messages: int, unicast: bool = False) -> list[Program]:
    machine = machines(protocol, View.numbered(n))(0)
    return enumerate_programs(
        n,
        messages,
        unicast=unicast,
        classes=[machine.orders_at(p) for p in range(n)],
        accepts=lambda sender, to: machine.accepts(sender, to) is None,
    )


# Nothing is missed


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_reduction_loses_no_run(protocol: str) -> None:
    make = machines(protocol, View.numbered(3))
    reduced, full = Explorer(make), Explorer(make, reduce=False)
    for program in programs_for(protocol, 3, 2):
        assert reduced.runs(program) == full.runs(program), program
        assert reduced.run(program).verdict == full.run(program).verdict, program


@pytest.mark.parametrize("protocol", ["unordered", "fifo", "matrix", "bounded"])
def test_reduction_loses_no_run_of_three_unicasts(protocol: str) -> None:
    make = machines(protocol, View.numbered(3))
    reduced, full = Explorer(make), Explorer(make, reduce=False)
    for program in programs_for(protocol, 3, 3, unicast=True)[::3]:
        assert reduced.runs(program) == full.runs(program), program


@pytest.mark.parametrize("protocol", ["matrix", "buffer", "permit"])
@pytest.mark.parametrize("program", [TRIANGLE, AGAINST_THE_ORDER, LAST])
def test_reduction_loses_no_run_of_selective_receives(protocol: str, program: Program) -> None:
    make = machines(protocol, program.view)
    assert Explorer(make).runs(program) == Explorer(make, reduce=False).runs(program)


def test_schedules_are_counted_exactly() -> None:
    program = parse("p1: send a to p2\np2: send b to p1")
    make = machines("matrix", program.view)
    # Send, arrival and delivery of a, each before the next; the same of b. Unreduced: all 6!/(3! 3!) shuffles of the
    # two. A delivery and a send of one process do not commute, those of different ones do: 3 partial orders.
    assert explore(program, make, reduce=False).schedules == 20
    assert len(Explorer(make).runs(program)) == 3


def reachable(search: _Search) -> Iterator[tuple[int, ...]]:
    states = [tuple(search.steps.start(vertex) for vertex in range(search.n))]
    seen = set(states)
    for state in states:
        yield state
        for after in search.expand(state):
            if after not in seen:
                seen.add(after)
                states.append(after)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrivals_that_are_said_to_commute_do(protocol: str) -> None:
    explorer = Explorer(machines(protocol, View.numbered(3)), order="none", reduce=False)
    steps = explorer.steps
    diamonds = 0
    for program in programs_for(protocol, 3, 2) + programs_for(protocol, 3, 3, unicast=True)[::9]:
        search = _Search(explorer, program, lambda: False)
        for state in reachable(search):
            for _, dest, packet in search._list_arriving(state[3:]):
                if steps.commute or steps.urgent[packet]:
                    diamonds += check_diamonds(search, state, dest, packet)
    assert diamonds or not (steps.commute or steps.commuting)


def check_diamonds(search: _Search, state: tuple[int, ...], dest: int, packet: int) -> int:
    """The arrival and any other step at its process, in both orders: the same state, the same packets."""
    steps, local = search.steps, state[dest]
    arrived = steps.arrive(local, packet)
    later = {(move.number, move.deliver): move for move in search._entry(dest, arrived.local).moves}
    moves = search._entry(dest, local).moves
    for move in moves:
        second, instead = steps.arrive(move.local, packet), later[move.number, move.deliver]
        assert second.local == instead.local
        assert Counter(move.packets + second.packets) == Counter(arrived.packets + instead.packets)
    others = [p for _, d, p in search._list_arriving(state[3:]) if d == dest and p != packet]
    for other in others:
        before, after = steps.arrive(local, other), steps.arrive(arrived.local, other)
        second = steps.arrive(before.local, packet)
        assert second.local == after.local
        assert Counter(before.packets + second.packets) == Counter(arrived.packets + after.packets)
    return len(moves) + len(others)


# The oracle agrees


def random_program(random: Random, n: int) -> Program:
    scripts: list[list[str]] = [[] for _ in range(n)]
    for number in range(random.randint(2, 6)):
        to = random.sample(range(n), random.randint(1, n))
        scripts[random.randrange(n)].append(f"send m{number} to {', '.join(f'p{q + 1}' for q in to)}")
    return parse("\n".join(f"p{p + 1}: {'; '.join(script)}" for p, script in enumerate(scripts)))


def random_run(explorer: Explorer, program: Program, random: Random) -> tuple[list[Event], set[Any]]:
    """The events of one random schedule, and the (message, process) that the search would call overtaken."""
    search = _Search(explorer, program, lambda: False)
    addressed, search.addressed = search.addressed, [0] * search.n
    state = tuple(explorer.steps.start(vertex) for vertex in range(search.n))
    events, overtaken = [], set()
    while choices := search.expand(state):
        choice = random.randrange(len(choices))
        at, move = search._list_taken(state)[choice]
        state = choices[choice]
        if not isinstance(move, int):
            message = identity(move.number, search.n)
            to = dict(zip(program.messages.values(), (send.to for _, send in program.sends), strict=True))[
                message
            ]
            events.append(Event(at, "deliver", *message) if move.deliver else Event(at, "send", *message, to))
            overtaken |= {(identity(late, search.n), at) for late in bits(move.suspects & addressed[at])}
    return events, overtaken


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("order", ["causal", "fifo"])
def test_the_search_and_the_oracle_agree_on_random_runs(seed: int, order: Order) -> None:
    random = Random(seed)
    broken = 0
    for _ in range(40):
        program = random_program(random, random.choice([2, 3, 4]))
        protocol = random.choice(["unordered", "unordered", "fifo", "matrix"])
        explorer = Explorer(machines(protocol, program.view), order=order, reduce=random.random() < 0.5)
        for _ in range(5):
            events, overtaken = random_run(explorer, program, random)
            found = oracle.check(events, processes=len(program.processes))
            assert not found.undelivered
            late = found.violations if order == "causal" else found.fifo_breaks
            assert overtaken == {(v.overtaken, v.at) for v in late}, (seed, program, events)
            broken += bool(overtaken)
    assert broken > 10


# Counterexamples


def test_a_counterexample_is_shortest_and_replays() -> None:
    explorer = Explorer(machines("fifo", TRIANGLE.view))
    result = explorer.run(TRIANGLE)
    assert result.finding is not None
    # Three sends, and the deliveries of y and z.
    assert len(result.finding.path) == 5
    found = explain(explorer, result)
    events = replay(explorer.steps.make, TRIANGLE, found.schedule)
    assert oracle.check(events).violations[0].chain == ((0, 1), (0, 2), (1, 1))


def test_a_machine_whose_state_is_not_all_of_it_is_told_so() -> None:
    class Forgetful(Fifo):
        state = Receiver.state

    program = parse("p1: send x to p2; send y to p2\np2:")
    explorer = Explorer(lambda process: Forgetful(program.view, process))
    with pytest.raises(
        BadRun, match=r"cannot be replayed .* does `state` of the machine name every attribute"
    ):
        explain(explorer, explorer.run(program))


@pytest.mark.parametrize("protocol", ["unordered", "fifo"])
def test_every_counterexample_is_confirmed_and_replays(protocol: str) -> None:
    explorer = Explorer(machines(protocol, View.numbered(3)))
    broken = 0
    for program in programs_for(protocol, 3, 3, unicast=True):
        result = explorer.run(program)
        if result.finding is not None:
            found = explain(explorer, result)  # which asks the oracle
            assert replay(explorer.steps.make, program, found.schedule)
            broken += 1
    # FIFO order breaks in the triangle alone: with three processes, and where the first is also the third.
    assert broken == {"unordered": 22, "fifo": 2}[protocol]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (["p1 waves"], "step 1: 'p1 waves' is no step: write"),
        (["p9 sends x"], "step 1: 'p9 sends x' is no step: write"),
        (["p1 sends y"], "step 1: sends y, and next in the script is x"),
        (["p3 delivers x"], "step 1: p3 delivers x, which is not eligible; eligible: nothing"),
        (["p3 delivers q"], "step 1: there is no message q; there are x, y, z"),
        (
            ["p1 sends x", "p3 receives p1.p3.2"],
            "step 2: p1.p3.2 arrives, and is not in flight",
        ),
        (
            ["p1 sends x", "p1 sends y", "p1 sends y"],
            "schedule: p1 sends once more than the 2 times of its script",
        ),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(schedule: list[str], message: str) -> None:
    with pytest.raises(BadRun) as refused:
        replay(machines("matrix", TRIANGLE.view), TRIANGLE, schedule)
    assert str(refused.value).startswith(message)
