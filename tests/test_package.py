"""What is installed: a wheel of these sources, light to import, typed, with its command."""

import importlib.metadata
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src" / "antecede"
INSTALLED = Path(sysconfig.get_path("purelib")) / "antecede"


def files_below(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def run_python(code: str) -> str:
    """What a fresh interpreter prints, isolated (-I) from this directory and the environment."""
    result = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_tests_run_against_the_installed_wheel():
    import antecede

    assert antecede.__file__ is not None
    assert Path(antecede.__file__).parent == INSTALLED
    direct_url = importlib.metadata.distribution("antecede").read_text("direct_url.json")
    assert direct_url is None or "editable" not in json.loads(direct_url).get("dir_info", {})


def test_the_wheel_holds_exactly_the_sources():
    sources, installed = files_below(SOURCES), files_below(INSTALLED)
    assert sorted(installed) == sorted(sources)
    differing = sorted(name for name in sources if sources[name] != installed[name])
    assert differing == [], "src/ changed since the wheel was built: `make install` builds it again"


def test_the_version_is_the_same_everywhere():
    import antecede

    assert antecede.__version__ == importlib.metadata.version("antecede")


def test_types_are_shipped():
    assert (INSTALLED / "py.typed").is_file()


def test_the_licence_is_shipped():
    metadata = importlib.metadata.metadata("antecede")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]


@pytest.mark.parametrize("module", ["antecede", "antecede.cli"])
def test_import_brings_no_spark_and_starts_no_process(module):
    code = f"""
import sys

def refuse(event, args):
    if event in {{"subprocess.Popen", "os.fork", "os.exec", "os.posix_spawn", "os.system"}}:
        raise AssertionError(f"import {module} starts a process: {{event}} {{args}}")

sys.addaudithook(refuse)
import {module}
print(*sorted({{"pyspark", "py4j"}} & set(sys.modules)))
"""
    assert run_python(code).split() == []


def test_the_command_is_installed():
    [entry] = importlib.metadata.entry_points(group="console_scripts", name="antecede")
    assert entry.value == "antecede.cli:main"
    command = Path(sysconfig.get_path("scripts")) / "antecede"
    result = subprocess.run([command, "--help"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "demo" in result.stdout + result.stderr
