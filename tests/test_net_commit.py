"""Who writes a group of inputs: the event loop if the disk is quick, else a thread; and what waits for it goes on."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from antecede.errors import Closed
from antecede.model import View
from antecede.net.commit import LONG_NS, MOST_TRIALS, SHORT_NS, TRIALS, UNSYNCED_BYTES, Commits, SyncTimes
from antecede.net.signal import Signal
from antecede.net.storage.journal import Database
from antecede.process.core import Core
from antecede.process.inputs import Input, Send
from antecede.process.journal import CHECKPOINT_GROUPS_FULL, LARGE_BYTES, Journal


class Watched(Journal):
    """Remembers which groups the event loop wrote itself."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.by_loop: list[bool] = []

    def append(
        self, inputs: Sequence[Input], snapshot: dict[str, Any] | None = None, size: int | None = None
    ) -> None:
        self.by_loop.append(threading.current_thread() is threading.main_thread())
        super().append(inputs, snapshot, size)


@contextmanager
def open_watched(directory: Path, sync: Any) -> Iterator[Watched]:
    path = str(directory / "a.db")
    journal = Watched(Database(path, "journal a.db", sync), "journal a.db", sync)
    journal.recover(Core.new("fifo", View.of("a", "b"), "a", epoch=1))
    yield journal
    journal.close()


def write_groups(journal: Watched, sizes: Sequence[int], took_ns: Callable[[int], int]) -> list[bool]:
    """Who writes groups of a message of these sizes, on a disk that takes this long for each."""
    now = count(1)

    def clock() -> int:
        # Twice for each group that is timed: before it and after.
        number = next(now)
        return sum(took_ns(group) for group in range(number // 2))

    async def main() -> None:
        with ThreadPoolExecutor(1) as thread:
            commits = Commits(journal, thread, clock, (4096, 64 << 20), lambda out: None, Signal())
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(commits.run(lambda: False, dict))
                for size in sizes:
                    await commits.wait(commits.write(Send((1,), bytes(size)), size))
                commits.end()

    asyncio.run(main())
    return journal.by_loop


def test_the_loop_writes_small_groups_once_the_disk_has_shown_that_it_is_quick(tmp_path):
    with open_watched(tmp_path, "full") as journal:
        found = write_groups(journal, [10] * (TRIALS + 5) + [LARGE_BYTES, 10], lambda group: SHORT_NS // 2)
    assert found == [False] * TRIALS + [True] * 5 + [False, True]


def test_a_thread_writes_all_groups_of_a_slow_disk(tmp_path):
    with open_watched(tmp_path, "full") as journal:
        assert not any(write_groups(journal, [10] * 3 * TRIALS, lambda group: SHORT_NS))


def test_a_thread_writes_again_as_soon_as_a_group_held_up_the_loop(tmp_path):
    with open_watched(tmp_path, "full") as journal:
        found = write_groups(
            journal, [10] * (4 * TRIALS), lambda group: LONG_NS + 1 if group == TRIALS else SHORT_NS // 2
        )
    assert found == [False] * TRIALS + [True] + [False] * 2 * TRIALS + [True] * (TRIALS - 1)


def test_a_thread_puts_the_log_into_its_place(tmp_path):
    with open_watched(tmp_path, "full") as journal:
        found = write_groups(journal, [10] * (CHECKPOINT_GROUPS_FULL + 3), lambda group: SHORT_NS // 2)
        assert Path(tmp_path / "a.db").stat().st_size > 2 * CHECKPOINT_GROUPS_FULL
    assert [number for number, by_loop in enumerate(found) if not by_loop] == [
        *range(TRIALS),
        # The snapshot that a new journal begins with was a group too.
        CHECKPOINT_GROUPS_FULL - 1,
    ]


def test_the_loop_writes_what_is_not_synced_unless_it_is_large(tmp_path):
    with open_watched(tmp_path, "normal") as journal:
        found = write_groups(journal, [10, UNSYNCED_BYTES, 10], lambda group: SHORT_NS)
    assert found == [True, False, True]


def test_each_long_group_doubles_the_trials_and_many_in_time_begin_anew():
    times = SyncTimes()
    for trials in (16, 32, 64, 128, 256, 512, 1024, 1024):
        for _ in range(trials):
            assert not times.short
            times.note(SHORT_NS)
            times.note(SHORT_NS - 1)
        assert times.short
        times.note(LONG_NS + 1)
    for _ in range(MOST_TRIALS):
        times.note(0)
    for _ in range(MOST_TRIALS):
        times.note(LONG_NS)
    times.note(LONG_NS + 1)
    for _ in range(2 * TRIALS):
        assert not times.short
        times.note(0)
    assert times.short


def test_whoever_waits_is_told_why_nothing_is_written_any_more(tmp_path):
    async def main() -> None:
        with open_watched(tmp_path, "full") as journal, ThreadPoolExecutor(1) as thread:
            out: list[Any] = []
            commits = Commits(journal, thread, lambda: 0, (4096, 1 << 20), out.extend, Signal())
            position = commits.write(Send((1,), b"never durable"))
            commits.let_out([(1, None)])  # type: ignore[list-item]
            waiting = asyncio.ensure_future(commits.wait(position))
            await asyncio.sleep(0)
            commits.fail(Closed("a", "is closed"))
            for waiter in (waiting, commits.wait(position)):
                with pytest.raises(Closed):
                    await waiter
            await commits.run(lambda: False, dict)
            assert not journal.by_loop
            assert not out
            assert not commits.behind

    asyncio.run(main())
