"""antecede order: anyone's events in causal order, what is missing among them, and what waits for it.

Spark is imported by the function that uses it: the other commands start without.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from antecede.cli.spark_session import Master, Remote, working
from antecede.cli.stream_options import Asked, Every, Once, Patience, Place
from antecede.errors import BadParameter

if TYPE_CHECKING:
    from antecede.spark.order.written import Outcome

__all__ = ["order"]

TABLE: Final = re.compile(r"\w+(\.(?!csv|json|jsonl|ndjson|parquet|gz|bz2|zst|lz4)\w+){0,2}")
"""What may be a table of Spark's catalogue: a name, perhaps with that of its schema, and not that of a file."""


def order(
    events: Annotated[
        str,
        typer.Argument(
            help="A trace, an ingested log, a table (Parquet, CSV or JSON Lines), or the name of a table of Spark's: a "
            "path, a URI or a name."
        ),
    ],
    out: Annotated[str, typer.Option(help="Write OUT/ordered and OUT/missing, as Parquet.")],
    id_: Annotated[
        str | None, typer.Option("--id", help="Of a table: the column of identifiers.", show_default=False)
    ] = None,
    causes: Annotated[
        str | None,
        typer.Option(
            help="Of a table: the column of causes: an identifier, or a list of them.", show_default=False
        ),
    ] = None,
    process: Annotated[
        str | None,
        typer.Option(
            help="Of a table with vectors: the column that says whose it is.  [default: process]",
            show_default=False,
        ),
    ] = None,
    vector: Annotated[
        str | None,
        typer.Option(help="Of a table: the column of vectors.  [default: vector]", show_default=False),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by",
            "--group",
            help="Of a table: the columns that tell one set of rows from another, separated by commas.  "
            "[default: none; run, if there is one, with vectors]",
            show_default=False,
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="With --causes: the column that orders concurrent rows.", show_default=False),
    ] = None,
    no_cause: Annotated[
        list[str] | None,
        typer.Option(
            help="With --causes: a text that means no cause, besides the empty one.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")] = False,
    master: Master = None,
    remote: Remote = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Order packets continuously, as their files appear in EVENTS.")
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
    """Put events in causal order, each with its position and what it waits for.

    Exit code 0: nothing is missing. 1: some wait for others that are not there, or a partition has no order.
    docs/ordering.md explains what comes out, docs/stream.md the same for a stream.
    """
    if stream:
        from antecede.cli.order_stream import Packets, order_stream

        packets = Packets(events, protocol, processes, set_ or [], files, partition_by, by, receiver)
        order_stream(
            packets, Asked("order --stream", out, checkpoint, once, every, patience, as_json, master, remote)
        )
        return
    refuse_request(id_, causes, process, vector, time, no_cause)
    groups = None if partition_by is None else tuple(name for name in partition_by.split(",") if name)
    # A table of Spark's catalogue is no file that could be looked for.
    reads = [] if TABLE.fullmatch(events) and not os.path.exists(events) else [events]
    with working(master, remote, "counting", reads=reads, writes=[out]) as work:
        from antecede.spark.order.inputs import Asked as Columns
        from antecede.spark.order.inputs import order_path
        from antecede.spark.order.written import write_ordered

        columns = Columns(id_, causes, process, vector, groups, time, ("", *(no_cause or ())))
        found = order_path(work.spark, events, columns)
        work.say("sorting")
        outcome = write_ordered(found, out)
    report(outcome, out, as_json)
    if outcome.missing or outcome.refused:
        raise typer.Exit(1)


def refuse_request(
    id_: str | None,
    causes: str | None,
    process: str | None,
    vector: str | None,
    time: str | None,
    no_cause: Sequence[str] | None,
) -> None:
    """What can be refused without a Spark."""
    if (id_ is None) != (causes is None):
        raise BadParameter("order", "columns", f"--id {id_}, --causes {causes}", "both of them, or neither")
    if id_ is not None and (process is not None or vector is not None):
        expected = "--id and --causes, or --process and --vector"
        raise BadParameter("order", "columns", "both causes and vectors", expected)
    if id_ is None and (time is not None or no_cause):
        name, given = ("--time", time) if time is not None else ("--no-cause", ", ".join(no_cause or ()))
        raise BadParameter("order", name, given, "it with --id and --causes")


def report(outcome: Outcome, out: str, as_json: bool) -> None:
    from dataclasses import asdict

    verdict = "no" if outcome.missing or outcome.refused else "yes"
    if as_json:
        print(
            json.dumps({"verdict": verdict, **asdict(outcome), "out": out}, ensure_ascii=False, default=str)
        )
    for row in outcome.reasons:
        print(f"refused: {name_partition(row, outcome.partition_by)}: {row['reason']}", file=sys.stderr)
    many = f"{outcome.rows:,} rows by {outcome.by}"
    if outcome.partition_by:
        many += f" in {outcome.partitions:,} partition{'s' * (outcome.partitions != 1)}"
    if verdict == "yes":
        print(f"yes: nothing is missing; {many}: {out}", file=sys.stderr)
        return
    parts = []
    if outcome.missing:
        direct = f", {outcome.direct:,} of them directly" if outcome.by == "causes" else ""
        worst = max(outcome.groups, key=lambda row: row["missing"])
        where = f" (most in {name_partition(worst, outcome.partition_by)})" if outcome.partition_by else ""
        waiting = "1 row waits" if outcome.waiting == 1 else f"{outcome.waiting:,} rows wait"
        parts.append(f"{outcome.missing:,} missing, {waiting} for them{direct}{where}")
    if outcome.refused:
        parts.append(f"{outcome.refused:,} partition{'s' * (outcome.refused != 1)} refused")
    print(f"no: {'; '.join([*parts, many])}: {out}", file=sys.stderr)


def name_partition(row: dict[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {row[name]}" for name in names) or "the table"
