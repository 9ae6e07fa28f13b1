"""Streaming DataFrames: a stream in causal order, and a stream of trace events verified.

`order_stream` is what `antecede.spark.order` does with a streaming DataFrame, in one of three forms:

    id, causes                    `causes`: identifiers are remembered, rows wait for those that they name
    process, vector               `vectors`: counts are remembered, the compiled kernel decides
    stamp, protocol, processes    `stamps`: the kernel decides about stamps of counts, machines about others

All columns stay. `position`, `waits_for` and `kind` are added; by vectors and stamps also `reason`, why a row that
cannot be ordered is `refused`.

`verify_stream`: `judge` has the rules and is all that decides. Spark keeps one judge for each run, as one binary value:
a row of state for each message would cost five times as much. Rows of a run come in any order, more than once, split
into micro-batches in any way; violations come out in the micro-batch in which the delivery and all that happened before
it have come. One run is one task: runs are judged side by side, one run as fast as one core does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Unpack
from zlib import crc32

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from antecede.errors import BadParameter, BadTrace
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.frames import (
    GROUP_MARK,
    REMEMBER,
    WHOLE,
    ByCauses,
    ByStamp,
    ByVector,
    files,
    id_type,
    list_causes,
    parse_duration,
    quote,
    read_time,
    refuse_column_names,
    refuse_columns,
    refuse_unlike_vectors,
)
from antecede.spark.stream.bucket import ADDED, encode_columns, hide_name
from antecede.spark.stream.causes import CausesSettings
from antecede.spark.stream.judge import MESSAGES, Arrived, Found, Judge
from antecede.spark.stream.kernel import Numbers
from antecede.spark.stream.operator import BUCKETS, ByPartition, run_buckets, spread
from antecede.spark.stream.packets import Settings
from antecede.spark.stream.query import Checkpoint, Noting, Totals, write_findings
from antecede.spark.stream.status import GAVE_UP, observe_findings
from antecede.spark.stream.vectors import VectorSettings
from antecede.spark.trace import SPARK_EVENTS, refuse_files, refuse_types
from antecede.storage import absolute, join, readable
from antecede.trace import EVENTS
from antecede.verification.schema import FINDINGS

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FOUND", "Asked", "assign_buckets", "events_at", "judge_rows", "name_packets", "order_stream", "select_packets",
    "tabulate_found", "verify_events", "verify_stream",
]  # fmt: skip

WATERMARK: Final = "spark.watermarkDelayMs"
"""What Spark notes of a column with a watermark."""
COLUMNS: Final = ("process", "index", "kind", "sender", "number", "to", "control")
FOUND: Final = from_arrow_schema(pa.schema([field for field in FINDINGS if field.name != "chain"]))
"""The columns of what is found: those of `verify`, without the chain, which would need all that happened."""
NUMBERS: Final = dict.fromkeys(("number", "by_number", "index"), "Int64")
FOUND_KINDS: Final = (
    "violation", "fifo_break", "duplicate", "unaddressed", "unsent", "undelivered", "gap", "impossible", "retracted",
)  # fmt: skip
ELSEWHERE: Final = ("feed://", "nats://", "tls://")
"""What is no directory. Its address may change from one start to the next."""


class Asked(Struct, frozen=True):
    """What `order` was asked for: its parameters. None is not said."""

    id: str | None = None
    causes: str | None = None
    process: str | None = None
    vector: str | None = None
    stamp: str | None = None
    protocol: str | None = None
    processes: tuple[str, ...] = ()
    parameters: dict[str, Any] = {}
    partition_by: tuple[str, ...] | None = None
    """None: those that the form of the table suggests (`order.files`)."""
    time: str | None = None
    window: tuple[Any, Any] | None = None
    no_cause: tuple[str, ...] = ("",)
    patience: str | None = None
    remember: str | None = None
    buckets: int | None = None


def order_stream(
    df: DataFrame,
    form: ByCauses | ByVector | ByStamp,
    *,
    patience: str | None = None,
    remember: str | None = None,
    buckets: int | None = None,
) -> DataFrame:
    """The rows of a stream in causal order."""
    buckets = BUCKETS if buckets is None else buckets
    if buckets < 1:
        raise BadParameter("order", f"buckets must be 1 or more, not {buckets}")
    if isinstance(form, ByStamp) and remember is not None:
        raise BadParameter("order", "leave out remember: by stamps a stream keeps counts, and forgets none")
    owner = "stream" if isinstance(form, ByStamp) else "order"
    common: dict[str, Any] = {
        "patience_ms": None if patience is None else parse_duration(owner, "patience", patience),
        "remember_ms": parse_duration("order", "remember", remember or REMEMBER),
        "buckets": buckets,
    }
    if isinstance(form, ByStamp):
        return order_stamps(df, form, common)
    return order_causes(df, form, common) if isinstance(form, ByCauses) else order_vectors(df, form, common)


def order_causes(df: DataFrame, form: ByCauses, common: dict[str, Any]) -> DataFrame:
    """Events that name their causes, which are looked for among the rows with the same values of `partition_by`."""
    refuse_columns(df, form, added=ADDED[:3])
    kind = id_type(df, form)
    # A column that is what a bucket needs does not cross into Python twice.
    id = hide_name(form.id) if df.schema[form.id].dataType == kind else "__id"
    columns = {"id": f"{form.id} ({kind.simpleString()})", "partition_by": ", ".join(form.partition_by)}
    own = [] if id != "__id" else [F.col(quote(form.id)).cast(kind).alias(id)]
    rows, assign = select_rows(df, form, [*own, list_causes(df, form).alias("__causes")])
    schema = add_columns(list_fields(df), ArrayType(kind), ADDED[:3])
    settings = CausesSettings(id, columns=columns, **common)
    return run_buckets(rows, settings, assign, schema, remembers=True).toDF(*df.columns, *ADDED[:3])


def order_vectors(df: DataFrame, form: ByVector, common: dict[str, Any]) -> DataFrame:
    """Rows that carry vectors: a map from names to numbers, or an array."""
    named = {"process": form.process, "vector": form.vector}
    columns = {**named, "partition_by": ", ".join(form.partition_by)}
    settings = VectorSettings(hide_name(form.process), hide_name(form.vector), columns=columns, **common)
    refuse_column_names("order", df, {**named, "time": form.time}, form.partition_by, ADDED)
    name = refuse_unlike_vectors(df, form.process, form.vector)
    rows, assign = select_rows(df, form, [])
    waits = ArrayType(StructType([StructField("process", name), StructField("number", LongType())]))
    found = run_buckets(rows, settings, assign, add_columns(list_fields(df), waits))
    return found.toDF(*df.columns, *ADDED)


def select_rows(df: DataFrame, form: ByCauses | ByVector, own: list[Column]) -> tuple[DataFrame, ByPartition]:
    """The rows with the columns of our own that a bucket reads, and what assigns them to buckets."""
    assign, keys = ByPartition.of(df, form.partition_by, hide_name)
    times = [] if form.time is None else [read_time(df, form.time).alias("__time")]
    return df.select(*keys, *own, *times, *hide_columns(df)), assign


def hide_columns(df: DataFrame) -> list[Column]:
    return [F.col(quote(name)).alias(hide_name(name)) for name in df.columns]


def list_fields(df: DataFrame, group: str | None = None) -> list[StructField]:
    """The columns that come out of a stream: those of the user, under hidden names.

    A watermark of theirs ends here. Rows that waited would be behind it, and dropped by an operator that follows; its
    own is one of the rows that come out.
    """

    def keep(field: StructField) -> dict[str, Any]:
        known = {name: value for name, value in (field.metadata or {}).items() if name != WATERMARK}
        # Positions count by group and receiver: a sink must know.
        return known | ({GROUP_MARK: True} if field.name == group else {})

    return [
        StructField(hide_name(field.name), field.dataType, field.nullable, keep(field)) for field in df.schema
    ]


def add_columns(fields: list[StructField], waits: DataType, added: tuple[str, ...] = ADDED) -> StructType:
    kinds = {"position": LongType(), "waits_for": waits}
    return StructType([*fields, *(StructField(name, kinds.get(name, StringType())) for name in added)])


# Packets with stamps: a row is a packet at a receiver, as `packets` explains it


def order_stamps(df: DataFrame, form: ByStamp, common: dict[str, Any]) -> DataFrame:
    """Packets in the order of arrival -> the same rows in causal order, each with its position at its receiver.

    `partition_by` has a column before the receiver that tells several systems of the same processes apart (default:
    `group`, if there is one); `time` is the one that rows are taken by.
    """
    groups = form.partition_by[:-1]
    if len(groups) > 1:
        raise BadParameter("order", f"partition_by takes one column with stamps, not {', '.join(groups)}")
    group = groups[0] if groups else None
    settings = Settings(form.protocol, form.processes, form.parameters, group, **common)
    rows = select_packets(df, form.stamp, group, form.time)
    schema = add_columns(list_fields(df, group=group or "group"), from_arrow_type(GAVE_UP))
    return run_buckets(rows, settings, assign_buckets, schema).toDF(*df.columns, *ADDED)


def select_packets(df: DataFrame, stamp: str, group: str | None, time: str | None) -> DataFrame:
    """The columns of packets, under names of our own, and all of the user's, under hidden ones."""
    found = {field.name: field.dataType for field in df.schema}
    wanted = ["receiver", "sender", "number", stamp, *(name for name in (group, time) if name is not None)]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise BadParameter(
            "order",
            f"the table needs the columns {', '.join(missing)}: a row is a packet; it has {', '.join(found)}",
        )
    refuse_column_names("order", df, {}, added=ADDED)
    own = name_packets(df, stamp)
    if time is not None:
        column = F.col(quote(time))
        if not isinstance(found[time], (TimestampType, *WHOLE)):
            kind = found[time].simpleString()
            raise BadParameter("order", f"time must be integers or timestamps, and {time} is {kind}")
        stamped = isinstance(found[time], TimestampType)
        own["__arrival"] = F.unix_micros(column) if stamped else column.cast("long")
    if group is not None:
        own["__group"] = F.coalesce(F.col(quote(group)).cast("string"), F.lit(""))
    elif "group" in found:
        # Null where there are no groups: such rows go where they would without the column.
        own["__group"] = F.col("group").cast("string")
    return df.select(*(column.alias(name) for name, column in own.items()), *hide_columns(df))


