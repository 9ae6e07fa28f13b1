"""What the commands that run a stream share: their options, Ctrl-C as the way to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, NamedTuple

import typer

from antecede.cli.signals import catch_interrupt
from antecede.cli.spark_session import Work, open_work
from antecede.errors import BadParameter

__all__ = ["Asked", "Every", "Once", "Patience", "Place", "open_stream"]

Once = Annotated[bool, typer.Option("--once", help="With --stream: end when all that is there is done.")]
Every = Annotated[float, typer.Option(help="With --stream: seconds from one look to the next.")]
Place = Annotated[
    str | None,
    typer.Option(help="With --stream: where it remembers how far it came.", show_default="OUT/checkpoint"),
]
Patience = Annotated[
    float | None,
    typer.Option(
        help="With --stream: seconds after which what is missing is given up.  [default: never]",
        show_default=False,
    ),
]


class Asked(NamedTuple):
    """What is asked of any stream."""

    command: str
    out: str
    checkpoint: str | None
    once: bool
    every_s: float
    patience_s: float | None
    as_json: bool
    master: str | None
    remote: str | None


class Streaming(NamedTuple):
    work: Work
    checkpoint: str
    stop: Callable[[], bool]


@contextmanager
def open_stream(asked: Asked, step: str) -> Iterator[Streaming]:
    """A session for a stream, until Ctrl-C."""
    if asked.every_s <= 0:
        raise BadParameter(asked.command, "--every", asked.every_s, "more than 0 seconds")
    if asked.patience_s is not None and asked.patience_s <= 0:
        raise BadParameter(asked.command, "--patience", asked.patience_s, "more than 0 seconds")
    checkpoint = asked.checkpoint or f"{asked.out.rstrip('/')}/checkpoint"
    with open_work(asked.master, asked.remote, step) as work, catch_interrupt() as stop:
        yield Streaming(work, checkpoint, stop)
