"""Lines of OTLP/JSON for tests: spans by short names, as the Collector's file exporter writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

START_NS = 1_661_140_374_351_773_000


def trace_id(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:32]


def span_id(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:16]


def full_id(name: str, trace: str = "t") -> str:
    return f"{trace_id(trace)}:{span_id(name)}"


def make_span(
    name: str,
    at: int,
    *,
    trace: str = "t",
    parent: str | None = None,
    links: Sequence[tuple[str, str]] = (),
    until: int | None = None,
    kind: int = 1,
    **attributes: object,
) -> dict[str, Any]:
    """A span that begins so many microseconds after the start; `links` are names with their traces."""
    return {
        "traceId": trace_id(trace),
        "spanId": span_id(name),
        "parentSpanId": "" if parent is None else span_id(parent),
        "name": f"{name} of {trace}",
        "kind": kind,
        "startTimeUnixNano": str(START_NS + at * 1000),
        "endTimeUnixNano": str(START_NS + (at + 1 if until is None else until) * 1000),
        "attributes": write_attributes({key.replace("_", "."): value for key, value in attributes.items()}),
        "links": [{"traceId": trace_id(other), "spanId": span_id(one)} for one, other in links],
    }


def write_attributes(given: dict[str, object]) -> list[dict[str, object]]:
    return [{"key": key, "value": {"stringValue": str(value)}} for key, value in given.items()]


def make_line(service: str, *spans: dict[str, Any], **resource: object) -> str:
    attributes = write_attributes({"service.name": service, **resource})
    return json.dumps(
        {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [{"spans": list(spans)}]}]}
    )


def send(name: str, at: int, **more: Any) -> dict[str, Any]:
    return make_span(name, at, **{"messaging_system": "kafka", "messaging_operation_type": "send", **more})


def process(name: str, at: int, **more: Any) -> dict[str, Any]:
    return make_span(name, at, **{"messaging_system": "kafka", "messaging_operation_type": "process", **more})


def overtaken() -> list[str]:
    """A question reaches `audit` after its answer: the answer's chain leads over `billing`."""
    return [
        make_line("shop", make_span("order", 0), send("ask", 1, parent="order")),
        make_line(
            "billing",
            process("bill", 10, trace="u", links=[("ask", "t")]),
            send("answer", 12, trace="u", parent="bill"),
        ),
        make_line(
            "audit",
            process("note-answer", 20, trace="v", links=[("answer", "u")]),
            process("note-ask", 30, trace="w", links=[("ask", "t")]),
        ),
    ]
