"""Protocols that stand in a file of the user's own: FILE.py:CLASS, wherever a protocol is named.

The file is run, as Python runs a script that stands in its directory. Its class is a machine like those of
`antecede.protocols`; it needs no entry there. CLASS may be left out if the file defines one machine.

>>> find_protocol("matrix").__name__
'Matrix'
>>> find_protocol("matrices")
Traceback (most recent call last):
antecede.errors.BadParameter: protocol: the name must be one of unordered, fifo, matrix, bounded, monitor, buffer, \
history, separator, broadcast, optimal, permit, contexts, sparing, underway, FILE.py:CLASS, not 'matrices'
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from antecede.errors import AntecedeError, BadMachine, BadParameter
from antecede.model import Stamp
from antecede.protocols import PROTOCOLS, Machine

__all__ = ["explain_crash", "find_protocol", "is_file", "split_name"]

_modules: dict[tuple[str, int], ModuleType] = {}
"""(path, when it was changed) -> the module."""


def is_file(protocol: str) -> bool:
    """Whether this names a machine of a file.

    >>> is_file("mine/vector.py:Vector"), is_file("vector.py"), is_file("bounded")
    (True, True, False)
    """
    return split_name(protocol)[0].endswith(".py")


def split_name(text: str) -> tuple[str, str, str]:
    """File or name of a protocol, class, and what follows.

    >>> split_name("vector.py:Vector:k=3"), split_name("vector.py:k=3"), split_name("bounded:k=3")
    (('vector.py', 'Vector', 'k=3'), ('vector.py', '', 'k=3'), ('bounded', '', 'k=3'))
    """
    head, dot, tail = text.partition(".py:")
    if not dot:
        name, _, rest = text.partition(":")
        return name.strip(), "", rest
    kind, _, rest = tail.partition(":")
    return (f"{head}.py", kind, rest) if kind.isidentifier() else (f"{head}.py", "", tail)


def find_protocol(protocol: str, place: str = "protocol", what: str = "the name") -> type[Machine]:
    """The machines of a protocol, by its name or its file. An error says that `what` at `place` is wrong."""
    found = PROTOCOLS.get(protocol)
    if found is not None:
        return found
    path, name, rest = split_name(protocol)
    if not path.endswith(".py") or rest:
        raise BadParameter.choice(place, what, protocol, (*PROTOCOLS, "FILE.py:CLASS"))
    kind = _choose_class(path, name, _load(path))
    _check(path, kind)
    return kind


def _load(path: str) -> ModuleType:
    file = Path(path).absolute()
    try:
        key = str(file), file.stat().st_mtime_ns
    except OSError as error:
        raise BadMachine(path, f"cannot be read: {error.strerror or error}") from error
    if key in _modules:
        return _modules[key]
    name = f"antecede_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "a file that ends in .py"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Annotations are looked up there; and what stands beside the file can be imported, as by a script.
    sys.modules[name] = module
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise BadMachine(f"{path}, line {error.lineno}", f"is no Python: {error.msg}") from error
    except Exception as error:
        raise BadMachine(_place(path, error), f"cannot be imported: {_describe(error)}") from error
    finally:
        sys.path.remove(str(file.parent))
    _modules[key] = module
    return module


def _choose_class(path: str, name: str, module: ModuleType) -> type[Machine]:
    """The machine of this name, or the only one that the file defines."""
    own = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Machine) and value.__module__ == module.__name__
    }
    there = f"it has {', '.join(own)}" if own else "it defines no class derived from Machine or Receiver"
    if name:
        if name in own:
            return own[name]
        found = getattr(module, name, None)
        what = f"has no class {name}" if found is None else f"{name} is no machine that it defines"
        raise BadMachine(path, f"{what}: {there}")
    if len(own) != 1:
        raise BadMachine(path, f"{there}: write {path}:CLASS" if own else there)
    return next(iter(own.values()))


def _check(path: str, kind: type[Machine]) -> None:
    """What a machine must say of itself before it is made."""
    place, name = f"{path}: {kind.__name__}", getattr(kind, "name", None)
    if not isinstance(name, str) or not name:
        raise BadMachine(place, 'needs a name: write name = "..." in the class')
    if name in PROTOCOLS:
        raise BadMachine(place, f"is called {name!r}, as a protocol of Antecede is: give it another name")
    stamps = getattr(kind, "stamps", ())
    if not stamps or not all(isinstance(one, type) and issubclass(one, Stamp) for one in stamps):
        raise BadMachine(place, "needs its stamps: write stamps = (MyStamp,), classes derived from Stamp")
    if inspect.isabstract(kind):
        lacking = ", ".join(sorted(kind.__abstractmethods__))
        raise BadMachine(place, f"lacks {lacking}: a machine must define them")


@contextmanager
def explain_crash(protocol: str) -> Iterator[None]:
    """Within this, an error that the code of a file raises is told with its line: it is not Antecede's."""
    try:
        yield
    except AntecedeError:
        raise
    except Exception as error:
        if not is_file(protocol):
            raise
        raise BadMachine(_place(split_name(protocol)[0], error), f"raised {_describe(error)}") from error


def _place(path: str, error: Exception) -> str:
    """The last line of this file that the error went through."""
    file = str(Path(path).absolute())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{path}, line {lines[-1]}" if lines else path


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
