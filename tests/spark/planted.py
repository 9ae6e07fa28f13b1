"""Traces on disk with faults planted in them, in every shape that files may have, and what the oracle says of them.

Rows are dicts, as `tests.spark.random_traces` makes them.
"""

import random
from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from antecede.model import Event
from antecede.oracle import check, happened_before
from antecede.trace import EVENTS, ORDER, ORDER_KEY, RUN_KEY, RUNS, RunInfo
from antecede.trace.layout import Layout
from tests.spark.random_traces import make_trace


def run_of(seed, **shape):
    """A made-up run of that seed, with ties between clocks."""
    names, rows = make_trace(seed, **shape)
    return f"r{seed}", names, lamport([{**row, "run": f"r{seed}"} for row in rows])


def lamport(rows):
    """The rows with Lamport's clocks, in their order. The rows come in an order of time."""
    clocks: dict[str, int] = {}
    sends: dict[tuple, int] = {}
    timed = []
    for row in rows:
        clock = clocks.get(row["process"], -1) + 1
        key = row["sender"], row["number"], row["control"]
        if row["kind"] == "send":
            sends[key] = clock
        elif key in sends:
            clock = max(clock, sends[key] + 1)
        clocks[row["process"]] = clock
        timed.append({**row, "clock": clock})
    return sorted(timed, key=lambda row: (row["clock"], row["process"].encode(), row["index"]))


def find_by_oracle(names, rows):
    """What the oracle finds: (kind, process, sender, number) -> how often; and each violation's witness."""
    ids = {name: position for position, name in enumerate(names)}
    events = [
        Event(
            ids[row["process"]], row["kind"], ids[row["sender"]], row["number"],
            tuple(ids[name] for name in row["to"] or ()), row["control"],
        )
        for row in rows
    ]  # fmt: skip
    verdict = check(events)
    found: Counter[tuple] = Counter()
    witnesses = {}
    for kind, violations in (("violation", verdict.violations), ("fifo_break", verdict.fifo_breaks)):
        for v in violations:
            key = (kind, names[v.at], names[v.overtaken[0]], v.overtaken[1])
            found[key] += 1
            witnesses[key] = (names[v.by[0]], v.by[1])
    for kind in ("duplicate", "unsent", "unaddressed", "undelivered"):
        copies = getattr(verdict, {"duplicate": "duplicates"}.get(kind, kind))
        found.update((kind, names[c.at], names[c.message[0]], c.message[1]) for c in copies)
    return verdict.deliveries, found, witnesses, happened_before(events)


def collect_verdicts(verification):
    """What the pipeline found: for each run its row of verdicts and its findings."""
    runs = {row["run"]: row.asDict() for row in verification.runs.collect()}
    findings: dict[str, list] = {run: [] for run in runs}
    for row in verification.findings.collect():
        findings[row["run"]].append(row.asDict(recursive=True))
    return {run: (verdict, findings[run]) for run, verdict in runs.items()}


def agree(verification, runs):
    """Whether the pipeline and the oracle say the same of each of the runs: a list of differences."""
    told = collect_verdicts(verification)
    assert told.keys() == {name for name, _, _ in runs}
    return [line for run in runs for line in differences(run, *told[run[0]])]


def differences(run, verdict, findings):
    name, names, rows = run
    deliveries, found, witnesses, order = find_by_oracle(names, rows)
    ours = Counter((f["kind"], f["process"], f["sender"], f["number"]) for f in findings)
    if ours != found:
        yield f"{name}: too many {ours - found}, missing {found - ours}"
    if verdict["deliveries"] != deliveries:
        yield f"{name}: {verdict['deliveries']} deliveries, not {deliveries}"
    if (verdict["verdict"] == "no") != bool(found):
        yield f"{name}: verdict {verdict['verdict']} with {len(found)} findings"
    ids = {n: position for position, n in enumerate(names)}
    for f in findings:
        key = (f["kind"], f["process"], f["sender"], f["number"])
        if key in witnesses:
            if (f["by_sender"], f["by_number"]) != witnesses[key]:
                yield f"{name}: {key} by {f['by_sender']}.{f['by_number']}, not {witnesses[key]}"
            chain = [(ids[link["sender"]], link["number"]) for link in f["chain"]]
            ends = (ids[f["sender"]], f["number"]), (ids[f["by_sender"]], f["by_number"])
            if (chain[0], chain[-1]) != ends or not all(
                before in order.known[after] for before, after in pairwise(chain)
            ):
                yield f"{name}: {key} has the chain {chain}"


# On disk


def write(root, runs, *, files=1, group=7, **how):
    """A trace of these runs: (name, names, rows in order). Each run is dealt to `files` files, as `how` says."""
    layout = Layout(root)
    layout.events.mkdir(parents=True)
    infos = [RunInfo(run=name, protocol="made-up", processes=tuple(names)) for name, names, _ in runs]
    pq.write_table(pa.Table.from_pylist([info.row() for info in infos], schema=RUNS), layout.runs)
    for name, _, rows in runs:
        for serial, share in enumerate(shares(name, rows, files, **how)):
            write_file(layout.file(name, serial), share, group, None if how.get("shuffled") else ORDER, name)
    return root


def shares(name, rows, files, shuffled=False, by_process=False):
    if by_process:
        return [
            [row for row in rows if row["process"] == p] for p in sorted({row["process"] for row in rows})
        ] or [[]]
    if shuffled:
        rows = random.Random(name).sample(rows, len(rows))
    edges = [len(rows) * i // files for i in range(files + 1)]
    return [rows[low:high] for low, high in pairwise(edges)]


def write_file(path, rows, group=7, order=ORDER, run=None, schema=EVENTS):
    notes = {ORDER_KEY: order} if order else {}
    notes |= {RUN_KEY: run.encode()} if run else {}
    with pq.ParquetWriter(path, schema, use_dictionary=["run", "process", "kind", "sender"]) as writer:
        for first in range(0, len(rows), group):
            writer.write_table(pa.Table.from_pylist(rows[first : first + group], schema=schema))
        writer.add_key_value_metadata(notes)
