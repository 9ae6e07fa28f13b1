"""Causal order for a live stream of packets that carry stamps: any protocol whose delivery is decided at the receiver.

A row is a packet at a receiver, as `packets` explains it, with as many other columns as its owner likes. What decides
is `bucket.Bucket`, which knows packets and nothing of the other columns: it is handed the number of a row as the
payload. The rows themselves are kept here until their numbers come back.

The state has two parts: that of the `Bucket`, and the rows that wait. Version 1 had no rows: its messages have their
payloads, and come out with the columns of a packet; the other columns are null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ByteType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from antecede.errors import BadParameter, BadSnapshot
from antecede.spark.duration import parse_duration
from antecede.spark.frames import quote, refuse_column_names
from antecede.spark.schema import GROUP_MARK
from antecede.spark.stream.bucket import Bucket
from antecede.spark.stream.operator import BUCKETS, keep_rows, unpack
from antecede.spark.stream.packets import (
    GAVE_UP,
    PACKETS,
    encode_names,
    from_ipc,
    join_rows,
    make_lists,
    to_ipc,
)
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.status import Status, list_waits

__all__ = ["StampedBucket", "order_stamps", "select_packets"]

STATE_VERSION: Final = 2
OWN: Final = ("__receiver", "__sender", "__number", "__stamp", "__arrival", "__label", "__group")
ADDED: Final = ("position", "waits_for", "kind", "reason")


def order_stamps(
    df: DataFrame,
    *,
    protocol: str,
    processes: Sequence[str],
    stamp: str = "stamp",
    parameters: Mapping[str, Any] | None = None,
    partition_by: Sequence[str] = (),
    time: str | None = None,
    patience: str | None = None,
    buckets: int = BUCKETS,
) -> DataFrame:
    """Packets in the order of arrival -> the same rows in causal order, each with its position at its receiver.

    A row has `receiver`, `sender`, `number` and the column `stamp`; `label` for `history`. `processes` are the names of
    all that take part, in the order that their stamps count in; `parameters` are those of the protocol. `partition_by`
    is a column that tells several systems of the same processes apart (default: `group`, if there is one), `time` the
    one that rows are taken by (default: `arrival`, if there is one).
    """
    if buckets < 1:
        raise BadParameter("order", f"buckets must be 1 or more, not {buckets}")
    if len(partition_by) > 1:
        raise BadParameter(
            "order", f"partition_by takes one column with stamps, not {', '.join(partition_by)}"
        )
    wait = None if patience is None else parse_duration("order", "patience", patience)
    settings = Settings(protocol, tuple(processes), dict(parameters or {}), wait, buckets)
    group = partition_by[0] if partition_by else None
    rows = select_columns(df, stamp, group, time)
    schema = output_schema(df, group)
    kept = to_arrow_schema(StructType(df.schema.fields))
    opened = StampedSettings(settings, stamp, group, kept.serialize().to_pybytes())
    packed = keep_rows(rows, opened.open, buckets, wait is not None, assign_buckets)
    return unpack(packed, schema)


def select_columns(df: DataFrame, stamp: str, group: str | None, time: str | None) -> DataFrame:
    """The columns of packets, under names of our own, and all of the user's."""
    found = {field.name: field.dataType for field in df.schema}
    time = time or ("arrival" if "arrival" in found else None)
    wanted = ["receiver", "sender", "number", stamp, *(name for name in (group, time) if name is not None)]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise BadParameter(
            "order",
            f"the table needs the columns {', '.join(missing)}: a row is a packet; it has {', '.join(found)}",
        )
    refuse_column_names("order", df, {}, added=ADDED)
    columns = [
        F.col("receiver").cast("string").alias("__receiver"),
        F.col("sender").cast("string").alias("__sender"),
        F.col("number").cast("long").alias("__number"),
        # No stamp is one that nobody can read: refused as a row, not as a stream.
        F.coalesce(F.col(quote(stamp)).cast("binary"), F.lit(b"")).alias("__stamp"),
    ]
    if time is not None:
        columns.append(arrival_column(time, found[time]))
    if "label" in found:
        columns.append(F.col("label").cast("string").alias("__label"))
    if group is not None:
        columns.append(F.coalesce(F.col(quote(group)).cast("string"), F.lit("")).alias("__group"))
    elif "group" in found:
        # Null where there are no groups: such rows go where they would without the column.
        columns.append(F.col("group").cast("string").alias("__group"))
    return df.select(*columns, *(F.col(quote(name)) for name in df.columns))


def select_packets(df: DataFrame, group: str | None, time: str | None) -> DataFrame:
    """The columns of packets under the names that they have in `PACKETS`, and no others."""
    if "payload" not in df.columns:
        raise BadParameter(
            "order", f"the table needs the column payload: a row is a packet; it has {', '.join(df.columns)}"
        )
    rows = select_columns(df, "stamp", group, time)
    own = [F.col(name).alias(name.removeprefix("__")) for name in OWN if name in rows.columns]
    return rows.select(*own, F.coalesce(F.col("payload").cast("binary"), F.lit(b"")).alias("payload"))


