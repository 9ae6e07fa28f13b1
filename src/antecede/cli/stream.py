"""What commands that run a stream share: what is asked of it, Ctrl-C as the way to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from antecede.cli.signals import catch_interrupt
from antecede.cli.spark_session import Work, open_work
from antecede.errors import BadParameter
from antecede.spark.duration import parse_duration

__all__ = ["Asked", "open_stream"]


class Asked(NamedTuple):
    """What is asked of any stream."""

    command: str
    out: str
    checkpoint: str | None
    once: bool
    every_s: float
    patience: str | None
    as_json: bool
    master: str | None
    remote: str | None
    remember: str | None = None


class Streaming(NamedTuple):
    work: Work
    checkpoint: str
    stop: Callable[[], bool]


@contextmanager
def open_stream(asked: Asked, step: str) -> Iterator[Streaming]:
    """A session for a stream, until Ctrl-C."""
    if asked.every_s <= 0:
        raise BadParameter(asked.command, f"--every must be more than 0 seconds, not {asked.every_s}")
    for option, text in (("--patience", asked.patience), ("--remember", asked.remember)):
        if text is not None:
            parse_duration(asked.command, option, text)
    checkpoint = asked.checkpoint or f"{asked.out.rstrip('/')}/checkpoint"
    with open_work(asked.master, asked.remote, step) as work, catch_interrupt() as stop:
        yield Streaming(work, checkpoint, stop)
