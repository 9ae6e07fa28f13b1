"""The program language, and the enumeration of all programs of a size."""

from itertools import permutations, product
from math import factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede.errors import BadProgram
from antecede.model import bits
from antecede.program import Program, Receive, Send, enumerate_programs, parse, show

TRIANGLE = """
# Raynal & Schiper 1989, figure 1
p1: send x to p3; send y to p2
p2: receive y; send z to p3      # an answer
p3: receive from p2; receive
"""


def test_a_program_reads_as_the_papers_write_it() -> None:
    program = parse(TRIANGLE)
    assert program.processes == ("p1", "p2", "p3")
    assert program.scripts == (
        (Send("x", (2,)), Send("y", (1,))),
        (Receive("y"), Send("z", (2,))),
        (Receive(sender=1), Receive()),
    )
    assert program.messages == {"x": (0, 1), "y": (0, 2), "z": (1, 1)}
    assert program.list_messages_to(2) == ["x", "z"]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("send a to p1", Send("a", (0,))),
        ("send a to p2, p1 , p2", Send("a", (0, 1))),
        ("send a to p2 after b", Send("a", (1,), ("b",))),
        ("send a to p2 after b,c label red", Send("a", (1,), ("b", "c"), "red")),
        ("receive", Receive()),
        ("receive b", Receive("b")),
        ("receive  from  p2", Receive(None, 1)),
    ],
)
def test_each_form_of_a_step(step: str, expected: Send | Receive) -> None:
    program = parse(f"p1: {step};\np2: send b to p1; send c to p1")
    assert program.scripts[0] == (expected,)
    assert parse(show(program)) == program


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "program: has no process: write lines such as 'p1: send x to p2'"),
        (
            "p1 send x to p2",
            "program:1: 'p1 send x to p2' is not a process's name, a colon and its steps",
        ),
        (
            "\np1: sned x to p1",
            "program:2: 'sned x to p1' is no step: write 'send NAME to P[, P] [after NAME] [label L]',"
            " 'receive [NAME]' or 'receive from P'",
        ),
        ("p1: send x", "program:1: 'send x' is no step: write"),
        ("p1: send x to", "program:1: 'send x to' is no step: write"),
        ("p1:\np1:", "program:2: p1 has a second line: give each process one"),
        (
            "p1: send x to p2",
            "program:1: there is no process p2: each needs its own line, and there are p1",
        ),
        (
            "p1: receive from q\np2:",
            "program:1: there is no process q: each needs its own line, and there are p1, p2",
        ),
        (
            "p1: send x to p2\np2: send x to p1",
            "program:2: there is a second message x: give each its own name",
        ),
        (
            "p1: send x to p2\np2: receive z",
            "program:2: p2 waits for z, which is not addressed to it; these are: x",
        ),
        (
            "p1: send x to p2; send y to p2 after x\np2:",
            "program:1: p1 waits for x, which is not addressed to it; nothing is",
        ),
    ],
)
def test_a_bad_program_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(BadProgram) as refused:
        parse(text)
    assert str(refused.value).startswith(message)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    n = draw(st.integers(1, 4))
    names = [f"m{i}" for i in range(draw(st.integers(0, 6)))]
    everyone = st.sets(st.integers(0, n - 1), min_size=1).map(lambda to: tuple(sorted(to)))
    sends = [(draw(st.integers(0, n - 1)), Send(name, draw(everyone), (), draw(_labels))) for name in names]
    scripts: list[list[Send | Receive]] = [[] for _ in range(n)]
    for process, send in sends:
        scripts[process].append(send)
    for process, script in enumerate(scripts):
        mine = [send.name for _, send in sends if process in send.to]
        for _ in range(draw(st.integers(0, 2))):
            named = st.sampled_from(mine).map(Receive) if mine else st.nothing()
            step = draw(st.just(Receive()) | st.integers(0, n - 1).map(lambda p: Receive(sender=p)) | named)
            script.insert(draw(st.integers(0, len(script))), step)
    return Program(tuple(f"p{i}" for i in range(n)), tuple(map(tuple, scripts)))


