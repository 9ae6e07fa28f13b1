"""A journal damaged at random places, 1,000 times: it is refused with a sentence, or it gives the whole process."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from antecede.errors import BadJournal
from antecede.model import View
from antecede.net.storage.journal import open_journal
from antecede.process.core import Core
from antecede.process.inputs import Acknowledge, Input, Send, Take

TRIALS = 1000


def new() -> Core:
    return Core.new("matrix", View.of("a", "b"), "a", epoch=1)


def fill(path: Path, groups: int) -> Core:
    """A journal of a process that was killed: its log was not copied into the database, and nothing was closed."""
    journal = open_journal(path, "normal", 25)
    core = journal.recover(new())
    for k in range(1, groups + 1):
        size = 20_000 if k % 9 == 0 else 30
        inputs: list[Input] = [Send((0, 1), bytes([k % 256]) * size), Take(0, k), Acknowledge(0, k)]
        for given in inputs:
            core.apply(given, 0)
        journal.append(inputs, core.snapshot() if journal.wants_snapshot(3) else None)
    for file in list(path.parent.iterdir()):
        shutil.copyfile(file, file.with_name(f"kept-{file.name}"))
    journal.close()
    return core


def flip(file: Path, random: Random) -> None:
    data = bytearray(file.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    file.write_bytes(data)


def scribble(file: Path, random: Random) -> None:
    data = bytearray(file.read_bytes())
    start = random.randrange(len(data))
    size = random.choice((4, 100, 4096))
    data[start : start + size] = random.randbytes(len(data[start : start + size]))
    file.write_bytes(data)


def blank(file: Path, random: Random) -> None:
    data = bytearray(file.read_bytes())
    start = random.randrange(len(data)) // 512 * 512
    data[start : start + 4096] = bytes(len(data[start : start + 4096]))
    file.write_bytes(data)


def cut(file: Path, random: Random) -> None:
    file.write_bytes(file.read_bytes()[: random.randrange(file.stat().st_size)])


def lose(file: Path, random: Random) -> None:
    file.unlink()


DAMAGES: tuple[Callable[[Path, Random], None], ...] = (flip, flip, flip, scribble, blank, cut, lose)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], object]:
    directory = tmp_path_factory.mktemp("journal")
    core = fill(directory / "a.db", 40)
    files = sorted(directory.glob("kept-*"))
    assert [file.name for file in files if not file.name.endswith("-shm")] == [
        f"kept-a.db{end}" for end in ("", "-anchor", "-bulk0", "-bulk1", "-wal")
    ]
    return [file for file in files if not file.name.endswith("-shm")], core.snapshot()


def recover(path: Path) -> object:
    """What a node finds there: the process, or why it refuses. Any other error would end it in an unknown way."""
    try:
        journal = open_journal(path, "normal")
        try:
            return journal.recover(new()).snapshot()
        finally:
            journal.close()
    except BadJournal as error:
        return error


def test_a_journal_that_was_damaged_is_refused_or_whole(filled, tmp_path):
    files, whole = filled
    outcomes: Counter[str] = Counter()
    for trial in range(TRIALS):
        random = Random(f"damage/{trial}")
        # Most of it is in the log.
        victim = random.choice([*files, *(file for file in files if file.name.endswith("-wal"))])
        for file in files:
            shutil.copyfile(file, tmp_path / file.name.removeprefix("kept-"))
        random.choice(DAMAGES)(tmp_path / victim.name.removeprefix("kept-"), random)
        found = recover(tmp_path / "a.db")
        if isinstance(found, BadJournal):
            assert str(found).startswith("journal "), f"trial {trial}: {found}"
            outcomes["refused"] += 1
        else:
            assert found == whole, f"trial {trial}: another process"
            outcomes["whole"] += 1
    assert outcomes["refused"] > TRIALS // 3, outcomes
    assert outcomes["whole"] > TRIALS // 20, outcomes
