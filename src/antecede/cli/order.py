"""antecede order: messages or events in causal order, what is missing among them, and what waits for it.

Spark is imported by the function that uses it: the other commands start without.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from antecede.cli.spark_session import Master, Remote, working
from antecede.cli.stream_options import Asked, Every, Once, Patience, Place

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
        str | None, typer.Option(help="With --stream: the protocol of its stamps.", show_default=False)
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            help="With --stream: who takes part, separated by commas, or how many: p1, p2, ...",
            show_default=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="With --stream: a protocol parameter, key=value.")
    ] = None,
    checkpoint: Place = None,
    once: Once = False,
    patience: Patience = None,
    every: Every = 1.0,
    files: Annotated[
        int | None, typer.Option(help="With --stream: files to take at once, at most.", show_default=False)
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            help="With --stream: receiver, or closed: closed sets, for one hot receiver on all cores."
        ),
    ] = "receiver",
    receiver: Annotated[
        str | None, typer.Option(help="With --by closed: which receiver.", show_default=False)
    ] = None,
) -> None:
    """Put messages or events in causal order, each with its position.

    Exit code 0: nothing is missing. 1: some refer to others that are not there. docs/ordering.md explains what comes
    out, docs/stream.md the same for a stream.
    """
    if stream:
        from antecede.cli.order_stream import Packets, order_stream

        packets = Packets(messages, protocol, processes, set_ or [], files, group, by, receiver)
        order_stream(
            packets, Asked("order --stream", out, checkpoint, once, every, patience, as_json, master, remote)
        )
        return
    groups = None if group is None else [name for name in group.split(",") if name]
    places = [f"{out.rstrip('/')}/{name}" for name in ("ordered", "missing")]
    with working(master, remote, "counting", reads=[messages], writes=places) as work:
        from antecede.spark.order.inputs import order_path

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
