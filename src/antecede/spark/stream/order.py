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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
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
from antecede.spark.schema import GROUP_MARK
from antecede.spark.stream.bucket import Bucket
from antecede.spark.stream.packets import GROUPED, PACKETS, encode_names, from_ipc, to_ipc
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.status import OBSERVED

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BUCKETS", "select_packet_columns", "deliver_stream", "bucket_keys", "output_schema"]

BUCKETS: Final = 16
SIXTEEN: Final = (12, 16, 5, 1, 37, 20, 2, 35, 13, 6, 49, 7, 25, 15, 4, 0)
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
) -> DataFrame:
    """Packets in the order of arrival -> messages in causal order, each with its position at its receiver.

    `df` is a stream of rows as `antecede.spark.stream.packets` has them. `processes` are the names of all that take
    part, in the order that their stamps count in; `parameters` are those of the protocol. A message waits for its
    causes for ever or, if `patience` is given, for so many seconds: then they are given up, and the row says which.
    `group` is a column that tells several systems of the same processes apart (default: `group`, if there is one),
    `arrival` the one that rows are taken by (default: `arrival`, if there is one). `buckets` is how
    many states there are: it stays the same as long as a checkpoint is used.

    The order of rows of the result means nothing, as always on Spark: `position` is the order.
    """
    if buckets < 1:
        raise BadParameter("stream", "buckets", buckets, "1 or more")
    settings = Settings.of(protocol, processes, parameters, patience, buckets)
    rows = select_packet_columns(df, group, arrival)
    group = group or ("group" if "group" in rows.columns else None)
    token = uuid.uuid4().hex
    packed = rows.mapInArrow(mark_errors(make_packer(bucket_keys(buckets))), PACKED)
    waits = GroupStateTimeout.NoTimeout if patience is None else GroupStateTimeout.ProcessingTimeTimeout
    stepped = packed.groupBy("bucket").applyInPandasWithState(
        mark_errors(make_step(settings, token)), STEPPED, "state binary", "append", waits
    )
    observed = stepped.observe(OBSERVED, F.collect_list("status").alias("status"))
    return observed.select("rows").mapInArrow(mark_errors(make_unpacker(group)), output_schema(group))


def select_packet_columns(df: DataFrame, group: str | None, arrival: str | None) -> DataFrame:
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
        columns.append(arrival_column(arrival, found[arrival]))
    if "label" in found:
        columns.append(F.col("label").cast("string"))
    if group is not None:
        columns.append(F.coalesce(F.col(group).cast("string"), F.lit("")).alias("group"))
    elif "group" in found:
        # Null where there are no groups: such rows go where they would without the column.
        columns.append(F.col("group").cast("string"))
    return df.select(*columns)


def arrival_column(arrival: str, kind: Any) -> Any:
    if isinstance(kind, TimestampType):
        return F.unix_micros(F.col(arrival)).alias("arrival")
    if isinstance(kind, ByteType | ShortType | IntegerType | LongType):
        return F.col(arrival).cast("long").alias("arrival")
    raise BadParameter("stream", "arrival", f"{arrival} of type {kind.simpleString()}", "integers or times")


def bucket_keys(count: int) -> Sequence[int]:
    """The keys that Spark shuffles by, one a bucket.

    Any will do. Spark places a key by its hash, and these sixteen fall evenly on 2, 4, 8 or 16 partitions; states of
    version 1 have them too.

    >>> len(set(bucket_keys(16))), bucket_keys(4)
    (16, range(0, 4))
    """
    return SIXTEEN if count == 16 else range(count)


# Pack


def make_packer(keys: Sequence[int], assign: Callable[[pa.Table, int], Any] | None = None) -> Any:
    """`assign` gives the bucket of each row, as a number from 0."""
    assign = assign or assign_buckets

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept: list[pa.RecordBatch] = []
        rows = octets = 0
        # Every bucket is called in every micro-batch, so that each has a state: with another number of buckets, which
        # would put receivers elsewhere, one of them is found and refused.
        yield empty_rows(keys)
        for batch in batches:
            kept.append(batch)
            rows += batch.num_rows
            octets += batch.nbytes
            if rows >= CHUNK or octets >= OCTETS:
                yield pack_rows(pa.Table.from_batches(kept), keys, assign)
                kept, rows, octets = [], 0, 0
        if rows:
            yield pack_rows(pa.Table.from_batches(kept), keys, assign)

    return pack


def empty_rows(keys: Sequence[int]) -> pa.RecordBatch:
    """A row for each bucket, without rows."""
    columns = [pa.array(keys, pa.int32()), pa.nulls(len(keys), pa.binary())]
    return pa.record_batch(columns, ["bucket", "rows"])


