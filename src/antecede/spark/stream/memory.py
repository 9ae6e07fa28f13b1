"""A stateful operator whose state is what waits, and what must be remembered for a time.

Spark keeps the state of a bucket in two parts, because what is remembered is much and changes little: the head, as one
value that is written in each micro-batch, and pieces, as a list to which each micro-batch adds (`transformWithState`,
with a time to live). A worker keeps the buckets that it made, and reads the list only if the head is not the one that
it gave. docs/decisions.md has the figures.

A piece is msgpack: a list of entries, each with its time first.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from antecede.errors import BadParameter
from antecede.spark.errors import errors_marked
from antecede.spark.stream.operator import (
    STEPPED,
    BucketOfRows,
    keep_bucket,
    pack,
    split_output,
    take_bucket,
)
from antecede.spark.stream.packets import from_ipc
from antecede.spark.stream.status import OBSERVED

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PROVIDER", "ROCKSDB", "RememberingBucket", "RememberingSettings", "remember_rows"]

PIECES: Final = 256
"""Pieces of the list, before they are made one."""
PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


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


class Processor(StatefulProcessor):
    """Keeps one bucket for each key."""

    def __init__(self, settings: RememberingSettings, token: str) -> None:
        self.settings, self.token = settings, token

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.head = handle.getValueState("head", "state binary")
        self.pieces = handle.getListState("emitted", "piece binary", self.settings.remember_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        blobs = [blob for frame in rows for blob in frame["rows"] if blob is not None]
        yield self.step(int(key[0]), blobs, timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield self.step(int(key[0]), [], timerValues.getCurrentProcessingTimeInMs())

    def step(self, key: int, blobs: list[bytes], now: int) -> pd.DataFrame:
        """One micro-batch of a bucket."""
        import pandas as pd

        with errors_marked():
            before = self.head.get() if self.head.exists() else None
            known = None if before is None else bytes(before[0])
            bucket = take_bucket((self.token, key), known, self.open)
            rows = pa.concat_tables([from_ipc(blob) for blob in blobs]) if blobs else None
            out, status = bucket.advance(rows, now)
            after = bucket.dump()
            self.head.update((after,))
            self.add(bucket, now)
            for timer in self.handle.listTimers():
                self.handle.deleteTimer(timer)
            if bucket.deadline is not None:
                self.handle.registerTimer(max(now + 1, bucket.deadline))
            keep_bucket((self.token, key), after, bucket)
            pieces = split_output(out)
            words = [msgspec.json.encode(status).decode(), *[None] * (len(pieces) - 1)]
            return pd.DataFrame({"rows": pieces, "status": words})

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
