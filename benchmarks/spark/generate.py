"""A trace of any length, as the contract has it, made at native speed and not by the simulator.

    python -m benchmarks.spark.generate DIR --events 100_000_000 --processes 64 [--fanout 3] [--violations 1e-6]
                                            [--runs 1] [--unsorted] [--receives] [--seed 1]

The model. Time goes in rounds; the round is the Lamport clock. In each round each process does at most one thing: it
delivers the head of its inbox, if that was sent at least its delay ago, or it sends to `fanout` others, or nothing. An
inbox keeps the order of sends, so everything is delivered in causal order. With `violations`, now and then the second
in the inbox goes before the head. What is under way at the end is delivered.

Rows are in the order (clock, process, index) and files say so, unless `unsorted`: then rows go to any of the files,
shuffled, and no file says anything.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from antecede.trace import DELIVER, KINDS, ORDER, ORDER_KEY, ROW_GROUP, RUN_KEY, RUNS, SEND, RunInfo
from antecede.trace.layout import Layout
from antecede.trace.rows import WRITTEN, names
from antecede.trace.writer import GROUPS_PER_FILE, OPTIONS

DELAY = 8
"""Rounds under way at most: a message takes 1 to this many."""
DEPTH = 64
"""Messages in an inbox at most: nobody sends to a process that has so many."""
ROUND_NS = 1_000_000


class Shape(Struct, frozen=True, kw_only=True):
    """What to make. `events` is what each run has, give or take what is under way at the end."""

    events: int
    processes: int = 64
    fanout: int = 1
    violations: float = 0.0
    runs: int = 1
    unsorted: bool = False
    receives: bool = False
    seed: int = 1
    files: int = 8
    """Only if unsorted: how many files the rows are dealt to."""


@numba.njit(cache=True)
def advance(
    n,
    fanout,
    swap,
    receives,
    draining,
    counts,
    heads,
    sizes,
    inbox,
    due,
    clock,
    process,
    kind,
    sender,
    number,
    to,
):
    """Rounds from counts[0] on until the columns are full or, draining, all inboxes are empty: how many rows."""
    rows, room = 0, len(process)
    need = n * (2 if receives else 1)
    while rows + need <= room:
        waiting = 0
        now = counts[0]
        for p in range(n):
            ready = sizes[p] > 0 and due[p, heads[p]] <= now
            if ready and (draining or np.random.random() < 0.6):
                at = heads[p]
                if sizes[p] > 1 and swap > 0.0 and np.random.random() < swap:
                    after = (at + 1) % DEPTH
                    if due[p, after] < now:
                        inbox[p, at], inbox[p, after] = inbox[p, after], inbox[p, at]
                        due[p, at], due[p, after] = due[p, after], due[p, at]
                for k in range(2 if receives else 1):
                    process[rows], clock[rows], to[rows, 0] = p, now, -1
                    kind[rows] = 1 if receives and k == 0 else 2
                    sender[rows], number[rows] = inbox[p, at] % n, inbox[p, at] // n
                    rows += 1
                heads[p] = (at + 1) % DEPTH
                sizes[p] -= 1
            elif not draining and np.random.random() < 1.2 / (1 + fanout):
                first = np.random.randint(n)
                free = True
                for k in range(fanout):
                    q = (first + k) % n
                    free = free and q != p and sizes[q] < DEPTH
                if free:
                    counts[1 + p] += 1
                    process[rows], clock[rows], kind[rows] = p, now, 0
                    sender[rows], number[rows] = p, counts[1 + p]
                    for k in range(fanout):
                        q = (first + k) % n
                        at = (heads[q] + sizes[q]) % DEPTH
                        inbox[q, at] = number[rows] * n + p
                        due[q, at] = now + 1 + np.random.randint(DELAY)
                        sizes[q] += 1
                        to[rows, k] = q
                    rows += 1
            waiting += sizes[p]
        counts[0] += 1
        if draining and waiting == 0:
            break
    return rows


@numba.njit(cache=True)
def seed_random(seed):
    np.random.seed(seed)


class Columns(Struct, frozen=True):
    clock: Any
    process: Any
    kind: Any
    sender: Any
    number: Any
    to: Any
    index: Any

    def at(self, rows: Any) -> Columns:
        return Columns(*(getattr(self, name)[rows] for name in self.__struct_fields__))


def columns(shape: Shape, seed: int) -> Iterator[Columns]:
    """The rows of one run, a row group at a time."""
    n = shape.processes
    counts, indices = np.zeros(1 + n, np.int64), np.zeros(n, np.int64)
    heads, sizes = np.zeros(n, np.int64), np.zeros(n, np.int64)
    inbox, due = np.zeros((n, DEPTH), np.int64), np.zeros((n, DEPTH), np.int64)
    seed_random(seed)
    left, draining = shape.events, False
    rest: Columns | None = None
    while not draining or sizes.sum():
        draining = left <= 0
        room = max(4 * n, min(left, ROW_GROUP)) if not draining else ROW_GROUP
        found: list[Any] = [np.empty(room, np.int64), np.empty(room, np.int32), np.empty(room, np.int32)]
        found += [
            np.empty(room, np.int32),
            np.empty(room, np.int64),
            np.full((room, shape.fanout), -1, np.int32),
        ]
        rows = advance(
            n,
            shape.fanout,
            shape.violations,
            shape.receives,
            draining,
            counts,
            heads,
            sizes,
            inbox,
            due,
            *found,
        )
        left -= rows
        part = [column[:rows] for column in found]
        made = Columns(*[*part, positions(part[1], indices)])
        # Whole row groups, as the simulator's: what is over goes into the next.
        if rest is not None:
            made = Columns(*(np.concatenate(pair) for pair in zip(values(rest), values(made), strict=True)))
        while len(made.kind) > ROW_GROUP:
            yield made.at(slice(ROW_GROUP))
            made = made.at(slice(ROW_GROUP, None))
        rest = made
    if rest is not None:
        yield rest


def values(rows: Columns) -> list[Any]:
    return [getattr(rows, name) for name in rows.__struct_fields__]


def positions(process: Any, counts: Any) -> Any:
    """The index of each row in its process's own order."""
    here = np.bincount(process, minlength=len(counts))
    order = np.argsort(process, kind="stable")
    index = np.empty(len(process), np.int64)
    index[order] = np.arange(len(process)) - np.repeat(np.cumsum(here) - here - counts, here)
    counts += here
    return index


