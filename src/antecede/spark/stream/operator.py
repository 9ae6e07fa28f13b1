"""The stream on Spark: rows are packed by buckets of receivers, and each bucket is one value of state.

    rows ──▶ pack ──▶ shuffle by bucket ──▶ step: one call a bucket ──▶ unpack ──▶ rows
              Arrow bytes, few rows          state: one binary value     Arrow

Spark's state and its transfer into Python cost more than to order a message. So what crosses is few and large: a row of
the shuffle is thousands of packets as one Arrow stream, a state is one value for hundreds of receivers.
docs/decisions.md has what else was tried.

Spark keeps the state beside its offsets and repeats a micro-batch with the same rows and the same time, so a query that
is killed goes on as if it had not been. A worker keeps the buckets that it made, and uses one again if the state that
Spark hands it is the one that it gave: bytes are compared, by their digest.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
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

from antecede.errors import BadParameter
from antecede.spark.errors import mark_errors
from antecede.spark.stream.bucket import GROUPED, Bucket, ipc
from antecede.spark.stream.packets import GROUP_MARK, PACKETS
from antecede.spark.stream.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BUCKETS", "OBSERVED", "chosen", "deliver_stream", "placed", "unpacked"]

BUCKETS: Final = 16
OBSERVED: Final = "antecede"
"""The name of the metrics that a query reports: `antecede.spark.stream.watch` reads them."""
CHUNK: Final = 1 << 18
"""Rows that are packed together."""
BATCH: Final = 1 << 16
"""Rows that are handed back to Spark at once."""
OCTETS: Final = 64 << 20
"""Bytes that either may have, about: a value of Spark or of Arrow has less than 2 GB."""
KEPT: Final = 64
"""Buckets that a worker keeps."""

PACKED: Final = "bucket int, rows binary"
STEPPED: Final = "rows binary, status string"


def deliver_stream(
    df: DataFrame,
    protocol: str,
    processes: Sequence[str],
    *,
    parameters: Mapping[str, Any] | None = None,
    patience: float | None = None,
    group: str | None = None,
    arrival: str | None = None,
    buckets: int = BUCKETS,
    native: bool = True,
) -> DataFrame:
    """Packets in the order of arrival -> messages in causal order, each with its position at its receiver.

    `df` is a stream of rows as `antecede.spark.stream.packets` has them. `processes` are the names of all that take
    part, in the order that their stamps count in; `parameters` are those of the protocol. A message waits for its
    causes for ever or, if `patience` is given, for so many seconds: then they are given up, and the row says which.
    `group` is a column that tells several systems of the same processes apart (default: `group`, if there is one),
    `arrival` the one that rows are taken by (default: `arrival`, if there is one). `buckets`, a power of two, is how
    many states there are: it stays the same as long as a checkpoint is used. `native=False` drives machines where a
    kernel would do.

    The order of rows of the result means nothing, as always on Spark: `position` is the order.
    """
    if buckets < 1 or buckets & (buckets - 1):
        raise BadParameter("stream", "buckets", buckets, "a power of two")
    settings = Settings.of(protocol, processes, parameters, patience, buckets)
    group = group or ("group" if "group" in df.columns else None)
    rows = chosen(df, group, arrival)
    token = uuid.uuid4().hex
    packed = rows.mapInArrow(mark_errors(packing(placed(buckets))), PACKED)
    waits = GroupStateTimeout.NoTimeout if patience is None else GroupStateTimeout.ProcessingTimeTimeout
    stepped = packed.groupBy("bucket").applyInPandasWithState(
        mark_errors(stepping(settings, token, native)), STEPPED, "state binary", "append", waits
    )
    told = stepped.observe(OBSERVED, F.collect_list("status").alias("status"))
    return told.select("rows").mapInArrow(mark_errors(unpacking(group)), unpacked(group))


def chosen(df: DataFrame, group: str | None, arrival: str | None) -> DataFrame:
    """The columns of packets, under their own names."""
    found = {field.name: field.dataType for field in df.schema}
    arrival = arrival or ("arrival" if "arrival" in found else None)
    wanted = [name for name in PACKETS.names if name != "arrival"]
    wanted += [name for name in (group, arrival) if name is not None]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise BadParameter(
            "stream", "columns", ", ".join(found), f"also {', '.join(missing)}: a row is a packet"
        )
    columns = [
        F.col("receiver").cast("string"),
        F.col("sender").cast("string"),
        F.col("number").cast("long"),
        # No stamp is one that nobody can read: refused as a row, not as a stream.
        *(F.coalesce(F.col(name).cast("binary"), F.lit(b"")).alias(name) for name in ("stamp", "payload")),
    ]
    if arrival is not None:
        columns.append(order_of(arrival, found[arrival]))
    if "label" in found:
        columns.append(F.col("label").cast("string"))
    if group is not None:
        columns.append(F.coalesce(F.col(group).cast("string"), F.lit("")).alias("group"))
    return df.select(*columns)


def order_of(arrival: str, kind: Any) -> Any:
    if isinstance(kind, TimestampType):
        return F.unix_micros(F.col(arrival)).alias("arrival")
    if isinstance(kind, ByteType | ShortType | IntegerType | LongType):
        return F.col(arrival).cast("long").alias("arrival")
    raise BadParameter("stream", "arrival", f"{arrival} of type {kind.simpleString()}", "integers or times")


def placed(buckets: int) -> list[int]:
    """A key for each bucket, such that Spark spreads them evenly over any number of partitions that divides theirs.

    >>> [murmur(key) % 4 for key in placed(4)]
    [0, 1, 2, 3]
    """
    keys: dict[int, int] = {}
    key = 0
    while len(keys) < buckets:
        keys.setdefault(murmur(key) % buckets, key)
        key += 1
    return [keys[place] for place in range(buckets)]


def murmur(value: int, seed: int = 42) -> int:
    """Spark's `hash` of an integer, by which it places keys.

    >>> murmur(0), murmur(1)
    (933211791, -559580957)
    """
    mask = 0xFFFFFFFF

    def turned(x: int, by: int) -> int:
        return (x << by | x >> (32 - by)) & mask

    mixed = turned(value * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    state = (turned(seed ^ mixed, 13) * 5 + 0xE6546B64) & mask
    state ^= 4
    state = (state ^ state >> 16) * 0x85EBCA6B & mask
    state = (state ^ state >> 13) * 0xC2B2AE35 & mask
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


# Pack


def packing(keys: list[int]) -> Any:
    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept: list[pa.RecordBatch] = []
        rows = octets = 0
        # Every bucket is called in every micro-batch, so that each has a state: with another number of buckets, which
        # would put receivers elsewhere, one of them is found and refused.
        yield ticks(keys)
        for batch in batches:
            kept.append(batch)
            rows += batch.num_rows
            octets += batch.nbytes
            if rows >= CHUNK or octets >= OCTETS:
                yield packed(pa.Table.from_batches(kept), keys)
                kept, rows, octets = [], 0, 0
        if rows:
            yield packed(pa.Table.from_batches(kept), keys)

    return pack


def ticks(keys: list[int]) -> pa.RecordBatch:
    """A row for each bucket, without rows."""
    columns = [pa.array(keys, pa.int32()), pa.nulls(len(keys), pa.binary())]
    return pa.record_batch(columns, ["bucket", "rows"])


def packed(rows: pa.Table, keys: list[int]) -> pa.RecordBatch:
    """A row for each bucket: its rows as an Arrow stream."""
    bucket = buckets_of(rows, len(keys))
    order = np.argsort(bucket, kind="stable")
    ends = np.searchsorted(bucket[order], np.arange(len(keys) + 1))
    arranged = rows.take(order).combine_chunks()
    used = [at for at in range(len(keys)) if ends[at] < ends[at + 1]]
    blobs = [ipc(arranged.slice(ends[at], ends[at + 1] - ends[at])) for at in used]
    columns = [pa.array([keys[at] for at in used], pa.int32()), pa.array(blobs, pa.binary())]
    return pa.record_batch(columns, ["bucket", "rows"])


def buckets_of(rows: pa.Table, buckets: int) -> Any:
    """The bucket of each row: by its receiver, and its group."""
    found = np.zeros(len(rows), np.int64)
    for name in ("receiver", "group"):
        if name in rows.column_names:
            encoded = rows[name].combine_chunks().dictionary_encode()
            if isinstance(encoded, pa.ChunkedArray):
                encoded = encoded.chunk(0)
            values = encoded.dictionary.to_pylist()
            hashed = np.array([crc32((value or "").encode()) for value in values] + [0], np.int64)
            found = found * 31 + hashed[encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]
    # The highest of the low bits are the best mixed ones.
    return (found ^ found >> 16) % buckets


# Step

_buckets: OrderedDict[tuple[str, int], tuple[bytes, Bucket]] = OrderedDict()
"""(query, bucket) -> the digest of the state that it gave, and the bucket itself."""


def stepping(settings: Settings, token: str, native: bool) -> Any:
    def step(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        import pandas as pd

        blobs = [blob for frame in frames for blob in frame["rows"] if blob is not None]
        tables = [pa.ipc.open_stream(blob).read_all() for blob in blobs]
        rows = pa.concat_tables(tables) if tables else PACKETS.empty_table()
        before = bytes(state.get[0]) if state.exists else None
        bucket = resumed((token, key[0]), before, settings, native)
        now = state.getCurrentProcessingTimeMs()
        out, status = bucket.advance(rows, now)
        after = bucket.dump()
        state.update((after,))
        if bucket.deadline is not None:
            # At least a little later: Spark takes no time that is past.
            state.setTimeoutDuration(max(1, bucket.deadline - now))
        keep((token, key[0]), after, bucket)
        told = msgspec.json.encode(status).decode()
        size = min(BATCH, max(1, OCTETS * len(out) // max(1, out.nbytes)))
        pieces = [ipc(out.slice(at, size)) for at in range(0, len(out), size)] or [ipc(out)]
        yield pd.DataFrame({"rows": pieces, "status": [told] + [None] * (len(pieces) - 1)})

    return step


def resumed(name: tuple[str, int], state: bytes | None, settings: Settings, native: bool) -> Bucket:
    """The bucket that has this state: the one that is kept, or one made from the bytes."""
    # Taken out: if this step fails half-way, what is kept is no longer what it was.
    kept = _buckets.pop(name, None)
    if state is None:
        return Bucket(settings, native)
    if kept is not None and kept[0] == digest(state):
        return kept[1]
    return Bucket.load(state, settings, native)


def keep(name: tuple[str, int], state: bytes, bucket: Bucket) -> None:
    _buckets[name] = digest(state), bucket
    while len(_buckets) > KEPT:
        _buckets.popitem(last=False)


def digest(state: bytes) -> bytes:
    return hashlib.blake2b(state, digest_size=16).digest()


# Unpack


def unpacked(group: str | None) -> StructType:
    """The columns that come out."""
    fields = [field for field in GROUPED if field.name != "group" or group is not None]
    schema = from_arrow_schema(pa.schema(fields))
    if group is not None:
        # Positions count by group and receiver: a sink must know.
        schema.fields[0] = StructField(group, StringType(), metadata={GROUP_MARK: True})
        return StructType(schema.fields)
    return schema


def unpacking(group: str | None) -> Any:
    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for blob in batch.column(0):
                table = pa.ipc.open_stream(blob.as_buffer()).read_all()
                if group is None:
                    table = table.drop_columns(["group"])
                else:
                    table = table.rename_columns([group, *table.column_names[1:]])
                yield from table.to_batches()

    return unpack
