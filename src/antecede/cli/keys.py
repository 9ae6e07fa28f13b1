"""`antecede keys`: a test authority, and certificates for nodes."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from antecede.cli.options import Json
from antecede.cli.output import print_json
from antecede.errors import BadParameter
from antecede.net.transports.keys import make_keys

__all__ = ["keys"]


def keys(
    directory: Path = typer.Argument(help="Where the files are, or are to be."),
    names: list[str] = typer.Argument(help="The names of nodes."),
    days: int = typer.Option(365, min=1, help="How long what is made is valid."),
    as_json: Json = False,
) -> None:
    """Make certificates by which nodes prove their names, and the authority that signs them.

    Files that are there already stay as they are.
    """
    if directory.exists() and not directory.is_dir():
        raise BadParameter("keys", f"{directory} is a file: give a directory")
    made = [str(path) for path in make_keys(directory, names, days)]
    if as_json:
        print_json({"made": made})
        return
    for path in made:
        print(f"made {path}", file=sys.stderr)
    if not made:
        print("nothing to do: all of it is there", file=sys.stderr)
