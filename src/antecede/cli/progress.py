"""What commands that work for a while share: a bar on a terminal, no garbage collection, and Ctrl-C as a request.

The first Ctrl-C asks for an end in good order, the second ends at once.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["can_draw", "catch_interrupt", "hold_interrupts", "ignore_interrupts", "pause_gc", "show_progress"]


def can_draw(console: Console) -> bool:
    """Whether this is a terminal that shows this command, and not another one that its reader types meanwhile."""
    if not console.is_terminal:
        return False
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except (AttributeError, OSError):
        return True  # Windows, or a terminal that controls no processes.


@contextmanager
def show_progress(things: str, total: int) -> Iterator[Callable[[int], None]]:
    """Within this, a function that says how many things more are done."""
    console = Console(stderr=True)
    columns = TextColumn(things), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not can_draw(console)) as progress:
        bar = progress.add_task(things, total=total)
        yield lambda more: progress.advance(bar, more)


@contextmanager
def pause_gc() -> Iterator[None]:
    """Runs and their tables are millions of small values without a cycle: looking for one is time lost."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def catch_interrupt(raises: bool = True) -> Iterator[Callable[[], int]]:
    """Within this, how often Ctrl-C was pressed; a second one raises KeyboardInterrupt.

    Who asks several times a second sets `raises` to False: an error that is raised in a finalizer would be lost.
    """
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked and raises:
            raise KeyboardInterrupt
        asked.append(number)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: len(asked)
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
