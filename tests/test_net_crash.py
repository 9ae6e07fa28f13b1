"""Real processes, killed (SIGKILL) at any moment and started again from their journals; judged by the oracle.

Each run prints its seed, which decides who is killed when, by what it has said so far.
"""

from __future__ import annotations

import threading
from collections import Counter
from random import Random

import pytest

from antecede.model import Event
from antecede.oracle import check
from antecede.trace import events_of
from tests.net_worker import plan
from tests.processes import PATIENCE_S, Worker, free_addresses

NAMES = ["a", "b", "c"]
EACH = 80


class Sender(Worker):
    """One that sends its part of the plan."""

    def wait_for(self, lines: int, owed: int) -> None:
        """Until it has said so much in this life, or has all that is sent to it."""
        said = self.said
        with self.heard:
            done = self.heard.wait_for(
                lambda: len(said) >= lines or self.count_delivered() == owed or self.ended, PATIENCE_S
            )
        assert not self.ended, f"{self.name} ended by itself, with {self.process.wait(PATIENCE_S)}"
        assert done, f"{self.name} has {self.count_delivered()} of {owed}: lost, or late"

    def count_acked(self) -> Counter[tuple[str, int]]:
        return Counter(
            (one["sender"], one["number"]) for life in self.lives for one in life if one["kind"] == "acked"
        )

    def count_delivered(self) -> int:
        return sum(event.kind == "deliver" for event in self.events())

    def events(self) -> list[Event]:
        """What happened: of each life, all up to where the next one found the journal's end."""
        events: list[Event] = []
        delivered: set[tuple[str, int]] = set()
        for k, life in enumerate(self.lives):
            # A life that did not get so far as to say that it started has made nothing durable.
            found = [one["found"] for after in self.lives[k + 1 :] for one in after if one["kind"] == "start"]
            for one in life:
                if one["kind"] not in ("send", "deliver"):
                    continue
                # What comes again may have been handed over before, or not: nobody knows but us.
                identity = one["sender"], one["number"]
                if one["kind"] == "deliver" and identity in delivered:
                    assert one["again"], f"{identity} was handed over before"
                    continue
                if not found or one["at"] <= found[0]:
                    if one["kind"] == "deliver":
                        delivered.add(identity)
                    me, sender = NAMES.index(self.name), NAMES.index(one["sender"])
                    to = tuple(sorted(NAMES.index(name) for name in one.get("to", ())))
                    events.append(Event(me, one["kind"], sender, one["number"], to))
        return events


def check_handed_over(worker: Sender) -> None:
    """Nothing again after its acknowledgement; what comes again comes first, in the order of before."""
    done: set[tuple[str, int]] = set()
    first: dict[tuple[str, int], int] = {}
    for life in worker.lives:
        fresh = False
        order = []
        for one in life:
            identity = (one.get("sender", ""), one.get("number", 0))
            if one["kind"] == "acked":
                done.add(identity)
            elif one["kind"] == "deliver":
                assert identity not in done, f"{identity} came again after its acknowledgement"
                assert not (one["again"] and fresh), f"{identity} came again, but not first"
                fresh = fresh or not one["again"]
                if one["again"] and identity in first:
                    order.append(first[identity])
                first.setdefault(identity, len(first))
        assert order == sorted(order)


@pytest.mark.parametrize(
    ("protocol", "sync", "records", "kills"), [("permit", "full", False, 5), ("matrix", "normal", True, 3)]
)
def test_killed_nodes_lose_nothing_and_repeat_nothing(tmp_path, protocol, sync, records, kills):
    seed = f"{protocol} 1"
    print(f"seed {seed!r}")
    random, heard = Random(seed), threading.Condition()
    peers = dict(zip(NAMES, free_addresses(3), strict=True))
    trace = tmp_path / "trace"
    common = {
        "peers": peers,
        "protocol": protocol,
        "sync": sync,
        "seed": seed,
        "each": EACH,
        "trace": str(trace) if records else None,
    }
    workers = [
        Sender("tests.net_worker", {**common, "name": name, "journal": f"{tmp_path}/{name}.db"}, heard)
        for name in NAMES
    ]
    sets = plan(seed, NAMES, EACH)
    owed = {name: sum(name in to for one in sets.values() for to in one) for name in NAMES}
    try:
        for _ in range(kills):
            victim = random.choice(workers)
            victim.wait_for(random.randrange(60), owed[victim.name])
            victim.kill()
            victim.start()
        for worker in workers:
            worker.wait_for(10**9, owed[worker.name])
        assert [worker.stop() for worker in workers] == [0, 0, 0]
    finally:
        for worker in workers:
            if worker.process.poll() is None:
                worker.kill()
    events = [event for worker in workers for event in worker.events()]
    verdict = check(events, 3)
    assert verdict.ok, verdict
    if records:
        recorded = [event for event in events_of(trace, "nodes") if event.kind != "receive"]
        assert recorded == events, "the nodes recorded what happened, across their lives"
    for worker in workers:
        assert set(worker.count_acked().values()) == {1}, "acknowledged once"
        check_handed_over(worker)
