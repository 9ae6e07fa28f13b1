"""OTLP as JSON: export requests, one a line, as the Collector's file exporter writes them.

Spans stand under `resourceSpans` and `scopeSpans`, formerly `instrumentationLibrarySpans`; Tempo writes `batches`, or
all of it under `trace`. Ids are hex, or base64 where the mapping of Protobuf was taken literally, as in Tempo: their
lengths tell which. Integers of 64 bits are texts.
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

__all__ = ["read_otlp"]

VALUE: Final = "struct<stringValue:string,intValue:string,boolValue:string,doubleValue:string>"
ATTRIBUTES: Final = f"array<struct<key:string,value:{VALUE}>>"
SPAN: Final = (
    "struct<traceId:string,spanId:string,parentSpanId:string,name:string,kind:string,"
    "startTimeUnixNano:string,endTimeUnixNano:string,"
    f"attributes:{ATTRIBUTES},links:array<struct<traceId:string,spanId:string>>>"
)
SCOPES: Final = f"array<struct<spans:array<{SPAN}>>>"
RESOURCES: Final = (
    f"array<struct<resource:struct<attributes:{ATTRIBUTES}>,"
    f"scopeSpans:{SCOPES},instrumentationLibrarySpans:{SCOPES}>>"
)
DOCUMENT: Final = (
    f"struct<resourceSpans:{RESOURCES},batches:{RESOURCES},"
    f"trace:struct<resourceSpans:{RESOURCES},batches:{RESOURCES}>>"
)
PLACES: Final = (
    "document.resourceSpans",
    "document.batches",
    "document.trace.resourceSpans",
    "document.trace.batches",
)


def read_otlp(spark: SparkSession, names: list[str]) -> DataFrame:
    """The spans in these files, and what cannot be read."""
    documents = parse_documents(read_documents(spark, names), DOCUMENT)
    known = F.array_compact(F.array(*PLACES))
    reason = F.when(F.col("broken").isNotNull(), "it is no OTLP in JSON").when(
        F.size(known) == 0, "it has neither resourceSpans nor batches"
    )
    nothing = F.array(F.lit(None).cast(RESOURCES[6:-1]))
    resources = documents.select(
        "file",
        # The text of a document would be copied to each of its spans.
        F.when(reason.isNotNull(), F.col("text")).alias("unread"),
        reason.alias("unread_reason"),
        F.explode(F.when(reason.isNotNull(), nothing).otherwise(F.flatten(known))).alias("of"),
    )
    scopes = F.array_compact(F.array("of.scopeSpans", "of.instrumentationLibrarySpans"))
    inside = F.flatten(F.array_compact(F.flatten(scopes)["spans"]))
    nobody = F.array(F.lit(None).cast(SPAN))
    spans = resources.select(
        "file",
        "unread",
        "unread_reason",
        *(column.alias(name) for name, column in derive_resource(look_up("of.resource.attributes")).items()),
        F.explode(F.when(F.col("of").isNull(), nobody).otherwise(inside)).alias("span"),
    )
    return describe_spans(spans)


def describe_spans(spans: DataFrame) -> DataFrame:
    span = F.col("span")
    kind = name_kind(span["kind"])
    trace_id, span_id = read_id(span["traceId"], 16), read_id(span["spanId"], 8)
    has_parent = ~span["parentSpanId"].rlike(NO_ID)
    parent = F.when(has_parent, read_id(span["parentSpanId"], 8))
    linked = F.transform(
        span["links"],
        lambda link: F.struct(
            read_id(link["traceId"], 16).alias("trace_id"), read_id(link["spanId"], 8).alias("span_id")
        ),
    )
    bad_link = F.exists(linked, lambda link: link["trace_id"].isNull() | link["span_id"].isNull())
    start, end = span["startTimeUnixNano"], span["endTimeUnixNano"]
    reason = explain(
        [
            (span.isNull(), "a null stands where spans should be", F.lit("")),
            (trace_id.isNull(), "its traceId is not 16 bytes in hex or base64: ", span["traceId"]),
            (span_id.isNull(), "its spanId is not 8 bytes in hex or base64: ", span["spanId"]),
            (
                has_parent & parent.isNull(),
                "its parentSpanId is not 8 bytes in hex or base64: ",
                span["parentSpanId"],
            ),
            (bad_link, "it has a link without ids of 16 and 8 bytes", F.lit("")),
            (
                start.isNotNull() & read_integer(start).isNull(),
                "its startTimeUnixNano is no integer: ",
                start,
            ),
            (end.isNotNull() & read_integer(end).isNull(), "its endTimeUnixNano is no integer: ", end),
        ],
        F.col("unread_reason"),
    )
    return spans.select(
        "file",
        "service",
        "instance",
        F.lit(None).cast("string").alias("process"),
        trace_id.alias("trace_id"),
        span_id.alias("span_id"),
        parent.alias("parent_id"),
        linked.alias("linked"),
        span["name"].alias("name"),
        kind.alias("kind"),
        read_time(start).alias("start_ns"),
        read_time(end).alias("end_ns"),
        *(column.alias(name) for name, column in derive_messaging(look_up("span.attributes"), kind).items()),
        reason.alias("reason"),
        F.when(reason.isNotNull(), F.coalesce("unread", F.to_json(span))).alias("text"),
    )


def look_up(attributes: str) -> Lookup:
    """The attribute of a key: positions in the list of keys are found without a call for each element."""

    def find(key: str) -> Column:
        value = F.get(
            F.col(f"{attributes}.value"), (F.array_position(f"{attributes}.key", key) - 1).cast("int")
        )
        return F.coalesce(*(value[name] for name in ("stringValue", "intValue", "boolValue", "doubleValue")))

    return find


def read_id(text: Column, size: int) -> Column:
    """An id of so many bytes in lower-case hex; null if it is none, or zero."""
    digits, padding = -(-size * 8 // 6), -size % 3
    base64 = text.rlike(f"^[A-Za-z0-9+/]{{{digits}}}={{{padding}}}$")
    written = F.when(text.rlike(f"^[0-9a-fA-F]{{{size * 2}}}$"), F.lower(text)).when(
        base64, F.lower(F.hex(F.unbase64(text)))
    )
    return F.when(~written.rlike(NO_ID), written)


def read_time(text: Column) -> Column:
    """Nanoseconds since 1970. In OTLP 0 says that the time is not known."""
    number = read_integer(text)
    return F.when(number > 0, number)
