"""A stateful operator on Spark: rows are packed by bucket, and each bucket is one value of state.

    rows ──▶ pack ──▶ shuffle by bucket ──▶ step: one call a bucket ──▶ unpack ──▶ rows
              Arrow bytes, few rows          state: one binary value     Arrow

Spark's state and its transfer into Python cost more than to order a row. So what crosses is few and large: a row of
the shuffle is thousands of rows as one Arrow stream, a state is one value for hundreds of partitions.
docs/decisions.md has what else was tried.

Spark keeps the state beside its offsets and repeats a micro-batch with the same rows and the same time, so a query that
is killed goes on as if it had not been. A worker keeps the buckets that it made, and uses one again if the state that
Spark hands it is the one that it gave: bytes are compared, by their digest.

Two ways for Spark to keep the state of a bucket, beside each other because each is better for its own:

    keep_rows       one value, written in each micro-batch: `vectors` and `stamps`, whose state is counts and what waits
    remember_rows   what waits as one value, the head, and what must be remembered as a list of pieces to which each
                    micro-batch adds, with a time to live (`transformWithState`): `causes`, and verification by causes.
                    A worker reads the list only if the head is not the one that it gave. A piece is msgpack: a list of
                    entries, each with its time first
"""

from __future__ import annotations

import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from antecede.errors import BadParameter, BadSnapshot
from antecede.spark.errors import errors_marked, mark_errors
from antecede.spark.frames import quote
from antecede.spark.stream.packets import from_ipc, to_ipc
from antecede.spark.stream.status import OBSERVED, Status

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "BUCKETS", "PROVIDER", "ROCKSDB", "BucketOfRows", "RememberingBucket", "RememberingSettings", "bucket_keys",
    "keep_rows", "make_packer", "name_partition", "read_state", "remember_rows", "unpack",
]  # fmt: skip

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
PIECES: Final = 256
"""Pieces of the list, before they are made one."""
PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

PACKED: Final = "bucket int, rows binary"
STEPPED: Final = "rows binary, status string"


Assign = Callable[[pa.Table, int], Any]
"""From rows and a number of buckets to the bucket of each row, as a number from 0."""


class BucketOfRows(Protocol):
    """What decides about the rows of a bucket, without Spark. Its state between two calls is bytes."""

    @property
    def deadline(self) -> int | None:
        """When patience with something here ends, in milliseconds."""

    def advance(self, rows: pa.Table | None, now: int) -> tuple[pa.Table | None, Status]:
        """Take the rows of a micro-batch; give those that come out, if any ever came."""

    def dump(self) -> bytes: ...


class RememberingBucket(BucketOfRows, Protocol):
    serial: int
    """Micro-batches of this bucket."""

    def dump_fresh(self, now: int) -> bytes | None:
        """The piece of the last micro-batch, if there is something to remember."""


class RememberingSettings(Protocol):
    @property
    def remember_ms(self) -> int: ...

    def open(self, state: bytes | None, pieces: Iterable[bytes]) -> RememberingBucket:
        """The bucket that has this head and these pieces, or a new one."""


def keep_rows(
    rows: DataFrame,
    open_bucket: Callable[[bytes | None], BucketOfRows],
    buckets: int,
    timed: bool,
    assign: Assign | None = None,
) -> DataFrame:
    """What comes out of the buckets of these rows, packed: `unpack` it.

    `open_bucket` makes a bucket from its state, or a new one; `timed` if it acts when time has passed and nothing came.
    `assign` gives the bucket of each row, as a number from 0; without it `__bucket` says it.
    """
    waits = GroupStateTimeout.ProcessingTimeTimeout if timed else GroupStateTimeout.NoTimeout
    step = mark_errors(make_step(open_bucket, uuid.uuid4().hex))
    packed = pack(rows, buckets, assign).groupBy("bucket")
    stepped = packed.applyInPandasWithState(step, STEPPED, "state binary", "append", waits)
    return stepped.observe(OBSERVED, F.collect_list("status").alias("status")).select("rows")


