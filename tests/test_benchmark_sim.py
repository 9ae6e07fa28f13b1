"""The benchmark of the simulator runs, and its peers deliver what ours delivers. No time is judged."""

import pytest

from benchmarks.sim import Case, cases, long_run, long_table, main, speed_table


@pytest.mark.parametrize("case", cases(quick=True), ids=lambda case: f"{case.name}-{case.processes}")
def test_every_case_delivers_all_it_sends(case: Case) -> None:
    assert case.run(case.processes, 100) == 100


def test_ratios_say_how_many_times_as_fast() -> None:
    store, callbacks, hand, *_, last = cases(quick=True)
    lines = speed_table([(store, 20e-6), (callbacks, 10e-6), (hand, 2e-6), (last, 4e-6)])
    assert lines[-1].split("|")[-4:-1] == [" 5.00 ", " 2.50 ", " 0.50 "]


def test_the_long_run_tells_its_own_memory_and_trace() -> None:
    run = long_run("fifo", 4, 100, trace=True)
    assert run.delivered == 100
    assert run.peak_mb > 1
    assert run.trace_mb
    assert run.command in long_table([run])[-1]


def test_the_result_is_written_where_asked(tmp_path, capsys) -> None:
    out = tmp_path / "sim.md"
    main(["--quick", "--out", str(out)])
    assert out.read_text(encoding="utf-8") == capsys.readouterr().out
