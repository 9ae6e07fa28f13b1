"""Files of a node: what is lost is noticed, whoever else is on the machine stays out, and names last like bytes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from antecede.disk import sync_directory, sync_file
from antecede.errors import BadJournal, CannotWrite
from antecede.model import View
from antecede.net import Memory, Node, Settings
from antecede.net.storage import journal as storage
from antecede.net.storage.journal import open_journal
from antecede.process.core import Core
from antecede.process.inputs import Send
from antecede.trace.layout import Layout

VIEW = View.of("a", "b")
INPUTS = 12


def new() -> Core:
    return Core.new("fifo", VIEW, "a", epoch=1)


def kill_writer(directory: Path, sync: str, size: int = 100) -> Path:
    """The journal of a process that was killed after so many inputs, each durable: its log was not copied yet."""
    path = directory / "a.db"
    program = f"""
import os, signal
from antecede.model import View
from antecede.net.storage.journal import open_journal
from antecede.process.core import Core
from antecede.process.inputs import Send
journal = open_journal({str(path)!r}, {sync!r})
journal.recover(Core.new("fifo", View.of("a", "b"), "a", epoch=1))
for k in range({INPUTS}):
    journal.append([Send((1,), bytes([k]) * {size})])
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, env=os.environ)
    assert ended.returncode == -signal.SIGKILL
    return path


def count_used_bytes(wal: Path) -> int:
    """Where the last commit in a log ends. With `full` a log is longer from the start, and nobody reads the rest."""
    data, frame = wal.read_bytes(), 24 + 4096
    starts = range(32, len(data) - frame + 1, frame)
    # A frame that ends a transaction says how large the database is then, all others 0.
    return max(start for start in starts if any(data[start + 4 : start + 8])) + frame


def open_again(path: Path, sync: str = "full") -> int:
    journal = open_journal(path, sync)  # type: ignore[arg-type]
    try:
        return journal.recover(new()).sent
    finally:
        journal.close()


# A lost end


@pytest.mark.parametrize("sync", ["full", "normal"])
@pytest.mark.parametrize("size", [100, 20_000], ids=["in the database", "beside it"])
def test_no_damage_of_the_log_opens_an_older_state(tmp_path, sync, size):
    """SQLite takes a damaged log for one that ended there: nothing may start from what is left of it."""
    (tmp_path / "original").mkdir()
    original = kill_writer(tmp_path / "original", sync, size)
    copy, random, refused = tmp_path / "copy", Random(7), 0
    length = count_used_bytes(Path(f"{original}-wal"))
    damages = ["deleted", "emptied", *(f"cut at {random.randrange(length)}" for _ in range(8))]
    damages += [f"flipped at {random.randrange(length)}" for _ in range(20)]
    for damage in damages:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(original.parent, copy)
        wal = copy / "a.db-wal"
        at = int(damage.rpartition(" ")[2]) if " at " in damage else 0
        if damage == "deleted":
            wal.unlink()
        elif damage.startswith("flipped"):
            data = bytearray(wal.read_bytes())
            data[at] ^= 0x40
            wal.write_bytes(data)
        else:
            os.truncate(wal, at)
        try:
            sent = open_again(copy / "a.db", sync)
        except BadJournal:
            refused += 1
        else:
            # What SQLite does not look at, no damage.
            assert sent == INPUTS, damage
    assert refused > 10


def test_an_older_copy_of_a_journal_is_refused_however_much_was_sent_since(tmp_path):
    """It comes back as often as its process did after the copy was made, and has sent more than its peer ever saw."""
    settings = Settings(first_retry_s=0.01, last_retry_s=0.05, beat_s=0.1, dead_s=0.5, drain_s=0.5)
    network, copy = Memory(), tmp_path / "copy"

    def build(name: str) -> Node:
        journal = tmp_path / name / "journal.db"
        return Node(
            name, VIEW.names, protocol="fifo", transport=network.at(name), journal=journal, settings=settings
        )

    async def main() -> None:
        for name in VIEW.names:
            (tmp_path / name).mkdir()
        async with build("a") as a, build("b") as b:
            await a.send("b", b"before")
            (await b.receive()).ack()
        shutil.copytree(tmp_path / "a", copy)
        async with build("a") as a, build("b") as b:
            for _ in range(5):
                await a.send("b", b"after")
                (await b.receive()).ack()
        shutil.rmtree(tmp_path / "a")
        shutil.copytree(copy, tmp_path / "a")
        async with asyncio.timeout(30), build("a") as a:
            for _ in range(8):
                await a.send("b", b"and what becomes of this?")
            async with build("b") as b:
                while not a.status().refused:
                    assert a.status().queued["b"], "b has dropped it, as what it had seen before"
                    await asyncio.sleep(0.01)
                assert "from an older copy" in a.status().refused["b"]

    asyncio.run(main())