def remember_rows(owner: str, rows: DataFrame, settings: RememberingSettings, buckets: int) -> DataFrame:
    """What comes out of the buckets of these rows, packed. `rows` has the column `__bucket`."""
    provider = str(rows.sparkSession.conf.get(PROVIDER))
    if "RocksDB" not in provider:
        raise BadParameter(
            owner,
            f"the state store must be RocksDB, not {provider.rpartition('.')[2]}: set {PROVIDER} "
            f"to {ROCKSDB} in the session",
        )
    processor = Processor(settings, uuid.uuid4().hex)
    packed = pack(rows, buckets).groupBy("bucket")
    stepped = packed.transformWithStateInPandas(processor, STEPPED, "append", "ProcessingTime")
    return stepped.observe(OBSERVED, F.collect_list("status").alias("status")).select("rows")


def name_partition(names: Sequence[str], buckets: int) -> tuple[Column, Column]:
    """The bucket of a row, and its partition as text."""
    keys = [F.col(quote(name)).cast("string") for name in names]
    if not keys:
        return F.lit(0).cast("int").alias("__bucket"), F.lit("").alias("__partition")
    bucket = F.pmod(F.xxhash64(*keys), F.lit(buckets)).cast("int")
    partition = F.to_json(F.array(*keys), {"ignoreNullFields": "false"})
    return bucket.alias("__bucket"), partition.alias("__partition")


def bucket_keys(count: int) -> Sequence[int]:
    """The keys that Spark shuffles by, one a bucket.

    Any will do. Spark places a key by its hash, and these sixteen fall evenly on 2, 4, 8 or 16 partitions; states of
    version 1 have them too.

    >>> len(set(bucket_keys(16))), bucket_keys(4)
    (16, range(0, 4))
    """
    return SIXTEEN if count == 16 else range(count)


# Pack


def pack(rows: DataFrame, buckets: int, assign: Assign | None = None) -> DataFrame:
    return rows.mapInArrow(mark_errors(make_packer(bucket_keys(buckets), assign or read_bucket)), PACKED)


def read_bucket(rows: pa.Table, buckets: int) -> Any:
    """The bucket of each row, which Spark has found."""
    return rows["__bucket"].to_numpy()


def make_packer(keys: Sequence[int], assign: Assign = read_bucket) -> Any:
    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept: list[pa.RecordBatch] = []
        rows = octets = 0
        # Every bucket is called in every micro-batch, so that each has a state: with another number of buckets, which
        # would put partitions elsewhere, one of them is found and refused.
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


def pack_rows(rows: pa.Table, keys: Sequence[int], assign: Assign = read_bucket) -> pa.RecordBatch:
    """A row for each bucket: its rows as an Arrow stream."""
    bucket = assign(rows, len(keys))
    order = np.argsort(bucket, kind="stable")
    ends = np.searchsorted(bucket[order], np.arange(len(keys) + 1))
    arranged = rows.take(order).combine_chunks()
    used = [at for at in range(len(keys)) if ends[at] < ends[at + 1]]
    blobs = [to_ipc(arranged.slice(ends[at], ends[at + 1] - ends[at])) for at in used]
    columns = [pa.array([keys[at] for at in used], pa.int32()), pa.array(blobs, pa.binary())]
    return pa.record_batch(columns, ["bucket", "rows"])


# Step

_buckets: OrderedDict[tuple[str, int], tuple[bytes, Any]] = OrderedDict()
"""(query, bucket) -> the digest of the state that it gave, and the bucket itself."""


