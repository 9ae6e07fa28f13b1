"""The journal: what was durable is there again, and what is damaged is noticed. Real files, real SQLite."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from antecede.errors import BadJournal, BadParameter, CannotWrite
from antecede.model import View
from antecede.net import Memory, Node
from antecede.net.storage.journal import open_journal
from antecede.process.core import Core
from antecede.process.inputs import Acknowledge, Input, Send, Take, Turn
from antecede.process.views.members import Roll

VIEW = View.of("a", "b")


def new(protocol: str = "fifo", me: str = "a", view: View = VIEW, **groups: Any) -> Core:
    return Core.new(protocol, view, me, epoch=1, roll=Roll.first(view.names, groups.get("groups", {})))


def write_journal(path: Path, groups: int = 5, every: int = 1000) -> Core:
    """A journal with so many groups of four inputs; the process that they made."""
    journal = open_journal(path, "normal", every)
    core = journal.recover(new())
    for k in range(1, groups + 1):
        inputs: list[Input] = [
            Send((0,), b"x" * 100),
            Send((1,), b"y" * 100),
            Take(0, 2 * k - 1),
            Acknowledge(0, 2 * k - 1),
        ]
        for given in inputs:
            core.apply(given, 0)
        journal.append(inputs, core.snapshot() if journal.wants_snapshot(4) else None)
    journal.close()
    return core


@pytest.mark.parametrize("every", [1, 10, 1000])
def test_what_was_appended_comes_back(tmp_path, every):
    core = write_journal(tmp_path / "a.db", every=every)
    journal = open_journal(tmp_path / "a.db")
    assert journal.recover(new()).snapshot() == core.snapshot()
    assert journal.position == 20
    journal.close()


def test_snapshots_keep_it_short(tmp_path):
    write_journal(tmp_path / "short.db", groups=200, every=50)
    write_journal(tmp_path / "long.db", groups=200, every=10_000)
    with sqlite3.connect(tmp_path / "short.db") as database:
        [(rows,)] = database.execute("SELECT count(*) FROM inputs")
    database.close()
    assert rows <= 13
    assert (tmp_path / "short.db").stat().st_size < (tmp_path / "long.db").stat().st_size


# Damage


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            "UPDATE inputs SET record = record || x'00' WHERE position = 12",
            "inputs 9..12 .*inputs 9..20, or some",
        ),
        ("UPDATE inputs SET crc = crc + 1 WHERE position = 20", "inputs 17..20"),
        ("UPDATE inputs SET count = 3 WHERE position = 12", "inputs 9..12"),
        ("DELETE FROM inputs WHERE position = 8", "inputs 5..12"),
        ("UPDATE inputs SET position = 21 WHERE position = 20", "inputs 17..21"),
        ("DELETE FROM inputs WHERE position = 20", "the end after input 16 .*inputs 17..20"),
        ("DELETE FROM tip", "the end after input 20"),
        ("UPDATE snapshot SET state = x'80'", "the snapshot .* all that it held is lost"),
        ("DELETE FROM snapshot", "0 snapshots"),
        ("PRAGMA user_version = 9", "format 9, and this version reads 2 to"),
        ("PRAGMA application_id = 9", "a database of another program"),
    ],
)
def test_damage_is_noticed_and_told(tmp_path, damage, told):
    path = tmp_path / "a.db"
    write_journal(path)
    database = sqlite3.connect(path)
    database.execute(damage)
    database.commit()
    database.close()
    with pytest.raises(BadJournal, match=told) as caught:
        recover_journal(path)
    assert str(path) in str(caught.value)


def recover_journal(path: Path) -> None:
    journal = open_journal(path)
    try:
        journal.recover(new())
    finally:
        journal.close()


def test_a_flipped_bit_anywhere_is_noticed_or_does_no_harm(tmp_path):
    path = tmp_path / "a.db"
    expected = write_journal(path).snapshot()
    sound = path.read_bytes()
    noticed = 0
    for at in range(0, len(sound), 37):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0x10]) + sound[at + 1 :])
        try:
            journal = open_journal(path)
        except (BadJournal, CannotWrite):
            noticed += 1
            continue
        try:
            # Free space, and counters that SQLite only keeps for others, may be flipped without harm.
            assert journal.recover(new()).snapshot() == expected
        except (BadJournal, CannotWrite):
            noticed += 1
        finally:
            journal.close()
    assert noticed > 20


@pytest.mark.parametrize("content", [b"no database", bytes(5000), b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "a.db"
    path.write_bytes(content)
    with pytest.raises(BadJournal):
        recover_journal(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (new(me="b"), "belongs to node a, and not to b"),
        (new(protocol="matrix"), "belongs to protocol fifo, and not to matrix"),
        (new(view=View.of("a", "b", "c")), "belongs to view a, b, and not to a, b, c"),
        # What is sent to a group would go to whoever was in it when the journal began.
        (new(groups={"all": ["a"]}), "belongs to groups none, and not to all: a"),
    ],
)
def test_the_journal_of_another_node_is_refused(tmp_path, other, told):
    write_journal(tmp_path / "a.db")
    journal = open_journal(tmp_path / "a.db")
    with pytest.raises(BadJournal, match=told):
        journal.recover(other)
    journal.close()


def test_a_journal_is_for_one_node_at_a_time(tmp_path):
    journal = open_journal(tmp_path / "a.db")
    with pytest.raises(BadJournal, match="is in use by another process"):
        open_journal(tmp_path / "a.db")
    journal.close()
    open_journal(tmp_path / "a.db").close()


def test_bad_parameters_are_refused(tmp_path):
    with pytest.raises(BadParameter, match="sync must be one of full, normal, not 'never'"):
        open_journal(tmp_path / "a.db", sync="never")  # type: ignore[arg-type]
    with pytest.raises(CannotWrite):
        open_journal(tmp_path / "missing" / "a.db")


# A full disk

FILLS_UP = """
import asyncio, sys
from antecede.errors import CannotWrite
from antecede.net import Memory, Node

