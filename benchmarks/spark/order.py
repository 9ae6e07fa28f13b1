"""Causal order beside Spark's own sort of the same rows, in one run on the same session.

    python -m benchmarks.spark.order [--events 10_000_000] [--messages 1_000_000] [--times 2] [--only CASE] [--dir DIR]

For each case both read the same Parquet files and hand every column to a sink that drops them. *Sort* is
`orderBy(run, key, process, number)` and nothing else. *Order* is what `antecede.spark` does for a user: checks, the
histogram, what is missing and what waits, the sort, and a position in each row.

  one run       a trace with clocks, one run, rows in no order
  many runs     the same number of events in 1,000 runs and one giant: half of the rows are the giant's
  no clocks     one run without clocks: they are computed first. Spark's sort goes by the clocks that were taken away
  vectors       messages with stamps of 64 entries; Spark's sort adds up the entries, too
  receivers     the same, where each of 64 receivers has a row for each message, and an order of its own
  traces        rows with an id and a parent, in traces of 10 to 100 rows; Spark sorts by trace and time
  component     as many such rows without traces: one component; Spark sorts by time
  verify        the rows of `traces`, handed over in their order: was any handed over before its cause? Spark sorts them
                by trace and place
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.spark import Trace, connect
from antecede.spark.order.api import order
from antecede.spark.verify.api import CausesVerification, verify
from benchmarks.spark.generate import Shape, generate
from benchmarks.spark.processors import processors

PROCESSES = 64
SMALL = 1_000
FILES = 8
PIECE = 4_000_000
"""Rows that are made in memory at a time."""


def make_trace(home: Path, name: str, shape: Shape) -> Path:
    """The trace of that name, made if it is not there."""
    if not (home / name).is_dir():
        generate(home / f"{name}.part", shape)
        (home / f"{name}.part").rename(home / name)
    return home / name


def make_messages(home: Path, messages: int, receivers: int = 1) -> Path:
    """Broadcasts in rounds: each process has heard of the others' up to some rounds ago; so many rows in all."""
    path = home / f"messages-{messages}-{receivers}"
    if path.is_dir():
        return path
    rng = np.random.default_rng(1)
    lag = rng.integers(1, 20, (PROCESSES, PROCESSES))
    np.fill_diagonal(lag, 0)
    rounds = np.repeat(rng.permutation(messages // PROCESSES // receivers), receivers)
    part = home / f"{path.name}.part"
    part.mkdir()
    whose = np.arange(len(rounds)) % receivers
    for file, (some, to) in enumerate(zip(np.array_split(rounds, 8), np.array_split(whose, 8), strict=True)):
        vectors = np.maximum(some[:, None, None] + 1 - lag[None], 0).reshape(-1, PROCESSES)
        columns = {
            "run": pa.array(["run-1"]).take(np.zeros(len(vectors), np.int64)),
            "receiver": pa.array(np.repeat(to, PROCESSES)),
            "process": pa.array(np.tile(np.arange(PROCESSES, dtype=np.int32), len(some))),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), PROCESSES).cast(
                pa.list_(pa.int64())
            ),
            "text": pa.array(np.arange(len(vectors))).cast(pa.string()),
        }
        pq.write_table(pa.table(columns), part / f"{file}.parquet")
    part.rename(path)
    return path


