"""What no writer of a trace takes, and what a reader says of a trace that is damaged."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from antecede.errors import BadParameter, BadTrace, UnknownProcess
from antecede.trace import (
    EVENTS,
    RUNS,
    SEND,
    RunInfo,
    TraceWriter,
    events_of,
    read_events,
    read_runs,
)
from tests.test_trace import NAMES, info, rows_of, write

# What the caller may not


@pytest.mark.parametrize(
    ("row", "error", "told"),
    [
        ((3, SEND, 0, 1, (0,)), UnknownProcess, "process 3 is not in the view of 3"),
        ((0, SEND, -1, 1, (0,)), UnknownProcess, "process -1 is not in the view of 3"),
        ((0, SEND, 0, 1, (0, 7)), UnknownProcess, "process 7 is not in the view of 3"),
        ((0, 3, 0, 1), BadParameter, "run r1: kind must be 0 to 2, not 3"),
        (
            (0, SEND, 0, 1 << 63, (0,)),
            BadParameter,
            "run r1: an event has a value that does not fit its column: .",
        ),
        (
            (0, SEND, 0, "one", (0,)),
            BadParameter,
            "run r1: an event has a value that does not fit its column: .",
        ),
    ],
)
def test_a_row_that_cannot_be_is_refused(tmp_path, row, error, told):
    with pytest.raises(error, match=told), TraceWriter(tmp_path / "t", info()) as writer:
        writer.append(*row)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"run": ""}, "a run needs a name, and this one is empty"),
        ({"processes": ()}, "processes must be one or more different names, not"),
        ({"processes": ("a", "a")}, "processes must be one or more different names, not"),
        ({"seed": 1 << 63}, "seed must be an integer of 64 bits, not 9223372036854775808"),
    ],
)
def test_a_run_that_cannot_be_described_is_refused(fields, told):
    with pytest.raises(BadParameter, match=told):
        RunInfo(**{"run": "r1", "protocol": "fifo", "processes": NAMES, **fields})


def test_names_and_places_that_no_file_can_have_are_refused(tmp_path):
    with pytest.raises(BadParameter, match=r"run x{20}\.\.\. has 201 bytes when escaped, and may have 200"):
        TraceWriter(tmp_path / "t", info("x" * 201))
    with pytest.raises(BadParameter, match="directory must be a local path, not s3://bucket/t"):
        read_events("s3://bucket/t")


# What is wrong with a trace is said


def retype_columns(directory: Path, **types: pa.DataType) -> None:
    """Write the event file again with columns of other types; None drops one."""
    path = directory / "events" / "00000-r1.parquet"
    table = pq.read_table(path).cast(EVENTS)
    for name, kind in types.items():
        at = table.column_names.index(name)
        if kind is None:
            table = table.remove_column(at)
        else:
            table = table.set_column(at, name, table.column(name).cast(kind))
    pq.write_table(table, path)


def revalue_column(directory: Path, name: str, value: object) -> None:
    path = directory / "events" / "00000-r1.parquet"
    table = pq.read_table(path).cast(EVENTS)
    column = pa.array([value, *table.column(name).to_pylist()[1:]], EVENTS.field(name).type)
    pq.write_table(table.set_column(table.column_names.index(name), name, column), path)


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def describe_run(directory: Path, **values: object) -> None:
    [row] = pq.read_table(directory / "runs.parquet").to_pylist()
    schema = pa.schema([field.with_nullable(True) for field in RUNS])
    pq.write_table(pa.Table.from_pylist([row | values], schema=schema), directory / "runs.parquet")


EVENT_FILE = "events/00000-r1.parquet"
DAMAGE = [
    (
        "no directory",
        lambda t: t.rename(t.with_name("moved")),
        "t: there is nothing here: a trace is a directory with",
    ),
    ("no runs", lambda t: (t / "runs.parquet").unlink(), "t/runs.parquet: the file is missing"),
    ("no events", lambda t: (t / "events").rename(t / "e"), "t/events: the directory is missing"),
    ("events lost", lambda t: (t / EVENT_FILE).unlink(), "t/events: run r1 is in runs.parquet and has no"),
    (
        "cut short",
        lambda t: truncate(t / EVENT_FILE, 2000),
        f"t/{EVENT_FILE}: the file is not a complete Parquet file",
    ),
    (
        "empty file",
        lambda t: truncate(t / EVENT_FILE, 0),
        f"t/{EVENT_FILE}: the file is not a complete Parquet file",
    ),
    (
        "runs cut short",
        lambda t: truncate(t / "runs.parquet", 99),
        "t/runs.parquet: the file is not a complete",
    ),
    (
        "no column",
        lambda t: retype_columns(t, number=None),
        r"column number \(int64\) is missing; the columns are run, ",
    ),
    (
        "type",
        lambda t: retype_columns(t, index=pa.string()),
        "column index has type string, and must have type int64",
    ),
    (
        "width",
        lambda t: retype_columns(t, clock=pa.int32()),
        "column clock has type int32, and must have type int64",
    ),
    ("list", lambda t: retype_columns(t, to=None), r"column to \(list<string>\) is missing"),
    (
        "kind",
        lambda t: revalue_column(t, "kind", "sent"),
        "an event is of kind sent; the kinds are send, receive, deliver",
    ),
    ("process", lambda t: revalue_column(t, "process", "p7"), "run r1: process p7 is not one of the 3"),
    ("null", lambda t: describe_run(t, protocol=None), "column protocol has 1 nulls, and may have none"),
    ("json", lambda t: describe_run(t, parameters="{"), "runs.parquet: a run needs a name, .*truncated"),
    ("processes", lambda t: describe_run(t, processes=[]), "runs.parquet: a run needs a name, .*not \\[\\]"),
]


@pytest.mark.parametrize(("damage", "told"), [pytest.param(d, told, id=name) for name, d, told in DAMAGE])
def test_what_is_wrong_with_a_trace_is_said(tmp_path, damage, told):
    write(tmp_path / "t")
    damage(tmp_path / "t")
    with pytest.raises(BadTrace, match=told):
        events_of(tmp_path / "t", "r1")


def test_damage_inside_a_file_is_said_of_that_file(tmp_path):
    write(tmp_path, rows=5000, row_group=512)
    path = tmp_path / EVENT_FILE
    data = bytearray(path.read_bytes())
    data[100 : len(data) // 2] = bytes(len(data) // 2 - 100)
    path.write_bytes(bytes(data))
    with pytest.raises(BadTrace, match=f"{EVENT_FILE}: the file is not a complete Parquet file"):
        read_events(tmp_path).read_all()


def test_a_run_that_is_not_there_is_said_with_those_that_are(tmp_path):
    write(tmp_path)
    with pytest.raises(BadTrace, match=r"there is no run called r7; the runs are r1$"):
        read_events(tmp_path, "r7")
    with pytest.raises(BadParameter, match=r"a column must be one of run, process, .*, not 'colour'"):
        read_events(tmp_path, columns=["colour"])


def test_a_file_in_the_place_of_a_trace_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        BadTrace, match=r"this is a file: a trace is a directory with runs\.parquet and events/"
    ):
        read_runs(tmp_path / "file")


def test_strings_and_columns_of_other_tools_are_taken(tmp_path):
    write(tmp_path)
    expected = rows_of(tmp_path)
    retype_columns(tmp_path, label=pa.large_string(), to=pa.large_list(pa.large_string()))
    path = tmp_path / EVENT_FILE
    table = pq.read_table(path)
    pq.write_table(table.append_column("colour", pa.array(["red"] * len(table))), path)
    assert rows_of(tmp_path) == expected


def test_files_in_the_making_are_not_read(tmp_path):
    write(tmp_path)
    (tmp_path / "events" / ".00001-r1.parquet.part").write_bytes(b"PAR1")
    (tmp_path / "events" / "_SUCCESS").write_bytes(b"")
    assert len(rows_of(tmp_path)) == 6
    assert pc.sum(pc.equal(read_events(tmp_path).read_all().column("kind"), "send")).as_py() == 3
