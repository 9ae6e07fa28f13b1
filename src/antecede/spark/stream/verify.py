"""Live verification: a stream of trace events, and what is wrong with them as it happens.

`judge` has the rules and is all that decides. Here a stateful operator of Spark keeps one judge for each run, as one
binary value: a row of state for each message would cost five times as much. Rows of a run come in any order, more than
once, split into micro-batches in any way; violations come out in the micro-batch in which the delivery and all that
happened before it have come. One run is one task: runs are judged side by side, one run as fast as one core does it.

`verify_events` is what `antecede verify --stream` does: events of running systems -> findings as Parquet, until stopped
or caught up. Spark's file sink lists in its log what it has committed: a reader that is Spark sees each finding once,
however often the query was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from antecede.errors import BadParameter, BadTrace
from antecede.spark.duration import parse_duration
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.frames import escape_path, files, quote
from antecede.spark.stream.judge import MESSAGES, Arrived, Found, Judge
from antecede.spark.stream.query import Checkpoint, Counted, Query, Running, run_query
from antecede.spark.stream.status import observe_findings, observed_metrics
from antecede.spark.trace import SPARK_EVENTS, refuse_files, refuse_types
from antecede.storage import absolute, join, readable
from antecede.trace import EVENTS
from antecede.verification.schema import FINDINGS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FOUND", "Findings", "Noting", "events_at", "verify_events", "verify_stream", "write_findings"]

COLUMNS: Final = ("process", "index", "kind", "sender", "number", "to", "control")
FOUND: Final = from_arrow_schema(pa.schema([field for field in FINDINGS if field.name != "chain"]))
"""The columns of what is found: those of `verify`, without the chain, which would need all that happened."""
STATE: Final = "judge binary"
NUMBERS: Final = dict.fromkeys(("number", "by_number", "index"), "Int64")
KINDS: Final = (
    "violation", "fifo_break", "duplicate", "unaddressed", "unsent", "undelivered", "gap", "impossible", "retracted",
)  # fmt: skip
OBSERVED: Final = "found"
ELSEWHERE: Final = ("feed://", "nats://", "tls://")
"""What is no directory. Its address may change from one start to the next."""


def verify_stream(
    events: DataFrame,
    *,
    patience: str | None = None,
    remember: str | None = None,
    messages: int = MESSAGES,
) -> DataFrame:
    """Return a streaming DataFrame of findings (`FOUND`) for one of events that has the columns of a trace.

    Kinds are those of `verify`: `violation`, `fifo_break`, `duplicate`, `unaddressed`; and, after `patience` without a
    change, `unsent`, `undelivered` and `gap` (`judge` says exactly when, and what `retracted` and `impossible` are).
    Without `patience` it waits for ever for what is missing, and says nothing of it. Write it in append mode. Times are
    as "30 seconds".

    A run in which nothing waits and nothing has come for the time `remember` is taken to be over, and its state is
    dropped; if it went on, its next event would have a gap before it. Without, the state of all runs stays. Of messages
    that all their destinations have, the last `messages` of a run are kept, to know a delivery that is repeated.
    """
    refuse_types(events, SPARK_EVENTS)
    patience_ms, remember_ms = (
        None if text is None else parse_duration("verify_stream", name, text)
        for name, text in (("patience", patience), ("remember", remember))
    )
    if messages < 1:
        raise BadParameter("verify_stream", f"messages must be 1 or more, not {messages}")

    def judge(
        key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        kept = bytes(state.get[0]) if state.exists else None
        now_ms = state.getCurrentProcessingTimeMs()
        kept, found, idle = judge_rows(kept, rows_of(frames), now_ms, patience_ms, messages)
        if idle and state.hasTimedOut and remember_ms is not None:
            state.remove()
        else:
            state.update((kept,))
            # Time may run out without a row that would wake us.
            wake_ms = remember_ms if idle else patience_ms
            if wake_ms is not None:
                state.setTimeoutDuration(wake_ms)
        yield table(key[0], found)

    timed = patience_ms is not None or remember_ms is not None
    timeout = GroupStateTimeout.ProcessingTimeTimeout if timed else GroupStateTimeout.NoTimeout
    rows = events.select("run", *COLUMNS)
    return rows.groupBy("run").applyInPandasWithState(mark_errors(judge), FOUND, STATE, "append", timeout)


def judge_rows(
    kept: bytes | None, rows: Iterable[Arrived], now_ms: int, patience_ms: int | None, messages: int
) -> tuple[bytes, list[Found], bool]:
    """One micro-batch of one run. From what was kept and what comes: what to keep, what is found, if nothing waits."""
    judge = Judge(messages) if kept is None else Judge.restore(kept, messages)
    found = judge.take(rows, now_ms)
    if patience_ms is not None:
        found += judge.expire(now_ms, patience_ms)
    return judge.snapshot(), found, judge.idle


def rows_of(frames: Iterable[pd.DataFrame]) -> Iterator[Arrived]:
    for frame in frames:
        columns = [frame[name].tolist() for name in COLUMNS]
        for process, index, kind, sender, number, to, control in zip(*columns, strict=True):
            names = None if to is None else list(to)
            yield Arrived(process, int(index), kind, sender, int(number), names, bool(control))


def table(run: str, found: list[Found]) -> pd.DataFrame:
    # It takes long to load, and only tasks need it.
    import pandas as pd

    data = {
        name: pd.Series([getattr(one, name) for one in found], dtype=NUMBERS.get(name, "object"))
        for name in FOUND.names[1:]
    }
    return pd.DataFrame({"run": [run] * len(found), **data})


# From a place to Parquet


class Findings(Struct, frozen=True):
    """What was found so far, in all lives of a query."""

    counts: Mapping[str, int]
    """Kind -> how many; those that there are."""
    first: tuple[Mapping[str, Any], ...]
    """One of each kind."""
    batches: int
    """Micro-batches that are done."""


class Noting(Running, total=False):
    note: Callable[[Mapping[str, int]], None]
    """Told of each micro-batch how many of each kind it found."""


def events_at(spark: SparkSession, place: str) -> DataFrame:
    """The events of a directory, of `feed://HOST:PORT,HOST:PORT`, or of `nats://HOST:PORT/STREAM`."""
    # Workers load this module, and no source.
    from antecede.spark.sources import jetstream, node_feed, traces

    if place.startswith("feed://"):
        return node_feed(spark, place.removeprefix("feed://").split(","))
    if place.startswith(ELSEWHERE):
        url, _, stream = place.rpartition("/")
        if url.endswith("/") or not stream:
            raise BadParameter(
                "verify --stream", "the source names a server and no stream: write nats://HOST:PORT/STREAM"
            )
        return jetstream(spark, url, stream, rows="events")
    return traces(spark, place)


def verify_events(
    spark: SparkSession,
    place: str,
    out: str,
    checkpoint: str,
    *,
    patience: str | None = None,
    remember: str | None = None,
    **noting: Unpack[Noting],
) -> Findings:
    """Judge the events of a place, and write what is found. Started again, it goes on where it was."""
    lies, kept = not place.startswith(ELSEWHERE), Checkpoint(checkpoint)

    def find(own: SparkSession) -> DataFrame:
        return observe_findings(verify_stream(events_at(own, place), patience=patience, remember=remember))

    with raise_task_errors():
        if lies:
            refuse_events(spark, join(absolute(place), "events"), noting["once"], kept.fresh)
        timed = patience is not None or remember is not None
        identity = {"command": "verify", "input": absolute(place) if lies else None}
        return write_findings(spark, find, KINDS, identity, out, kept, timed=timed, **noting)


def write_findings(
    spark: SparkSession,
    find: Callable[[SparkSession], DataFrame],
    kinds: Sequence[str],
    identity: Mapping[str, Any],
    out: str,
    checkpoint: Checkpoint,
    *,
    timed: bool,
    columns: Struct | None = None,
    note: Callable[[Mapping[str, int]], None] = lambda counts: None,
    **running: Unpack[Running],
) -> Findings:
    """Write findings of these kinds as Parquet: a streaming DataFrame with a column `kind`, which `find` makes."""
    schema = find(spark).schema

    def build(own: SparkSession) -> DataStreamWriter:
        found = find(own).observe(OBSERVED, *aggregates(kinds, schema))
        writer = found.writeStream.format("parquet").option("path", absolute(out))
        return writer.option("checkpointLocation", checkpoint.place)

    def count(progress: Any) -> Counted | None:
        metrics = observed_metrics(progress, OBSERVED)
        if metrics is None:
            return None
        counted = read_metrics(metrics, kinds, schema)
        note(counted.counts)
        return counted

    def recount(own: SparkSession) -> Counted:
        """Count all that was written."""
        written = own.read.schema(schema).parquet(escape_path(absolute(out)))
        found = written.agg(*aggregates(kinds, schema)).first()
        assert found is not None
        return read_metrics(found.asDict(), kinds, schema)

    query = Query("verify --stream", identity, out, build, count, recount, timed, columns)
    totals = run_query(spark, checkpoint, query, **running)
    return Findings(
        {kind: totals.counts[kind] for kind in kinds if totals.counts.get(kind)},
        tuple(totals.examples[kind] for kind in kinds if kind in totals.examples),
        totals.batch + 1,
    )


def aggregates(kinds: Sequence[str], schema: StructType) -> list[Column]:
    """For each kind how many there are, and the first of them."""
    row = F.struct(*(F.col(quote(name)) for name in schema.names))
    counts = [F.count_if(F.col("kind") == kind).alias(kind) for kind in kinds]
    firsts = [F.to_json(F.min(F.when(F.col("kind") == kind, row))).alias(f"first_{kind}") for kind in kinds]
    return counts + firsts


def read_metrics(metrics: Mapping[str, Any], kinds: Sequence[str], schema: StructType) -> Counted:
    """What `aggregates` gave."""
    firsts = {kind: metrics[f"first_{kind}"] for kind in kinds if metrics[f"first_{kind}"] is not None}
    none = dict.fromkeys(schema.names)
    examples = {kind: {**none, **msgspec.json.decode(text)} for kind, text in firsts.items()}
    return Counted({kind: metrics[kind] for kind in kinds if metrics[kind]}, examples)


def refuse_events(spark: SparkSession, events: str, once: bool, new: bool) -> None:
    """Check existing files before the query starts: Spark never skips a file that a micro-batch has planned."""
    there = files(spark, events)
    if once and not there:
        raise BadTrace(events, "there are no Parquet files: the events of a trace are missing")
    if new and readable(events):
        refuse_files(spark, there, EVENTS)