def name_packets(df: DataFrame, stamp: str) -> dict[str, Column]:
    """What packet a row is, under names of our own."""
    own = {
        "__receiver": F.col("receiver").cast("string"),
        "__sender": F.col("sender").cast("string"),
        "__number": F.col("number").cast("long"),
        # No stamp is one that nobody can read: refused as a row, not as a stream.
        "__stamp": F.coalesce(F.col(quote(stamp)).cast("binary"), F.lit(b"")),
    }
    return own | ({"__label": F.col("label").cast("string")} if "label" in df.columns else {})


def assign_buckets(rows: pa.Table, buckets: int) -> tuple[pa.Table, Numbers]:
    """The bucket of each row: by its receiver, and its group where it has one. States of version 1 have the same."""
    keys = [name for name in ("__receiver", "__group") if name in rows.column_names]
    values, code = encode_columns([rows[key] for key in keys])
    return rows, spread([hash_receiver(*one) for one in values], buckets)[code]


def hash_receiver(receiver: str | None, group: str | None = None) -> int:
    found = crc32((receiver or "").encode())
    return found if group is None else found * 31 + crc32(group.encode())


# Live verification of a trace


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
        yield tabulate_found(key[0], found)

    timed = patience_ms is not None or remember_ms is not None
    timeout = GroupStateTimeout.ProcessingTimeTimeout if timed else GroupStateTimeout.NoTimeout
    rows = events.select("run", *COLUMNS)
    return rows.groupBy("run").applyInPandasWithState(
        mark_errors(judge), FOUND, "judge binary", "append", timeout
    )


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


