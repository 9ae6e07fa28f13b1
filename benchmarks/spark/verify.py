"""How fast verification is: python -m benchmarks.spark verify [--events 10_000_000] [--large 512] [--out FILE]

Peers, on the same files in the same run:
  DuckDB       sums the same columns (of strings, their lengths): reading them is the least that anyone has to do
  Spark's sort of the same rows by (clock, process, index), written to nowhere: what a verifier would do first that
               puts the trace in order
Published: checkers of database histories reach 0.2 million operations a second (and some 20 million in 50 GB).

Each figure is the best of `--repeat` in turns with its peer. Times are those of the step in a session that is running:
files are read from the page cache, native code is compiled. Memory is the most that a Python worker of Spark has held.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
from msgspec import Struct

from antecede.spark import Trace, connect
from antecede.spark.verify.api import verify
from benchmarks.spark.generate import Shape, generate

PUBLISHED = 200_000
"""Operations a second."""

COLUMNS = ["run", "process", "index", "kind", "sender", "number", "to", "control", "clock"]


class Case(Struct, frozen=True):
    """A trace to be verified."""

    name: str
    shape: Shape


class Figure(Struct):
    name: str
    rows: int
    seconds: float
    duckdb: float | None = None
    sort: float | None = None
    memory: int = 0


# What is timed


def ours(spark: Any, path: Path) -> None:
    found = verify(Trace.read(spark, path))
    [row] = found.runs.collect()
    assert row["verdict"] == "yes", row
    found.release()


def sum_in_duckdb(path: Path) -> None:
    with duckdb.connect() as base:
        base.sql(
            f"""SELECT sum(length(process)), sum(index), sum(length(kind)), sum(length(sender)), sum(number),
                sum(len("to")), sum(control::int), sum(clock) FROM '{path}/events/*.parquet'"""
        ).fetchall()


def sort_in_spark(spark: Any, path: Path) -> None:
    rows = Trace.read(spark, path).events.select(*COLUMNS)
    rows.orderBy("clock", "process", "index").write.format("noop").mode("overwrite").save()


def seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# Memory


@contextmanager
def peak() -> Iterator[list[int]]:
    """The most resident memory of one of Spark's Python workers, in bytes, while this lasts."""
    most, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            most[0] = max([most[0], *workers()])

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def workers() -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"pyspark.daemon" in (entry / "cmdline").read_bytes():
                yield int((entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):
            continue


# Cases


def cases(events: int, large: int, tenths: int) -> list[Case]:
    sizes = [events // 10**power for power in reversed(range(tenths))]
    found = [Case(f"{size:,} events, n = 64", Shape(events=size)) for size in sizes]
    unsorted = Shape(events=max(1, events // 5), unsorted=True)
    return [
        *found,
        Case(f"{unsorted.events:,} events, n = 64, in no order", unsorted),
        Case(f"{max(1, events // 5):,} events, n = 64", Shape(events=max(1, events // 5))),
        Case(
            f"{max(1, events // 5):,} events, n = {large}", Shape(events=max(1, events // 5), processes=large)
        ),
    ]


def measure_case(spark: Any, case: Case, scratch: Path, repeat: int, sort: bool) -> Figure:
    path = scratch / "trace"
    shutil.rmtree(path, ignore_errors=True)
    rows = generate(path, case.shape)
    print(f"{case.name}: {rows:,} rows made", file=sys.stderr)
    figure = Figure(case.name, rows, float("inf"))
    for _ in range(repeat):
        with peak() as most:
            figure.seconds = min(figure.seconds, seconds(lambda: ours(spark, path)))
        figure.memory = max(figure.memory, most[0])
        figure.duckdb = min(figure.duckdb or float("inf"), seconds(lambda: sum_in_duckdb(path)))
        if sort:
            figure.sort = min(figure.sort or float("inf"), seconds(lambda: sort_in_spark(spark, path)))
    return figure


def lines(figures: list[Figure], cores: int) -> Iterator[str]:
    yield (
        "| trace | verify | million events a second a core | of the published rate | DuckDB's sum | Spark's sort "
        "| memory of a task |"
    )
    yield "|---|---|---|---|---|---|---|"
    for f in figures:
        rate = f.rows / f.seconds / cores
        duck = "" if f.duckdb is None else f"{f.duckdb:.2f} s: {f.seconds / f.duckdb:.1f}x"
        sort = "" if f.sort is None else f"{f.sort:.1f} s: {f.seconds / f.sort:.2f}x"
        yield (
            f"| {f.name} | {f.seconds:.2f} s | {rate / 1e6:.1f} | {rate / PUBLISHED:.0f}x | {duck} | {sort} "
            f"| {f.memory / 2**30:.2f} GiB |"
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark verify", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--tenths", type=int, default=2, help="how many sizes, each a tenth of the next")
    parser.add_argument("--large", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--no-sort", action="store_true", help="leave out Spark's sort, which takes longest")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    cores = os.cpu_count() or 1
    scratch = Path(tempfile.mkdtemp(prefix="antecede-benchmark-"))
    spark = connect(log=scratch / "log", settings={"spark.local.dir": str(scratch)})
    try:
        warm(spark, scratch)
        figures = [
            measure_case(spark, case, scratch, asked.repeat, not asked.no_sort)
            for case in cases(asked.events, asked.large, asked.tenths)
        ]
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    command = (
        f"`python -m benchmarks.spark verify --events {asked.events} --tenths {asked.tenths}`, {cores} cores"
    )
    text = "\n".join(["# Verification on Spark", "", command, "", *lines(figures, cores), ""])
    print(text)
    if asked.out:
        asked.out.write_text(text)


def warm(spark: Any, scratch: Path) -> None:
    """Compile what is native, and start the workers."""
    path = scratch / "warm"
    generate(path, Shape(events=200_000))
    ours(spark, path)


if __name__ == "__main__":
    main()
