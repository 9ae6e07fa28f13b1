"""The formats of foreign logs and of spans, and what can be refused before anything is read.

shiviz, tracing, tlaplus, table   logs of events
otlp     OTLP as JSON: lines of the Collector's file exporter, and what Tempo answers
jaeger   what Jaeger answers, and its user interface saves
spans    a table, whose columns are those of ClickHouse's `otel_traces`, or are named by a mapping
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from antecede.errors import BadParameter, BadTrace
from antecede.trace.foreign import shiviz
from antecede.trace.foreign.lines import LINES

__all__ = [
    "FORMATS", "MAPS", "NO_UTF8", "OTEL_TRACES", "SPAN_COLUMNS", "SPAN_FORMATS", "SPAN_LISTS", "TABLE",
    "choose_columns", "is_stated", "name_columns", "refuse_absent_columns", "refuse_repeated_columns", "refuse_request",
    "refuse_span_request",
]  # fmt: skip

TABLE: Final = "table"
NO_UTF8: Final = "the text is not UTF-8: convert it, as `iconv -f LATIN1 -t UTF-8` does, or with -f UTF-16"
FORMATS: Final = ("shiviz", *LINES, TABLE)


def refuse_request(
    format: str, pattern: str | None, delimiter: str | None, mapping: Mapping[str, str] | None
) -> None:
    """Refuse a request that contradicts itself.

    >>> refuse_request("csv", None, None, None)
    Traceback (most recent call last):
    antecede.errors.BadParameter: ingest: format must be one of shiviz, tracing, tlaplus, table, not 'csv'
    """
    if format not in FORMATS:
        raise BadParameter.choice("ingest", "format", format, FORMATS)
    if format != "shiviz" and (pattern or delimiter):
        raise BadParameter("ingest", f"pattern is for shiviz, not for {format}")
    if (format == TABLE) != (mapping is not None):
        raise BadParameter(
            "ingest",
            f"map is for a table, not for {format}"
            if mapping
            else "a table needs map, the names of its columns, such as process=host,kind=what,message=id",
        )
    shiviz.expressions(pattern, delimiter)


def name_columns(columns: Collection[str]) -> str:
    """The columns of a table in words, and what a single one with other signs in its name tells.

    >>> name_columns(["id", "parent"])
    'id, parent'
    >>> name_columns(["id;parent"])
    'id;parent (in CSV, values are separated by commas)'
    """
    named = ", ".join(columns)
    alone = len(columns) == 1 and any(sign in named for sign in ";\t|")
    return f"{named} (in CSV, values are separated by commas)" if alone else named


def refuse_absent_columns(owner: str, mapping: Mapping[str, str], there: Collection[str]) -> None:
    """Refuse a mapping to columns that a table does not have.

    >>> refuse_absent_columns("ingest", {"process": "host"}, ["pod", "at"])
    Traceback (most recent call last):
    antecede.errors.BadParameter: ingest: map has process=host, and the table has no such column; its columns are ...
    """
    for ours, name in mapping.items():
        if name not in there:
            raise BadParameter(
                owner,
                f"map has {ours}={name}, and the table has no such column; its columns are {name_columns(there)}",
            )


def refuse_repeated_columns(place: str, columns: Sequence[str]) -> None:
    """Refuse a first line that names a column twice. Spark takes names that differ in case for one.

    >>> refuse_repeated_columns("a.csv", ["id", "cause", "ID"])
    Traceback (most recent call last):
    antecede.errors.BadTrace: a.csv: the first line names a column twice, id and ID: rename one of them
    """
    known: dict[str, str] = {}
    for name in filter(None, columns):
        if before := known.get(name.lower()):
            raise BadTrace(
                place, f"the first line names a column twice, {before} and {name}: rename one of them"
            )
        known[name.lower()] = name


# Spans

SPAN_FORMATS: Final = ("otlp", "jaeger", "spans")

MAPS: Final = ("resource", "attributes")
"""Columns of a table that hold attributes: of the process, and of the span."""
SPAN_LISTS: Final = ("link_trace_ids", "link_span_ids")
"""Columns of a table that hold one element for each link."""
SPAN_COLUMNS: Final = (
    "id", "trace_id", "parent", "name", "kind", "service", "instance", "process", "start_ns", "end_ns", "duration_ns",
    "messaging_system", "messaging_destination", "messaging_operation", "messaging_message_id", "messaging_partition",
    "messaging_offset", *MAPS, *SPAN_LISTS,
)  # fmt: skip
"""What a column of a table can be."""

OTEL_TRACES: Final = {
    "id": "SpanId",
    "trace_id": "TraceId",
    "parent": "ParentSpanId",
    "name": "SpanName",
    "kind": "SpanKind",
    "service": "ServiceName",
    "start_ns": "Timestamp",
    "duration_ns": "Duration",
    "resource": "ResourceAttributes",
    "attributes": "SpanAttributes",
    "link_trace_ids": "Links.TraceId",
    "link_span_ids": "Links.SpanId",
}
"""The columns of ClickHouse's `otel_traces`: the mapping of a table for which none is given."""


