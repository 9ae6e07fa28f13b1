"""A trace as DataFrames: read from files, checked before a row is read, on every kind of Spark."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antecede import storage
from antecede.errors import BadParameter, BadTrace, CannotWrite
from antecede.trace import DELIVER, EVENTS, RUNS, SEND, RunInfo, TraceWriter

NAMES = ("ann", "bob")


@pytest.fixture
def directory(tmp_path):
    """A trace of two runs, one with a name that no file system likes."""
    for run in ("a/[1] {x}*", "second"):
        with TraceWriter(tmp_path / "trace", RunInfo(run=run, protocol="fifo", processes=NAMES)) as writer:
            for number in range(1, 6):
                writer.append(0, SEND, 0, number, (1,), clock=2 * number)
                writer.append(1, DELIVER, 0, number, clock=2 * number + 1)
    return tmp_path / "trace"


def test_a_trace_is_read_with_its_files(spark, directory):
    from antecede.spark import SPARK_EVENTS, Trace

    trace = Trace.read(spark, directory)
    assert trace.events.schema.names == SPARK_EVENTS.names
    assert trace.events.count() == 20
    assert {row.run for row in trace.runs.collect()} == {"a/[1] {x}*", "second"}
    assert trace.files is not None
    assert [(file.run, file.ordered, file.rows) for file in trace.files] == [
        ("a/[1] {x}*", True, 10),
        ("second", True, 10),
    ]
    assert trace.files[0].groups[0].clocks == (2, 11)


def test_a_directory_of_results_stands_for_its_trace(spark, directory):
    from antecede.spark import Trace

    assert Trace.read(spark, directory.parent).path == f"file:{directory}"


def test_what_a_table_tells_of_its_runs(spark, directory):
    from antecede.spark import Trace

    trace = Trace.of(Trace.read(spark, directory).events)
    assert trace.files is None
    assert sorted((row.run, row.protocol, tuple(row.processes)) for row in trace.runs.collect()) == [
        ("a/[1] {x}*", "unknown", NAMES),
        ("second", "unknown", NAMES),
    ]


def test_events_are_one_path_of_a_plan_however_many_files_they_are(spark, directory, capsys):
    from antecede.spark import Trace

    trace = Trace.read(spark, directory)
    trace.events.explain("formatted")
    assert "InMemoryFileIndex" in (said := capsys.readouterr().out)
    assert f"{directory}/events]" in said
    assert len(trace.events.inputFiles()) == 2


def test_what_a_table_tells_of_its_runs_is_read_once(spark, directory, tmp_path):
    from antecede.spark import SPARK_EVENTS, Trace
    from antecede.spark.verify.api import verify

    note = tmp_path / "read"

    def noted(batches):
        for batch in batches:
            with note.open("a") as file:
                file.write("x")
            yield batch

    events = Trace.read(spark, directory).events.coalesce(1).mapInArrow(noted, SPARK_EVENTS)
    trace = Trace.of(events)
    assert trace.known_runs.num_rows == 2
    once = len(note.read_text())
    assert trace.known_runs.num_rows == 2
    assert len(note.read_text()) == once
    verify(trace).release()
    # Sizes, and the rows that are packed.
    assert len(note.read_text()) <= 3 * once


def spoil_nothing(directory):
    for file in (directory / "events").iterdir():
        file.unlink()


def spoil_truncated(directory):
    [first, *_] = sorted((directory / "events").iterdir())
    first.write_bytes(first.read_bytes()[:-7])


def spoil_column(directory):
    table = pq.read_table(directory / "events")
    pq.write_table(table.drop_columns(["number"]), directory / "events" / "zz.parquet")


def spoil_type(directory):
    table = pq.read_table(directory / "events")
    text = table.column("number").cast(pa.string())
    table = table.set_column(EVENTS.get_field_index("number"), "number", text)
    pq.write_table(table, directory / "events" / "zz.parquet")


def spoil_namesakes(directory):
    table = pq.read_table(directory / "runs.parquet", schema=RUNS)
    pq.write_table(pa.concat_tables([table, table]), directory / "runs.parquet")


def spoil_runs(directory):
    (directory / "runs.parquet").unlink()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_nothing, r"trace/events: there are no Parquet files"),
        (spoil_truncated, r"00000-a%2F.*\.parquet: the file is not a complete Parquet file"),
        (spoil_column, r"zz\.parquet: column number \(int64\) is missing; the columns are "),
        (spoil_type, r"zz\.parquet: column number has type string, and must have type int64"),
        (spoil_namesakes, r"runs\.parquet: 2 runs are called .*; each needs a name of its own"),
        (spoil_runs, r"trace: there is no trace here: a trace is a directory with runs\.parquet"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(spark, directory, spoil, told):
    from antecede.spark import Trace

    spoil(directory)
    with pytest.raises(BadTrace, match=told):
        Trace.read(spark, directory)


def test_a_file_still_being_written_is_not_read(spark, directory):
    from antecede.spark import Trace

    (directory / "events" / ".00001-second.parquet.part").write_bytes(b"PAR1")
    assert Trace.read(spark, directory).events.count() == 20


def test_a_table_of_other_columns_is_refused(spark, directory):
    from antecede.spark import Trace

    events = Trace.read(spark, directory).events
    with pytest.raises(BadTrace, match=r"column kind is missing; the columns are "):
        Trace.of(events.drop("kind"))
    with pytest.raises(BadTrace, match="column clock has type string, and must have type bigint"):
        Trace.of(events.withColumn("clock", events["clock"].cast("string")))


def test_a_table_is_written_whole_or_not_at_all(spark, tmp_path):
    from antecede.storage import whole

    def write(table, path, *, replace=False):
        with whole(path, replace=replace) as aside:
            table.write.parquet(aside)

    out = tmp_path / "new" / "table"
    write(spark.range(3), out)
    assert spark.read.parquet(str(out)).count() == 3
    with pytest.raises(BadParameter, match="is there already"):
        write(spark.range(4), out)
    write(spark.range(4), out, replace=True)
    assert spark.read.parquet(str(out)).count() == 4
    with pytest.raises(ZeroDivisionError), whole(out, replace=True) as aside:
        spark.range(5).write.parquet(aside + str(1 / 0))
    assert spark.read.parquet(str(out)).count() == 4
    assert [path.name for path in out.parent.iterdir()] == ["table"]


READ = """
import sys
from antecede.spark import Trace
trace = Trace.read(spark, sys.argv[1])
print(trace.events.count(), len(trace.files))
"""


def test_a_trace_is_read_on_a_cluster(on_cluster, directory):
    assert on_cluster(READ, directory) == "20 2\n"


def test_a_trace_is_read_through_connect(on_connect, directory):
    assert on_connect(READ, directory) == "20 2\n"


def test_a_file_is_put_whole_or_not_at_all(tmp_path):
    target = tmp_path / "a page.html"
    storage.put(target, b"one")
    storage.put(f"file://{tmp_path}/a page.html", b"two")
    assert target.read_bytes() == b"two"
    with pytest.raises(CannotWrite, match="unchanged"):
        storage.put(tmp_path / "none" / "page.html", b"three")
    target.unlink()
    target.mkdir()
    with pytest.raises(CannotWrite):
        storage.put(target, b"four")
    assert [path.name for path in tmp_path.iterdir()] == ["a page.html"]
