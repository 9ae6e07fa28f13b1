"""Gather the pages of the site in a folder: docs/, pages of the root, results of benchmarks, references made from code.

    python scripts/site_pages.py build/pages

A page of docs/ links to a file of the repository as a reader of the repository would (`../SECURITY.md`). `move_links`
gives that link its place on the site; a link to a file that is no page becomes text. A dead link ends the build.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import posixpath
import re
import shutil
import sys
from pathlib import Path

import typer.main

import antecede
from antecede.cli import COMMANDS, build_app

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")
PICTURE = re.compile(r'<picture>\s*<source[^>]* srcset="(.+?)">\s*<img src="(.+?)" alt="(.+?)">\s*</picture>')
PUBLIC = ("antecede", "antecede.spark", "antecede.testing", "antecede.net", "antecede.errors")
"""The modules that users import from."""


def main(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "docs", out, ignore=shutil.ignore_patterns("theme"))
    pages = {path: path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages |= {path: path.name for path in ROOT.glob("*.md")} | {ROOT / "README.md": "index.md"}
    results = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    pages |= {path: f"benchmarks/{path.name}" for path in results}
    for path, place in pages.items():
        # Examples are run, and a run marks an empty line that is printed. A reader sees the empty line.
        text = path.read_text().replace("<BLANKLINE>\n", "\n")
        write(out / place, move_links(text, path, pages))
    write(out / "benchmarks" / "index.md", list_results(results))
    seen: dict[str, object] = {"__version__": antecede.__version__}
    for module in PUBLIC:
        write(out / "reference" / f"{module}.md", list_names(module, seen))
    write(out / "reference" / "commands.md", list_commands())
    write(out / "reference" / "glossary.md", read_glossary())


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def move_links(text: str, page: Path, pages: dict[Path, str]) -> str:
    """The text of a page with links to files of the repository changed to links to pages of the site."""
    here = posixpath.dirname(pages[page]) or "."

    def move(link: re.Match[str]) -> str:
        target, anchor = link.groups()
        path = Path(posixpath.normpath(page.parent / target))
        if path == ROOT / "benchmarks" / "results":
            place = "benchmarks/index.md"
        elif path in pages:
            place = pages[path]
        elif path.is_relative_to(ROOT / "docs") and path.is_file():
            place = path.relative_to(ROOT / "docs").as_posix()
        elif path.exists():
            return f"] (`{path.relative_to(ROOT).as_posix()}`)"
        else:
            sys.exit(f"{page.relative_to(ROOT)} links to {target}, which does not exist")
        return f"]({posixpath.relpath(place, here)}{anchor or ''})"

    # A picture in two forms: the theme shows the one that fits, also when a reader changes the page to dark.
    text = PICTURE.sub(r"![\3](\2#only-light)\n![\3](\1#only-dark)", text)
    return re.sub(r"\[([^\]]*)\] \((`[^`]*`)\)", r"\1 (\2)", LINK.sub(move, text))


def list_names(module: str, seen: dict[str, object]) -> str:
    """A page for a module: each name of its `__all__` under the module that defines it, but for what is `seen`."""
    found = importlib.import_module(module)
    homes = {
        alias.name: node.module
        for node in ast.walk(ast.parse(inspect.getsource(found)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    title, _, _ = (found.__doc__ or "").partition("\n")
    lines = [f"# {module}", "", title, "", "What is not on these pages may change in any version.", ""]
    # `verify` of one module is not that of another.
    public = {name: getattr(found, name) for name in found.__all__}
    new = [name for name, value in public.items() if seen.get(name) is not value]
    lines += [f"::: {homes.get(name, module)}.{name}\n" for name in new]
    seen.update(public)
    return "\n".join(lines)


def read_glossary() -> str:
    """The words of ARCHITECTURE.md, where they are defined."""
    _, _, after = (ROOT / "ARCHITECTURE.md").read_text().partition("## Glossary\n")
    return "# Glossary\n\n" + after.partition("\n## ")[0]


def list_commands() -> str:
    group = typer.main.get_command(build_app(COMMANDS))
    context = typer.Context(group, info_name="antecede")
    lines = [
        "# Commands",
        "",
        "What each command prints for `--help`.",
        "",
        "```",
        group.get_help(context),
        "```",
    ]
    for name in COMMANDS:
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        text = command.get_help(typer.Context(command, info_name=name, parent=context, terminal_width=80))
        lines += ["", f"## {name}", "", "```", text, "```"]
    return "\n".join(lines)


def list_results(results: list[Path]) -> str:
    lines = ["# Benchmarks", "", "The latest result of each benchmark, with the command that makes it.", ""]
    for path in results:
        title = path.read_text().partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
