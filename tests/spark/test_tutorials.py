"""The tutorials on Spark, and the README, do what they say."""

from __future__ import annotations

import doctest
import json
import shlex
from pathlib import Path

import pytest

from tests.tutorial import BLOCK, OPTIONS, read_commands, run_tutorial

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="docs/ is not here")
@pytest.mark.parametrize(
    ("page", "commands"), [("docs/tutorials/spans.md", 5), ("docs/verification.md", 4), ("README.md", 6)]
)
def test_the_commands_of_a_page_print_what_it_says(page, commands, warm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed = 0
    for kind, title, text in BLOCK.findall((ROOT / page).read_text()):
        if title:
            Path(title).write_text(text)
        elif kind == "console":
            for command, expected in read_commands(text):
                program, *words = shlex.split(command)
                assert program == "antecede"
                ended = warm(*words)
                found = ended.stdout + ended.stderr
                assert doctest.OutputChecker().check_output(expected, found, OPTIONS), (command, found)
                typed += 1
    assert typed == commands
    if page.endswith("spans.md"):
        report = Path("shop.html").read_text()
        assert all(
            word in report
            for word in ("send ordered", "bill of billing", "b" * 16, "1" * 32, "Stated causality")
        )


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="docs/ is not here")
def test_a_stream_that_is_killed_delivers_each_event_once(warm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_tutorial(ROOT / "docs" / "tutorials" / "stream.md", tmp_path, warm) == []


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="docs/ is not here")
@pytest.mark.parametrize("name", ["spans", "stream"])
def test_the_cells_of_a_notebook_print_what_it_shows(name, spark, capsys):
    space: dict[str, object] = {}
    cells = json.loads((ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text())["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), name, "exec"), space)
            shown = "".join(line for output in cell["outputs"] for line in output["text"])
            assert capsys.readouterr().out == shown
