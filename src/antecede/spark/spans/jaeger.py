"""Jaeger's JSON: `data`, a list of traces, or one trace by itself.

A trace has `spans` and, under `processes`, who they are of. References are CHILD_OF and FOLLOWS_FROM: the first
CHILD_OF is the parent, the others are links. Times are microseconds. Ids are hex, some without their first zeros.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.spark.spans.documents import parse_documents, read_documents
from antecede.spark.spans.schema import (
    NO_ID,
    Lookup,
    derive_messaging,
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
TRACE: Final = f"struct<traceID:string,spans:array<{SPAN}>,processes:map<string,{PROCESS}>>"
DOCUMENT: Final = f"struct<data:array<{TRACE}>,{TRACE[7:]}"


def read_jaeger(spark: SparkSession, names: list[str]) -> DataFrame:
    """The spans in these files, and what cannot be read."""
    documents = parse_documents(read_documents(spark, names), DOCUMENT)
    single = F.col("document.spans").isNotNull()
    known = F.col("document.data").isNotNull() | single
    reason = F.when(F.col("broken").isNotNull(), "it is no JSON of Jaeger").when(
        ~F.coalesce(known, F.lit(False)), "it has neither data nor spans"
    )
    nothing = F.array(F.lit(None).cast(TRACE))
    alone = F.array(F.struct("document.traceID", "document.spans", "document.processes"))
    traces = documents.select(
        "file",
        F.when(reason.isNotNull(), F.col("text")).alias("unread"),
        reason.alias("unread_reason"),
        F.explode(
            F.when(reason.isNotNull(), nothing).when(single, alone).otherwise(F.col("document.data"))
        ).alias("of"),
    )
    nobody = F.array(F.lit(None).cast(SPAN))
    spans = traces.select(
        "file",
        "unread",
        "unread_reason",
        F.col("of.processes").alias("processes"),
        F.explode(F.when(F.col("of").isNull(), nobody).otherwise(F.col("of.spans"))).alias("span"),
    )
    process = F.coalesce("span.process", F.element_at("processes", F.col("span.processID")))
    return describe_spans(spans.withColumn("of", process))


def describe_spans(spans: DataFrame) -> DataFrame:
    span = F.col("span")
    tags = look_up("span.tags")
    kind = name_kind(tags("span.kind"))
    own = read_trace_id(span["traceID"])
    # The oldest clients wrote no references.
    old = F.when(
        ~span["parentSpanID"].rlike(NO_ID),
        F.array(make_reference(F.lit("CHILD_OF"), own, span["parentSpanID"])),
    )
    written = F.transform(
        span["references"],
        lambda of: make_reference(of["refType"], read_trace_id(of["traceID"]), of["spanID"]),
    )
    references = F.when(F.size(written) > 0, written).otherwise(F.coalesce(old, F.array().cast(REFERENCES)))
    parents = F.filter(references, lambda of: (of["type"] == "CHILD_OF") & (of["trace_id"] == own))
    parent = F.get(parents, F.lit(0))["span_id"]
    linked = F.filter(
        references, lambda of: ~((of["trace_id"] == own) & F.coalesce(of["span_id"] == parent, F.lit(False)))
    )
    bad = F.exists(references, lambda of: of["trace_id"].isNull() | of["span_id"].isNull())
    start, duration = read_micros(span["startTime"]), read_micros(span["duration"])
    reason = explain(
        [
            (span.isNull(), "a null stands where spans should be", F.lit("")),
            (own.isNull(), "its traceID is no hex: ", span["traceID"]),
            (read_span_id(span["spanID"]).isNull(), "its spanID is no hex: ", span["spanID"]),
            (bad, "it has a reference without ids in hex", F.lit("")),
            (
                span["startTime"].isNotNull() & start.isNull(),
                "its startTime is no integer: ",
                span["startTime"],
            ),
            (
                span["duration"].isNotNull() & duration.isNull(),
                "its duration is no integer: ",
                span["duration"],
            ),
        ],
        F.col("unread_reason"),
    )
    resource = derive_resource(look_up("of.tags"))
    host = look_up("of.tags")("hostname")
    return spans.select(
        "file",
        F.coalesce("of.serviceName", resource["service"]).alias("service"),
        F.coalesce(resource["instance"], host).alias("instance"),
        F.lit(None).cast("string").alias("process"),
        own.alias("trace_id"),
        read_span_id(span["spanID"]).alias("span_id"),
        parent.alias("parent_id"),
        linked.alias("linked"),
        span["operationName"].alias("name"),
        kind.alias("kind"),
        start.alias("start_ns"),
        F.try_add(start, duration).alias("end_ns"),
        *(column.alias(name) for name, column in derive_messaging(tags, kind).items()),
        reason.alias("reason"),
        F.when(reason.isNotNull(), F.coalesce("unread", F.to_json(span))).alias("text"),
    )


REFERENCES: Final = "array<struct<type:string,trace_id:string,span_id:string>>"


def make_reference(kind: Column, trace: Column, span: Column) -> Column:
    return F.struct(kind.alias("type"), trace.alias("trace_id"), read_span_id(span).alias("span_id"))


def look_up(tags: str) -> Lookup:
    def find(key: str) -> Column:
        return F.get(F.col(f"{tags}.value"), (F.array_position(f"{tags}.key", key) - 1).cast("int"))

    return find


def read_micros(text: Column) -> Column:
    """Microseconds as nanoseconds; null if they are no integer, or too many."""
    return F.try_multiply(read_integer(text), F.lit(1000))


def read_span_id(text: Column) -> Column:
    """Eight bytes in hex."""
    sound = text.rlike("^[0-9a-fA-F]{1,16}$") & ~text.rlike(NO_ID)
    return F.when(sound, F.lpad(F.lower(text), 16, "0"))


def read_trace_id(text: Column) -> Column:
    """Eight or sixteen bytes in hex: the oldest clients had the shorter ones."""
    sound = text.rlike("^[0-9a-fA-F]{1,32}$") & ~text.rlike(NO_ID)
    size = F.when(F.length(text) <= 16, 16).otherwise(32)
    return F.when(sound, F.lpad(F.lower(text), size, F.lit("0")))
