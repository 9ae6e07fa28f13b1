"""python -m benchmarks.streaming_long: does a stream that runs for ever stay small?

A query of `order`, and one of `verify_stream`, over hundreds of small micro-batches of steady traffic without
loss: the first half in order, the second with a tenth of the rows out of order. For each tenth of the run it prints
what would grow, if something did:

  rows         that came, and CPU seconds of all processes for a thousand of them
  held         messages, or events, that wait at the end of a micro-batch, at most
  state        bytes of the values that we keep, read from the state store; and what Spark says that it has in memory
  Java         heap in use after a collection
  Python       memory of all workers (proportional set size)

The traffic comes from Spark's `rate-micro-batch` and goes nowhere, so that no list of files grows beside it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from antecede.model import Message, Packet, View
from antecede.protocols.broadcast import VectorStamp
from antecede.spark import connect, order
from antecede.spark.stream import PACKETS, Status, status_of
from antecede.spark.stream.api import verify_stream
from antecede.spark.stream.judge import decode_state
from antecede.spark.stream.packets import stamp_of
from antecede.trace import EVENTS

N = 8
VIEW = View.numbered(N)
RUNS = 4
SWAPPED = 700
"""How far a row that is out of order is from its place: a micro-batch ends in between now and then."""


# Traffic


def order_of(value: int, from_row: int) -> int:
    """What comes at a place: from a row on, every tenth is swapped with the one that is so much later.

    >>> [order_of(v, 0) for v in (0, 1, 700, 10, 710)], order_of(0, 1)
    ([700, 1, 0, 710, 10], 0)
    """
    at = value % (2 * SWAPPED)
    if value < from_row or at % 10:
        return value
    return value + SWAPPED if at < SWAPPED else value - SWAPPED


def packet(value: int, at: int) -> dict[str, Any]:
    """Eight processes broadcast, one after the other, each knowing all that was sent: a message is seven packets."""
    message, to = divmod(value, N - 1)
    sender, number = message % N, message // N + 1
    receiver = (sender + 1 + to) % N
    vector = tuple((message - j) // N + 1 for j in range(N))
    sent = Message(sender, number, tuple(range(N)), b"")
    stamp = stamp_of(Packet(sender, receiver, VectorStamp(vector), sent))
    names = VIEW.names
    return {
        "receiver": names[receiver], "sender": names[sender], "number": number, "stamp": stamp, "payload": bytes(32),
        "arrival": at,
    }  # fmt: skip


def event(value: int, at: int) -> dict[str, Any]:
    """In each run the eight send in turn, to the next and the one after the next but one, who deliver it at once."""
    message, step = divmod(value, 3)
    run, k = message % RUNS, message // RUNS
    sender, number = k % N, k // N + 1
    there = ((sender + 1) % N, (sender + 3) % N)
    process = (sender, *there)[step]
    own = [turn for turn in range(N) if (process - turn) % N in (0, 1, 3)]
    index = 3 * (k // N) + sum(turn < k % N for turn in own)
    names = VIEW.names
    return dict.fromkeys(EVENTS.names) | {
        "run": f"run {run}", "process": names[process], "index": index, "kind": "deliver" if step else "send",
        "sender": names[sender], "number": number, "to": None if step else [names[q] for q in there],
        "control": False, "time_ns": at,
    }  # fmt: skip


def traffic(
    spark: SparkSession, make: Callable[[int, int], dict[str, Any]], schema: pa.Schema, rows: int, half: int
) -> DataFrame:
    def make_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            places = batch.column(0).to_pylist()
            yield pa.RecordBatch.from_pylist([make(order_of(at, half), at) for at in places], schema)

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    values = source.option("numPartitions", 1).load().select("value")
    return values.mapInArrow(make_rows, from_arrow_schema(schema))


# What is measured


class Sample(NamedTuple):
    batch: int
    state: int
    held: int
    java: int
    python: int
    cpu_s: float


def take_sample(spark: SparkSession, checkpoint: str, batch: int, verifying: bool) -> Sample:
    states = spark.read.format("statestore").load(checkpoint).select("value.groupState.*").toArrow()
    values = [value.as_py() for value in states.column(0)]
    held = (
        sum(len(process.held) for value in values for process in decode_state(value).processes)
        if verifying
        else 0
    )
    java = next(pid for pid in children(os.getpid()) if comm(pid) == "java")
    workers = [pid for child in children(java) for pid in (child, *children(child))]
    return Sample(
        batch,
        sum(map(len, values)),
        held,
        heap(java),
        sum(map(memory, workers)),
        sum(map(cpu, (java, *workers))),
    )


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def memory(pid: int) -> int:
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def heap(java: int) -> int:
    """Bytes in use after a collection."""
    subprocess.run(["jcmd", str(java), "GC.run"], capture_output=True, check=True)
    told = subprocess.run(["jstat", "-gc", str(java)], capture_output=True, text=True, check=True).stdout
    figures = dict(zip(*(line.split() for line in told.splitlines()[:2]), strict=True))
    return int(1024 * sum(float(figures[name]) for name in ("S0U", "S1U", "EU", "OU")))


def watch_batches(
    spark: SparkSession, made: DataFrame, checkpoint: str, batches: int, verifying: bool
) -> None:
    """Run so many micro-batches, and look ten times."""
    query = made.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    samples: list[Sample] = []
    try:
        while len(samples) < 10:
            time.sleep(0.2)
            assert (error := query.exception()) is None, error
            done = int((query.lastProgress or {"batchId": -1})["batchId"]) + 1
            if done >= (len(samples) + 1) * batches // 10:
                samples.append(take_sample(spark, checkpoint, done, verifying))
    finally:
        query.stop()
    tell(samples, {int(one["batchId"]): one for one in query.recentProgress}, verifying)


def tell(samples: list[Sample], progress: dict[int, Any], verifying: bool) -> None:
    print("| batches | rows | CPU s a 1,000 | held | state, ours | state, Spark | Java | Python |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    first, cpu_s, found = 0, 0.0, 0
    for one in samples:
        some = [progress[batch] for batch in range(first, one.batch) if batch in progress]
        rows = sum(int(p["numInputRows"]) for p in some)
        held = one.held if verifying else max(status.held for status in statuses(some))
        found += sum(int(p["sink"]["numOutputRows"]) for p in some)
        spark_bytes = max(int(operator["memoryUsedBytes"]) for p in some for operator in p["stateOperators"])
        # The first tenth has Spark's start in it.
        spent = f"{1000 * (one.cpu_s - cpu_s) / rows:.2f}" if first else ""
        figures = f"{rows:,} | {spent} | {held:,} | {one.state:,} | {spark_bytes:,}"
        print(f"| {first}-{one.batch} | {figures} | {one.java / 1e6:,.0f} MB | {one.python / 1e6:,.0f} MB |")
        first, cpu_s = one.batch, one.cpu_s
    if verifying:
        assert found == 0, f"{found} findings in a sound trace"
    else:
        every = statuses(one for _, one in sorted(progress.items()))
        assert sum(s.rows_in - s.delivered for s in every) == every[-1].held, "delivered, or waits"


def statuses(progress: Iterable[Any]) -> list[Status]:
    return [told.status for one in progress if (told := status_of(one)) is not None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.streaming_long", description=__doc__)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--rows", type=int, default=2100, help="of a micro-batch")
    parser.add_argument("--only", choices=("order", "verify"))
    asked = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="antecede-streaming-long-"))
    settings = {
        "spark.sql.shuffle.partitions": "1",
        # The same plan hundreds of times, on few rows: to make it well costs more than it gains.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.streaming.numRecentProgressUpdates": str(2 * asked.batches),
        "spark.driver.memory": "1g",
    }
    spark = connect("local[1]", log=work / "log", settings=settings)
    # Pairs that are swapped come both before, or both after.
    half = asked.batches * asked.rows // 2 // (2 * SWAPPED) * (2 * SWAPPED)
    try:
        for what in ("order", "verify") if asked.only is None else (asked.only,):
            if what == "order":
                packets = traffic(spark, packet, PACKETS, asked.rows, half)
                made = order(packets, protocol="broadcast", processes=VIEW.names, buckets=1)
            else:
                made = verify_stream(traffic(spark, event, EVENTS, asked.rows, half))
            print(f"\n{what}: {asked.batches} micro-batches of {asked.rows:,} rows", flush=True)
            watch_batches(spark, made, str(work / what), asked.batches, what == "verify")
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
