"""Runs made up at random, with every fault that a trace can have, for the tests of `measure`.

Each event is a dict, a row of the events table, in the order of time. Nothing of the pipeline is used here.
"""

import random
from collections import Counter
from typing import Any


def make_trace(seed, processes=None, events=None, faults=True, receives=True):
    """(names of the processes, rows)."""
    dice = random.Random(seed)
    names = [f"p{i}" for i in range(processes or dice.randint(1, 5))]
    rows: list[dict[str, Any]] = []
    index: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    controls: Counter[str] = Counter()
    under_way: list[tuple[str, int, str]] = []
    sent: list[tuple[str, int]] = []
    now = dice.randrange(10**6)

    def note(process, kind, sender, number, **more):
        rows.append(
            {
                "run": "r", "process": process, "index": index[process], "kind": kind, "sender": sender,
                "number": number, "to": None, "control": False, "time_ns": now, "clock": len(rows),
                "stamp_entries": None, "stamp_bytes": None, "label": None, **more,
            }
        )  # fmt: skip
        index[process] += 1

    def send():
        sender = dice.choice(names)
        # Numbers need not be dense, nor grow.
        numbers[sender] += dice.choice((1, 1, 2))
        number = -numbers[sender] if dice.random() < 0.1 else numbers[sender]
        to = [dice.choice(names) for _ in range(dice.choice((0, 1, 1, 1, 2, 3)) if faults else 1)]
        sizes = {"stamp_entries": dice.randrange(300), "stamp_bytes": dice.randrange(10**6)}
        note(sender, "send", sender, number, to=to, **(sizes if dice.random() < 0.9 else {}))
        sent.append((sender, number))
        under_way.extend((sender, number, q) for q in dict.fromkeys(to))

    def receive():
        if under_way and receives:
            sender, number, q = dice.choice(under_way)
            note(q, "receive", sender, number)

    def deliver():
        if under_way:
            copy = under_way.pop(dice.randrange(len(under_way)))
            note(copy[2], "deliver", *copy[:2])

    def control():
        sender, q = dice.choice(names), dice.choice(names)
        controls[sender] += 1
        note(sender, "send", sender, controls[sender], to=[q], control=True, stamp_entries=7, stamp_bytes=9)
        note(q, "receive", sender, controls[sender], control=True)

    def stray():
        if faults and sent and dice.random() < 0.3:
            sender, number = dice.choice([*sent, (dice.choice(names), 10**6)])
            q = dice.choice(names)
            if (sender, number, q) in under_way:
                under_way.remove((sender, number, q))
            note(q, "deliver", sender, number)

    for _ in range(events or dice.randrange(60)):
        dice.choice((send, send, receive, deliver, deliver, control, stray))()
        now += dice.choice((0, 1, 50, 10**5, 10**9))
    return names, rows
