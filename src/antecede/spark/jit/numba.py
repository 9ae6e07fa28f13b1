"""How functions of this package are compiled: on first use, kept on disk, without holding Python's lock.

`_nrt=False`: no counting of references. A function that is handed arrays counts one for each, atomically, at each
call, which would cost more than all that is done for a row. So these functions make no arrays; those that do are
`allocating`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from numba import njit

__all__ = ["native", "inlined", "allocating"]

PLAIN: Final[dict[str, Any]] = {"cache": True, "nogil": True}
UNCOUNTED: Final[dict[str, Any]] = {**PLAIN, "_nrt": False}


def native(function: Callable[..., Any]) -> Any:
    return njit(**UNCOUNTED)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Part of whatever calls it: for what is done with every row."""
    return njit(**UNCOUNTED, forceinline=True)(function)


def allocating(function: Callable[..., Any]) -> Any:
    return njit(**PLAIN)(function)
