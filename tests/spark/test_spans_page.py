"""The commands of docs/spans.md print what the page says, on the file that it shows."""

import doctest
import shlex
from pathlib import Path

import pytest

from tests.tutorial import BLOCK, OPTIONS, read_commands

PAGE = Path(__file__).parents[2] / "docs" / "spans.md"


@pytest.mark.skipif(not PAGE.exists(), reason="docs/ is not here")
def test_the_page_of_spans_leads_from_a_file_to_a_report(warm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed = 0
    for kind, title, text in BLOCK.findall(PAGE.read_text()):
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
    assert typed == 5
    page = Path("shop.html").read_text()
    assert all(
        word in page for word in ("send ordered", "bill of billing", "b" * 16, "1" * 32, "Stated causality")
    )
