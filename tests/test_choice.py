"""antecede choose: the advice follows the figures, whoever has them, and what will not do is named with its reason."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from antecede.cli import run
from antecede.sim import RunSpec
from antecede.sim.choice import Fit, advise, try_candidates

QUICK = ["choose", "--processes", "4", "--messages", "100"]


def fit(protocol: str, size: float, delay: float, **more: Any) -> Fit:
    figures = {"needs": (), "paused_ms": None, "control": 0.0, "cpu_us": 10.0, "command": "", **more}
    return Fit(
        protocol=protocol, parameters={}, delay_ms=delay, delay_ms_p99=3 * delay, bytes=size, **figures
    )


@pytest.mark.parametrize(("one", "other"), [("matrix", "history"), ("history", "matrix"), ("mine", "yours")])
def test_the_fewest_bytes_win_among_the_quick(one: str, other: str) -> None:
    slow = fit("slow", 1, 13)
    said = advise([fit(other, 40, 10), fit(one, 30, 12.4), slow])
    assert said[0].startswith(f"take {one}: 30.0 bytes")
    assert f"1.24 times the least, {other}'s" in said[0]
    assert said[1:] == ["if bytes count more than delay: slow, 1.0 bytes at a mean delay of 13.0 ms"]
    assert advise([fit(other, 29, 10), fit(one, 30, 12.4), slow])[0].startswith(f"take {other}: 29.0 bytes")


def test_what_a_protocol_needs_and_what_others_do_better_is_said() -> None:
    routed = fit("a", 5, 10, needs=("routers that run it",), cpu_us=90.0, paused_ms=50.0)
    said = advise(
        [routed, fit("b", 7, 10, cpu_us=80.0, paused_ms=45.0), fit("c", 9, 10, cpu_us=45.0, paused_ms=30.0)]
    )
    assert said[1:] == [
        "it needs routers that run it; without them: b, 7.0 bytes at a mean delay of 10.0 ms",
        "if processor time counts most: c, 45 µs, not 90",
        "if processes stop now and then: c, 30 ms, not 50 ms in the mean while one stands still",
    ]
    alone = fit("a", 5, 10, needs=("routers that run it",))
    assert "no other protocol is as quick" in advise([alone])[1]


def test_what_costs_the_same_is_named_together() -> None:
    near = advise([fit("history", 30.5, 10), fit("optimal", 30, 10), fit("matrix", 40, 10)])
    assert near[0].startswith("take history or optimal: 30.0 bytes")
    assert near[1] == "these cost the same, as far as can be told: history 30.5, optimal 30.0 bytes"
    apart = advise([fit("history", 31, 10), fit("optimal", 30, 10)])
    assert apart[0].startswith("take optimal: 30.0 bytes")
    # A tenth apart in the mean, and now one is ahead and now the other: these runs cannot tell.
    noisy = fit("history", 33, 10, bytes_by_seed=(26.0, 40.0, 33.0), delay_ms_by_seed=(10.0, 10.0, 10.0))
    still = fit("optimal", 30, 10, bytes_by_seed=(30.0, 30.0, 30.0), delay_ms_by_seed=(10.0, 10.0, 10.0))
    assert advise([noisy, still])[0].startswith("take history or optimal: 30.0 bytes")
    assert "in 3 runs of each: " in advise([noisy, still])[1]
    # What is always a tenth dearer is dearer, however much both vary.
    varying = fit("optimal", 30, 10, bytes_by_seed=(20.0, 40.0, 30.0), delay_ms_by_seed=(10.0, 10.0, 10.0))
    steady = fit("history", 33, 10, bytes_by_seed=(23.0, 43.0, 33.0), delay_ms_by_seed=(10.0, 10.0, 10.0))
    assert advise([steady, varying])[0].startswith("take optimal")


def test_what_may_be_quick_counts_as_quick() -> None:
    least = fit("matrix", 50, 10, delay_ms_by_seed=(10.0, 10.0, 10.0), bytes_by_seed=(50.0, 50.0, 50.0))
    border = fit("permit", 3, 13, delay_ms_by_seed=(11.0, 13.0, 15.0), bytes_by_seed=(3.0, 3.0, 3.0))
    slow = fit("permit", 3, 13, delay_ms_by_seed=(13.0, 13.0, 13.0), bytes_by_seed=(3.0, 3.0, 3.0))
    assert advise([least, border])[0].startswith("take permit")
    assert advise([least, slow])[0].startswith("take matrix")


def test_other_seeds_give_the_same_advice() -> None:
    """With one run of each these two change places: 200 messages among 8."""
    names = ["history", "sparing", "matrix"]
    asked = [RunSpec(protocol="unordered", messages=200, seed=seed) for seed in (0, 20, 30)]
    single = {advise(try_candidates(one, names)[0])[0].partition(":")[0] for one in asked}
    several = {advise(try_candidates(one, names, seeds=5)[0])[0].partition(":")[0] for one in asked}
    assert len(several) == 1 < len(single)


def test_candidates_that_will_not_do_say_why() -> None:
    asked = RunSpec(protocol="unordered", processes=4, messages=100)
    fits, unfit = try_candidates(
        asked, ["unordered", "fifo", "monitor", "broadcast", "bounded:k=1", "permit"]
    )
    assert [one.protocol for one in fits] == ["permit"]
    reasons = {one.protocol: one.reason for one in unfit}
    assert reasons["unordered"] == "promises no order"
    assert reasons["fifo"] == "promises fifo order only"
    assert reasons["monitor"] == "promises causal order at one process only"
    assert "goes to everyone" in reasons["broadcast"]
    assert "k must be more than n" in reasons["bounded:k=1"]


def test_stamps_count_on_every_link() -> None:
    """Around one router every packet of a direct protocol crosses two links."""
    asked: dict[str, Any] = {
        "protocol": "unordered",
        "processes": 5,
        "messages": 100,
        "network": "constant:10ms",
    }
    [[far], [near]] = [
        try_candidates(RunSpec(topology=topology, **asked), ["history"])[0] for topology in ("star", "mesh")
    ]
    [[routed], _] = try_candidates(RunSpec(topology="star", **asked), ["separator"])
    assert far.bytes > 1.5 * near.bytes
    assert far.delay_ms == pytest.approx(2 * near.delay_ms, rel=0.1)
    assert routed.needs == ("routers that run it", "applications that take messages as they come")


def test_a_process_that_stands_still_delays_those_that_wait_for_it() -> None:
    asked = RunSpec(protocol="unordered", processes=6, messages=300)
    fits, _ = try_candidates(asked, ["matrix", "buffer"])
    matrix, buffer = fits
    assert matrix.paused_ms is not None
    assert buffer.paused_ms is not None
    assert matrix.delay_ms < matrix.paused_ms < buffer.paused_ms
    lossy, _ = try_candidates(RunSpec(protocol="unordered", messages=50, faults="loss:5%"), ["matrix"])
    assert lossy[0].paused_ms is None, "the faults that were asked for are all that goes wrong"


def test_the_answer_as_json_and_as_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "choice.svg"
    wanted = ["--protocol", "matrix", "--protocol", "bounded:k=9", "--protocol", "fifo"]
    assert run([*QUICK, *wanted, "--out", str(plot), "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["verdict"], answer["plot"]) == ("yes", str(plot))
    assert answer["advice"][0] in err
    assert {one["protocol"] for one in answer["candidates"]} == {"matrix", "bounded"}
    assert answer["candidates"][0]["bytes"] <= answer["candidates"][1]["bytes"]
    assert answer["unfit"] == [{"protocol": "fifo", "reason": "promises fifo order only"}]
    texts = {text.text for text in ElementTree.parse(plot).iter("{http://www.w3.org/2000/svg}text")}
    assert {"bounded:k=9", "matrix", "bytes a delivery", "mean delay, ms"} <= texts


def test_the_rows_of_the_table_as_csv(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run([*QUICK, "--protocol", "matrix", "--protocol", "bounded:k=9", "--protocol", "fifo", "--csv"]) == 0
    )
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(StringIO(out)))
    assert {row["protocol"]: row["parameters.k"] for row in rows} == {"matrix": "", "bounded": "9"}
    assert float(rows[0]["bytes"]) <= float(rows[1]["bytes"])
    assert err.startswith(f"take {rows[0]['protocol']}")


def test_a_table_for_people_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*QUICK, "--protocol", "permit"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "permit" in err
    assert "take permit: " in err


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--protocol", "fifo"], 1, "no: none of the candidates will do"),
        (["--protocol", "matrix", "--seconds", "0.000001"], 1, "give it more --seconds"),
        (["--protocol", "matrx"], 2, "matrx"),
        (["--protocol", "bounded:9"], 2, "write NAME, or NAME:key=value"),
        (["--network", "carrier-pigeon"], 2, "network: the name must be one of"),
        (["--workload", "groups:size=9"], 2, "workload: groups must be"),
        (["--json", "--csv"], 2, "give --json or --csv, not both"),
        (["--seconds", "0"], 2, "--seconds must be more than 0"),
        (["--out", "nowhere/choice.svg"], 2, "there is no such directory"),
    ],
)
def test_what_is_not_so_or_wrong_has_its_exit_code(
    arguments: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*QUICK, *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
