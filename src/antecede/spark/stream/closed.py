"""A hot monitor: all messages go to one receiver, and each micro-batch delivers the largest closed set.

Hoogerwoord 1995, sections 5 and 6: a set of messages is closed if it contains every message that one of its messages
follows. Of what has arrived there is a largest closed set, and it may be delivered in any order that extends causality:
here as a keyed stream does, by `arrival` where there is one, and else by sender and number.

A keyed operator gives one receiver to one task, and each row crosses between Java and Python four times. Here it
crosses once: Spark's tasks read the packets on all cores, and the driver takes them as one Arrow table, lets a `Bucket`
deliver, and writes Parquet itself. Tasks write nothing, so it does not matter how often they are tried. A micro-batch
has to fit in the driver (`spark.driver.maxResultSize`): take fewer files at once.

First the state is written to `closed/slot-K` of the checkpoint, with K the number of the micro-batch modulo 3: a slot
is written over when Spark can no longer ask for what was in it. Then the rows, to `out/batch=N`. Spark repeats a
micro-batch that it has not committed with the same rows; then the same messages are found again, at the time that the
state tells, and are written if they are not there. So `out` has each message once, whenever the query was killed.

For protocols whose stamps are whole vectors: `monitor`, `broadcast`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter

from antecede.errors import BadParameter, BadSnapshot
from antecede.model import View
from antecede.protocols.machine import SNAPSHOT_VERSION
from antecede.spark.frames import escape_path, files, parse_duration
from antecede.spark.stream.api import select_packets
from antecede.spark.stream.bucket import ADDED, hide_name, to_ipc
from antecede.spark.stream.packets import Settings
from antecede.spark.stream.status import Status
from antecede.storage import (
    absolute,
    join,
    local,
    make_directory,
    open_file,
    place,
    put,
    readable,
    vacant,
    whole,
)

__all__ = ["KINDS", "Closing", "deliver_closed", "find_state", "read_status"]

SLOTS: Final = 3
KINDS: Final = ("monitor", "broadcast")
"""Protocols whose stamps are whole vectors."""


def deliver_closed(
    df: DataFrame,
    protocol: str,
    processes: Sequence[str],
    *,
    receiver: str,
    out: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    parameters: Mapping[str, Any] | None = None,
    patience: str | None = None,
) -> DataStreamWriter:
    """Write the messages of one receiver in causal order to `out`: start what this gives, with a trigger of yours.

    As `order` with stamps, for one receiver. Whether `patience` has ended is looked at when something comes.
    """
    about = "stream by closed sets"
    me = View(tuple(processes)).id(receiver)
    waits = None if patience is None else parse_duration("stream", "patience", patience)
    settings = Settings(protocol, tuple(processes), dict(parameters or {}), receiver=me, patience_ms=waits)
    if settings.protocol not in KINDS:
        raise BadParameter.choice(about, "protocol", settings.protocol, KINDS)
    if not settings.machine(me).orders_at(me):
        raise BadParameter(about, f"receiver must be the one that the protocol orders for, not {receiver}")
    rows = select_packets(df, "stamp", None, "arrival" if "arrival" in df.columns else None).drop("__group")
    closing = Closing(settings, df.columns, absolute(out), join(absolute(checkpoint), "closed"))
    return rows.writeStream.foreachBatch(closing).option("checkpointLocation", absolute(checkpoint))


class State(Struct, frozen=True):
    """What is known after a micro-batch."""

    batch: int
    receiver: str
    status: Status
    bucket: bytes


class Closing:
    """What is done with each micro-batch."""

    def __init__(
        self,
        settings: Settings,
        columns: Sequence[str],
        out: str,
        home: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings, self.out, self.home, self.clock = settings, out, home, clock
        self.columns = columns
        """Those of the user."""
        assert settings.receiver is not None
        self.receiver = settings.processes[settings.receiver]
        self.last: State | None = None
        """What this query has written."""

    def __call__(self, rows: DataFrame, batch: int) -> None:
        spark, out = rows.sparkSession, join(self.out, f"batch={batch}")
        # A micro-batch that this query has not done may have been done by one that was killed.
        fresh = self.last is not None and self.last.batch == batch - 1
        done = None if fresh else self._read(spark, batch)
        if done is not None and is_whole(out):
            self.last = done
            return
        # A micro-batch that is repeated has the time that it had. It is not Spark's time of the micro-batch: that is a
        # constant of the plan, for which Java compiles it all again.
        now = round(self.clock() * 1000) if done is None else done.status.now_ms
        bucket = self.settings.open(None if batch == 0 else self._read_bucket(spark, batch - 1))
        found, status = bucket.advance(rows.toArrow(), now)
        assert found is not None
        self.last = State(batch, self.receiver, status, bucket.dump())
        write_state(spark, self.home, self.last)
        found = found.select([*map(hide_name, self.columns), *ADDED])
        write_rows(spark, found.rename_columns([*self.columns, *ADDED]), out)

    def _read_bucket(self, spark: SparkSession, batch: int) -> bytes:
        """The bucket as it was after a micro-batch."""
        found = self.last if self.last is not None and self.last.batch == batch else self._read(spark, batch)
        bucket = read_version_2(self.home, batch, self.settings) if found is None else found.bucket
        if bucket is None:
            raise BadSnapshot(
                f"{self.home} has no state of micro-batch {batch}: begin with a new checkpoint and output"
            )
        return bucket

    def _read(self, spark: SparkSession, batch: int) -> State | None:
        """The state after a micro-batch, if it was written."""
        found = read_slot(spark, self.home, batch % SLOTS)
        if found is None or found.batch != batch:
            return None
        if found.receiver != self.receiver:
            raise BadSnapshot.changed("receiver", found.receiver, self.receiver)
        return found


# Reading and writing, on any storage


def write_state(spark: SparkSession, home: str, state: State) -> None:
    slot, data = join(home, f"slot-{state.batch % SLOTS}"), msgspec.msgpack.encode(state)
    if readable(home):
        make_directory(home)
        put(slot, data)
    else:
        spark.createDataFrame([(data,)], "state binary").write.mode("overwrite").parquet(slot)


def read_slot(spark: SparkSession | None, home: str, at: int) -> State | None:
    """The state in a slot, if it was written. Without Spark, where PyArrow reads the storage."""
    slot = join(home, f"slot-{at}")
    if readable(home):
        try:
            with open_file(slot) as file:
                data = file.read()
        except FileNotFoundError:
            return None
    elif spark is None or not files(spark, slot):
        return None
    else:
        data = bytes(spark.read.schema("state binary").parquet(escape_path(slot)).collect()[0][0])
    return msgspec.msgpack.decode(data, type=State)


def write_rows(spark: SparkSession, rows: pa.Table, out: str) -> None:
    """Write what comes out as Parquet, in the place of what is there; on a local disk it appears whole."""
    if not readable(out):
        spark.createDataFrame(rows, from_arrow_schema(rows.schema)).write.mode("overwrite").parquet(out)
        return
    with whole(out, replace=True) as made:
        make_directory(made)
        # Numbers, stamps and payloads are different in each row, and need no dictionary.
        few = ["receiver", "sender", "kind"]
        system, inside = place(join(made, "part-00000.parquet"))
        pq.write_table(rows, inside, filesystem=system, use_dictionary=few)
        put(join(made, "_SUCCESS"), b"")


def is_whole(path: str) -> bool:
    """Whether a table was written there to its end, as far as can be seen."""
    if local(path) is not None:
        return os.path.isdir(str(local(path)))
    return readable(path) and not vacant(join(path, "_SUCCESS"))


# Looking at it from elsewhere


def read_status(checkpoint: str | os.PathLike[str], batch: int) -> Status | None:
    """The status after a micro-batch, without Spark, if its state is still kept and PyArrow reads such storage."""
    state = read_slot(None, join(absolute(checkpoint), "closed"), batch % SLOTS)
    return state.status if state is not None and state.batch == batch else None


def find_state(spark: SparkSession, checkpoint: str | os.PathLike[str]) -> bytes | None:
    """The last state of the bucket, if the query with this checkpoint is one by closed sets."""
    slots = (read_slot(spark, join(absolute(checkpoint), "closed"), at) for at in range(SLOTS))
    last = max((one for one in slots if one is not None), key=lambda one: one.batch, default=None)
    return None if last is None else last.bucket


def read_version_2(home: str, batch: int, settings: Settings) -> bytes | None:
    """The state of a bucket from what version 2 left after a micro-batch: files of Arrow on a local disk."""
    here = Path(local(home) or "", f"{batch:012d}")
    if local(home) is None or not (here / "state").exists():
        return None
    old = msgspec.msgpack.decode((here / "state").read_bytes())
    if old["version"] != 2:
        raise BadSnapshot.version("the stream by closed sets", old["version"], 2)
    assert settings.receiver is not None
    me = settings.processes[settings.receiver]
    if old["receiver"] != me:
        raise BadSnapshot.changed("receiver", old["receiver"], me)
    state = {"antecede stream": 1, "machines": SNAPSHOT_VERSION, **old["decided"], "lanes": []}
    if old["lane"] is not None:
        state["lanes"] = [old["lane"]]
    else:
        held = []
        for name in old["held"]:
            with pa.memory_map(str(here / Path(name).name)) as file:
                held.append(pa.ipc.open_file(file).read_all())
        counts = {"delivered": old["reached"], "places": [old["place"]]}
        state["kernel"] = {name: np.array(count, np.int64).tobytes() for name, count in counts.items()}
        state["kernel"] |= {
            "keys": [["", settings.receiver]], "held": to_ipc(pa.concat_tables(held)) if held else None,
        }  # fmt: skip
    return msgspec.msgpack.encode(state)
