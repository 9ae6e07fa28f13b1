"""How far a stream by closed sets has come: a small Parquet table for each micro-batch, in `closed` of its checkpoint.

A table has one row with the `State`, and a row for each chunk of packets that is held: the name of its file, or its
bytes where tasks cannot write files. Micro-batch N is in `closed/slot-K` with K = N modulo 3: a slot is written over
when Spark can no longer ask for what was in it. Held files of micro-batch N are in `closed/held-N`, and staged ones in
`closed/staged-N` while it runs; an attempt of a task whose files no table names leaves them there to be removed.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, structs
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from antecede.errors import BadSnapshot
from antecede.protocols.receiver import BEYOND
from antecede.spark.storage import (
    absolute,
    clear_directory,
    escaped,
    files,
    join,
    local,
    make_directory,
    opened,
    place,
    readable,
    whole,
    write,
)
from antecede.spark.stream import cut
from antecede.spark.stream.kernel import CODES
from antecede.spark.stream.packets import WAITING, from_ipc, to_ipc
from antecede.spark.stream.receiver import CompiledReceivers, MachineReceiver, Output
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.status import Status, waiting_row

__all__ = [
    "CHUNK",
    "Chunk",
    "State",
    "States",
    "hold_packets",
    "read_status",
    "receiver_of",
    "save",
    "take_packets",
    "waiting_closed",
    "write_chunk",
]

VERSION: Final = 3
SLOTS: Final = 3
CHUNK: Final = pa.schema(
    [("chunk", pa.string()), ("packets", pa.binary()), ("sums", pa.binary()), ("octets", pa.int64())]
)
HELD: Final = pa.schema([("state", pa.binary()), *CHUNK])


class Chunk(NamedTuple):
    """Thousands of packets (`ROWS`), and `antecede.spark.stream.cut.Sums` of them."""

    chunk: str
    """Its name, which is a path if its bytes are in files."""
    packets: bytes | None
    sums: bytes | None
    octets: int | None
    """About how many the packets have, if it was counted."""

    def read_packets(self) -> pa.Table:
        return from_ipc(read_file(self.chunk) if self.packets is None else self.packets)

    def read_sums(self, n: int) -> cut.Sums:
        data = read_file(f"{self.chunk}.sums") if self.sums is None else self.sums
        return cut.Sums.unpacked(np.frombuffer(data, np.int64), n)


def read_file(path: str) -> Any:
    with opened(path) as file:
        return file.read()


def write_chunk(name: str, packets: pa.Table, sums: cut.Sums, home: str | None) -> Chunk:
    """Write packets to files of their own, whichever attempt of a task this is; without a home, keep the bytes."""
    if home is None:
        return Chunk(name, to_ipc(packets), sums.packed().tobytes(), packets.nbytes)
    path = join(home, f"{name}-{uuid.uuid4().hex}")
    system, inside = place(path)
    with system.open_output_stream(inside) as file, pa.ipc.new_stream(file, packets.schema) as writer:
        writer.write_table(packets)
    with system.open_output_stream(f"{inside}.sums") as file:
        file.write(sums.packed())
    return Chunk(path, None, None, packets.nbytes)


def hold_packets(packets: pa.Table, code: int, reached: cut.Counts, home: str | None) -> Chunk:
    """Write packets that are not delivered."""
    packets = packets.combine_chunks()
    source, number, since = (np.array(packets[name].to_numpy()) for name in ("source", "number", "since"))
    sums, _ = cut.summed(code, reached, packets["stamp"], source, number, since)
    return write_chunk("held", packets, sums, home)


class State(Struct, frozen=True, kw_only=True):
    """What is known after a micro-batch."""

    version: int = VERSION
    batch: int = -1
    decided: dict[str, Any]
    receiver: str
    reached: list[int]
    """How many messages of each sender were delivered, or given up."""
    place: int = 0
    """Of the next delivery."""
    status: Status = Status()
    machine: list[Any] | None = None
    """The machine that serves, if something was given up and has not come since."""


def save(table: DataFrame, path: str) -> None:
    """Write a table as Parquet in the place of what is there; on a local disk it appears whole."""
    if local(path) is not None:
        write(table, path, replace=True)
    else:
        table.write.mode("overwrite").parquet(path)


class States:
    """The states of a query, in its checkpoint."""

    def __init__(self, checkpoint: str | os.PathLike[str], settings: Settings, me: int) -> None:
        self.home, self.settings, self.me = join(absolute(checkpoint), "closed"), settings, me
        self._last: tuple[State, list[Chunk]] | None = None

    def slot(self, batch: int) -> str:
        return join(self.home, f"slot-{batch % SLOTS}")

    def first(self) -> State:
        """Before all micro-batches."""
        reached = [0] * len(self.settings.processes)
        reached[self.me] = BEYOND
        return State(
            decided=self.settings.decided(), receiver=self.settings.processes[self.me], reached=reached
        )

    def read(self, spark: SparkSession, batch: int) -> State | None:
        """The state after a micro-batch, if it was written."""
        if batch < 0:
            self._last = self.first(), []
            return self._last[0]
        if self._last is not None and self._last[0].batch == batch - 1:
            # This query has written nothing since.
            return None
        if self._last is None or self._last[0].batch != batch:
            found = read_slot(spark, self.home, batch % SLOTS)
            if found is None or found[0].batch != batch:
                return None
            self._last = found
        state = self._last[0]
        for what, found_one, wanted in (
            ("settings", state.decided, self.settings.decided()),
            ("receiver", state.receiver, self.settings.processes[self.me]),
        ):
            if found_one != wanted:
                raise BadSnapshot.changed(what, found_one, wanted)
        return state

    def before(self, spark: SparkSession, batch: int) -> tuple[State, list[Chunk]]:
        """The state that a micro-batch begins with, and what was held."""
        if self.read(spark, batch - 1) is not None:
            assert self._last is not None
            return self._last
        old = read_version_2(self.home, self.first())
        if old is None or old[0].batch != batch - 1:
            raise BadSnapshot(
                f"{self.home} has no state of micro-batch {batch - 1}: begin with a new checkpoint and output"
            )
        state, tables = old
        code, reached = CODES[state.decided["protocol"]], np.array(state.reached, np.int64)
        return state, [hold_packets(table, code, reached, None) for table in tables]

    def write(self, spark: SparkSession, state: State, held: list[Chunk]) -> None:
        rows: list[dict[str, Any]] = [{"state": msgspec.msgpack.encode(state)}]
        # A checkpoint may be moved.
        rows += [chunk._asdict() | {"chunk": chunk.chunk.removeprefix(f"{self.home}/")} for chunk in held]
        table, slot = pa.Table.from_pylist(rows, HELD), self.slot(state.batch)
        if readable(slot):
            # No job of Spark is needed.
            with whole(slot, replace=True) as made:
                system, inside = place(make_directory(made))
                pq.write_table(table, f"{inside}/state.parquet", filesystem=system)
        else:
            save(spark.createDataFrame(table, from_arrow_schema(HELD)), slot)
        self._last = state, held

    def forget(self, batch: int) -> None:
        """Remove the files that nobody will ask for once a micro-batch is written."""
        system, inside = place(self.home)
        for info in system.get_file_info(fs.FileSelector(inside)):
            kind, _, number = info.base_name.partition("-")
            if kind == "staged" or (kind == "held" and int(number) < batch - 1):
                clear_directory(join(self.home, info.base_name))


def read_slot(spark: SparkSession, home: str, at: int) -> tuple[State, list[Chunk]] | None:
    """A state and what was held then, if the slot was written."""
    slot = join(home, f"slot-{at}")
    if not files(spark, slot):
        return None
    rows = spark.read.schema(from_arrow_schema(HELD)).parquet(escaped(slot)).toArrow().to_pylist()
    states = [decode_state(row["state"]) for row in rows if row["state"] is not None]
    chunks = [Chunk(*(row[name] for name in CHUNK.names)) for row in rows if row["chunk"] is not None]
    held = [one if one.packets else one._replace(chunk=join(home, one.chunk)) for one in chunks]
    return (states[0], held) if states else None


def decode_state(data: bytes) -> State:
    version = msgspec.msgpack.decode(data)["version"]
    if version != VERSION:
        raise BadSnapshot.version("the stream by closed sets", version, VERSION)
    return msgspec.msgpack.decode(data, type=State)


# What is held, as packets of a machine


def take_packets(
    settings: Settings, receiver: MachineReceiver, table: pa.Table, outputs: list[Output]
) -> None:
    compiled = CompiledReceivers(settings)
    for row, since in enumerate(table["since"].to_pylist()):
        receiver.take(compiled.packet(table, row, receiver.machine.me), since, outputs)


def receiver_of(settings: Settings, state: State, held: list[pa.Table]) -> MachineReceiver:
    """The machine that was kept or, if none was, one that has delivered so much and holds this."""
    if state.machine is not None:
        return MachineReceiver.load(settings, state.machine)
    me = settings.view.id(state.receiver)
    receiver = MachineReceiver("", settings.machine(me, state.reached))
    receiver.position = state.place
    for table in held:
        take_packets(settings, receiver, table, [])
    return receiver


# Looking at it from elsewhere


def read_status(checkpoint: str | os.PathLike[str], batch: int) -> Status | None:
    """The status after a micro-batch, without Spark, if its state is still kept and PyArrow reads such storage."""
    slot = join(absolute(checkpoint), "closed", f"slot-{batch % SLOTS}")
    if not readable(slot):
        return None
    system, inside = place(slot)
    try:
        column = pq.read_table(inside, columns=["state"], filesystem=system)["state"].drop_null()
    except FileNotFoundError:
        return None
    state = decode_state(column[0].as_py())
    return state.status if state.batch == batch else None


def waiting_closed(spark: SparkSession, checkpoint: str | os.PathLike[str]) -> pa.Table | None:
    """What waits in the query with this checkpoint, if it is one by closed sets: rows of `WAITING`."""
    home = join(absolute(checkpoint), "closed")
    slots = [read_slot(spark, home, at) for at in range(SLOTS)]
    found = [one for one in slots if one is not None]
    if not found:
        return None
    state, held = max(found, key=lambda one: one[0].batch)
    decided = state.decided
    settings = Settings(decided["protocol"], tuple(decided["processes"]), decided["parameters"])
    receiver = receiver_of(settings, state, [chunk.read_packets() for chunk in held])
    rows = []
    for key, since in receiver.since.items():
        awaits = [(a.sender, a.first, a.last, a.counted) for a in receiver.machine.awaits(key)]
        rows.append(waiting_row(settings.processes, "", state.receiver, key, since, awaits))
    return pa.Table.from_pylist(rows, WAITING)


# Version 2: a directory for each micro-batch, with files of Arrow


def read_version_2(home: str, first: State) -> tuple[State, list[pa.Table]] | None:
    """The last state that version 2 left on a local disk, and what was held."""
    here = Path(local(home) or "")
    found = sorted(one for one in here.glob("[0-9]*") if (one / "state").exists()) if local(home) else []
    if not found:
        return None
    old = msgspec.msgpack.decode((found[-1] / "state").read_bytes())
    if old["version"] != 2:
        raise BadSnapshot.version("the stream by closed sets", old["version"], f"2 or {VERSION}")
    tables = []
    for name in old["held"]:
        with pa.memory_map(str(found[-1] / Path(name).name)) as file:
            tables.append(pa.ipc.open_file(file).read_all())
    state = structs.replace(
        first,
        batch=int(found[-1].name),
        decided=old["decided"],
        receiver=old["receiver"],
        reached=old["reached"],
        place=old["place"],
        machine=old["lane"],
        status=msgspec.convert(old["status"], Status),
    )
    return state, tables
