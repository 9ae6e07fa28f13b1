"""A Spark for tests, made when the first test asks for it: no test pays for a Java that it does not use.

`spark`       one local session of two cores, shared by all tests of a process
`on_cluster`  runs a script against separate worker processes (`local-cluster`, which the pip package can start)
`on_connect`  runs a script against a Spark Connect server, which is the Java of `spark`
`warm`        runs a command in this process, on that session: for tests of what it says and writes

A process can have one classic session only, so scripts run in other processes, one for each kind. They get `spark`, and
what they print comes back. Where tests run in several processes, all those that need a cluster or a server run in one
of them: each is started once, and so is what they are compared with (`make test` runs with `--dist loadgroup`).
Most of the time goes to Java that meets a kind of plan for the first time: a further Java costs more than its start.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark")

# Tests start many plans and run none for long: compiling them well costs more than it gains. Every Java reads this.
# Java that compiles in haste keeps 48 MB of code, which the plans of all tests overflow: it would compile them again.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
)


INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Java code for each plan takes longer to compile than a few hundred rows to interpret, in each Java."""

AS_USERS = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
"""What Spark does by default, where the session for tests or `connect` does otherwise."""

ELSEWHERE = {"cluster", "on_cluster", "on_connect"}

SMALL = {
    # Each sort and each group begins with so much, filled with zeros: 32 to 64 MB where the heap has gigabytes.
    "spark.buffer.pageSize": "1m",
    # Else the plans of the last 1,000 queries fill half of the heap, and all of it is searched again and again.
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
}
"""Tables are small, and nobody looks at queries that are done."""

LONGEST = (
    "verify_causes",
    "span_messages",
    "stream_cli",
    "stream_killed",
    "tutorials",
    "verify_stream",
    "stream_closed",
    "column_names",
    "ingest",
    "order_vectors",
    "order",
    "order_causes",
    "verify",
)
"""Files that take long, the longest first. The last one of all to be started decides when all is done."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Keep each file in one process, and all that needs a cluster or a server; begin with what takes long."""
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    groups = {}
    for item in here:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        used = {*item.fixturenames, *(value for value in values if isinstance(value, str))}
        groups[item] = "elsewhere" if used & ELSEWHERE else item.path.stem.removeprefix("test_")
        item.add_marker(pytest.mark.xdist_group(groups[item]))
    order = ("elsewhere", *LONGEST)
    place = {item: order.index(groups[item]) if groups[item] in order else len(order) for item in here}
    items[:] = [item for item in items if item not in groups] + sorted(here, key=place.__getitem__)


@pytest.fixture
def warm(spark, capsys):
    """`warm(*arguments)`: the exit code and the output of a command, as of a process."""
    from antecede.cli import run

    def call(*arguments):
        capsys.readouterr()
        code = run([*map(str, arguments)])
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from antecede.spark import connect

    scratch = tmp_path_factory.mktemp("spark")
    session = connect(
        "local[2]",
        log=scratch / "log",
        settings={
            # Two partitions are enough to get an order wrong, and quick.
            "spark.sql.shuffle.partitions": "2",
            # Two processes run tests, each with several Javas: what is enough, not what the machine has.
            "spark.driver.memory": "2g",
            # A heap that has to grow is searched through each time: it begins with room for the plans of many tests.
            "spark.driver.extraJavaOptions": "-Xms1536m -Xmn768m",
            "spark.local.dir": str(scratch),
            **SMALL,
            # Sessions of Connect compile and adapt, as users' Sparks do; the cluster adapts.
            **INTERPRETED,
            # Nor is there anything to learn from a shuffle of a few hundred rows: one plan, not one after each stage.
            "spark.sql.adaptive.enabled": "false",
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            # Any: `on_connect` asks which. One that was free a moment ago may not be by the time that Java has started.
            "spark.connect.grpc.binding.port": "0",
        },
    )
    yield session
    session.stop()


LISTENING = """
import contextlib, io, json, sys, traceback
for line in sys.stdin:
    script, arguments = json.loads(line)
    sys.argv, said = ["script", *arguments], io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(script, {"__name__": "__main__", "spark": spark})
        answer = [True, said.getvalue()]
    except BaseException:
        answer = [False, traceback.format_exc()]
    print(json.dumps(answer), flush=True)
"""


class Driver:
    """A process with a session of its own, which runs one script after the other: sessions are slow to start."""

    def __init__(self, opening, environment):
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(opening) + LISTENING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def __call__(self, script, *arguments):
        """Run a script and give what it prints."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([textwrap.dedent(script), [*map(str, arguments)]]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process with the session has died: see what it said above"
        well, said = json.loads(line)
        assert well, said[-6000:]
        return said

    def close(self):
        """Close its input, at which it ends."""
        if self.process.poll() is not None:
            return
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self):
        """End it at once: over Connect its exit may wait for ever for an answer."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """`cluster(workers, **environment)`: a driver of so many worker processes."""
    from antecede.spark.class_archive import java_options

    # As of here: a driver with a SPARK_HOME of its own would look for an archive of that.
    quick = java_options(small=True)
    drivers = []

    def start(workers, **environment):
        home = tmp_path_factory.mktemp("cluster")
        opening = f"""
            from antecede.spark import connect
            spark = connect({f"local-cluster[{workers},1,1024]"!r}, log={str(home / "log")!r}, settings={{
                "spark.executor.memory": "1g",
                "spark.driver.defaultJavaOptions": {quick!r},
                "spark.executor.defaultJavaOptions": {quick!r},
                "spark.sql.shuffle.partitions": "2",
                "spark.local.dir": {str(home)!r},
                **{INTERPRETED!r},
            }})
            """
        # The workers' directory is made in SPARK_HOME, which otherwise is the installed package.
        (home / "spark").mkdir()
        for part in Path(pyspark.__file__).parent.iterdir():
            (home / "spark" / part.name).symlink_to(part)
        drivers.append(Driver(opening, {"SPARK_HOME": str(home / "spark"), **environment}))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()


@pytest.fixture(scope="session")
def on_cluster(cluster):
    """`on_cluster(script, *arguments)`: `spark` is a session on two worker processes."""
    return cluster(2)


@pytest.fixture(scope="session")
def broker():
    """A producer that is a mock cluster of Kafka, and its address."""
    client = pytest.importorskip("confluent_kafka")
    producer = client.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": "1", "linger.ms": "1"})
    brokers = producer.list_topics(timeout=30).brokers.values()
    yield producer, ",".join(f"{one.host}:{one.port}" for one in brokers)
    producer.flush(30)


@pytest.fixture(scope="session")
def on_connect(spark):
    """`on_connect(script, *arguments)`: `spark` is a session on a Spark Connect server.

    The Java of `spark` is the server: it has compiled what it runs. The client is another process.
    """
    service = getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    opening = f"""
        from antecede.spark import connect
        spark = connect(remote={f"sc://127.0.0.1:{port}"!r}, settings={AS_USERS!r})
        """
    driver = Driver(opening, {})
    yield driver
    driver.kill()
