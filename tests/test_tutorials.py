"""The tutorials that need no Spark do what they say. Those on Spark: tests/spark/test_tutorials.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tutorial import read_commands, run_tutorial

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"


@pytest.mark.skipif(not TUTORIALS.exists(), reason="docs/ is not here")
def test_a_simulation_prints_what_its_page_says(tmp_path):
    assert run_tutorial(TUTORIALS.parent / "simulator.md", tmp_path) == []


@pytest.mark.skipif(not TUTORIALS.exists(), reason="docs/ is not here")
def test_three_services_survive_a_crash_and_a_join(tmp_path):
    assert run_tutorial(TUTORIALS / "services.md", tmp_path) == []


@pytest.mark.skipif(not TUTORIALS.exists(), reason="docs/ is not here")
def test_a_machine_in_a_file_does_what_its_page_says(tmp_path):
    (tmp_path / "examples").symlink_to(TUTORIALS.parent.parent / "examples")
    assert run_tutorial(TUTORIALS / "protocol.md", tmp_path) == []


def test_a_wrong_output_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        '```text title="a.txt"\nsome\n```\n```console\n$ cat a.txt\nother\n$ echo one \\\n> two\none two\n```\n'
    )
    assert run_tutorial(page, tmp_path) == [("cat a.txt", "other\n", "some\n")]
    assert read_commands("$ a\n> b\nc\nd\n$ e\n") == [("a\nb", "c\nd\n"), ("e", "")]