def is_stated(parameters: str | None) -> bool:
    """Whether a run, by its `parameters`, is to be verified by the causality that its spans state.

    >>> is_stated('{"causality": "stated"}'), is_stated('{"n": 3}')
    (True, False)
    """
    return bool(json.loads(parameters or "{}").get("causality") == "stated")


def choose_columns(mapping: Mapping[str, str] | None, there: Collection[str]) -> Mapping[str, str]:
    """Which of the columns that a table has is which of ours; refuse a table that lacks one of them.

    >>> choose_columns(None, ["SpanId", "TraceId", "Cluster"])
    {'id': 'SpanId', 'trace_id': 'TraceId'}
    >>> choose_columns(None, ["span", "trace"])
    Traceback (most recent call last):
    antecede.errors.BadParameter: read_spans: the table has no column SpanId, as ClickHouse's otel_traces has: ...
    """
    if mapping is not None:
        refuse_absent_columns("read_spans", mapping, there)
        return mapping
    for needed in ("id", "trace_id"):
        if OTEL_TRACES[needed] not in there:
            raise BadParameter(
                "read_spans",
                f"the table has no column {OTEL_TRACES[needed]}, as ClickHouse's otel_traces has: "
                f"map at least id and trace_id to its columns, which are {name_columns(there)}",
            )
    return {ours: name for ours, name in OTEL_TRACES.items() if name in there}


def refuse_span_request(format: str, mapping: Mapping[str, str] | None) -> None:
    """Refuse a request that contradicts itself.

    >>> refuse_span_request("spans", {"id": "SpanID"})
    Traceback (most recent call last):
    antecede.errors.BadParameter: read_spans: map must name the columns for id and trace_id, and has no trace_id
    """
    if format not in SPAN_FORMATS:
        raise BadParameter.choice("read_spans", "format", format, SPAN_FORMATS)
    if mapping is None:
        return
    if format != "spans":
        raise BadParameter("read_spans", f"map is for the format spans, not for {format}")
    for ours, name in mapping.items():
        if ours not in SPAN_COLUMNS:
            raise BadParameter.choice("read_spans", f"the key of map {ours}={name}", ours, SPAN_COLUMNS)
    for needed in ("id", "trace_id"):
        if needed not in mapping:
            raise BadParameter(
                "read_spans", f"map must name the columns for id and trace_id, and has no {needed}"
            )
    if (SPAN_LISTS[0] in mapping) != (SPAN_LISTS[1] in mapping):
        raise BadParameter(
            "read_spans", f"map has only one of {' and '.join(SPAN_LISTS)}: give both, or none"
        )
    if "end_ns" in mapping and "duration_ns" in mapping:
        raise BadParameter("read_spans", "map has both end_ns and duration_ns: give one of them")
