"""Ctrl-C as a request: the first asks for an end in good order, the second ends at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["catch_interrupt", "hold_interrupts", "ignore_interrupts"]


@contextmanager
def catch_interrupt() -> Iterator[Callable[[], bool]]:
    """Within this, whether Ctrl-C was pressed; a second one raises KeyboardInterrupt."""
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while a worker starts: one that is half started complains. Workers never see it."""
    if sys.platform == "win32":
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def ignore_interrupts() -> None:
    """For a worker: the process that started it ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
