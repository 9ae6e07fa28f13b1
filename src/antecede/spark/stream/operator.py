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

    by itself       one value, written in each micro-batch: `vectors` and `stamps`, whose state is counts and what waits
    with memory     what waits as one value, the head, and what must be remembered as pieces by number, one more for
                    each micro-batch, with a time to live (`transformWithState`): `causes`, and verification by causes.
                    A piece is msgpack: a list of entries, each with its time first. Spark hands tasks to its workers in
                    turn, so most often a worker has a bucket as it was some micro-batches ago. Then it reads the pieces
                    since, and not all: `chain`, a digest of all pieces in order, says whether they follow what it has
"""

from __future__ import annotations

import gc
import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, FractionalType, StringType, StructType, TimestampType

from antecede.errors import BadParameter
from antecede.spark.errors import errors_marked, mark_errors
from antecede.spark.frames import quote
from antecede.spark.stream.bucket import (
    Bucket,
    BucketSettings,
    Trail,
    encode_columns,
    fit_rows,
    from_ipc,
    to_ipc,
)
from antecede.spark.stream.kernel import Numbers
from antecede.spark.stream.status import OBSERVED

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "BUCKETS", "PROVIDER", "ROCKSDB", "ByPartition", "Processor", "bucket_keys", "make_packer", "run_buckets",
    "spread",
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


Assign = Callable[[pa.Table, int], tuple[pa.Table, Any]]
"""From rows and a number of buckets to the rows that a bucket gets, and the bucket of each, as a number from 0."""


def run_buckets(
    rows: DataFrame,
    settings: BucketSettings,
    assign: Assign,
    schema: StructType,
    *,
    owner: str = "order",
    remembers: bool = False,
) -> DataFrame:
    """What comes out of the buckets of these rows, with this schema; `remembers` if they have pieces."""
    pack = make_packer(bucket_keys(settings.buckets), assign)
    unpack = make_unpacker(to_arrow_schema(schema, timezone="UTC"))
    packed = rows.mapInArrow(mark_errors(pack), PACKED).groupBy("bucket")
    token = uuid.uuid4().hex
    if not remembers:
        untimed = settings.patience_ms is None
        waits = GroupStateTimeout.NoTimeout if untimed else GroupStateTimeout.ProcessingTimeTimeout
        step = mark_errors(make_step(settings, token))
        stepped = packed.applyInPandasWithState(step, STEPPED, "state binary", "append", waits)
    else:
        provider = str(rows.sparkSession.conf.get(PROVIDER))
        if "RocksDB" not in provider:
            found = provider.rpartition(".")[2]
            advice = f"set {PROVIDER} to {ROCKSDB} in the session"
            raise BadParameter(owner, f"the state store must be RocksDB, not {found}: {advice}")
        processor = Processor(settings, token)
        stepped = packed.transformWithStateInPandas(processor, STEPPED, "append", "ProcessingTime")
    told = stepped.observe(OBSERVED, F.collect_list("status").alias("status"))
    return told.select("rows").mapInArrow(mark_errors(unpack), schema)


class ByPartition(Struct, frozen=True):
    """Assigns rows to buckets by columns of text, `keys`, and adds their names as `__partition`.

    >>> rows = pa.table({"shop": ["eu", "us", "eu"], "__key 1": ["7", None, "7"]})
    >>> ByPartition(("shop", "__key 1"))(rows, 4)[0]["__partition"].to_pylist()
    ['["eu","7"]', '["us",null]', '["eu","7"]']
    """

    keys: tuple[str, ...]

    @classmethod
    def of(
        cls, df: DataFrame, names: Sequence[str], rename: Callable[[str], str] = str
    ) -> tuple[ByPartition, list[Column]]:
        """By these columns, and those that are to be added to the rows for it: what is no text becomes text.

        In the rows, columns have the names that `rename` gives them.
        """
        others = [name for name in names if not isinstance(df.schema[name].dataType, StringType)]
        texts = {name: f"__key {place}" for place, name in enumerate(others)}
        added = [name_values(df, name).alias(key) for name, key in texts.items()]
        return cls(tuple(texts.get(name) or rename(name) for name in names)), added

    def __call__(self, rows: pa.Table, buckets: int) -> tuple[pa.Table, Any]:
        values, code = encode_columns([rows[key] for key in self.keys])
        names = [msgspec.json.encode(one).decode() for one in values] if self.keys else [""]
        code = code if self.keys else np.zeros(len(rows), np.int64)
        rows = rows.drop_columns([key for key in self.keys if key.startswith("__key ")])
        named = rows.append_column("__partition", pa.array(names, pa.string()).take(code))
        return named, spread([crc32(name.encode()) for name in names], buckets)[code]


def name_values(df: DataFrame, name: str) -> Column:
    """The values of a column as texts, different ones for different values, in whichever time zone."""
    column, kind = F.col(quote(name)), df.schema[name].dataType
    if isinstance(kind, TimestampType):
        column = F.unix_micros(column)
    elif isinstance(kind, BinaryType):
        column = F.hex(column)
    elif isinstance(kind, FractionalType):
        # 0.0 and -0.0 are one value.
        column = F.when(column == 0, F.lit(0)).otherwise(column)
    return column.cast("string")


def spread(hashed: Sequence[int], buckets: int) -> Numbers:
    """From hashes to buckets. The highest of the low bits are the best mixed ones."""
    numbers = np.array(hashed, np.int64)
    found: Numbers = (numbers ^ numbers >> 16) % buckets
    return found


def bucket_keys(count: int) -> Sequence[int]:
    """The keys that Spark shuffles by, one a bucket.

    Any will do. Spark places a key by its hash, and these sixteen fall evenly on 2, 4, 8 or 16 partitions; states of
    version 1 have them too.

    >>> len(set(bucket_keys(16))), bucket_keys(4)
    (16, range(0, 4))
    """
    return SIXTEEN if count == 16 else range(count)


# Pack


def make_packer(keys: Sequence[int], assign: Assign) -> Any:
    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Every bucket is called in every micro-batch, so that each has a state: with another number of buckets, which
        # would put partitions elsewhere, one of them is found and refused.
        yield empty_rows(keys)
        kept: list[pa.RecordBatch] = []
        for batch in batches:
            kept.append(batch)
            if sum(one.num_rows for one in kept) >= CHUNK or sum(one.nbytes for one in kept) >= OCTETS:
                yield pack_rows(pa.Table.from_batches(kept), keys, assign)
                kept = []
        if kept:
            yield pack_rows(pa.Table.from_batches(kept), keys, assign)

    return pack


def empty_rows(keys: Sequence[int]) -> pa.RecordBatch:
    """A row for each bucket, without rows."""
    columns = [pa.array(keys, pa.int32()), pa.nulls(len(keys), pa.binary())]
    return pa.record_batch(columns, ["bucket", "rows"])


def pack_rows(rows: pa.Table, keys: Sequence[int], assign: Assign) -> pa.RecordBatch:
    """A row for each bucket: its rows as an Arrow stream."""
    rows, bucket = assign(rows, len(keys))
    order = np.argsort(bucket, kind="stable")
    ends = np.searchsorted(bucket[order], np.arange(len(keys) + 1))
    arranged = rows.take(order).combine_chunks()
    used = [at for at in range(len(keys)) if ends[at] < ends[at + 1]]
    blobs = [to_ipc(arranged.slice(ends[at], ends[at + 1] - ends[at])) for at in used]
    columns = [pa.array([keys[at] for at in used], pa.int32()), pa.array(blobs, pa.binary())]
    return pa.record_batch(columns, ["bucket", "rows"])


# Step

_buckets: OrderedDict[tuple[str, int], tuple[bytes, Bucket]] = OrderedDict()
"""(query, bucket) -> the digest of the state that it gave, and the bucket itself."""


def make_step(settings: BucketSettings, token: str) -> Any:
    def step(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        before = bytes(state.get[0]) if state.exists else None
        now = state.getCurrentProcessingTimeMs()
        with defer_gc():
            bucket = take_bucket((token, key[0]), before, lambda _: settings.open(before))
            after, out = advance_bucket(bucket, frames, now)
        keep_bucket((token, key[0]), after, bucket)
        state.update((after,))
        if bucket.deadline is not None:
            # At least a little later: Spark takes no time that is past.
            state.setTimeoutDuration(max(1, bucket.deadline - now))
        yield out

    return step


class Processor(StatefulProcessor):
    """Keeps one bucket for each key."""

    def __init__(self, settings: BucketSettings, token: str) -> None:
        self.settings, self.token = settings, token

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.head = handle.getValueState("head", "state binary, serial bigint, chain binary")
        self.pieces = handle.getMapState("pieces", "serial bigint", "piece binary", self.settings.remember_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        yield self.step(int(key[0]), rows, timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield self.step(int(key[0]), (), timerValues.getCurrentProcessingTimeInMs())

    @errors_marked()
    def step(self, key: int, frames: Iterable[Any], now: int) -> pd.DataFrame:
        """One micro-batch of a bucket."""
        name, head = (self.token, key), self.head.get()
        before = None if head is None else bytes(head[0])
        trail = Trail() if head is None else Trail(int(head[1]), bytes(head[2]))
        mark = None if before is None else before + trail.chain
        with defer_gc():
            bucket = take_bucket(name, mark, lambda earlier: self.open(before, trail, earlier))
            after, out = advance_bucket(bucket, frames, now)
        bucket.trail = trail = self.add(bucket, trail, now)
        self.head.update((after, *trail))
        keep_bucket(name, after + trail.chain, bucket)
        # Each of these asks Java. A timer that is left when nothing waits any more comes to nothing.
        if bucket.deadline is not None:
            for timer in self.handle.listTimers():
                self.handle.deleteTimer(timer)
            self.handle.registerTimer(max(now + 1, bucket.deadline))
        return out

    def open(self, state: bytes | None, trail: Trail, earlier: Bucket | None) -> Bucket:
        """The bucket that has this state, from one that is kept from earlier on, or anew."""
        since = None if state is None or earlier is None else self.read_since(earlier.trail, trail)
        if since is None:
            found = sorted((int(serial[0]), bytes(piece[0])) for serial, piece in self.pieces.iterator())
            since, earlier = [piece for _, piece in found], None
        bucket: Bucket = self.settings.open(state, since, earlier)
        return bucket

    def read_since(self, earlier: Trail, trail: Trail) -> list[bytes] | None:
        """The pieces that lead from one trail to another; None if it does not, or they are no longer there."""
        if not trail.serial - PIECES < earlier.serial <= trail.serial:
            return None
        found = (self.pieces.getValue((serial,)) for serial in range(earlier.serial + 1, trail.serial + 1))
        pieces = [bytes(piece[0]) for piece in found if piece is not None]
        chain = earlier.chain
        for piece in pieces:
            chain = digest(chain + piece)
        return pieces if chain == trail.chain else None

    def add(self, bucket: Bucket, trail: Trail, now: int) -> Trail:
        """Add what is new to the pieces that Spark keeps. Many small ones become one."""
        piece, serial = bucket.dump_fresh(now), trail.serial + 1
        if piece is None:
            return Trail(serial, trail.chain)
        self.pieces.updateValue((serial,), (piece,))
        if serial % PIECES == 0:
            few = range(serial - PIECES + 1, serial + 1)
            found = [(one, kept) for one in few if (kept := self.pieces.getValue((one,))) is not None]
            every = [one for _, kept in found for one in msgspec.msgpack.decode(bytes(kept[0]))]
            for one, _ in found:
                self.pieces.removeKey((one,))
            left = [one for one in every if one[0] + self.settings.remember_ms > now]
            self.pieces.updateValue((serial,), (msgspec.msgpack.encode(left),))
        return Trail(serial, digest(trail.chain + piece))

    def close(self) -> None:
        pass


@contextmanager
def defer_gc() -> Iterator[None]:
    """Whatever a bucket makes of its state and rows stays or goes with them, and looking for garbage among it takes a
    third of the time. Spark collects garbage after each task."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def advance_bucket(bucket: Bucket, frames: Iterable[pd.DataFrame], now: int) -> tuple[bytes, pd.DataFrame]:
    """One micro-batch of a bucket: its state afterwards, and what comes out."""
    import pandas as pd

    blobs = [blob for frame in frames for blob in frame["rows"] if blob is not None]
    rows = pa.concat_tables([from_ipc(blob) for blob in blobs]) if blobs else None
    out, status = bucket.advance(rows, now)
    after = bucket.dump()
    pieces = split_output(out)
    words = [msgspec.json.encode(status).decode(), *[None] * (len(pieces) - 1)]
    return after, pd.DataFrame({"rows": pieces, "status": words})


def take_bucket(name: tuple[str, int], state: bytes | None, open_bucket: Callable[[Any], Any]) -> Any:
    """The bucket that is kept, if it has this state, or what is made with its help."""
    # Taken out: if this step fails half-way, what is kept is no longer what it was.
    mark, kept = _buckets.pop(name, (b"", None))
    return kept if kept is not None and state is not None and mark == digest(state) else open_bucket(kept)


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


# Unpack


def make_unpacker(schema: pa.Schema) -> Any:
    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for blob in batch.column(0):
                if blob.is_valid:
                    rows = fit_rows(from_ipc(blob.as_buffer()), schema)
                    yield from rows.select(schema.names).to_batches()

    return unpack
