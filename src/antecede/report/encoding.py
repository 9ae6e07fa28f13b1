"""A page's values as plain columns, compact enough to be carried as JSON, and exact in a browser.

- Names and messages are numbered; events, findings and destinations use the numbers. Equal lists of names are kept
  once.
- Times count from the start of the run, and are differences from the event before, as clocks are: small numbers.
- A browser's numbers are exact up to 2**53 only. What is larger goes as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from antecede.report.data import EVENT_KINDS, Event, Finding, Report, Run

__all__ = ["encode_report"]

EXACT = 1 << 53


def encode_report(report: Report) -> dict[str, Any]:
    """All that the script on the page gets."""
    lists: dict[tuple[str, ...], int] = {}
    runs = [_encode_run(run, lists) for run in report.runs]
    return {
        "title": report.title,
        "source": report.source,
        "command": report.command,
        "made": report.made,
        "version": report.version,
        "omitted": report.omitted_runs,
        "names": list(lists),
        "runs": runs,
        "failed": msgspec.to_builtins(report.failed),
        "histograms": msgspec.to_builtins(report.histograms),
    }


def _encode_run(run: Run, lists: dict[tuple[str, ...], int]) -> dict[str, Any]:
    names = Numbers(run.processes)
    messages = Messages(names)
    table = _encode_events(run, names, messages)
    findings = [_encode_finding(finding, names, messages) for finding in run.findings]
    aliases = {(alias.sender, alias.number): (alias.name, alias.id) for alias in run.aliases}
    same = (
        "run", "protocol", "network", "workload", "topology", "parameters", "promise", "outcome", "reason", "causality",
        "deliveries", "found", "size", "whole",
    )  # fmt: skip
    density = run.density
    return {name: getattr(run, name) for name in same} | {
        "seed": write_exactly(run.seed),
        "n": len(run.processes),
        "findings": findings,
        "price": _drop_absent(run.price),
        "processes": _encode_processes(run),
        "channels": msgspec.to_builtins(run.channels),
        "table": table,
        "messages": messages.columns(aliases),
        "windows": _encode_windows(run),
        "density": density
        and {
            "span": density.stop_ns - density.start_ns,
            "buckets": density.buckets,
            "bands": density.bands,
            "counts": density.counts,
        },
        # Last: by now the names that runs.parquet does not know are there too.
        "names": lists.setdefault(tuple(names.list), len(lists)),
    }


class Numbers:
    """Names as numbers: those known first, others as they come."""

    def __init__(self, known: Iterable[str]) -> None:
        self.list = list(known)
        self._of = {name: number for number, name in enumerate(self.list)}

    def __getitem__(self, name: str) -> int:
        number = self._of.setdefault(name, len(self.list))
        if number == len(self.list):
            self.list.append(name)
        return number


class Messages:
    """Messages as numbers, with their sender, number and destinations as columns."""

    def __init__(self, names: Numbers) -> None:
        self._names = names
        self._of: dict[tuple[str, int, bool], int] = {}
        self._to: dict[int, int] = {}
        self._sets: dict[tuple[int, ...], int] = {}

    def number(self, sender: str, number: int, control: bool = False) -> int:
        return self._of.setdefault((sender, number, control), len(self._of))

    def address(self, message: int, to: Iterable[str]) -> None:
        group = tuple(self._names[name] for name in to)
        self._to[message] = self._sets.setdefault(group, len(self._sets))

    def columns(self, aliases: Mapping[tuple[str, int], tuple[str | None, str]]) -> dict[str, Any]:
        named = [None if control else aliases.get((sender, number)) for sender, number, control in self._of]
        return {
            "alias": named if aliases else None,
            "sender": [self._names[sender] for sender, _, _ in self._of],
            "number": [write_exactly(number) for _, number, _ in self._of],
            "control": [int(control) for _, _, control in self._of],
            "to": [self._to.get(message, -1) for message in range(len(self._of))],
            "sets": list(self._sets),
        }


def _encode_events(run: Run, names: Numbers, messages: Messages) -> dict[str, Any]:
    events = run.events
    of = [messages.number(event.sender, event.number, event.control) for event in events]
    for message, event in zip(of, events, strict=True):
        if event.kind == "send" and event.to is not None:
            messages.address(message, event.to)
    clocked = all(event.clock is not None for event in events)
    return {
        "process": [names[event.process] for event in events],
        "index": [write_exactly(event.index) for event in events],
        "kind": [EVENT_KINDS.index(event.kind) for event in events],
        "message": of,
        "time": take_differences([event.time_ns - run.start_ns for event in events]),
        "clock": take_differences([event.clock or 0 for event in events]) if clocked else None,
        "entries": _encode_sparse(events, "stamp_entries"),
        "bytes": _encode_sparse(events, "stamp_bytes"),
        "label": _encode_sparse(events, "label"),
    }


def _encode_sparse(events: Sequence[Event], field: str) -> list[Any] | None:
    """A column that is mostly or wholly null: left out if wholly."""
    values = [getattr(event, field) for event in events]
    return values if any(value is not None for value in values) else None


def _encode_finding(finding: Finding, names: Numbers, messages: Messages) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "at": names[finding.process],
        "index": write_exactly(finding.index),
        "message": messages.number(finding.sender, finding.number),
        "by": None if finding.by is None else messages.number(finding.by.sender, finding.by.number),
        "path": [messages.number(message.sender, message.number) for message in finding.path],
        "spans": finding.spans,
        "spanNames": finding.span_names,
    }


def _encode_windows(run: Run) -> list[dict[str, Any]]:
    """Each window with the positions, in the table of events, of what it holds."""
    found = []
    for window in run.windows:
        at = [
            position
            for position, event in enumerate(run.events)
            if window.low <= ((event.clock or 0) if window.axis == "clock" else event.time_ns) <= window.high
        ]
        if at:
            found.append({"title": window.title, "first": at[0], "last": at[-1]})
    return found


def _encode_processes(run: Run) -> list[dict[str, Any]]:
    return [_drop_absent(price) for price in run.process_prices]


def _drop_absent(value: Any) -> Any:
    """A struct as a mapping, without what is absent."""
    if value is None:
        return None
    return {name: v for name, v in msgspec.structs.asdict(value).items() if v is not None}


def take_differences(values: Sequence[int]) -> list[int | str]:
    """The first value, then each one's difference from the one before."""
    return [write_exactly(x) for x in [*values[:1], *(b - a for a, b in pairwise(values))]]


def write_exactly(value: Any) -> Any:
    """The number, or its digits where a browser would round it."""
    return str(value) if isinstance(value, int) and not -EXACT < value < EXACT else value