def batch(run: str, processes: pa.Array, rows: Columns) -> pa.RecordBatch:
    """The rows as Arrow has them, strings as dictionaries."""
    sends = rows.kind == SEND
    lengths = np.where(sends, rows.to.shape[1], 0)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    size = pa.array(np.full(len(sends), 3, np.int32), mask=~sends)
    ready = {
        "run": names(np.zeros(len(sends), np.int32), pa.array([run])),
        "process": names(rows.process, processes),
        "index": pa.array(rows.index),
        "kind": names(rows.kind, pa.array(KINDS)),
        "sender": names(rows.sender, processes),
        "number": pa.array(rows.number),
        "to": pa.ListArray.from_arrays(
            pa.array(offsets),
            names(np.ascontiguousarray(rows.to[sends]).ravel(), processes),
            type=WRITTEN.field("to").type,
            mask=pa.array(~sends),
        ),
        "control": pa.array(np.zeros(len(sends), bool)),
        "time_ns": pa.array(rows.clock * ROUND_NS + (rows.kind == DELIVER)),
        "clock": pa.array(rows.clock),
        "stamp_entries": size,
        "stamp_bytes": size,
        "label": names(np.full(len(sends), -1, np.int32), pa.array([""])),
    }
    return pa.RecordBatch.from_arrays([ready[name] for name in WRITTEN.names], schema=WRITTEN)


