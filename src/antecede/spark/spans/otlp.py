"""OTLP as JSON: export requests, one a line, as the Collector's file exporter writes them.

Spans stand under `resourceSpans` and `scopeSpans`, formerly `instrumentationLibrarySpans`; Tempo writes `batches`, or
all of it under `trace`. Ids are hex, or base64 where the mapping of Protobuf was taken literally, as in Tempo: their
lengths tell which. Integers of 64 bits are texts.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from antecede.spark.spans.schema import (
    NULL,
    ROWS,
    Attributes,
    DocumentRows,
    Fields,
    Owner,
    Scalar,
    Wrong,
    decode,
    define,
    is_none,
    make_owner,
    read_time,
    to_text,
)

__all__ = ["OtlpRows"]

FORMAT: Final = "OTLP in JSON"
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

DOCUMENTS: Final = msgspec.json.Decoder(DOCUMENT | list[DOCUMENT])
ATTRIBUTES: Final = msgspec.json.Decoder(list[ATTRIBUTE | None] | None)
IDS: Final = {
    size: re.compile(
        rf"(?!0+$)[0-9a-fA-F]{{{size * 2}}}|(?!A+=*$)[A-Za-z0-9+/]{{{-(-size * 8 // 6)}}}={{{-size % 3}}}"
    )
    for size in (8, 16)
}
"""Ids of so many bytes in hex or base64, and not zero."""
DIGITS: Final = "0123456789abcdef"


class OtlpRows(DocumentRows):
    """Spans as they stand in the texts, until there are enough of them to look at their columns."""

    def __init__(self, process: Sequence[str] = (), columns: str = ROWS) -> None:
        super().__init__(process, columns)
        self._spans: list[Any] = []
        self._sources: list[tuple[str, Owner]] = []
        """The file and the owner of each."""

    def __len__(self) -> int:
        return len(self._spans) + len(self._rejected)

    def read(self, file: str, text: bytes) -> None:
        inner = [one.trace or one for one in decode(DOCUMENTS, text, FORMAT)]
        known = [one.batches if one.resourceSpans is None else one.resourceSpans for one in inner]
        if None in known:
            raise Wrong("it has neither resourceSpans nor batches")
        for group in (group for groups in known for group in groups):
            resource = look_up(group and group.resource and group.resource.attributes)
            owner = make_owner(resource)
            scopes = [*(group.scopeSpans or ()), *(group.instrumentationLibrarySpans or ())] if group else ()
            spans = [span for scope in scopes if scope for span in scope.spans or ()] if group else [None]
            sound = [span for span in spans if span is not None]
            for _ in range(len(spans) - len(sound)):
                self.reject_span(file, None, Wrong(NULL))
            self._spans += sound
            self._sources += [(file, owner)] * len(sound)

    def _take_fields(self) -> Fields | None:
        spans, sources = self._spans, self._sources
        self._spans, self._sources = [], []
        texts = list_texts(spans)
        usual = find_usual(*texts)
        sound = [
            at for at, span in enumerate(spans) if self._read_span(sources[at][0], span, usual=usual[at])
        ]
        if len(sound) < len(spans) or not all(usual):
            spans, sources = [spans[at] for at in sound], [sources[at] for at in sound]
            texts = list_texts(spans)
        if not spans:
            return None
        traces, own, parents, *times = texts
        starts, ends = (column.cast(pa.int64()) for column in times)
        links, names = [span.links or () for span in spans], [span.name for span in spans]
        kinds, told = [span.kind for span in spans], [span.attributes for span in spans]
        owners = [owner for _, owner in sources]
        return Fields(traces, own, parents, links, names, kinds, starts, ends, owners, told)

    def _read_span(self, file: str, span: Any, *, usual: bool) -> bool:
        """Put what its texts mean in their place. A span that is wrong stays as it is, and is rejected."""
        attributes = bytes(span.attributes or b"null")
        # Most spans are of no message: their attributes are not decoded.
        asked = self._process or b"messaging." in attributes or attributes[0] not in b"[n"
        if not (asked or span.links) and usual:
            span.attributes = None
            return True
        try:
            found = {} if usual else read_unusual(span)
            found["links"] = read_links(span.links or ())
            found["attributes"] = look_up(decode(ATTRIBUTES, attributes, FORMAT)) if asked else None
        except Wrong as error:
            self.reject_span(file, span, error)
            return False
        for name, value in found.items():
            setattr(span, name, value)
        return True


def list_texts(spans: Sequence[Any]) -> Sequence[pa.Array]:
    """Traces, spans, parents, starts and ends."""
    columns = (
        [span.traceId for span in spans],
        [span.spanId for span in spans],
        [span.parentSpanId or None for span in spans],
        [to_text(span.startTimeUnixNano) for span in spans],
        [to_text(span.endTimeUnixNano) for span in spans],
    )
    return [pa.array(column, pa.string()) for column in columns]


def find_usual(
    traces: pa.Array, own: pa.Array, parents: pa.Array, starts: pa.Array, ends: pa.Array
) -> Sequence[bool]:
    """Which spans have ids and times as most have them. Columns of Arrow tell in a tenth of the time of spans."""
    ids = [are_hex(traces, 32), are_hex(own, 16), are_hex(parents, 16).fill_null(True)]
    usual = reduce(pc.and_, [*ids, are_times(starts), are_times(ends)])
    return list(usual.fill_null(False).to_pylist())


def are_hex(texts: pa.Array, size: int) -> pa.Array:
    """Whether each has so many digits in lower case, not all of them zero."""
    digits = pc.equal(pc.ascii_ltrim(texts, DIGITS), "")
    full = pc.and_not(pc.equal(pc.binary_length(texts), size), pc.equal(texts, "0" * size))
    return pc.and_(digits, full)


def are_times(texts: pa.Array) -> pa.Array:
    """Whether each is a positive number of digits that fits into 64 bits for sure."""
    first = pc.and_(pc.greater_equal(texts, "1"), pc.less(texts, "9"))
    return reduce(pc.and_, [pc.ascii_is_decimal(texts), pc.less_equal(pc.binary_length(texts), 19), first])


def read_unusual(span: Any) -> dict[str, Any]:
    """Ids and times that are not as most are, or that cannot be read."""
    return {
        "traceId": read_id(span.traceId, "traceId", 16),
        "spanId": read_id(span.spanId, "spanId", 8),
        "parentSpanId": None if is_none(span.parentSpanId) else read_id(span.parentSpanId, "parentSpanId", 8),
        "startTimeUnixNano": read_time(span.startTimeUnixNano, "startTimeUnixNano") or None,
        "endTimeUnixNano": read_time(span.endTimeUnixNano, "endTimeUnixNano") or None,
    }


def look_up(attributes: Any) -> Attributes:
    """Attributes by their keys, of which the first counts."""
    found: dict[Any, str | None] = {}
    for one in reversed(attributes or ()):
        if one is not None and (value := one.value) is not None:
            text = value.stringValue
            found[one.key] = text if text.__class__ is str else read_value(value)
    return found


def read_value(value: Any) -> str | None:
    for one in (value.stringValue, value.intValue, value.boolValue, value.doubleValue):
        if one is not None:
            return to_text(one)
    return None


def read_id(text: str | None, name: str, size: int) -> str:
    """An id of so many bytes in lower-case hex: hex or base64, by its length."""
    if text is None or not IDS[size].fullmatch(text):
        raise Wrong(f"its {name} is not {size} bytes in hex or base64: {text or ''}")
    return text.lower() if len(text) == size * 2 else base64.b64decode(text).hex()


def read_links(links: Sequence[Any]) -> Sequence[str]:
    """The ids that links lead to."""
    found = []
    for link in links:
        try:
            found.append(f"{read_id(link.traceId, '', 16)}:{read_id(link.spanId, '', 8)}")
        except (Wrong, AttributeError):
            # A context that was not valid is recorded with zeros, or with nothing.
            if link is None or not (is_none(link.traceId) and is_none(link.spanId)):
                raise Wrong("it has a link without ids of 16 and 8 bytes") from None
    return found
