"""OTLP as JSON: export requests, one a line, as the Collector's file exporter writes them.

Spans stand under `resourceSpans` and `scopeSpans`, formerly `instrumentationLibrarySpans`; Tempo writes `batches`, or
all of it under `trace`. Ids are hex, or base64 where the mapping of Protobuf was taken literally, as in Tempo: their
lengths tell which. Integers of 64 bits are texts.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from antecede.spark.spans.schema import (
    Find,
    Scalar,
    SpanRows,
    Who,
    Wrong,
    decode_documents,
    define,
    derive_resource,
    is_none,
    join_known,
    read_integer,
    to_text,
)

__all__ = ["read_otlp"]

VALUE: Any = define("Value", stringValue=Scalar, intValue=Scalar, boolValue=Scalar, doubleValue=Scalar)
ATTRIBUTE: Any = define("Attribute", key=Scalar, value=VALUE)
LINK: Any = define("Link", traceId=str, spanId=str)
SPAN: Any = define(
    "Span", traceId=str, spanId=str, parentSpanId=str, name=Scalar, kind=Scalar, startTimeUnixNano=Scalar,
    endTimeUnixNano=Scalar, attributes=Raw, links=list[LINK | None],
)  # fmt: skip
SCOPE: Any = define("Scope", spans=list[SPAN | None])
RESOURCE: Any = define("Resource", attributes=list[ATTRIBUTE | None])
SCOPES: Any = list[SCOPE | None]
GROUP: Any = define("Group", resource=RESOURCE, scopeSpans=SCOPES, instrumentationLibrarySpans=SCOPES)
GROUPS: Any = list[GROUP | None]
TRACE: Any = define("Trace", resourceSpans=GROUPS, batches=GROUPS)
DOCUMENT: Any = define("Document", resourceSpans=GROUPS, batches=GROUPS, trace=TRACE)

DOCUMENTS: Final = msgspec.json.Decoder(list[DOCUMENT])
ATTRIBUTES: Final = msgspec.json.Decoder(list[ATTRIBUTE | None])
IDS: Final = {
    size: re.compile(
        rf"(?!0+$)[0-9a-fA-F]{{{size * 2}}}|(?!A+=*$)[A-Za-z0-9+/]{{{-(-size * 8 // 6)}}}={{{-size % 3}}}"
    )
    for size in (8, 16)
}
"""Ids of so many bytes in hex or base64, and not zero."""
USUAL: Final = re.compile(
    "(?!0+:)[0-9a-f]{32}:(?!0+:)[0-9a-f]{16}:(?:(?!0+:)[0-9a-f]{16})?:[0-8]?[0-9]{1,18}:[0-8]?[0-9]{1,18}"
).fullmatch
"""Ids and times as most spans have them, in one look: trace, span, parent, start and end."""


def read_otlp(rows: SpanRows, file: str, text: bytes) -> None:
    """Add the spans of a text, or raise `Wrong`."""
    inner = [one.trace or one for one in decode_documents(DOCUMENTS, text, "OTLP in JSON")]
    known = [one.batches if one.resourceSpans is None else one.resourceSpans for one in inner]
    if None in known:
        raise Wrong("it has neither resourceSpans nor batches")
    for group in (group for groups in known for group in groups):
        resource = look_up(group and group.resource and group.resource.attributes)
        who = derive_resource(resource)
        process = None if rows.process else join_known(who)
        scopes = [*(group.scopeSpans or ()), *(group.instrumentationLibrarySpans or ())] if group else ()
        for span in (span for scope in scopes if scope for span in scope.spans or ()) if group else (None,):
            rows.attempt(add_span, file, span, resource, who, process)


def add_span(rows: SpanRows, file: str, span: Any, resource: Find, who: Who, process: str | None) -> None:
    trace, own, parent = span.traceId, span.spanId, span.parentSpanId or None
    start, end = span.startTimeUnixNano, span.endTimeUnixNano
    if USUAL(f"{trace}:{own}:{parent or ''}:{start}:{end}"):
        start, end = int(start) or None, int(end) or None
    else:
        trace, own = read_id(trace, "traceId", 16), read_id(own, "spanId", 8)
        parent = None if is_none(parent) else read_id(parent, "parentSpanId", 8)
        start, end = read_time(start, "startTimeUnixNano"), read_time(end, "endTimeUnixNano")
    links: Sequence[str] = ()
    if span.links:
        links = tuple(read_link(link) for link in span.links if link is None or not is_empty(link))
    attributes, find = bytes(span.attributes or b"null"), None
    if attributes[:1] not in b"[n":
        raise Wrong("it is no OTLP in JSON")
    # Most spans are of no message: their attributes are not decoded.
    if rows.process or b"messaging." in attributes:
        find = look_up(decode_documents(ATTRIBUTES, attributes, "OTLP in JSON"))
    rows.add(file, trace, own, parent, links, span.name, span.kind, start, end, who, resource, find, process)


def look_up(attributes: Any) -> Find:
    """Attributes by their keys, of which the first counts."""
    found: dict[Any, str | None] = {}
    for one in reversed(attributes or ()):
        if one is not None and (value := one.value) is not None:
            text = value.stringValue
            if text.__class__ is not str:
                text = to_text(next((v for v in msgspec.structs.astuple(value) if v is not None), None))
            found[one.key] = text
    return found.get


def read_id(text: str | None, name: str, size: int) -> str:
    """An id of so many bytes in lower-case hex: hex or base64, by its length."""
    if text is None or not IDS[size].fullmatch(text):
        raise Wrong(f"its {name} is not {size} bytes in hex or base64: {text or ''}")
    return text.lower() if len(text) == size * 2 else base64.b64decode(text).hex()


def is_empty(link: Any) -> bool:
    """Whether a link leads nowhere: a context that was not valid is recorded with zeros, or with nothing."""
    return is_none(link.traceId) and is_none(link.spanId)


def read_link(link: Any) -> str:
    try:
        return f"{read_id(link.traceId, '', 16)}:{read_id(link.spanId, '', 8)}"
    except (Wrong, AttributeError):
        raise Wrong("it has a link without ids of 16 and 8 bytes") from None


def read_time(value: Any, name: str) -> int | None:
    found = read_integer(value)
    if found is None and value is not None:
        raise Wrong(f"its {name} is no integer: {to_text(value)}")
    return found or None
