"""Chains that `measure` counts, against what the definitions give in plain Python, and the oracle's happened-before."""

import random
from collections import defaultdict
from math import ceil

import pyarrow as pa
import pytest

pytest.importorskip("numba")

from antecede.jit import interpret_kernels
from antecede.model import Event
from antecede.oracle import happened_before
from antecede.spark.measure.chains import follow
from antecede.trace import EVENTS
from antecede.trace.columns import Names, rows_of
from antecede.verification import Scan, TooMuchInFlight
from antecede.verification.chunk import MEMORY
from antecede.verification.local import follow_chains
from tests.spark.random_traces import make_trace

ERROR = 1 / 128
"""How wrong a quantile may be, as docs/measuring.md promises."""


def reader(rows, names, seed=0):
    """The rows in batches of any size."""
    dice = random.Random(seed)

    def read():
        at = 0
        while at < len(rows):
            size = dice.randint(1, 20)
            batch = pa.RecordBatch.from_pylist(rows[at : at + size], schema=EVENTS)
            yield rows_of(batch, names)
            at += size

    return read


def chains(rows, names, blocks=None, memory=MEMORY):
    """What all blocks of clocks come to together."""
    known = Names.of(names)
    found = [
        follow_chains(reader(rows, known, seed=block[0]), len(known), block, memory)
        for block in blocks or [(0, len(known))]
    ]
    assert len({(one.sends, one.longest) for one in found}) == 1
    return {
        "past": sum(one.past for one in found),
        "sends": found[0].sends,
        "longest_chain": found[0].longest,
    }


# By the definitions


def spread(quantity, values):
    if not values:
        return {}
    ranked = sorted(values)
    quantiles = {f"p{p}": ranked[max(ceil(len(ranked) * p / 100), 1) - 1] for p in (50, 99)}
    figures = {"mean": sum(values) / len(values), **quantiles, "max": ranked[-1]}
    return {f"{quantity}_{name}": value for name, value in figures.items()}


class Expected:
    """A run's figures, slowly."""

    def __init__(self, names, rows):
        self.names, self.rows = names, rows
        mine = [row for row in rows if not row["control"]]
        self.sends = {(row["sender"], row["number"]): row for row in mine if row["kind"] == "send"}
        self.copies = {(m, q) for m, row in self.sends.items() for q in row["to"]}
        self.received = any(row["kind"] == "receive" for row in mine)
        self.timed = len({row["time_ns"] for row in rows}) > 1
        self.delays, self.waits = defaultdict(list), defaultdict(list)
        arrived = {(m, q): self.sends[m]["time_ns"] for m, q in self.copies if m[0] == q}
        delivered: set = set()
        for row in mine:
            message, q = (row["sender"], row["number"]), row["process"]
            if row["kind"] == "receive" and (message, q) in self.copies:
                arrived.setdefault((message, q), row["time_ns"])
            if row["kind"] == "deliver" and (message, q) in self.copies - delivered:
                delivered.add((message, q))
                self.delays[message[0], q].append(row["time_ns"] - self.sends[message]["time_ns"])
                if (message, q) in arrived:
                    self.waits[q].append(row["time_ns"] - arrived[message, q])

    def count(self, kind, process=None, control=False):
        return sum(
            row["kind"] == kind and row["control"] == control and process in (None, row["process"])
            for row in self.rows
        )

    def spread(self, quantity, times):
        """A log without times, whose events all have the same, tells none of these."""
        return spread(quantity, times) if self.timed else {}

    def order(self):
        ids = {name: i for i, name in enumerate(self.names)}
        return happened_before(
            [
                Event(ids[r["process"]], r["kind"], ids[r["sender"]], r["number"],
                      tuple(ids[q] for q in r["to"] or ()), r["control"])
                for r in self.rows
            ]
        )  # fmt: skip

    def run(self):
        order = self.order()
        pasts = {message: order.past(message) for message in order.sends}
        depth: dict = {}
        for message in sorted(pasts, key=lambda m: order.sends[m]):
            depth[message] = 1 + max((depth[m] for m in pasts[message]), default=0)
        delays = [delay for values in self.delays.values() for delay in values]
        waits = [wait for values in self.waits.values() for wait in values] if self.received else []
        own = [row for row in self.rows if row["kind"] == "send" and not row["control"]]
        figures = {
            "run": "r",
            "processes": len(self.names),
            "events": len(self.rows),
            "sends": len(own),
            "copies": len(self.copies),
            "deliveries": self.count("deliver"),
            "control_packets": self.count("send", control=True),
            "past": sum(map(len, pasts.values())),
            "longest_chain": max(depth.values(), default=0),
            **self.spread("delay_ns", delays),
            **self.spread("wait_ns", waits),
        }
        if self.timed:
            times = [row["time_ns"] for row in self.rows]
            figures["duration_ns"] = max(times) - min(times)
        for name in ("stamp_entries", "stamp_bytes"):
            figures |= spread(name, [row[name] for row in own if row[name] is not None])
        if self.received and self.timed and sum(delays):
            figures["wait_share"] = sum(waits) / sum(delays)
        return figures

    def processes(self):
        for name in sorted(self.names):
            yield {
                "run": "r",
                "process": name,
                "sends": self.count("send", name),
                "deliveries": self.count("deliver", name),
                "control_packets": self.count("send", name, control=True),
                **self.spread(
                    "delay_ns", [d for (_, q), values in self.delays.items() if q == name for d in values]
                ),
                **(self.spread("wait_ns", self.waits[name]) if self.received else {}),
            }

    def channels(self):
        for sender, q in sorted({(m[0], q) for m, q in self.copies}):
            yield {
                "run": "r",
                "sender": sender,
                "receiver": q,
                "messages": sum((m[0], to) == (sender, q) for m, to in self.copies),
                "deliveries": len(self.delays[sender, q]),
                **self.spread("delay_ns", self.delays[sender, q]),
            }


