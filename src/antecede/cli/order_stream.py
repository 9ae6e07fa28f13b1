"""antecede order --stream: packets of files that appear, in causal order, until Ctrl-C or, with --once, the end."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import typer

from antecede.cli.simulate import parameters
from antecede.cli.spark_session import Work
from antecede.cli.stream_options import Asked, open_stream
from antecede.errors import BadParameter
from antecede.model import View

if TYPE_CHECKING:
    from antecede.spark.stream.order_files import Outcome
    from antecede.spark.stream.status import Progress

__all__ = ["Packets", "order_stream"]


class Packets(NamedTuple):
    """The options that say where packets are, and what order they are in."""

    source: str
    protocol: str | None
    processes: str | None
    settings: list[str]
    files: int | None
    group: str | None
    by: str
    receiver: str | None


def order_stream(packets: Packets, asked: Asked) -> None:
    """Exit code 0: every message came out after its causes. 1: some wait, or came out without theirs, or are none."""
    for name in ("protocol", "processes"):
        if getattr(packets, name) is None:
            raise BadParameter(asked.command, f"--{name}", "not given", "that of the packets' stamps")
    if packets.group is not None and "," in packets.group:
        raise BadParameter(asked.command, "--group", packets.group, "one column")
    delivered = f"{asked.out.rstrip('/')}/delivered"
    with open_stream(asked, "reading packets") as (work, checkpoint, stop):
        from antecede.spark.stream.order_files import Source, order_files

        source = Source(
            packets.source,
            str(packets.protocol),
            split_processes(str(packets.processes)),
            parameters(asked.command, packets.settings),
            asked.patience_s,
            packets.group,
            packets.files,
            packets.by,
            packets.receiver,
        )
        outcome = order_files(
            work.spark,
            source,
            delivered,
            checkpoint,
            once=asked.once,
            every=asked.every_s,
            stop=stop,
            note=lambda told: say(work, told),
        )
    report(outcome, delivered, asked.as_json)
    if not outcome.complete:
        raise typer.Exit(1)


def split_processes(processes: str) -> tuple[str, ...]:
    """Names separated by commas, or how many there are.

    >>> split_processes("ann, bob"), split_processes("3")
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
