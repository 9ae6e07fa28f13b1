"""Tasks with payloads: one each, answers in order, errors as what they were; on this machine, a cluster and Connect."""

import gzip
import inspect
import os
import pickle
import signal
import threading
import time

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from antecede import errors
from antecede.cli.spark_session import keep_log
from antecede.errors import AntecedeError, BadParameter, BadRun, BadTrace
from antecede.spark.errors import (
    decode_error,
    encode_error,
    errors_marked,
    find_error,
    mark_errors,
    raise_task_errors,
)
from antecede.spark.run_tasks import INSIDE_BYTES, plan_tasks, run_tasks

LARGE = INSIDE_BYTES // 2
"""Three of them travel as a broadcast table."""

FACTS = {
    errors.UnknownProcess: ("x", ("a", "b")),
    errors.NoDestination: ("a",),
    errors.CannotWrite: ("a/b", "no room", "nothing was left there"),
    errors.Closed: ("a", "was stopped"),
    errors.NotEligible: ("a", (1, 2), "it was not offered"),
    errors.BadStamp: ("a", "b", "its vector has one entry"),
    errors.NotDrained: ("ann", {"bob": 2}),
    errors.WireError: ("it is garbage", 7),
}
"""The facts of the errors that take more than sentences: a place and a reason, or a reason alone."""


def leaves(kind):
    below = kind.__subclasses__()
    return [leaf for sub in below for leaf in leaves(sub)] if below else [kind]


# One that carries an exception is no data: a node fails with it, never a task.
DATA = [
    kind
    for kind in leaves(AntecedeError)
    if kind.__module__ == "antecede.errors" and "cause" not in inspect.signature(kind).parameters
]


@pytest.mark.parametrize("kind", DATA)
def test_every_error_of_ours_keeps_its_facts(kind):
    many = len(inspect.signature(kind).parameters)
    error = kind(*FACTS.get(kind, ("a.parquet,\n ü", 'found "x": 1}', "expected 7, not 8", "more")[:many]))
    text = encode_error(error)
    assert "\n" not in text
    again = decode_error(text)
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    names = list(inspect.signature(kind).parameters)
    assert [getattr(again, name) for name in names] == [getattr(error, name) for name in names]


def test_an_error_is_found_by_its_mark_and_by_nothing_else():
    error = BadTrace("a.parquet", "the name has a {")
    with pytest.raises(BadTrace, match="antecede-error") as marked, errors_marked(), errors_marked():
        raise error
    found = find_error(PySparkException(f"Job aborted.\n{marked.value}\n\tat java.lang.Thread.run"))
    assert isinstance(found, BadTrace)
    assert vars(found) == vars(error)
    assert str(found) == "a.parquet: the name has a {"
    assert find_error(PySparkException("antecede.errors.BadTrace: a: it has no clock")) is None
    with pytest.raises(ValueError, match=r"^a bug$"), errors_marked():
        raise ValueError("a bug")


def test_each_payload_has_a_task_of_its_own_and_answers_come_in_order(spark):
    def where(payload):
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return payload, context.partitionId()

    payloads = [("a", 1), {"b": 2}, None, "d", 5]
    assert run_tasks(spark, payloads, where) == [(payload, i) for i, payload in enumerate(payloads)]
    assert run_tasks(spark, [], where) == []


def test_large_payloads_are_not_sent_to_every_task(spark):
    payloads = [bytes([i]) * LARGE for i in range(3)]
    assert run_tasks(spark, payloads, lambda payload: (payload[0], len(payload))) == [
        (i, LARGE) for i in range(3)
    ]
    table = plan_tasks(spark, payloads, lambda payload: iter(()), "a int")
    assert len(pickle.dumps(payloads)) > INSIDE_BYTES
    assert table.rdd.getNumPartitions() == 3
    assert table.count() == 0


def test_the_error_of_the_first_payload_is_raised(spark):
    def fail(number):
        if number in (1, 3):
            raise BadParameter("task", f"number must not be {number}")
        return number

    with pytest.raises(BadParameter) as caught:
        run_tasks(spark, range(5), fail)
    assert caught.value.reason == "number must not be 1"


def test_a_bug_in_a_task_stays_a_bug(spark):
    def divide(number):
        return 1 // number

    with pytest.raises(PySparkException, match="ZeroDivisionError"), raise_task_errors():
        run_tasks(spark, [0], divide)


