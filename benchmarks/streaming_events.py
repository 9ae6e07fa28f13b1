"""python -m benchmarks.streaming_events: rows a second of a stream by causes and by vectors, beside a pass-through.

  causes      events with an identifier of 16 letters, its parent's, and 32 bytes, in conversations of 20
  vectors     events of 8 processes in rooms, with their vector as a map, and 32 bytes

Each in order, and with 10 % out of order by up to a thousand rows. Beside them, in the same run: the rows through a
stateless Arrow function into the same Parquet sink. Rates are of warm micro-batches: the first of each query is left
out, and so is the first round of all queries. CPU time is told of all, and of all but the first micro-batch,
since a query costs something once. What the second micro-batch took, and the last, shows whether what is remembered
makes them slower (`--rows 1200000 --batches 12`). By causes, also: bytes of state for each identifier that is
remembered.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from antecede.spark import connect, order
from antecede.spark.stream.operator import PROVIDER, ROCKSDB
from benchmarks.streaming import Figure, time_query

SIZE = 20
"""Events of a conversation."""
PROCESSES = 8
SCHEMAS = {
    "causes": "room string, id string, parent string, body binary",
    "vectors": "room string, who string, clock map<string,bigint>, body binary",
}
ASKED: dict[str, dict[str, Any]] = {
    "causes": {"id": "id", "causes": "parent", "partition_by": "room"},
    "vectors": {"process": "who", "vector": "clock", "partition_by": "room"},
}


def make_causes(rows: int) -> pa.Table:
    """Conversations side by side: each event answers one of its conversation."""
    random = np.random.default_rng(1)
    talk, turn = np.arange(rows) % (rows // SIZE), np.arange(rows) // (rows // SIZE)
    parent = (random.random(rows) * turn).astype(np.int64)
    ids = [f"{a:08x}-{b:07x}" for a, b in zip(talk.tolist(), turn.tolist(), strict=True)]
    parents = [
        f"{a:08x}-{b:07x}" if t else None
        for a, b, t in zip(talk.tolist(), parent.tolist(), turn.tolist(), strict=True)
    ]
    rooms = [f"room {one}" for one in (talk % 1000).tolist()]
    return pa.table({"room": rooms, "id": ids, "parent": parents, "body": pa.repeat(bytes(32), rows)})


def make_vectors(rows: int, rooms: int = 100) -> pa.Table:
    """In each room processes take turns at random; each knows all but the last few events of the others."""
    random = np.random.default_rng(1)
    length = rows // rooms
    clocks, whos = [], []
    known, sent = np.zeros(PROCESSES, np.int64), np.zeros(PROCESSES, np.int64)
    chosen = random.integers(0, PROCESSES, length)
    for at, who in enumerate(chosen.tolist()):
        if at >= 5:
            known[chosen[at - 5]] += 1
        sent[who] += 1
        vector = known.copy()
        vector[who] = sent[who]
        clocks.append([(f"p{k}", int(count)) for k, count in enumerate(vector) if count])
        whos.append(f"p{who}")
    one = pa.table({"who": whos, "clock": pa.array(clocks, pa.map_(pa.string(), pa.int64()))})
    turns = np.repeat(np.arange(length), rooms)
    names = pa.array([f"room {room}" for room in range(rooms)]).take(
        pa.array(np.tile(np.arange(rooms), length))
    )
    taken = one.take(turns)
    return pa.table(
        {
            "room": names,
            "who": taken["who"],
            "clock": taken["clock"],
            "body": pa.repeat(bytes(32), len(turns)),
        }
    )


def disturb(table: pa.Table) -> pa.Table:
    """A tenth of the rows comes later, by up to a thousand."""
    random = np.random.default_rng(2)
    late = np.where(random.random(len(table)) < 0.1, random.integers(0, 1000, len(table)), 0)
    return table.take(np.argsort(np.arange(len(table)) + late, kind="stable"))


def run(spark: Any, form: str, table: pa.Table, how: str, work: Path, batches: int) -> tuple[Figure, int]:
    """A figure, and the bytes of the state."""
    for place in ("in", "out", "checkpoint"):
        shutil.rmtree(work / place, ignore_errors=True)
    (work / "in").mkdir()
    size = -(-len(table) // (2 * batches))
    for part in range(2 * batches):
        path = work / "in" / f"{part:03}.parquet"
        pq.write_table(table.slice(part * size, size), path)
        os.utime(path, (part + 1, part + 1))
    stream = spark.readStream.schema(SCHEMAS[form]).option("maxFilesPerTrigger", 2).parquet(str(work / "in"))
    made = stream.mapInArrow(lambda batches: batches, stream.schema)
    if how != "pass-through":
        made = order(stream, **ASKED[form])
    writer = made.writeStream.option("checkpointLocation", str(work / "checkpoint")).trigger(
        availableNow=True
    )
    figure = time_query(lambda: writer.start(str(work / "out")), len(table))
    found = spark.read.parquet(str(work / "out")).count()
    assert found == len(table), f"{form}, {how}: {found} of {len(table)} rows came out"
    state = work / "checkpoint" / "state"
    return figure, sum(file.stat().st_size for file in state.rglob("*") if file.suffix in (".sst", ".log"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.streaming_events", description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument(
        "--rounds", type=int, default=2, help="of which the best counts, after one to warm up"
    )
    parser.add_argument("--only", choices=sorted(SCHEMAS))
    asked = parser.parse_args()
    if os.getsid(0) != os.getpid() and os.getpgrp() != os.getpid():
        # A session of our own, so that its processes can be told from others.
        os.setsid()
    work = Path(tempfile.mkdtemp(prefix="antecede-streaming-events-"))
    settings = {
        "spark.sql.shuffle.partitions": "2",
        PROVIDER: ROCKSDB,
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    spark = connect("local[2]", log=work / "log", settings=settings)
    print(
        "| form | order | how | rows/s | of pass-through | CPU µs a row | after the first micro-batch |"
        " second, last micro-batch, ms |\n|---|---|---|--:|--:|--:|--:|--:|"
    )
    try:
        for form in [asked.only] if asked.only else sorted(SCHEMAS):
            table = make_causes(asked.rows) if form == "causes" else make_vectors(asked.rows)
            figures: list[list[Figure]] = []
            cases = [("in order", "pass-through", table), ("in order", "order", table)]
            cases.append(("10 % out of order", "order", disturb(table)))
            # In turns: the first round starts workers, compiles kernels and opens RocksDB, and is left out.
            for _ in range(asked.rounds + 1):
                round_ = [run(spark, form, rows, how, work, asked.batches) for _, how, rows in cases]
                figures.append([figure for figure, _ in round_])
                octets = round_[-1][1]
            best = [max(of, key=lambda figure: figure.rate) for of in zip(*figures[1:], strict=True)]
            for place, (name, how, _) in enumerate(cases):
                words = f"| {form if not place else ''} | {name} | {how} | {best[place].rate:,.0f}"
                share = best[place].rate / best[0].rate
                print(
                    f"{words} | {share:.2f} | {best[place].cpu:.1f} | {best[place].warm_cpu:.1f} |"
                    f" {best[place].second_ms}, {best[place].last_ms} |",
                    flush=True,
                )
            if form == "causes":
                print(f"\nState: {octets / len(table):.0f} bytes for each identifier.\n", flush=True)
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
