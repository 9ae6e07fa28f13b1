"""A streaming source: the files that running nodes record, as they appear.

Spark's own file source reads them: a file of a trace is complete once it is visible, and does not change afterwards
(`antecede.net.observe.recorder`), which is all it asks for. What is checked here is what it does not tell: where the
events of a trace are, and that what is there already has the columns of one.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from antecede.errors import BadParameter, BadTrace
from antecede.spark.storage import absolute, escape_path, files, join, local, readable
from antecede.spark.trace.api import SPARK_EVENTS, refuse_files
from antecede.trace import EVENTS

__all__ = ["traces"]


def traces(spark: SparkSession, path: str | os.PathLike[str], *, max_files: int = 1000) -> DataFrame:
    """A streaming DataFrame of the events of the trace in a directory, those that are there and those to come.

    A batch has `max_files` files at most. A local directory that is not there yet is made: nodes may start later. Each
    node's files come in order, unless clocks of file systems differ: `verify_stream` needs no order.
    """
    if max_files < 1:
        raise BadParameter("traces", f"max_files must be 1 or more, not {max_files}")
    root = absolute(path)
    events = join(root, "events")
    if (here := local(events)) is not None:
        _make(Path(here))
    elif not files(spark, events):
        raise BadTrace(events, "there are no Parquet files: the events of a trace are missing")
    if readable(events):
        refuse_files(spark, files(spark, events)[:1], EVENTS)
    return (
        spark.readStream.schema(SPARK_EVENTS)
        .option("maxFilesPerTrigger", max_files)
        .parquet(escape_path(events))
    )


def _make(events: Path) -> None:
    try:
        events.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadTrace(
            str(events), f"the directory of event files cannot be made: {error.strerror or error}"
        ) from None
