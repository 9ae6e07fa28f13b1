"""python -m benchmarks.streaming: messages a second of a live stream, beside the same rows passed through untouched.

Three shapes, each in three orders of arrival:
  64 receivers      64 processes that broadcast: each message is a packet to each of the other 63
  10,000 receivers  1,250 groups of 8 processes that broadcast
  hot monitor       63 processes that send to one, by the keyed operator and by closed sets

Beside them, in the same run: (a) the stream through a stateless Arrow function into the same sink; (b) `order`,
the batch step, on the same packets with their vectors as arrays.

Rates are of warm micro-batches: the first of each query is left out. Where other work shares the machine, CPU seconds
tell more: those of Spark, its Java and its Pythons.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from antecede.model import Message, Packet, View
from antecede.protocols.broadcast import VectorStamp
from antecede.protocols.monitor import MonitorStamp
from antecede.spark import connect
from antecede.spark import order as order_rows
from antecede.spark.stream.api import assign_buckets
from antecede.spark.stream.bucket import from_ipc, to_ipc
from antecede.spark.stream.closed import deliver_closed
from antecede.spark.stream.operator import BUCKETS, bucket_keys, pack_rows
from antecede.spark.stream.packets import Settings, stamp_of
from antecede.spark.stream.stamps import OWN

LAG = 40
"""Messages that are under way while one is sent."""
ORDERS = ("in order", "10 % out of order", "shuffled in windows of 100,000")
SCHEMA = "receiver string, sender string, number long, stamp binary, payload binary, arrival long"
PAYLOAD = bytes(32)
CLOSED = "closed sets"


class Shape(NamedTuple):
    name: str
    protocol: str
    processes: tuple[str, ...]
    rows: pa.Table
    """In order of arrival, without an arrival."""
    vectors: pa.Table
    """The same for the batch step."""
    grouped: bool


def vectors(n: int, messages: int, senders: range, seed: int = 1) -> Iterator[tuple[int, int, np.ndarray]]:
    """Who sends, its number, and what it knows: all but the last few messages of the others."""
    chosen = np.random.default_rng(seed).integers(senders.start, senders.stop, messages)
    known, sent = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for at, sender in enumerate(chosen.tolist()):
        if at >= LAG:
            known[chosen[at - LAG]] += 1
        sent[sender] += 1
        vector = known.copy()
        vector[sender] = sent[sender]
        yield sender, int(sent[sender]), vector


def broadcasts(name: str, n: int, groups: int, rows: int) -> Shape:
    messages = max(LAG, rows // (groups * (n - 1)))
    view = View.numbered(n)
    made = []
    for sender, number, vector in vectors(n, messages, range(n)):
        everyone = tuple(range(n))
        message = Message(sender, number, everyone, PAYLOAD)
        stamp = stamp_of(Packet(sender, (sender + 1) % n, VectorStamp(tuple(vector.tolist())), message))
        made.append((sender, number, stamp, vector))
    # One message to all, in all groups, before the next.
    pairs = [(m, r) for m in range(len(made)) for r in range(n) if r != made[m][0]]
    at = np.repeat(np.array([m for m, _ in pairs]), groups)
    receiver = np.repeat(np.array([r for _, r in pairs]), groups)
    group = np.tile(np.arange(groups), len(pairs))
    return make_shape(name, "broadcast", view, made, at, receiver, group, groups > 1)


def make_monitored(name: str, n: int, rows: int) -> Shape:
    view = View.numbered(n)
    made = []
    for sender, number, vector in vectors(n, rows, range(1, n)):
        vector[sender] -= 1
        message = Message(sender, number, (0,), PAYLOAD)
        stamp = stamp_of(Packet(sender, 0, MonitorStamp(number, tuple(vector.tolist())), message))
        vector[sender] += 1
        made.append((sender, number, stamp, vector))
    at = np.arange(rows)
    return make_shape(
        name, "monitor", view, made, at, np.zeros(rows, np.int64), np.zeros(rows, np.int64), False
    )


def make_shape(
    name: str, protocol: str, view: View, made: list[Any], at: Any, receiver: Any, group: Any, grouped: bool
) -> Shape:
    names = pa.array(view.names)
    columns = {
        "receiver": names.take(pa.array(receiver)),
        "sender": names.take(pa.array([m[0] for m in made])).take(pa.array(at)),
        "number": pa.array([m[1] for m in made]).take(pa.array(at)),
        "stamp": pa.array([m[2] for m in made], pa.binary()).take(pa.array(at)),
        "payload": pa.repeat(PAYLOAD, len(at)),
    }
    if grouped:
        columns["room"] = pa.array([f"room {g}" for g in range(group.max() + 1)]).take(pa.array(group))
    stacked = pa.array([m[3].tolist() for m in made], pa.list_(pa.int64())).take(pa.array(at))
    run = pa.array(receiver * (group.max() + 1) + group)
    own = pa.array([m[0] for m in made]).take(pa.array(at))
    beside = pa.table({"run": run, "process": own, "vector": stacked, "payload": columns["payload"]})
    return Shape(name, protocol, view.names, pa.table(columns), beside, grouped)


def arrange_rows(rows: pa.Table, order: str) -> pa.Table:
    random, size = np.random.default_rng(7), len(rows)
    place = np.arange(size, dtype=np.float64)
    if order == ORDERS[1]:
        late = random.random(size) < 0.1
        place[late] += random.integers(1, 1000, late.sum())
    elif order == ORDERS[2]:
        place = place // 100_000 * 100_000 + random.random(size) * 100_000
    taken = rows.take(np.argsort(place, kind="stable"))
    return taken.append_column("arrival", pa.array(np.arange(size)))


def write_files(rows: pa.Table, directory: Path, files: int) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    size = -(-len(rows) // files)
    for part in range(files):
        path = directory / f"{part:04d}.parquet"
        pq.write_table(rows.slice(part * size, size), path)
        os.utime(path, (part + 1, part + 1))
    return directory


# The parts, without Spark


def parts(shape: Shape, order: str) -> list[tuple[str, float]]:
    """CPU microseconds a message of what is done in Python, in one process: whatever else the machine does."""
    rows = arrange_rows(shape.rows, order)
    rows = rows.rename_columns(["group" if name == "room" else name for name in rows.column_names])
    opened = Settings(shape.protocol, shape.processes)
    for name in OWN:
        if name[2:] in rows.column_names:
            rows = rows.append_column(name, rows[name[2:]])
    spent: dict[str, float] = {}

    def part(name: str, work: Callable[[], Any]) -> Any:
        before = time.process_time()
        made = work()
        spent[name] = spent.get(name, 0.0) + 1e6 * (time.process_time() - before) / len(rows)
        return made

    for _ in range(2):
        # The second time everything is compiled.
        spent.clear()
        blobs = part("pack", lambda: pack_rows(rows, bucket_keys(BUCKETS), assign_buckets)).column(1)
        for blob in blobs:
            table = from_ipc(blob.as_buffer())
            bucket = opened.open(None)
            out, _ = part("order", partial(bucket.advance, table, 0))
            part("state", bucket.dump)
            part("hand over", partial(hand_over, out))
        if shape.protocol == "monitor":
            part("closed: order", partial(order_closed_set, opened, rows))
    return list(spent.items())


def hand_over(out: pa.Table) -> pa.Table:
    return from_ipc(to_ipc(out))


def order_closed_set(opened: Settings, rows: pa.Table) -> None:
    found, _ = opened.open(None).advance(rows, 0)
    assert found is not None
    assert len(found) == len(rows), "all that was sent has arrived"


# What is measured


class Figure(NamedTuple):
    rate: float
    """Rows a second, of all micro-batches but the first."""
    cpu: float
    """CPU microseconds a row, of all."""
    rows: int
    warm_cpu: float = 0.0
    """CPU microseconds a row, of all micro-batches but the first: without what a query costs once."""
    second_ms: int = 0
    last_ms: int = 0
    """What these micro-batches took."""


def cpu() -> float:
    """CPU seconds of all processes of this session, and of those that they waited for."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == os.getsid(0):
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def time_query(start: Callable[[], Any], rows: int) -> Figure:
    before = cpu()
    query = start()
    began: float | None = None
    while not query.awaitTermination(0.1):
        if began is None and any(p["numInputRows"] for p in query.recentProgress):
            began = cpu()
    # Java's threads are in its figures at once; workers live on.
    ended = cpu()
    used = ended - before
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    warm = progress[1:] or progress
    times = [p["durationMs"]["triggerExecution"] for p in warm]
    some = sum(p["numInputRows"] for p in warm)
    warm_cpu = 1e6 * (ended - (began or before)) / some
    return Figure(1000 * some / sum(times), 1e6 * used / rows, rows, warm_cpu, times[0], times[-1])


