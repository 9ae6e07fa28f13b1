"""Tasks that read logs and write Parquet by themselves: no row passes through Java.

Each task writes one file into `log/`, and one into `rejected/` if it has lines that could not be read. A file is
written under a hidden name and then renamed, so a task that is tried again, or runs twice, changes nothing: its files
have the same names and the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import add
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import asdict, astuple, replace
from pyspark import TaskContext
from pyspark.sql import SparkSession

from antecede.spark.ingest.schema import SPARK_REJECTED
from antecede.spark.ingest.tasks import LINES, SMALL, LogFiles, batches_of, decoded, each_task
from antecede.spark.storage import join, place
from antecede.trace.foreign.lines import Part
from antecede.trace.foreign.log import LOG, READ

__all__ = ["Hidden", "Written", "write_log"]

REJECTED: Final = pa.schema([READ.field(name) for name in SPARK_REJECTED.names])

GROUP: Final = 1 << 14

OPTIONS: Final[dict[str, Any]] = {
    # Names repeat; tokens and numbers do not, and texts where they are codes.
    "use_dictionary": ["run", "process", "kind", "file", "reason", "vector.key_value.key"],
    # Numbers are near each other, those of a clock too: their differences are short, which compressing them is not.
    "column_encoding": dict.fromkeys(("index", "line", "vector.key_value.value"), "DELTA_BINARY_PACKED"),
    # A third larger than zstd makes it, and as quick to write as nothing compressed.
    "compression": "lz4",
    # Arrow cannot read maps with integers for names back: a file need not say that it was written from them.
    "store_schema": False,
    "write_statistics": ["run", "process", "index", "line"],
}


class Written(Struct, frozen=True):
    """What tasks wrote, in numbers."""

    events: int = 0
    rejected: int = 0
    sends: int = 0
    """Sends whose message is known."""
    deliveries: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(*map(add, astuple(self), astuple(other)))


def write_log(spark: SparkSession, source: LogFiles, directory: str) -> Written:
    """Write `log/` and `rejected/`."""

    def work(source: LogFiles, task: int) -> Iterator[pa.RecordBatch]:
        told = asdict(task_written(source, task, directory))
        yield pa.RecordBatch.from_pydict({name: [count] for name, count in told.items()})

    columns = ", ".join(f"{name} bigint" for name in Written.__struct_fields__)
    told = each_task(spark, source, work, columns).collect()
    return sum((Written(*row) for row in told), Written())


# In tasks


def task_written(source: LogFiles, task: int, directory: str) -> Written:
    schema = codes_of(source.format) if any(map(large, source.tasks[task])) else None
    log = Hidden(join(directory, "log"), f"{task:05d}.parquet", LOG if schema is None else columns_of(schema))
    rejected = Hidden(join(directory, "rejected"), f"{task:05d}.parquet", REJECTED)
    total = Written()
    try:
        # A directory without a file is no table.
        log.open()
        if task == 0:
            rejected.open()
        for batch in batches_of(source, task):
            reasons = batch.column("reason")
            if reasons.null_count < batch.num_rows:
                rejected.write(batch.filter(pc.is_valid(reasons)).select(REJECTED.names))
                batch = batch.filter(pc.is_null(reasons))
            log.write((decoded(batch) if schema is None else codes(batch, schema)).select(LOG.names))
            total += counted(batch)
        log.show()
        rejected.show()
    except BaseException:
        log.drop()
        rejected.drop()
        raise
    return replace(total, rejected=rejected.rows)


def large(part: Part) -> bool:
    return part.start > 0 or part.end - part.start >= SMALL


def codes_of(format: str) -> pa.Schema:
    """The columns with names as integers: what compiled code gives."""
    from antecede.spark.ingest.fastlines import ENCODED, TOLD

    return ENCODED if format in LINES else TOLD


def columns_of(schema: pa.Schema) -> pa.Schema:
    return pa.schema([schema.field(name) for name in LOG.names])


def codes(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    from antecede.spark.ingest.fastlines import encoded

    return encoded(batch, schema)


def counted(events: pa.RecordBatch) -> Written:
    message = events.column("message")
    if message.null_count == len(message):
        return Written(events.num_rows)
    kind = events.column("kind").cast(pa.string()).filter(pc.is_valid(message))
    sends = pc.sum(pc.equal(kind, "send")).as_py() or 0
    return Written(events.num_rows, 0, sends, len(kind) - sends)


class Hidden:
    """A Parquet file that is not seen before it is whole. Nothing is written that was not opened or given a row."""

    def __init__(self, directory: str, name: str, schema: pa.Schema) -> None:
        self.rows = 0
        self._schema = schema
        self._system, self._directory = place(directory)
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else 0
        self._path = f"{self._directory}/{name}"
        self._part = f"{self._directory}/.{name}.{attempt}.part"
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []

    def open(self) -> None:
        if self._writer is None:
            self._system.create_dir(self._directory, recursive=True)
            names = [name for name in OPTIONS["use_dictionary"] if name.split(".")[0] in self._schema.names]
            if pa.types.is_dictionary(self._schema.field("text").type):
                names.append("text")
            told = [name for name in OPTIONS["write_statistics"] if name in self._schema.names]
            packed = {
                name: encoding
                for name, encoding in OPTIONS["column_encoding"].items()
                if name.split(".")[0] in self._schema.names
            }
            options = {
                **OPTIONS,
                "use_dictionary": names,
                "write_statistics": told,
                "column_encoding": packed,
            }
            self._writer = pq.ParquetWriter(self._part, self._schema, filesystem=self._system, **options)

    def write(self, batch: pa.RecordBatch) -> None:
        self.open()
        self.rows += batch.num_rows
        if batch.num_rows >= GROUP:
            # A row group of its own: its names are numbered in one way.
            self._flush()
        self._held.append(batch)
        if sum(held.num_rows for held in self._held) >= GROUP:
            self._flush()

    def show(self) -> None:
        """Make it visible, if it is there."""
        if self._writer is not None:
            self._flush()
            self._writer.close()
            self._system.move(self._part, self._path)

    def drop(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._system.delete_file(self._part)

    def _flush(self) -> None:
        assert self._writer is not None
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held), row_group_size=1 << 20)
            self._held = []
