"""Anyone's events in causal order: a DataFrame in, a DataFrame out.

    order(events, id="event_id", causes="causation_id", partition_by="tenant", time="at")      explicit causes
    order(events, process="service", vector="clock")                                           vectors
    order(packets, protocol="matrix", processes=["ann", "bob"])                                stamps
    order(Trace.read(spark, path))                                                             a trace

All columns stay, and two are added: `position`, 0, 1, 2, ... in each partition, and `waits_for`, what a row still
needs: identifiers, or (process, first missing number), or missing messages. It is empty for most rows.

The result says by itself how it was ordered (in the metadata of `waits_for`, which Parquet keeps). So two questions are
functions of it, whether it comes from `order` or from a file:

    missing(ordered)    what rows wait for and is not there
    refused(ordered)    partitions that have no order, with the reason: their rows have no `position`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from antecede.errors import BadParameter
from antecede.spark.frames import (
    ByCauses,
    ByStamp,
    ByVector,
    alias_columns,
    list_causes,
    read_time,
    refuse_column_names,
    refuse_other_tables,
    rename_columns,
    rename_request,
)
from antecede.spark.order import by_causes, by_stamp, by_trace, by_vector
from antecede.spark.order.by_trace import ByTrace
from antecede.spark.stream.api import order_stream
from antecede.spark.trace import Trace

__all__ = ["count_rows", "missing", "name_form", "order", "read_form", "refused"]

Form = ByCauses | ByVector | ByStamp | ByTrace
FORMS: Final[dict[str, type[Form]]] = {
    "causes": ByCauses,
    "vector": ByVector,
    "stamp": ByStamp,
    "trace": ByTrace,
}
HOMES: Final[dict[type[Form], Any]] = {
    ByCauses: by_causes,
    ByVector: by_vector,
    ByStamp: by_stamp,
    ByTrace: by_trace,
}
ADDED: Final = ("position", "waits_for")
TOLD: Final = ("rows", "reason", "refused", "missing", "waiting", "direct")
"""Columns of what is told of any result, beside those of its partitions."""
NAMED: Final = "id and causes together, process and vector together, protocol and processes together"
NOTE: Final = "antecede.order"
"""Where the metadata of `waits_for` says how the rows were ordered."""


def order(
    table: DataFrame | Trace,
    *,
    id: str | None = None,
    causes: str | None = None,
    process: str | None = None,
    vector: str | None = None,
    stamp: str | None = None,
    protocol: str | None = None,
    processes: Sequence[str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    partition_by: str | Sequence[str] = (),
    time: str | None = None,
    window: tuple[Any, Any] | None = None,
    no_cause: str | Sequence[str] = "",
    patience: str | None = None,
    remember: str | None = None,
    partitions: int | None = None,
    buckets: int | None = None,
) -> DataFrame:
    """Put rows in causal order.

    `id` and `causes` name columns of text or integers; `causes` has one identifier, an array of them, or null, and a
    text in `no_cause` means none. `process` and `vector` name columns instead: a map from names to numbers with a name,
    or an array with a position in it. Or rows are packets (docs/stream.md): `protocol` and `processes`
    say whose stamps are in the column `stamp`, and `parameters` are the protocol's own. Or the table is a trace.

    `partition_by` are the columns that tell one set of rows from another. With `time`, concurrent rows are sorted by
    time: a row's key is the greatest of its own time and its causes' keys. A trace without clocks is sorted by its own
    times. Of packets, `time` is when they arrived. `window` gives only rows whose time is at or after its first value
    and before its second, with their positions in the whole. `partitions` says how many tasks sort, by vectors or
    clocks.

    **A stream** takes the same words, but for `window` and `partitions`: `table.isStreaming` decides. `patience` ("30
    seconds") says how long a row waits for what it follows (default: for ever); `remember` how long identifiers, or
    counts of a partition without rows, are known (default: "7 days"); `buckets` how many states there are, the same as
    long as a checkpoint is used. A column `kind` says what became of a row (docs/stream.md).

    >>> from antecede.spark import connect
    >>> spark = connect("local[1]")
    >>> rows = [("paid", ["ordered"]), ("sent", ["paid", "packed"]), ("ordered", None)]
    >>> ordered = order(spark.createDataFrame(rows, "event string, after array<string>"), id="event", causes="after")
    >>> [(row.event, row.position, row.waits_for) for row in ordered.collect()]
    [('ordered', 0, []), ('paid', 1, []), ('sent', 2, ['packed'])]
    >>> [tuple(row) for row in missing(ordered).collect()]
    [('packed', 1, 1)]
    """
    groups = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    none = (no_cause,) if isinstance(no_cause, str) else tuple(no_cause)
    if not isinstance(table, Trace):
        refuse_other_tables("order", table)
    by_id = {"id": id, "causes": causes}
    by_clock = {"process": process, "vector": vector}
    by_packet = {"stamp": stamp, "protocol": protocol, "processes": processes, "parameters": parameters}
    form: Form
    if isinstance(table, Trace):
        refuse_names("a trace", **by_id, **by_clock, **by_packet, partition_by=groups)
        form = ByTrace(time=time)
    elif id is not None and causes is not None:
        refuse_names("explicit causes", **by_clock, **by_packet)
        form = ByCauses(id, causes, groups, time, none)
    elif process is not None and vector is not None:
        refuse_names("vectors", **by_id, **by_packet)
        form = ByVector(process, vector, groups, time)
    elif protocol is not None and processes is not None:
        refuse_names("stamps", **by_id, **by_clock)
        arrival = time or ("arrival" if "arrival" in table.columns else None)
        form = ByStamp(
            stamp or "stamp",
            protocol,
            tuple(processes),
            dict(parameters or {}),
            (*groups, "receiver"),
            arrival,
        )
    else:
        refuse_names("a trace", **by_id, **by_clock, **by_packet, partition_by=groups)
        form = ByTrace(time=time)
    if isinstance(table, DataFrame) and table.isStreaming:
        # The one place where a stream and a table part.
        refuse_names("a stream", window=window, partitions=partitions)
        refuse_types(table)
        if isinstance(form, ByTrace):
            raise BadParameter("order", f"a stream needs the names of its columns: {NAMED}")
        return order_stream(table, form, patience=patience, remember=remember, buckets=buckets)
    refuse_names("a table", patience=patience, remember=remember, buckets=buckets)
    if isinstance(form, ByTrace):
        trace = Trace.of(table) if isinstance(table, DataFrame) else table
        table = by_trace.read_all_columns(trace).events
    assert isinstance(table, DataFrame)
    refuse_column_names("order", table, {}, added=ADDED)
    if isinstance(form, (ByCauses, ByStamp)):
        refuse_types(table)
    home = HOMES[type(form)]
    refuse_told_names(groups, (*TOLD, *home.TOLD))
    home.refuse_columns(table, form)
    rows, own = alias_columns(table, home.READ)
    mine = rename_request(form, own)
    found = home.order_rows(rows, mine, partitions)
    found = found if window is None else keep_window(found, mine, window)
    return note_form(found.toDF(*table.columns, *ADDED), form)


def refuse_types(table: DataFrame) -> None:
    """Refuse columns that cannot pass through tasks in Python: Arrow has no such type, or PySpark does not know it."""
    for field in table.schema:
        try:
            to_arrow_schema(StructType([field]), timezone="UTC")
        except PySparkException:
            kind = field.dataType.simpleString()
            raise BadParameter(
                "order",
                f"column {field.name} is {kind}, which tasks in Python cannot take: cast it, or leave it out",
            ) from None


def refuse_told_names(partition_by: Sequence[str], told: Sequence[str]) -> None:
    for name in partition_by:
        if name.lower() in told:
            raise BadParameter(
                "order",
                f"partition_by cannot be {name}: the table of missing causes has a column of that name",
            )


def keep_window(ordered: DataFrame, form: Form, window: Sequence[Any]) -> DataFrame:
    """The rows whose time is in the window: at or after its first value, and before its second."""
    time = form.time or ("time_ns" if isinstance(form, ByTrace) else None)
    if time is None:
        raise BadParameter("order", "a window needs the column of times: give time=")
    if isinstance(window, str) or len(window) != 2:
        raise BadParameter("order", f"window must be two times, ISO 8601 or integers, and is {window!r}")
    for bound in window:
        refuse_bound(bound)
    bounded = ordered.withColumns({"__from": F.lit(window[0]), "__until": F.lit(window[1])})
    at, start, end = (read_time(bounded, name) for name in (time, "__from", "__until"))
    return bounded.where((at >= start) & (at < end)).drop("__from", "__until")


def refuse_bound(bound: Any) -> None:
    """A text that is no time would give no rows."""
    if isinstance(bound, str) and not bound.removeprefix("-").isdigit():
        try:
            datetime.fromisoformat(bound)
        except ValueError:
            raise BadParameter(
                "order", f"window must be two times, ISO 8601 or integers, and has {bound!r}"
            ) from None


def refuse_names(form: str, **names: object) -> None:
    for name, given in names.items():
        if given:
            raise BadParameter("order", f"{name} does not go with {form}: name {NAMED}, or a trace")


def missing(ordered: DataFrame) -> DataFrame:
    """List what rows of an ordered table wait for and the table does not have, each once.

    By causes: the partition columns, the identifier under the name of its column, how many rows name it (`direct`) and
    how many wait for it (`waiting`). By vectors: the partition columns, `process`, `first` and `last`: ranges of
    numbers. By stamps: the partition columns, `sender`, `first`, `last`, by which count (`counted`), and how many rows
    wait for them. Of a trace: `run`, `sender`, `number`.
    """
    rows, form, own = read_ordered(ordered)
    return rename_columns(HOMES[type(form)].find_missing(rows, form), own)


def refused(ordered: DataFrame) -> DataFrame:
    """List the partitions that have no order (their columns, `rows`, `reason`); by stamps, rows that are no packets."""
    rows, form, own = read_ordered(ordered)
    return rename_columns(HOMES[type(form)].explain_refused(rows, form), own)


def count_rows(ordered: DataFrame) -> DataFrame:
    """For each partition: `rows`, how many are `waiting`, how many of them `direct`ly, and whether it is `refused`."""
    rows, form, own = read_ordered(ordered)
    waits = F.col("position").isNotNull() & (F.size("waits_for") > 0)
    direct = waits
    if isinstance(form, ByCauses):
        direct = waits & F.arrays_overlap(list_causes(rows, form), F.col("waits_for"))
    refused = (F.count("position") == 0) & (F.count(F.lit(1)) > 0)
    if isinstance(form, ByStamp):
        # A packet of the protocol itself has no number, and no position.
        refused = F.count_if(F.col("position").isNull() & F.col("number").isNotNull()) > 0
    counts = rows.groupBy(*form.partition_by).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(waits).alias("waiting"),
        F.count_if(direct).alias("direct"),
        refused.alias("refused"),
    )
    return rename_columns(counts, own)


def read_ordered(ordered: DataFrame) -> tuple[DataFrame, Form, dict[str, str]]:
    """The rows and their form under names of our own, and these names."""
    form = read_form(ordered)
    rows, own = alias_columns(ordered, (*HOMES[type(form)].READ, *ADDED))
    return rows, rename_request(form, own), own


def note_form(ordered: DataFrame, form: Form) -> DataFrame:
    """The same table, which says how it was ordered."""
    metadata = {NOTE: msgspec.json.encode({"form": name_form(form), **msgspec.structs.asdict(form)}).decode()}
    return ordered.withMetadata("waits_for", metadata)


def name_form(form: Form) -> str:
    return next(name for name, one in FORMS.items() if isinstance(form, one))


def read_form(ordered: DataFrame) -> Form:
    """How a table was ordered."""
    refuse_other_tables("order", ordered)
    note = ordered.schema["waits_for"].metadata.get(NOTE) if "waits_for" in ordered.columns else None
    if note is None:
        raise BadParameter("order", "the table must be a result of order, with its column waits_for")
    told: dict[str, Any] = msgspec.json.decode(note)
    return msgspec.convert(told, FORMS[told.pop("form")])
