"""The command line: `antecede COMMAND`, one module for each command.

A contract for scripts
  0    done, and what was asked holds
  1    the answer is no: said in one line, and in --json
  2    the request or the input is wrong: one line says what and where
  130  stopped by Ctrl-C
`--json` prints one JSON object on standard output; everything meant for people goes to standard error.

A command is a function in its own module, listed in `COMMANDS`. It raises `typer.Exit(1)` to say no, and
`AntecedeError` for what is wrong with the request.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import typer

import antecede
from antecede.errors import AntecedeError

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = (
    "check",
    "demo",
    "ingest",
    "keys",
    "measure",
    "node",
    "order",
    "report",
    "simulate",
    "soak",
    "sweep",
    "triangle",
    "verify",
    "watch",
)
"""Each names a module here and the function in it."""

app = typer.Typer(
    name="antecede",
    help="Deliver messages in causal order, and show that it was kept.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"antecede {antecede.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Say the version."
    ),
) -> None:
    """Deliver messages in causal order, and show that it was kept."""


def load(arguments: Sequence[str]) -> None:
    """Load the command that is asked for, or all: what the others import would take longer than a quick answer."""
    named = arguments[0] if arguments else ""
    for name in (named,) if named in COMMANDS else COMMANDS:
        if name not in {command.name for command in app.registered_commands}:
            app.command(name)(getattr(import_module(f"antecede.cli.{name}"), name))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: list[str]) -> int:
    """The exit code of a command."""
    load(arguments)
    if not arguments:
        # Asked for nothing: say what there is, as --help does, but to people and not as a success.
        command = typer.main.get_command(app)
        print(command.get_help(typer.Context(command, info_name="antecede")), file=sys.stderr)
        return 2
    try:
        code = app(args=arguments, prog_name="antecede", standalone_mode=False)
    except AntecedeError as error:
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return _stopped()
    except Exception as error:
        # What Typer refuses in the arguments has a sentence for people; anything else is a bug, and shows as one.
        sentence = getattr(error, "format_message", None)
        if sentence is None:
            raise
        return _refuse(sentence())
    return _stopped() if code == 130 else code if isinstance(code, int) else 0


def _refuse(sentence: str) -> int:
    print(f"antecede: {' '.join(sentence.split())}", file=sys.stderr)
    return 2


def _stopped() -> int:
    print("antecede: stopped", file=sys.stderr)
    return 130
