"""Each condition that a protocol rests on is needed: without it, the explorer finds a run that goes wrong.

A mutant drops exactly one rule, or makes it too generous. `BROKEN` has for each a program with a schedule that goes
wrong, and how: a small one, as `search` finds it, which tries all programs of a few sizes. The protocol as it is
passes the same program. Rules that only save space or time are in `HARMLESS`: without them nothing may break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from antecede.explore import Exploration, Explorer, explore
from antecede.model import Id, View
from antecede.program import Program, Send, enumerate_programs, parse
from antecede.protocols import PROTOCOLS, Machine
from antecede.protocols.histories import Histories
from antecede.protocols.history import History
from antecede.protocols.underway import Underway
from tests import mutants as m
from tests.driver import World


class Case(NamedTuple):
    """A mutant, the program that shows what it breaks, and the kind of finding."""

    mutant: type[Machine] | type[Histories]
    program: str
    finding: str = "order"
    parameters: Callable[[int], dict[str, Any]] = lambda n: {}


def tight(n: int) -> dict[str, Any]:
    return {"k": n + 1}


def proved(n: int) -> dict[str, Any]:
    return {"r10": True, "r7": False, "r8": False}


def at_most(k: int) -> Callable[[int], dict[str, Any]]:
    return lambda n: {"k": k}


def pipelined(n: int) -> dict[str, Any]:
    return {"pipelined": True}


TWICE_TO_ONESELF = "p1: send a to p1; send b to p1"
TWICE_TO_ANOTHER = "p1: send a to p2; send b to p2\np2:"
THROUGH_ONESELF = "p1: send a to p2\np2: send b to p1, p2"
OWN_THEN_ANSWER = "p1: send a to p1; send b to p2\np2: send c to p1"
ANSWER_TO_A_COPY = "p1: send a to p3\np2: send b to p1, p3\np3:"
TRIANGLE = "p1: send a to p3; send b to p2\np2: send c to p3\np3:"
TOLD_BY_TWO = (
    "p1: send a to p3; send b to p2\np2: receive b; receive d; send e to p1\np3: send c to p1; send d to p2"
)
OVERFULL = "p1: send a to p1, p2; send b to p2\np2: send c to p1, p2"

BROKEN: list[Case] = [
    Case(m.FifoWithoutWait, TWICE_TO_ONESELF),
    # matrix
    Case(m.MatrixWithoutMerge, THROUGH_ONESELF),
    Case(m.MatrixWithoutChannelCondition, TWICE_TO_ONESELF),
    Case(m.MatrixWithChannelConditionOnly, THROUGH_ONESELF),
    Case(m.MatrixWithoutOwnRowCondition, THROUGH_ONESELF),
    Case(m.MatrixTellsOwnRowOnly, THROUGH_ONESELF),
    Case(m.MatrixTakesOneAsTellingAll, "p1: send a to p1, p2\np2: send b to p1, p2"),
    # broadcast
    Case(m.BroadcastWithoutChannelCondition, "p1: send a to p1, p2; send b to p1, p2\np2:"),
    Case(m.BroadcastWithChannelConditionOnly, "p1: send a to p1, p2\np2: send b to p1, p2"),
    # bounded
    Case(m.BoundedKeepsNothingOfTheColumn, TWICE_TO_ANOTHER, "order", tight),
    Case(m.BoundedWithoutMulticastTerm, THROUGH_ONESELF, "order", tight),
    Case(m.BoundedWithoutMerge, OWN_THEN_ANSWER, "order", tight),
    Case(m.BoundedWithoutWait, TWICE_TO_ANOTHER, "order", tight),
    Case(m.BoundedWithChannelConditionOnly, THROUGH_ONESELF, "order", tight),
    Case(m.BoundedForgetsWithoutExtraMessage, OVERFULL, "order", tight),
    Case(m.BoundedExtraMessageTakesNoNumber, OVERFULL, "order", tight),
    Case(
        m.BoundedExtraMessageDoesNotWait,
        "p1: send a to p2; send b to p1, p2\np2: send c to p1, p2",
        "order",
        tight,
    ),
    Case(m.BoundedForgetsOwnColumn, OWN_THEN_ANSWER, "order", tight),
    # sparing
    Case(m.SparingWithoutWait, TWICE_TO_ONESELF, "order", tight),
    Case(m.SparingWithoutMerge, OWN_THEN_ANSWER, "order", tight),
    Case(m.SparingWithoutOtherCopies, THROUGH_ONESELF, "order", tight),
    Case(
        m.SparingTellsArrivedForTaken,
        "p1: send a to p2; send c to p3 after b\np2: send b to p1\np3: send d to p2 after c",
        "order",
        tight,
    ),
    Case(
        m.SparingForgetsAllThatIsTaken,
        "p1: send a to p2; send b to p2\np2: send c to p1, p2; send d to p1",
        "order",
        tight,
    ),
    Case(m.SparingLeavesOutTheColumn, THROUGH_ONESELF, "order", tight),
    Case(m.SparingKnowsWhatHasArrived, THROUGH_ONESELF, "order", tight),
    Case(
        m.SparingForgetsWhatOthersDoNotKnow,
        "p1: send a to p2\np2: send b to p1\np3: send c to p1, p2",
        "order",
        tight,
    ),
    Case(m.SparingForgetsWithoutExtraMessage, OVERFULL, "blocked", tight),
    Case(m.SparingExtraMessageDoesNotWait, OVERFULL, "order", tight),
    Case(m.SparingCountsAColumnAsTold, THROUGH_ONESELF, "order", tight),
    # underway
    Case(m.UnderwayWithoutWait, TWICE_TO_ONESELF),
    Case(m.UnderwayWithoutMerge, OWN_THEN_ANSWER),
    Case(m.UnderwayWithoutOtherCopies, THROUGH_ONESELF),
    Case(m.UnderwayForgetsSent, TWICE_TO_ONESELF),
    Case(m.UnderwayNamesTheEarliest, "p1: send a to p1; send b to p1; send c to p1"),
    Case(m.UnderwayAcknowledgesAtArrival, TWICE_TO_ANOTHER),
    Case(m.UnderwaySettlesWithOneCopy, "p1: send a to p1, p2; send b to p1\np2:"),
    Case(m.UnderwaySettlesEachByItself, "p1: send a to p1; send b to p2; send c to p1\np2:"),
    Case(m.UnderwayNeverPostsAgain, "p1: send a to p1; send b to p2\np2:", "blocked", at_most(0)),
    Case(m.UnderwayTellsNobodyWhatSettled, THROUGH_ONESELF, "blocked", at_most(0)),
    Case(m.UnderwayTellsOnlyTheCopies, TOLD_BY_TWO, "blocked", at_most(1)),
    # monitor, at p1
    Case(m.MonitorWithoutWait, TWICE_TO_ONESELF),
    Case(m.MonitorTellsOnlyTheMonitor, OWN_THEN_ANSWER),
    Case(m.MonitorWithoutMulticastTerm, "p1: send a to p1, p2\np2: send b to p1"),
    Case(m.MonitorWithoutMerge, "p1: send a to p1, p2\np2: send b to p3\np3: send c to p1"),
    Case(m.MonitorDoesNotCountItself, OWN_THEN_ANSWER),
    # buffer
    Case(m.BufferDoesNotHoldMulticasts, ANSWER_TO_A_COPY),
    Case(m.BufferReleasesAtFirstAcknowledgement, "p1: send a to p2, p3\np2:\np3:", "blocked"),
    Case(m.BufferAcknowledgesAtDelivery, "p1: send a to p2, p3\np2:\np3:", "blocked"),
    Case(m.BufferDoesNotWaitForAcknowledgements, TWICE_TO_ANOTHER),
    Case(m.BufferPipelinesToAnyone, TRIANGLE, "order", pipelined),
    Case(m.BufferPipelinesOverChannelsThatReorder, TWICE_TO_ANOTHER, "order", pipelined),
    Case(m.BufferDeliversAnyOpen, TWICE_TO_ONESELF),
    # permit
    Case(m.PermitWithoutFlag, ANSWER_TO_A_COPY),
    Case(m.PermitFlagForgetsOtherCopies, ANSWER_TO_A_COPY),
    Case(m.PermitFlagForgetsEarlierMessages, TRIANGLE),
    Case(m.PermitForgetsEarlyPermits, "p1: send a to p2\np2: send b to p1, p3\np3:", "blocked"),
    Case(m.PermitWithoutRestraint, ANSWER_TO_A_COPY),
    Case(m.PermitRestrainsOnlyTheNext, "p1: send a to p2; send b to p2\np2: send c to p1, p3\np3:"),
    Case(m.PermitAcknowledgesOutOfSequence, "p1: send a to p3; send b to p2, p3\np2: send c to p3\np3:"),
    Case(m.PermitTakesOutOfSequence, TWICE_TO_ANOTHER),
    Case(m.PermitDeliversAny, TWICE_TO_ONESELF),
    Case(m.PermitGrantsEachByItself, TRIANGLE),
    # history
    Case(m.HistoryWithoutWait, TWICE_TO_ONESELF),
    Case(m.HistoryComparesExactly, "p1: send a to p1, p2; send b to p1\np2: send c to p1", "refused"),
    Case(m.HistoryComparesTooGenerously, "p1: send a to p1, p2; send b to p1; send c to p1, p2\np2:"),
    Case(
        m.HistoryConfusesLabelsInD,
        "p1: send a to p1 label a; send b to p1 label b; send c to p1 label b",
        "refused",
    ),
    Case(m.ForgetsHm, OWN_THEN_ANSWER),
    Case(m.ForgetsDelivered, THROUGH_ONESELF),
    Case(m.ForgetsSent, TWICE_TO_ONESELF),
    Case(m.SendReportsToAll, "p1: send a to p1; send b to p2; send c to p1\np2:"),
    Case(m.SentIsReportedToItsDestinations, TWICE_TO_ONESELF),
    Case(m.SenderAlwaysKnows, TWICE_TO_ONESELF),
    Case(m.DeliveryReportsOthersMessages, "p1: send a to p1; send b to p1\np2: send c to p1"),
    Case(m.HistoryIsReportedToAll, OWN_THEN_ANSWER),
    Case(m.EarlierCountAsLater, "p1: send a to p1, p3; send b to p1; send c to p2\np2: send d to p1\np3:"),
    Case(m.LaterOfAnySender, "p1: send a to p1; send b to p2\np2: send c to p1; send d to p1"),
    Case(m.DeliveredIsReportedToItsDestinations, THROUGH_ONESELF),
    Case(m.LeavesOutWhatAnyDestinationKnows, "p1: send a to p1, p2\np2: send b to p1, p2"),
    Case(m.LeavesOutWhatIsForOthers, OWN_THEN_ANSWER),
    Case(m.RemovesWhatAnyDestinationKnows, "p1: send a to p1, p2; send b to p1; send c to p2\np2:"),
    Case(m.RemovesWhatIsDeliveredHere, TWICE_TO_ONESELF),
    Case(m.TakesAnyStampForAProof, THROUGH_ONESELF, "order", proved),
    Case(m.TakesTheSenderForAProof, THROUGH_ONESELF, "order", proved),
    # optimal
    Case(m.OptimalWithoutWait, TWICE_TO_ONESELF),
    Case(m.OptimalDropsTheReceiver, TWICE_TO_ONESELF),
    Case(m.OptimalDropsEverythingAfterwards, "p1: send a to p1; send b to p2; send c to p1\np2:"),
    Case(m.OptimalForgetsSent, "p1: send a to p2; send b to p2\np2:"),
    Case(m.OptimalForgetsDelivered, THROUGH_ONESELF),
    Case(m.OptimalForgetsStamps, OWN_THEN_ANSWER),
    Case(m.OptimalForgetsWhatTheStampLacks, "p1: send a to p1; send b to p1\np2: send c to p1"),
    Case(m.OptimalForgetsWhatTheLogLacks, "p1: send a to p2; send b to p1, p2\np2: send c to p1"),
    Case(m.OptimalForgetsOnOlderEvidence, "p1: send a to p2; send b to p1; send c to p1\np2: send d to p1"),
]


class Harmless(NamedTuple):
    """A mutant that breaks nothing, and why."""

    mutant: type[Machine] | type[Histories]
    why: str
    parameters: Callable[[int], dict[str, Any]] = lambda n: {}


HARMLESS: list[Harmless] = [
    Harmless(m.MatrixTellsEveryRow, "rows that did not change need not travel, but may"),
    Harmless(m.MatrixComparesEveryRow, "a row no newer than ours asks for nothing new"),
    Harmless(
        m.BoundedKeepsTheWholeColumn, "what a delivery implies may be said again", lambda n: {"k": n * n}
    ),
    Harmless(m.SparingLearnsAgain, "what was forgotten was met, or will be: it only takes room", tight),
    Harmless(m.UnderwayNamesAll, "the latest of a channel implies the others", at_most(1)),
    Harmless(m.UnderwayLearnsAgain, "what settled leaves a stamp when it is posted", at_most(1)),
    Harmless(Underway, "k = 0: stamps are empty", at_most(0)),
    Harmless(m.BufferReleasesEverything, "a longer hold"),
    Harmless(m.PermitFlagsEverything, "a longer restraint"),
    Harmless(
        m.LearnsNothingFromEarlier,
        "C is what is known of who was told: knowing less is safe",
        lambda n: {"r6_4": False},
    ),
    Harmless(m.LearnsNothingFromStamps, "the same"),
    Harmless(m.LearnsNothingFromDelivering, "the same"),
    Harmless(m.StampsCopiesAfterTheSend, "the receiver adds A_m anyway", lambda n: {"r6_1": True}),
    Harmless(History, "R5 off: D keeps everything", lambda n: {"r5": False}),
    Harmless(History, "R6.1 on: more is known", lambda n: {"r6_1": True}),
    Harmless(History, "R6.4 off: less is known", lambda n: {"r6_4": False}),
    Harmless(History, "R7 off: more travels", lambda n: {"r7": False}),
    Harmless(History, "R8 off: more stays", lambda n: {"r8": False}),
    Harmless(m.OptimalKeepsOtherReceivers, "they wait for what they would wait for anyway"),
    Harmless(m.OptimalDropsNothingAfterwards, "the same"),
    Harmless(m.OptimalKeepsOwnDestinations, "an entry is a true predecessor: waiting for it is right"),
    Harmless(m.OptimalKeepsTheirDestinations, "the same"),
    Harmless(m.OptimalKeepsAllDestinations, "the same"),
    Harmless(m.OptimalNeverForgets, "the same"),
    Harmless(
        m.OptimalKeepsNoEmptyEntry, "the empty entry proves that older ones were forgotten; they come back"
    ),
    Harmless(m.OptimalKeepsAllEmptyEntries, "empty entries ask for nothing"),
]
"""Rules that save entries, bytes or time, and that no order rests on."""

SIZES = [(2, 1, False), (2, 2, False), (3, 2, False), (2, 3, False), (3, 3, True)]
"""(processes, messages, unicast only): all programs of these sizes are searched for what is harmless."""

NO_COUNTEREXAMPLE_FOUND: dict[type[Machine] | type[Histories], tuple[str, list[tuple[int, int, bool]]]] = {
    m.DeliveryReportsLaterMessages: (
        "whoever knows of a later message of a sender has delivered the earlier ones to it, so H has no later one",
        [*SIZES, (3, 3, False)],
    ),
    m.MonitorLearnsNothing: (
        "what the monitor knows of, it has delivered: its vector constrains nobody but through its own self-sends",
        [*SIZES, (2, 4, True)],
    ),
}
"""Rules of the papers that could be dropped or relaxed without any counterexample at the sizes searched."""


def kind_of(mutant: type[Machine] | type[Histories]) -> type[Machine]:
    return m.with_rules(mutant) if issubclass(mutant, Histories) else mutant


def maker(kind: type[Any], n: int, parameters: dict[str, Any]) -> Callable[[int], Machine]:
    view = View.numbered(n)
    return lambda process: kind(view, process, **parameters)


def search(
    kind: type[Machine], sizes: list[tuple[int, int, bool]], parameters: Callable[[int], dict[str, Any]]
) -> Exploration | None:
    """The first program, smallest sizes first, with a schedule that goes wrong."""
    for n, messages, unicast in sizes:
        make = maker(kind, n, parameters(n))
        first = make(0)
        explorer = Explorer(make, order=first.order)
        classes = [int(not first.orders_at(p)) for p in range(n)]
        for program in enumerate_programs(n, messages, unicast=unicast, classes=classes):
            exploration = explorer.run(program)
            if exploration.verdict != "holds":
                return exploration
    return None


def name_of(case: Case | Harmless) -> str:
    return (
        case.mutant.__name__
        if not issubclass(case.mutant, History) or case.mutant is not History
        else case[1]
    )


@pytest.mark.parametrize("case", BROKEN, ids=name_of)
def test_without_a_condition_the_explorer_finds_a_run_that_goes_wrong(case):
    program = parse(case.program)
    n = max(2, len(program.processes))
    kind = kind_of(case.mutant)
    found = explore(program, maker(kind, n, case.parameters(n)), order=kind.order)
    assert found.finding is not None
    assert found.finding.kind == case.finding


@pytest.mark.parametrize("case", BROKEN, ids=name_of)
def test_with_the_condition_the_same_program_holds(case):
    program = parse(case.program)
    n = max(2, len(program.processes))
    kind = PROTOCOLS[kind_of(case.mutant).name]
    assert explore(program, maker(kind, n, case.parameters(n)), order=kind.order).verdict == "holds"


@pytest.mark.parametrize("case", HARMLESS, ids=name_of)
def test_what_only_saves_space_or_time_can_go(case):
    assert search(kind_of(case.mutant), SIZES, case.parameters) is None, case.why


@pytest.mark.parametrize("mutant", NO_COUNTEREXAMPLE_FOUND, ids=lambda mutant: mutant.__name__)
def test_no_counterexample_is_found_at_the_sizes_searched(mutant):
    why, sizes = NO_COUNTEREXAMPLE_FOUND[mutant]
    assert search(kind_of(mutant), sizes, lambda n: {}) is None, why


@pytest.mark.parametrize(
    "mutant", [m.MatrixWithoutMerge, m.ForgetsHm, m.PermitWithoutFlag, m.OptimalForgetsSent]
)
def test_the_search_finds_what_is_recorded(mutant):
    """Otherwise a search that finds nothing would mean nothing."""
    [case] = [case for case in BROKEN if case.mutant is mutant]
    found = search(kind_of(mutant), SIZES, case.parameters)
    assert found is not None
    assert [script for script in found.program.scripts if script] == [
        s for s in parse(case.program).scripts if s
    ]


def test_every_mutant_is_in_a_table():
    listed = (
        {case.mutant for case in BROKEN} | {case.mutant for case in HARMLESS} | set(NO_COUNTEREXAMPLE_FOUND)
    )
    listed |= {case[0] for case in ACROSS_LABELS}
    classes = {v for v in vars(m).values() if isinstance(v, type) and v.__module__ == m.__name__}
    assert classes - listed == {m.ReportsToOthers}


# Labels: what R6.3 infers from "a later message of the same sender" holds within a label only.
# Programs have no step for `merge`, so these are scripts. The last message must not be eligible at p4.

Steps = list[tuple[Any, ...]]

ACROSS_LABELS: list[tuple[type[Histories], Steps]] = [
    (
        # p1's l did not carry its k. p2 knows of both, and of k in the order of l, by a merge.
        m.DeliveryReportsOtherLabels,
        [
            ("send", 0, [1, 3], "k"),
            ("send", 0, [1, 3], "l"),
            ("deliver", (0, 1), 1),
            ("merge", 1, "k", "l"),
            ("deliver", (0, 2), 1),
            ("send", 1, [3], "l"),
            ("deliver", (0, 2), 3),
        ],
    ),
    (
        # p2 hears of k and merges it into l, and tells p3, which has a later l of p1 that did not carry k.
        m.LaterOfAnyLabel,
        [
            ("send", 0, [1, 3], "k"),
            ("send", 0, [2, 3], "l"),
            ("deliver", (0, 1), 1),
            ("merge", 1, "k", "l"),
            ("deliver", (0, 2), 2),
            ("send", 1, [2], "l"),
            ("deliver", (1, 1), 2),
            ("send", 2, [3], "l"),
            ("deliver", (0, 2), 3),
        ],
    ),
]


@pytest.mark.parametrize(("rules", "steps"), ACROSS_LABELS, ids=lambda value: getattr(value, "__name__", ""))
def test_inferences_across_labels_break_a_merged_order(rules, steps):
    assert [message.id for message in run(History, steps).machines[3].eligible()] == []
    overtaking = run(m.with_rules(rules), steps)
    assert [message.id for message in overtaking.machines[3].eligible()] == [last_sent(overtaking)]


def run(kind: type[History], steps: Steps) -> World:
    view = View.numbered(4)
    world = World([kind(view, p) for p in range(4)])
    for step in steps:
        if step[0] == "send":
            world.send(step[1], step[2], label=step[3])
        elif step[0] == "merge":
            machine = world.machines[step[1]]
            assert isinstance(machine, History)
            machine.merge(step[2], step[3])
        else:
            take(world, step[1], step[2])
    key = last_sent(world)
    world.arrive(next(p for p in world.network if p.message == world.messages[key] and p.dest == 3))
    return world


def take(world: World, key: Id, at: int) -> None:
    world.arrive(next(p for p in world.network if p.message == world.messages[key] and p.dest == at))
    world.deliver(at, world.messages[key])


def last_sent(world: World) -> Id:
    return [event.id for event in world.events if event.kind == "send"][-1]


# Labels in programs: what the explorer says of them.


def label_program(program: Program) -> Iterator[Program]:
    """The program with every choice of two labels."""
    for labels in product("ab", repeat=len(program.sends)):
        each = iter(labels)
        yield Program(
            program.processes,
            tuple(
                tuple(replace(step, label=next(each)) if isinstance(step, Send) else step for step in script)
                for script in program.scripts
            ),
        )


@pytest.mark.parametrize(("n", "messages", "unicast"), [(2, 2, False), (3, 2, False), (3, 3, True)])
def test_every_choice_of_labels_holds(n, messages, unicast):
    explorer = Explorer(maker(History, n, {}))
    for program in enumerate_programs(n, messages, unicast=unicast):
        for choice in label_program(program):
            assert explorer.run(choice).verdict == "holds", str(choice)
