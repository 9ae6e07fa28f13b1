"""antecede order: messages or events in causal order, what is missing among them, and what waits for it.

Spark is imported by the function that uses it: the other commands start without.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from antecede.cli.sparks import Master, Remote, working

__all__ = ["order"]

Columns = Annotated[
    str | None,
    typer.Option(
        help="Of a table: the columns that tell one set of messages from another, separated by commas, such as "
        "run,receiver.  [default: run, if there is one]",
        show_default=False,
    ),
]


def order(
    messages: Annotated[
        str,
        typer.Argument(
            help="A trace, an ingested log, or a table with vectors (Parquet or JSON Lines): a path or a URI."
        ),
    ],
    out: Annotated[str, typer.Option(help="Write OUT/ordered and OUT/missing, as Parquet.")],
    group: Columns = None,
    process: Annotated[
        str | None,
        typer.Option(
            help="Of a table: the column that says whose it is.  [default: process]", show_default=False
        ),
    ] = None,
    vector: Annotated[
        str | None,
        typer.Option(help="Of a table: the column of vectors.  [default: vector]", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")] = False,
    master: Master = None,
    remote: Remote = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Order packets continuously, as their files appear in MESSAGES.")
    ] = False,
    protocol: Annotated[
        str | None, typer.Option(help="Of a stream: the protocol of its stamps.", show_default=False)
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            help="Of a stream: who takes part, separated by commas, or how many: p1, p2, ...",
            show_default=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Of a stream: a protocol parameter, key=value.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Of a stream: where it remembers how far it came.", show_default="OUT/checkpoint"),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Of a stream: end when all that is there is done.")
    ] = False,
    patience: Annotated[
        float | None,
        typer.Option(
            help="Of a stream: seconds after which missing causes are given up.  [default: never]",
            show_default=False,
        ),
    ] = None,
    every: Annotated[float, typer.Option(help="Of a stream: seconds from one look to the next.")] = 1.0,
    files: Annotated[
        int | None, typer.Option(help="Of a stream: files to take at once, at most.", show_default=False)
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            help="Of a stream: receiver, or closed: closed sets, for one hot receiver on all cores."
        ),
    ] = "receiver",
    receiver: Annotated[
        str | None, typer.Option(help="Of a stream by closed sets: which receiver.", show_default=False)
    ] = None,
) -> None:
    """Put messages or events in causal order, each with its position.

    Exit code 0: nothing is missing. 1: some refer to others that are not there. docs/ordering.md explains what comes
    out, docs/stream.md the same for a stream.
    """
    if stream:
        from antecede.cli.streaming import Asked, order_stream

        asked = Asked(
            messages,
            out,
            protocol,
            processes,
            set_ or [],
            checkpoint,
            once,
            patience,
            every,
            files,
            group,
            by,
            receiver,
        )
        order_stream(asked, as_json, master, remote)
        return
    groups = None if group is None else [name for name in group.split(",") if name]
    with working(master, remote, "counting") as work:
        from antecede.spark.ordering.messages import order_path

        found = order_path(work.spark, messages, group=groups, process=process, vector=vector)
        work.say("sorting")
        written = found.write(out)
        work.say("counting")
        rows = [row.asDict() for row in written.counts().collect()]
        found.release()
    report(rows, found.group, found.by, out, as_json)
    if any(row["missing"] for row in rows):
        raise typer.Exit(1)


def report(rows: Sequence[Mapping[str, Any]], group: Sequence[str], by: str, out: str, as_json: bool) -> None:
    total = {name: sum(row[name] for row in rows) for name in ("rows", "missing", "waiting")}
    verdict = "no" if total["missing"] else "yes"
    if as_json:
        outcome = {
            "verdict": verdict,
            "by": by,
            **total,
            "group": list(group),
            "groups": list(rows),
            "out": out,
        }
        print(json.dumps(outcome, ensure_ascii=False, default=str))
    many = f"{total['rows']:,} rows by {by}: {out}"
    if verdict == "yes":
        print(f"yes: nothing is missing; {many}", file=sys.stderr)
        return
    worst = max(rows, key=lambda row: row["missing"])
    where = ", ".join(f"{name} {worst[name]}" for name in group)
    told = f"{total['missing']:,} missing, {total['waiting']:,} waiting for them"
    print(f"no: {told}{f' (most in {where})' if where else ''}; {many}", file=sys.stderr)