def close(found, expected):
    """Counts are exact; of the rest, quantiles are within the error that is stated, means within rounding."""
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if key.endswith(("_p50", "_p99")):
            assert abs(found[key] - value) <= ERROR * abs(value), key
        elif isinstance(value, float):
            assert found[key] == pytest.approx(value, rel=1e-12), key
        else:
            assert found[key] == value, key


def same(found, names, rows):
    expected = Expected(names, rows)
    figures = expected.run()
    assert found == {name: figures[name] for name in ("past", "sends", "longest_chain")}


@pytest.mark.parametrize("seed", range(300))
def test_pairs_and_chains_are_those_of_the_oracle(seed):
    names, rows = make_trace(seed, receives=seed % 4 > 0)
    same(chains(rows, names), names, rows)


@pytest.mark.parametrize("seed", range(20))
def test_interpreted_kernels_find_the_same(seed):
    names, rows = make_trace(seed)
    with interpret_kernels():
        same(chains(rows, names), names, rows)


@pytest.mark.parametrize("seed", range(300, 360))
def test_blocks_of_clocks_add_up(seed):
    names, rows = make_trace(seed, processes=5, events=80)
    same(chains(rows, names, [(0, 2), (2, 3), (3, 5)]), names, rows)


@pytest.mark.parametrize("seed", range(360, 363))
def test_clocks_too_wide_for_the_memory_are_followed_in_parts(seed):
    names, rows = make_trace(seed, processes=40, events=600)
    # In a block of 16 clocks have a third of the width that they have in one of 40.
    same(chains(rows, names, memory=70_000), names, rows)
    with pytest.raises(TooMuchInFlight):
        chains(rows, names, memory=10_000)


def test_tables_grow():
    """More messages under way, and more strays, than any table has room for at first."""
    names, rows = make_trace(5, processes=24, events=1_500, faults=False)
    same(chains(rows, names), names, rows)


def test_hundreds_under_way_to_many_each():
    names = [f"p{i}" for i in range(40)]
    blank = dict.fromkeys(EVENTS.names) | {"run": "r", "control": False}
    sends: list[dict] = [
        {**blank, "process": f"p{i % 3}", "sender": f"p{i % 3}", "kind": "send", "number": i, "to": names,
         "index": i // 3, "clock": i, "time_ns": i}
        for i in range(120)
    ]  # fmt: skip
    delivers = [
        {**blank, "process": q, "sender": s["sender"], "kind": "deliver", "number": s["number"],
         "index": 1000 + s["number"], "clock": 1000, "time_ns": 10**12}
        for s in sends for q in names
    ]  # fmt: skip
    found = chains(sends + delivers, names)
    assert found == {"past": 3 * (40 * 39 // 2), "sends": 120, "longest_chain": 40}


def test_a_clock_counts_on_where_32_bits_end():
    """A run of billions of messages, from just before the end of the clocks' range."""
    names = Names.of(["a", "b"])
    blank = dict.fromkeys(EVENTS.names) | {
        "run": "r",
        "process": "a",
        "sender": "a",
        "control": False,
        "time_ns": 0,
    }
    rows = [{**blank, "kind": "send", "number": i, "to": ["b"], "index": i, "clock": i} for i in range(4)]
    scan = Scan(2, first=True, chains=True)
    before = 2**31 - 2
    scan.state.clocks[0, 0] = scan.state.sends[0] = before
    scan.feed(rows_of(pa.RecordBatch.from_pylist(rows, schema=EVENTS), names))
    part = scan.finish()
    assert part.past == sum(before + i for i in range(4))
    assert part.summary.clocks[0, 0] == before + 4
    assert part.summary.flight_clocks[:, 0].tolist() == [before + 1 + i for i in range(4)]


def test_a_run_without_events_orders_nothing():
    assert chains([], ["a", "b"]) == {"past": 0, "sends": 0, "longest_chain": 0}


# What cannot be a run


def broken(change):
    first = dict.fromkeys(EVENTS.names) | {"run": "r", "control": False, "time_ns": 0}
    send = {
        **first,
        "process": "p0",
        "sender": "p0",
        "kind": "send",
        "number": 1,
        "to": ["p1"],
        "index": 0,
        "clock": 0,
    }
    deliver = {**send, "process": "p1", "kind": "deliver", "to": None, "clock": 1}
    return change(send, deliver)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda s, d: [{**d, "clock": 0}, {**s, "clock": 1}],
            "message 1 of p0 is delivered before it is sent",
        ),
        (lambda s, d: [s, {**s, "index": 1, "clock": 1}, d], "message 1 of p0 is sent a second time"),
        (lambda s, d: [{**s, "process": "p1"}], "message 1 of p0 is sent by another process than its sender"),
    ],
)
def test_rows_that_contradict_each_other_are_refused(change, told):
    names = Names.of(["p0", "p1"])
    read = reader(broken(change), names)
    found = follow("r", names, lambda: (("events", rows) for rows in read()), "events", (0, 2))
    assert found.error is not None
    assert told in found.error[1]