def tabulate_found(run: str, found: list[Found]) -> pd.DataFrame:
    # It takes long to load, and only tasks need it.
    import pandas as pd

    data = {
        name: pd.Series([getattr(one, name) for one in found], dtype=NUMBERS.get(name, "object"))
        for name in FOUND.names[1:]
    }
    return pd.DataFrame({"run": [run] * len(found), **data})


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
) -> Totals:
    """Judge the events of a place, and write what is found. Started again, it goes on where it was."""
    lies, kept = not place.startswith(ELSEWHERE), Checkpoint(checkpoint)

    def find(own: SparkSession) -> DataFrame:
        return observe_findings(verify_stream(events_at(own, place), patience=patience, remember=remember))

    with raise_task_errors():
        if lies:
            refuse_events(spark, join(absolute(place), "events"), noting["once"], kept.fresh)
        timed = patience is not None or remember is not None
        identity = {"command": "verify", "input": absolute(place) if lies else None}
        return write_findings(spark, find, FOUND_KINDS, identity, out, kept, timed=timed, **noting)


def refuse_events(spark: SparkSession, events: str, once: bool, new: bool) -> None:
    """Check existing files before the query starts: Spark never skips a file that a micro-batch has planned."""
    there = files(spark, events)
    if once and not there:
        raise BadTrace(events, "there are no Parquet files: the events of a trace are missing")
    if new and readable(events):
        refuse_files(spark, there, EVENTS)
