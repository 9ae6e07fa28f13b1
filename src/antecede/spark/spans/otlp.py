"""OTLP as JSON: export requests, one a line, as the Collector's file exporter writes them.

Spans stand under `resourceSpans` and `scopeSpans`, formerly `instrumentationLibrarySpans`; Tempo writes `batches`, or
all of it under `trace`. Ids are hex, or base64 where the mapping of Protobuf was taken literally, as in Tempo: their
lengths tell which. Integers of 64 bits are texts.
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
    escape_text,
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
TIMES: Final = ("span.startTimeUnixNano", "span.endTimeUnixNano")
VALUE_OF: Final = (
    "coalesce(one.value.stringValue, one.value.intValue, one.value.boolValue, one.value.doubleValue)"
)


def read_otlp(spark: SparkSession, names: list[str], process: tuple[str, ...] = ()) -> DataFrame:
    """The spans in these files, and what cannot be read."""
    attributes = "of.resource.attributes"
    find = look_up(f"{attributes}.key", f"transform({attributes}, one -> {VALUE_OF})")
    named = ", ".join(find(escape_text(name)) for name in process)
    facts = {**derive_resource(find), "named": f"CAST(array({named}) AS array<string>)"}
    spans = explode_spans(
        spark,
        names,
        DOCUMENT,
        READ,
        groups="documents.resourceSpans",
        no_group=RESOURCE,
        format="OTLP in JSON",
        other="resourceSpans nor batches",
        facts=[f"{column} AS {name}" for name, column in facts.items()],
        spans=SPANS,
        no_span=SPAN,
    )
    return describe_spans(spans, process)


def describe_spans(spans: DataFrame, process: tuple[str, ...]) -> DataFrame:
    """The columns of `RAW`: first what needs the whole span, then what it did with a message, then its ids."""
    # Most spans are of no message: their attributes are not searched.
    concerned = "contains(array_join(span.attributes.key, ' '), 'messaging.')"
    all_of = look_up("span.attributes.key", f"transform(span.attributes, one -> {VALUE_OF})")
    at = {escape_text(name): place for place, name in enumerate(process)}
    known = compile_apart(
        spans.selectExpr("*", f"coalesce({is_plain()}, false) AS plain").selectExpr(
            "file",
            "service",
            "instance",
            f"{derive_process(process, lambda key: f'get(named, {at[key]})', all_of)} AS process",
            "span.* EXCEPT (kind, attributes)",
            f"{name_kind('span.kind')} AS kind",
            f"if({concerned}, span.attributes, NULL) AS tags",
            "plain",
            "if(plain, NULL, span) AS span",
            "unread",
            "unread_reason",
        )
    )
    explained = compile_apart(
        known.selectExpr(
            "* EXCEPT (plain, unread_reason)", f"if(plain, NULL, {tell_reason()}) AS reason"
        ).selectExpr(
            "* EXCEPT (span, unread)",
            "if(reason IS NULL, NULL, coalesce(unread, to_json(span))) AS text",
        )
    )
    messaging = derive_messaging(look_up("keys", "values"), "kind")
    fields = ", ".join(f"'{name}', {column}" for name, column in messaging.items())
    linked = f"""if(size(links) > 0, transform(filter(links, of -> NOT {is_empty_link()}), one ->
        struct({read_id("one.traceId", 16)} AS trace_id, {read_id("one.spanId", 8)} AS span_id)), NULL)"""
    tagged = compile_apart(
        explained.selectExpr(
            "*",
            "tags.key AS keys",
            f"transform(tags, one -> {VALUE_OF}) AS values",
        ).selectExpr("* EXCEPT (tags)", f"if(tags IS NULL, NULL, named_struct({fields})) AS messaging")
    )
    return tagged.selectExpr(
        "file",
        "service",
        "instance",
        "process",
        f"{read_id('traceId', 16)} AS trace_id",
        f"{read_id('spanId', 8)} AS span_id",
        f"{read_parent('parentSpanId')} AS parent_id",
        f"{linked} AS linked",
        "name",
        "kind",
        "nullif(try_cast(startTimeUnixNano AS bigint), 0) AS start_ns",
        "nullif(try_cast(endTimeUnixNano AS bigint), 0) AS end_ns",
        *(f"messaging.{name} AS messaging_{name}" for name in messaging),
        "reason",
        "text",
    )


def is_plain() -> str:
    """Whether a span is as most are, so that nothing more need be asked of it: expressions take ten times as long."""
    usual = [is_hex("span.traceId", 16), is_hex("span.spanId", 8), *map(is_count, TIMES)]
    return f"""unread_reason IS NULL AND {" AND ".join(usual)}
        AND (coalesce(span.parentSpanId, '') = '' OR {is_hex("span.parentSpanId", 8)})
        AND (coalesce(size(span.links), 0) <= 0 OR
            forall(span.links, of -> {is_hex("of.traceId", 16)} AND {is_hex("of.spanId", 8)}))"""


def tell_reason() -> str:
    """Why a span cannot be taken, or null."""
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
            f"""exists(span.links, of -> NOT
                ({is_id("of.traceId", 16)} AND {is_id("of.spanId", 8)} OR {is_empty_link()}))""",
            "it has a link without ids of 16 and 8 bytes",
            "''",
        ),
        *(
            (f"{at} IS NOT NULL AND {read_integer(at)} IS NULL", f"its {at[5:]} is no integer: ", at)
            for at in TIMES
        ),
    ]
    return explain(wrong, "unread_reason")


def is_hex(text: str, size: int) -> str:
    """Whether this is an id of so many bytes in hex, and not zero. Null or false: it may be one in base64."""
    return f"(length({text}) = {size * 2} AND unhex({text}) IS NOT NULL AND {text} != '{'0' * size * 2}')"


def is_count(text: str) -> str:
    """Whether this is an integer as it is usually written. Null or false: it may have zeros before it."""
    number = f"try_cast({text} AS bigint)"
    return f"({number} >= 0 AND CAST({number} AS string) = {text})"


def look_up(keys: str, values: str) -> Lookup:
    """The attribute of a key, of two lists."""
    return lambda key: f"get({values}, CAST(array_position({keys}, '{key}') - 1 AS int))"


def is_empty_link() -> str:
    """Whether the link `of` leads nowhere: a context that was not valid is recorded with zeros, or with nothing."""
    return f"(coalesce(of.traceId, '') RLIKE '{NO_ID}' AND coalesce(of.spanId, '') RLIKE '{NO_ID}')"


def is_id(text: str, size: int) -> str:
    """Whether this is an id of so many bytes, and not zero: true or false, of a null, too."""
    digits, padding = -(-size * 8 // 6), -size % 3
    hexadecimal = f"(?!0+$)[0-9a-fA-F]{{{size * 2}}}"
    base64 = f"(?!A+=*$)[A-Za-z0-9+/]{{{digits}}}={{{padding}}}"
    return f"coalesce({text} RLIKE '^({hexadecimal}|{base64})\\\\z', false)"


def read_id(text: str, size: int) -> str:
    """An id of so many bytes in lower-case hex: hex or base64, by its length."""
    from_base64 = f"if({is_id(text, size)}, lower(hex(unbase64({text}))), NULL)"
    return f"if(length({text}) = {size * 2}, lower({text}), {from_base64})"


def read_parent(text: str) -> str:
    """The same of a parent, which may be none: nothing, or zeros."""
    usual = f"length({text}) = 16 AND {text} != '{'0' * 16}'"
    return f"""CASE WHEN {text} = '' THEN NULL WHEN {usual} THEN lower({text})
        WHEN {text} RLIKE '{NO_ID}' THEN NULL ELSE {read_id(text, 8)} END"""