def arrival_column(time: str, kind: Any) -> Any:
    column = F.col(quote(time))
    if isinstance(kind, TimestampType):
        return F.unix_micros(column).alias("__arrival")
    if isinstance(kind, ByteType | ShortType | IntegerType | LongType):
        return column.cast("long").alias("__arrival")
    raise BadParameter("order", f"time must be integers or timestamps, and {time} is {kind.simpleString()}")


def output_schema(df: DataFrame, group: str | None) -> StructType:
    """The columns that come out."""
    group = group or ("group" if "group" in df.columns else None)
    # Positions count by group and receiver: a sink must know.
    marked = [
        StructField(field.name, field.dataType, field.nullable, {**(field.metadata or {}), GROUP_MARK: True})
        if field.name == group
        else field
        for field in df.schema
    ]
    added = [
        StructField("position", LongType()),
        StructField("waits_for", from_arrow_type(GAVE_UP)),
        StructField("kind", StringType()),
        StructField("reason", StringType()),
    ]
    return StructType([*marked, *added])


def assign_buckets(rows: pa.Table, buckets: int) -> Any:
    """The bucket of each row: by its receiver, and its group where it has one."""
    found = hash_names(rows["__receiver"])
    if "__group" in rows.column_names:
        grouped = found * 31 + hash_names(rows["__group"])
        found = np.where(rows["__group"].is_null().to_numpy(), found, grouped)
    # The highest of the low bits are the best mixed ones.
    return (found ^ found >> 16) % buckets