def pack_rows(
    rows: pa.Table, keys: Sequence[int], assign: Callable[[pa.Table, int], Any] | None = None
) -> pa.RecordBatch:
    """A row for each bucket: its rows as an Arrow stream."""
    bucket = (assign or assign_buckets)(rows, len(keys))
    order = np.argsort(bucket, kind="stable")
    ends = np.searchsorted(bucket[order], np.arange(len(keys) + 1))
    arranged = rows.take(order).combine_chunks()
    used = [at for at in range(len(keys)) if ends[at] < ends[at + 1]]
    blobs = [to_ipc(arranged.slice(ends[at], ends[at + 1] - ends[at])) for at in used]
    columns = [pa.array([keys[at] for at in used], pa.int32()), pa.array(blobs, pa.binary())]
    return pa.record_batch(columns, ["bucket", "rows"])


def assign_buckets(rows: pa.Table, buckets: int) -> Any:
    """The bucket of each row: by its receiver, and its group where it has one."""
    found = hash_names(rows["receiver"])
    if "group" in rows.column_names:
        grouped = found * 31 + hash_names(rows["group"])
        found = np.where(rows["group"].is_null().to_numpy(), found, grouped)
    # The highest of the low bits are the best mixed ones.
    return (found ^ found >> 16) % buckets


def hash_names(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """A hash of each string. There are few different ones."""
    encoded = encode_names(column)
    values = encoded.dictionary.to_pylist()
    hashed = np.array([crc32((value or "").encode()) for value in values] + [0], np.int64)
    found: NDArray[np.int64] = hashed[encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]
    return found


# Step

_buckets: OrderedDict[tuple[str, int], tuple[bytes, Bucket]] = OrderedDict()
"""(query, bucket) -> the digest of the state that it gave, and the bucket itself."""


def make_step(settings: Settings, token: str) -> Any:
    def step(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        import pandas as pd

        blobs = [blob for frame in frames for blob in frame["rows"] if blob is not None]
        tables = [from_ipc(blob) for blob in blobs]
        rows = pa.concat_tables(tables) if tables else PACKETS.empty_table()
        before = bytes(state.get[0]) if state.exists else None
        bucket = take_bucket((token, key[0]), before, settings)
        now = state.getCurrentProcessingTimeMs()
        out, status = bucket.advance(rows, now)
        after = bucket.dump()
        state.update((after,))
        if bucket.deadline is not None:
            # At least a little later: Spark takes no time that is past.
            state.setTimeoutDuration(max(1, bucket.deadline - now))
        keep_bucket((token, key[0]), after, bucket)
        words = msgspec.json.encode(status).decode()
        size = min(BATCH, max(1, OCTETS * len(out) // max(1, out.nbytes)))
        pieces = [to_ipc(out.slice(at, size)) for at in range(0, len(out), size)] or [to_ipc(out)]
        yield pd.DataFrame({"rows": pieces, "status": [words] + [None] * (len(pieces) - 1)})

    return step


def take_bucket(name: tuple[str, int], state: bytes | None, settings: Settings) -> Bucket:
    """The bucket that has this state: the one that is kept, or one made from the bytes."""
    # Taken out: if this step fails half-way, what is kept is no longer what it was.
    kept = _buckets.pop(name, None)
    if state is None:
        return Bucket(settings)
    if kept is not None and kept[0] == digest(state):
        return kept[1]
    return Bucket.load(state, settings)


def keep_bucket(name: tuple[str, int], state: bytes, bucket: Bucket) -> None:
    _buckets[name] = digest(state), bucket
    while len(_buckets) > KEPT:
        _buckets.popitem(last=False)


def digest(state: bytes) -> bytes:
    return hashlib.blake2b(state, digest_size=16).digest()


# Unpack


def output_schema(group: str | None) -> StructType:
    """The columns that come out."""
    fields = [field for field in GROUPED if field.name != "group" or group is not None]
    schema = from_arrow_schema(pa.schema(fields))
    if group is not None:
        # Positions count by group and receiver: a sink must know.
        schema.fields[0] = StructField(group, StringType(), metadata={GROUP_MARK: True})
        return StructType(schema.fields)
    return schema


def make_unpacker(group: str | None) -> Any:
    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for blob in batch.column(0):
                table = from_ipc(blob.as_buffer())
                if group is None:
                    table = table.drop_columns(["group"])
                else:
                    table = table.rename_columns([group, *table.column_names[1:]])
                yield from table.to_batches()

    return unpack
