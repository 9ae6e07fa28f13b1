"""A small window for machines: a node's metrics and health over HTTP, to be read and nothing else.

  /metrics   for Prometheus
  /health    200 while the node runs, else 503 with the reason
  /ready     200 once all peers are connected, else 503 with those that are not, and why if one refuses the other

One request a connection, `PATIENCE_S` for it, `HEAD_BYTES` of it, and so many at a time. It changes nothing, but it has
no TLS and asks nobody for a name: so it listens on loopback, unless the operator says that others may read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antecede.errors import BadParameter
from antecede.net.serve.listener import Answering
from antecede.net.status import Status, expose
from antecede.net.transports.tcp import parse_address
from antecede.net.transports.tls import is_loopback

__all__ = ["Health"]

PATIENCE_S = 5.0
HEAD_BYTES = 8192

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


class Health(Answering):
    """Serves what `status` says, at an address: one of loopback, unless others are `open_to_others`.

    >>> Health("0.0.0.0:9100", lambda: None)
    Traceback (most recent call last):
    antecede.errors.BadParameter: metrics: 0.0.0.0:9100 is reached from other machines: give an address of \
this machine (loopback), or set metrics_open_to_others = true
    """

    kind = "metrics"

    def __init__(self, address: str, status: Callable[[], Status], *, open_to_others: bool = False) -> None:
        if not is_loopback(parse_address(address)[0]) and not open_to_others:
            raise BadParameter(
                "metrics",
                f"{address} is reached from other machines: give an address of this machine "
                "(loopback), or set metrics_open_to_others = true",
            )
        super().__init__(address, HEAD_BYTES)
        self._status = status

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_response(*self._page(head)))
            await writer.drain()

    def _page(self, head: bytes) -> tuple[int, str]:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] != b"GET":
            return 400, "only GET\n"
        status = self._status()
        match words[1].split(b"?")[0]:
            case b"/metrics":
                return 200, expose(status)
            case b"/health":
                return (200, "up\n") if status.up else (503, f"{status.failure or 'closed'}\n")
            case b"/ready":
                missing = [peer for peer, connected in status.connected.items() if not connected]
                if status.up and not missing:
                    return 200, "ready\n"
                why = "".join(f"{reason}\n" for reason in status.refused.values())
                return 503, f"not connected: {', '.join(missing) or status.failure or 'closed'}\n{why}"
        return 404, "/metrics, /health or /ready\n"


def _response(code: int, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {code} {REASONS[code]}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