class Output:
    """One file of events. Encoding is the slow part, and goes on beside the making of rows."""

    def __init__(self, layout: Layout, run: str, serial: int, ordered: bool) -> None:
        self._layout, self._path = layout, layout.file(run, serial)
        self._run, self._ordered = run, ordered
        self._file = pq.ParquetWriter(str(layout.part(self._path)), WRITTEN, **OPTIONS)

    def write(self, processes: pa.Array, rows: list[Columns]) -> None:
        for part in rows:
            self._file.write_batch(batch(self._run, processes, part))

    def close(self) -> None:
        notes = {RUN_KEY: self._run.encode()}
        self._file.add_key_value_metadata(notes | ({ORDER_KEY: ORDER} if self._ordered else {}))
        self._file.close()
        self._layout.part(self._path).rename(self._path)


def generate(directory: str | Path, shape: Shape) -> int:
    """Write the trace; how many rows it has."""
    layout = Layout(directory)
    layout.events.mkdir(parents=True)
    people = sorted((f"p{i + 1}" for i in range(shape.processes)), key=str.encode)
    runs = [f"run-{i + 1}" for i in range(shape.runs)]
    rows = sum(write(layout, run, pa.array(people), shape, shape.seed + i) for i, run in enumerate(runs))
    infos = [RunInfo(run=run, protocol="generated", processes=tuple(people), version="0") for run in runs]
    pq.write_table(pa.Table.from_pylist([info.row() for info in infos], schema=RUNS), layout.runs)
    return rows


def write(layout: Layout, run: str, processes: pa.Array, shape: Shape, seed: int) -> int:
    groups = columns(shape, seed)
    if shape.unsorted:
        return scatter(layout, run, processes, shape, groups)
    total = 0
    with ThreadPoolExecutor(2) as pool:
        pending: list[Future[None]] = []
        for serial, part in enumerate(batch_groups(groups, GROUPS_PER_FILE)):
            total += sum(len(rows.kind) for rows in part)
            pending.append(pool.submit(whole, Output(layout, run, serial, True), processes, part))
            while len(pending) > 2:
                pending.pop(0).result()
        for task in pending:
            task.result()
    return total


def whole(output: Output, processes: pa.Array, rows: list[Columns]) -> None:
    output.write(processes, rows)
    output.close()


def batch_groups(groups: Iterator[Columns], size: int) -> Iterator[list[Columns]]:
    part: list[Columns] = []
    for rows in groups:
        part.append(rows)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


def scatter(layout: Layout, run: str, processes: pa.Array, shape: Shape, groups: Iterator[Columns]) -> int:
    """Each of the files gets a share of every row group, shuffled."""
    outputs = [Output(layout, run, serial, False) for serial in range(shape.files)]
    dice = np.random.default_rng(shape.seed)
    total = 0
    with ThreadPoolExecutor(2) as pool:
        for part in batch_groups(groups, shape.files):
            rows = Columns(*(np.concatenate(column) for column in zip(*map(values, part), strict=True)))
            order = dice.permutation(len(rows.kind))
            total += len(order)
            shares = [[rows.at(share)] for share in np.array_split(order, shape.files)]
            list(pool.map(lambda o, s: o.write(processes, s), outputs, shares))
    for output in outputs:
        output.close()
    return total


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark.generate", description=__doc__.split("\n")[0]
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000, help="of each run")
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--fanout", type=int, default=1, help="destinations of a message")
    parser.add_argument("--violations", type=float, default=0.0, help="share of deliveries out of turn")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unsorted", action="store_true")
    parser.add_argument("--receives", action="store_true")
    return parser


def main() -> None:
    asked = vars(arguments().parse_args())
    directory = asked.pop("directory")
    started = time.perf_counter()
    rows = generate(directory, Shape(**asked))
    print(f"{rows:,} events in {time.perf_counter() - started:.1f} s: {directory}")


if __name__ == "__main__":
    main()
