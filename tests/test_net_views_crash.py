"""Real processes, killed (SIGKILL) in the middle of changes of the view, and started again; judged by the oracle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from antecede.model import View
from antecede.oracle import check
from antecede.trace import events_of, read_runs
from tests.processes import PATIENCE_S, Worker, free_addresses


class Member(Worker):
    """One that joins, leaves and removes as it is asked to."""

    @property
    def told(self) -> list[dict[str, Any]]:
        """What it said in all its lives."""
        return [told for life in self.lives for told in life]

    def until(self, what: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until it has told such a thing, in this life."""
        with self.heard:
            done = self.heard.wait_for(lambda: any(map(what, self.said)), PATIENCE_S)
        assert done, f"{self.name} told last: {self.told[-3:]}"


def is_later_round(promised: int) -> Callable[[dict[str, Any]], bool]:
    """A round after this one is under way."""
    return lambda told: told["kind"] == "phase" and told["phase"][1] > promised and not told["phase"][2]


def in_view(members: str) -> Callable[[dict[str, Any]], bool]:
    return lambda told: told["kind"] == "phase" and told["phase"][2] and set(told["members"]) == set(members)


class System:
    def __init__(self, root: Path, protocol: str) -> None:
        self.root, self.protocol, self.heard = root, protocol, threading.Condition()
        self.addresses = dict(zip("abcdef", free_addresses(6), strict=True))
        self.workers: dict[str, Member] = {}

    def start(self, name: str, peers: str, join: bool = False) -> Member:
        config = {
            "name": name,
            "peers": {peer: self.addresses[peer] for peer in peers},
            "address": self.addresses[name],
            "join": join,
            "protocol": self.protocol,
            "journal": f"{self.root}/{name}.db",
            "words": f"{self.root}/{name}.words",
            "trace": f"{self.root}/trace",
        }
        self.workers[name] = Member("tests.view_worker", config, self.heard)
        return self.workers[name]

    def __enter__(self) -> System:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            if worker.process.poll() is None:
                worker.kill()

    def round(self) -> int:
        return max(
            told["phase"][1] for w in self.workers.values() for told in w.told if told["kind"] == "phase"
        )

    def kill_in_the_middle(self, name: str, before: int, random: Random) -> None:
        """Kill it once it takes part in a round after this one, and start it again."""
        worker = self.workers[name]
        worker.until(is_later_round(before))
        with self.heard:
            # Anything from at once to the end of the change.
            self.heard.wait(random.uniform(0, 0.03))
        worker.kill()
        worker.start()


@pytest.mark.parametrize(("protocol", "seed"), [("permit", 1)])
def test_a_change_that_is_killed_anywhere_is_made_or_was_not_begun(tmp_path, protocol, seed):
    random = Random(seed)
    with System(tmp_path, protocol) as system:
        a, b, c = [system.start(name, "abc") for name in "abc"]
        for worker in (a, b, c):
            worker.until(in_view("abc"))
            worker.ask("say 15")
        d = system.start("d", "abc", join=True)
        # The leader dies; then another.
        system.kill_in_the_middle("a", 1, random)
        for worker in (a, b, c, d):
            worker.until(in_view("abcd"))
            worker.ask("say 8")
        before = system.round()
        c.ask("leave")
        system.kill_in_the_middle("b", before, random)
        for worker in (a, b, d):
            worker.until(in_view("abd"))
        # One dies for good in the middle of a change, and is removed; its leader dies in the middle of that.
        before = system.round()
        system.start("e", "ab", join=True)
        b.until(is_later_round(before))
        b.kill()
        d.ask("say 5")
        d.ask("remove b")
        a.ask("remove b")
        system.kill_in_the_middle("a", before, random)
        a.ask("remove b")
        a.ask("say 5")
        e = system.workers["e"]
        for worker in (a, d, e):
            worker.until(in_view("ade"))
        e.ask("say 5")
        a.until(lambda told: told["kind"] == "said")
        e.until(lambda told: told["kind"] == "said")
        d.until(lambda told: told["kind"] == "removed")
        judge(system, {"a", "d", "e"}, tmp_path / "trace")


def judge(system: System, living: set[str], trace: Path) -> None:
    wait_for_words(system, living)
    assert [worker.stop() for name, worker in system.workers.items() if name != "b"] == [0] * 4
    views: dict[int, list[str]] = {}
    for worker in system.workers.values():
        for told in worker.told:
            if told["kind"] == "phase":
                number, members = told["phase"][0], told["members"]
                assert views.setdefault(number, members) == members, "two views of one number"
    [run] = read_runs(trace)
    verdict = check(events_of(trace, "nodes"), len(run.processes))
    why = verdict.explain(View(run.processes))
    assert not verdict.violations, why
    assert not verdict.duplicates, why
    removed = run.processes.index("b")
    # What it had sent, and not yet recorded, is only in its journal.
    assert all(copy.message[0] == removed for copy in verdict.unsent), why
    assert all(copy.at == removed or copy.message[0] == removed for copy in verdict.undelivered), why
    ends = {name: set(system.workers[name].told[-1]["words"]) for name in living}
    words = {name: {word for word in found if word[0] != "b"} for name, found in ends.items()}
    assert words["a"] == words["d"] == words["e"], words


def wait_for_words(system: System, living: set[str]) -> None:
    """Until all have what was said by those that live or left."""
    with system.heard:
        sent = {
            name: max((told["sent"] for told in worker.told if told["kind"] == "said"), default=0)
            for name, worker in system.workers.items()
            if name != "b"
        }

        def has_all(told: dict[str, Any]) -> bool:
            return told["kind"] == "words" and all(told["by"].get(name, 0) >= sent[name] for name in sent)

        done = system.heard.wait_for(
            lambda: all(any(map(has_all, system.workers[name].told)) for name in living), PATIENCE_S
        )
        assert done, {name: system.workers[name].told[-1] for name in living}
