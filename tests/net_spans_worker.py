"""Three nodes whose telemetry goes to a file of OTLP/JSON: a question to two, and an answer from one to the other.

    python -m tests.net_spans_worker PROTOCOL FILE

Under a causal protocol the third node takes what comes; under any other it takes the answer first.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from antecede.net import Memory, Node
from antecede.protocols import PROTOCOLS


class Lines(SpanExporter):
    """Spans as the Collector's file exporter writes them: an export request a line."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._file.open("a") as file:
            for span in spans:
                resource = {"attributes": write_attributes(span.resource.attributes)}
                one = {"resource": resource, "scopeSpans": [{"spans": [write_span(span)]}]}
                file.write(json.dumps({"resourceSpans": [one]}) + "\n")
        return SpanExportResult.SUCCESS


def write_attributes(attributes: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": str(value)}} for key, value in (attributes or {}).items()]


def write_ids(context: Any) -> dict[str, str]:
    return {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}


def write_span(span: ReadableSpan) -> dict[str, Any]:
    return {
        **write_ids(span.context),
        "parentSpanId": "" if span.parent is None else f"{span.parent.span_id:016x}",
        "name": span.name,
        "kind": {"INTERNAL": 1, "SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}[span.kind.name],
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": write_attributes(span.attributes),
        "links": [write_ids(link.context) for link in span.links],
    }


async def talk(protocol: str) -> None:
    memory, names = Memory(), ["asker", "helper", "reader"]
    nodes = [Node(name, names, protocol=protocol, transport=memory.at(name)) for name in names]
    async with asyncio.timeout(30), nodes[0] as asker, nodes[1] as helper, nodes[2] as reader:
        await asker.send(["helper", "reader"], b"who knows?")
        await helper.receive()
        await helper.send("reader", b"I do")
        if PROTOCOLS[protocol].order != "causal":
            await reader.receive(sender="helper")
            await reader.receive(sender="asker")
        else:
            assert [(await reader.receive()).sender for _ in "12"] == ["asker", "helper"]


def main(protocol: str, file: Path) -> None:
    provider = TracerProvider(resource=Resource({"service.name": "nodes"}))
    provider.add_span_processor(SimpleSpanProcessor(Lines(file)))
    trace.set_tracer_provider(provider)
    asyncio.run(talk(protocol))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
