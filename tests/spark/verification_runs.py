"""Random runs with faults of every kind, as the oracle takes them and as columns, for the tests of verification."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from antecede.model import Event
from antecede.oracle import Verdict, check
from antecede.trace.columns import Rows
from antecede.trace.schema import DELIVER, SEND
from antecede.verification import KINDS, Findings

Finding = tuple[str, int, int, int, int, int]
Copy = tuple[int, int, int]
"""Sender, number, and where it is to go."""


def random_run(seed: int, most_processes: int = 12, most_events: int = 160) -> list[Event]:
    """A run in a linear extension. How disordered and how faulty it is depends on the seed too."""
    chance = random.Random(seed)
    n = chance.randint(2, most_processes)
    late = chance.sample(range(n), chance.randint(0, n // 2))
    hurry = chance.choice((0.0, 0.1, 0.5, 1.0))
    faults = chance.choice((0.0, 0.05, 0.2))
    sending = chance.uniform(0.1, 0.7)
    span = chance.randint(1, 4)
    length = chance.randint(0, most_events)
    patience = chance.choice((0, 0, length // 2))
    numbers = {q: iter(_numbers(chance, length)) for q in range(n)}
    under_way: list[Copy] = []
    sent: list[Copy] = []
    events: list[Event] = []
    for step in range(length):
        awake = [q for q in range(n) if q not in late or step > length // 2]
        if chance.random() < sending or step < patience:
            q = chance.choice(awake)
            number = next(numbers[q])
            to = chance.sample(range(n), chance.randint(0 if faults else 1, min(n, span)))
            under_way += [(q, number, other) for other in to]
            sent += [(q, number, other) for other in to or [q]]
            named = to + to[:1] if chance.random() < faults else to
            events.append(Event(q, "send", q, number, tuple(named)))
        elif chance.random() < faults and sent:
            events += _fault(chance, n, sent, under_way)
        elif under_way:
            at = chance.randrange(len(under_way)) if chance.random() < hurry else 0
            sender, number, q = under_way.pop(at)
            events.append(Event(q, "deliver", sender, number))
    if chance.random() < 0.7:
        events += [Event(q, "deliver", sender, number) for sender, number, q in under_way]
    return events


def _numbers(chance: random.Random, length: int) -> Sequence[int]:
    """Counted from somewhere, or any."""
    if chance.random() < 0.7:
        first = chance.choice((0, 1, -5, 2**63 - 1 - length))
        return range(first, first + length)
    return chance.sample([*range(-length, length), 2**63 - 1, -(2**63)], length)


def _fault(chance: random.Random, n: int, sent: list[Copy], under_way: list[Copy]) -> list[Event]:
    """One copy is lost; or a message is delivered again, early, at a stranger, or though nobody sent it."""
    sender, number, q = chance.choice(sent[-12:] if chance.random() < 0.7 else sent)
    match chance.randrange(5):
        case 0:
            if under_way:
                under_way.pop(chance.randrange(len(under_way)))
            return []
        case 1:
            number = 10**9 + chance.randrange(2)
        case 2:
            q = chance.randrange(n)
    if (sender, number, q) in under_way:
        under_way.remove((sender, number, q))
    return [Event(q, "deliver", sender, number)] * chance.choice((1, 1, 1, 2))


def rows_of(events: Sequence[Event]) -> Rows:
    """The same as columns, `index` counted."""
    counts: dict[int, int] = {}
    index = []
    for event in events:
        index.append(counts.get(event.process, 0))
        counts[event.process] = index[-1] + 1
    return Rows(
        process=np.array([event.process for event in events], np.int32),
        kind=np.array([SEND if event.kind == "send" else DELIVER for event in events], np.int8),
        sender=np.array([event.sender for event in events], np.int32),
        number=np.array([event.number for event in events], np.int64),
        control=np.zeros(len(events), bool),
        offsets=np.cumsum([0, *(len(event.to) for event in events)]).astype(np.int32),
        to=np.array([q for event in events for q in event.to], np.int32),
        index=np.array(index, np.int64),
    )


def cut(rows: Rows, chunks: int, seed: int) -> list[list[Rows]]:
    """Into so many chunks, anywhere, each in one batch or two."""
    chance = random.Random(seed)
    cuts = sorted(chance.randint(0, len(rows)) for _ in range(2 * chunks - 1))
    batches = [rows.take(np.arange(a, b)) for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    return [batches[2 * at : 2 * at + 2] for at in range(chunks)]


def find_by_oracle(events: Sequence[Event]) -> tuple[Verdict, list[Finding]]:
    """What the oracle finds: kind, process, sender, number and, about order, the first that overtook it."""
    verdict = check(events)
    found = [
        (kind, v.at, *v.overtaken, v.by[0], v.by[1])
        for kind, violations in (("violation", verdict.violations), ("fifo_break", verdict.fifo_breaks))
        for v in violations
    ]
    found += [
        (kind, copy.at, *copy.message, -1, 0)
        for kind in ("duplicate", "unsent", "unaddressed", "undelivered")
        for copy in getattr(verdict, {"duplicate": "duplicates"}.get(kind, kind))
    ]
    return verdict, sorted(found)


def list_findings(findings: Findings) -> list[Finding]:
    columns = (findings.process, findings.sender, findings.number, findings.by_sender, findings.by_number)
    kinds = [KINDS[kind] for kind in findings.kind]
    return sorted(zip(kinds, *(column.tolist() for column in columns), strict=True))
