"""Events that name their causes, in files that appear -> findings as Parquet: `antecede verify --causes --stream`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from antecede.spark.causes import ByCauses
from antecede.spark.errors import raise_task_errors
from antecede.spark.storage import absolute
from antecede.spark.stream.checkpoint import Checkpoint
from antecede.spark.stream.memory import PROVIDER, ROCKSDB
from antecede.spark.stream.run import make_session
from antecede.spark.stream.verify_files import Findings, write_findings
from antecede.spark.tables import StreamFiles
from antecede.spark.verify.in_stream import verify_live

__all__ = ["verify_files"]

KINDS: Final = ("violation", "duplicate", "missing", "refused")


def verify_files(
    spark: SparkSession,
    files: StreamFiles,
    asked: ByCauses,
    consumer: str,
    out: str,
    checkpoint: str,
    *,
    once: bool,
    every_s: float = 1.0,
    patience: str | None = None,
    remember: str | None = None,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[Mapping[str, int]], None] = lambda counts: None,
) -> Findings:
    """Run until all that is there is done (`once`), or until `stop` says so. Started again, it goes on where it was."""
    kept = Checkpoint(checkpoint)
    own = make_session(spark, {PROVIDER: ROCKSDB})
    with raise_task_errors():
        table = files.describe(own, "verify --stream", kept)

        def find(session: SparkSession) -> DataFrame:
            rows = files.read(session, table)
            return verify_live(rows, asked, consumer, patience=patience, remember=remember)

        identity = {"command": "verify", "input": absolute(files.path), "consumer": consumer}
        identity |= msgspec.to_builtins(asked)
        return write_findings(
            own, find, KINDS, identity, out, checkpoint, timed=True, once=once, every_s=every_s, stop=stop, note=note,
            claimed=lambda: kept.write_columns(msgspec.json.encode(table)),
        )  # fmt: skip
