"""Clocks that agree with each other, and every way in which they do not, against the definitions by brute force."""

import importlib
import random
import types
from pathlib import Path

import pytest

ROW = "run string, process string, index bigint, kind string, message string, vector map<string,bigint>, \
text string, fields string, file string, line bigint"


def simulate_log(chance, processes, steps, run):
    """A log of a run whose clocks are right: rows (process, vector, kind, message), in the order of time."""
    clocks: dict = {name: {} for name in processes}
    flying: list = []
    rows: list = []
    for step in range(steps):
        name = chance.choice(processes)
        clock, kind, message = clocks[name], None, None
        if flying and chance.random() < 0.4:
            message, past = flying.pop(chance.randrange(len(flying)))
            kind = "deliver"
            for other, entry in past.items():
                clock[other] = max(clock.get(other, 0), entry)
        clock[name] = clock.get(name, 0) + 1
        if kind is None and chance.random() < 0.6:
            kind, message = "send", f"{run}-{step}"
            flying.append((message, dict(clock)))
        rows.append([name, dict(clock), kind, message])
    return rows


def spoil(chance, rows, processes):
    """Plant some faults: an entry changed, an event left out, one written twice, a clock of another time."""
    for _ in range(chance.randrange(4)):
        if not rows:
            return
        at = chance.randrange(len(rows))
        name, vector = rows[at][0], rows[at][1]
        match chance.randrange(5):
            case 0:
                entry = chance.choice([*processes, "stranger"])
                value = max(0, vector.get(entry, 0) + chance.choice([-2, -1, 1, 2, 9]))
                if entry != name or value:
                    vector[entry] = value
            case 1:
                del rows[at]
            case 2:
                rows.insert(chance.randrange(len(rows)), [name, dict(vector), None, None])
            case 3:
                for entry in list(vector):
                    if entry != name and chance.random() < 0.5:
                        del vector[entry]
            case 4:
                vector[name] += chance.choice([1, 5])


def by_definition(rows):
    """The findings of one run by the definitions, one event and one entry at a time. Rows are in the order of lines."""
    events: dict = {}
    found: list = []

    def finding(kind, event, entry, value, expected, by=None):
        found.append(((kind, event[0], event[1] - 1, entry, value, event[2]), (expected, by)))

    for line, (name, vector, _, _) in enumerate(rows):
        clock = {entry: value for entry, value in vector.items() if value}
        event = (name, clock[name], line)
        if (name, clock[name]) in events:
            finding("repeated", event, name, clock[name], None)
        else:
            events[name, clock[name]] = (event, clock)
    sends: dict = {}
    for name, vector, kind, message in rows:
        if kind == "send":
            sends[message] = min(sends.get(message, (name, vector[name])), (name, vector[name]))
    for (name, own), (event, clock) in events.items():
        earlier = max((k for other, k in events if other == name and k < own), default=0)
        past = events[name, earlier][1] if earlier else {}
        if own != earlier + 1:
            finding("gap", event, name, own, earlier + 1)
        for entry in {*clock, *past} - {name}:
            if clock.get(entry, 0) < past.get(entry, 0):
                finding("behind", event, entry, clock.get(entry, 0), past[entry], (name, earlier - 1))
        causes = {(j, v) for j, v in clock.items() if j != name and v > past.get(j, 0)}
        for cause in causes:
            if cause not in events:
                last = max((k for other, k in events if other == cause[0]), default=0)
                finding("missing", event, cause[0], cause[1], last if last < cause[1] else None)
        for cause in sorted(causes & set(events)):
            against(finding, event, clock, cause, events[cause][1])
    for line, (name, vector, kind, message) in enumerate(rows):
        if kind == "deliver" and message in sends:
            clock = {entry: value for entry, value in vector.items() if value}
            against(finding, (name, clock[name], line), clock, sends[message], events[sends[message]][1])
    return {key: max((value for k, value in found if k == key), key=order) for key, _ in found}


def against(finding, event, clock, cause, told):
    by = (cause[0], cause[1] - 1)
    for entry, value in told.items():
        if entry != event[0] and clock.get(entry, 0) < value:
            finding("behind", event, entry, clock.get(entry, 0), value, by)
        if entry == event[0] and value >= event[1]:
            finding("future", event, entry, value, event[1] - 1, by)


def order(value):
    """Nulls come first, as in Spark."""
    expected, by = value
    return (expected is not None, expected or 0, by is not None, by or ("", 0))


def table_of(logs):
    table = [
        (run, name, vector[name] - 1, kind, message, vector, "", None, "f", line)
        for run, rows in logs.items()
        for line, (name, vector, kind, message) in enumerate(rows)
    ]
    random.Random(len(table)).shuffle(table)
    return table


