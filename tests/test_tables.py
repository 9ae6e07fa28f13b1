"""The tables in docs/results are what the experiments give."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from antecede.errors import AntecedeError
from antecede.sim.experiment import load
from antecede.sim.sweep import Row, perform
from experiments import delta, extra, gateways, reports, scale, separators, sparing, tables, underway


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
    written = cells(tables.read_tables("extra")[name])
    assert header == written[0]
    assert [line for line in written if line[0] in ("matrix", "optimal", "bounded, k = `16`")] == lines


def make_again(name: str, **wanted: object) -> list[Row]:
    """The rows of the runs of an experiment that have these, made now."""
    rows = []
    for run in load(tables.HERE / f"{name}.toml").runs:
        if all(wanted[key] == (run.case if key == "case" else getattr(run.spec, key)) for key in wanted):
            row = perform(run)
            assert isinstance(row, Row), row
            rows.append(row)
    return rows


# What is cheap to make again of each experiment: a change to what its protocols say shows there. Those of `extra`,
# `buffers`, `compared` and `outages` stand above, in test_compared.py and in test_outages.py.
SAMPLES: dict[str, tuple[dict[str, object], Callable[[list[Row]], Mapping[str, str]]]] = {
    "delta": ({"processes": 8, "workload": "groups:size=4,rate=10/s"}, delta.tables),
    "gateways": ({"case": "figure 7.6"}, lambda rows: {"means": gateways._means(rows)}),
    "reports": ({"case": "2", "workload": "groups:size=4,rate=10/s"}, reports.tables),
    "separators": ({"case": "mean delay 5 ms"}, lambda rows: {"open": separators._open(rows)}),
    "sparing": ({"processes": 8, "workload": "client-server:rate=10/s"}, sparing.tables),
    "underway": ({"processes": 8, "workload": "document:rate=10/s"}, underway.tables),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_lines_made_again_stand_in_the_document(name):
    wanted, make = SAMPLES[name]
    made = make(make_again(name, **wanted))
    assert made
    for title, text in made.items():
        header, _, *lines = cells(text)
        written = cells(tables.read_tables(name)[title])
        assert header == written[0]
        assert lines
        assert [line for line in written if line in lines] == lines


def test_the_first_column_of_scale_made_again_stands_in_the_document():
    found = scale._cells(make_again("scale", case="size", processes=64))
    for title, text in scale.count_tables(found).items():
        first = [line[:2] for line in cells(tables.read_tables("scale")[title])]
        # The rule under the headings is as long as the widest cell.
        assert [line for line in cells(text) if set(line[1]) - {"-", ":"}] == [
            line for line in first if set(line[1]) - {"-", ":"}
        ]


@pytest.mark.parametrize("name", tables.names())
def test_every_table_has_its_place_and_is_filled(name):
    written = tables.read_tables(name)
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
