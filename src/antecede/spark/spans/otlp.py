"""OTLP as JSON: export requests, one a line, as the Collector's file exporter writes them.

Spans stand under `resourceSpans` and `scopeSpans`, formerly `instrumentationLibrarySpans`; Tempo writes `batches`, or
all of it under `trace`. Ids are hex, or base64 where the mapping of Protobuf was taken literally, as in Tempo: their
lengths tell which. Integers of 64 bits are texts.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from antecede.spark.spans.documents import explode_spans, parse_documents, read_documents
from antecede.spark.spans.schema import (
    NO_ID,
    Lookup,
    derive_messaging,
    derive_resource,
    explain,
    name_kind,
    read_integer,
)

__all__ = ["DOCUMENT", "read_otlp"]

VALUE: Final = "struct<stringValue:string,intValue:string,boolValue:string,doubleValue:string>"
ATTRIBUTES: Final = f"array<struct<key:string,value:{VALUE}>>"
SPAN: Final = (
    "struct<traceId:string,spanId:string,parentSpanId:string,name:string,kind:string,"
    "startTimeUnixNano:string,endTimeUnixNano:string,"
    f"attributes:{ATTRIBUTES},links:array<struct<traceId:string,spanId:string>>>"
)
SCOPES: Final = f"array<struct<spans:array<{SPAN}>>>"
RESOURCE: Final = (
    f"struct<resource:struct<attributes:{ATTRIBUTES}>,"
    f"scopeSpans:{SCOPES},instrumentationLibrarySpans:{SCOPES}>"
)
DOCUMENT: Final = f"struct<resourceSpans:array<{RESOURCE}>>"
# A schema of more than a hundred fields, nested ones counted, is not compiled by Spark: so other keys are renamed.
RENAMED: Final = r"""regexp_replace(coalesce(get_json_object(text, '$.trace'), text),
    '"batches"(?=\\s*:)', '"resourceSpans"')"""
READ: Final = f"""if(startswith(text, '{{"resourceSpans":'), text, {RENAMED})"""
SPANS: Final = """flatten(array_compact(concat(
    coalesce(of.scopeSpans.spans, array()), coalesce(of.instrumentationLibrarySpans.spans, array()))))"""
SOUND: Final = (
    "^(?!0{32})[0-9a-fA-F]{32}:(?!0{16})[0-9a-fA-F]{16}:([0-9a-fA-F]{16})?:[0-9]{1,18}:[0-9]{1,18}$"
)
"""Ids and times of most spans: nothing more is asked of these."""


def read_otlp(spark: SparkSession, names: list[str]) -> DataFrame:
    """The spans in these files, and what cannot be read."""
    resource = derive_resource(look_up("of.resource.attributes"))
    spans = explode_spans(
        parse_documents(read_documents(spark, names), DOCUMENT, READ),
        groups="documents.resourceSpans",
        no_group=RESOURCE,
        format="OTLP in JSON",
        other="resourceSpans nor batches",
        facts=[f"{column} AS {name}" for name, column in resource.items()],
        spans=SPANS,
        no_span=SPAN,
    )
    return describe_spans(spans)


def describe_spans(spans: DataFrame) -> DataFrame:
    messaging = derive_messaging(look_up("span.attributes"), "kind")
    fields = ", ".join(f"'{name}', {column}" for name, column in messaging.items())
    # Most spans are of no message: their attributes are not searched.
    concerned = "instr(array_join(span.attributes.key, ' '), 'messaging.') > 0"
    known = spans.selectExpr(
        "*",
        f"{name_kind('span.kind')} AS kind",
        "transform(span.links, of -> struct("
        f"{read_id('of.traceId', 16)} AS trace_id, {read_id('of.spanId', 8)} AS span_id)) AS linked",
    ).selectExpr(
        "*", f"if({concerned}, named_struct({fields}), NULL) AS messaging", f"{tell_reason()} AS reason"
    )
    has_parent = f"NOT span.parentSpanId RLIKE '{NO_ID}'"
    return known.selectExpr(
        "file",
        "service",
        "instance",
        "CAST(NULL AS string) AS process",
        f"{read_id('span.traceId', 16)} AS trace_id",
        f"{read_id('span.spanId', 8)} AS span_id",
        f"if({has_parent}, {read_id('span.parentSpanId', 8)}, NULL) AS parent_id",
        "linked",
        "span.name AS name",
        "kind",
        "nullif(try_cast(span.startTimeUnixNano AS bigint), 0) AS start_ns",
        "nullif(try_cast(span.endTimeUnixNano AS bigint), 0) AS end_ns",
        *(f"messaging.{name} AS messaging_{name}" for name in messaging),
        "reason",
        "if(reason IS NULL, NULL, coalesce(unread, to_json(span))) AS text",
    )


def tell_reason() -> str:
    """Why a span cannot be taken, or null."""
    start, end = "span.startTimeUnixNano", "span.endTimeUnixNano"
    wrong = [
        ("span IS NULL", "a null stands where spans should be", "''"),
        *(
            (
                f"NOT {is_id(f'span.{name}', size)}",
                f"its {name} is not {size} bytes in hex or base64: ",
                f"span.{name}",
            )
            for name, size in (("traceId", 16), ("spanId", 8))
        ),
        (
            f"NOT span.parentSpanId RLIKE '{NO_ID}' AND NOT {is_id('span.parentSpanId', 8)}",
            "its parentSpanId is not 8 bytes in hex or base64: ",
            "span.parentSpanId",
        ),
        (
            f"exists(span.links, of -> NOT ({is_id('of.traceId', 16)} AND {is_id('of.spanId', 8)}))",
            "it has a link without ids of 16 and 8 bytes",
            "''",
        ),
        *(
            (f"{at} IS NOT NULL AND {read_integer(at)} IS NULL", f"its {at[5:]} is no integer: ", at)
            for at in (start, end)
        ),
    ]
    texts = ", ".join(
        f"coalesce({name}, '')" for name in ("span.traceId", "span.spanId", "span.parentSpanId", start, end)
    )
    plain = f"concat_ws(':', {texts}) RLIKE '{SOUND}' AND coalesce(size(span.links), 0) <= 0"
    return f"if(unread_reason IS NULL AND {plain}, NULL, {explain(wrong, 'unread_reason')})"


def look_up(attributes: str) -> Lookup:
    """The attribute of a key: positions in the list of keys are found without a call for each element."""

    def find(key: str) -> str:
        value = f"get({attributes}.value, CAST(array_position({attributes}.key, '{key}') - 1 AS int))"
        fields = ("stringValue", "intValue", "boolValue", "doubleValue")
        return f"coalesce({', '.join(f'{value}.{name}' for name in fields)})"

    return find


def is_id(text: str, size: int) -> str:
    """Whether this is an id of so many bytes, and not zero: true or false, of a null, too."""
    hexadecimal = f"{text} RLIKE '^[0-9a-fA-F]{{{size * 2}}}$' AND NOT {text} RLIKE '{NO_ID}'"
    return f"coalesce({hexadecimal} OR {is_base64(text, size)}, false)"


def is_base64(text: str, size: int) -> str:
    digits, padding = -(-size * 8 // 6), -size % 3
    return f"({text} RLIKE '^[A-Za-z0-9+/]{{{digits}}}={{{padding}}}$' AND NOT {text} RLIKE '^A*=*$')"


def read_id(text: str, size: int) -> str:
    """An id of so many bytes in lower-case hex: hex or base64, by its length."""
    from_base64 = f"if({is_base64(text, size)}, lower(hex(unbase64({text}))), NULL)"
    return f"if(length({text}) = {size * 2}, lower({text}), {from_base64})"
