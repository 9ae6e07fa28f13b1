"""The trace that a message belongs to, carried with it: W3C Trace Context (https://www.w3.org/TR/trace-context/).

If the program uses OpenTelemetry, `Node.send` makes a producer span and sends its context along; what is done with the
message where it is handed over can so be a child of the span that sent it, across processes:

    with tracer.start_as_current_span("place order"):
        await node.send("billing", b"...")

    async for message in node:
        with tracer.start_as_current_span("bill", context=message.context()):
            ...

Where a message is handed over, the node makes a consumer span with a link to the producer's. Both follow the
conventions for messaging: `messaging.system` is antecede, `messaging.operation.type` send or process, and
`messaging.client.id` the node. What is sent while no span is current is taken to follow from the message that was
handed over last: its span is the parent. So the telemetry of nodes says who caused what, and `antecede ingest` and
`verify` judge it (docs/spans.md).

In a message it is one text, `traceparent`, and `tracestate` after a line's end if there is one: a field beside the
payload, which stays the application's own. `LONGEST` bytes: a longer state is left out, as the standard allows.
A program that does not import OpenTelemetry pays one look into a dictionary for a message.

>>> join_headers("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "")
'00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
>>> join_headers("garbage", "")
Traceback (most recent call last):
antecede.errors.BadParameter: message: traceparent must be version-trace-span-flags in hex digits, not 'garbage'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from antecede.errors import BadParameter

__all__ = ["LONGEST", "OPENTELEMETRY", "NodeSpans", "current", "extract", "join_headers"]

OPENTELEMETRY = "opentelemetry.trace"
"""If nobody has imported this, no span is current."""
LONGEST = 512
_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")


def join_headers(traceparent: str, tracestate: str) -> str:
    """The context that these two headers are; empty if there is no parent."""
    if not traceparent:
        return ""
    if len(traceparent) > LONGEST or _PARENT.fullmatch(traceparent) is None:
        raise BadParameter(
            "message", f"traceparent must be version-trace-span-flags in hex digits, not {traceparent[:80]!r}"
        )
    fits = tracestate.isascii() and tracestate.isprintable() and len(tracestate) <= LONGEST
    return f"{traceparent}\n{tracestate}" if tracestate and fits else traceparent


def current() -> str:
    """The context of the current span of OpenTelemetry; empty if there is none."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return join_headers(headers.get("traceparent", ""), headers.get("tracestate", ""))


class NodeSpans:
    """The spans of one node. Without an SDK nothing is recorded, and the context of the current span goes along."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: Any = None
        """The context of the span of the message that was handed over last."""

    def send(self, to: str) -> AbstractContextManager[Any]:
        """A span that is current while a message is sent."""
        from opentelemetry import trace

        current_span = trace.get_current_span().get_span_context()
        span = trace.get_tracer("antecede").start_span(
            f"send {to}",
            context=None if current_span.is_valid else self._last,
            kind=trace.SpanKind.PRODUCER,
            attributes=self._describe("send", to),
        )
        # Ended, whatever happens: an exception is recorded in it, and goes on.
        return trace.use_span(span, end_on_exit=True)

    def deliver(self, sender: str, number: int, to: Iterable[str], traceparent: str) -> None:
        """Tell that a message was handed over."""
        from opentelemetry import trace

        sent = trace.get_current_span(extract(traceparent)).get_span_context()
        span = trace.get_tracer("antecede").start_span(
            f"process {sender}",
            kind=trace.SpanKind.CONSUMER,
            links=[trace.Link(sent)] if sent.is_valid else [],
            attributes={
                **self._describe("process", ",".join(to)),
                "messaging.message.id": f"{sender}.{number}",
            },
        )
        span.end()
        self._last = trace.set_span_in_context(span) if span.get_span_context().is_valid else None

    def _describe(self, operation: str, to: str) -> dict[str, str]:
        return {
            "messaging.system": "antecede",
            "messaging.operation.type": operation,
            "messaging.operation.name": operation,
            "messaging.destination.name": to,
            "messaging.client.id": self._name,
        }


def extract(context: str) -> Any:
    """The context of OpenTelemetry that came with a message: an empty one if none did."""
    try:
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        raise BadParameter(
            "tracing",
            "opentelemetry is not installed, and a message's context needs it: pip install 'antecede[otel]'",
        ) from None
    traceparent, _, tracestate = context.partition("\n")
    headers = {"traceparent": traceparent, "tracestate": tracestate}
    return TraceContextTextMapPropagator().extract(headers, context=Context())
