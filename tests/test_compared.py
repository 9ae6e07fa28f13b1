"""The tables that compare protocols: their figures are those of the runs, and say what they claim to say."""

from __future__ import annotations

import pytest

from antecede.sim.experiment import load
from antecede.sim.sweep import Row, perform
from experiments import buffers, compared, tables


def rows(name: str, **wanted: object) -> list[Row]:
    """The rows of the runs of an experiment that have these, made now."""
    found = []
    for run in load(tables.HERE / f"{name}.toml").runs:
        if all(wanted[key] == (run.case if key == "case" else getattr(run.spec, key)) for key in wanted):
            row = perform(run)
            assert isinstance(row, Row), row
            found.append(row)
    return found


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_border_made_again_has_the_figures_that_are_in_the_document() -> None:
    network = "exponential:1ms,bandwidth=10Mbit/s"
    _, _, *made = cells(buffers._delay(rows("buffers", case="border", processes=4, network=network)))
    written = cells(tables.read_tables("buffers")["delay"])
    assert len(made) == 4
    assert [line[:3] for line in made] == [line[:3] for line in written if line[0] == made[0][0]]


def test_a_column_made_again_has_the_figures_that_are_in_the_document() -> None:
    made = rows("compared", case="groups", processes=4)
    for what, cell in (("stamps", compared._stamps), ("delay", compared._delay)):
        written = cells(tables.read_tables("compared")[f"groups: {what}"])
        assert cells(compared._grid(compared._cells(made), cell)) == [line[:2] for line in written]
    # The choice leaves out what is slow or orders nothing.
    history, _, small = compared._choices([row for row in made if row.spec.protocol not in compared.PARTIAL])[
        :3
    ]
    assert history.startswith("`history` ")
    assert "`buffer`" not in small


def test_an_output_buffer_waits_as_queueing_theory_says() -> None:
    for network in ("constant:1ms", "exponential:1ms"):
        runs = rows("buffers", case="load", network=network, workload="uniform:rate=100/s", protocol="buffer")
        predicted = float(buffers._predict(network, 0.2))
        assert float(buffers._times(runs[0])) == pytest.approx(predicted, rel=0.1)
    assert buffers._predict("constant:1ms", 1.2) == "grows"


def test_load_is_the_rate_times_a_round_trip() -> None:
    [row] = rows("compared", case="uniform", processes=4, protocol="fifo")
    assert buffers.latency(row) == 10_000_000
    assert buffers.load(row) == pytest.approx(0.2)


def test_bytes_of_order_are_stamps_and_whole_control_packets() -> None:
    [fifo, buffer] = [
        rows("compared", case="uniform", processes=4, protocol=p)[0] for p in ("fifo", "buffer")
    ]
    assert buffers.bytes_a_delivery(fifo) == buffers.bytes_a_delivery(fifo, 28)
    assert buffers.bytes_a_delivery(buffer, 28) - buffers.bytes_a_delivery(buffer) == pytest.approx(28)
