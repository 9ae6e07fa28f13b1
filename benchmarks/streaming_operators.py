"""python -m benchmarks.streaming_operators: which of Spark's stateful operators, and what to hand it.

The same bucket behind each, 64 receivers in order:
  packed, applyInPandasWithState       what `deliver_stream` does
  packed, transformWithStateInPandas   the same values, one state variable a bucket, RocksDB
  rows, applyInPandasWithState         the usual way: the packets themselves as pandas columns
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from antecede.spark import connect
from antecede.spark.stream.bucket import Bucket
from antecede.spark.stream.order import (
    PACKED,
    bucket_keys,
    deliver_stream,
    make_packer,
    make_unpacker,
    output_schema,
    select_packet_columns,
)
from antecede.spark.stream.packets import from_ipc, to_ipc
from antecede.spark.stream.settings import Settings
from benchmarks.streaming import ORDERS, SCHEMA, Shape, arranged, broadcasts, timed, written

BUCKETS = 16


class Processor(StatefulProcessor):
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("state", "state binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timer: Any) -> Iterator[pd.DataFrame]:
        blobs = [blob for frame in rows for blob in frame["rows"] if blob is not None]
        if not blobs:
            return
        before = self.state.get()
        bucket = Bucket(self.settings) if before is None else Bucket.load(bytes(before[0]), self.settings)
        out, _ = bucket.advance(pa.concat_tables([from_ipc(b) for b in blobs]), 0)
        self.state.update((bucket.dump(),))
        yield pd.DataFrame({"rows": [to_ipc(out)]})

    def close(self) -> None:
        pass


def transformed(stream: Any, settings: Settings) -> Any:
    packed = select_packet_columns(stream, None, None).mapInArrow(make_packer(bucket_keys(BUCKETS)), PACKED)
    stepped = packed.groupBy("bucket").transformWithStateInPandas(
        Processor(settings), "rows binary", "append", "None"
    )
    return stepped.mapInArrow(make_unpacker(None), output_schema(None))


def by_rows(stream: Any, settings: Settings) -> Any:
    names = [field.name for field in output_schema(None)]

    def step(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        bucket = Bucket.load(bytes(state.get[0]), settings) if state.exists else Bucket(settings)
        rows = pa.Table.from_pandas(pd.concat(frames), preserve_index=False).drop_columns(["bucket"])
        out, _ = bucket.advance(rows, 0)
        state.update((bucket.dump(),))
        yield out.to_pandas()[names]

    keyed = select_packet_columns(stream, None, None).withColumn(
        "bucket", F.expr(f"pmod(hash(receiver), {BUCKETS})")
    )
    return keyed.groupBy("bucket").applyInPandasWithState(
        step, output_schema(None), "state binary", "append", GroupStateTimeout.NoTimeout
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.streaming_operators", description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--batches", type=int, default=4)
    asked = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="antecede-operators-"))
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    spark = connect("local[2]", log=work / "log", settings=settings)
    shape = broadcasts("64 receivers", 64, 1, asked.rows)
    source = written(arranged(shape.rows, ORDERS[0]), work / "in", 2 * asked.batches)
    print("| operator | messages/s | CPU µs a message |\n|---|--:|--:|")
    try:
        # Twice: Java compiles what runs often.
        for round_ in range(2):
            measured(spark, shape, source, work, len(shape.rows), round_ == 1)
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


def measured(spark: Any, shape: Shape, source: Path, work: Path, rows: int, shown: bool) -> None:
    settings = Settings(shape.protocol, shape.processes)
    ways = {
        "packed, applyInPandasWithState": lambda s: deliver_stream(
            s, shape.protocol, shape.processes, buckets=BUCKETS
        ),
        "packed, transformWithStateInPandas": lambda s: transformed(s, settings),
        "rows, applyInPandasWithState": lambda s: by_rows(s, settings),
    }
    for name, way in ways.items():
        for place in ("out", "checkpoint"):
            shutil.rmtree(work / place, ignore_errors=True)
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(source))
        writer = way(stream).writeStream.option("checkpointLocation", str(work / "checkpoint"))
        figure = timed(partial(writer.trigger(availableNow=True).start, str(work / "out")), rows)
        assert spark.read.parquet(str(work / "out")).count() == rows, name
        line = f"| {name} | {figure.rate:,.0f} | {figure.cpu:.1f} |"
        print(line, flush=True) if shown else print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
