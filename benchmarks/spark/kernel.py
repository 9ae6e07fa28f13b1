"""The kernel of verification alone, on one core: events a second, beside what memory allows.

    python -m benchmarks.spark.kernel [--events 4_000_000] [--processes 16 64 512] [--later]

The bound is the least that any vector clock costs: for each event, n counters of a process are merged into those of a
message, or copied. It knows nothing of messages and checks nothing. `first` is a chunk whose entry is known, `chunk` one
that is run in symbols, `witness` a second reading that follows every hundredth message. Rows are in memory, as they
come out of Parquet.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
from numba import njit

from antecede.spark.rows import Rows
from antecede.spark.verification import Overtaken, Scan, Witness
from antecede.trace.schema import SEND
from benchmarks.spark.generate import Columns, Shape, columns


@njit(cache=True)
def bound(process, kind, clocks, messages):
    """Copies a row of n counters for each send, takes the greater of two rows for each delivery."""
    for row in range(len(process)):
        clock, message = clocks[process[row]], messages[row & 127]
        if kind[row] == SEND:
            for entry in range(len(clock)):
                message[entry] = clock[entry]
        else:
            for entry in range(len(clock)):
                clock[entry] = max(clock[entry], message[entry])


def rows_of(made: Columns) -> Rows:
    sends = made.kind == SEND
    lengths = np.where(sends, made.to.shape[1], 0)
    return Rows(
        process=made.process,
        kind=made.kind.astype(np.int8),
        sender=made.sender,
        number=made.number,
        control=np.zeros(len(sends), bool),
        offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
        to=np.ascontiguousarray(made.to[sends]).ravel(),
        index=made.index,
    )


def read(make: Callable[[], Scan | Witness], batches: Sequence[Rows]) -> None:
    reader = make()
    for rows in batches:
        reader.feed(rows)
    reader.finish()


def run_bound(n: int, batches: Sequence[Rows]) -> None:
    clocks, messages = np.zeros((n, n), np.int32), np.zeros((128, n), np.int32)
    for rows in batches:
        bound(rows.process, rows.kind, clocks, messages)


def seconds(work: Callable[[], None], times: int = 3) -> float:
    """The best of a few, after one that compiles."""
    work()
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def watched(batches: Sequence[Rows]) -> Overtaken:
    """As if every hundredth message had been overtaken once: it is followed to the end."""
    sends = np.flatnonzero(np.concatenate([rows.kind for rows in batches]) == SEND)[::100]
    zeros = np.zeros(len(sends), np.int64)
    return Overtaken(zeros, zeros, zeros, zeros, zeros != 0, sends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[16, 64, 512])
    parser.add_argument("--fanout", type=int, default=1)
    options = parser.parse_args()
    print("   n  fanout  reading   million events/s   bound   ratio")
    for n in options.processes:
        shape = Shape(events=options.events, processes=n, fanout=options.fanout)
        batches = [rows_of(made) for made in columns(shape, seed=1)]
        events = sum(map(len, batches))
        limit = events / seconds(lambda n=n, b=batches: run_bound(n, b)) / 1e6
        makes: dict[str, Callable[[], Scan | Witness]] = {
            "first": lambda n=n: Scan(n, first=True),
            "chunk": lambda n=n: Scan(n, first=False),
        }
        for name, make in makes.items():
            rate = events / seconds(lambda m=make, b=batches: read(m, b)) / 1e6
            print(f"{n:4}  {options.fanout:6}  {name:8}  {rate:16.1f}  {limit:6.1f}  {limit / rate:6.2f}", flush=True)


if __name__ == "__main__":
    main()
