"""Jaeger's JSON: `data`, a list of traces, one trace by itself, or one span, as its storages have them line by line.

A trace has `spans` and, under `processes`, who they are of. References are CHILD_OF and FOLLOWS_FROM: the first
CHILD_OF is the parent, the others are links. Times are microseconds. Ids are hex, some without their first zeros.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from antecede.spark.spans.documents import compile_apart, explode_spans
from antecede.spark.spans.schema import (
    NO_ID,
    Lookup,
    derive_messaging,
    derive_process,
    derive_resource,
    explain,
    name_kind,
    read_integer,
)

__all__ = ["read_jaeger"]

TAGS: Final = "array<struct<key:string,value:string>>"
PROCESS: Final = f"struct<serviceName:string,tags:{TAGS}>"
SPAN: Final = (
    "struct<traceID:string,spanID:string,parentSpanID:string,operationName:string,startTime:string,duration:string,"
    f"processID:string,process:{PROCESS},tags:{TAGS},"
    "references:array<struct<refType:string,traceID:string,spanID:string>>>"
)
TRACE: Final = f"struct<spans:array<{SPAN}>,processes:map<string,{PROCESS}>>"
DOCUMENT: Final = f"struct<data:array<{TRACE}>,{TRACE[7:]}"
TRACES: Final = """transform(documents, one ->
    if(one.spans IS NULL, one.data, array(struct(one.spans AS spans, one.processes AS processes))))"""
READ: Final = """if(contains(text, '"spans"') OR NOT contains(text, '"spanID"'), text,
    concat('{"spans":[', text, ']}'))"""
NO_REFERENCES: Final = "CAST(array() AS array<struct<type:string,trace_id:string,span_id:string>>)"


def read_jaeger(spark: SparkSession, names: list[str], process: tuple[str, ...] = ()) -> DataFrame:
    """The spans in these files, and what cannot be read."""
    spans = explode_spans(
        spark,
        names,
        DOCUMENT,
        READ,
        groups=TRACES,
        no_group=TRACE,
        format="JSON of Jaeger",
        other="data nor spans",
        facts=["of.processes AS processes"],
        spans="of.spans",
        no_span=SPAN,
    )
    return describe_spans(spans, process)


def describe_spans(spans: DataFrame, process: tuple[str, ...]) -> DataFrame:
    tags = look_up("span.tags")
    messaging = derive_messaging(tags, "kind")
    resource = derive_resource(look_up("of.tags"))
    host = look_up("of.tags")("hostname")
    written = (
        f"""transform(span.references, one -> {make_reference("one.refType", "one.traceID", "one.spanID")})"""
    )
    # The oldest clients wrote no references.
    old = f"""if(NOT span.parentSpanID RLIKE '{NO_ID}',
        array({make_reference("'CHILD_OF'", "span.traceID", "span.parentSpanID")}), {NO_REFERENCES})"""
    known = spans.selectExpr(
        "*",
        "coalesce(span.process, element_at(processes, span.processID)) AS of",
        f"{read_trace_id('span.traceID')} AS trace_id",
        f"{read_span_id('span.spanID')} AS span_id",
        f"if(size(span.references) > 0, {written}, coalesce({old}, {NO_REFERENCES})) AS references",
        f"{read_micros('span.startTime')} AS start_ns",
        f"{read_micros('span.duration')} AS duration_ns",
    ).selectExpr(
        "*",
        "get(filter(references, one -> one.type = 'CHILD_OF' AND one.trace_id = trace_id), 0).span_id AS parent_id",
    )
    wrong = [
        ("span IS NULL", "a null stands where spans should be", "''"),
        ("trace_id IS NULL", "its traceID is no hex: ", "span.traceID"),
        ("span_id IS NULL", "its spanID is no hex: ", "span.spanID"),
        (
            "exists(references, one -> one.trace_id IS NULL OR one.span_id IS NULL)",
            "it has a reference without ids in hex",
            "''",
        ),
        *(
            (f"span.{name} IS NOT NULL AND {read} IS NULL", f"its {name} is no integer: ", f"span.{name}")
            for name, read in (("startTime", "start_ns"), ("duration", "duration_ns"))
        ),
    ]
    explained = compile_apart(known.selectExpr("*", f"{explain(wrong, 'unread_reason')} AS reason"))
    tagged = explained.selectExpr("*", f"{name_kind(tags('span.kind'))} AS kind").selectExpr(
        "*", *(f"{column} AS messaging_{name}" for name, column in messaging.items())
    )
    return compile_apart(tagged).selectExpr(
        "file",
        f"coalesce(of.serviceName, {resource['service']}) AS service",
        f"coalesce({resource['instance']}, {host}) AS instance",
        f"{derive_process(process, look_up('of.tags'), tags)} AS process",
        "trace_id",
        "span_id",
        "parent_id",
        """filter(references, one -> NOT (one.trace_id = trace_id AND coalesce(one.span_id = parent_id, false)))
            AS linked""",
        "span.operationName AS name",
        "kind",
        "start_ns",
        "try_add(start_ns, duration_ns) AS end_ns",
        *(f"messaging_{name}" for name in messaging),
        "reason",
        "if(reason IS NULL, NULL, coalesce(unread, to_json(span))) AS text",
    )


def make_reference(kind: str, trace: str, span: str) -> str:
    return f"struct({kind} AS type, {read_trace_id(trace)} AS trace_id, {read_span_id(span)} AS span_id)"


def look_up(tags: str) -> Lookup:
    return lambda key: f"get({tags}.value, CAST(array_position({tags}.key, '{key}') - 1 AS int))"


def read_micros(text: str) -> str:
    """Microseconds as nanoseconds; null if they are no integer, or too many."""
    return f"try_multiply({read_integer(text)}, 1000L)"


def read_span_id(text: str) -> str:
    """Eight bytes in hex."""
    return f"if({is_hexadecimal(text, 16)}, lpad(lower({text}), 16, '0'), NULL)"


def read_trace_id(text: str) -> str:
    """Eight or sixteen bytes in hex: the oldest clients had the shorter ones."""
    size = f"if(length({text}) <= 16, 16, 32)"
    return f"if({is_hexadecimal(text, 32)}, lpad(lower({text}), {size}, '0'), NULL)"


def is_hexadecimal(text: str, most: int) -> str:
    return f"{text} RLIKE '^[0-9a-fA-F]{{1,{most}}}$' AND NOT {text} RLIKE '{NO_ID}'"
