"""A trace is read back as it was written, in order, and is whole or not there."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import antecede
from antecede import oracle
from antecede.errors import BadParameter, CannotWrite
from antecede.model import Event
from antecede.trace import (
    DELIVER,
    EVENTS,
    KINDS,
    ORDER,
    ORDER_KEY,
    READ,
    RECEIVE,
    RUNS,
    SEND,
    RunInfo,
    TraceWriter,
    events_of,
    read_events,
    read_runs,
)
from antecede.trace.footers import read_local_trace

NAMES = ("p1", "p2", "p10")


def info(run: str = "r1", **more) -> RunInfo:
    return RunInfo(run=run, protocol="fifo", processes=NAMES, **more)


def fill(writer: TraceWriter, rows: int, first: int = 0) -> None:
    """That many rows: sends and deliveries in turn, with a clock that counts them."""
    for clock in range(first, first + rows):
        sender, number = clock // 2 % 3, clock // 2 + 1
        if clock % 2 == 0:
            writer.append(sender, SEND, sender, number, ((sender + 1) % 3,), False, clock * 10, clock, 2, 5)
        else:
            writer.append((sender + 1) % 3, DELIVER, sender, number, None, False, clock * 10, clock)


def write(directory: Path, run: str = "r1", rows: int = 6, **options) -> None:
    with TraceWriter(directory, info(run), **options) as writer:
        fill(writer, rows)


def visible(directory: Path) -> list[str]:
    return sorted(
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*.parquet")
        if not path.name.startswith(".")
    )


def rows_of(directory: Path, run: str | None = None) -> list[dict]:
    return read_events(directory, run).read_all().to_pylist()


# What is written is read


def event_files(directory):
    return sorted((Path(directory) / "events").glob("[!._]*.parquet"))


def test_every_column_comes_back(tmp_path):
    with TraceWriter(tmp_path, info()) as writer:
        writer.append(0, SEND, 0, 1, (1, 2), False, 5, 0, 3, 17, "chat")
        writer.append(2, RECEIVE, 0, 1, None, False, 7, 1)
        writer.append(2, DELIVER, 0, 1, None, False, 7, 2)
        writer.append(2, SEND, 2, 1, (0,), True, 8, 3, 0, 1)
    none = {"to": None, "stamp_entries": None, "stamp_bytes": None, "label": None}
    first = {"run": "r1", "process": "p1", "index": 0, "kind": "send", "sender": "p1", "number": 1}
    arrived = {**first, "process": "p10", "control": False, "time_ns": 7, **none}
    assert rows_of(tmp_path) == [
        {**first, "to": ["p2", "p10"], "control": False, "time_ns": 5, "clock": 0}
        | {"stamp_entries": 3, "stamp_bytes": 17, "label": "chat"},
        {**arrived, "kind": "receive", "clock": 1},
        {**arrived, "kind": "deliver", "clock": 2, "index": 1},
        {**first, "process": "p10", "sender": "p10", "index": 2, "to": ["p1"], "control": True, "time_ns": 8}
        | {"clock": 3, "stamp_entries": 0, "stamp_bytes": 1, "label": None},
    ]


def test_the_description_of_a_run_comes_back(tmp_path):
    run = info(
        parameters={"k": 4, "optimised": True},
        seed=-7,
        workload="ring",
        network="exponential:50ms",
        topology="star",
        started_ns=1_700_000_000_000_000_000,
    )
    TraceWriter(tmp_path, run).close()
    assert read_runs(tmp_path) == [run]
    assert run.version == antecede.__version__


def test_random_rows_come_back_across_groups_and_files(tmp_path):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    expected: list[Event] = []
    with TraceWriter(tmp_path, info(), row_group=7, groups_per_file=3) as writer:
        for clock in range(200):
            process, kind, sender = rng.randrange(3), rng.randrange(3), rng.randrange(3)
            to = tuple(sorted(rng.sample(range(3), rng.randrange(4)))) if kind == SEND else None
            control = rng.random() < 0.3
            writer.append(
                process, kind, sender, clock, to, control, clock=clock, label=rng.choice(("", "a", "b"))
            )
            expected.append(Event(process, KINDS[kind], sender, clock, to or (), control))
    assert len(event_files(tmp_path)) == 10
    assert events_of(tmp_path, "r1") == expected


def test_the_oracle_takes_what_is_read(tmp_path):
    write(tmp_path, rows=30)
    assert oracle.check(events_of(tmp_path, "r1"), complete=True).violations == ()


def test_indices_have_no_gaps_in_any_process(tmp_path):
    write(tmp_path, rows=100, row_group=8, groups_per_file=2)
    for name in NAMES:
        own = [row["index"] for row in rows_of(tmp_path) if row["process"] == name]
        assert own == list(range(len(own)))


def test_chosen_columns_come_in_the_order_asked_for(tmp_path):
    write(tmp_path)
    assert read_events(tmp_path, columns=["number", "process"]).read_all().column_names == [
        "number",
        "process",
    ]


def test_files_have_the_types_of_the_contract_for_other_tools(tmp_path):
    write(tmp_path, rows=20, row_group=4)
    plain = pq.read_table(tmp_path / "events")
    assert plain.schema.equals(EVENTS)
    assert plain.to_pylist() == rows_of(tmp_path)
    assert pq.read_schema(tmp_path / "runs.parquet").equals(RUNS)
    assert read_events(tmp_path).schema == READ


def test_a_run_without_events_is_a_run(tmp_path):
    TraceWriter(tmp_path, info()).close()
    assert [run.run for run in read_runs(tmp_path)] == ["r1"]
    assert rows_of(tmp_path) == []


# The same rows are the same bytes


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in visible(directory)}


def test_the_same_rows_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, rows=500, row_group=64, groups_per_file=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert str(tmp_path).encode() not in b"".join(contents(tmp_path / "a").values())


def test_the_order_of_writers_does_not_show(tmp_path):
    for name, order in (("a", ("r1", "r2")), ("b", ("r2", "r1"))):
        for run in order:
            write(tmp_path / name, run)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


# Order


def order_noted(path: Path) -> bool:
    return pq.read_metadata(path).metadata.get(ORDER_KEY) == ORDER


@pytest.mark.parametrize(
    ("rows", "ordered"),
    [
        pytest.param([(0, 0), (1, 1), (2, 2)], True, id="clock grows"),
        pytest.param([(0, 5), (0, 5), (2, 5), (1, 5)], True, id="names break ties: p1 < p10 < p2"),
        pytest.param([(0, 5), (1, 5), (2, 5)], False, id="p2 before p10"),
        pytest.param([(0, 1), (0, 0)], False, id="clock falls"),
        pytest.param([(0, 0), (0, -1)], False, id="no clock"),
        pytest.param([(0, 0), (0, 1), (0, 2), (0, 3), (0, 2)], False, id="clock falls between groups"),
        pytest.param([], True, id="nothing"),
    ],
)
def test_a_file_says_that_it_is_in_order_exactly_when_it_is(tmp_path, rows, ordered):
    with TraceWriter(tmp_path, info(), row_group=4) as writer:
        for number, (process, clock) in enumerate(rows):
            writer.append(process, SEND, process, number, (0,), clock=clock)
    [file] = read_local_trace(tmp_path).files
    assert file.ordered == ordered == order_noted(Path(file.path.removeprefix("file:")))


def test_names_are_dictionaries_on_disk(tmp_path):
    write(tmp_path)
    group = pq.read_metadata(tmp_path / "events" / "00000-r1.parquet").row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    for name in ("run", "process", "kind", "sender", "to.list.element"):
        assert columns[name].has_dictionary_page, name
    assert "DELTA_BINARY_PACKED" in columns["clock"].encodings


def scatter(
    directory: Path, rows: list[dict], files: int, rng: random.Random, ordered: bool, plain: bool
) -> None:
    """Put rows into files as nodes would that each record their own: each file keeps the order, they overlap."""
    shares: list[list[dict]] = [[] for _ in range(files)]
    for row in rows:
        shares[rng.randrange(files)].append(row)
    for serial, share in enumerate(shares):
        if not ordered:
            rng.shuffle(share)
        table = pa.Table.from_pylist(share, schema=EVENTS if plain else READ)
        if ordered:
            table = table.replace_schema_metadata({ORDER_KEY: ORDER})
        pq.write_table(table, directory / "events" / f"{serial:05d}-node.parquet", row_group_size=16)


@pytest.mark.parametrize("plain", [True, False], ids=["strings", "dictionaries"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_files_that_overlap_are_put_in_order(tmp_path, ordered, plain, monkeypatch):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    monkeypatch.setattr("antecede.trace.reader.BATCH", 8)
    for run in ("r1", "r2"):
        with TraceWriter(tmp_path, info(run)) as writer:
            clock = 0
            for number in range(100):
                clock += rng.randrange(2)
                process = rng.randrange(3)
                to = tuple(rng.sample(range(3), 2)) if number % 2 else None
                writer.append(process, SEND, process, number, to, clock=clock)
    rows = sorted(rows_of(tmp_path), key=lambda row: (row["clock"], row["process"], row["index"]))
    for file in event_files(tmp_path):
        file.unlink()
    scatter(tmp_path, rows, 4, rng, ordered, plain)
    for run in ("r1", "r2"):
        assert rows_of(tmp_path, run) == [row for row in rows if row["run"] == run]
    assert read_events(tmp_path, "r1", ["number"]).read_all().column("number").to_pylist() == [
        row["number"] for row in rows if row["run"] == "r1"
    ]


def test_without_clocks_each_process_keeps_its_own_order(tmp_path):
    with TraceWriter(tmp_path, info()) as writer:
        for number in range(9):
            writer.append(2 - number % 3, SEND, 2 - number % 3, number, (0,))
    found = [(row["process"], row["index"]) for row in rows_of(tmp_path)]
    assert found == [(name, index) for name in sorted(NAMES) for index in range(3)]


# Memory, and what is visible when


def test_no_more_than_a_row_group_is_ever_held(tmp_path):
    with TraceWriter(tmp_path, info(), row_group=16, groups_per_file=4) as writer:
        size = len(writer._buffer)
        for step in range(500):
            to = tuple(p for p in range(3) if step >> p & 1)
            writer.append(0, SEND, 0, step, to, clock=step, label=f"label {step}")
            assert writer.rows - writer._flushed == (step + 1) % 16
            assert len(writer._to) <= 8
            assert len(writer._labels) < 16
            assert len(writer._buffer) == size
    groups = [pq.read_metadata(file).num_row_groups for file in event_files(tmp_path)]
    assert groups == [4] * 8


def test_whatever_is_visible_during_a_run_is_whole(tmp_path):
    seen = set()
    with TraceWriter(tmp_path, info(), row_group=4, groups_per_file=2) as writer:
        assert visible(tmp_path) == []
        for step in range(50):
            fill(writer, 1, step)
            files = visible(tmp_path)
            seen.add(len(files))
            assert ("runs.parquet" in files) == bool(files)
            if files:
                assert len(rows_of(tmp_path)) == 8 * (len(files) - 1) == (step + 1) // 8 * 8
    assert seen == {0, 2, 3, 4, 5, 6, 7}
    assert len(rows_of(tmp_path)) == 50
    assert list(tmp_path.rglob("*.part")) == []


def test_closed_early_it_is_a_shorter_trace(tmp_path):
    writer = TraceWriter(tmp_path, info(), row_group=4)
    fill(writer, 6)
    writer.close()
    writer.close()
    write(tmp_path / "whole", rows=20)
    assert rows_of(tmp_path) == rows_of(tmp_path / "whole")[:6]
    with pytest.raises(BadParameter, match="run r1: its writer is closed: open another"):
        fill(writer, 1)


@pytest.mark.parametrize("rows", [0, 3, 8, 50])
def test_an_exception_leaves_nothing_of_the_run(tmp_path, rows):
    def interrupt(directory: Path) -> None:
        with TraceWriter(directory, info("r2"), row_group=4, groups_per_file=2) as writer:
            fill(writer, rows)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    write(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        interrupt(tmp_path)
    assert contents(tmp_path) == before
    assert [run.run for run in read_runs(tmp_path)] == ["r1"]
    assert list(tmp_path.rglob("*.part")) == []


def test_a_killed_writer_leaves_whole_files_and_its_name_can_be_taken_again(tmp_path):
    code = f"""
