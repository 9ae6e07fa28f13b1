"""antecede order --stream: rows of files that appear, in causal order, until Ctrl-C or, with --once, the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import typer

from antecede.cli.output import count_things, print_json, print_sentence
from antecede.cli.spark_session import Asked, Work, open_stream
from antecede.errors import BadParameter
from antecede.model import View

if TYPE_CHECKING:
    from antecede.spark.order.stream_files import Outcome
    from antecede.spark.stream.status import Progress

__all__ = ["Rows", "order_stream", "split_processes"]


class Rows(NamedTuple):
    """The options that say where rows are, and how they are read."""

    source: str
    columns: Mapping[str, Any]
    """What orders them: parameters of `antecede.spark.order`."""
    files: int | None
    by: str
    receiver: str | None


def order_stream(rows: Rows, asked: Asked) -> None:
    """Exit code 0: every row came out after its causes. 1: some wait, or came out without theirs, or are refused."""
    refuse_request(rows, asked)
    delivered = f"{asked.out.rstrip('/')}/delivered"
    with open_stream(asked, "reading what comes") as (work, checkpoint, stop):
        from antecede.spark.order.stream_files import Source, order_files
        from antecede.spark.stream.api import Asked as Columns

        columns = Columns(**rows.columns, patience=asked.patience, remember=asked.remember)
        outcome = order_files(
            work.spark,
            Source(rows.source, columns, rows.files, rows.by, rows.receiver),
            delivered,
            checkpoint,
            once=asked.once,
            every=asked.every_s,
            stop=stop,
            note=lambda told: say_progress(work, told),
        )
    report(outcome, delivered, asked.as_json)
    if not outcome.complete:
        raise typer.Exit(1)


def refuse_request(rows: Rows, asked: Asked) -> None:
    """What can be refused without a Spark."""
    forms = "--id and --causes, or --process and --vector, or --protocol and --processes"
    given = [
        name for name in ("id", "causes", "process", "vector", "protocol", "processes") if rows.columns[name]
    ]
    if given in (["protocol"], ["processes"]):
        other = "processes" if given == ["protocol"] else "protocol"
        raise BadParameter(asked.command, f"--{other} is missing: it says how to read the packets' stamps")
    if given not in (["id", "causes"], ["process", "vector"], ["protocol", "processes"]):
        found = ", ".join(f"--{name}" for name in given) or "none"
        raise BadParameter(asked.command, f"name the columns by {forms}, not by {found}")
    groups = rows.columns["partition_by"] or ()
    if rows.columns["protocol"] is not None and len(groups) > 1:
        raise BadParameter(
            asked.command, f"--partition-by takes one column with stamps, not {','.join(groups)}"
        )
    if rows.columns["protocol"] is not None and asked.remember is not None:
        raise BadParameter(asked.command, "--remember needs --causes or --vector")


def split_processes(processes: str) -> tuple[str, ...]:
    """Names separated by commas, or how many there are.

    >>> split_processes("ann, bob"), split_processes("3")
    (('ann', 'bob'), ('p1', 'p2', 'p3'))
    """
    if processes.isdecimal():
        return View.numbered(int(processes)).names
    return View(tuple(name.strip() for name in processes.split(",") if name.strip())).names


def say_progress(work: Work, told: Progress) -> None:
    status = told.status
    words = f"{told.delivered_per_second:,.0f} rows a second"
    work.say(f"{words}, {status.describe_waits()}" if status.held else words)


def report(outcome: Outcome, out: str, as_json: bool) -> None:
    verdict = "yes" if outcome.complete else "no"
    if as_json:
        print_json({"verdict": verdict, **msgspec.structs.asdict(outcome), "out": out})
    many = (
        f"{count_things(outcome.delivered + outcome.late, 'row')} in "
        f"{count_things(outcome.batches, 'micro-batch', 'micro-batches')}; written to {out}"
    )
    if outcome.complete:
        print_sentence(f"yes: all in causal order; {many}")
        return
    why = (
        "for causes that form a cycle or have not come" if outcome.cycles else "for causes that have not come"
    )
    named = f" ({outcome.held_up})" if outcome.held_up else ""
    parts = [
        f"{count:,} {words}"
        for count, words in (
            (outcome.waiting, f"{'waits' if outcome.waiting == 1 else 'wait'} {why}{named}"),
            (outcome.released, "came out without a cause that was given up"),
            (outcome.late, "came late"),
            (outcome.refused, "refused"),
        )
        if count
    ]
    print_sentence(f"no: {', '.join(parts)}; {many}")