def test_a_table_of_tasks_is_read_when_it_is_asked_for(spark, tmp_path):
    def note(path):
        with open(path, "x"):
            pass
        yield pa.RecordBatch.from_pydict({"path": [path]})

    paths = [str(tmp_path / name) for name in "ab"]
    table = plan_tasks(spark, paths, note, "path string")
    assert list(tmp_path.iterdir()) == []
    assert sorted(row["path"] for row in table.collect()) == paths
    assert sorted(map(str, tmp_path.iterdir())) == paths


def test_an_error_in_a_table_is_raised_as_itself(spark):
    def read(place):
        yield pa.RecordBatch.from_pydict({"a": [1]})
        raise BadRun(place, "has a send without a number")

    table = plan_tasks(spark, ["run r"], read, "a long")
    with pytest.raises(BadRun) as caught, raise_task_errors():
        table.collect()
    assert (caught.value.place, caught.value.reason) == ("run r", "has a send without a number")
    with pytest.raises(PySparkException, match="run r: has a send without a number"):
        table.collect()


def test_an_error_leaves_a_stream(spark, tmp_path):
    def refuse(batches):
        for _ in batches:
            raise BadTrace("b.parquet", "it has no clock")
        yield from ()

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = rows.mapInArrow(mark_errors(refuse), "a int").writeStream.format("noop")
    started = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    with pytest.raises(BadTrace, match=r"^b\.parquet: it has no clock$"), raise_task_errors():
        started.awaitTermination()


def test_a_damaged_file_that_spark_reads_is_named(spark, tmp_path):
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    table = spark.read.schema("a int").parquet(str(tmp_path))
    for act in (table.collect, table.toArrow, table.sort("a").count):
        with pytest.raises(BadTrace, match=r"torn\.parquet: Spark cannot read it"), raise_task_errors():
            act()


ELSEWHERE = """
import pyarrow as pa
from antecede.errors import BadRun, BadTrace
from antecede.spark.errors import raise_task_errors
from antecede.spark.run_tasks import plan_tasks, run_tasks

def size(payload):
    if payload == b"bad":
        raise BadTrace("a.parquet", "it has no clock")
    return len(payload)

def rows(payload):
    if not payload:
        raise BadRun("run r", "nothing " * 1000)
    yield pa.RecordBatch.from_pydict({"n": [payload]})

print(run_tasks(spark, [b"x" * n for n in (1, 2_000_000, 2_000_000, 2_000_000)], size))
print(run_tasks(spark, [b"x" * n for n in range(5)], size))
print(sorted(row["n"] for row in plan_tasks(spark, [1, 2, 3], rows, "n bigint").collect()))
try:
    run_tasks(spark, [b"", b"bad"], size)
except BadTrace as error:
    print(error)
try:
    with raise_task_errors():
        plan_tasks(spark, [1, 0], rows, "n bigint").collect()
except BadRun as error:
    print(error.place, len(error.reason))
"""
TOLD = """\
[1, 2000000, 2000000, 2000000]
[0, 1, 2, 3, 4]
[1, 2, 3]
a.parquet: it has no clock
run r 8000
"""


def test_the_same_through_spark_connect(on_connect):
    assert on_connect(ELSEWHERE) == TOLD


def test_the_same_on_a_cluster(on_cluster):
    assert on_cluster(ELSEWHERE) == TOLD


def test_ctrl_c_is_ctrl_c_wherever_a_command_waits_for_a_table(spark):
    """`toArrow` waits for the job that the signal ends, and raises its error."""

    def work_for_long(batches):
        for batch in batches:
            time.sleep(600)
            yield batch

    def interrupt():
        while not spark.sparkContext.statusTracker().getActiveJobsIds():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=interrupt)
    pressing.start()
    with pytest.raises(KeyboardInterrupt), keep_log():
        spark.range(2).mapInArrow(work_for_long, "id long").toArrow()
    pressing.join()


def test_an_error_of_a_library_that_ctrl_c_interrupted_is_ctrl_c():
    """PySpark closes a socket that it has not opened yet."""

    def close_unopened():
        try:
            raise KeyboardInterrupt
        finally:
            raise UnboundLocalError("sockfile")

    with pytest.raises(KeyboardInterrupt), keep_log():
        close_unopened()


def test_a_damaged_file_is_called_what_its_name_says(spark, tmp_path):
    path = tmp_path / "events.csv.gz"
    path.write_bytes(gzip.compress(b"id,parent\n" + b"a,b\n" * 100_000)[:-100])
    with (
        pytest.raises(BadTrace, match=r"events\.csv\.gz: .*it is not a complete CSV file"),
        raise_task_errors(),
    ):
        spark.read.option("header", True).csv(str(path)).collect()
