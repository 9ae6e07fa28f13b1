"""A journal on a disk that fails as disks fail: what it must survive, and what it must refuse."""

from __future__ import annotations

from random import Random

import pytest

from antecede.errors import BadJournal, CannotWrite
from antecede.model import View
from antecede.process.core import Core
from antecede.process.inputs import Send
from antecede.process.journal import Journal
from antecede.sim.nodes.disk import MemoryDisk

SEEDS = range(40)


def new() -> Core:
    return Core.new("fifo", View.of("a", "b"), "a", epoch=1)


def make_disk(seed: int, full: bool = True) -> MemoryDisk:
    return MemoryDisk(lambda: None, Random(seed), full)


def write(disk: MemoryDisk, groups: int, size: int = 10) -> Core:
    journal = Journal(disk)
    core = journal.recover(new())
    for _ in range(groups):
        given = Send((1,), bytes(size))
        core.apply(given, 0)
        journal.append([given])
    return core


@pytest.mark.parametrize("size", [10, 30_000])
def test_what_was_synced_survives_the_power(size):
    for seed in SEEDS:
        disk = make_disk(seed)
        core = write(disk, 5, size)
        disk.lose_power()
        assert Journal(disk).recover(new()).snapshot() == core.snapshot(), seed


def test_a_disk_knows_what_a_file_held_when_it_was_synced_however_much_is_written_since():
    for seed in SEEDS:
        disk, random = make_disk(seed), Random(f"writes/{seed}")
        disk.write("file", 0, bytes([1] * 3000))
        disk.sync("file")
        synced = disk.read("file", 0, 3000)
        for _ in range(random.randrange(1, 40)):
            disk.write("file", random.randrange(4000), bytes([2] * random.randrange(1, 1500)))
        assert disk._before("file") == synced, seed
        assert len(disk._unsynced["file"][1]) < 5


def test_a_journal_that_was_just_made_survives_the_power():
    """Its anchor was not on the disk: the node refused its own journal as damaged."""
    for seed in SEEDS:
        disk = make_disk(seed)
        Journal(disk).recover(new())
        disk.lose_power()
        assert Journal(disk).recover(new()).sent == 0, seed


@pytest.mark.parametrize("groups", [0, 3])
def test_a_disk_without_room_is_no_damaged_journal(groups):
    """It was told as one with lost records, and an operator would have given it up."""
    disk = make_disk(1)
    if groups:
        write(disk, groups)
    disk.refuses = True
    with pytest.raises(CannotWrite, match="No space left"):
        Journal(disk).recover(new())
    disk.refuses = False
    assert Journal(disk).recover(new()).sent == groups


def test_a_sync_that_fails_leaves_what_was_durable():
    for seed in SEEDS:
        disk = make_disk(seed)
        journal = Journal(disk)
        journal.recover(new())
        journal.append([Send((1,), b"one")])
        disk.syncs_fail = 1
        with pytest.raises(CannotWrite, match="1 inputs, still is"):
            journal.append([Send((1,), b"two")])
        assert Journal(disk).recover(new()).sent in (1, 2), seed


def test_what_normal_loses_is_refused_or_an_earlier_state():
    outcomes = set()
    for seed in SEEDS:
        disk = make_disk(seed, full=False)
        journal = Journal(disk, sync="normal")
        journal.recover(new())
        for k in range(6):
            journal.append([Send((1,), bytes(30_000 if k % 2 else 10))])
        disk.lose_power()
        try:
            outcomes.add(Journal(disk, sync="normal").recover(new()).sent)
        except BadJournal:
            outcomes.add(-1)
    assert -1 in outcomes
    assert max(outcomes) > 0
    assert outcomes <= set(range(-1, 7))


def test_a_flipped_bit_is_refused_or_does_no_harm():
    refused = 0
    for seed in range(300):
        disk = make_disk(seed)
        core = write(disk, 4, 10 if seed % 2 else 20_000)
        disk.flip()
        try:
            assert Journal(disk).recover(new()).snapshot() == core.snapshot(), seed
        except BadJournal:
            refused += 1
    assert refused > 200
