"""Make the tables of docs/results from their experiments: python -m experiments.tables NAME ... [--write]

For each NAME the runs of experiments/NAME.toml are made, as `antecede sweep` makes them, and experiments/NAME.py turns
the rows into tables: its function `tables(rows)` gives name -> Markdown. They are printed, or with --write put into
docs/results/NAME.md between
    <!-- table: name -->
    <!-- end -->
so that no figure there is typed by hand; `plots(rows)`, if it has one, gives pictures for docs/pictures. A directory
given with --out keeps the results, and what is there already is not run again.
"""

from __future__ import annotations

import argparse
import importlib
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from antecede.errors import AntecedeError
from antecede.sim.experiment import load
from antecede.sim.sweep import Failure, Row, sweep

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs" / "results"
PICTURES = HERE.parent / "docs" / "pictures"
BLOCK = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.tables", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("name", nargs="*", default=names(), help="experiments (default: all)")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/results")
    parser.add_argument("--out", type=Path, help="keep the results in this directory")
    parser.add_argument(
        "--jobs", type=int, default=0, help="how many runs at a time (default: one for each core)"
    )
    asked = parser.parse_args(arguments)
    try:
        for name in asked.name:
            started = time.perf_counter()
            rows = results(name, asked.out, asked.jobs)
            made = module(name).tables(rows)
            write(name, made) if asked.write else show(made)
            if asked.write and hasattr(module(name), "plots"):
                for file, text in module(name).plots(rows).items():
                    (PICTURES / file).write_text(text, encoding="utf-8")
            print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    except AntecedeError as error:
        print(f"experiments: {error}", file=sys.stderr)
        return 2
    return 0


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.toml") if path.with_suffix(".py").exists())


def tables(name: str, out: Path | None = None, jobs: int = 0) -> Mapping[str, str]:
    """The tables of an experiment, by name."""
    made: Mapping[str, str] = module(name).tables(results(name, out, jobs))
    return made


def module(name: str) -> Any:
    return importlib.import_module(f"experiments.{name}")


def results(name: str, out: Path | None = None, jobs: int = 0) -> list[Row]:
    """What the runs of an experiment came to."""
    with tempfile.TemporaryDirectory() as scratch:
        answers = sweep(load(HERE / f"{name}.toml"), Path(out or scratch) / name, jobs=jobs)
    failures = [result for result in answers if isinstance(result, Failure)]
    if failures:
        first = failures[0]
        raise AntecedeError(
            f"{name}: {len(failures)} runs failed: {first.reason}; repeat with: {first.command}"
        )
    return [result for result in answers if isinstance(result, Row)]


def page(name: str) -> Path:
    """Where the tables of an experiment belong: its module may name a page of docs as PAGE."""
    other = getattr(module(name), "PAGE", None)
    return DOCS / f"{name}.md" if other is None else DOCS.parent / str(other)


def show(made: Mapping[str, str]) -> None:
    for title, text in made.items():
        print(f"{title}\n\n{text}\n")


def write(name: str, made: Mapping[str, str]) -> None:
    """Put each table into its place, which has to be there."""
    path = page(name)
    text = path.read_text(encoding="utf-8")
    places = [match[2] for match in BLOCK.finditer(text)]
    if sorted(places) != sorted(made):
        raise AntecedeError(
            f"{path}: it has places for {', '.join(places)}, and the tables are {', '.join(made)}"
        )
    path.write_text(fill_blocks(text, made), encoding="utf-8")


def fill_blocks(text: str, made: Mapping[str, str]) -> str:
    return BLOCK.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", text)


def read_tables(name: str) -> dict[str, str]:
    """The tables as docs/results has them."""
    text = page(name).read_text(encoding="utf-8")
    return {match[2]: match[0][len(match[1]) : -len(match[3])].strip() for match in BLOCK.finditer(text)}


# What tables are made of


def format_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table: first column left, the others right."""
    cells = [list(map(str, header)), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(_pad(row, widths)) + " |" for row in cells]
    rule = (
        "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    )
    return "\n".join([lines[0], rule, *lines[1:]])


def _pad(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.ljust(w) if i == 0 else cell.rjust(w)
        for i, (cell, w) in enumerate(zip(row, widths, strict=True))
    ]


def group_rows(rows: Iterable[Row], key: Callable[[Row], T]) -> dict[T, list[Row]]:
    """Rows that differ in their seed only, say; in order of appearance."""
    found: dict[T, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def spread(values: Iterable[float], digits: int = 2) -> str:
    """The mean over the seeds, and how far they are from it: their standard deviation."""
    values = list(values)
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"


def mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def add_counts(counts: Iterable[Mapping[str, int]]) -> dict[int, int]:
    """Distributions of `measured`, put together."""
    total: dict[int, int] = {}
    for count in counts:
        for value, times in count.items():
            total[int(value)] = total.get(int(value), 0) + times
    return dict(sorted(total.items()))


def average(count: Mapping[int, int]) -> float:
    return sum(value * times for value, times in count.items()) / sum(count.values())


def histogram(columns: Mapping[str, Mapping[int, int]], what: str, last: int) -> str:
    """How many percent have each size, side by side; the last line has all that are larger."""
    rows = []
    for size in range(last + 1):
        shares = []
        for count in columns.values():
            here = sum(t for v, t in count.items() if v == size or (size == last and v > last))
            shares.append(f"{100 * here / sum(count.values()):.1f}")
        rows.append([f"{size} or more" if size == last else str(size), *shares])
    rows.append(["mean", *(f"{average(count):.2f}" for count in columns.values())])
    return format_table([what, *columns], rows)


if __name__ == "__main__":
    sys.exit(main())
