"""The trace that a message belongs to goes with it: with OpenTelemetry's own SDK, and without it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, TraceState

from antecede.errors import BadParameter, NodeFailed
from antecede.net.observe.tracing import LONGEST, NodeSpans, current, extract, join_headers
from antecede.net.serve.lines import Lines
from tests.net_world import PATIENCE_S, in_memory

ROOT = Path(__file__).parent.parent
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("protocol", ["permit", "matrix", "history"])
def test_what_a_receiver_does_is_a_child_of_the_span_that_sent(protocol, tmp_path):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("shop")

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), in_memory(2, protocol=protocol) as (orders, billing):
            with tracer.start_as_current_span("order"):
                await orders.send("p2", b"one")
            await orders.send("p2", b"two")
            for name in ("bill", "bill again"):
                message = await billing.receive()
                with tracer.start_as_current_span(name, context=message.context()):
                    message.ack()

    asyncio.run(main())
    spans = {span.name: span for span in exporter.get_finished_spans()}
    order, bill = spans["order"].get_span_context(), spans["bill"].get_span_context()
    assert order is not None
    assert bill is not None
    assert bill.trace_id == order.trace_id
    assert spans["bill"].parent is not None
    assert (spans["bill"].parent.span_id, spans["bill"].parent.is_remote) == (order.span_id, True)
    assert spans["bill again"].parent is None, "what is sent outside a span belongs to no trace"


def test_a_context_survives_a_restart(tmp_path):
    async def sending() -> None:
        async with in_memory(1, journal=tmp_path / "a.db") as (node,):
            await node.send("p1", b"", context=join_headers(PARENT, "vendor=1"))
            await node.receive()

    async def receiving() -> tuple[str, str]:
        async with asyncio.timeout(PATIENCE_S), in_memory(1, journal=tmp_path / "a.db") as (node,):
            message = await node.receive()
            assert message.again
            return message.traceparent, message.tracestate

    asyncio.run(sending())
    assert asyncio.run(receiving()) == (PARENT, "vendor=1")


@pytest.mark.parametrize("call", ["send", "receive"])
def test_a_span_that_fails_after_the_fact_stops_the_node(tmp_path, monkeypatch, call):
    """Processors of spans are the application's. A message that was taken, and not handed over, would be lost; one that
    was sent, though `send` raised, would be sent twice."""

    class Odd:
        def __enter__(self) -> Odd:
            return self

        def __exit__(self, *_: object) -> None: ...

        def set_attribute(self, name: str, value: str) -> None:
            raise RuntimeError("no room for spans")

    def fail(*_: object) -> None:
        raise RuntimeError("no room for spans")

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            async with in_memory(1, journal=tmp_path / "a.db") as (node,):
                await node.send("p1", b"once")
                monkeypatch.setattr(
                    NodeSpans, *(("send", lambda *_: Odd()) if call == "send" else ("deliver", fail))
                )
                with pytest.raises(NodeFailed, match="no room for spans"):
                    await (node.send("p1", b"") if call == "send" else node.receive())
                assert node.failure is not None
            monkeypatch.undo()
            async with in_memory(1, journal=tmp_path / "a.db") as (node,):
                assert (await node.receive()).payload == b"once"

    asyncio.run(main())


def test_it_passes_through_lines_of_json():
    async def main() -> list[dict[str, Any]]:
        events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        async with asyncio.timeout(PATIENCE_S), in_memory(1) as (node,):
            lines = Lines(node, events.put)
            running = asyncio.ensure_future(lines.run())
            for context in ({"traceparent": PARENT, "tracestate": "a=b"}, {}, {"traceparent": "garbage"}):
                await lines.request(json.dumps({"do": "send", "to": "p1", "text": "x", **context}).encode())
            heard = [await events.get() for _ in range(6)]
        await running
        return heard

    heard = asyncio.run(main())
    first, second = (event for event in heard if event["event"] == "message")
    assert (first["traceparent"], first["tracestate"]) == (PARENT, "a=b")
    assert "traceparent" not in second
    assert "not 'garbage'" in next(e["reason"] for e in heard if e["event"] == "refused")


def test_a_state_that_is_too_long_is_left_out():
    assert join_headers(PARENT, "x" * (LONGEST + 1)) == PARENT
    assert join_headers(PARENT, "a\nb") == PARENT
    assert join_headers("", "a=b") == ""
    with pytest.raises(BadParameter, match="traceparent"):
        join_headers(PARENT + "\n", "")


def test_the_state_of_a_span_goes_along():
    told = SpanContext(1, 2, False, trace.TraceFlags(1), TraceState([("vendor", "x")]))
    token = trace.use_span(trace.NonRecordingSpan(told))
    with token:
        context = current()
    assert context == f"00-{1:032x}-{2:016x}-01\nvendor=x"
    found = trace.get_current_span(extract(context)).get_span_context()
    assert (found.trace_id, found.span_id, dict(found.trace_state)) == (1, 2, {"vendor": "x"})
    assert current() == ""


def test_without_opentelemetry_nothing_is_asked_of_it():
    code = """
import asyncio, sys
sys.modules["opentelemetry"] = None
from antecede.errors import BadParameter
from antecede.net import Memory, Node
async def main():
    async with Node("a", ["a"], transport=Memory().at("a")) as node:
        await node.send("a", b"x")
        message = await node.receive()
        assert message.traceparent == ""
        try:
            message.context()
        except BadParameter as error:
            print(error)
asyncio.run(main())
assert not any(name.startswith("opentelemetry.") for name in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("pip install 'antecede[otel]'")


def test_a_node_emits_spans_by_the_conventions_for_messaging(tmp_path):
    file = tmp_path / "spans.jsonl"
    subprocess.run(
        [sys.executable, "-m", "tests.net_spans_worker", "matrix", str(file)], check=True, cwd=ROOT
    )
    requests = map(json.loads, file.read_text().splitlines())
    spans = [one["resourceSpans"][0]["scopeSpans"][0]["spans"][0] for one in requests]
    told = {
        (span["name"], found["messaging.client.id"], found["messaging.operation.type"]): (span, found)
        for span in spans
        for found in [{one["key"]: one["value"]["stringValue"] for one in span["attributes"]}]
    }
    ask, found = told["send helper,reader", "asker", "send"]
    assert (ask["kind"], ask["parentSpanId"], found["messaging.message.id"]) == (4, "", "asker.1")
    helped, found = told["process asker", "helper", "process"]
    assert (helped["kind"], found["messaging.message.id"]) == (5, "asker.1")
    assert helped["links"] == [{name: ask[name] for name in ("traceId", "spanId")}]
    answer, _ = told["send reader", "helper", "send"]
    # Nobody said so: what is sent without a current span follows from what was handed over last.
    assert (answer["traceId"], answer["parentSpanId"]) == (helped["traceId"], helped["spanId"])
    assert len(spans) == 5
