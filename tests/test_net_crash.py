"""Real processes, killed (SIGKILL) at any moment and started again from their journals; judged by the oracle.

Each run prints its seed, which decides who is killed when, by what it has said so far.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from antecede.model import Event
from antecede.oracle import check
from antecede.trace import events_of
from tests.net_worker import plan

ROOT = Path(__file__).parent.parent
NAMES = ["a", "b", "c"]
EACH = 80
PATIENCE_S = 120.0


def free_addresses(count: int) -> list[str]:
    """Addresses that are free, and that the system gives to nobody else while a node is down.

    The ports that it gives out by itself start at 32768 or later: a program that asks for any port may get one of
    those, or one that dials, the peers of the node that is down among them.
    """
    random, free = Random(), list[str]()
    while len(free) < count:
        port = random.randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            free.append(f"127.0.0.1:{port}")
    return free


class Worker:
    """One node's process, in all its lives, and all that it said."""

    def __init__(self, config: dict[str, Any], heard: threading.Condition) -> None:
        self.config, self.heard = config, heard
        self.lives: list[list[dict[str, Any]]] = []
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.net_worker", json.dumps(self.config)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ended = False
        self.lives.append([])
        self.listener = threading.Thread(target=self._listen, args=(self.process, self.lives[-1]))
        self.listener.start()

    def _listen(self, process: subprocess.Popen[str], said: list[dict[str, Any]]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self.heard:
                said.append(json.loads(line))
                self.heard.notify_all()
        process.stdout.close()
        with self.heard:
            self.ended = self.ended or process is self.process
            self.heard.notify_all()

    def wait_for(self, lines: int, owed: int) -> None:
        """Until it has said so much in this life, or has all that is sent to it."""
        said = self.lives[-1]
        with self.heard:
            done = self.heard.wait_for(
                lambda: len(said) >= lines or self.delivered() == owed or self.ended, PATIENCE_S
            )
        assert not self.ended, f"{self.config['name']} ended by itself, with {self.process.wait(PATIENCE_S)}"
        assert done, f"{self.config['name']} has {self.delivered()} of {owed}: lost, or late"

    def kill(self) -> None:
        self.process.kill()
        self.stop()

    def stop(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        self.listener.join()
        return code

    def acked(self) -> Counter[tuple[str, int]]:
        return Counter(
            (one["sender"], one["number"]) for life in self.lives for one in life if one["kind"] == "acked"
        )

    def delivered(self) -> int:
        return sum(event.kind == "deliver" for event in self.events())

    def events(self) -> list[Event]:
        """What happened: of each life, all up to where the next one found the journal's end."""
        events = []
        for k, life in enumerate(self.lives):
            # A life that did not get so far as to say that it started has made nothing durable.
            found = [one["found"] for after in self.lives[k + 1 :] for one in after if one["kind"] == "start"]
            for one in life:
                if one["kind"] not in ("send", "deliver") or one.get("again"):
                    continue
                if not found or one["at"] <= found[0]:
                    me, sender = NAMES.index(self.config["name"]), NAMES.index(one["sender"])
                    to = tuple(sorted(NAMES.index(name) for name in one.get("to", ())))
                    events.append(Event(me, one["kind"], sender, one["number"], to))
        return events


def check_handed_over(worker: Worker) -> None:
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
    workers = [Worker({**common, "name": name, "journal": f"{tmp_path}/{name}.db"}, heard) for name in NAMES]
    sets = plan(seed, NAMES, EACH)
    owed = {name: sum(name in to for one in sets.values() for to in one) for name in NAMES}
    try:
        for _ in range(kills):
            victim = random.choice(workers)
            victim.wait_for(random.randrange(60), owed[victim.config["name"]])
            victim.kill()
            victim.start()
        for worker in workers:
            worker.wait_for(10**9, owed[worker.config["name"]])
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
        assert set(worker.acked().values()) == {1}, "acknowledged once"
        check_handed_over(worker)
