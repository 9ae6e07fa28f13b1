"""The examples in the documents run, and the documents point at things that exist."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from antecede.cli import COMMANDS, build_app

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(
    r"`((?:matrix|bounded|monitor|buffer|queue|history|histories|topological|separator|forwarder|broadcast|optimal|permit|contexts|sparing|underway)(?:\.\w+)*)`"
)
LINK = re.compile(r"\]\(([^)#:]+)\)")
CALL = re.compile(rf"antecede ({'|'.join(COMMANDS)})\b([^`|\n]*)")
FILE = re.compile(r"`((?:[a-z]\w*/)+\w+\.(?:py|toml))`")


def examples(text: str) -> list[str]:
    return BLOCK.findall(text)


def failures(text: str, name: str) -> int:
    test = doctest.DocTestParser().get_doctest("\n".join(examples(text)), {}, name, name, 0)
    return doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test).failed


def needs_spark(text: str) -> bool:
    """Whether examples start Spark: `tests/spark/test_documents.py` runs them, where one is started."""
    return ">>> spark = connect(" in text


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if not needs_spark(path.read_text())], ids=lambda path: path.name
)
def test_python_examples_print_what_they_say(path: Path) -> None:
    assert failures(path.read_text(), path.name) == 0


def test_the_readme_has_an_example() -> None:
    assert examples((ROOT / "README.md").read_text())


def test_a_wrong_example_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    assert failures("```python\n>>> 1 + 1\n3\n```\n", "wrong") == 1
    assert "Expected" in capsys.readouterr().out


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    missing = [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert missing == []


def test_options_that_a_page_gives_to_a_command_exist() -> None:
    group: Any = typer.main.get_command(build_app(COMMANDS))
    known = {
        name: {option for one in group.commands[name].params for option in (*one.opts, *one.secondary_opts)}
        for name in COMMANDS
    }
    calls = [
        (path.name, name, option)
        for path in DOCUMENTS
        for name, words in CALL.findall(path.read_text().replace("\\\n", " "))
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", words)
    ]
    assert len(calls) > 100
    assert [call for call in calls if call[2] not in {*known[call[1]], "--help"}] == []


def test_files_that_a_page_names_exist() -> None:
    named = {(path.name, file) for path in DOCUMENTS for file in FILE.findall(path.read_text())}
    places = (ROOT, ROOT / "src", ROOT / "src" / "antecede", ROOT / "src" / "antecede" / "spark")
    assert len(named) > 40
    assert [one for one in sorted(named) if not any((place / one[1]).exists() for place in places)] == []


def test_each_rule_is_where_the_index_says() -> None:
    index = (ROOT / "docs" / "protocols.md").read_text().split("## Where each rule is")[1].split("##")[0]
    places = CODE.findall(index)
    assert len(places) > 40
    for place in places:
        module, _, path = place.partition(".")
        found: object = importlib.import_module(f"antecede.protocols.{module}")
        for name in filter(None, path.split(".")):
            assert hasattr(found, name), f"{place}: no {name}"
            found = getattr(found, name)
