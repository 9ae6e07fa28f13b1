"""What a process has on disk: a snapshot, and every input since, in one SQLite database in WAL mode.

A process replayed from the same inputs is in the same state (`core`), so a journal of inputs is as good as the state,
and much cheaper to write. Inputs are appended in groups, one transaction each, and one row, or several if they are
large. After so many inputs a snapshot takes their place, in one transaction too. What is large stands beside the
database (`bulk`), in files that a commit refers to and that were written before it.

What a commit survives is a choice, `sync`:
  full     the power fails: each group is on the disk before anything that follows from it leaves the node
  normal   the process is killed. If the system goes down, what came last may be lost: then the links of the peers
           refuse the node, since it has forgotten what it told them, or, where a large record is lost that the
           database refers to, the journal is refused. No loss is silent.

Every row has a checksum over itself and the row before it, so a row that is damaged, missing or in the wrong place is
noticed; and a file beside the database says how far the journal goes (`anchor`), so that a lost end is, and a lost
database. Such a journal is refused, with a sentence that says what is lost.

A journal is locked while it is open. Its files are its owner's alone (0600), and its directory must not be one that
everyone may write to, unless it is sticky, as /tmp is.

Formats. 2 has no anchor; it is opened, and becomes 3. What a snapshot and inputs of an earlier version mean is for
`antecede.process.upgrade` to say.

>>> import tempfile
>>> from antecede.model import View
>>> from antecede.process.core import Core
>>> from antecede.process.inputs import Send
>>> with tempfile.TemporaryDirectory() as directory:
...     journal = Journal(f"{directory}/a.db")
...     core = journal.recover(Core.new("fifo", View.of("a", "b"), "a", epoch=1))
...     journal.append([Send((1,), b"durable")])
...     journal.close()
...     again = Journal(f"{directory}/a.db")
...     print(again.recover(Core.new("fifo", View.of("a", "b"), "a", epoch=2)).machine.sent)
...     again.close()
1
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from zlib import crc32

import msgspec

from antecede.errors import AntecedeError, BadJournal, BadParameter, BadSnapshot, CannotWrite
from antecede.net.storage.anchor import Anchor
from antecede.net.storage.bulk import Bulk
from antecede.process.core import Core
from antecede.process.inputs import Input, decode_inputs, encode_into, portions

__all__ = ["Journal"]

log = logging.getLogger(__name__)

APPLICATION = 0x416E7465
"""Marks the database as ours ("Ante"), as SQLite suggests."""
FORMAT = 3
OLDEST = 2
SNAPSHOT_BYTES = 16 << 20
"""Bytes of inputs, after which a snapshot takes their place, however few they are: a restart reads them all, and files
that stay short are written over in memory that is at hand."""
SNAPSHOT_PART = 4
"""How many times as long as the last snapshot the inputs must be by then: what is under way may be large."""
CHECKPOINT_PAGES = 8192
"""Pages of the log, 32 MiB, after which SQLite copies them into the database: most were written anew by then."""
CHECKPOINT_GROUPS = 4096
"""Groups after which the same is done where it is the only thing that waits for the disk."""
PORTION_BYTES = 1 << 17
"""Bytes that are encoded, added up and written before the next, while the processor has them at hand."""
LARGE_BYTES = 1 << 14
"""Records from this length on stand beside the database."""

TABLES = """
CREATE TABLE snapshot (position INTEGER PRIMARY KEY, half INT, state BLOB, start INT, size INT, crc INT);
CREATE TABLE inputs (position INTEGER PRIMARY KEY, count INT, record BLOB, start INT, size INT, crc INT);
CREATE TABLE tip (one INTEGER PRIMARY KEY, position INT, crc INT);
CREATE TRIGGER follow AFTER INSERT ON inputs BEGIN REPLACE INTO tip VALUES (1, NEW.position, NEW.crc); END;
"""
"""`position` counts inputs, from 1; a row of inputs has that of its last one, a snapshot of the last one before it.
What is large has its place beside the database instead of its bytes: of both files, in the one that the snapshot says.
The tip repeats the last row of all, so that it cannot be lost unnoticed. It follows by itself: most groups are one row,
and so one statement. A thread that writes waits for the interpreter after each, up to 5 ms if that is busy."""


def _crc(position: int, count: int, record: bytes | bytearray, before: int) -> int:
    try:
        return crc32(record, crc32(struct.pack("<QQ", position, count), before))
    except (struct.error, TypeError):
        # A damaged row may hold anything: no checksum that is stored is this one.
        return -1


class Journal:
    """The journal of one process. `append` may be called from another thread, one call at a time."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        sync: Literal["full", "normal"] = "full",
        snapshot_inputs: int = 20_000,
    ) -> None:
        if sync not in ("full", "normal"):
            raise BadParameter("journal", "sync", repr(sync), "full or normal")
        self.place = f"journal {os.fspath(path)}"
        self.position = 0
        """Of the last input that is durable."""
        self._every = snapshot_inputs
        self._since = 0
        """Inputs since the snapshot."""
        self._bytes = 0
        """Of these inputs."""
        self._groups = 0
        """Groups since the log was copied into the database, if that is for us to see to."""
        self._state = 0
        """Bytes of the snapshot."""
        self._crc = 0
        self._record = bytearray()
        """What was encoded last."""
        self._full = sync == "full"
        path = os.fspath(path)
        self._anchor = Anchor(path)
        self._check_files(path)
        self._database = self._open(path, sync)
        self._bulk = Bulk(path)

    # Opening

    def _check_files(self, path: str) -> None:
        """Refuse a place that others may write to, and files whose database is gone; make what is new ours alone."""
        directory = os.path.dirname(path) or "."
        try:
            mode = os.stat(directory).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                expected = "one that only its owner may write to: chmod o-w"
                raise BadJournal(self.place, f"a directory that everyone may write to, {directory}", expected)
            beside = [f"{path}-{end}" for end in ("anchor", "wal", "bulk0", "bulk1")]
            left = [file for file in beside if os.path.exists(file)]
            if not os.path.exists(path) and left:
                mark = self._anchor.read()
                lost = "" if mark is None else f", which says that it had {mark.position} inputs"
                expected = "the database; or none of these files, to begin as a new node"
                raise BadJournal(self.place, f"no database, but {left[0]}{lost}", expected)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            for file in (path, *left):
                if os.stat(file).st_mode & 0o077:
                    os.chmod(file, 0o600)
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotWrite(self.place, reason, "nothing was opened") from None

    def _open(self, path: str, sync: str) -> sqlite3.Connection:
        try:
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        except sqlite3.Error as error:
            raise CannotWrite(self.place, str(error), "nothing was opened") from None
        # What was damaged may be no text any more.
        database.text_factory = bytes
        try:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA synchronous = {sync}")
            # Where fsync leaves the bytes in the disk's own memory; nothing elsewhere.
            database.execute("PRAGMA fullfsync = 1")
            database.execute("PRAGMA checkpoint_fullfsync = 1")
            database.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES if sync == 'full' else 0}")
            database.execute("BEGIN EXCLUSIVE")
            self._check_format(database)
            database.execute("COMMIT")
        except sqlite3.Error as error:
            database.close()
            raise self._unreadable(error) from None
        except BadJournal:
            database.close()
            raise
        return database

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
            raise BadJournal(self.place, "a database of something else", "a journal, or no file")
        elif not OLDEST <= marks[1] <= FORMAT:
            raise BadJournal(
                self.place, f"format {marks[1]}", f"{OLDEST} to {FORMAT}: another version wrote it"
            )
        self._format = marks[1] if tables else FORMAT

    def _unreadable(self, error: sqlite3.Error) -> AntecedeError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            mark = self._anchor.read()
            pid = "" if mark is None else f" (pid {mark.pid})"
            return BadJournal(self.place, f"that another process uses it{pid}", "one node for a journal")
        if code in (
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_READONLY,
        ):
            return CannotWrite(self.place, str(error), "nothing was changed")
        return BadJournal(self.place, f"no sound database: {error}", "a journal; what it held is lost")

    # Reading

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever written to it."""
        try:
            [(count,)] = self._database.execute("SELECT count(*) FROM snapshot").fetchall()
            return not count and not self._has_inputs()
        except sqlite3.Error as error:
            raise self._unreadable(error) from None

    def recover(self, new: Core) -> Core:
        """The process as it was when its last input became durable; or this new one, if the journal is new."""
        try:
            snapshots = self._database.execute(
                "SELECT position, half, state, start, size, crc FROM snapshot"
            ).fetchall()
            if not snapshots and not self._has_inputs():
                self._begin(new)
                return new
            if len(snapshots) != 1:
                raise BadJournal(self.place, f"{len(snapshots)} snapshots", "one; what it held is lost")
            core = self._restored(snapshots[0], new)
            for given in self._inputs():
                core.apply(given, 0)
            self._check_tip()
            self._check_anchor()
        except sqlite3.Error as error:
            raise self._unreadable(error) from None
        except OSError as error:
            raise BadJournal(self.place, f"no large records: {error}", "those that it refers to") from None
        return core

    def _has_inputs(self) -> bool:
        return bool(self._database.execute("SELECT EXISTS (SELECT 1 FROM inputs)").fetchone()[0])

    def _begin(self, core: Core) -> None:
        mark = self._anchor.read()
        if mark is not None and mark.position:
            raise self._cut_off(mark.position)
        # Before the first commit: a journal without an anchor is one that has lost it.
        self._anchor.write(0, self._full)
        with self._writing():
            self._put_snapshot(core.snapshot())

    def _restored(self, row: tuple[int, int, bytes | None, int, int, int], new: Core) -> Core:
        position, half, state, start, size, crc = row
        self._bulk.half = 1 if half else 0
        state = self._found(state, start, size)
        if _crc(position, 0, state, 0) != crc:
            raise self._damaged("the snapshot", 0, 0)
        self.position, self._crc, self._state = position, crc, len(state)
        try:
            core = Core.restore(msgspec.msgpack.decode(state), new.limits)
        except (msgspec.MsgspecError, BadSnapshot) as error:
            raise BadJournal(
                self.place, f"a snapshot of another version: {error}", "one that we wrote"
            ) from None
        facts = [
            ("node", core.view.name(core.me), new.view.name(new.me)),
            ("protocol", core.machine.name, new.machine.name),
        ]
        if core.changing.roll.number == 1:
            facts.append(("view", ", ".join(core.view.names), ", ".join(new.view.names)))
            facts.append(("parameters", str(core.machine.parameters), str(new.machine.parameters)))
        else:
            # Who is a member is the journal's to say: views have changed since the node was described.
            facts.append(("parameters", str(core.parameters), str(new.changing.parameters_in(core))))
        for what, found, expected in facts:
            if found != expected:
                raise BadJournal(self.place, f"that of {what} {found}"[:200], f"that of {expected}"[:200])
        return core

    def _inputs(self) -> Iterator[Input]:
        rows = self._database.execute(
            "SELECT position, count, record, start, size, crc FROM inputs ORDER BY position"
        ).fetchall()
        last = max((row[0] for row in rows if isinstance(row[0], int)), default=0)
        for position, count, record, start, size, crc in rows:
            record = self._found(record, start, size)
            sound = _crc(position, count, record, self._crc) == crc and position == self.position + count
            inputs = decode_inputs(record) if sound else []
            if len(inputs) != count or not count:
                raise self._damaged(f"inputs {self.position + 1}..{position}", self.position, last)
            yield from inputs
            self.position, self._crc = position, crc
            self._since += count
            self._bytes += len(record)

    def _found(self, record: bytes | None, start: int, size: int) -> bytes:
        """A record, wherever it is; nothing if it is nowhere."""
        if record is not None:
            return record
        if type(start) is not int or type(size) is not int or min(start, size) < 0:
            return b""
        self._bulk.end = start + size
        return self._bulk.get(start, size)

    def _check_tip(self) -> None:
        tips = self._database.execute("SELECT position, crc FROM tip").fetchall()
        if tips != [(self.position, self._crc)]:
            last = max((tip[0] for tip in tips if isinstance(tip[0], int)), default=0)
            raise self._damaged(f"the end after input {self.position}", self.position, last)

    def _check_anchor(self) -> None:
        """Refuse a journal that ends before its anchor."""
        mark = self._anchor.read()
        if mark is None and self._format == FORMAT:
            expected = "it: without it nobody knows how far the journal went"
            raise BadJournal(self.place, f"no {self._anchor.path} beside it", expected)
        if mark is not None and mark.position > self.position:
            if mark.full or mark.is_of_this_boot:
                raise self._cut_off(mark.position)
            log.warning(
                "%s: inputs %d..%d were not on the disk when the system went down, as sync = normal allows",
                self.place,
                self.position + 1,
                mark.position,
            )
        self._anchor.write(self.position, self._full)
        if self._format != FORMAT:
            self._database.execute(f"PRAGMA user_version = {FORMAT}")

    def _cut_off(self, last: int) -> BadJournal:
        expected = (
            f"input {last}, which was durable: its write-ahead log is damaged, missing, or of another time"
        )
        return BadJournal(self.place, f"an end at input {self.position}", expected)

    def _damaged(self, what: str, sound: int, last: int) -> BadJournal:
        lost = (
            f"inputs {sound + 1}..{last}, or some of them, are lost"
            if last > sound
            else "all that it held is lost"
        )
        return BadJournal(self.place, f"{what} with a wrong checksum or place", f"an unbroken row: {lost}")

    # Writing

    def wants_snapshot(self, more: int) -> bool:
        """Whether it is time for a snapshot, together with so many more inputs."""
        return self._since + more > self._every or self._bytes > max(
            SNAPSHOT_BYTES, SNAPSHOT_PART * self._state
        )

    def waits(self, snapshot: bool) -> bool:
        """Whether the next `append` waits for the disk, and is better called from another thread."""
        return self._full or snapshot or self._groups >= CHECKPOINT_GROUPS

    def append(self, inputs: Sequence[Input], snapshot: dict[str, Any] | None = None) -> None:
        """Make these inputs durable; `snapshot`, if given, is the state after them."""
        if snapshot is not None:
            with self._writing(anew=True):
                self.position += len(inputs)
                self._put_snapshot(snapshot)
            return
        with self._writing():
            rows = [self._row(portion) for portion in portions(inputs, PORTION_BYTES)]
            if self._full:
                self._bulk.sync()
            if len(rows) > 1:
                self._database.execute("BEGIN")
            for row in rows:
                self._database.execute("INSERT INTO inputs VALUES (?, ?, ?, ?, ?, ?)", row)

    def _row(self, inputs: Sequence[Input]) -> tuple[Any, ...]:
        """What stands in the database for these inputs."""
        record, count = self._record, len(inputs)
        encode_into(inputs, record)
        self.position += count
        self._crc = _crc(self.position, count, record, self._crc)
        self._since += count
        self._bytes += len(record)
        return (self.position, count, *self._stored(record), self._crc)

    def _put_snapshot(self, snapshot: dict[str, Any]) -> None:
        state = msgspec.msgpack.encode(snapshot)
        self._crc = _crc(self.position, 0, state, 0)
        self._since, self._bytes, self._state = 0, 0, len(state)
        row = (self.position, self._bulk.half, *self._stored(state), self._crc)
        if self._full:
            self._bulk.sync()
        self._database.execute("BEGIN")
        self._database.execute("DELETE FROM inputs")
        self._database.execute("DELETE FROM snapshot")
        self._database.execute("INSERT INTO snapshot VALUES (?, ?, ?, ?, ?, ?)", row)
        self._database.execute("REPLACE INTO tip VALUES (1, ?, ?)", (self.position, self._crc))

    def _stored(self, record: bytes | bytearray) -> tuple[bytes | None, int | None, int | None]:
        """What the database holds of a record: itself, or its place."""
        if len(record) < LARGE_BYTES:
            return bytes(record), None, None
        return None, self._bulk.put(record), len(record)

    @contextmanager
    def _writing(self, anew: bool = False) -> Iterator[None]:
        """All of it, or nothing: if the disk is full, what was durable before still is. `anew`: with a snapshot."""
        bulk = self._bulk
        before, place = (self.position, self._since, self._bytes, self._crc), (bulk.half, bulk.end)
        try:
            if not self._full and self.waits(anew):
                # With a snapshot: what the one before took the place of is written over from here on.
                self._database.execute("PRAGMA wal_checkpoint")
                self._groups = 0
            if anew and bulk.end:
                bulk.turn()
            yield
            if self._database.in_transaction:
                self._database.execute("COMMIT")
            self._groups += 1
            self._anchor.write(self.position, self._full)
        except (sqlite3.Error, OSError) as error:
            self.position, self._since, self._bytes, self._crc = before
            bulk.half, bulk.end = place
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            left = f"what was durable, {self.position} inputs, still is, and nothing else has left the node"
            raise CannotWrite(self.place, str(error), left) from None

    def close(self) -> None:
        self._database.close()
        self._bulk.close()
        self._anchor.close()
