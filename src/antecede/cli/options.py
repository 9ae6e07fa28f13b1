"""Options of several commands, each written once, as types of parameters; a default stands at the command.

A command declares an option of its own as the default of a parameter: `option`, `flag` or `argument`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from antecede.errors import BadParameter

__all__ = [
    "Causes", "Checkpoint", "Csv", "Every", "Faults", "Id", "Jobs", "Json", "Master", "Messages", "Network", "NoCause",
    "Once", "Open", "PartitionBy", "Patience", "Processes", "Protocol", "Protocols", "Remember", "Remote",
    "Seed", "Settings", "Topology", "Trace", "Workload", "argument", "flag", "option", "parse_settings",
    "refuse_stream_options", "refuse_two_forms",
]  # fmt: skip


def argument(help: str, metavar: str | None = None) -> Any:
    """An argument, which must be given."""
    return typer.Argument(..., help=help, metavar=metavar)


def flag(help: str, name: str) -> Any:
    """An option without a value: false, if it is not given."""
    return typer.Option(False, name, help=help)


def option(help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """An option with a value. `default=...`: it must be given."""
    return typer.Option(default, *names, help=help, **more)


# What is printed

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Csv = Annotated[
    bool, typer.Option("--csv", help="Print the rows of the table as CSV: a line of names, then full values.")
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def refuse_stream_options(command: str, patience: str | None, remember: str | None) -> None:
    for name, given in (("--patience", patience), ("--remember", remember)):
        if given is not None:
            raise BadParameter(command, f"{name} needs --stream")


def refuse_two_forms(command: str, as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise BadParameter(command, "give --json or --csv, not both")


# Where it runs, and on what

Trace = Annotated[
    str, typer.Argument(help="A trace, or a directory of results that has one: a path or a URI.")
]
Master = Annotated[
    str | None,
    typer.Option(help="The Spark to drive, such as spark://HOST:7077.  [default: here, all cores]"),
]
Remote = Annotated[
    str | None, typer.Option(help="A Spark Connect server to ask instead, such as sc://HOST:15002.")
]
Jobs = Annotated[int, typer.Option(min=0, help="Processes to work with.", show_default="one for each core")]

# A simulated run: docs/simulator.md

Protocol = Annotated[
    str,
    typer.Option(
        help="The protocol: its name, or FILE.py:CLASS for a machine of your own.", show_default=False
    ),
]
Protocols = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Only this protocol. May be repeated.")
]
Processes = Annotated[
    int, typer.Option(help="Number of processes.", show_default="that of the topology, or 8")
]
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
    typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the protocol. May be repeated."),
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

Id = Annotated[str | None, typer.Option("--id", help="Of a table: the column of identifiers.")]
Causes = Annotated[
    str | None,
    typer.Option("--causes", help="Of a table: the column of causes: an identifier, or a list of them."),
]
PartitionBy = Annotated[
    str | None,
    typer.Option(
        "--partition-by",
        "--group",
        help="Of a table: columns that part it into sets of events: shop,day.  [default: none; with vectors run]",
    ),
]
NoCause = Annotated[
    list[str] | None,
    typer.Option(
        "--no-cause", metavar="TEXT", help="With --causes: a text that means no cause, besides the empty one."
    ),
]

# A stream

Once = Annotated[bool, typer.Option("--once", help="With --stream: end when all that is there is done.")]
Every = Annotated[float, typer.Option(help="With --stream: seconds from one look to the next.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(help="With --stream: where it remembers how far it came.  [default: OUT/checkpoint]"),
]
Patience = Annotated[
    str | None,
    typer.Option(
        help='With --stream: the time after which what is missing is given up, as "30 seconds".  [default: never]'
    ),
]
Remember = Annotated[
    str | None, typer.Option(help="With --stream: how long it knows what came out.  [default: 7 days]")
]
