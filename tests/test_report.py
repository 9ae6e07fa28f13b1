"""What a page is made of: which events it carries, and that it carries them as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from antecede import cli
from antecede.errors import BadParameter
from antecede.report import Extent, Finding, Message, Range, headline, list_story_keys, plan_selection, render
from antecede.report.data import Event
from antecede.report.encoding import encode_report
from antecede.report.page import SCRIPTS
from antecede.report.selection import (
    ALL,
    CELLS,
    PROCESSES,
    RUN,
    choose_detailed,
    limit_channel_bands,
    limit_density_bands,
    limit_findings,
    parse_window,
)
from tests import report_samples as samples

SOURCES = Path(__file__).parent.parent / "src" / "antecede" / "report"


def extent(run: str, events: int, **more: Any) -> Extent:
    clocked = {
        "clocks": events,
        "clock_low": 0,
        "clock_high": max(0, events - 1),
        "time_low": 0,
        "time_high": 10**9,
    }
    return Extent(run=run, events=events, **{**clocked, **more})


# Which events


def test_small_runs_are_carried_whole():
    chosen = plan_selection([extent("a", 10), extent("b", RUN)])
    assert chosen.whole == ("a", "b")
    assert chosen.ranges == ()


def test_broken_runs_come_first_when_there_is_not_room_for_all():
    runs = [extent(f"r{i:02}", RUN) for i in range(ALL // RUN + 3)]
    late = Finding(kind="duplicate", process="a", sender="a", number=1, index=0)
    chosen = plan_selection(runs, {"r14": [late]})
    assert len(chosen.whole) == ALL // RUN
    assert "r14" in chosen.whole


def test_a_long_run_gets_windows_over_all_its_length():
    chosen = plan_selection([extent("long", 10**8)])
    assert [range_.low for range_ in chosen.ranges] == sorted(range_.low for range_ in chosen.ranges)
    assert chosen.ranges[0].low == 0
    assert chosen.ranges[-1].high == 10**8 - 1


def test_a_long_run_gets_windows_round_its_first_findings():
    at = [50_000, 50_010, 700_000]
    told = [
        Event(process="c", index=i, kind="deliver", sender="a", number=i, time_ns=t, clock=t)
        for i, t in enumerate(at)
    ]
    findings = [Finding(kind="duplicate", process="c", sender="a", number=i, index=i) for i in range(3)]
    chosen = plan_selection([extent("long", 10**6)], {"long": findings}, {"long": told})
    around = [range_ for range_ in chosen.ranges if range_.title.startswith("round")]
    # The second is in the window of the first.
    assert [range_.title for range_ in around] == ["round finding 1", "round finding 3"]
    assert all(any(range_.low <= t <= range_.high for range_ in around) for t in at)


def test_windows_are_by_time_where_there_are_no_clocks():
    chosen = plan_selection([extent("long", 10**6, clocks=0, clock_low=None, clock_high=None)])
    assert {range_.axis for range_ in chosen.ranges} == {"time"}
    assert chosen.ranges[-1].high <= 10**9


def test_a_thousand_long_runs_still_fit():
    chosen = plan_selection([extent(f"r{i}", 10**6) for i in range(1000)])
    assert len(chosen.ranges) == 1000


def test_what_the_user_asked_for_is_always_there():
    asked = Range("a", "asked", "clock", 3, 5)
    assert asked in plan_selection([extent("a", 10**7)], wanted=[asked]).ranges


@pytest.mark.parametrize("runs", [0, 1, 30, 1000, 10**5])
def test_pictures_of_all_runs_stay_within_bounds(runs):
    assert limit_channel_bands(runs) ** 2 * runs <= max(CELLS, runs)
    assert limit_density_bands(runs) * 96 * runs <= max(CELLS, 96 * runs)
    assert 3 <= limit_findings(runs) <= 50


def test_processes_of_broken_runs_are_shown_first():
    assert choose_detailed({"a": 10, "b": PROCESSES - 5}, {"b"}) == ["b"]
    assert choose_detailed({"huge": 10 * PROCESSES}, ()) == ["huge"]
    assert choose_detailed({}, ()) == []


@pytest.mark.parametrize(
    ("finding", "events"),
    [
        (
            Finding(
                kind="violation", process="c", sender="a", number=1, by_sender="b", by_number=1,
                chain=(Message("a", 1), Message("a", 2), Message("b", 1)),
            ),
            {("a", "a", 1), ("a", "a", 2), ("b", "a", 2), ("b", "b", 1), ("c", "b", 1), ("c", "a", 1)},
        ),
        (Finding(kind="undelivered", process="c", sender="a", number=1), {("a", "a", 1), ("c", "a", 1)}),
        (Finding(kind="unsent", process="c", sender="x", number=1), {("x", "x", 1), ("c", "x", 1)}),
    ],
    ids=["violation", "undelivered", "unsent"],
)  # fmt: skip
def test_a_story_is_the_events_that_tell_a_finding(finding, events):
    assert {key[1:] for key in list_story_keys({"r": [finding]})} == events


@pytest.mark.parametrize(
    ("text", "axis", "low", "high"),
    [
        ("a:b:2:7", "clock", 2, 7),
        ("a:b:0s:1.5ms", "time", 500, 1_500_500),
        ("a:b:2 us:1h", "time", 2500, 3600 * 10**9 + 500),
    ],
)
def test_windows_are_asked_for_by_clock_or_by_time(text, axis, low, high):
    found = parse_window(text, {"a:b": extent("a:b", 9, time_low=500)})
    assert (found.run, found.axis, found.low, found.high) == ("a:b", axis, low, high)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a", "must be RUN:FROM:TO"),
        ("runn:1:2", "one with events is run1"),
        ("run1:5:2", "FROM before TO"),
        ("run1:5s:2s", "FROM before TO"),
        ("run1:5:2s", "must be RUN:FROM:TO"),
        ("run1:-5:2", "must be RUN:FROM:TO"),
        ("run1:5parsec:6parsec", "must be RUN:FROM:TO"),
        ("clockless:5:6", "has no clocks"),
    ],
)
def test_a_window_that_cannot_be_is_refused(text, told):
    extents = {"run1": extent("run1", 9), "clockless": extent("clockless", 9, clocks=0)}
    with pytest.raises(BadParameter, match=re.escape(told)):
        parse_window(text, extents)


# As they are


def data_of(page: str) -> Any:
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def unpack_events(run: dict[str, Any], names: list[list[str]]) -> list[tuple[Any, ...]]:
    """The events that a page carries, read as its script does."""
    table, messages, own = run["table"], run["messages"], names[run["names"]]
    rows, time, clock = [], 0, 0
    for i, m in enumerate(table["message"]):
        time, clock = time + int(table["time"][i]), clock + int(table["clock"][i])
        to = [own[p] for p in messages["sets"][messages["to"][m]]] if table["kind"][i] == 0 else None
        sender, number = own[messages["sender"][m]], int(messages["number"][m])
        rows.append(
            (own[table["process"][i]], table["index"][i], table["kind"][i], sender, number, to, time, clock)
        )
    return rows


def test_every_event_reaches_the_page_as_it_is():
    parts = samples.compare_protocols(["fifo", "permit"])
    data = data_of(render(samples.report(parts)))
    for run in data["runs"]:
        events = [row for row in parts["events"] if row["run"] == run["run"]]
        start = min(row["time_ns"] for row in events)
        expected = [
            (
                row["process"], row["index"], ("send", "receive", "deliver").index(row["kind"]), row["sender"],
                row["number"], row["to"], row["time_ns"] - start, row["clock"],
            )
            for row in events
        ]  # fmt: skip
        assert unpack_events(run, data["names"]) == expected


def test_numbers_that_a_browser_would_round_go_as_text():
    parts = samples.triangle()
    big = 2**62 + 1
    for row in parts["events"]:
        row["number"] += big
        row["time_ns"] += big
    for row in parts["findings"]:
        row["number"] += big
        row["by_number"] += big
        row["chain"] = [{**message, "number": message["number"] + big} for message in row["chain"]]
    [run] = encode_report(samples.report(parts))["runs"]
    assert run["messages"]["number"][0] == str(big + 1)
    assert run["table"]["time"] == [0] + [1_000_000] * 5


def test_hostile_names_cannot_leave_the_data():
    name = "</script><img src=x onerror=alert(1)>\u2028{{script}}"
    page = render(samples.report(samples.triangle((name, "b", "c")), title=name, source=name))
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert name in data_of(page)["names"][0]


def test_names_that_runs_do_not_know_are_shown_too():
    parts = samples.triangle()
    parts["runs"][0]["processes"] = ["a"]
    data = data_of(render(samples.report(parts)))
    [names] = data["names"]
    assert sorted(names) == ["a", "b", "c"]
    assert data["runs"][0]["n"] == 1


def test_overlapping_windows_give_each_event_once():
    parts = samples.triangle()
    parts["events"] = [*parts["events"], *parts["events"][2:4]]
    [run] = samples.report(parts).runs
    assert [event.clock for event in run.events] == list(range(6))


def test_a_page_fetches_nothing_and_allows_one_script():
    page = render(samples.report(samples.triangle()))
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert re.fullmatch(r"default-src 'none'; .*script-src 'sha256-[\w+/=]{44}'; img-src data:", policy[0])
    outside = [
        address for address in re.findall(r"https?://[^\s'\"]+", page) if "www.w3.org/2000/svg" not in address
    ]
    assert outside == []


def test_the_script_parses_no_html():
    for name in SCRIPTS:
        text = (SOURCES / name).read_text()
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "DOMParser",
        ):
            assert forbidden not in text, name


# In words


def verdicts(*told: tuple[str, int]) -> dict[str, Any]:
    runs = [{"run": f"r{i}", "protocol": "p", "processes": ["a"]} for i in range(len(told))]
    rows = [{"run": f"r{i}", "verdict": v, "violations": n} for i, (v, n) in enumerate(told)]
    return {"runs": runs, "verdicts": rows}


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ([("yes", 0)], "The run kept causal order."),
        ([("no", 3)], "The run broke causal order."),
        ([("no", 0)], "The run lost, repeated or misdelivered messages."),
        ([("unknown", 0)], "Whether the run kept causal order is unknown."),
        ([("yes", 0)] * 3, "All 3 runs kept causal order."),
        ([("yes", 0), ("no", 1), ("no", 1)], "1 of 3 runs kept causal order; 2 broke it."),
        (
            [("yes", 0), ("no", 1), ("no", 0), ("unknown", 0)],
            "1 of 4 runs kept causal order; 1 broke it, 1 lost, repeated or misdelivered messages, 1 is unknown.",
        ),
    ],
)
def test_the_headline_is_the_answer(told, sentence):
    assert headline(samples.report(verdicts(*told))) == sentence


@pytest.mark.parametrize(
    ("protocol", "counts", "at", "outcome"),
    [
        ("matrix", {"violations": 2}, "p2", "broke"),
        ("separator", {"violations": 2}, "p2", "broke"),
        ("fifo", {"violations": 2}, "p2", "unpromised"),
        ("fifo", {"violations": 2, "fifo_breaks": 1}, "p2", "broke"),
        ("fifo", {"violations": 2, "undelivered": 1}, "p2", "faulty"),
        ("unordered", {"violations": 2, "fifo_breaks": 1}, "p2", "unpromised"),
        ("monitor", {"violations": 2}, "p2", "kept"),
        ("monitor", {"violations": 2}, "p1", "broke"),
        ("monitor", {"duplicates": 2}, "p2", "faulty"),
        ("someone's own", {"violations": 2}, "p2", "broke"),
    ],
)
def test_a_verdict_is_relative_to_what_the_protocol_promises(protocol, counts, at, outcome):
    run = {"run": "r", "protocol": protocol, "processes": ["p1", "p2"], "parameters": "{}"}
    found_at = [
        {
            "run": "r",
            "process": at,
            "kind": {"undelivered": "undelivered"}.get(name, name[:-1]),
            "count": count,
        }
        for name, count in counts.items()
    ]
    verdict = {"run": "r", "verdict": "no", **counts}
    made = samples.report({"runs": [run], "verdicts": [verdict], "found_at": found_at})
    assert made.runs[0].outcome == outcome
    assert (
        headline(made)
        == {
            "broke": "The run broke causal order.",
            "unpromised": "The run broke causal order, which its protocol does not promise.",
            "faulty": "The run lost, repeated or misdelivered messages.",
            "kept": "The run kept causal order where it is promised.",
        }[outcome]
    )


@pytest.mark.parametrize(
    ("protocol", "promise"),
    [
        ("separator", None),
        ("matrix", None),
        ("fifo", "FIFO order only"),
        ("monitor", "causal order at p2 only"),
        ("someone's own", None),
    ],
)
def test_a_promise_is_told_where_it_is_less_than_causal_order(protocol, promise):
    run = {"run": "r", "protocol": protocol, "processes": ["p1", "p2"], "parameters": '{"monitor": 1}'}
    assert samples.report({"runs": [run]}).runs[0].promise == promise


def test_a_run_without_a_verdict_is_unknown():
    [run] = samples.report({"runs": samples.triangle()["runs"]}).runs
    assert (run.verdict, run.reason) == ("unknown", "this run was not verified")


def test_no_broken_run_is_left_out():
    made = samples.report(verdicts(("yes", 0), ("no", 1), ("yes", 0), ("no", 1), ("unknown", 0)), most=2)
    assert [run.run for run in made.runs] == ["r1", "r3", "r4"]
    assert made.omitted_runs == 2
    assert headline(made) == "2 of 5 runs kept causal order; 2 broke it, 1 is unknown."


# A whole page


@pytest.mark.parametrize("protocol", ["fifo", "monitor"])
def test_a_trace_with_violations_has_a_page_without_spark(protocol, tmp_path, capsys):
    """This process has no session, as that of a person who types the command."""
    options = ["--protocol", protocol, "--messages", "300", "--network", "exponential:50ms"]
    assert cli.run(["simulate", *options, "--out", str(tmp_path / "trace")]) == 0
    assert cli.run(["verify", str(tmp_path / "trace")]) == 1
    assert cli.run(["report", str(tmp_path / "trace"), "--out", str(tmp_path / "page.html")]) == 0
    assert "causal order" in capsys.readouterr().err.splitlines()[-1]
