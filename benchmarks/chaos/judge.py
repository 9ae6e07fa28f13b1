"""What must be true at the end of a run. Everything that is not, as sentences.

From the diaries, which the nodes know nothing of
  lost        a message of the plan that its receiver was not handed
  stranger    one that is in no plan, or not for it
  done        one that came again after its acknowledgement was awaited
  again       what comes again comes first in a life, in its first order, and is marked; what is marked and did not come
              before may come at any time
From the trace, which the nodes wrote
  same        the sends and deliveries of each process are those of its diary, in the same order
  verify      `antecede verify`, or the oracle if the run is small, finds nothing wrong with it
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from antecede.oracle import check
from antecede.trace import events_of
from benchmarks.chaos.diary import AGAIN, DONE, HANDED, SENT, START, Records, read
from benchmarks.chaos.plan import Plan, node_names

__all__ = ["Account", "account", "by_oracle", "by_verify", "same"]

SHOWN = 3


class Account(Struct):
    """What the diaries say."""

    delivered: int = 0
    """Different messages, at each receiver."""
    again: int = 0
    """Times that one was handed over again."""
    done: int = 0
    lives: int = 0
    wrong: list[str] = []


def account(directory: Path, plan: Plan) -> Account:
    """Account for every message of the plan."""
    total = Account()
    owed = plan.list_owed()
    for me, name in enumerate(node_names(plan.n)):
        records = read(directory / f"{name}.diary")
        total.wrong += list(_find_unaddressed(name, records, owed[me], plan.each))
        total.wrong += list(_find_repeats(name, records))
        handed = np.isin(records["kind"], (HANDED, AGAIN))
        total.delivered += len(np.unique(records[handed][["sender", "number"]]))
        total.again += int((records["kind"] == AGAIN).sum())
        total.done += int((records["kind"] == DONE).sum())
        total.lives += int((records["kind"] == START).sum())
    return total


def _find_unaddressed(name: str, records: Records, owed: list[list[int]], each: int) -> Iterator[str]:
    """Each message that it is owed, and no other."""
    names = node_names(len(owed))
    handed = records[np.isin(records["kind"], (HANDED, AGAIN))]
    for sender, numbers in enumerate(owed):
        found = np.unique(handed["number"][handed["sender"] == sender])
        lost = np.setdiff1d(np.array(numbers, "u4"), found)
        strange = np.setdiff1d(found, np.array(numbers, "u4"))
        if len(lost):
            yield f"{name} was not handed {len(lost)} messages of {names[sender]}: {lost[:SHOWN].tolist()} ..."
        if len(strange):
            yield f"{name} was handed {strange[:SHOWN].tolist()} ... of {names[sender]}, not addressed to it"


def _find_repeats(name: str, records: Records) -> Iterator[str]:
    """Nothing again after its acknowledgement; what comes again comes first, marked, in its first order."""
    done: set[tuple[int, int]] = set()
    place: dict[tuple[int, int], int] = {}
    fresh, last, places = False, -1, count()
    for kind, sender, number in records.tolist():
        message = (sender, number)
        if kind == START:
            fresh, last = False, -1
        elif kind == DONE:
            done.add(message)
        elif kind in (HANDED, AGAIN) and message in done:
            yield f"{name} was handed {message} again after its acknowledgement"
        elif kind == HANDED:
            fresh = True
            # If it was handed over before, a kill has undone that: this is its place.
            place[message] = next(places)
        elif kind == AGAIN:
            seen = message in place
            here = place.setdefault(message, next(places))
            if not seen:
                continue
            if fresh:
                yield f"{name} was handed {message} again, but not first"
            elif here < last:
                yield f"{name} was handed {message} again, but not in the order of before"
            last = here


def list_events(records: Records) -> Records:
    """The sends and deliveries of a process, as its application tells them.

    What a kill undid is told again by a later life: the last time counts. What the node did when the kill came just
    before the application could write it down is told at the start of the next life, by AGAIN and the count of START.
    """
    told: list[tuple[int, int, int]] = []
    sent = 0
    for kind, sender, number in records.tolist():
        if kind == START:
            told += [(SENT, sender, k) for k in range(sent + 1, number + 1)]
            sent = number
        elif kind == SENT:
            told.append((SENT, sender, number))
            sent = number
        elif kind in (HANDED, AGAIN):
            told.append((kind, sender, number))
    places: dict[tuple[int, int, int], int] = {}
    for place, (kind, sender, number) in enumerate(told):
        if kind == AGAIN:
            places.setdefault((HANDED, sender, number), place)
        else:
            places[kind, sender, number] = place
    ordered = sorted(places, key=places.__getitem__)
    return np.array(ordered, "i8").reshape(-1, 3)


def same(directory: Path, plan: Plan) -> list[str]:
    """Where the trace says another thing than the diaries."""
    names = node_names(plan.n)
    table = pq.read_table(
        directory / "trace" / "events", columns=["process", "index", "kind", "sender", "number"]
    )
    process, sender = (_places(table[column], names) for column in ("process", "sender"))
    kinds = np.array([SENT, HANDED, -1])[_places(table["kind"], ("send", "deliver", "receive"))]
    rows = np.stack([kinds, sender, table["number"].to_numpy()], axis=1)
    index = table["index"].to_numpy()
    wrong = []
    for me, name in enumerate(names):
        mine = process == me
        order = np.argsort(index[mine])
        traced = rows[mine][order]
        traced = traced[traced[:, 0] >= 0]
        told = list_events(read(directory / f"{name}.diary"))
        if traced.shape != told.shape or (traced != told).any():
            k = next(
                (k for k, pair in enumerate(zip(traced, told, strict=False)) if (pair[0] != pair[1]).any()),
                min(len(traced), len(told)),
            )
            found, expected = traced[k : k + 1].tolist(), told[k : k + 1].tolist()
            wrong.append(
                f"{name}: event {k} of {len(traced)} in the trace is {found}, of {len(told)} in the diary {expected}"
            )
    return wrong


def _places(column: pa.ChunkedArray, values: Sequence[str]) -> npt.NDArray[Any]:
    """Where in a list each value of a column is."""
    return pc.index_in(column, pa.array(values)).to_numpy()


def by_oracle(directory: Path, plan: Plan, run: str) -> list[str]:
    """What the oracle finds: for small runs."""
    verdict = check(events_of(directory / "trace", run), plan.n)
    return [] if verdict.ok else str(verdict).splitlines()[:SHOWN]


def by_verify(directory: Path, owed: int) -> list[str]:
    """What `antecede verify` finds, in a process of its own."""
    command = [sys.executable, "-c", "from antecede.cli import main; main()", "verify", "--json"]
    done = subprocess.run([*command, str(directory / "trace")], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout.strip():
        return [f"antecede verify ended with {done.returncode}: {done.stderr.strip()[-500:]}"]
    answer = json.loads(done.stdout)
    [run] = answer["runs"]
    if done.returncode == 0 and answer["verdict"] == "yes" and run["deliveries"] == owed:
        return []
    return [f"antecede verify: {run}", *done.stderr.strip().splitlines()[-SHOWN:]]