def run(spark: Any, shape: Shape, order: str, how: str, work: Path, batches: int) -> Figure:
    rows = arrange_rows(shape.rows, order)
    # Two files for each micro-batch: one for each core.
    source = write_files(rows, work / "in", 2 * batches)
    for place in ("out", "checkpoint"):
        shutil.rmtree(work / place, ignore_errors=True)
    schema = SCHEMA + (", room string" if shape.grouped else "")
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(source))
    out, checkpoint = str(work / "out"), str(work / "checkpoint")
    if how == CLOSED:
        places: dict[str, Any] = {"receiver": "p1", "out": out, "checkpoint": checkpoint}
        writer = deliver_closed(stream, shape.protocol, shape.processes, **places)
    else:
        if how == "pass-through":
            made = stream.mapInArrow(lambda batches: batches, stream.schema)
        else:
            options: dict[str, Any] = {"partition_by": "room"} if shape.grouped else {}
            made = order_rows(stream, protocol=shape.protocol, processes=shape.processes, **options)
        writer = (
            made.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
        )
    figure = time_query(lambda: writer.trigger(availableNow=True).start(), len(rows))
    found = spark.read.parquet(out).count()
    assert found == len(rows), f"{shape.name}, {order}, {how}: {found} of {len(rows)} rows came out"
    return figure