async def main():
    node = Node("a", ["a", "b"], transport=Memory().at("a"), journal=sys.argv[1])
    await node.start()
    sent = 0
    try:
        while True:
            await node.send("a", bytes(10_000))
            (await node.receive()).ack()
            sent += 1
    except CannotWrite as error:
        print(sent, error)
    try:
        await node.send("a", b"more")
    except CannotWrite:
        print("still")
    await node.close()

asyncio.run(main())
"""


def test_a_full_disk_stops_the_node_and_loses_nothing(tmp_path):
    path = tmp_path / "a.db"

    def small() -> None:
        # No file may grow beyond this: the disk is full there.
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))

    result = subprocess.run(
        [sys.executable, "-c", FILLS_UP, path], preexec_fn=small, capture_output=True, text=True, timeout=30
    )
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert "cannot write" in first
    assert "nothing else has left the node" in first
    assert second == "still"
    journal = open_journal(path)
    core = journal.recover(new(protocol="permit"))
    journal.close()
    assert core.machine.sent >= int(first.split()[0]) > 10


@pytest.mark.parametrize("sync", ["normal", "full"])
@pytest.mark.parametrize("what", ["all", "database", "log", "replaced"])
def test_a_journal_that_is_removed_under_a_node_stops_it(tmp_path, what, sync):
    async def main() -> None:
        path = tmp_path / "a.db"
        node = Node("a", ["a"], transport=Memory().at("a"), journal=path, sync=sync)
        await node.start()
        await node.send("a", b"durable")
        if what == "replaced":
            (tmp_path / "copy").write_bytes(path.read_bytes())
            (tmp_path / "copy").rename(path)
        else:
            for file in tmp_path.glob({"all": "*", "database": "a.db", "log": "a.db-wal"}[what]):
                file.unlink()
        with pytest.raises(CannotWrite, match="was removed, or another file has taken its place"):
            await node.send("a", b"would be lost with the process")
        with pytest.raises(CannotWrite):
            await node.receive()
        await node.close()

    asyncio.run(main())


# How often the disk is asked


@pytest.mark.parametrize("sync", ["normal", "full"])
def test_a_message_waits_for_one_group_where_it_is_sent(tmp_path, sync):
    """That it was sent and that it leaves are one group: else it would wait for the disk twice."""
    groups: list[list[type]] = []

    async def main():
        network = Memory()
        a = Node("a", ["a", "b"], transport=network.at("a"), journal=tmp_path / "a.db", sync=sync)
        async with a, Node("b", ["a", "b"], transport=network.at("b")) as b, asyncio.timeout(30):
            assert a._journal is not None
            append = a._journal.append

            def note(
                inputs: Sequence[Input], snapshot: dict[str, Any] | None = None, size: int | None = None
            ) -> None:
                groups.append([type(one) for one in inputs])
                append(inputs, snapshot, size)

            a._journal.append = note  # type: ignore[method-assign]
            for _ in range(20):
                await a.send("b", b"")
                (await b.receive()).ack()

    asyncio.run(main())
    sent = [group for group in groups if Send in group]
    assert len(sent) == 20
    assert all(group[group.index(Send) :][1] is Turn for group in sent), sent


def test_the_log_has_its_length_before_it_is_needed(tmp_path):
    """To sync a file that has grown waits for the file system's own journal: the log is written over instead."""
    journal = open_journal(tmp_path / "a.db", "full")
    journal.recover(new())
    log = tmp_path / "a.db-wal"
    before = log.stat().st_size
    for _ in range(200):
        journal.append([Send((1,), bytes(1000))])
    assert log.stat().st_size == before
    journal.close()
    assert (tmp_path / "a.db").stat().st_size < 1 << 20, "what only made the log longer is in no table"
