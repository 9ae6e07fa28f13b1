"""antecede order --stream: packets of files that appear, in causal order, until Ctrl-C or, with --once, the end."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import typer

from antecede.cli.simulate import parameters
from antecede.cli.sparks import Work, working
from antecede.cli.stopping import interrupted
from antecede.errors import BadParameter
from antecede.model import View

if TYPE_CHECKING:
    from antecede.spark.stream.files import Outcome
    from antecede.spark.stream.watch import Progress

__all__ = ["Asked", "order_stream"]


class Asked(NamedTuple):
    """The options of the command."""

    source: str
    out: str
    protocol: str | None
    processes: str | None
    settings: list[str]
    checkpoint: str | None
    once: bool
    patience: float | None
    every: float
    files: int | None
    group: str | None
    by: str
    receiver: str | None


def order_stream(asked: Asked, as_json: bool, master: str | None, remote: str | None) -> None:
    """Exit code 0: every message came out after its causes. 1: some wait, or came out without theirs, or are none."""
    command = "order --stream"
    for name in ("protocol", "processes"):
        if getattr(asked, name) is None:
            raise BadParameter(command, f"--{name}", "not given", "that of the packets' stamps")
    if asked.group is not None and "," in asked.group:
        raise BadParameter(command, "--group", asked.group, "one column")
    if asked.every <= 0:
        raise BadParameter(command, "--every", asked.every, "more than 0 seconds")
    with working(master, remote, "reading packets") as work, interrupted() as stop:
        from antecede.spark.stream.files import Source, order_files
        from antecede.spark.stream.posting import post

        source = Source(
            asked.source,
            str(asked.protocol),
            named(str(asked.processes)),
            parameters(command, asked.settings),
            asked.patience,
            asked.group,
            asked.files,
            asked.by,
            asked.receiver,
        )
        checkpoint = asked.checkpoint or f"{asked.out.rstrip('/')}/checkpoint"
        delivered = f"{asked.out.rstrip('/')}/delivered"
        options = {
            "once": asked.once,
            "every": asked.every,
            "stop": stop,
            "note": lambda told: say(work, told),
        }
        post(work.spark, checkpoint)
        outcome = order_files(work.spark, source, delivered, checkpoint, **options)  # type: ignore[arg-type]
    report(outcome, delivered, as_json)
    if not outcome.complete:
        raise typer.Exit(1)


def named(processes: str) -> tuple[str, ...]:
    """Names separated by commas, or how many there are.

    >>> named("ann, bob"), named("3")
    (('ann', 'bob'), ('p1', 'p2', 'p3'))
    """
    if processes.isdecimal():
        return View.numbered(int(processes)).names
    return View(tuple(name.strip() for name in processes.split(",") if name.strip())).names


def say(work: Work, told: Progress) -> None:
    status = told.status
    work.say(f"{told.delivered_per_second:,.0f} messages a second, {status.held:,} wait")


def report(outcome: Outcome, out: str, as_json: bool) -> None:
    verdict = "yes" if outcome.complete else "no"
    if as_json:
        print(
            json.dumps(
                {"verdict": verdict, **msgspec.structs.asdict(outcome), "out": out}, ensure_ascii=False
            )
        )
    many = f"{outcome.delivered + outcome.late:,} messages in {outcome.batches:,} micro-batches: {out}"
    if outcome.complete:
        print(f"yes: all in causal order; {many}", file=sys.stderr)
        return
    parts = [
        f"{count:,} {words}"
        for count, words in (
            (outcome.waiting, "wait for causes that have not come"),
            (outcome.gave_up, "came out without a cause that was given up"),
            (outcome.late, "came late"),
            (outcome.refused, "refused"),
        )
        if count
    ]
    print(f"no: {', '.join(parts)}; {many}", file=sys.stderr)
