"""`antecede node`: a node as a process, with standard input and output as JSON Lines, or a local socket.

SIGTERM and Ctrl-C stop it gently: no more is taken, what was sent is given a while to be acknowledged, and everything
is durable. The end of standard input stops nothing: a node may have nothing to say. A node that fails says so as its
last event, and on standard error, and the command exits with 2.

Standard input is read and standard output written by threads, so that a slow reader holds up what is handed over, and
not the node. With a socket, or as a router, standard input is not read, and standard output tells only that it is ready
and closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import typer

from antecede.net.config import load
from antecede.net.node import Node
from antecede.net.serve.health import Health
from antecede.net.serve.lines import LONGEST, Lines, Say, last_word, ready
from antecede.net.serve.local import Local

__all__ = ["node"]

logger = logging.getLogger("antecede.net")


class Role(StrEnum):
    node = "node"
    router = "router"
    witness = "witness"


class Log(StrEnum):
    text = "text"
    json = "json"


class JsonLines(logging.Formatter):
    """A log for programs: one object a line, with the node's name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._node = name

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "node": self._node,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(told).decode()


def node(
    config: Path = typer.Option(..., "--config", help="What the node is: a TOML file."),
    role: Role = typer.Option(
        Role.node,
        "--role",
        help="router: forward what passes, with no program behind it; witness: only store what passes a separator.",
    ),
    log: Log = typer.Option(Log.text, "--log", help="How the log is written, to standard error."),
    verbose: bool = typer.Option(False, "--verbose", help="Say more of what happens, to standard error."),
) -> None:
    """Run a node: requests on standard input, events on standard output, one JSON object a line.

    With `socket` in the configuration, programs use it by a local socket instead. docs/runtime.md has the lines.
    """
    described, alone = load(config), role is not Role.node
    if alone:
        described.check_role(role.value)
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(plain if log is Log.text else JsonLines(described.name))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    socket = None if described.socket is None else config.parent / described.socket
    feed = described.make_feed(config.parent) or nullcontext()
    made = described.node(config.parent, role.value)
    window: AbstractAsyncContextManager[Any] = nullcontext()
    if described.metrics is not None:
        open_to_others = described.metrics_open_to_others
        window = Health(described.metrics, made.status, open_to_others=open_to_others)
    if asyncio.run(_run(made, feed, window, socket, alone)) == signal.SIGINT:
        raise typer.Exit(130)


async def _run(
    node: Node,
    feed: AbstractAsyncContextManager[Any],
    window: AbstractAsyncContextManager[Any],
    socket: Path | None,
    alone: bool,
) -> int:
    """Run until a signal comes, and say which; or raise what made the node fail. `alone`: no program is behind it."""
    loop = asyncio.get_running_loop()
    signals: list[int] = []
    stopped = asyncio.Event()

    def stop(number: int) -> None:
        signals.append(number)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    with ThreadPoolExecutor(1, "antecede-out") as thread:

        async def say(event: dict[str, Any]) -> None:
            await loop.run_in_executor(thread, _write, msgspec.json.encode(event) + b"\n")

        running: asyncio.Future[None] | None = None
        try:
            async with feed, node, window:
                local = nullcontext() if socket is None else Local(node, socket)
                talk = _talk(node, say) if socket is None and not alone else _stay(node, say, local)
                running = asyncio.ensure_future(talk)
                stopping = asyncio.ensure_future(stopped.wait())
                await asyncio.wait({stopping, running}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
            await running
        finally:
            if running is not None:
                # What made it fail may be raised by the node before it is raised here.
                await asyncio.wait({running})
                await say(last_word(node))
    return signals[0] if signals else 0


async def _talk(node: Node, say: Say) -> None:
    """By standard input and output, until the node is closed."""
    loop, lines = asyncio.get_running_loop(), Lines(node, say)
    _read(lambda line: asyncio.run_coroutine_threadsafe(lines.request(line), loop).result())
    await lines.run()


async def _stay(node: Node, say: Say, local: AbstractAsyncContextManager[Any]) -> None:
    """By a socket, or for the others alone, until the node is closed. Raises what made it fail."""
    async with local:
        await say(ready(node))
        await node.wait_closed()


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _read(request: Callable[[bytes], None]) -> None:
    """Give lines of standard input to a function, in a thread that nobody waits for."""

    def read() -> None:
        for line in _read_lines():
            try:
                request(line)
            except (CancelledError, RuntimeError):
                # The node ends: what is asked is cancelled, or the loop is gone.
                return
            except Exception:
                logger.exception("cannot carry out a line of standard input")

    threading.Thread(target=read, daemon=True, name="antecede-in").start()


def _read_lines() -> Iterator[bytes]:
    """The lines of standard input; of one that is too long, what is too much to be a request."""
    # Not by `sys.stdin`, whose lock Python cannot take back at the end from a thread that waits.
    rest = b""
    while data := os.read(0, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        yield from (line for line in lines if line.strip())
        if len(rest) > LONGEST:
            yield rest
            rest = b""
    if rest.strip():
        yield rest
