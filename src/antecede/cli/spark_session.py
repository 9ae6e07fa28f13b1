"""What the commands that run on Spark share: their options, the session, one bar, and errors in one line.

What Spark itself says goes to a log, which is kept only if something fails that we have no sentence for.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from antecede.errors import NoSpark

if TYPE_CHECKING:
    from antecede.spark.session import SparkSession

__all__ = ["Master", "Remote", "Work", "working"]

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


class Work:
    """A session, and the bar that says what it is doing."""

    def __init__(self, spark: SparkSession, say: Callable[[str], None]) -> None:
        self.spark = spark
        self.say = say
        """Names the step that begins: its bar starts anew."""


@contextmanager
def working(master: str | None, remote: str | None, step: str) -> Iterator[Work]:
    """A session for one command, stopped at its end."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    log = tempfile.NamedTemporaryFile(prefix="antecede-spark-", suffix=".log", delete=False)  # noqa: SIM115
    log.close()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("starting Spark", total=None)
        with logged(log.name):
            from antecede.spark.progress import watched
            from antecede.spark.session import connected

            def say(words: str) -> None:
                progress.reset(bar, description=words, total=None)

            def note(done: int, total: int) -> None:
                progress.update(bar, completed=done, total=total)

            with connected(master, remote, log=log.name) as spark, watched(spark, note):
                say(step)
                yield Work(spark, say)


@contextmanager
def logged(path: str) -> Iterator[None]:
    """Say what Spark raises in one line. The log is removed, or kept and named if that was something of its own."""
    from antecede.spark.errors import describe_failure, find_error
    from antecede.spark.session import SparkError

    kept = False
    try:
        yield
    except SparkError as error:
        ours = find_error(error)
        kept = ours is None
        raise ours or NoSpark("Spark", f"{describe_failure(error)} (its log: {path})") from None
    finally:
        if not kept:
            with suppress(OSError):
                os.unlink(path)
