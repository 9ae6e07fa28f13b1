"""Spark's classes, loaded and checked once, so that the next Java that runs Spark starts in half the time.

Java can write the classes that it loaded into an archive when it ends, and map that archive into memory when it starts
(class-data sharing, JEP 350). An archive belongs to one build of Java and to one class path: its name says which, and
Java checks both again. Nothing needs it: without one, or with one that does not fit, Java starts as always, and says
nothing.

`find_archive` gives the archive for the Spark of this process, if there is one. `make_archive` runs Spark once for
nothing else and takes half a minute; `request_archive` does so in the background, for commands that found none. Two
processes that make one at a time do not disturb each other: one of them does it, in a place of its own, and renames the
result. An archive of the same Java and Spark in another build is removed, and so is one that nobody used for a month.

    python -m antecede.spark.class_archive       make it now, and say where it is
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

__all__ = ["cache_directory", "find_archive", "find_java", "java_options", "make_archive", "request_archive"]

UNUSED_S: Final = 30 * 24 * 3600
ROOM: Final = "-XX:MetaspaceSize=256m"
"""Spark's classes need so much. Java begins with 21 MB, and searches the whole heap each time before it takes more."""
QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Java warns of an archive that does not fit, on standard output. It is no fault."""
SMALL: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=240m")
"""For jobs of seconds: they end before code that was compiled with more care would pay.

With one compiler Java keeps 48 MB for code, of which one order takes 22; once they are full it compiles no more. 240 MB
are what it keeps otherwise: addresses, not memory.
"""


def java_options(small: bool) -> str:
    """Options for the Java of a driver. `small` makes small jobs fast and large ones slow: Spark's sort takes 2.7x."""
    options = ["-XX:+IgnoreUnrecognizedVMOptions", ROOM, *(SMALL if small else ())]
    archive = find_archive()
    if archive is not None:
        options += ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}", *QUIET]
    return " ".join(options)


def find_java() -> str | None:
    """The Java that Spark will start."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    return java if java and os.access(java, os.X_OK) else None


def cache_directory() -> Path:
    """Where archives are."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "antecede"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antecede"


def find_archive() -> Path | None:
    """The archive for this Java and this Spark, if it was made. What is used is not removed."""
    path = archive_path()
    try:
        if path is None or " " in str(path):  # Spark splits options at blanks.
            return None
        os.utime(path)
    except OSError:
        return None
    return path


def archive_path() -> Path | None:
    """Where the archive for this Java and this Spark belongs."""
    java = find_java()
    if java is None:
        return None
    home = Path(java).resolve().parent.parent
    jars = spark_home() / "jars"
    try:
        # What Java itself compares: its own build, and the time and size of each file of the class path, in order.
        builds = (home / name for name in ("release", "lib/server/libjvm.so", "lib/server/libjvm.dylib"))
        files = [path for path in builds if path.exists()] + [Path(entry) for entry in os.scandir(jars)]
        found = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        directory = cache_directory()
    except (OSError, RuntimeError):  # No Java as we know it, or no home directory.
        return None
    place, build = digest(home, jars), digest(found)
    return directory / f"spark-{place}-{build}.jsa"


def spark_home() -> Path:
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


# Making one


def request_archive() -> None:
    """Make the archive in the background, unless there is one or someone does it already. Never fails, says nothing."""
    path = archive_path()
    if path is None or path.exists():
        return
    # A shell starts it and ends: it is nobody's child then, and nobody has to wait for it.
    command = '"$0" -m antecede.spark.class_archive --gently </dev/null >/dev/null 2>&1 &'
    with suppress(OSError):
        subprocess.run(["/bin/sh", "-c", command, sys.executable], start_new_session=True, check=False)


def make_archive() -> Path | None:
    """The archive for this Java and this Spark, made unless it is there. None if it cannot be made."""
    path = archive_path()
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The lock ends with its process, however that ends.
        with open(path.parent / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=path.parent, prefix="making-") as scratch:
                    os.replace(train(Path(scratch)), path)
                remove_stale(path)
    except (OSError, subprocess.CalledProcessError):
        return None
    return path


def train(scratch: Path) -> Path:
    """Run what the steps of the pipeline run, on a few rows, in a Java that archives its classes when it ends."""
    archive, script = scratch / "archive.jsa", scratch / "train.py"
    script.write_text("from antecede.spark.class_archive import run_training\nrun_training()\n")
    settings = {
        "spark.driver.defaultJavaOptions": " ".join((*SMALL, f"-XX:ArchiveClassesAtExit={archive}", *QUIET)),
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": scratch,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]"]
    command += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    subprocess.run(
        [*command, str(script), str(scratch)],
        env=environment,
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    return archive


def run_training() -> None:
    """In the training's driver."""
    from pyspark.sql import SparkSession, Window
    from pyspark.sql import functions as F

    spark = SparkSession.builder.getOrCreate()
    place = sys.argv[1]
    spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").toArrow()
    rows = spark.range(64).select("id", F.col("id").cast("string").alias("name"), F.array("id").alias("to"))
    rows.write.parquet(f"{place}/rows")
    rows.write.json(f"{place}/json")
    read = spark.read.parquet(f"{place}/rows").withColumn("key", F.col("id") % 4)
    known = F.broadcast(spark.createDataFrame(rows.limit(4).toArrow()))
    grouped = read.groupBy("key").agg(F.count("*").alias("n"), F.max("id"), F.percentile_approx("id", 0.5))
    numbered = read.withColumn("at", F.row_number().over(Window.partitionBy("key").orderBy("id")))
    joined = (
        numbered.join(known, "name", "left").join(grouped, "key").select("key", "at", F.explode(read["to"]))
    )
    joined.repartition(2, "key").sortWithinPartitions("at").mapInArrow(
        lambda batches: batches, joined.schema
    ).persist()
    joined.orderBy("key", "at").write.parquet(f"{place}/joined")
    spark.read.schema("id long, name string").json(f"{place}/json").toArrow()
    spark.read.format("binaryFile").load(f"{place}/json").select("path", "content").collect()
    spark.stop()


def remove_stale(path: Path) -> None:
    """Remove archives of the same Java and Spark as they were, and what was not used for long or was not finished."""
    _, place, _ = path.name.split("-")
    for other in path.parent.iterdir():
        with suppress(OSError):
            if other.name.startswith("making-"):
                shutil.rmtree(other)  # Whoever made it is gone: we have the lock.
            elif other.suffix == ".jsa" and other != path:
                old = time.time() - other.stat().st_mtime > UNUSED_S
                if old or other.name.startswith(f"spark-{place}-"):
                    other.unlink()


if __name__ == "__main__":
    if "--gently" in sys.argv:
        os.nice(10)
    made = make_archive()
    sys.exit(0 if made and sys.stdout.write(f"{made}\n") else 1)
