"""What each file of a trace says of itself, read from its footer by tasks: enough to plan with, and to refuse with.

A footer tells how many rows each row group has, whether the file is in the order (clock, process, index), and the least
and greatest run and clock of each group. Some hundred bytes a group come back, never a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql import SparkSession

from antecede.errors import BadTrace
from antecede.storage import opened
from antecede.trace.footers import Footer, check_runs, footer
from antecede.trace.reader import refuse_columns

__all__ = ["footers", "refuse_files"]

TASKS_MOST = 64
FOOTERS = 16
"""A footer takes some milliseconds on a disk and some fifty from an object store; a task reads about as many."""


class Refused(Struct, frozen=True):
    """A file that cannot be read, as it travels from the task that found out."""

    place: str
    found: str
    expected: str


def footers(spark: SparkSession, runs: Sequence[str], events: Sequence[str]) -> list[Footer]:
    """The footer of each event file, in the order of their names. One job, which reads the tables of runs too.

    A file that is not whole or lacks a column is refused, and so are two runs of one name.
    """
    found = asked(spark, [*runs, *events], looking(frozenset(runs)))
    return sorted(found, key=lambda footer: footer.path.encode())


def refuse_files(
    spark: SparkSession, paths: Sequence[str], schema: pa.Schema, optional: Collection[str] = ()
) -> None:
    """Refuse files that are not whole Parquet, or lack a column of the schema, before anything is made of them."""

    def look(path: str, source: Any) -> None:
        found = pq.read_metadata(source).schema.to_arrow_schema()
        absent = [name for name in optional if name not in found.names]
        refuse_columns(path, found, pa.schema([field for field in schema if field.name not in absent]))

    asked(spark, paths, look)


Look = Callable[[str, Any], "Footer | None"]
"""What a task does with a file: a `BadTrace` is told as one."""


def asked(spark: SparkSession, paths: Sequence[str], look: Look) -> list[Footer]:
    if not paths:
        return []
    table = spark.createDataFrame([(path,) for path in paths], "path string")
    tasks = min(-(-len(paths) // FOOTERS), TASKS_MOST)
    told = table.repartition(tasks).mapInArrow(answering(look), "answer binary").collect()
    read = [DECODER.decode(bytes(row["answer"])) for row in told]
    for refused in sorted((refused for _, refused in read if refused), key=lambda refused: refused.place):
        raise BadTrace(refused.place, refused.found, refused.expected)
    return [footer for footer, _ in read if footer]


DECODER: Final = msgspec.msgpack.Decoder(tuple[Footer | None, Refused | None])


# In tasks


def answering(look: Look) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def answers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            told = [answer(path, look) for path in batch.column(0).to_pylist()]
            encoded = pa.array([msgspec.msgpack.encode(one) for one in told], pa.binary())
            yield pa.RecordBatch.from_arrays([encoded], names=["answer"])

    return answers


def looking(runs: Collection[str]) -> Look:
    def look(path: str, source: Any) -> Footer | None:
        if path not in runs:
            return footer(path, source)
        check_runs(path, source)
        return None

    return look


def answer(path: str, look: Look) -> tuple[Footer | None, Refused | None]:
    try:
        with opened(path) as source:
            return look(path, source), None
    except BadTrace as error:
        return None, Refused(error.place, error.found, error.expected)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        return None, Refused(path, f"no whole Parquet file ({reason})", "one that is complete")
