"""Streams that one process runs until it is killed, and that another goes on with: a directory each, with `in`, `out`
and `checkpoint`. All of them run in one process (`run_until_killed`), so a kill costs one Java, and takes each stream
wherever it is just then.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from threading import Thread

ROOT = Path(__file__).parents[2]
COMMITS = 2
"""Micro-batches that each stream has done before the process is killed."""


def run_stamps(spark, home, once):
    return order_by_files(spark, home, once, "matrix")


def run_closed(spark, home, once):
    return order_by_files(spark, home, once, "monitor", by="closed", receiver="p1")


def order_by_files(spark, home, once, protocol, **options):
    from antecede.spark.order.files import Source, order_files
    from antecede.spark.stream.api import Asked

    asked = Asked(protocol=protocol, processes=(home / "names").read_text().split(","))
    source = Source(str(home / "in"), asked, files_per_batch=4 if once else 1, **options)
    return order_files(spark, source, home / "out", home / "checkpoint", once=once, every=0)


def run_causes(spark, home, once, files=1):
    from antecede.spark import order

    own = remember_causes(spark)
    schema = "tenant long, event string, after array<string>, body struct<a: long, b: array<string>>"
    stream = own.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(home / "in"))
    return write(order(stream, id="event", causes="after", partition_by=["tenant"]), home, once)


def run_vectors(spark, home, once):
    from antecede.spark import order

    schema = "__partition string, who string, clock map<string, bigint>, note array<struct<a: bigint>>"
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 4 if once else 1)
    stream = files.parquet(str(home / "in")).withColumnRenamed("__partition", "room")
    return write(order(stream, process="who", vector="clock", partition_by="room", buckets=4), home, once)


def run_kafka(spark, home, once):
    from antecede.spark import order
    from antecede.spark.sources import kafka, take_events

    records = kafka(remember_causes(spark), (home / "servers").read_text(), "chat", max_rows=6)
    return write(order(take_events(records, id="id", causes="after"), id="id", causes="causes"), home, once)


RUN = {
    "kafka": run_kafka,
    "stamps": run_stamps,
    "closed": run_closed,
    "causes": run_causes,
    "vectors": run_vectors,
}


def remember_causes(spark):
    """A session in which streams by causes run, and end when all is done."""
    from antecede.spark.stream.operator import PROVIDER, ROCKSDB

    own = spark.newSession()
    own.conf.set(PROVIDER, ROCKSDB)
    own.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    own.conf.set("spark.sql.shuffle.partitions", "2")
    return own


def write(rows, home, once):
    """Write until all that is there is done, or, unless once, for ever."""
    writer = rows.writeStream.option("checkpointLocation", str(home / "checkpoint"))
    # A stream that has done all there is does not ask for more all the time, while others start.
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="200 milliseconds")
    query = writer.start(str(home / "out"))
    query.awaitTermination()
    return query


def run_until_killed(root, kinds):
    """What the process does that is killed. A stream that fails ends it at once."""
    from antecede.spark import connect
    from tests.spark.conftest import INTERPRETED, SMALL

    settings = {"spark.sql.shuffle.partitions": "2", **INTERPRETED, **SMALL}
    spark = connect("local[2]", log=f"{root}/log", settings=settings)

    def run(kind):
        try:
            RUN[kind](spark, Path(root) / kind, False)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    for kind in kinds:
        Thread(target=run, args=[kind]).start()
        # One starts after the other: Spark gives a Python that plans for a source ten seconds to start.
        while count_commits(Path(root) / kind) < COMMITS:
            time.sleep(0.05)


def kill_streams(root, feeds):
    """Run the streams in a process of their own, and kill it.

    `feeds[kind]` has three calls, and each gives the stream more. The first comes before it starts; the second when
    every stream has done `COMMITS` micro-batches, so that all of them have work to do when the kill comes, whenever
    that is; the third comes after it.
    """
    for give, _, _ in feeds.values():
        give()
    seconds = Random().random()
    print("killed", seconds, "seconds after every stream had done", COMMITS, "micro-batches")
    script = "import sys; from tests.spark.killed_streams import run_until_killed as r; r(sys.argv[1], sys.argv[2:])"
    command = [sys.executable, "-c", script, str(root), *RUN]
    process = subprocess.Popen(command, start_new_session=True, cwd=ROOT)
    try:
        while any(count_commits(root / kind) < COMMITS for kind in feeds):
            assert process.poll() is None, (root / "log").read_text()[-4000:]
            time.sleep(0.1)
        for _, give, _ in feeds.values():
            give()
        time.sleep(seconds)
        assert process.poll() is None, (root / "log").read_text()[-4000:]
    finally:
        # Python and its Java.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for _, _, give in feeds.values():
        give()


def count_commits(home):
    return len(list((home / "checkpoint" / "commits").glob("[0-9]*")))


def give_files(home, ends):
    """Three calls that move the files of `made` to `in`, up to these numbers."""
    (home / "in").mkdir()

    def give(begin, end):
        for at in range(begin, end):
            (home / "made" / f"{at}.parquet").rename(home / "in" / f"{at}.parquet")

    return [
        lambda begin=begin, end=end: give(begin, end) for begin, end in zip((0, *ends), ends, strict=False)
    ]
