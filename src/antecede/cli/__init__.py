"""The command line: `antecede COMMAND`, one module for each command.

A contract for scripts
  0    done, and what was asked holds
  1    the answer is no: said in one line, and in --json
  2    the request or the input is wrong: one line says what and where
  130  stopped by Ctrl-C before its end. What runs until Ctrl-C (soak, a stream, watch) ends with its answer, if it
       has one: a stream has none before its first micro-batch is done
`--json` prints one JSON object on standard output; everything meant for people goes to standard error.

A command is a function in its own module, listed in `DOORS`. It raises `typer.Exit(1)` to say no, and
`AntecedeError` for what is wrong with the request.
"""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

import antecede
from antecede.cli.output import print_sentence
from antecede.errors import AntecedeError

__all__ = ["COMMANDS", "EXAMPLES", "build_app", "main", "run"]

DOORS: Final = {
    "My events": ("ingest", "order", "verify", "measure", "report", "watch"),
    "My services": ("node", "keys"),
    "Protocols": ("choose", "check", "simulate", "sweep", "soak", "triangle", "demo"),
}
"""Each command names a module here and the function in it."""
COMMANDS: Final = tuple(name for names in DOORS.values() for name in names)

EXAMPLES: Final = {
    "ingest": ["antecede ingest logs/*.log --format shiviz --out trace"],
    "order": ["antecede order events.jsonl --id id --causes parent --out ordered"],
    "verify": [
        "antecede verify trace",
        "antecede verify events.csv --id id --causes parent --consumer who --time t",
    ],
    "measure": ["antecede measure trace --json"],
    "report": ["antecede report trace --out report.html"],
    "watch": ["antecede watch ordered/checkpoint"],
    "node": ["antecede node --config ann.toml --log json"],
    "keys": ["antecede keys keys ann bob eve"],
    "choose": ["antecede choose --workload groups:size=4 --out choice.svg"],
    "check": ["antecede check --protocol matrix --processes 3 --messages 3"],
    "simulate": ["antecede simulate --protocol history --network exponential:9ms --out trace"],
    "sweep": ["antecede sweep experiments/extra.toml --out results"],
    "soak": ["antecede soak --seconds 60"],
    "triangle": ["antecede triangle --protocol matrix"],
    "demo": ["antecede demo --out demo"],
}
"""What a person might type first. `--help` ends with it."""

SENTENCE_MOST: Final = 1000
"""Characters of a refusal."""

EXTRAS: Final = {
    "pyspark": "spark",
    "py4j": "spark",
    "numba": "spark",
    "pandas": "spark",
    "grpc": "spark",
    "nats": "nats",
    "opentelemetry": "otel",
}
"""Packages that are not there after a plain installation, and the extra that brings them."""


class Doors(TyperGroup):
    """Lists the commands by what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in DOORS.items():
            rows = [
                (name, self.commands[name].get_short_help_str(200)) for name in names if name in self.commands
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def _version(asked: bool) -> None:
    if asked:
        print(f"antecede {antecede.__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Say the version."
    ),
) -> None:
    """Deliver messages in causal order, and show that it was kept."""


def build_app(names: Iterable[str]) -> typer.Typer:
    """The application with these commands: one that is not asked for is not imported."""
    app = typer.Typer(
        name="antecede",
        help="Deliver messages in causal order, and show that it was kept.",
        cls=Doors,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    for name in names:
        # \b: these lines are not to be wrapped.
        examples = "\n".join(f"  $ {example}" for example in EXAMPLES[name])
        app.command(name, epilog=f"\b\nExample:\n{examples}")(
            getattr(import_module(f"antecede.cli.{name}"), name)
        )
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    # While Python ends, nobody is left to catch a Ctrl-C.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: list[str]) -> int:
    """The exit code of a command."""
    try:
        # Importing a command may take a second.
        app = build_app(arguments[:1] if arguments[:1] and arguments[0] in COMMANDS else COMMANDS)
        if not arguments:
            # Asked for nothing: say what there is, as --help does, but to people and not as a success.
            command = typer.main.get_command(app)
            print(command.get_help(typer.Context(command, info_name="antecede")), file=sys.stderr)
            return 2
        code = app(args=arguments, prog_name="antecede", standalone_mode=False)
    except AntecedeError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = EXTRAS[package]
        return _refuse(
            f"{arguments[0]} needs {package}, which is not installed: pip install 'antecede[{extra}]'"
        )
    except (KeyboardInterrupt, typer.Abort):
        return _say_stopped()
    except Exception as error:
        # What Typer refuses in the arguments has a sentence for people; anything else is a bug, and shows as one.
        sentence = getattr(error, "format_message", None)
        if sentence is None:
            raise
        return _refuse(f"{sentence().rstrip('.')}; {_advise(arguments[0])}")
    return _say_stopped() if code == 130 else code if isinstance(code, int) else 0


def _advise(command: str) -> str:
    if command in COMMANDS:
        return f"antecede {command} --help shows its options, and an example"
    return "antecede --help lists the commands"


def _refuse(sentence: str) -> int:
    words = " ".join(sentence.split())
    if len(words) > SENTENCE_MOST:
        # Binary garbage may be a name of 5,000 characters. What to do stands at the end.
        words = f"{words[: SENTENCE_MOST // 2]} ... {words[-SENTENCE_MOST // 2 :]}"
    print_sentence(f"antecede: {words}")
    return 2


def _say_stopped() -> int:
    print("antecede: stopped", file=sys.stderr)
    return 130
