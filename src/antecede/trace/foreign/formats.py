"""The formats of foreign logs, and what can be refused before anything is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from antecede.errors import BadParameter
from antecede.trace.foreign import lines, shiviz, tlaplus, tracing

__all__ = ["FORMATS", "LINES", "TABLE", "refuse_absent_columns", "refuse_request"]

TABLE: Final = "table"
LINES: Final[dict[str, lines.Line]] = {"tracing": tracing.read, "tlaplus": tlaplus.read}
"""The formats of one event a line."""
FORMATS: Final = ("shiviz", *LINES, TABLE)


def refuse_request(
    format: str, pattern: str | None, delimiter: str | None, mapping: Mapping[str, str] | None
) -> None:
    """Refuse a request that contradicts itself.

    >>> refuse_request("csv", None, None, None)
    Traceback (most recent call last):
    antecede.errors.BadParameter: ingest: format must be one of shiviz, tracing, tlaplus, table, not 'csv'
    """
    if format not in FORMATS:
        raise BadParameter.choice("ingest", "format", format, FORMATS)
    if format != "shiviz" and (pattern or delimiter):
        raise BadParameter("ingest", f"pattern is for shiviz, not for {format}")
    if (format == TABLE) != (mapping is not None):
        raise BadParameter(
            "ingest",
            f"map is for a table, not for {format}"
            if mapping
            else "a table needs map, the names of its columns",
        )
    shiviz.expressions(pattern, delimiter)


def refuse_absent_columns(owner: str, mapping: Mapping[str, str], there: Collection[str]) -> None:
    """Refuse a mapping to columns that a table does not have.

    >>> refuse_absent_columns("ingest", {"process": "host"}, ["pod", "at"])
    Traceback (most recent call last):
    antecede.errors.BadParameter: ingest: map has process=host, and the table has no such column; its columns are ...
    """
    for ours, name in mapping.items():
        if name not in there:
            raise BadParameter(
                owner,
                f"map has {ours}={name}, and the table has no such column; its columns are {', '.join(there)}",
            )
