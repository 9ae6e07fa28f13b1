"""How far a stream by closed sets has come: a small Parquet table for each micro-batch, in `closed` of its checkpoint.

A table has one row with the `State`, and rows with what is held: packets as Arrow streams, and what the driver has to
know of them. Micro-batch N is in `closed/slot-K` with K = N modulo 3: a slot is written over when
Spark can no longer ask for what was in it. Spark's committer writes it, so any storage will do.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, structs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from antecede.errors import BadSnapshot
from antecede.protocols.receiver import BEYOND
from antecede.spark.storage import absolute, escaped, files, join, local, place, readable, whole, write
from antecede.spark.stream import cut
from antecede.spark.stream.kernel import CODES
from antecede.spark.stream.packets import WAITING, from_ipc, to_ipc
from antecede.spark.stream.receiver import CompiledReceivers, MachineReceiver, Output
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.status import Status, waiting_row

__all__ = [
    "CHUNK",
    "HELD",
    "State",
    "States",
    "pack_chunk",
    "read_status",
    "receiver_of",
    "rows_of",
    "save",
    "take_packets",
    "waiting_closed",
]

VERSION: Final = 3
SLOTS: Final = 3
CHUNK: Final = ("chunk", "packets", "sums")
"""Thousands of packets (`ROWS`), and `antecede.spark.stream.cut.Sums` of them."""
HELD: Final = pa.schema(
    [(name, pa.string() if name == "chunk" else pa.binary()) for name in ("state", *CHUNK)]
)


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
        self._last: State | None = None

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
            return self.first()
        if self._last is not None and self._last.batch == batch:
            return self._last
        state = read_state(spark, self.slot(batch))
        if state is None or state.batch != batch:
            return None
        for what, found, wanted in (
            ("settings", state.decided, self.settings.decided()),
            ("receiver", state.receiver, self.settings.processes[self.me]),
        ):
            if found != wanted:
                raise BadSnapshot(f"{what} of the stream", found, wanted)
        return state

    def held(self, spark: SparkSession, batch: int) -> DataFrame:
        """What was held after a micro-batch: rows of `HELD`, none with a state."""
        if batch < 0:
            return table_of(spark, [])
        return read_slot(spark, self.slot(batch)).where(F.col("packets").isNotNull())

    def before(self, spark: SparkSession, batch: int) -> tuple[State, DataFrame | None]:
        """The state that a micro-batch begins with, and what was held, if anything was."""
        state = self.read(spark, batch - 1)
        if state is not None:
            return state, self.held(spark, batch - 1) if state.status.held else None
        old = read_version_2(self.home, self.first())
        if old is None or old[0].batch != batch - 1:
            raise BadSnapshot(
                "state of micro-batch", "not there", f"that of micro-batch {batch - 1} in {self.home}"
            )
        return old[0], rows_of(spark, old[0], old[1])

    def write(self, spark: SparkSession, state: State, held: DataFrame | None) -> None:
        row, slot = {"state": msgspec.msgpack.encode(state)}, self.slot(state.batch)
        if held is None and readable(slot):
            # Nothing but the state: no job of Spark is needed.
            with whole(slot, replace=True) as made:
                system, inside = place(made)
                system.create_dir(inside)
                pq.write_table(
                    pa.Table.from_pylist([row], HELD), f"{inside}/state.parquet", filesystem=system
                )
        else:
            own = table_of(spark, [row])
            save(own if held is None else own.union(held.select(*HELD.names)), slot)
        self._last = state


def table_of(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    """Rows of `HELD` that the driver has."""
    return spark.createDataFrame(pa.Table.from_pylist(rows, HELD), from_arrow_schema(HELD))


def rows_of(spark: SparkSession, state: State, tables: list[pa.Table]) -> DataFrame:
    """Packets that the driver has, to be held."""
    code, reached = CODES[state.decided["protocol"]], np.array(state.reached, np.int64)
    chunks = [pack_chunk(f"held-{at:06d}", table, code, reached) for at, table in enumerate(tables)]
    return table_of(spark, chunks)


def pack_chunk(chunk: str, packets: pa.Table, code: int, reached: cut.Counts) -> dict[str, Any]:
    """Packets (`ROWS`) as a row of `CHUNK`."""
    source, number, since = (np.array(packets[name].to_numpy()) for name in ("source", "number", "since"))
    sums, _ = cut.summed(code, reached, packets["stamp"], source, number, since)
    return {"chunk": chunk, "packets": to_ipc(packets), "sums": sums.packed().tobytes()}


def read_slot(spark: SparkSession, slot: str) -> DataFrame:
    return spark.read.schema(from_arrow_schema(HELD)).parquet(escaped(slot))


def read_state(spark: SparkSession, slot: str) -> State | None:
    if not files(spark, slot):
        return None
    row = read_slot(spark, slot).where(F.col("state").isNotNull()).select("state").first()
    return None if row is None else decode_state(bytes(row["state"]))


def decode_state(data: bytes) -> State:
    version = msgspec.msgpack.decode(data)["version"]
    if version != VERSION:
        raise BadSnapshot("version of the stream by closed sets", version, VERSION)
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
    slots = {slot: read_state(spark, slot) for slot in (join(home, f"slot-{at}") for at in range(SLOTS))}
    found = [(state.batch, slot, state) for slot, state in slots.items() if state is not None]
    if not found:
        return None
    _, slot, state = max(found, key=lambda one: one[0])
    decided = state.decided
    settings = Settings(decided["protocol"], tuple(decided["processes"]), decided["parameters"])
    held = read_slot(spark, slot).where(F.col("packets").isNotNull()).select("packets").toArrow()
    receiver = receiver_of(settings, state, [from_ipc(blob.as_buffer()) for blob in held["packets"]])
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
        raise BadSnapshot("version of the stream by closed sets", old["version"], f"2 or {VERSION}")
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
