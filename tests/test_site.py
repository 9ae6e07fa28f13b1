"""Pages of the site: links between files become links between pages, examples become code, search needs no network."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_links_lead_to_pages_of_the_site():
    pages = load("site_pages")
    places = {
        ROOT / "README.md": "index.md",
        ROOT / "SECURITY.md": "SECURITY.md",
        ROOT / "docs" / "runtime.md": "runtime.md",
    }
    for page, text, moved in [
        ("docs/runtime.md", "see [there](../SECURITY.md#limits)", "see [there](SECURITY.md#limits)"),
        ("docs/runtime.md", "see [home](../README.md)", "see [home](index.md)"),
        ("README.md", "see [nodes](docs/runtime.md)", "see [nodes](runtime.md)"),
        ("README.md", "see [the build](Makefile)", "see the build (`Makefile`)"),
        (
            "README.md",
            '<picture>\n  <source media="dark" srcset="docs/pictures/report-dark.png">\n'
            '  <img src="docs/pictures/report-light.png" alt="A report">\n</picture>',
            "![A report](pictures/report-light.png#only-light)\n![A report](pictures/report-dark.png#only-dark)",
        ),
        ("README.md", "see [all](benchmarks/results)", "see [all](benchmarks/index.md)"),
    ]:
        assert pages.move_links(text, ROOT / page, places) == moved
    with pytest.raises(SystemExit, match=r"README.md links to nowhere.md, which does not exist"):
        pages.move_links("[x](nowhere.md)", ROOT / "README.md", places)


def test_every_public_name_and_every_command_has_its_place():
    pages = load("site_pages")
    seen: dict[str, object] = {}
    references = [pages.list_names(module, seen) for module in pages.PUBLIC]
    assert "::: antecede.spark.order.api.order\n" in references[1]
    # Two functions of one name have two places; one function in two modules has one.
    assert "::: antecede.verification.verify\n" in references[0]
    assert "::: antecede.spark.verify.api.verify\n" in references[1]
    assert sum(text.count(".Node\n") for text in references) == 1
    assert "\n## verify\n" in pages.list_commands()
    assert "| stamp |" in pages.read_glossary()


def test_examples_of_docstrings_become_code():
    fence = load("site_docstrings").fence_examples
    assert fence("Adds.\n\n    >>> add(1,\n    ...     2)\n    3\n\nAnd so on.") == (
        "Adds.\n\n\n```python\n>>> add(1,\n...     2)\n3\n```\n\nAnd so on."
    )
    assert fence("No example.") == "No example."


def test_search_works_without_a_network():
    loaded = [path.read_text() for path in (ROOT / "docs" / "site").rglob("*") if path.is_file()]
    assert not any("http" in text for text in loaded)
    assert "site/worker.js" in (ROOT / "docs" / "site" / "theme" / "main.html").read_text()


def test_every_page_has_one_place_in_the_navigation():
    _, _, navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    named = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(named) == sorted(set(named))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages |= {path.name for path in ROOT.glob("*.md")} - {"README.md"}
    assert pages - set(named) == set()


def test_every_list_begins_after_an_empty_line():
    """GitHub shows a list right after a paragraph; the site shows it as a part of the paragraph."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
    for page in pages:
        text = re.sub(r"(?ms)^```.*?^```$", "```", page.read_text())
        begins = [
            lines
            for lines in re.findall(r"(?m)^(\S.*\n- .*)$", text)
            if not lines.startswith(("- ", "#", "<!--"))
        ]
        assert not begins, f"{page.relative_to(ROOT)}: {begins[0]}"
