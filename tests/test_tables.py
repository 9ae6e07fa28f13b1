"""The tables in docs/results are what the experiments give."""

from __future__ import annotations

import pytest

from antecede.errors import AntecedeError
from antecede.sim.experiment import load
from antecede.sim.sweep import Row, perform
from experiments import extra, tables


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_a_table_made_again_has_the_figures_that_are_in_the_document():
    runs = [
        run
        for run in load(tables.HERE / "extra.toml").runs
        if run.spec.processes == 8
        and run.spec.workload.startswith("chain")
        and (run.spec.protocol in ("matrix", "optimal") or run.spec.parameters == {"k": 16})
    ]
    rows = [row for row in map(perform, runs) if isinstance(row, Row)]
    assert len(rows) == 9
    [(name, made)] = extra.tables(rows).items()
    header, _, *lines = cells(made)
    written = cells(tables.written("extra")[name])
    assert header == written[0]
    assert [line for line in written if line[0] in ("matrix", "optimal", "bounded, k = 16")] == lines


@pytest.mark.parametrize("name", tables.names())
def test_every_table_has_its_place_and_is_filled(name):
    written = tables.written(name)
    assert written
    for table in written.values():
        assert len(table.splitlines()) > 2
    text = tables.page(name).read_text(encoding="utf-8")
    assert f"python -m experiments.tables {name}" in text


def test_a_table_is_put_where_the_document_has_a_place_for_it():
    text = "before\n<!-- table: a -->\nold\n<!-- end -->\nafter <!-- table: b -->\n<!-- end -->\n"
    new = tables.fill_blocks(text, {"a": "| 1 |", "b": "| 2 |"})
    assert (
        new
        == "before\n<!-- table: a -->\n| 1 |\n<!-- end -->\nafter <!-- table: b -->\n| 2 |\n<!-- end -->\n"
    )
    assert tables.fill_blocks(new, {"a": "| 1 |", "b": "| 2 |"}) == new


def test_a_table_without_a_place_is_an_error():
    with pytest.raises(
        AntecedeError, match=r"extra\.md: it has places for .*, and the tables are nothing of the kind"
    ):
        tables.write("extra", {"nothing of the kind": ""})


def test_markdown_lines_up():
    assert tables.format_table(["a", "bb"], [["long", 1]]).splitlines() == [
        "| a    | bb |",
        "|------|---:|",
        "| long |  1 |",
    ]


def test_histograms_say_percent_and_gather_what_is_large():
    text = tables.histogram({"x": tables.add_counts([{"0": 1}, {"5": 2, "0": 1}])}, "size", 2)
    assert cells(text)[2:] == [["0", "50.0"], ["1", "0.0"], ["2 or more", "50.0"], ["mean", "2.50"]]