_labels = st.sampled_from(["", "red"])


@given(programs())
def test_what_is_printed_is_read_back(program: Program) -> None:
    assert parse(show(program)) == program


# Enumeration


def orbits(n: int, messages: int, unicast: bool) -> int:
    """The number of programs up to renaming, by Burnside's lemma: nothing is enumerated, so nothing is shared."""
    total = 0
    for p in permutations(range(n)):
        cycles = _cycles(p)
        for lengths in product(range(messages + 1), repeat=len(cycles)):
            if sum(len(c) * length for c, length in zip(cycles, lengths, strict=True)) == messages:
                fixed = 1
                for cycle, length in zip(cycles, lengths, strict=True):
                    fixed *= _fixed_sets(_power(p, len(cycle)), unicast) ** length
                total += fixed
    assert total % factorial(n) == 0
    return total // factorial(n)


def _cycles(p: tuple[int, ...]) -> list[list[int]]:
    seen: set[int] = set()
    cycles = []
    for start in range(len(p)):
        cycle = []
        while start not in seen:
            seen.add(start)
            cycle.append(start)
            start = p[start]
        if cycle:
            cycles.append(cycle)
    return cycles


def _power(p: tuple[int, ...], k: int) -> tuple[int, ...]:
    result = tuple(range(len(p)))
    for _ in range(k):
        result = tuple(p[i] for i in result)
    return result


def _fixed_sets(p: tuple[int, ...], unicast: bool) -> int:
    return sum(p[i] == i for i in range(len(p))) if unicast else 2 ** len(_cycles(p)) - 1


@pytest.mark.parametrize("unicast", [False, True])
@pytest.mark.parametrize(("n", "messages"), [(1, 3), (2, 3), (3, 1), (3, 2), (3, 3), (4, 2), (4, 3)])
def test_programs_are_as_many_as_burnside_counts(n: int, messages: int, unicast: bool) -> None:
    assert len(enumerate_programs(n, messages, unicast=unicast)) == orbits(n, messages, unicast)


def _renamings(program: Program) -> set[tuple[tuple[tuple[int, ...], ...], ...]]:
    shape = [[step.to for step in script if isinstance(step, Send)] for script in program.scripts]
    result = set()
    for p in permutations(range(len(shape))):
        renamed: list[tuple[tuple[int, ...], ...]] = [()] * len(shape)
        for i, script in enumerate(shape):
            renamed[p[i]] = tuple(tuple(sorted(p[q] for q in to)) for to in script)
        result.add(tuple(renamed))
    return result


def test_each_program_stands_for_its_renamings_and_together_they_are_all() -> None:
    orbits_found = [_renamings(program) for program in enumerate_programs(3, 2)]
    everything = {min(_renamings(program)) for program in enumerate_programs(3, 2, symmetry=False)}
    assert sum(map(len, orbits_found)) == len(set().union(*orbits_found)) == 6 * 7 * 7
    assert {min(orbit) for orbit in orbits_found} == everything


def test_a_process_that_is_not_like_the_others_keeps_its_name() -> None:
    alike = enumerate_programs(3, 1, unicast=True)
    with_monitor = enumerate_programs(3, 1, unicast=True, classes=[1, 0, 0])
    # Who sends: the monitor or another; to whom: the monitor, itself, or a third.
    assert (len(alike), len(with_monitor)) == (2, 5)


def test_what_a_protocol_refuses_is_left_out() -> None:
    programs = enumerate_programs(3, 3, accepts=lambda sender, to: to == (0, 1, 2))
    assert [[len(script) for script in p.scripts] for p in programs] == [[3, 0, 0], [2, 1, 0], [1, 1, 1]]


def test_the_cheapest_programs_come_first() -> None:
    copies = [sum(len(send.to) for _, send in p.sends) for p in enumerate_programs(3, 2)]
    assert copies == sorted(copies)
    assert (copies[0], copies[-1]) == (2, 6)


def test_bits_of_shapes_become_destinations() -> None:
    everyone = enumerate_programs(2, 1)[-1]
    assert everyone.sends == [(0, Send("a", tuple(bits(0b11))))]
