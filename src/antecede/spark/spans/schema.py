"""One row a span: its columns, and how they follow from what the formats say.

    id                      TRACE:SPAN, in hex where the format has it
    parent, links, causes   such ids; `causes` are the parent and the links, each once
    trace_id, span_id, name, kind
    service, instance, process   `process` is SERVICE/INSTANCE, or the one of them that is known
    start, end              timestamps: Spark's end at the microsecond
    start_ns, end_ns        the same in nanoseconds since 1970, exactly
    messaging_system, messaging_destination, messaging_operation, messaging_message_id

A format gives the columns of `RAW`. Attributes have new and old names: the new one is looked for first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

__all__ = [
    "NO_ID",
    "REJECTED",
    "SPANS",
    "Lookup",
    "derive_messaging",
    "derive_resource",
    "explain",
    "finish_rows",
    "name_kind",
    "read_integer",
]

SPANS: Final = """
    id string, causes array<string>, parent string, links array<string>, trace_id string, span_id string,
    name string, kind string, service string, instance string, process string,
    start timestamp, end timestamp, start_ns bigint, end_ns bigint,
    messaging_system string, messaging_destination string, messaging_operation string, messaging_message_id string
"""
REJECTED: Final = "file string, text string, reason string"

RAW: Final = (
    "trace_id",
    "span_id",
    "parent_id",
    "linked",
    "name",
    "kind",
    "service",
    "instance",
    "process",
    "start_ns",
    "end_ns",
    "messaging_system",
    "messaging_destination",
    "messaging_operation",
    "messaging_message_id",
    "file",
    "text",
    "reason",
)
"""What a format gives. `linked` has structs of trace_id and span_id; only a rejected row has `text` and `reason`."""

NO_ID: Final = r"^0*$"
"""An id that says that there is none."""

Lookup = Callable[[str], Column]
"""The value of an attribute, as text."""

KINDS: Final = ("internal", "server", "client", "producer", "consumer")
OPERATIONS: Final = {"publish": "send", "deliver": "process"}
"""Types of operations that had another name in older conventions."""


def derive_resource(find: Lookup) -> dict[str, Column]:
    """Who it was, by the attributes of the process."""
    host, pid = find("host.name"), find("process.pid")
    on_host = F.when(host.isNotNull() & pid.isNotNull(), F.concat_ws("/", host, pid))
    return {
        "service": find("service.name"),
        "instance": F.coalesce(find("service.instance.id"), find("k8s.pod.name"), on_host),
    }


def derive_messaging(find: Lookup, kind: Column) -> dict[str, Column]:
    """What a span did with a message.

    The operation decides, not the span kind, which changed between versions of the conventions. The oldest forbade
    the operation on a send: there alone the kind says it.
    """
    system = find("messaging.system")
    named = F.lower(F.coalesce(find("messaging.operation.type"), find("messaging.operation")))
    operation = named
    for old, new in OPERATIONS.items():
        operation = F.when(named == old, new).otherwise(operation)
    unnamed_send = named.isNull() & system.isNotNull() & (kind == "producer")
    return {
        "messaging_system": system,
        "messaging_destination": F.coalesce(
            find("messaging.destination.name"), find("messaging.destination")
        ),
        "messaging_operation": F.when(unnamed_send, "send").otherwise(operation),
        "messaging_message_id": F.coalesce(find("messaging.message.id"), find("messaging.message_id")),
    }


def name_kind(kind: Column) -> Column:
    """`producer` for 4, Producer and SPAN_KIND_PRODUCER; null for a kind that is not specified."""
    word = F.regexp_replace(F.lower(kind), "^span_kind_", "")
    numbered = F.get(F.array(*map(F.lit, KINDS)), word.try_cast("int") - 1)
    return F.coalesce(numbered, F.when(~word.isin("", "0", "unspecified"), word))


def read_integer(text: Column) -> Column:
    """A text of digits as a number; null for any other, and for one that is too large."""
    return F.when(text.rlike(r"^[0-9]{1,19}$"), text.try_cast("bigint"))


def explain(wrong: Sequence[tuple[Column, str, Column]], before: Column) -> Column:
    """The first thing that is wrong with a row, or null: conditions, words, and what is shown behind them."""
    reason = F.lit(None).cast("string")
    for condition, words, shown in reversed(wrong):
        told = F.concat(F.lit(words), F.coalesce(shown.cast("string"), F.lit("")))
        reason = F.when(condition, told).otherwise(reason)
    return F.coalesce(before, reason)


def finish_rows(raw: DataFrame) -> DataFrame:
    """The columns of `SPANS` and `REJECTED`, from those of `RAW`."""
    parent = join_ids(F.col("trace_id"), F.col("parent_id"))
    links = F.transform("linked", lambda link: join_ids(link["trace_id"], link["span_id"]))
    rows = raw.select(*RAW).withColumns(
        {
            "id": join_ids(F.col("trace_id"), F.col("span_id")),
            "parent": parent,
            "links": F.array_compact(F.coalesce(links, F.array().cast("array<string>"))),
            "process": F.coalesce("process", no_empty(F.concat_ws("/", "service", "instance"))),
        }
    )
    micros = {at: F.expr(f"timestamp_micros({at}_ns div 1000)") for at in ("start", "end")}
    causes = F.array_distinct(F.array_compact(F.concat(F.array("parent"), "links")))
    return rows.withColumns({**micros, "causes": causes})


def join_ids(trace: Column, span: Column) -> Column:
    return F.concat(trace, F.lit(":"), span)


def no_empty(text: Column) -> Column:
    return F.when(text != "", text)
