"""The page: a small server on this machine, and what it serves.

  /         the page, which asks for the rest
  /status   the statuses after ?after=BATCH, as JSON

It answers only to names of this machine: a page from elsewhere that a browser was led to cannot read it by giving its
own name this address. Names in the statuses come from foreign systems: the script sets text and never parses HTML, and
the page's policy allows this script alone.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from antecede.errors import BadParameter
from antecede.html import make_page
from antecede.watch.status import Board, Status

__all__ = ["LOOPBACK", "Page", "render"]

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


class Answer(msgspec.Struct, frozen=True):
    now_ms: int
    statuses: list[Status]


def render(title: str) -> str:
    """The page of a stream.

    >>> "&lt;b&gt;" in render("<b>")
    True
    """
    return make_page(title, _read_file("page.css"), _read_file("page.js"), _read_file("page.html"), asks=True)


class Page(ThreadingHTTPServer):
    """Serves a board on loopback: `serve_forever`, then `server_close`. Port 0: any that is free."""

    daemon_threads = True

    def __init__(self, board: Board, title: str, port: int = 0) -> None:
        self.board, self.page = board, render(title).encode()
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:
            raise BadParameter("watch", f"port {port} cannot be used: {error}") from None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Page
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        asked = urlsplit(self.path)
        if name not in LOOPBACK:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"only by a name of this machine")
        elif asked.path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        elif asked.path == "/status":
            self._answer_status(parse_qs(asked.query).get("after", ["-1"])[0])
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"no such page")

    def _answer_status(self, after: str) -> None:
        try:
            batch = int(after)
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", b"after: expected the number of a batch")
            return
        answer = Answer(time.time_ns() // 1_000_000, self.server.board.read(batch))
        self._answer(HTTPStatus.OK, "application/json", msgspec.json.encode(answer))

    def _answer(self, code: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a question a second tells nobody anything."""


def _read_file(name: str) -> str:
    return (files("antecede.watch") / name).read_text(encoding="utf-8")
