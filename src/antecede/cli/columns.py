"""Options that name the columns of a table of events, for `order` and `verify`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

__all__ = ["Causes", "Id", "NoCause", "PartitionBy", "files_of", "name_partition", "split_names"]

TABLE: Final = re.compile(r"\w+(\.(?!csv|json|jsonl|ndjson|parquet|gz|bz2|zst|lz4)\w+){0,2}")
"""What may be a table of Spark's catalogue: a name, perhaps with that of its schema, and not that of a file."""

Id = Annotated[
    str | None, typer.Option("--id", help="Of a table: the column of identifiers.", show_default=False)
]
Causes = Annotated[
    str | None,
    typer.Option(
        "--causes",
        help="Of a table: the column of causes: an identifier, or a list of them.",
        show_default=False,
    ),
]
PartitionBy = Annotated[
    str | None,
    typer.Option(
        "--partition-by",
        "--group",
        help="Of a table: the columns that tell one set of events from another, separated by commas.  "
        "[default: none; with vectors run, if there is one]",
        show_default=False,
    ),
]
NoCause = Annotated[
    list[str] | None,
    typer.Option(
        "--no-cause",
        help="With --causes: a text that means no cause, besides the empty one.",
        show_default=False,
    ),
]


def split_names(names: str | None) -> tuple[str, ...] | None:
    """Names that are separated by commas.

    >>> split_names("shop,day"), split_names(None)
    (('shop', 'day'), None)
    """
    return None if names is None else tuple(name for name in names.split(",") if name)


def files_of(events: str) -> list[str]:
    """What of it can be looked for before Spark starts: a table of Spark's catalogue is no file."""
    return [] if TABLE.fullmatch(events) and not os.path.exists(events) else [events]


def name_partition(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """A partition in words.

    >>> name_partition({"shop": "eu", "day": 3}, ["shop", "day"])
    'shop eu, day 3'
    """
    return ", ".join(f"{name} {row[name]}" for name in names) or "the table"
