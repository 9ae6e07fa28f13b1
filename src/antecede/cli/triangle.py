"""antecede triangle: one small run that goes wrong, and what each protocol makes of it.

Protocols that make the same run of it are shown together, with one space-time diagram; a table at the end compares all.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import typer
from msgspec import to_builtins
from rich.console import Console
from rich.text import Text

from antecede.cli.figure import S3, Performance, Wait, perform
from antecede.cli.options import Csv, Json, Protocols, refuse_two_forms
from antecede.cli.output import VERDICTS, describe_promises, print_csv, print_json, print_table
from antecede.diagram import render
from antecede.errors import BadParameter
from antecede.protocols import PROTOCOLS

__all__ = ["triangle"]

STORY = """\
S1 sends M1 to S3, then M2 to S2. S2 reads M2 and sends M3 to S3. So M1 happened before M3, and S3 ought to get it \
first. But M1 is slow: its packet to S3 arrives last, as late as the protocol lets it."""

STYLES = {"✗": "bold red", "!": "bold red", "◌": "bold yellow", "✓": "bold green"}
WIDEST = 110
MARGIN = 11
"""The widest name of a protocol, and a gap."""


def triangle(protocol: Protocols = None, as_json: Json = False, as_csv: Csv = False) -> None:
    """See a message overtaken, and how each protocol prevents it.

    The triangle of Raynal & Schiper 1989, figure 1. Succeeds if every protocol that promises causal order kept it, and
    no other did.
    """
    refuse_two_forms("triangle", as_json, as_csv)
    performances, skipped = _perform(protocol)
    console = Console(stderr=True, highlight=False)
    if as_json:
        print_json(_make_answer(performances, skipped))
    elif as_csv:
        print_csv(map(_make_record, performances))
    else:
        _show(console, performances, skipped)
    _say(console, describe_promises("triangle", performances))
    if not all(performance.expected for performance in performances):
        raise typer.Exit(1)


def _perform(chosen: list[str] | None) -> tuple[list[Performance], dict[str, str]]:
    """The performances; and, unless they were asked for, the protocols that need more than three processes to run."""
    if chosen:
        return [perform(name) for name in dict.fromkeys(chosen)], {}
    performances, skipped = [], {}
    for name in PROTOCOLS:
        try:
            performances.append(perform(name))
        except BadParameter as error:
            skipped[name] = str(error)
    return performances, skipped


# For people


def _show(console: Console, performances: list[Performance], skipped: dict[str, str]) -> None:
    console.print("The triangle (Raynal & Schiper 1989, figure 1)", style="bold")
    _say(console, f"{STORY}\n")
    for group in _group_performances(performances):
        _show_group(console, group)
    _print_performances(console, performances)
    console.print()
    for name, why in skipped.items():
        _say(console, f"{name} was left out: {why}")
    _say(console, "Stamp entries: those of the largest stamp, as the protocol's paper counts them.")


def _group_performances(performances: Iterable[Performance]) -> list[list[Performance]]:
    """The performances that came to the same run, together."""
    groups: dict[tuple[Any, ...], list[Performance]] = {}
    for performance in performances:
        waits = tuple((wait.message, wait.at, wait.side) for wait in performance.waits)
        groups.setdefault((performance.view, performance.events, waits), []).append(performance)
    return list(groups.values())


def _show_group(console: Console, group: list[Performance]) -> None:
    for performance in group:
        name = performance.protocol
        _say(console, f"{name:<{MARGIN}}{_find_source(name)}", MARGIN, {name: "bold cyan"})
    first, ascii = group[0], _is_ascii(console)
    width = min(console.width, WIDEST) - 2
    picture = render(first.events, first.view, first.names, first.verdict.marks, ascii=ascii, width=width)
    console.print()
    for line in picture.split("\n"):
        console.print(_colour(f"  {line}".rstrip(), STYLES), no_wrap=True, crop=False)
    console.print()
    for wait in first.waits:
        _say(console, f"  {':' if ascii else '◌'} {_describe_wait(wait)}", 4)
    _say(console, f"  {_describe_verdict(first, ascii)}\n", 4)


def _say(console: Console, words: str, indent: int = 0, styles: Mapping[str, str] = STYLES) -> None:
    """Words, wrapped without trailing blanks: they are often read in a file."""
    margin = " " * indent
    lines = textwrap.wrap(words, min(console.width, WIDEST), subsequent_indent=margin, break_on_hyphens=False)
    console.print(_colour("\n".join(lines), styles), no_wrap=True, crop=False)
    if words.endswith("\n"):
        console.print()


def _colour(line: str, styles: Mapping[str, str]) -> Text:
    text = Text(line)
    for sign, style in styles.items():
        text.highlight_regex(rf"(?<!\w){re.escape(sign)}(?=\W|M)", style)
    return text


def _find_source(protocol: str) -> str:
    """Where the protocol comes from and what it does: the first line of its own page."""
    page = sys.modules[PROTOCOLS[protocol].__module__].__doc__ or ""
    return page.split("\n", 1)[0].removeprefix(f"{protocol}: ")


def _describe_wait(wait: Wait) -> str:
    where, cause = f"{wait.message} waits at its {wait.side} {wait.at}", " and ".join(wait.awaits)
    if wait.reason:
        return f"{where} {wait.reason}" + (f", because of {cause}" if cause else "")
    return f"{where} for {cause}"


def _describe_verdict(performance: Performance, ascii: bool) -> str:
    told = performance.verdict.explain(performance.view, performance.names)
    if performance.kept:
        return f"{'ok' if ascii else '✓'} causal order kept: {told}"
    return f"{'!' if ascii else '✗'} {told.removeprefix('violation: ')}"


def _print_performances(console: Console, performances: Iterable[Performance]) -> None:
    headings = [
        "protocol",
        "S3 delivers",
        "causal\norder",
        "who waited",
        "stamp\nentries",
        "control\npackets",
    ]
    rows: list[list[str | Text]] = []
    for p in performances:
        waited: dict[str, list[str]] = {}
        for wait in p.waits:
            waited.setdefault(f"{wait.side} {wait.at}", []).append(wait.message)
        rows.append(
            [
                Text(p.protocol, "cyan"),
                " ".join(p.list_delivered(S3)),
                VERDICTS[p.kept, p.order == "causal"],
                ", ".join(f"{' and '.join(many)} at {where}" for where, many in waited.items()) or "nobody",
                str(max(p.stamp_entries.values())),
                str(p.control_packets),
            ]
        )
    print_table(console, headings, rows, left=4)


def _is_ascii(console: Console) -> bool:
    return not console.encoding.startswith("utf")


# For programs


def _make_answer(performances: list[Performance], skipped: dict[str, str]) -> dict[str, Any]:
    return {
        "verdict": "yes" if all(p.expected for p in performances) else "no",
        "protocols": [_make_record(p) for p in performances],
        "skipped": skipped,
    }


def _make_record(p: Performance) -> dict[str, Any]:
    return {
        "protocol": p.protocol,
        "promises": p.order,
        "kept": p.kept,
        "expected": p.expected,
        "delivered": {name: p.list_delivered(i) for i, name in enumerate(p.view.names)},
        "findings": [] if p.kept else p.verdict.explain(p.view, p.names).split("\n"),
        "waits": to_builtins(p.waits),
        "stamp_entries": p.stamp_entries,
        "control_packets": p.control_packets,
    }