def test_a_journal_that_lost_its_database_does_not_begin_as_new(tmp_path):
    path = kill_writer(tmp_path, "full")
    path.unlink()
    with pytest.raises(
        BadJournal, match=r"lost its database, and .*a\.db-anchor is there, which says that it had 12 inputs"
    ):
        open_journal(path)
    for file in tmp_path.iterdir():
        file.unlink()
    assert open_again(path) == 0


def test_a_journal_that_lost_its_anchor_is_refused(tmp_path):
    path = kill_writer(tmp_path, "full")
    Path(f"{path}-anchor").unlink()
    with pytest.raises(BadJournal, match="nobody knows how far the journal went"):
        open_again(path)


def test_a_damaged_anchor_is_refused(tmp_path):
    path = kill_writer(tmp_path, "full")
    file = Path(f"{path}-anchor")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(BadJournal, match="damaged"):
        open_again(path)


@pytest.mark.parametrize("sync", ["full", "normal"])
def test_what_normal_may_lose_with_the_system_it_may(tmp_path, sync, monkeypatch, caplog):
    path = kill_writer(tmp_path, sync)
    os.truncate(f"{path}-wal", count_used_bytes(Path(f"{path}-wal")) // 2)
    monkeypatch.setattr(storage, "boot_id", lambda: b"another boot, ok")
    if sync == "full":
        with pytest.raises(BadJournal, match="which was durable"):
            open_again(path, sync)
    else:
        assert 0 < open_again(path, sync) < INPUTS
        assert "were not on the disk when the system went down" in caplog.text


def test_whoever_uses_a_journal_is_named(tmp_path):
    program = """
import sys
from antecede.model import View
from antecede.net.storage.journal import open_journal
from antecede.process.core import Core
open_journal(sys.argv[1]).recover(Core.new("fifo", View.of("a", "b"), "a", epoch=1))
print("open", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", program, str(tmp_path / "a.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(BadJournal, match=rf"a\.db is in use by another process \(pid {other.pid}\)"):
            open_journal(tmp_path / "a.db")
        other.stdin.close()
    journal = open_journal(tmp_path / "a.db")
    journal.recover(new())
    with pytest.raises(BadJournal, match=r"a\.db is in use by another node of this process: close that one"):
        open_journal(tmp_path / "a.db")
    journal.close()


@pytest.mark.parametrize("name", ["a.db", ":memory:"])
def test_a_journal_stays_where_it_was_opened(tmp_path, monkeypatch, name):
    """Also if the program goes elsewhere, and if SQLite would keep what has this name in memory."""
    monkeypatch.chdir(tmp_path)
    journal = open_journal(name)
    journal.recover(new())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for size in (10, 100_000):
        journal.append([Send((1,), bytes(size))])
    journal.close()
    assert not list((tmp_path / "elsewhere").iterdir())
    monkeypatch.chdir(tmp_path)
    assert open_again(Path(name)) == 2


# Whoever else is on the machine


def test_files_are_their_owners_alone(tmp_path):
    path = kill_writer(tmp_path, "full", 20_000)
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        file.chmod(0o644)
    open_again(path)
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_a_directory_that_everyone_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(BadJournal, match="a directory that everyone may write to"):
        open_journal(tmp_path / "a.db")
    assert not list(tmp_path.iterdir())
    tmp_path.chmod(0o1777)
    assert open_again(tmp_path / "a.db") == 0


def test_a_directory_that_is_not_there_is_told(tmp_path):
    with pytest.raises(CannotWrite, match="No such file or directory"):
        open_journal(tmp_path / "nowhere" / "a.db")


# Names and bytes on the disk


def test_syncs_where_there_is_no_fdatasync(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "fdatasync")
    journal = open_journal(tmp_path / "a.db")
    journal.recover(new())
    journal.append([Send((1,), bytes(20_000))])
    journal.close()
    assert open_again(tmp_path / "a.db") == 1


def test_syncs_fully_where_that_is_another_thing(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, what: asked.append(what))
    with (tmp_path / "file").open("wb") as file:
        sync_file(file.fileno())
    assert asked == [51]

    def refuse(descriptor: int, what: int) -> None:
        raise OSError(45, "not supported")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with (tmp_path / "file").open("wb") as file:
        sync_file(file.fileno())


def test_a_file_that_is_shown_has_its_name_on_the_disk(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    layout = Layout(tmp_path)
    layout.events.mkdir()
    path = layout.file("run", 0)
    layout.part(path).write_bytes(b"rows")
    layout.show(path)
    assert path.read_bytes() == b"rows"
    assert str(layout.events) in synced
    sync_directory(tmp_path)
    assert str(tmp_path) in synced
