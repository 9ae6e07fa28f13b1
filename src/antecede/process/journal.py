"""What a process has on disk: a snapshot, and every input since.

A process replayed from the same inputs is in the same state (`core`), so a journal of inputs is as good as the state,
and much cheaper to write. Inputs are appended in groups, one transaction each, and one row, or several if they are
large. After so many inputs a snapshot takes their place, in one transaction too. What is large stands beside the
tables (`bulk`), in files that a commit refers to and that were written before it.

What a commit survives is a choice, `sync`:
  full     the power fails: each group is on the disk before anything that follows from it leaves the node
  normal   the process is killed. If the system goes down, what came last may be lost: then the links of the peers
           refuse the node, since it has forgotten what it told them, or, where a large record is lost that the
           tables refer to, the journal is refused. No loss is silent.

Every row has a checksum over itself and the row before it, so a row that is damaged, missing or in the wrong place is
noticed; and a file beside the tables says how far the journal goes (`anchor`), so that a lost end is, and lost tables.
Such a journal is refused, with a sentence that says what is lost.

This is all of it but the bytes: those are on a `Disk`, a real one or one of a simulation. What a snapshot and inputs of
an earlier version mean is for `upgrade` to say.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from zlib import crc32

import msgspec

from antecede.errors import BadJournal, BadParameter, BadSnapshot, CannotWrite
from antecede.process.anchor import REJOIN, Anchor
from antecede.process.bulk import Bulk
from antecede.process.core import Core
from antecede.process.disk import Disk, Row
from antecede.process.inputs import Input, decode_inputs, encode_into, portions

__all__ = ["Journal"]

log = logging.getLogger(__name__)

SNAPSHOT_BYTES = 16 << 20
"""Bytes of inputs, after which a snapshot takes their place, however few they are: a restart reads them all, and files
that stay short are written over in memory that is at hand."""
SNAPSHOT_PART = 4
"""How many times as long as the last snapshot the inputs must be by then: what is under way may be large."""
CHECKPOINT_GROUPS, CHECKPOINT_GROUPS_FULL = 4096, 256
"""Groups after which the log of the tables is put into their place, and begins anew: without and with `full`, where a
short log is written over, which a disk syncs faster than one that grows."""
PORTION_BYTES = 1 << 17
"""Bytes that are encoded, added up and written before the next, while the processor has them at hand."""
LARGE_BYTES = 1 << 14
"""Records from this length on stand beside the tables."""


def _crc(position: int, count: int, record: bytes | bytearray, before: int) -> int:
    try:
        return crc32(record, crc32(struct.pack("<QQ", position, count), before))
    except (struct.error, TypeError):
        # A damaged row may hold anything: no checksum that is stored is this one.
        return -1


def _parameters_at_first(core: Core) -> dict[str, Any]:
    """The parameters that a process was described with: a router that fails changes the topology before the view."""
    founding = core.changing.roll.founding
    return core.machine.parameters | ({} if founding is None else {"topology": founding.plain()})


class Journal:
    """The journal of one process. `append` may be called from another thread, one call at a time."""

    def __init__(
        self,
        disk: Disk,
        place: str = "journal",
        sync: Literal["full", "normal"] = "full",
        snapshot_inputs: int = 20_000,
    ) -> None:
        if sync not in ("full", "normal"):
            raise BadParameter.choice("journal", "sync", sync, ("full", "normal"))
        self.place = place
        self.position = 0
        """Of the last input that is durable."""
        self._disk = disk
        self._every = snapshot_inputs
        self._since = 0
        """Inputs since the snapshot."""
        self._bytes = 0
        """Of these inputs."""
        self._groups = 0
        """Groups since the log of the tables began."""
        self._state = 0
        """Bytes of the snapshot."""
        self._crc = 0
        self._record = bytearray()
        """What was encoded last."""
        self.full = sync == "full"
        """Each group is on the disk once it is appended."""
        self._anchor, self._bulk = Anchor(disk), Bulk(disk)

    # Reading

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever written to it."""
        tables = self._disk.tables()
        return not tables.snapshots and not tables.inputs

    def recover(self, new: Core | None) -> Core:
        """The process as it was when its last input became durable; or this new one, if the journal is new.

        Without a new one it is read as the memory of a process that has failed, whoever that was.
        """
        tables = self._disk.tables()
        snapshots, rows = tables.snapshots, tables.inputs
        try:
            if new is None and not snapshots:
                raise BadJournal(self.place, "is empty: give the journal of a process that has failed")
            if new is not None and not snapshots and not rows:
                self._begin(new)
                return new
            if len(snapshots) != 1:
                raise BadJournal(
                    self.place,
                    f"has {len(snapshots)} snapshots instead of one: what it held is lost; {REJOIN}",
                )
            core = self._restore(snapshots[0], new)
            for given in self._inputs(rows):
                core.apply(given, 0)
            if list(tables.tips) != [(self.position, self._crc)]:
                last = max((tip[0] for tip in tables.tips if isinstance(tip[0], int)), default=0)
                raise self._describe_damage(f"the end after input {self.position}", self.position, last)
            self._check_anchor()
        except CannotWrite:
            raise
        except OSError as error:
            raise BadJournal(self.place, f"refers to large records that cannot be read: {error}") from None
        return core

    def _begin(self, core: Core) -> None:
        mark = self._anchor.read()
        if mark is not None and mark.position:
            raise self._cut_off(mark.position)
        # Before the first commit: a journal without an anchor is one that has lost it.
        self._mark()
        with self._writing():
            self._put_snapshot(core.snapshot())

    def _mark(self) -> None:
        """Say in the anchor how far it goes, before anything is written."""
        try:
            self._anchor.write(self.position, self.full)
        except OSError as error:
            raise CannotWrite(self.place, error.strerror or str(error), "nothing was changed") from None

    def _restore(self, row: Row, new: Core | None) -> Core:
        position, half, state, start, size, crc = row
        self._bulk.half = 1 if half else 0
        state = self._found(state, start, size)
        if _crc(position, 0, state, 0) != crc:
            raise self._describe_damage("the snapshot", 0, 0)
        self.position, self._crc, self._state = position, crc, len(state)
        try:
            core = Core.restore(msgspec.msgpack.decode(state), None if new is None else new.limits)
        except (msgspec.MsgspecError, BadSnapshot) as error:
            raise BadJournal(self.place, f"has a snapshot that this version cannot read: {error}") from None
        if new is None:
            return core
        facts = [
            ("node", core.view.name(core.me), new.view.name(new.me)),
            ("protocol", core.machine.name, new.machine.name),
        ]
        if core.changing.roll.number == 1:
            facts.append(("view", ", ".join(core.view.names), ", ".join(new.view.names)))
            facts.append(("parameters", str(_parameters_at_first(core)), str(_parameters_at_first(new))))
            facts.append(
                ("groups", core.changing.roll.describe_groups(), new.changing.roll.describe_groups())
            )
        else:
            # Who is a member is the journal's to say: views have changed since the node was described.
            facts.append(("parameters", str(core.parameters), str(new.changing.parameters_in(core))))
        for what, found, expected in facts:
            if found != expected:
                raise BadJournal(
                    self.place, f"belongs to {what} {found}"[:200] + f", and not to {expected}"[:200]
                )
        return core

    def _inputs(self, rows: Sequence[Row]) -> Iterator[Input]:
        last = max((row[0] for row in rows if isinstance(row[0], int)), default=0)
        for position, count, found, start, size, crc in rows:
            record = self._found(found, start, size)
            sound = _crc(position, count, record, self._crc) == crc and position == self.position + count
            inputs = decode_inputs(record) if sound else []
            if len(inputs) != count or not count:
                raise self._describe_damage(f"inputs {self.position + 1}..{position}", self.position, last)
            yield from inputs
            self.position, self._crc = position, crc
            self._since += count
            self._bytes += len(record)

    def _found(self, record: bytes | None, start: int | None, size: int | None) -> bytes:
        """A record, wherever it is; nothing if it is nowhere."""
        if record is not None:
            return record
        if type(start) is not int or type(size) is not int or min(start, size) < 0:
            return b""
        self._bulk.end = start + size
        return self._bulk.get(start, size)

    def _check_anchor(self) -> None:
        """Refuse a journal that ends before its anchor."""
        mark = self._anchor.read()
        if mark is None and not self._disk.old:
            raise BadJournal(
                self.place,
                f"has lost {self._anchor.path}: without it nobody knows how far the journal went; bring it back, or "
                f"{REJOIN}",
            )
        if mark is not None and mark.position > self.position:
            if mark.full or self._anchor.is_of_this_boot(mark):
                raise self._cut_off(mark.position)
            log.warning(
                "%s: inputs %d..%d were not on the disk when the system went down, as sync = normal allows",
                self.place,
                self.position + 1,
                mark.position,
            )
        self._mark()
        if self._disk.old:
            self._disk.upgrade()

    def _cut_off(self, last: int) -> BadJournal:
        return BadJournal(
            self.place,
            f"ends at input {self.position}, before input {last}, which was durable: its write-ahead log is damaged, "
            "missing, or of another time",
        )

    def _describe_damage(self, what: str, sound: int, last: int) -> BadJournal:
        lost = (
            f"inputs {sound + 1}..{last}, or some of them, are lost; {REJOIN}"
            if last > sound
            else f"all that it held is lost; {REJOIN}"
        )
        return BadJournal(self.place, f"is damaged: the checksum or the place of {what} is wrong; {lost}")

    # Writing

    def wants_snapshot(self, more: int) -> bool:
        """Whether it is time for a snapshot, together with so many more inputs."""
        return self._since + more > self._every or self._bytes > max(
            SNAPSHOT_BYTES, SNAPSHOT_PART * self._state
        )

    def waits(self, snapshot: bool) -> bool:
        """Whether the next `append` does more than to write one group: that is for another thread."""
        return snapshot or self._groups >= (CHECKPOINT_GROUPS_FULL if self.full else CHECKPOINT_GROUPS)

    def append(
        self, inputs: Sequence[Input], snapshot: dict[str, Any] | None = None, size: int | None = None
    ) -> None:
        """Make these inputs durable, with payloads of `size` bytes; `snapshot`, if given, is the state after them."""
        if snapshot is not None:
            with self._writing(anew=True):
                self.position += len(inputs)
                self._put_snapshot(snapshot)
            return
        with self._writing():
            # Most groups are small. To look for the end of a portion costs something for each input.
            whole = size is not None and size <= PORTION_BYTES
            rows = [self._row(one) for one in ([inputs] if whole else portions(inputs, PORTION_BYTES))]
            if self.full:
                self._bulk.sync()
            self._disk.insert(rows)

    def _row(self, inputs: Sequence[Input]) -> Row:
        """What stands in the tables for these inputs."""
        record, count = self._record, len(inputs)
        encode_into(inputs, record)
        self.position += count
        self._crc = _crc(self.position, count, record, self._crc)
        self._since += count
        self._bytes += len(record)
        return (self.position, count, *self._prepare(record), self._crc)

    def _put_snapshot(self, snapshot: dict[str, Any]) -> None:
        state = msgspec.msgpack.encode(snapshot)
        self._crc = _crc(self.position, 0, state, 0)
        self._since, self._bytes, self._state = 0, 0, len(state)
        row = (self.position, self._bulk.half, *self._prepare(state), self._crc)
        if self.full:
            self._bulk.sync()
        self._disk.replace(row)

    def _prepare(self, record: bytes | bytearray) -> tuple[bytes | None, int | None, int | None]:
        """What the tables hold of a record: itself, or its place."""
        if len(record) < LARGE_BYTES:
            return bytes(record), None, None
        return None, self._bulk.put(record), len(record)

    @contextmanager
    def _writing(self, anew: bool = False) -> Iterator[None]:
        """All of it, or nothing: if the disk is full, what was durable before still is. `anew`: with a snapshot."""
        bulk = self._bulk
        before, place = (self.position, self._since, self._bytes, self._crc), (bulk.half, bulk.end)
        try:
            if self.waits(anew and not self.full):
                # With a snapshot, unless its commit is on the disk by itself: what the one before it took the place of
                # is written over from here on.
                self._disk.checkpoint()
                self._groups = 0
            if anew and bulk.end:
                bulk.turn()
            yield
            self._groups += 1
            self._anchor.write(self.position, self.full)
        except OSError as error:
            self.position, self._since, self._bytes, self._crc = before
            bulk.half, bulk.end = place
            left = f"what was durable, {self.position} inputs, still is, and nothing else has left the node"
            reason = error.strerror or str(error)
            raise CannotWrite(self.place, reason, left) from None

    def close(self) -> None:
        self._disk.close()
