"""The examples in the documents run, and the documents point at things that exist."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(
    r"`((?:matrix|bounded|monitor|buffer|queue|history|topological|separator|forwarder|broadcast|optimal|permit|contexts|sparing|underway)(?:\.\w+)*)`"
)
LINK = re.compile(r"\]\(([^)#:]+)\)")


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
