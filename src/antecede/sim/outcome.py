"""What came of a run that a soak has drawn, of machines or of nodes; and the shortest run that still fails."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from msgspec import Struct

__all__ = ["Outcome", "pause_collector", "shorten"]

T = TypeVar("T")


class Outcome(Struct, Generic[T], frozen=True):
    """What came of one run."""

    run: T
    """What it was drawn as."""
    protocol: str
    deliveries: int = 0
    crashes: int = 0
    resent: int = 0
    findings: tuple[str, ...] = ()
    judged: bool = False
    """Whether the oracle judged it too."""
    counts: Mapping[str, int] = {}
    """What happened in it, and how often."""

    @property
    def kind(self) -> str:
        """What went wrong, in a word."""
        return self.findings[0].partition(":")[0] if self.findings else ""


@contextmanager
def pause_collector() -> Iterator[None]:
    """Leave what a short run has used to its end."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def shorten(
    run: T,
    list_simpler: Callable[[T], Iterable[T]],
    list_seeded: Callable[[T], Iterable[T]],
    fails: Callable[[T], bool],
    most: int,
    told: Callable[[T], None],
) -> T:
    """The shortest run found that fails in the same way.

    Every simpler run is tried with its own seed and a few small ones, since each change is another run; `most` limits
    how many runs are tried. `told` hears of each success.
    """
    left = most

    def find(candidate: T) -> T | None:
        nonlocal left
        for tried in list_seeded(candidate):
            if left <= 0:
                return None
            left -= 1
            if fails(tried):
                return tried
        return None

    while (better := next(filter(None, map(find, list_simpler(run))), None)) is not None:
        run = better
        told(run)
    return run
