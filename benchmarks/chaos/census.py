"""What must be true at the end of a run in which members came and went. Everything that is not, as sentences.

From the diaries, which the nodes know nothing of
  once        nothing is handed over twice, unless the node says that it may have been; nothing after its `done`
  lost        whatever a diary says was sent is handed over at each destination, unless the one or the other was removed
  views       all that came to a view of one number came to the same members, each in the order of numbers
By `antecede verify`, from the trace that the nodes wrote
  order       no message was delivered after one that it causally precedes, in any view, at any process
  rest        what is unsent or undelivered there is of or to a process that was removed, and nothing else
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from msgspec import Struct

from benchmarks.chaos.resident import TORN

__all__ = ["Census", "take_census"]

SHOWN = 3


class Census(Struct):
    """What was found."""

    sent: int = 0
    delivered: int = 0
    again: int = 0
    lives: int = 0
    views: int = 0
    wrong: list[str] = []


class Diary(Struct):
    """One application's, read."""

    sent: dict[int, tuple[str, ...]] = {}
    handed: set[tuple[str, int]] = set()
    views: list[tuple[int, tuple[str, ...]]] = []
    lives: int = 0
    again: int = 0
    wrong: list[str] = []


def read_diary(name: str, text: str) -> Diary:
    """What an application saw, and what is wrong with that alone.

    >>> read_diary("a", "start 0\\nhanded b 1\\ndone b 1\\nstart 0\\nagain b 1\\n").wrong
    ['a was handed message 1 of b again, after its acknowledgement']
    >>> read_diary("a", "start 0\\nhanded b 1\\nstart 0\\nagain b 1\\n").wrong
    []
    >>> read_diary("a", "start 0\\nhanded b 1\\nstart 0\\nhanded b 1\\n").wrong
    ['a was handed message 1 of b again, and not told so']
    >>> read_diary("a", "start 0\\nsent 1 b\\nsent 2 b\\nstart 1\\n").sent
    {1: ('b',)}
    >>> read_diary("a", "start 0\\nhanded b 1 torn\\nstart 0\\nhanded b 12\\nhanded b 1").handed
    {('b', 12)}
    """
    diary, done = Diary(), set[tuple[str, int]]()
    # A kill may leave a part of the last line.
    for line in text.split("\n")[:-1]:
        match [] if line.endswith(TORN) else line.split():
            case ["start", sent]:
                # What was sent beyond that, a kill has undone: nobody had waited for it to be durable.
                diary.sent = {number: to for number, to in diary.sent.items() if number <= int(sent)}
                diary.lives += 1
            case ["sent", number, *to]:
                # What a kill undid has the same number: the last time counts.
                diary.sent[int(number)] = tuple(to)
            case [("handed" | "again") as kind, sender, number]:
                message = sender, int(number)
                if message in done:
                    diary.wrong.append(
                        f"{name} was handed message {number} of {sender} again, after its acknowledgement"
                    )
                elif kind == "handed" and message in diary.handed:
                    diary.wrong.append(
                        f"{name} was handed message {number} of {sender} again, and not told so"
                    )
                diary.again += kind == "again"
                diary.handed.add(message)
            case ["done", sender, number]:
                done.add((sender, int(number)))
            case ["view", number, *members]:
                diary.views.append((int(number), tuple(members)))
    return diary


def take_census(directory: Path, names: list[str], removed: set[str], left: set[str]) -> Census:
    """Account for everything that was said."""
    diaries = {name: read_diary(name, _text(directory / f"{name}.diary")) for name in names}
    census = Census()
    views: dict[int, tuple[str, ...]] = {}
    for name, diary in diaries.items():
        census.sent += len(diary.sent)
        census.delivered += len([one for one in diary.handed if one[1]])
        census.again += diary.again
        census.lives += diary.lives
        census.wrong += diary.wrong[:SHOWN]
        census.wrong += list(_check_views(name, diary, views))
    census.views = len(views)
    census.wrong += list(_find_lost(diaries, removed))
    census.wrong += _verify(directory, removed, left)
    return census


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _check_views(name: str, diary: Diary, views: dict[int, tuple[str, ...]]) -> Iterator[str]:
    last = 0
    for number, members in diary.views:
        if views.setdefault(number, members) != members:
            yield f"{name} came to view {number} of {members}, another to one of {views[number]}"
        if number < last:
            yield f"{name} came to view {number} after {last}"
        last = max(last, number)


def _find_lost(diaries: dict[str, Diary], removed: set[str]) -> Iterator[str]:
    for sender, diary in diaries.items():
        for number, to in diary.sent.items() if sender not in removed else ():
            for name in to:
                if name not in removed and (sender, number) not in diaries[name].handed:
                    yield f"{name} was not handed message {number} of {sender}"


def _verify(directory: Path, removed: set[str], left: set[str]) -> list[str]:
    """What `antecede verify` finds, in a process of its own, but for what a removal takes with it."""
    out = directory / "verified"
    command = [sys.executable, "-c", "from antecede.cli import main; main()", "verify"]
    done = subprocess.run(
        [*command, str(directory / "trace"), "--out", str(out)], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1) or not (out / "findings").exists():
        return [f"antecede verify ended with {done.returncode}: {done.stderr.strip()[-500:]}"]
    wrong = []
    for row in pq.read_table(out / "findings").to_pylist():
        gone = row["sender"] in removed or row["process"] in removed
        if row["kind"] not in ("unsent", "undelivered") or not gone:
            wrong.append(f"antecede verify: {row}")
    return wrong[: 2 * SHOWN]
