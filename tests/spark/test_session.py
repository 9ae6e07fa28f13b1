"""How Spark starts: what is imported, which Java, and the archive of its classes."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antecede.cli.spark_session import SMALL_BYTES, TINY_BYTES, open_work
from antecede.errors import BadParameter
from antecede.spark import class_archive, session
from antecede.spark.class_archive import find_archive, java_options, make_archive, request_archive
from antecede.spark.session import java_version


def python(*words, **environment):
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=True,
    ).stdout


def test_what_a_step_does_not_need_is_not_imported():
    script = """
import sys, types
import antecede.spark.run_tasks
print(sorted({"numba", "pandas", "antecede.sim", "antecede.spark.stream"} & set(sys.modules)))
import antecede.spark.verify.api, antecede.spark.order.api
from antecede import spark
print([name for name in spark.__all__ if isinstance(getattr(spark, name), types.ModuleType)])
try:
    spark.nothing
except AttributeError as error:
    print(error)
"""
    told = ["[]", "[]", "module 'antecede.spark' has no attribute 'nothing'", ""]
    assert python("-c", script) == "\n".join(told)


@pytest.mark.parametrize(
    ("release", "found"),
    [('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.15"\n', 17), ('JAVA_VERSION="1.8.0_402"\n', 8), ("", None)],
)
def test_a_java_tells_its_version_in_a_file(tmp_path, release, found):
    java = make_script(tmp_path / "bin" / "java", "exit 1")
    (tmp_path / "release").write_text(release)
    assert java_version(str(java)) == found


def test_a_java_without_that_file_is_asked(tmp_path):
    java = make_script(tmp_path / "bin" / "java", """echo 'openjdk version "21.0.1" 2023-10-17' >&2""")
    assert java_version(str(java)) == 21


def make_script(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


# The archive: with a Spark and a Java that are scripts, so that every case takes no time


SUBMIT = """
case "$*" in *ArchiveClassesAtExit=*) ;; *) exit 3 ;; esac
archive=$(echo "$*" | sed 's/.*ArchiveClassesAtExit=\\([^ ]*\\).*/\\1/')
echo made >> "$SPARK_HOME/made"
echo classes > "$archive"
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A Spark, a Java and a cache of this test."""
    make_script(tmp_path / "java" / "bin" / "java", "exit 1")
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17"\n')
    make_script(tmp_path / "spark" / "bin" / "spark-submit", SUBMIT)
    (tmp_path / "spark" / "jars").mkdir()
    (tmp_path / "spark" / "jars" / "core.jar").write_text("one")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path


def times_made(home):
    return len((home / "spark" / "made").read_text().split())


def test_an_archive_is_made_once_and_used(home):
    assert find_archive() is None
    assert "SharedArchiveFile" not in java_options(True)
    path = make_archive()
    assert path is not None
    assert path.read_text() == "classes\n"
    assert make_archive() == path == find_archive()
    assert times_made(home) == 1
    assert f"-XX:SharedArchiveFile={path}" in java_options(False).split()
    assert "-XX:TieredStopAtLevel=1" not in java_options(False)
    assert "-XX:TieredStopAtLevel=1" in java_options(True)


@pytest.mark.parametrize("changed", ["spark/jars/core.jar", "java/release"])
def test_an_archive_of_another_build_is_not_used_and_goes(home, changed):
    old = make_archive()
    (home / changed).write_text("another, longer")
    assert find_archive() is None
    new = make_archive()
    assert new is not None
    assert new != old
    assert [path.name for path in new.parent.glob("*.jsa")] == [new.name]


def test_archives_of_others_stay_while_they_are_used(home, monkeypatch):
    used, unused = make_archive(), home / "cache" / "antecede" / "spark-aa-bb.jsa"
    unused.write_text("old")
    month_ago = time.time() - class_archive.UNUSED_S - 1
    os.utime(unused, (month_ago, month_ago))
    (home / "cache" / "antecede" / "making-left").mkdir()
    other = home / "other"
    (home / "spark").rename(other)
    monkeypatch.setenv("SPARK_HOME", str(other))
    new = make_archive()
    assert new is not None
    assert used is not None
    assert {path.name for path in new.parent.iterdir()} == {new.name, used.name, "lock"}


def test_two_processes_make_one_archive(home):
    script = "from antecede.spark.class_archive import make_archive; print(make_archive())"
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in "ab"]
    told = {process.communicate(timeout=120)[0].strip() for process in both}
    assert told == {str(find_archive())}
    assert times_made(home) == 1


def test_a_spark_that_fails_makes_no_archive(home, capfd):
    make_script(home / "spark" / "bin" / "spark-submit", "echo no; echo no >&2; exit 1")
    assert make_archive() is None
    assert [path.name for path in (home / "cache" / "antecede").iterdir()] == ["lock"]
    assert capfd.readouterr() == ("", "")


def test_a_cache_that_cannot_be_written_is_no_error(home, monkeypatch):
    (home / "cache").write_text("a file where a directory should be")
    assert make_archive() is None
    assert find_archive() is None
    request_archive()


def test_without_java_there_is_nothing_to_do(home):
    (home / "java" / "bin" / "java").unlink()
    assert find_archive() is make_archive() is None
    request_archive()


def test_a_request_does_not_wait(home):
    make_script(home / "spark" / "bin" / "spark-submit", f'read line < "{home}/go"\n{SUBMIT}')
    os.mkfifo(home / "go")
    request_archive()
    assert find_archive() is None
    (home / "go").write_text("\n")  # Opens when the one that was asked to make it reads.
    deadline = time.monotonic() + 120
    while find_archive() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert find_archive() is not None


# The real one


def test_java_takes_spark_classes_from_the_archive(tmp_path):
    archive = make_archive()
    assert archive is not None
    assert stat.S_ISREG(archive.stat().st_mode)
    script = f"""
from antecede.spark import connect
log = {{"spark.driver.extraJavaOptions": "-Xlog:class+load=info:file={tmp_path / "classes"}"}}
spark = connect("local[1]", small=True, settings=log)
print(spark.range(3).count())
spark.stop()
"""
    assert python("-c", script) == "3\n"
    lines = Path(tmp_path / "classes").read_text().splitlines()
    spark_own = [line for line in lines if " org.apache.spark." in line and "Lambda" not in line]
    archived = [line for line in spark_own if "shared objects file (top)" in line]
    assert len(archived) > 0.7 * len(spark_own) > 700


def test_little_is_read_by_a_java_that_compiles_quickly_and_very_little_without_compiling(
    tmp_path, monkeypatch
):
    asked = []

    def note(*where, settings, small, log):
        asked.append((settings, small))
        raise BadParameter("spark", "this is all that is asked")

    monkeypatch.setattr(session, "open_session", note)
    log = tmp_path / "log"
    for size in (TINY_BYTES, TINY_BYTES + 1, SMALL_BYTES + 1):
        log.write_bytes(bytes(size))
        with (
            pytest.raises(BadParameter, match="this is all"),
            open_work(None, None, "reading", reads=[str(log)]),
        ):
            pass
    with pytest.raises(BadParameter), open_work("local[2]", None, "reading", reads=[str(log)]):
        pass
    assert asked == [(session.INTERPRETED, True), (None, True), (None, False), (None, False)]


def test_a_file_of_tests_stays_in_one_process(request):
    """What `conftest` asks for. If nobody hears it, each process starts each Java, and nothing else tells."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("tests run in one process, or are not grouped")
    assert request.node.nodeid.endswith("@session")
