"""The kernel of verification alone, on one core: events a second, beside what memory allows.

    python -m benchmarks.spark.kernel [--events 4_000_000] [--processes 16 64 512] [--fanout 1]

The bound is the least that any vector clock costs: for each event, n counters of a process are copied to a message, or
a message's merged into them, in as much memory as the messages under way take. It looks for nothing and checks nothing.
`first` is the reading of a chunk whose entry is known, `chunk` one in symbols. Rows are in memory, as they come out of
Parquet; time is the core's, so other work on the machine disturbs it less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numba import njit

from antecede.trace.columns import Rows
from antecede.trace.schema import SEND
from antecede.verification import Scan
from benchmarks.spark.generate import Columns, Shape, columns


@njit(cache=True)
def bound(process, kind, clocks, messages):
    """Copies a row of n counters for each send, takes the greater of two rows for each delivery."""
    for row in range(len(process)):
        clock, message = clocks[process[row]], messages[row & (len(messages) - 1)]
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


def read(make: Callable[[], Scan], batches: Sequence[Rows]) -> None:
    reader = make()
    for rows in batches:
        reader.feed(rows)
    reader.finish()


def slabs_of(n: int, batches: Sequence[Rows]) -> int:
    """How many messages are under way at most, as a power of two: the bound uses as much memory."""
    balance = np.concatenate([np.where(rows.kind == SEND, np.diff(rows.offsets), -1) for rows in batches])
    return 1 << max(6, int(np.cumsum(balance).max()).bit_length())


def run_bound(n: int, slabs: int, batches: Sequence[Rows]) -> None:
    clocks, messages = np.zeros((n, n), np.int32), np.zeros((slabs, n), np.int32)
    for rows in batches:
        bound(rows.process, rows.kind, clocks, messages)


def rate(work: Callable[[Sequence[Rows]], None], batches: Sequence[Rows], times: int = 5) -> float:
    """Million events in a second of this core's time: the best of a few, after one that compiles."""
    work(batches[:1])
    taken = []
    for _ in range(times):
        begin = time.thread_time()
        work(batches)
        taken.append(time.thread_time() - begin)
    return sum(map(len, batches)) / min(taken) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The kernel of verification alone, beside what memory allows."
    )
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[16, 64, 512])
    parser.add_argument("--fanout", type=int, default=1)
    options = parser.parse_args()
    print("   n  fanout  reading  million events/s  bound  ratio")
    for n in options.processes:
        shape = Shape(events=options.events, processes=n, fanout=options.fanout)
        batches = [rows_of(made) for made in columns(shape, seed=1)]
        limit = rate(partial(run_bound, n, slabs_of(n, batches)), batches)
        # A chunk of its own begins in the middle of the run, with messages under way.
        for name, make, part in (
            ("first", partial(Scan, n, first=True), batches),
            ("chunk", partial(Scan, n, first=False), batches[len(batches) // 2 :]),
        ):
            found = rate(partial(read, make), part)
            print(
                f"{n:4}  {options.fanout:6}  {name:7}  {found:16.1f}  {limit:5.1f}  {limit / found:5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
