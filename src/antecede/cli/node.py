"""`antecede node`: a node as a process, with standard input and output as JSON Lines.

SIGTERM and Ctrl-C stop it gently: no more is taken, what was sent is given a while to be acknowledged, and everything
is durable. The end of standard input stops nothing: a node may have nothing to say.

Standard input is read and standard output written by threads, so that a slow reader holds up what is handed over, and
not the node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec
import typer

from antecede.net.config import load
from antecede.net.health import Health
from antecede.net.lines import Lines
from antecede.net.node import Node

__all__ = ["node"]

LONGEST = 4 << 20
"""Bytes of a line."""


def node(
    config: Path = typer.Option(..., "--config", help="What the node is: a TOML file."),
    verbose: bool = typer.Option(False, "--verbose", help="Say more of what happens, to standard error."),
) -> None:
    """Run a node: requests on standard input, events on standard output, one JSON object a line."""
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    described = load(config)
    if asyncio.run(_run(described.node(config.parent), described.metrics)) == signal.SIGINT:
        raise typer.Exit(130)


async def _run(node: Node, metrics: str | None) -> int:
    """Run until a signal comes, and say which; or raise what made the node fail."""
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

        window = nullcontext() if metrics is None else Health(metrics, node.status)
        async with node, window:
            lines = Lines(node, say)
            running: asyncio.Future[Any] = asyncio.ensure_future(lines.run())
            _read(lambda line: asyncio.run_coroutine_threadsafe(lines.request(line), loop).result())
            stopping: asyncio.Future[Any] = asyncio.ensure_future(stopped.wait())
            await asyncio.wait({stopping, running}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
        await running
        await say({"event": "closed"})
    return signals[0] if signals else 0


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _read(request: Callable[[bytes], None]) -> None:
    """Give lines of standard input to a function, in a thread that nobody waits for."""

    def read() -> None:
        # When the node ends, what is asked is cancelled, or the loop is gone.
        with suppress(Exception):
            for line in _lines():
                request(line)

    threading.Thread(target=read, daemon=True, name="antecede-in").start()


def _lines() -> Iterator[bytes]:
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
