"""The columns of a table of events that options name, for `order` and `verify`."""

from __future__ import annotations

import bz2
import csv
import gzip
import os
import re
import shlex
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from antecede.errors import BadParameter, BadTrace
from antecede.storage import local
from antecede.trace.foreign.formats import NO_UTF8, name_columns, refuse_repeated_columns

__all__ = [
    "list_files",
    "name_partition",
    "peek_columns",
    "refuse_unknown_columns",
    "split_names",
    "suggest_no_cause",
]

TABLE: Final = re.compile(r"\w+(\.(?!csv|json|jsonl|ndjson|parquet|gz|bz2|zst|lz4)\w+){0,2}")
"""What may be a table of Spark's catalogue: a name, perhaps with that of its schema, and not that of a file."""


def split_names(names: str | None) -> tuple[str, ...] | None:
    """Names that are separated by commas.

    >>> split_names("shop,day"), split_names(None)
    (('shop', 'day'), None)
    """
    return None if names is None else tuple(name for name in names.split(",") if name)


def list_files(events: str) -> list[str]:
    """What of it can be looked for before Spark starts: a table of Spark's catalogue is no file."""
    return [] if TABLE.fullmatch(events) and not os.path.exists(events) else [events]


def refuse_unknown_columns(owner: str, events: str, named: Iterable[tuple[str, str | None]]) -> None:
    """Say which of the named columns, (option, name), a local file does not have, before Spark starts."""
    there = peek_columns(events)
    for option, name in named:
        if there is not None and name is not None and name not in there:
            raise BadParameter(
                owner, f"--{option} must be one of the columns {name_columns(there)}, not {name!r}"
            )


def peek_columns(path: str) -> list[str] | None:
    """The columns of a local file of CSV or Parquet; None if it is not known without Spark."""
    place = local(path)
    if place is None or not os.path.isfile(place):
        return None
    if os.path.getsize(place) == 0:
        raise BadTrace(place, "the file is empty: give a table")
    base, end = os.path.splitext(place)
    opened: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(end)
    if place.endswith(".parquet"):
        from pyarrow import ArrowException
        from pyarrow.parquet import read_schema

        try:
            return list(read_schema(place).names)
        except (ArrowException, OSError):
            # Spark's reader says what is wrong with it.
            return None
    if not (place if opened is None else base).endswith(".csv"):
        return None
    with (opened or open)(place, "rt", encoding="utf-8-sig", newline="") as file:
        try:
            columns = next(csv.reader(file), [])
        except UnicodeDecodeError:
            raise BadTrace(place, NO_UTF8) from None
        except (OSError, EOFError, zlib.error, csv.Error):
            # Spark's reader says what is wrong with it.
            return None
    refuse_repeated_columns(place, columns)
    return columns


def name_partition(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """A partition in words.

    >>> name_partition({"shop": "eu", "day": 3}, ["shop", "day"])
    'shop eu, day 3'
    """
    return ", ".join(f"{name} {row[name]}" for name in names) or "the table"


def suggest_no_cause(missing: Sequence[object]) -> str | None:
    """What to try if the same identifier is missing in every partition: it may be a word for no cause at all.

    >>> suggest_no_cause(["root", "root"])
    'if root means that a row has no cause, add --no-cause root'
    >>> suggest_no_cause(["a", "b"]), suggest_no_cause(["root"])
    (None, None)
    """
    if len(missing) < 2 or len(set(missing)) > 1:
        return None
    return f"if {missing[0]} means that a row has no cause, add --no-cause {shlex.quote(str(missing[0]))}"
