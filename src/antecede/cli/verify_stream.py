"""antecede verify --stream: what is wrong with a system while it runs, until Ctrl-C or, with --once, the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.output import print_json, print_sentence
from antecede.cli.spark_session import Asked, open_stream
from antecede.cli.verify_causes import Columns

if TYPE_CHECKING:
    from antecede.spark.stream.query import Totals

__all__ = ["verify_stream"]


def verify_stream(source: str, columns: Columns | None, asked: Asked) -> None:
    """Verify a trace or, by columns that state causes, events. Exit code 0: nothing was found. 1: something was."""
    findings = f"{asked.out.rstrip('/')}/findings"
    if columns is not None:
        from antecede.spark.tables import refuse_directory

        refuse_directory(asked.command, source)
    with open_stream(asked, "verifying what comes") as (work, checkpoint, stop):
        options: dict[str, Any] = {
            "once": asked.once,
            "every_s": asked.every_s,
            "patience": asked.patience,
            "remember": asked.remember,
            "stop": stop,
            "note": lambda counts: work.say(f"{describe_counts(counts)} in the last micro-batch"),
        }
        if columns is None:
            from antecede.spark.stream.api import verify_events

            judged = verify_events(work.spark, source, findings, checkpoint, **options)
        else:
            from antecede.spark.tables import StreamFiles
            from antecede.spark.verify.in_stream import verify_files

            named, consumer = columns.name_causes(), str(columns.consumer)
            judged = verify_files(
                work.spark, StreamFiles(source), named, consumer, findings, checkpoint, **options
            )
    if stop() and judged.batch < 0:
        raise KeyboardInterrupt
    report(judged, findings, asked.as_json, columns)
    if set(judged.counts) - {"missing"}:
        raise typer.Exit(1)


def report(judged: Totals, out: str, as_json: bool, columns: Columns | None = None) -> None:
    verdict = "no" if set(judged.counts) - {"missing"} else "unknown" if judged.counts else "yes"
    if as_json:
        causality = {} if columns is None else {"causality": "stated"}
        print_json({"verdict": verdict, **causality, "found": judged.counts, "out": out})
    for row in judged.examples.values():
        print_sentence(describe_row(row) if columns is None else columns.describe(row))
    by = "" if columns is None else "by stated causes, "
    found = f"{describe_counts(judged.counts)}; written to {out}" if judged.counts else "nothing wrong so far"
    print_sentence(f"{verdict}: {by}{found}")


def describe_counts(counts: Mapping[str, int]) -> str:
    """
    >>> describe_counts({"violation": 2, "fifo_break": 1, "unsent": 3}), describe_counts({})
    ('2 violations, 1 fifo break, 3 unsent', 'nothing')
    """
    words = {kind: f"{kind}s" for kind in ("violation", "duplicate", "gap")} | {"fifo_break": "fifo breaks"}
    parts = []
    for kind, many in counts.items():
        name = words.get(kind, kind)
        parts.append(f"{many:,} {name.removesuffix('s') if many == 1 else name}")
    return ", ".join(parts) or "nothing"


def describe_row(row: Mapping[str, Any]) -> str:
    """A finding in words.

    >>> describe_row({"run": "r", "kind": "unsent", "process": "q", "sender": "p", "number": 1, "by_sender": None})
    'r: unsent: p.1 at q'
    """
    what = "" if row["sender"] is None else f"{row['sender']}.{row['number']} "
    by = "" if row["by_sender"] is None else f", after {row['by_sender']}.{row['by_number']}"
    return f"{row['run']}: {row['kind'].replace('_', ' ')}: {what}at {row['process']}{by}"
