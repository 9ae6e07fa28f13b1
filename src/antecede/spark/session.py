"""A Spark to work on: on this machine by default, on a cluster, or through Spark Connect.

The functions of this package take whatever session the caller has. This one is for the command line, for tests, and for
whoever has none yet.

    connect()                                      this machine, all cores
    connect(master="spark://head:7077")            a cluster, driven from here
    connect(remote="sc://head:15002")              a server that drives it
    connect(small=True)                            this machine, for an input of some megabytes

Every setting below has its reason beside it; `settings` adds to them and wins.

A small job spends its time on starting: Java loads 15,000 classes and compiles what it runs. `small` starts a Java that
compiles quickly and not well, and gives a shuffle one partition. It is a promise about the input, made before the
session starts: a large job runs 2 to 3 times slower like this.
"""

from __future__ import annotations

import atexit
import importlib.resources
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from antecede.errors import BadParameter, NoSpark
from antecede.spark.class_archive import find_java, java_options, spark_home

if TYPE_CHECKING:
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

__all__ = [
    "INTERPRETED", "SparkError", "SparkSession", "archive", "connect", "is_connect", "open_session", "ship",
    "watch_progress",
]  # fmt: skip

SparkError: Final = (PySparkException, Py4JError)
"""What Spark raises, for callers that do not import it: its own errors, and those of Java that it passes on."""

EVERY_SECONDS: Final = 0.2

Note = Callable[[int, int], None]
"""Called with the tasks that are done and the tasks there are."""

JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""

SETTINGS: Final[dict[str, str]] = {
    # Rows cross into Python as Arrow batches; pickled rows are ten times slower.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # Ours is the progress that is shown.
    "spark.ui.showConsoleProgress": "false",
    # Else each column asks Java five things, to name a line of ours in errors: a quarter of Python's own time.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark tells some of its tasks to shorten tracebacks and forgets it for others, and starts Pythons for each kind.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # A page that nobody asked for, and a port that may be taken.
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}

INTERPRETED: Final[dict[str, str]] = {
    # Java code for each stage takes longer to compile than some thousand rows to interpret.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Nor is there anything to learn from a shuffle of so few: one plan, and one job, not one for each stage.
    "spark.sql.adaptive.enabled": "false",
}
"""Settings for a few thousand rows, beside those of `small`."""


def connect(
    master: str | None = None,
    remote: str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
    small: bool = False,
) -> SparkSession:
    """Start a Spark session. `log` is a file for what Spark and its Java would write to standard error."""
    if master is not None and remote is not None:
        raise BadParameter("spark", f"give master or remote, not both ({master}, {remote})")
    settings = settings or {}
    if remote is not None:
        return start(SparkSession.builder.remote(remote), settings, f"the Spark at {remote}")
    master = master or "local[*]"
    need_java()
    # Workers run the Python that runs here: another one has other packages, or none.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("antecede")
    local = on_this_machine(master, small) if master.startswith("local") else {}
    java = {"spark.driver.defaultJavaOptions": java_options(bool(local) and small)}
    own = {**SETTINGS, **java, **local, **settings}
    with nullcontext() if log is None else standard_error_to(log), quick_launch():
        return start(builder, own, f"Spark with master {master}")


@contextmanager
def open_session(
    master: str | None = None, remote: str | None = None, **options: Any
) -> Iterator[SparkSession]:
    """A session, stopped at the end unless it was there before. Workers elsewhere get the package that runs here.

    `options` are those of `connect`.
    """
    before = SparkSession.getActiveSession()
    spark = connect(master, remote, **options)
    try:
        if remote is not None or not (master or "local").startswith("local"):
            ship(spark)
        yield spark
    finally:
        if before is None:
            spark.stop()


def on_this_machine(master: str, small: bool) -> dict[str, str]:
    """Settings for a Spark that is one process."""
    cores = re.fullmatch(r"local\[(\d+).*\]", master)
    threads = int(cores[1]) if cores else os.cpu_count() or 1
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    # Some warnings go by the name of this machine, which may resolve to nothing.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {
        "spark.driver.host": "127.0.0.1",
        # The default of 200 makes small jobs slow: each partition is a task.
        "spark.sql.shuffle.partitions": "1" if small else str(max(2, 2 * threads)),
        # Tasks run in the driver's own Java: its heap is where sorts happen.
        "spark.driver.memory": f"{max(1, min(8, memory_gib // 4))}g",
        # Else a directory of that name appears wherever one works.
        "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), "antecede-warehouse"),
    }


