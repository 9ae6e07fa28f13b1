"""Large records of a journal: they stand beside the database, come back, and are noticed if damaged. Real files."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from antecede.errors import BadJournal, CannotWrite
from antecede.model import View
from antecede.net.storage.journal import open_journal
from antecede.process.bulk import Bulk
from antecede.process.core import Core
from antecede.process.inputs import Acknowledge, Input, Send, Take

VIEW = View.of("a", "b")


def new() -> Core:
    return Core.new("fifo", VIEW, "a", epoch=1)


def write_journal(path: Path, sizes: list[int], every: int = 1000, sync: str = "normal") -> Core:
    """A journal with a message of each of these sizes, each a group of its own; the process that they made."""
    journal = open_journal(path, sync, every)  # type: ignore[arg-type]
    core = journal.recover(new())
    for k, size in enumerate(sizes, 1):
        inputs: list[Input] = [Send((0,), os.urandom(size)), Take(0, k)]
        for given in inputs:
            core.apply(given, 0)
        journal.append(inputs, core.snapshot() if journal.wants_snapshot(2) else None)
    journal.close()
    return core


def recover(path: Path) -> Core:
    journal = open_journal(path)
    try:
        return journal.recover(new())
    finally:
        journal.close()


@pytest.mark.parametrize("sync", ["normal", "full"])
@pytest.mark.parametrize("every", [1, 5, 1000])
def test_large_and_small_records_come_back_together(tmp_path, every, sync):
    sizes = [100, 20_000, 100, 100_000, 16_384, 30_000, 5]
    core = write_journal(tmp_path / "a.db", sizes, every, sync)
    assert recover(tmp_path / "a.db").snapshot() == core.snapshot()


def test_what_is_large_is_not_in_the_database(tmp_path):
    write_journal(tmp_path / "a.db", [100_000] * 10)
    assert (tmp_path / "a.db-bulk0").stat().st_size > 1_000_000
    assert (tmp_path / "a.db").stat().st_size < 100_000


def test_a_snapshot_begins_anew_in_the_other_file(tmp_path):
    """So both stay short, and neither is written over while the database may still want it."""
    journal = open_journal(tmp_path / "a.db", "normal", 12)
    core = journal.recover(new())
    for k in range(1, 41):
        inputs: list[Input] = [Send((0,), bytes(20_000)), Take(0, k), Acknowledge(0, k)]
        for given in inputs:
            core.apply(given, 0)
        journal.append(inputs, core.snapshot() if journal.wants_snapshot(3) else None)
    journal.close()
    sizes = [(tmp_path / f"a.db-bulk{half}").stat().st_size for half in (0, 1)]
    assert all(80_000 < size < 100_000 for size in sizes)
    assert recover(tmp_path / "a.db").snapshot() == core.snapshot()


def test_a_restart_goes_on_behind_what_is_there(tmp_path):
    path = tmp_path / "a.db"
    write_journal(path, [20_000, 30_000])
    journal = open_journal(path)
    core = journal.recover(new())
    for given in (inputs := [Send((0,), b"z" * 40_000)]):
        core.apply(given, 0)
    journal.append(inputs)
    journal.close()
    assert recover(path).snapshot() == core.snapshot()


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_noticed_and_told(tmp_path, damage):
    path, bulk = tmp_path / "a.db", tmp_path / "a.db-bulk0"
    write_journal(path, [100, 20_000, 100, 20_000, 100])
    sound = bulk.read_bytes()
    if damage == "flip":
        bulk.write_bytes(sound[:30_000] + bytes([sound[30_000] ^ 1]) + sound[30_001:])
    elif damage == "cut":
        bulk.write_bytes(sound[:30_000])
    else:
        bulk.unlink()
    first = 3 if damage == "remove" else 7
    with pytest.raises(BadJournal, match=f"inputs {first}..{first + 1} .*inputs {first}..10, or some"):
        recover(path)


def test_a_place_that_is_none_is_damage(tmp_path):
    path = tmp_path / "a.db"
    write_journal(path, [20_000])
    for place in ("start = -1", "size = 'x'", "start = NULL", "size = 1", "size = 1 << 60"):
        database = sqlite3.connect(path)
        database.execute("BEGIN")
        database.execute(f"UPDATE inputs SET {place}")
        database.execute("COMMIT")
        database.close()
        with pytest.raises(BadJournal, match=r"inputs 1\.\.2"):
            recover(path)


def test_a_disk_that_takes_no_more_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    core = write_journal(path, [20_000])
    journal = open_journal(path, "normal")
    journal.recover(new())

    def full(self: Bulk, record: bytes) -> int:
        self.end += 7
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Bulk, "put", full)
        with pytest.raises(CannotWrite, match="2 inputs, still is"):
            journal.append([Send((0,), bytes(20_000))])
    journal.append(inputs := [Send((0,), bytes(20_000))])
    journal.close()
    core.apply(inputs[0], 0)
    assert recover(path).snapshot() == core.snapshot()
