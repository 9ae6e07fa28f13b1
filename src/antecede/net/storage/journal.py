"""The journal of a node on a real disk: one SQLite database in WAL mode, and files beside it.

What a journal is, and what it notices, `antecede.process.journal` says. Here are the system calls.

A journal is locked while it is open; if its database is removed or replaced meanwhile, nothing more is written. Its
files are its owner's alone (0600), and its directory must not be one that everyone may write to, unless it is sticky,
as /tmp is.

Formats. 2 has no anchor; it is opened, and becomes 3.

>>> import tempfile
>>> from antecede.model import View
>>> from antecede.process.core import Core
>>> from antecede.process.inputs import Send
>>> with tempfile.TemporaryDirectory() as directory:
...     journal = open_journal(f"{directory}/a.db")
...     core = journal.recover(Core.new("fifo", View.of("a", "b"), "a", epoch=1))
...     journal.append([Send((1,), b"durable")])
...     journal.close()
...     again = open_journal(f"{directory}/a.db")
...     print(again.recover(Core.new("fifo", View.of("a", "b"), "a", epoch=2)).machine.sent)
...     again.close()
1
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Literal
from uuid import UUID

from antecede.disk import sync_directory, sync_file
from antecede.errors import AntecedeError, BadJournal, BadParameter, CannotWrite
from antecede.process.anchor import NAME as ANCHOR
from antecede.process.anchor import UNKNOWN, Anchor
from antecede.process.disk import Row, Tables
from antecede.process.journal import Journal

__all__ = ["Database", "open_journal"]

APPLICATION = 0x416E7465
"""Marks the database as ours ("Ante"), as SQLite suggests."""
FORMAT = 3
OLDEST = 2
PAGE_BYTES = 4096
LOG_PAGES = 1280
"""Pages that the log is given, 5 MiB: what it reaches, with small groups, before it is written over from its start."""

TABLES = """
CREATE TABLE snapshot (position INTEGER PRIMARY KEY, half INT, state BLOB, start INT, size INT, crc INT);
CREATE TABLE inputs (position INTEGER PRIMARY KEY, count INT, record BLOB, start INT, size INT, crc INT);
CREATE TABLE tip (one INTEGER PRIMARY KEY, position INT, crc INT);
CREATE TRIGGER follow AFTER INSERT ON inputs BEGIN REPLACE INTO tip VALUES (1, NEW.position, NEW.crc); END;
"""
"""`position` counts inputs, from 1; a row of inputs has that of its last one, a snapshot of the last one before it.
What is large has its place beside the database instead of its bytes: of both files, in the one that the snapshot says.
The tip repeats the last row of all, so that it cannot be lost unnoticed. It follows by itself: most groups are one row,
and so one statement."""


def open_journal(
    path: str | os.PathLike[str], sync: Literal["full", "normal"] = "full", snapshot_inputs: int = 20_000
) -> Journal:
    """The journal at this path; a new one, if there is none."""
    if sync not in ("full", "normal"):
        raise BadParameter.choice("journal", "sync", sync, ("full", "normal"))
    place = f"journal {os.fspath(path)}"
    # Wherever the program goes meanwhile; and what SQLite takes for a database in memory is a file like any other.
    return Journal(Database(os.path.abspath(path), place, sync), place, sync, snapshot_inputs)


class Database:
    """The disk of a journal (`antecede.process.disk`)."""

    old: bool

    def __init__(self, path: str, place: str, sync: Literal["full", "normal"]) -> None:
        self._path, self._place = path, place
        self.pid = os.getpid()
        self._descriptors: dict[str, int] = {}
        self._inodes: dict[str, int] = {}
        """Files of the database, as they were when something was last written."""
        self._check_files(path)
        self._database = self._open(path, sync)

    # Opening

    def _check_files(self, path: str) -> None:
        """Refuse a place that others may write to, and files whose database is gone; make what is new ours alone."""
        directory = os.path.dirname(path) or "."
        try:
            mode = os.stat(directory).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                reason = f"is in a directory that everyone may write to: chmod o-w {directory}"
                raise BadJournal(self._place, reason)
            beside = [f"{path}-{end}" for end in ("anchor", "wal", "bulk0", "bulk1")]
            left = [file for file in beside if os.path.exists(file)]
            if not os.path.exists(path) and left:
                mark = Anchor(self).read()
                lost = "" if mark is None else f", which says that it had {mark.position} inputs"
                reason = (
                    f"has lost its database, and {left[0]} is there{lost}: bring the database back, or remove "
                    "these files to begin as a new node"
                )
                raise BadJournal(self._place, reason)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            for file in (path, *left):
                if os.stat(file).st_mode & 0o077:
                    os.chmod(file, 0o600)
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotWrite(self._place, reason, "nothing was opened") from None

    def _open(self, path: str, sync: str) -> sqlite3.Connection:
        try:
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        except sqlite3.Error as error:
            raise CannotWrite(self._place, str(error), "nothing was opened") from None
        # What was damaged may be no text any more.
        database.text_factory = bytes
        try:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA synchronous = {sync}")
            # Where fsync leaves the bytes in the disk's own memory; nothing elsewhere.
            database.execute("PRAGMA fullfsync = 1")
            database.execute("PRAGMA checkpoint_fullfsync = 1")
            # `checkpoint` does that: it would hold up whoever writes.
            database.execute("PRAGMA wal_autocheckpoint = 0")
            database.execute("BEGIN EXCLUSIVE")
            self._check_format(database)
            database.execute("COMMIT")
            if sync == "full":
                self._extend_log(database)
        except sqlite3.Error as error:
            database.close()
            raise self._explain(error) from None
        except BadJournal:
            database.close()
            raise
        return database

    def _extend_log(self, database: sqlite3.Connection) -> None:
        """Give the log the length that it reaches before it is written over.

        To sync a file that has grown takes the file system ten times as long, or more, as one that was written over.
        A transaction that outgrows its cache, and is then rolled back, leaves nothing but a longer log.
        """
        database.execute("PRAGMA cache_size = 10")
        database.execute("BEGIN")
        # A disk that has no room for this is told by the first input that has none.
        with suppress(sqlite3.OperationalError):
            database.execute("CREATE TABLE filler (bytes BLOB)")
            database.execute("INSERT INTO filler VALUES (zeroblob(?))", (LOG_PAGES * PAGE_BYTES,))
        if database.in_transaction:
            database.execute("ROLLBACK")
        database.execute(f"PRAGMA cache_size = {LOG_PAGES}")

    def _check_format(self, database: sqlite3.Connection) -> None:
        [marks] = database.execute(
            "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version"
        )
        [(tables,)] = database.execute("SELECT count(*) FROM sqlite_schema")
        if marks == (0, 0) and not tables:
            for statement in TABLES.strip().split("\n"):
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {APPLICATION}")
            database.execute(f"PRAGMA user_version = {FORMAT}")
        elif marks[0] != APPLICATION:
            raise BadJournal(self._place, "is a database of another program: choose another path")
        elif not OLDEST <= marks[1] <= FORMAT:
            raise BadJournal(
                self._place,
                f"has format {marks[1]}, and this version reads {OLDEST} to {FORMAT}: use the version that wrote it",
            )
        self.old = bool(tables) and marks[1] != FORMAT

    def _explain(self, error: sqlite3.Error) -> AntecedeError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            mark = Anchor(self).read()
            if mark is not None and mark.pid == self.pid:
                return BadJournal(
                    self._place, "is in use by another node of this process: close that one first"
                )
            pid = "" if mark is None else f" (pid {mark.pid})"
            return BadJournal(self._place, f"is in use by another process{pid}: stop one of the two")
        if code in (
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_READONLY,
        ):
            return CannotWrite(self._place, str(error), "nothing was changed")
        return BadJournal(self._place, f"is damaged, and what it held is lost: {error}")

    # The tables

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._explain(error) from None

    def tables(self) -> Tables:
        with self._reading():
            ask = self._database.execute
            return Tables(
                ask("SELECT position, half, state, start, size, crc FROM snapshot").fetchall(),
                ask(
                    "SELECT position, count, record, start, size, crc FROM inputs ORDER BY position"
                ).fetchall(),
                ask("SELECT position, crc FROM tip").fetchall(),
            )

    def upgrade(self) -> None:
        with self._reading():
            self._database.execute(f"PRAGMA user_version = {FORMAT}")
        self.old = False

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._check_there()
        try:
            yield
        except sqlite3.Error as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise OSError(str(error)) from None

    def _check_there(self) -> None:
        """Write nothing into files that were removed or replaced: nobody would find it again."""
        for path in (self._path, f"{self._path}-wal"):
            try:
                found = os.stat(path).st_ino
            except FileNotFoundError:
                found = 0
            # SQLite makes the log when it first needs it.
            if self._inodes.setdefault(path, found) not in (0, found):
                raise OSError(f"{path} was removed, or another file has taken its place")
            self._inodes[path] = found

    def checkpoint(self) -> None:
        with self._writing():
            self._database.execute("PRAGMA wal_checkpoint")

    def insert(self, rows: Sequence[Row]) -> None:
        with self._writing():
            # One statement is a transaction by itself.
            if len(rows) > 1:
                self._database.execute("BEGIN")
            for row in rows:
                self._database.execute("INSERT INTO inputs VALUES (?, ?, ?, ?, ?, ?)", row)
            if len(rows) > 1:
                self._database.execute("COMMIT")

    def replace(self, snapshot: Row) -> None:
        with self._writing():
            self._database.execute("BEGIN")
            self._database.execute("DELETE FROM inputs")
            self._database.execute("DELETE FROM snapshot")
            self._database.execute("INSERT INTO snapshot VALUES (?, ?, ?, ?, ?, ?)", snapshot)
            self._database.execute("REPLACE INTO tip VALUES (1, ?, ?)", (snapshot[0], snapshot[5]))
            self._database.execute("COMMIT")

    # The files

    @property
    def boot(self) -> bytes:
        return boot_id()

    def path(self, name: str) -> str:
        return f"{self._path}-{name}"

    def size(self, name: str) -> int | None:
        try:
            return os.stat(self.path(name)).st_size
        except FileNotFoundError:
            return None

    def read(self, name: str, start: int, size: int) -> bytes:
        file = self._descriptors.get(name)
        if file is not None:
            return os.pread(file, size, start)
        with open(self.path(name), "rb") as once:
            return os.pread(once.fileno(), size, start)

    def write(self, name: str, start: int, data: bytes | memoryview) -> int:
        return os.pwrite(self._file(name), data, start)

    def sync(self, name: str) -> None:
        sync_file(self._file(name))

    def _file(self, name: str) -> int:
        file = self._descriptors.get(name)
        if file is None:
            path = self.path(name)
            file = self._descriptors[name] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Or a file that is new could be missing after a power failure, with all that is in it.
            sync_directory(os.path.dirname(path) or ".")
        return file

    def close(self) -> None:
        self._database.close()
        if ANCHOR in self._descriptors:
            with suppress(OSError):
                self.sync(ANCHOR)
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


@cache
def boot_id() -> bytes:
    """Which boot of the system this is; zeros where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return UUID(file.read().strip()).bytes
    except (OSError, ValueError):
        return UNKNOWN