def collect_clocks(logs, rows):
    found: dict = {run: {} for run in logs}
    for row in rows:
        key = tuple(row[name] for name in ("kind", "process", "index", "entry", "found", "line"))
        by = None if row["by_process"] is None else (row["by_process"], row["by_index"])
        value = row["expected"], by
        found[row["run"]][key] = max(found[row["run"]].get(key, value), value, key=order)
    return found


def by_spark(spark, logs, module=None):
    module = module or importlib.import_module("antecede.spark.ingest.clocks")
    found = module.check_clocks(spark.createDataFrame(table_of(logs), ROW).repartition(3)).collect()
    which = "run", "kind", "process", "index", "entry", "found", "line"
    assert len({tuple(row[name] for name in which) for row in found}) == len(found)
    return collect_clocks(logs, found)


def some_logs(seed, count):
    """Logs with and without faults, with and without messages, their lines in any order."""
    logs = {}
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        run = f"r{number}"
        processes = [f"p{i}" for i in range(chance.choice([1, 2, 3, 6, 12]))]
        rows = simulate_log(chance, processes, chance.choice([1, 8, 30, 80]), run)
        if number % 6:
            spoil(chance, rows, processes)
        if number % 2:
            rows = [[name, vector, None, None] for name, vector, _, _ in rows]
        chance.shuffle(rows)
        logs[run] = rows
    return logs


def test_findings_are_those_of_the_definitions(spark):
    logs = {f"{seed} {run}": rows for seed in range(3) for run, rows in some_logs(seed, 60).items()}
    logs |= {f"s{number}": smallest(rows) for number, (rows, _) in enumerate(SMALLEST)}
    found = by_spark(spark, logs)
    for run, rows in logs.items():
        assert found[run] == by_definition(rows), run
    assert {kind for run in found.values() for kind, *_ in run} == KINDS
    assert not any(found[f"{seed} r{number}"] for seed in range(3) for number in range(0, 60, 6))


KINDS = {"repeated", "gap", "missing", "behind", "future"}
A, B = "ann", "bob"


SMALLEST = [
    ([(A, {A: 1}), (A, {A: 2})], []),
    ([(A, {A: 1}), (A, {A: 1})], [("repeated", A, 0, A, 1, None)]),
    ([(A, {A: 2})], [("gap", A, 1, A, 2, 1)]),
    ([(A, {A: 1, B: 4}), (B, {B: 1})], [("missing", A, 0, B, 4, 1)]),
    ([(A, {A: 1, B: 4})], [("missing", A, 0, B, 4, 0)]),
    ([(A, {A: 1, B: 1}), (A, {A: 2}), (B, {B: 1})], [("behind", A, 1, B, 0, 1)]),
    ([(A, {A: 1}), (B, {B: 1, A: 1}), ("eve", {"eve": 1, B: 1})], [("behind", "eve", 0, A, 0, 1)]),
    ([(A, {A: 1, B: 1}), (B, {B: 1, A: 1})], [("future", A, 0, A, 1, 0), ("future", B, 0, B, 1, 0)]),
]


def smallest(rows):
    return [[name, vector, None, None] for name, vector in rows]


@pytest.mark.parametrize(("rows", "expected"), SMALLEST)
def test_each_kind_by_its_smallest_log(rows, expected):
    told = [(*key[:5], should) for key, (should, _) in by_definition(smallest(rows)).items()]
    assert sorted(told, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("check", "without"),
    [
        ("coalesce(lag(index) OVER ({OWN}) = index, false)", "false"),
        ("index != before + 1", "index != index"),
        ("of.value.one < of.value.other", "of.value.one < 0"),
        ("of.key != process AND of.value.one > of.value.other", "of.value.one > of.value.other + 1"),
        ("WHEN past IS NULL THEN array({MISSING})", "WHEN past IS NULL THEN array()"),
        (
            "of.value.one > index, of.value.one > of.value.other",
            "of.value.one > index, of.value.one > of.value.other + 1",
        ),
        ("if(of.key = process, of.value.one > index,", "if(of.key = process, of.value.one > index + 1,"),
    ],
)
def test_every_check_matters(spark, check, without):
    """Without any one of the checks, some log is judged otherwise."""
    source = Path(str(importlib.import_module("antecede.spark.ingest.clocks").__file__)).read_text()
    assert source.count(check) == 1
    mutant = types.ModuleType("mutant")
    exec(compile(source.replace(check, without), "mutant", "exec"), mutant.__dict__)
    logs = {f"s{number}": smallest(rows) for number, (rows, _) in enumerate(SMALLEST)} | some_logs(1, 12)
    found = by_spark(spark, logs, mutant)
    assert any(found[run] != by_definition(rows) for run, rows in logs.items())