def hash_names(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """A hash of each string. There are few different ones."""
    encoded = encode_names(column)
    values = encoded.dictionary.to_pylist()
    hashed = np.array([crc32((value or "").encode()) for value in values] + [0], np.int64)
    found: NDArray[np.int64] = hashed[encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]
    return found


class StampedSettings(Struct, frozen=True):
    """How packets are decided, and the rows that they are."""

    settings: Settings
    stamp: str
    group: str | None
    columns: bytes
    """The schema of the rows, as Arrow has it."""

    def open(self, state: bytes | None) -> StampedBucket:
        return StampedBucket(self) if state is None else StampedBucket.load(state, self)


class StampedBucket:
    """The packets of a bucket, decided by a `Bucket`, with the rows that they came as."""

    def __init__(self, opened: StampedSettings, packets: Bucket | None = None) -> None:
        self.opened = opened
        self.schema = pa.ipc.read_schema(pa.py_buffer(opened.columns))
        self.packets = packets or Bucket(opened.settings)
        self.rows: pa.Table | None = None
        """What waits, with `__row`, its number."""
        self.next_row = 0
        self.old: set[tuple[str, str, str, int]] = set()
        """Messages of a state of version 1, which have their payloads and no rows: group, receiver, sender, number."""

    @property
    def deadline(self) -> int | None:
        return self.packets.deadline

    def advance(self, rows: pa.Table | None, now: int) -> tuple[pa.Table | None, Status]:
        came = 0 if rows is None else len(rows)
        numbers = np.arange(self.next_row, self.next_row + came)
        self.next_row += came
        taken = PACKETS.empty_table()
        if rows is not None:
            taken = as_packets(rows, numbers)
            own = rows.select([*self.schema.names, "__number"])
            rows = own.append_column("__row", pa.array(numbers, pa.int64()))
        table = join_rows(self.rows, rows)
        out, status = self.packets.advance(taken, now)
        fresh, older = self._split(out)
        found = [self._rebuild(older)] if len(older) else []
        if table is None:
            return (found[0] if found else None), status
        at = pc.index_in(read_numbers(fresh["payload"].to_pylist()), table["__row"].combine_chunks())
        delivered = table.take(at)
        found.append(self._finish(delivered, fresh))
        left = np.ones(len(table), np.bool_)
        left[at.to_numpy()] = False
        held = left & self._find_held(table)
        again = left & ~held & table["__number"].is_valid().to_numpy()
        if again.any():
            found.append(self._finish(table.take(np.flatnonzero(again)), None))
        self.rows = table.take(np.flatnonzero(held)) if held.any() else None
        return pa.concat_tables(found, promote_options="permissive"), status

    def _find_held(self, table: pa.Table) -> NDArray[np.bool_]:
        """Which rows wait, by their numbers. A packet that came a second time does not."""
        found = np.zeros(len(table), np.bool_)
        compiled = self.packets.compiled
        if compiled is not None and len(compiled.held):
            held = compiled.held
            if self.old:
                names = self.opened.settings.processes
                lanes, sources, numbers = (held[name].to_pylist() for name in ("lane", "source", "number"))
                whose = [(group, names[me]) for group, me in compiled.keys]
                keys = [
                    (*whose[lane], names[s], n) for lane, s, n in zip(lanes, sources, numbers, strict=True)
                ]
                held = held.take([at for at, key in enumerate(keys) if key not in self.old])
            found |= pc.is_in(table["__row"], read_numbers(held["payload"].to_pylist())).to_numpy()
        payloads = list(self._list_payloads())
        if payloads:
            found |= pc.is_in(table["__row"], read_numbers(payloads)).to_numpy()
        return found

    def _list_payloads(self) -> Iterator[bytes]:
        """Those of the messages that machines hold, and that came as rows."""
        names = self.opened.settings.processes
        for receiver in self.packets.machines.values():
            me = names[receiver.machine.me]
            for sender, number in receiver.since:
                message = receiver.machine.held((sender, number)).message
                if message is not None and (receiver.group, me, names[sender], number) not in self.old:
                    yield message.payload

    def _split(self, out: pa.Table) -> tuple[pa.Table, pa.Table]:
        """What came as rows, and what a state of version 1 had held."""
        if not self.old:
            return out, out.slice(0, 0)
        keys = [out[name].to_pylist() for name in ("group", "receiver", "sender", "number")]
        older = np.array([key in self.old for key in zip(*keys, strict=True)], np.bool_)
        older &= out["position"].is_valid().to_numpy()
        self.old -= {key for key, old in zip(zip(*keys, strict=True), older.tolist(), strict=True) if old}
        return out.take(np.flatnonzero(~older)), out.take(np.flatnonzero(older))

    def _rebuild(self, out: pa.Table) -> pa.Table:
        """Rows of messages that a state of version 1 had held."""
        known = {name: out[name] for name in ("receiver", "sender", "number", "payload")}
        known[self.opened.group or "group"] = out["group"]
        columns = [
            known[field.name].cast(field.type) if field.name in known else pa.nulls(len(out), field.type)
            for field in self.schema
        ]
        return self._finish(pa.table(columns, self.schema), out)

    def _finish(self, rows: pa.Table, out: pa.Table | None) -> pa.Table:
        """Rows with what became of them; without `out`, those that came again."""
        rows, size = rows.select(self.schema.names), len(rows)
        if out is None:
            waits = fill_empty(pa.nulls(size, GAVE_UP))
            added = [pa.nulls(size, pa.int64()), waits, pa.repeat("repeated", size)]
            added.append(pa.nulls(size, pa.string()))
        else:
            on_time = pc.equal(out["kind"], "delivered")
            released = pc.and_(out["gave_up"].is_valid(), on_time)
            kind = pc.if_else(released, "released", out["kind"])
            added = [out["position"], fill_empty(out["gave_up"]), kind, out["reason"]]
        for name, column in zip(ADDED, added, strict=True):
            rows = rows.append_column(name, column)
        return rows

    # What is kept

    def dump(self) -> bytes:
        state = {
            "antecede stream": STATE_VERSION,
            "packets": self.packets.dump(),
            "rows": None if self.rows is None else to_ipc(self.rows),
            "next": self.next_row,
            "old": sorted(self.old),
        }
        return msgspec.msgpack.encode(state)

    @classmethod
    def load(cls, data: bytes, opened: StampedSettings) -> StampedBucket:
        try:
            state = msgspec.msgpack.decode(data)
            version = state["antecede stream"]
        except (msgspec.DecodeError, LookupError, TypeError):
            raise BadSnapshot("the checkpoint does not have the state of a stream") from None
        if version == 1:
            bucket = cls(opened, Bucket.load(data, opened.settings))
            names = opened.settings.processes
            bucket.old = {
                (group, receiver, names[sender], number)
                for group, receiver, (sender, number), *_ in list_waits(bucket.packets)
            }
            return bucket
        if version != STATE_VERSION:
            raise BadSnapshot.version("the stream", version, f"1 to {STATE_VERSION}")
        bucket = cls(opened, Bucket.load(state["packets"], opened.settings))
        bucket.rows = None if state["rows"] is None else from_ipc(state["rows"])
        bucket.next_row = state["next"]
        bucket.old = {(group, receiver, sender, number) for group, receiver, sender, number in state["old"]}
        return bucket


def as_packets(rows: pa.Table, numbers: NDArray[np.int64]) -> pa.Table:
    """Rows as a `Bucket` takes them: the payload is the number of the row."""
    names = [name for name in OWN if name in rows.column_names]
    taken = rows.select(names).rename_columns([name.removeprefix("__") for name in names])
    ends = np.arange(0, 8 * len(rows) + 1, 8, dtype=np.int32)
    octets = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(numbers.astype("<i8").tobytes())]
    return taken.append_column("payload", pa.Array.from_buffers(pa.binary(), len(rows), octets))


def fill_empty(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """What rows wait for: an empty list where it was null."""
    named = enumerate(column.to_pylist()) if column.null_count < len(column) else ()
    return make_lists(len(column), {at: one for at, one in named if one}, GAVE_UP)


def read_numbers(payloads: list[bytes]) -> pa.Array:
    """The numbers of rows, from their payloads."""
    return pa.array(np.frombuffer(b"".join(payloads), "<i8").astype(np.int64), pa.int64())