def make_step(open_bucket: Callable[[bytes | None], BucketOfRows], token: str) -> Any:
    def step(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        before = bytes(state.get[0]) if state.exists else None
        now = state.getCurrentProcessingTimeMs()
        after, bucket, out = advance_bucket((token, key[0]), before, open_bucket, frames, now)
        state.update((after,))
        if bucket.deadline is not None:
            # At least a little later: Spark takes no time that is past.
            state.setTimeoutDuration(max(1, bucket.deadline - now))
        yield out

    return step


class Processor(StatefulProcessor):
    """Keeps one bucket for each key."""

    def __init__(self, settings: RememberingSettings, token: str) -> None:
        self.settings, self.token = settings, token

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.head = handle.getValueState("head", "state binary")
        self.pieces = handle.getListState("emitted", "piece binary", self.settings.remember_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        yield self.step(int(key[0]), rows, timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield self.step(int(key[0]), (), timerValues.getCurrentProcessingTimeInMs())

    @errors_marked()
    def step(self, key: int, frames: Iterable[Any], now: int) -> pd.DataFrame:
        """One micro-batch of a bucket."""
        kept = self.head.get()
        before = None if kept is None else bytes(kept[0])
        after, bucket, out = advance_bucket((self.token, key), before, self.open, frames, now)
        self.head.update((after,))
        self.add(bucket, now)
        # Each of these asks Java. A timer that is left when nothing waits any more comes to nothing.
        if bucket.deadline is not None:
            for timer in self.handle.listTimers():
                self.handle.deleteTimer(timer)
            self.handle.registerTimer(max(now + 1, bucket.deadline))
        return out

    def open(self, state: bytes | None) -> RememberingBucket:
        pieces = () if state is None else (bytes(piece[0]) for piece in self.pieces.get())
        return self.settings.open(state, pieces)

    def add(self, bucket: RememberingBucket, now: int) -> None:
        """Add what is new to the list that Spark keeps. Many small pieces become one."""
        piece = bucket.dump_fresh(now)
        if piece is None:
            return
        self.pieces.appendValue((piece,))
        if bucket.serial % PIECES == 0:
            every = [one for found in self.pieces.get() for one in msgspec.msgpack.decode(bytes(found[0]))]
            left = [one for one in every if one[0] + self.settings.remember_ms > now]
            self.pieces.put([(msgspec.msgpack.encode(left),)])

    def close(self) -> None:
        pass


Opened = TypeVar("Opened", bound=BucketOfRows)


def advance_bucket(
    name: tuple[str, int],
    before: bytes | None,
    open_bucket: Callable[[bytes | None], Opened],
    frames: Iterable[pd.DataFrame],
    now: int,
) -> tuple[bytes, Opened, pd.DataFrame]:
    """One micro-batch of the bucket with this state: its state afterwards, the bucket, and what comes out."""
    import pandas as pd

    blobs = [blob for frame in frames for blob in frame["rows"] if blob is not None]
    rows = pa.concat_tables([from_ipc(blob) for blob in blobs]) if blobs else None
    bucket = take_bucket(name, before, open_bucket)
    out, status = bucket.advance(rows, now)
    after = bucket.dump()
    keep_bucket(name, after, bucket)
    pieces = split_output(out)
    words = [msgspec.json.encode(status).decode(), *[None] * (len(pieces) - 1)]
    return after, bucket, pd.DataFrame({"rows": pieces, "status": words})


def take_bucket(
    name: tuple[str, int], state: bytes | None, open_bucket: Callable[[bytes | None], Any]
) -> Any:
    """The bucket that has this state: the one that is kept, or one made from the state."""
    # Taken out: if this step fails half-way, what is kept is no longer what it was.
    kept = _buckets.pop(name, None)
    if state is not None and kept is not None and kept[0] == digest(state):
        return kept[1]
    return open_bucket(state)


def keep_bucket(name: tuple[str, int], state: bytes, bucket: Any) -> None:
    _buckets[name] = digest(state), bucket
    while len(_buckets) > KEPT:
        _buckets.popitem(last=False)


def split_output(out: pa.Table | None) -> list[bytes | None]:
    """The rows that come out, in pieces that Spark can take; one piece at least."""
    if out is None or not len(out):
        return [None]
    size = min(BATCH, max(1, OCTETS * len(out) // max(1, out.nbytes)))
    return [to_ipc(out.slice(at, size)) for at in range(0, len(out), size)]


def digest(state: bytes) -> bytes:
    return hashlib.blake2b(state, digest_size=16).digest()


def read_state(data: bytes, kind: str, version: int, buckets: int) -> dict[str, Any]:
    """The state of a bucket; one of another version, or of another number of buckets, is a `BadSnapshot`."""
    state: dict[str, Any] = msgspec.msgpack.decode(data)
    if state.get(f"antecede {kind}") != version:
        raise BadSnapshot.version(f"the stream by {kind}", state.get(f"antecede {kind}"), version)
    if state["buckets"] != buckets:
        raise BadSnapshot.changed("buckets", state["buckets"], buckets)
    return state


# Unpack


def unpack(packed: DataFrame, schema: StructType) -> DataFrame:
    """The rows that came out of the buckets."""
    return packed.mapInArrow(mark_errors(make_unpacker(schema.names)), schema)


def make_unpacker(names: Sequence[str]) -> Any:
    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for blob in batch.column(0):
                if blob.is_valid:
                    yield from from_ipc(blob.as_buffer()).select(names).to_batches()

    return unpack
