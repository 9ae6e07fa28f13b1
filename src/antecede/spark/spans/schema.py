"""One row a span: its columns, and how they follow from what the formats say.

    id                      TRACE:SPAN, in hex where the format has it
    parent, links, causes   such ids; `causes` are the parent and the links, each once
    trace_id, span_id, name, kind
    service, instance, process   `process` is SERVICE/INSTANCE, or the one of them that is known
    start, end              timestamps: Spark's end at the microsecond
    start_ns, end_ns        the same in nanoseconds since 1970, exactly
    messaging_*             what the span did with a message (`MESSAGING`), under the new or the old names

A format gives the columns of `RAW`. Expressions are SQL: a call of Python for each part of them takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame

__all__ = [
    "MESSAGING",
    "NO_ID",
    "REJECTED",
    "SPANS",
    "Lookup",
    "derive_messaging",
    "derive_process",
    "derive_resource",
    "escape_text",
    "explain",
    "finish_rows",
    "name_kind",
    "read_integer",
]

MESSAGING: Final[Mapping[str, Sequence[str]]] = {
    "system": ["messaging.system"],
    "destination": ["messaging.destination.name", "messaging.destination"],
    "operation": ["messaging.operation.type", "messaging.operation"],
    "message_id": ["messaging.message.id", "messaging.message_id"],
    "partition": [
        "messaging.destination.partition.id",
        "messaging.kafka.destination.partition",
        "messaging.kafka.source.partition",
        "messaging.kafka.partition",
    ],
    "offset": ["messaging.kafka.offset", "messaging.kafka.message.offset"],
}
"""Column -> the attributes that it is taken from: the new name first, then the old ones."""

SPANS: Final = """
    id string, causes array<string>, parent string, links array<string>, trace_id string, span_id string,
    name string, kind string, service string, instance string, process string,
    start timestamp, end timestamp, start_ns bigint, end_ns bigint,
    messaging_system string, messaging_destination string, messaging_operation string, messaging_message_id string,
    messaging_partition string, messaging_offset string
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
    *(f"messaging_{name}" for name in MESSAGING),
    "file",
    "text",
    "reason",
)
"""What a format gives. `linked` has structs of trace_id and span_id; only a rejected row has `text` and `reason`."""

NO_ID: Final = "^0*$"
"""An id that says that there is none."""

Lookup = Callable[[str], str]
"""The expression for the value of an attribute, as text."""

KINDS: Final = ("internal", "server", "client", "producer", "consumer")
OPERATIONS: Final = {"publish": "send", "deliver": "process"}
"""Types of operations that had another name in older conventions."""


def derive_resource(find: Lookup) -> dict[str, str]:
    """Who it was, by the attributes of the process."""
    host, pid = find("host.name"), find("process.pid")
    on_host = f"concat({host}, '/', {pid})"
    return {
        "service": find("service.name"),
        "instance": f"coalesce({find('service.instance.id')}, {find('k8s.pod.name')}, {on_host})",
    }


def derive_process(attributes: Sequence[str], *finds: Lookup) -> str:
    """The process by these attributes, the first of the lookups that has one; null if none is asked for, or known."""
    found = [coalesce([find(escape_text(name)) for find in finds] + ["NULL"]) for name in attributes]
    return f"nullif(concat_ws('/', {', '.join(found)}), '')" if found else "CAST(NULL AS string)"


def escape_text(text: str) -> str:
    """A text, as it stands between quotes in an expression.

    >>> print(escape_text("it's"))
    it\\'s
    """
    return text.replace("\\", "\\\\").replace("'", "\\'")


def derive_messaging(find: Lookup, kind: str) -> dict[str, str]:
    """What a span did with a message.

    The operation decides, not the span kind, which changed between versions of the conventions. The oldest forbade
    the operation on a send: there alone the kind says it.
    """
    found = {name: coalesce(map(find, attributes)) for name, attributes in MESSAGING.items()}
    named = f"lower({found['operation']})"
    renamed = " ".join(f"WHEN '{old}' THEN '{new}'" for old, new in OPERATIONS.items())
    unnamed = f"if({found['system']} IS NOT NULL AND {kind} = 'producer', 'send', NULL)"
    found["operation"] = f"coalesce(CASE {named} {renamed} ELSE {named} END, {unnamed})"
    return found


def coalesce(many: Iterable[str]) -> str:
    return f"coalesce({', '.join(many)})"


def name_kind(kind: str) -> str:
    """`producer` for 4, Producer and SPAN_KIND_PRODUCER; null for a kind that is not specified, or unknown."""
    numbered = " ".join(f"WHEN '{number}' THEN '{name}'" for number, name in enumerate(KINDS, 1))
    named = " ".join(f"WHEN '{name}' THEN '{name}' WHEN 'span_kind_{name}' THEN '{name}'" for name in KINDS)
    return f"CASE {kind} {numbered} ELSE CASE lower({kind}) {named} END END"


def read_integer(text: str) -> str:
    """A text of digits as a number; null for any other, and for one that is too large."""
    return f"if({text} RLIKE '^[0-9]{{1,19}}\\\\z', try_cast({text} AS bigint), NULL)"


def explain(wrong: Sequence[tuple[str, str, str]], before: str) -> str:
    """The first thing that is wrong with a row, or null: conditions, words, and what is shown behind them."""
    cases = " ".join(
        f"WHEN {condition} THEN concat('{words}', coalesce(CAST({shown} AS string), ''))"
        for condition, words, shown in wrong
    )
    return f"coalesce({before}, CASE {cases} END)"


def finish_rows(raw: DataFrame) -> DataFrame:
    """The columns of `SPANS` and `REJECTED`, from those of `RAW`."""
    links = "array_compact(transform(linked, of -> concat(of.trace_id, ':', of.span_id)))"
    none = "CAST(array() AS array<string>)"
    rows = raw.selectExpr(
        *(name for name in RAW if name not in ("process", "linked", "parent_id")),
        "concat(trace_id, ':', span_id) AS id",
        "concat(trace_id, ':', parent_id) AS parent",
        f"if(size(linked) > 0, {links}, {none}) AS links",
        "coalesce(process, nullif(concat_ws('/', service, instance), '')) AS process",
    )
    few = f"if(parent IS NULL, {none}, array(parent))"
    return rows.selectExpr(
        "*",
        "timestamp_micros(start_ns div 1000) AS start",
        "timestamp_micros(end_ns div 1000) AS end",
        f"if(size(links) > 0, array_distinct(concat({few}, links)), {few}) AS causes",
    )