def make_spans(home: Path, rows: int, traces: bool) -> Path:
    """Rows with an id, a parent and a time, in no order; ids of 16 hexadecimal digits, as spans have them.

    Traces are independent, so they are made in pieces, each spread over all files: memory holds one piece.
    """
    path = home / f"{'traces' if traces else 'component'}-{rows}"
    if path.is_dir():
        return path
    rng = np.random.default_rng(2)
    part = home / f"{path.name}.part"
    part.mkdir()
    writers: list[pq.ParquetWriter] = []
    before = 0
    for start in range(0, rows, PIECE if traces else rows):
        count = min(rows - start, PIECE) if traces else rows
        sizes = rng.integers(10, 101, count // 10) if traces else np.array([count])
        table = make_piece(rng, start, count, before, np.minimum(np.cumsum(sizes), count))
        before += len(sizes)
        writers = writers or [
            pq.ParquetWriter(part / f"{file}.parquet", table.schema) for file in range(FILES)
        ]
        for writer, some in zip(writers, np.array_split(np.arange(count), FILES), strict=True):
            writer.write_table(table.slice(some[0] if len(some) else 0, len(some)))
    for writer in writers:
        writer.close()
    part.rename(path)
    return path


def make_piece(rng: np.random.Generator, start: int, rows: int, before: int, ends: np.ndarray) -> pa.Table:
    """So many rows from a place on, in no order; their traces are numbered from `before` on, and end at `ends`."""
    place = np.arange(rows)
    trace = np.searchsorted(ends, place, side="right")
    first = np.where(trace > 0, ends[trace - 1], 0)
    back = rng.integers(1, 6, rows)
    parent = np.maximum(place - back, first)
    started = 1_675_000_000_000_000_000 + (start + place) * 1000 + rng.integers(0, 5000, rows)
    some = rng.permutation(rows)
    names = write_hexadecimal((start + place).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    columns = {
        "trace": pc.binary_join_element_wise("0" * 16, write_hexadecimal(before + trace[some]), ""),
        "span": names.take(pa.array(some)),
        "parent": names.take(pa.array(parent[some], mask=some == first[some])),
        "start": pa.array(started[some]),
        "reader": pa.array((before + trace[some]) % 8),
        "place": pa.array(start + some),
        "operation": pa.array([f"operation {number}" for number in range(50)]).take(pa.array(some % 50)),
    }
    return pa.table(columns)


def write_hexadecimal(numbers: np.ndarray) -> pa.Array:
    """Numbers of 64 bits as texts of 16 digits."""
    digits = numbers.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(0, len(digits) + 1, 16, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(digits))


def drop(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def expect_yes(found: CausesVerification) -> None:
    assert found.verdict == "yes", found.reason
    found.release()


def seconds(work: Callable[[], None]) -> tuple[float, float]:
    """On the clock, and of all processors together."""
    begin, worked = time.perf_counter(), processors()
    work()
    return time.perf_counter() - begin, processors() - worked


def is_wanted(only: str | None, *names: str) -> bool:
    return only is None or bool(set(only.split(",")) & set(names))


Case = tuple[str, Callable[[], None], Callable[[], None], int]


def cases(spark: SparkSession, home: Path, events: int, messages: int, only: str | None) -> list[Case]:
    found = []
    if is_wanted(only, "traces"):
        spans = spark.read.parquet(str(make_spans(home, events, True)))
        found.append(
            (
                "traces",
                lambda: drop(spans.orderBy("trace", "start", "span")),
                lambda: drop(order(spans, id="span", causes="parent", partition_by="trace", time="start")),
                events,
            )
        )
    if is_wanted(only, "component"):
        one_tree = spark.read.parquet(str(make_spans(home, events, False)))
        found.append(
            (
                "component",
                lambda: drop(one_tree.orderBy("start", "span")),
                lambda: drop(order(one_tree, id="span", causes="parent", time="start")),
                events,
            )
        )
    if is_wanted(only, "verify"):
        handed = spark.read.parquet(str(make_spans(home, events, True)))
        found.append(
            (
                "verify",
                lambda: drop(handed.orderBy("trace", "place", "span")),
                lambda: expect_yes(
                    verify(
                        handed,
                        id="span",
                        causes="parent",
                        consumer="reader",
                        position="place",
                        partition_by="trace",
                    )
                ),
                events,
            )
        )
    if is_wanted(only, "vectors", "receivers"):
        found += vector_cases(spark, home, messages)
    if is_wanted(only, "one run", "many runs", "no clocks"):
        found += trace_cases(spark, home, events)
    return found


def vector_cases(spark: SparkSession, home: Path, messages: int) -> list[Case]:
    table = spark.read.parquet(str(make_messages(home, messages)))
    copies = spark.read.parquet(str(make_messages(home, messages, PROCESSES)))
    total = F.aggregate("vector", F.lit(0).cast("long"), lambda total, value: total + value)
    own = F.get("vector", F.col("process"))
    return [
        (
            "vectors",
            lambda: drop(table.orderBy("run", total, "process", own)),
            lambda: drop(order(table, process="process", vector="vector", partition_by="run")),
            messages,
        ),
        (
            "receivers",
            lambda: drop(copies.orderBy("receiver", total, "process", own)),
            lambda: drop(order(copies, process="process", vector="vector", partition_by="receiver")),
            messages,
        ),
    ]


def trace_cases(spark: SparkSession, home: Path, events: int) -> list[Case]:
    one = make_trace(home, "one", Shape(events=events, processes=PROCESSES, unsorted=True))
    small = make_trace(
        home, "small", Shape(events=events // 2 // SMALL, processes=8, runs=SMALL, unsorted=True, files=1)
    )
    giant = make_trace(home, "giant", Shape(events=events // 2, processes=PROCESSES, unsorted=True))
    trace = Trace.read(spark, one)
    # The two have a run of the same name.
    renamed = Trace.read(spark, giant).events.withColumn("run", F.lit("giant"))
    many = renamed.unionByName(Trace.read(spark, small).events)
    bare = trace.events.withColumn("clock", F.lit(None).cast("long"))

    def by_clock(rows: DataFrame) -> Callable[[], None]:
        return lambda: drop(rows.orderBy("run", "clock", "process", "index"))

    return [
        ("one run", by_clock(trace.events), lambda: drop(order(trace)), events),
        ("many runs", by_clock(many), lambda: drop(order(Trace.of(many))), events),
        ("no clocks", by_clock(trace.events), lambda: drop(order(Trace.of(bare))), events),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="keep the data here, and use what is there")
    parser.add_argument("--only", help="some cases, separated by commas")
    parser.add_argument("--out", type=Path, help="write the table here, too")
    options = parser.parse_args()
    home = options.dir or Path(tempfile.mkdtemp(prefix="antecede-order-"))
    home.mkdir(parents=True, exist_ok=True)
    spark = connect(log=home / "spark.log", settings={"spark.local.dir": str(home / "scratch")})
    lines = [
        "| case | rows | Spark's sort, s | order, s | ratio | of processors, sort | order | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, peer, ours, rows in cases(spark, home, options.events, options.messages, options.only):
        if not is_wanted(options.only, name):
            continue
        # Turn and turn about, so that neither has the warmer machine; the best of each.
        taken = [(seconds(peer), seconds(ours)) for _ in range(options.times)]
        figures = [
            f"{sort:.1f} | {mine:.1f} | {mine / sort:.2f}"
            for sort, mine in (
                (min(peer[what] for peer, _ in taken), min(own[what] for _, own in taken)) for what in (0, 1)
            )
        ]
        lines.append(f"| {name} | {rows:,} | {' | '.join(figures)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    spark.stop()
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")
    if not options.dir:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