import os
from antecede.trace import *
writer = TraceWriter({str(tmp_path)!r}, RunInfo(run="r1", protocol="fifo", processes=("p1",)), row_group=4)
for number in range(10):
    writer.append(0, SEND, 0, number, (0,), clock=number)
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 9
    assert visible(tmp_path) == []
    assert len(list(tmp_path.rglob("*.part"))) == 1
    write(tmp_path)
    assert len(rows_of(tmp_path)) == 6
    assert list(tmp_path.rglob("*.part")) == []


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The disk refuses to make a file larger: as when it is full, without filling it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 100, 3000, 4500])
def test_a_disk_that_refuses_is_one_error_and_leaves_nothing(tmp_path, size):
    write(tmp_path)
    before = contents(tmp_path)
    with (
        files_no_larger_than(size),
        pytest.raises(CannotWrite) as caught,
        TraceWriter(tmp_path, info("r2"), row_group=16, groups_per_file=1000) as writer,
    ):
        fill(writer, 1000)
    assert str(caught.value) == f"trace {tmp_path}: cannot write: File too large; nothing of run r2 was left"
    assert contents(tmp_path) == before
    assert list(tmp_path.rglob("*.part")) == []


def test_a_place_that_cannot_be_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match="file/trace: cannot write: Not a directory; nothing of run r1"):
        TraceWriter(tmp_path / "file" / "trace", info())


