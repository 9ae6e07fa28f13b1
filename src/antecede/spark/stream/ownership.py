"""Whose checkpoint it is, and whose output: looked at before a query starts, so that none goes on where another was.

Spark itself starts a query on whatever a checkpoint holds, and one with a new checkpoint on whatever lies at its
output: micro-batches that have the numbers of the other query's are then taken for written, and lost. So a query leaves
a note of what it is in its checkpoint, `antecede.json`, and the next one is compared with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from antecede.errors import BadParameter, CannotWrite
from antecede.spark.storage import absolute, join, local, opened, put, readable, vacant

__all__ = ["begin", "fresh"]

NOTE: Final = "antecede.json"


def fresh(checkpoint: str | os.PathLike[str]) -> bool:
    """Whether no query has begun with this checkpoint. Of storage that we cannot look at, one may have."""
    place = join(absolute(checkpoint), "offsets")
    return readable(place) and vacant(place)


def begin(
    command: str,
    what: Mapping[str, Any],
    out: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
) -> None:
    """Refuse a checkpoint or an output of another query than `what`; else note whose the checkpoint is."""
    place, target = absolute(checkpoint), absolute(out)
    if not (readable(place) and readable(target)):
        return
    wanted, new = msgspec.json.encode(what), fresh(place)
    if not new:
        refuse_other(command, msgspec.json.decode(wanted), place)
    if new and not vacant(target):
        found, expected = f"{target}, which is there", "a new place, or the checkpoint of who wrote it"
        raise BadParameter(command, "output", found, expected)
    if vacant(target) and not vacant(join(place, "commits")):
        found, expected = f"{target}, where nothing is", f"what the query of {place} has written"
        raise BadParameter(command, "output", found, expected)
    for directory in filter(None, (local(target), local(place))):
        make(directory)
    put(join(place, NOTE), wanted)


def refuse_other(command: str, what: Mapping[str, Any], checkpoint: str) -> None:
    try:
        with opened(join(checkpoint, NOTE)) as file:
            noted = msgspec.json.decode(file.read(), type=dict[str, Any])
    except FileNotFoundError:
        # Begun by a query of one's own, or before there were notes: its state tells.
        return
    except (OSError, msgspec.MsgspecError) as error:
        raise BadParameter(command, "checkpoint", f"{checkpoint} ({error})", "one with its note") from None
    for name in (*what, *noted):
        if noted.get(name) != what.get(name):
            found = f"{checkpoint}, of a query with {name} {shown(noted.get(name))}"
            raise BadParameter(command, "checkpoint", found, f"one with {name} {shown(what.get(name))}")


def shown(value: Any) -> str:
    """
    >>> shown(["ann", "bob"]), shown(None), shown("fifo")
    ('ann, bob', 'none', 'fifo')
    """
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "none" if value is None or value == {} else str(value)


def make(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise CannotWrite(directory, error.strerror or str(error), "nothing was written") from None
