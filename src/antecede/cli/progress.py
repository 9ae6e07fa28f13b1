"""A bar for a command that counts what it does, where there is a terminal; and no garbage collection meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["pause_gc", "show_progress"]


@contextmanager
def show_progress(things: str, total: int) -> Iterator[Callable[[int], None]]:
    """Within this, a function that says how many things more are done."""
    console = Console(stderr=True)
    columns = TextColumn(things), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
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