# Several runs in one trace


def test_runs_share_a_directory_also_at_the_same_time(tmp_path):
    with TraceWriter(tmp_path, info("b"), row_group=4) as one, TraceWriter(tmp_path, info("a/x: y")) as other:
        fill(one, 10)
        fill(other, 5)
    assert [run.run for run in read_runs(tmp_path)] == ["a/x: y", "b"]
    assert [row["run"] for row in rows_of(tmp_path)] == ["a/x: y"] * 5 + ["b"] * 10
    assert len(rows_of(tmp_path, "b")) == 10
    assert visible(tmp_path)[:2] == ["events/00000-a%2Fx%3A%20y.parquet", "events/00000-b.parquet"]


def test_a_name_that_ends_like_another_is_another_run(tmp_path):
    write(tmp_path, "1-r1")
    write(tmp_path, "r1")
    write(tmp_path, "r1", replace=True)
    assert [run.run for run in read_runs(tmp_path)] == ["1-r1", "r1"]
    assert len(rows_of(tmp_path)) == 12


def test_a_run_that_is_there_is_not_overwritten(tmp_path):
    write(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(BadParameter, match="run r1 is there already: take another name"):
        TraceWriter(tmp_path, info())
    assert contents(tmp_path) == before


def test_a_run_that_is_being_written_is_not_overwritten(tmp_path):
    with TraceWriter(tmp_path, info()) as writer:
        fill(writer, 4)
        for replace in (True, False):
            with pytest.raises(BadParameter, match="run r1 is being written by another writer"):
                TraceWriter(tmp_path, info(), replace=replace)
    assert len(rows_of(tmp_path)) == 4


def test_a_run_can_be_replaced(tmp_path):
    write(tmp_path, rows=100, row_group=4, groups_per_file=1)
    write(tmp_path, "r2")
    write(tmp_path, rows=3, replace=True)
    assert visible(tmp_path) == ["events/00000-r1.parquet", "events/00000-r2.parquet", "runs.parquet"]
    assert len(rows_of(tmp_path, "r1")) == 3
