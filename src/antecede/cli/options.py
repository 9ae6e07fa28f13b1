"""Options of several commands, each written once, as types of parameters; a default stands at the command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from antecede.errors import BadParameter

__all__ = [
    "Causes", "Checkpoint", "Csv", "Every", "Faults", "Id", "Jobs", "Json", "Master", "Messages", "Network", "NoCause",
    "Once", "Open", "PartitionBy", "Patience", "Processes", "Protocol", "Protocols", "Remember", "Remote",
    "Seed", "Settings", "Topology", "Trace", "Workload", "parse_settings", "refuse_two_forms",
]  # fmt: skip

# What is printed

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Csv = Annotated[
    bool, typer.Option("--csv", help="Print the rows of the table as CSV: a line of names, then full values.")
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def refuse_two_forms(command: str, as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise BadParameter(command, "give --json or --csv, not both")


# Where it runs, and on what

Trace = Annotated[
    str, typer.Argument(help="A trace, or a directory of results that has one: a path or a URI.")
]
Master = Annotated[
    str | None,
    typer.Option(
        help="The Spark to drive, such as spark://HOST:7077.  [default: here, all cores]", show_default=False
    ),
]
Remote = Annotated[
    str | None,
    typer.Option(help="A Spark Connect server to ask instead, such as sc://HOST:15002.", show_default=False),
]
Jobs = Annotated[int, typer.Option(min=0, help="Processes to work with; 0: one for each core.")]

# A simulated run: docs/simulator.md

Protocol = Annotated[
    str,
    typer.Option(
        help="The protocol: its name, or FILE.py:CLASS for a machine of your own.", show_default=False
    ),
]
Protocols = Annotated[
    list[str] | None, typer.Option(help="Only this protocol. May be repeated.", show_default=False)
]
Processes = Annotated[int, typer.Option(help="Number of processes; 0: as the topology says, or 8.")]
Messages = Annotated[int, typer.Option(help="Number of messages that a run sends.")]
Seed = Annotated[int, typer.Option(help="All chance comes from this number.")]
Network = Annotated[
    str, typer.Option(help="Delays, bandwidth, loss: exponential:50ms,bandwidth=1Mbit/s,loss=1%.")
]
Workload = Annotated[
    str, typer.Option(help="Who sends to whom: uniform:rate=10/s, groups:size=4, local:share=90% ...")
]
Topology = Annotated[
    str, typer.Option(help="Who is linked with whom: mesh, star, wan-of-lans:zones=3, hierarchy ...")
]
Faults = Annotated[
    str, typer.Option(help="What goes wrong: loss:1%, crash:p3@2s-4s, pause:random:mean=10s,down=1s ...")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A parameter of the protocol. May be repeated.", show_default=False
    ),
]


def parse_settings(command: str, settings: Iterable[str] | None) -> dict[str, Any]:
    """Parameters of a protocol.

    >>> parse_settings("check", ["k=4", "eager=true", "monitor=p1"])
    {'k': 4, 'eager': True, 'monitor': 'p1'}
    """
    found: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals or not key or key in found:
            raise BadParameter(command, f"--set must be key=value, each key once, not {setting!r}")
        if value in ("true", "false"):
            found[key] = value == "true"
        else:
            found[key] = int(value) if value.removeprefix("-").isdigit() else value
    return found


# The columns of a table of events

Id = Annotated[
    str | None, typer.Option("--id", help="Of a table: the column of identifiers.", show_default=False)
]
Causes = Annotated[
    str | None,
    typer.Option(
        "--causes",
        help="Of a table: the column of causes: an identifier, or a list of them.",
        show_default=False,
    ),
]
PartitionBy = Annotated[
    str | None,
    typer.Option(
        "--partition-by",
        "--group",
        help="Of a table: the columns that tell one set of events from another, separated by commas.  "
        "[default: none; with vectors run, if there is one]",
        show_default=False,
    ),
]
NoCause = Annotated[
    list[str] | None,
    typer.Option(
        "--no-cause",
        help="With --causes: a text that means no cause, besides the empty one.",
        show_default=False,
    ),
]

# A stream

Once = Annotated[bool, typer.Option("--once", help="With --stream: end when all that is there is done.")]
Every = Annotated[float, typer.Option(help="With --stream: seconds from one look to the next.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(help="With --stream: where it remembers how far it came.", show_default="OUT/checkpoint"),
]
Patience = Annotated[
    str | None,
    typer.Option(
        help='With --stream: the time after which what is missing is given up, as "30 seconds".  [default: never]',
        show_default=False,
    ),
]
Remember = Annotated[
    str | None,
    typer.Option(
        help="With --stream: how long it knows what came out.  [default: 7 days]", show_default=False
    ),
]
