"""Ctrl-C as a request: the first asks for an end in good order, the second ends at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["catch_interrupt"]


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
