"""Kernels: functions over arrays that run compiled by Numba, or interpreted.

    native        makes no arrays; called from Python, or by other kernels
    inlined       the same, as part of whatever calls it: for what is done with every row
    allocating    makes arrays

A decorated function is compiled when Python first calls it; the machine code is kept on disk beside the source. Of
processes that call it at the same time, as the workers of a first job on Spark do, one compiles and the others load.
Loading Numba takes about a second: within `interpret_kernels()` kernels run as plain Python instead, which is the
faster way for some ten thousand rows. Where Numba is not installed, they always do. Both ways give the same results:
integers wrap, and no kernel depends on the width of an intermediate value.

`antecede.jit.hashtable` is the hash table of all kernels.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cache, cached_property
from importlib.util import find_spec
from threading import RLock
from types import FunctionType
from typing import Any, Final

import numpy as np

__all__ = ["native", "inlined", "allocating", "interpret_kernels", "kernels_for", "is_compiling", "has_numba"]

PLAIN: Final[dict[str, Any]] = {"cache": True, "nogil": True}
# No counting of references. A function that is handed arrays counts one for each, atomically, at each call: the scan of
# verification takes 500 ns an event with it and 40 without. Numba has no public name for this setting.
UNCOUNTED: Final[dict[str, Any]] = {**PLAIN, "_nrt": False}

INTERPRETED_MOST: Final = 10_000
"""Rows up to which plain Python is done sooner: it takes 40 to 60 µs a row, and loading Numba 0.4 s. (The first time,
Numba compiles for some ten seconds more.)"""

INTERPRETED: Final[ContextVar[bool]] = ContextVar("antecede.jit.interpreted", default=False)


@contextmanager
def interpret_kernels() -> Iterator[None]:
    """Within this, kernels run as plain Python.

    >>> @native
    ... def total(values):
    ...     return values[0] + values[1]
    >>> with interpret_kernels():
    ...     int(total(np.array([1, 2])))
    3
    """
    token = INTERPRETED.set(True)
    try:
        # Python warns where machine code wraps.
        with np.errstate(over="ignore"):
            yield
    finally:
        INTERPRETED.reset(token)


def kernels_for(rows: int) -> AbstractContextManager[None]:
    """Within this, kernels run the way that is done first with so many rows."""
    return nullcontext() if has_numba() and rows > INTERPRETED_MOST else interpret_kernels()


@cache
def has_numba() -> bool:
    return find_spec("numba") is not None


def is_compiling() -> bool:
    """Whether a kernel that is called now runs compiled."""
    return has_numba() and not INTERPRETED.get()


ALONE: Final = RLock()
"""Held by the thread that compiles."""


def type_of(argument: Any) -> Any:
    """What machine code for an argument depends on."""
    if not isinstance(argument, np.ndarray):
        return type(argument)
    return argument.dtype, argument.ndim, argument.flags.c_contiguous, argument.flags.writeable


class Kernel:
    """A function over arrays. Within compiled code its calls of other kernels are calls of machine code."""

    def __init__(self, function: FunctionType, options: dict[str, Any]) -> None:
        self.function, self.options = function, options
        self._known: set[tuple[Any, ...]] = set()
        self.__name__, self.__doc__, self.__wrapped__ = function.__name__, function.__doc__, function

    def __call__(self, *arguments: Any) -> Any:
        if not is_compiling():
            return self.function(*arguments)
        types = tuple(map(type_of, arguments))
        if types not in self._known:
            self._prepare(arguments)
            self._known.add(types)
        return self.compiled(*arguments)

    def _prepare(self, arguments: tuple[Any, ...]) -> None:
        """Load or make the machine code for arguments of these types."""
        from numba import typeof

        with ALONE:
            cache = os.open(self.compiled.stats.cache_path, os.O_RDONLY)
            try:
                # A process that dies gives the lock back. Where a file system has no locks, each compiles for itself.
                with suppress(OSError):
                    fcntl.flock(cache, fcntl.LOCK_EX)
                self.compiled.compile(tuple(map(typeof, arguments)))
            finally:
                os.close(cache)

    @cached_property
    def compiled(self) -> Any:
        from numba import njit

        own = self.function
        # Numba does not know this class: it compiles a copy whose globals name the compiled kernels.
        known = dict(own.__globals__)
        copy = FunctionType(own.__code__, known, own.__name__, own.__defaults__, own.__closure__)
        copy.__qualname__, copy.__module__ = own.__qualname__, own.__module__
        compiled = njit(**self.options)(copy)
        used = {name for name in own.__code__.co_names if name != self.__name__}
        known.update({name: known[name].compiled for name in used if isinstance(known.get(name), Kernel)})
        known[self.__name__] = compiled
        return compiled

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_kernel, (self.function.__module__, self.function.__qualname__)


def _find_kernel(module: str, name: str) -> Any:
    from importlib import import_module

    return getattr(import_module(module), name)


def native(function: Callable[..., Any]) -> Any:
    return _kernel(function, UNCOUNTED)


def inlined(function: Callable[..., Any]) -> Any:
    return _kernel(function, {**UNCOUNTED, "forceinline": True})


def allocating(function: Callable[..., Any]) -> Any:
    return _kernel(function, PLAIN)


def _kernel(function: Callable[..., Any], options: dict[str, Any]) -> Kernel:
    assert isinstance(function, FunctionType)
    return Kernel(function, options)