def start(builder: SparkSession.Builder, settings: Mapping[str, str], which: str) -> SparkSession:
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (*SparkError, OSError, RuntimeError) as error:
        raise NoSpark(which, f"does not start: {' '.join(str(error).split())[:300]}") from None


def need_java() -> None:
    """Say what is missing before Spark says it in its own way."""
    java = find_java()
    wanted = f"needs Java {JAVA} or newer"
    advice = (
        "install one (Debian: openjdk-17-jre-headless), set JAVA_HOME, or use a Spark elsewhere with remote"
    )
    if java is None:
        raise NoSpark("Spark", f"{wanted} and there is none: {advice}")
    version = java_version(java)
    if version is None or version < JAVA:
        found = version or "one that does not tell its version"
        raise NoSpark("Spark", f"{wanted} and has {found} ({java}): {advice}")


def java_version(java: str) -> int | None:
    """The major version of a Java: what its `release` file says, or else what it says itself, which takes a while."""
    try:
        release = os.path.join(os.path.dirname(os.path.realpath(java)), "..", "release")
        with open(release, encoding="utf-8") as file:
            told = file.read()
    except OSError:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)', told)
    return int(found[1]) if found else None


@contextmanager
def quick_launch() -> Iterator[None]:
    """Spark's scripts ask a Python where Spark is, and a Java for the command that starts the other one."""
    own = {"SPARK_HOME": str(spark_home()), "SPARK_LAUNCHER_OPTS": "-Xshare:auto -XX:TieredStopAtLevel=1"}
    given = {name: value for name, value in own.items() if name not in os.environ}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)


@contextmanager
def standard_error_to(path: str | os.PathLike[str]) -> Iterator[None]:
    """Java inherits standard error when it starts, and keeps it."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


# The package, for workers that do not have it


def ship(spark: SparkSession) -> None:
    """Send this package to every worker of the session; it goes before one that is installed there.

    Its dependencies are too large to send with every session: docs/cluster.md says how workers get those.
    """
    # Workers fetch it when they start, which may be any time as long as this process lives.
    directory = tempfile.mkdtemp(prefix="antecede-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    spark.addArtifacts(str(archive(directory)), pyfile=True)


def archive(directory: str | os.PathLike[str]) -> Path:
    """The package as a zip file, as `--py-files` takes it.

    >>> import tempfile, zipfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     names = zipfile.ZipFile(archive(directory)).namelist()
    >>> "antecede/trace/schema.py" in names
    True
    """
    path = Path(directory) / "antecede.zip"
    with (
        importlib.resources.as_file(importlib.resources.files("antecede")) as root,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file,
    ):
        for source in sorted(root.rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                file.write(source, Path("antecede") / source.relative_to(root))
    return path


# How far Spark's jobs are. A classic session is asked several times a second, by a thread; a Spark Connect server tells
# by itself. Both speak of tasks: how many the jobs under way have in all, and how many are done.


@contextmanager
def watch_progress(spark: SparkSession, note: Note) -> Iterator[None]:
    """Within this, `note` hears of the progress of the session's jobs."""
    if is_connect(spark):
        with hear_server(spark, note):
            yield
    else:
        with poll_tracker(spark, note):
            yield


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def hear_server(spark: SparkSession, note: Note) -> Iterator[None]:
    def handler(
        stages: Iterable[StageInfo] | None, inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        known = list(stages or ())
        if known:
            note(sum(stage.num_completed_tasks for stage in known), sum(stage.num_tasks for stage in known))

    told = cast("ProgressHandler", handler)
    spark.registerProgressHandler(told)
    try:
        yield
    finally:
        spark.removeProgressHandler(told)


@contextmanager
def poll_tracker(spark: SparkSession, note: Note) -> Iterator[None]:
    tracker = spark.sparkContext.statusTracker()
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(EVERY_SECONDS):
            jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            known = [stage for stage in stages if stage]
            if known:
                note(sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))

    thread = threading.Thread(target=ask, name="antecede-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
