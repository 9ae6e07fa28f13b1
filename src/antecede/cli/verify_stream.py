"""antecede verify --stream: what is wrong with a system while it runs, until Ctrl-C or, with --once, the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.stream_options import Asked, open_stream
from antecede.spark.duration import parse_duration

if TYPE_CHECKING:
    from antecede.spark.stream.verify_files import Findings

__all__ = ["verify_stream"]


def verify_stream(source: str, asked: Asked, forget: str | None) -> None:
    """Exit code 0: nothing was found. 1: something was."""
    if forget is not None:
        parse_duration(asked.command, "--forget", forget)
    findings = f"{asked.out.rstrip('/')}/findings"
    with open_stream(asked, "verifying what comes") as (work, checkpoint, stop):
        from antecede.spark.stream.verify_files import verify_events

        judged = verify_events(
            work.spark,
            source,
            findings,
            checkpoint,
            once=asked.once,
            every_s=asked.every_s,
            patience=asked.patience,
            forget=forget,
            stop=stop,
            note=lambda counts: work.say(f"{counted(counts)} in the last micro-batch"),
        )
    report(judged, findings, asked.as_json)
    if judged.counts:
        raise typer.Exit(1)


def report(judged: Findings, out: str, as_json: bool) -> None:
    verdict = "no" if judged.counts else "yes"
    if as_json:
        print(json.dumps({"verdict": verdict, "found": judged.counts, "out": out}))
    for row in judged.first:
        print(sentence(row), file=sys.stderr)
    told = f"no: {counted(judged.counts)}: {out}" if judged.counts else "yes: nothing wrong so far"
    print(told, file=sys.stderr)


def counted(counts: Mapping[str, int]) -> str:
    """
    >>> counted({"violation": 2, "fifo_break": 1}), counted({})
    ('2 violation, 1 fifo break', 'nothing')
    """
    return ", ".join(f"{many:,} {kind.replace('_', ' ')}" for kind, many in counts.items()) or "nothing"


def sentence(row: Mapping[str, Any]) -> str:
    """A finding in words.

    >>> sentence({"run": "r", "kind": "unsent", "process": "q", "sender": "p", "number": 1, "by_sender": None})
    'r: unsent: p.1 at q'
    """
    what = "" if row["sender"] is None else f"{row['sender']}.{row['number']} "
    by = "" if row["by_sender"] is None else f", after {row['by_sender']}.{row['by_number']}"
    return f"{row['run']}: {row['kind'].replace('_', ' ')}: {what}at {row['process']}{by}"
