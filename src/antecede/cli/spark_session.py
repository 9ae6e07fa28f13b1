"""What the commands that run on Spark share: the session, one bar, and errors in one line.

A command names what it reads and what it writes. What is wrong with either is said before anything starts, and how much
there is to read decides how Spark starts. What Spark itself says goes to a log, which is kept only if something fails
that we have no sentence for.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

from antecede.cli.progress import can_draw, catch_interrupt
from antecede.errors import BadParameter, BadTrace, NoSpark
from antecede.storage import local, refuse_existing

if TYPE_CHECKING:
    from antecede.spark.session import SparkSession

__all__ = ["Asked", "Work", "open_stream", "open_work", "refuse_request"]

SMALL_BYTES: Final = 8 << 20
"""What is read of so many bytes in all is read by a Spark that starts fast and sorts slowly."""
TINY_BYTES: Final = 512 << 10
"""Of so many, by one that compiles no plans either."""


class Work:
    """A session, and the bar that says what it is doing."""

    def __init__(self, spark: SparkSession, say: Callable[[str], None]) -> None:
        self.spark = spark
        self.say = say
        """Names the step that begins: its bar starts anew."""


@contextmanager
def open_work(
    master: str | None,
    remote: str | None,
    step: str,
    *,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
    small: bool = False,
) -> Iterator[Work]:
    """A session for one command, stopped at its end. `small`: as if it read little."""
    refuse_request(master, remote, reads, writes)
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        # Narrow terminals shorten the bar, and cut no figure.
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("tasks"),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=console, transient=True, disable=not can_draw(console)) as progress:
        bar = progress.add_task("starting Spark", total=None)
        from antecede.spark.class_archive import request_archive
        from antecede.spark.session import INTERPRETED, open_session, watch_progress

        def say(words: str) -> None:
            progress.reset(bar, description=words, total=None)

        def note(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        little = small or is_small(reads, SMALL_BYTES)
        # Settings of a server are its own, and a cluster is there for what is large.
        few = INTERPRETED if master is None and remote is None and is_small(reads, TINY_BYTES) else None
        with (
            keep_log() as log,
            delay_interrupts(remote is None) as heed_interrupts,
            open_session(master, remote, settings=few, log=log, small=little) as spark,
            watch_progress(spark, note),
        ):
            heed_interrupts()
            say(step)
            yield Work(spark, say)
    if remote is None:
        request_archive()


def refuse_request(
    master: str | None, remote: str | None, reads: Sequence[str], writes: Sequence[str]
) -> None:
    """Say what is wrong with a request, as far as the disk of this machine tells: at once, before Spark starts."""
    if master is not None and remote is not None:
        raise BadParameter("spark", f"give --master or --remote, not both ({master}, {remote})")
    for path in filter(None, map(local, reads)):
        if not os.path.exists(path):
            raise BadTrace(path, "there is no such file or directory")
        if not os.access(path, os.R_OK):
            raise BadTrace(path, "you may not read it: ask its owner for the permission")
    for path in filter(None, map(local, writes)):
        if os.path.lexists(path):
            refuse_existing(path)
        above = find_directory(path)
        if not os.access(above, os.W_OK | os.X_OK):
            raise BadParameter("output", f"{path} cannot be written: you may not write to {above}")


def find_directory(path: str) -> str:
    """The nearest directory above a path that is there.

    >>> find_directory("/none/such")
    '/'
    """
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def is_small(paths: Sequence[str], most: int) -> bool:
    """Whether no more bytes are read than so many, all of them from this machine's disk.

    >>> is_small(["s3a://lake/trace"], 100), is_small([], 100)
    (False, False)
    """
    left = most
    for path in map(local, paths):
        if path is None:
            return False
        for file in walk(path):
            left -= os.path.getsize(file)
            if left < 0:
                return False
    return bool(paths)


def walk(path: str) -> Iterator[str]:
    """The files below a path, or the one that it names."""
    if os.path.isfile(path):
        yield path
    for directory, _, names in os.walk(path):
        yield from (os.path.join(directory, name) for name in names)


@contextmanager
def delay_interrupts(starts: bool) -> Iterator[Callable[[], None]]:
    """Delay Ctrl-C, if Java `starts` here, until the function that this gives is called.

    PySpark removes the file that a starting Java is to write, if it is interrupted; such a Java would never end. Once
    it runs, a handler of PySpark's ends its jobs.
    """
    pressed: list[int] = []

    def note(number: int, frame: Any) -> None:
        pressed.append(number)

    def heed() -> None:
        if signal.getsignal(signal.SIGINT) is note:  # Spark ran before.
            signal.signal(signal.SIGINT, before)
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note) if starts else signal.getsignal(signal.SIGINT)
    try:
        yield heed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def keep_log() -> Iterator[str]:
    """A log for Spark, removed at the end. Spark's errors are told in one line; one that is not ours keeps the log.

    What Python's libraries log goes there, too: Py4J logs a traceback where Ctrl-C interrupts it.
    """
    from antecede.spark.errors import describe_failure, find_error, was_interrupted
    from antecede.spark.session import SparkError

    number, path = tempfile.mkstemp(prefix="antecede-spark-", suffix=".log")
    os.close(number)
    kept = False
    handler = logging.FileHandler(path)
    logging.getLogger().addHandler(handler)
    try:
        yield path
    except Exception as error:
        if was_interrupted(error):
            raise KeyboardInterrupt from None
        if not isinstance(error, SparkError):
            raise
        ours = find_error(error)
        kept = ours is None
        raise ours or NoSpark("Spark", f"failed: {describe_failure(error)} (its log: {path})") from None
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
        if not kept:
            with suppress(OSError):
                os.unlink(path)


# Streams


class Asked(NamedTuple):
    """What is asked of any stream."""

    command: str
    out: str
    checkpoint: str | None
    once: bool
    every_s: float
    patience: str | None
    as_json: bool
    master: str | None
    remote: str | None
    remember: str | None = None


class Streaming(NamedTuple):
    work: Work
    checkpoint: str
    stop: Callable[[], bool]


@contextmanager
def open_stream(asked: Asked, step: str) -> Iterator[Streaming]:
    """A session for a stream, until Ctrl-C."""
    if asked.every_s <= 0:
        raise BadParameter(asked.command, f"--every must be more than 0 seconds, not {asked.every_s}")
    for option, text in (("--patience", asked.patience), ("--remember", asked.remember)):
        if text is not None:
            from antecede.spark.frames import parse_duration

            parse_duration(asked.command, option, text)
    checkpoint = asked.checkpoint or f"{asked.out.rstrip('/')}/checkpoint"
    with open_work(asked.master, asked.remote, step) as work, catch_interrupt() as interrupts:
        yield Streaming(work, checkpoint, lambda: interrupts() > 0)