def batch(spark: Any, shape: Shape, work: Path) -> Figure:
    source = write_files(shape.vectors, work / "vectors", 2)
    before, started = cpu(), time.perf_counter()
    table = spark.read.parquet(str(source))
    found = order_rows(table, process="process", vector="vector", partition_by="run")
    found.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    return Figure(
        len(shape.vectors) / seconds, 1e6 * (cpu() - before) / len(shape.vectors), len(shape.vectors)
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.streaming", description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--orders", type=int, default=3, help="how many of the orders")
    parser.add_argument("--parts", action="store_true", help="the parts alone, without Spark")
    asked = parser.parse_args()
    if os.getsid(0) != os.getpid():
        # A session of our own, so that its processes can be told from others.
        os.setsid() if os.getpgrp() != os.getpid() else None
    makers = [
        lambda: broadcasts("64 receivers", 64, 1, asked.rows),
        lambda: broadcasts("10,000 receivers", 8, 1250, asked.rows),
        lambda: make_monitored("hot monitor", 64, asked.rows),
    ]
    if asked.parts:
        print("| shape | order | CPU µs a message |\n|---|---|---|")
        for make in makers:
            shape = make()
            for order in ORDERS[: asked.orders] if asked.only in shape.name else ():
                told = ", ".join(f"{name} {spent:.2f}" for name, spent in parts(shape, order))
                print(f"| {shape.name} | {order} | {told} |", flush=True)
        return
    work = Path(tempfile.mkdtemp(prefix="antecede-streaming-"))
    spark = connect("local[2]", log=work / "log", settings={"spark.sql.shuffle.partitions": "2"})
    print(
        "| shape | order | how | rows | messages/s | of (a) | CPU µs a message |\n|---|---|---|--:|--:|--:|--:|"
    )
    try:
        # Java compiles what runs often: let it. The same for each way.
        warm = broadcasts("warm", 16, 1, asked.rows // 2)
        for how in ("pass-through", "keyed"):
            run(spark, warm, ORDERS[0], how, work, asked.batches)
        if asked.only in "hot monitor":
            warm = make_monitored("warm", 16, asked.rows // 2)
            for how in (CLOSED,):
                run(spark, warm, ORDERS[0], how, work, asked.batches)
        for make in makers:
            shape = make()
            if asked.only in shape.name:
                measure_shape(spark, shape, work, asked)
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


def measure_shape(spark: Any, shape: Shape, work: Path, asked: Any) -> None:
    through = run(spark, shape, ORDERS[0], "pass-through", work, asked.batches)
    tell(shape, ORDERS[0], "(a) pass-through", through, through)
    for order in ORDERS[: asked.orders]:
        for how in ("keyed", CLOSED) if shape.name == "hot monitor" else ("keyed",):
            tell(shape, order, how, run(spark, shape, order, how, work, asked.batches), through)
    tell(shape, "any", "(b) batch order", batch(spark, shape, work), through)


def tell(shape: Shape, order: str, how: str, figure: Figure, through: Figure) -> None:
    share = figure.rate / through.rate
    print(
        f"| {shape.name} | {order} | {how} | {figure.rows:,} | {figure.rate:,.0f} | {share:.2f} | {figure.cpu:.1f} |",
        flush=True,
    )
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
