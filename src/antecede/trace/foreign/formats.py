"""The formats of foreign logs, and what can be refused before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from antecede.errors import BadParameter
from antecede.trace.foreign import lines, shiviz, tlaplus, tracing

__all__ = ["FORMATS", "LINES", "TABLE", "refuse_request"]

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
    antecede.errors.BadParameter: ingest: format is csv, expected one of shiviz, tracing, tlaplus, table
    """
    if format not in FORMATS:
        raise BadParameter("ingest", "format", format, f"one of {', '.join(FORMATS)}")
    if format != "shiviz" and (pattern or delimiter):
        raise BadParameter("ingest", "pattern", f"given for {format}", "it for shiviz only")
    if (format == TABLE) != (mapping is not None):
        found = "given" if mapping else "missing"
        raise BadParameter("ingest", "map", found, "it for a table, and only there")
    shiviz.expressions(pattern, delimiter)
