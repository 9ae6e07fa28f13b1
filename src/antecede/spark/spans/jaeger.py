"""Jaeger's JSON: `data`, a list of traces, one trace by itself, or one span, as its storages have them line by line.

A trace has `spans` and, under `processes`, who they are of. References are CHILD_OF and FOLLOWS_FROM: the first
CHILD_OF is the parent, the others are links. Times are microseconds. Ids are hex, some without their first zeros.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from antecede.spark.spans.schema import (
    LARGEST,
    NULL,
    Attributes,
    DocumentRows,
    Fields,
    Scalar,
    Wrong,
    decode,
    define,
    is_none,
    make_owner,
    read_time,
    to_text,
)

__all__ = ["JaegerRows"]

TAG: Any = define("Tag", key=Scalar, value=Any)
TAGS: Any = list[TAG | None]
PROCESS: Any = define("Process", serviceName=Scalar, tags=TAGS)
REFERENCE: Any = define("Reference", refType=Scalar, traceID=Scalar, spanID=Scalar)
SPAN: Any = define(
    "Span", traceID=Scalar, spanID=Scalar, parentSpanID=Scalar, operationName=Scalar, startTime=Scalar, duration=Scalar,
    processID=Scalar, process=PROCESS, tags=TAGS, references=list[REFERENCE | None],
)  # fmt: skip
TRACE: Any = define("Trace", spans=list[SPAN | None], processes=dict[str, PROCESS | None])
DOCUMENT: Any = define(
    "Document", data=list[TRACE | None], spans=list[SPAN | None], processes=dict[str, PROCESS | None]
)
DOCUMENTS: Final = msgspec.json.Decoder(DOCUMENT | list[DOCUMENT])
HEX: Final = re.compile("[0-9a-fA-F]{1,32}")


class JaegerRows(DocumentRows):
    def read(self, file: str, text: bytes) -> None:
        alone = b'"spanID"' in text and b'"spans"' not in text
        whole = b'{"spans":[' + text + b"]}" if alone else text
        known = decode(DOCUMENTS, whole, "JSON of Jaeger")
        traces = [one.data if one.spans is None else [one] for one in known]
        if None in traces:
            raise Wrong("it has neither data nor spans")
        for trace in (trace for many in traces for trace in many):
            for span in trace.spans or () if trace else (None,):
                try:
                    self._rows.append(read_span(span, (trace and trace.processes) or {}))
                except Wrong as error:
                    self.reject_span(file, span, error)


def read_span(span: Any, processes: dict[str, Any]) -> Fields:
    """The values of a span, or raise `Wrong`."""
    if span is None:
        raise Wrong(NULL)
    trace, own = (
        read_id(getattr(span, name), most, name) for name, most in (("traceID", 32), ("spanID", 16))
    )
    written = span.references or []
    if not written and not is_none(to_text(span.parentSpanID)):
        # The oldest clients wrote no references.
        written = [REFERENCE("CHILD_OF", span.traceID, span.parentSpanID)]
    links, parent = [], None
    for one in written:
        of, id = read_reference(one)
        if of == trace and one.refType == "CHILD_OF" and parent is None:
            parent = id
        links.append(f"{of}:{id}")
    others = [link for link in links if link != f"{trace}:{parent}"]
    start, duration = (read_time(getattr(span, name), name, 1000) for name in ("startTime", "duration"))
    end = None if start is None or duration is None or start + duration > LARGEST else start + duration
    process = span.process or processes.get(to_text(span.processID) or "") or PROCESS()
    owner = make_owner(look_up(process.tags), to_text(process.serviceName), "hostname")
    tags = look_up(span.tags)
    return Fields(
        trace, own, parent, others, span.operationName, tags.get("span.kind"), start, end, owner, tags
    )


def look_up(tags: Any) -> Attributes:
    return {tag.key: to_text(tag.value) for tag in reversed(tags or ()) if tag is not None}


def read_reference(one: Any) -> tuple[str, str]:
    try:
        return read_id(one.traceID, 32, ""), read_id(one.spanID, 16, "")
    except (Wrong, AttributeError):
        raise Wrong("it has a reference without ids in hex") from None


def read_id(value: Any, most: int, name: str) -> str:
    """Eight bytes in hex or, of traces, also sixteen: the oldest clients had the shorter ones."""
    text = to_text(value) or ""
    if len(text) > most or not HEX.fullmatch(text) or is_none(text):
        raise Wrong(f"its {name} is no hex: {text}")
    return text.lower().rjust(16 if len(text) <= 16 else 32, "0")
