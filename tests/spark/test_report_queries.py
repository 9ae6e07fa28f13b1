"""What a page needs from Spark, against the same counted by hand; and the page that the command makes of it."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
import pyarrow as pa
import pytest
from msgspec import structs

from antecede.cli import run as antecede
from antecede.errors import BadParameter, BadTrace
from antecede.report import headline, queries, render, selection
from antecede.report import results as reading
from antecede.report.data import Failed
from antecede.report.gather import gather_local, gather_report
from antecede.report.results import FINDINGS, VERDICTS
from antecede.report.selection import Range
from antecede.sim import RunSpec
from antecede.spark import Trace, measure, verify
from antecede.spark.measure.api import TABLES
from antecede.trace import TraceWriter, read_events, read_runs
from antecede.trace.footers import read_local_trace
from tests import report_samples

SMALL = RunSpec(protocol="matrix", processes=3, messages=40, seed=1)
BROKEN = RunSpec(protocol="unordered", processes=8, messages=400, workload="uniform:rate=50/s", seed=2)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A trace of two runs: `small`, and `broken: 1`, whose name holds what a shell and a page might trip over."""
    path = tmp_path_factory.mktemp("windows") / "trace"
    for name, spec in (("small", SMALL), ("broken: 1 <b>", BROKEN)):
        simulation = spec.build()
        with TraceWriter(path, simulation.info(name)) as writer:
            simulation.record(writer.append)
            simulation.finish()
    return path


@pytest.fixture(scope="module")
def trace(spark, place):
    return Trace.read(spark, place)


@pytest.fixture(scope="module")
def events(place):
    return [row for batch in read_events(place) for row in batch.to_pylist()]


def round_figures(value):
    """Sums of floats depend on the order in which they are added."""
    if isinstance(value, dict):
        return {key: round_figures(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [round_figures(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


@pytest.mark.parametrize("written", [False, True], ids=["computed", "read from results"])
def test_a_small_trace_has_the_same_page_without_spark(spark, place, tmp_path, monkeypatch, written):
    # Short enough that one of the runs is shown in part.
    monkeypatch.setattr(selection, "RUN", 150)
    monkeypatch.setattr(selection, "SAMPLE", 20)
    command, windows = ("antecede", "report"), ["small:3:20"]
    path = place
    if written:
        path = tmp_path / "results"
        path.mkdir()
        (path / "trace").symlink_to(place)
        verify(Trace.read(spark, place)).write(path)
        measure(Trace.read(spark, place)).write(path)
        failed = {"run": "lost", "reason": "it broke", "command": "antecede simulate"}
        (path / "failures.jsonl").write_text(json.dumps(failed) + "\n")
    small = reading.read_small(read_local_trace(path), str(path))
    assert small is not None
    here = gather_local(small, windows, command)
    there = gather_report(spark, str(path), windows, command)
    assert [run.whole for run in here.runs] == [False, True]
    assert len(here.failed) == written
    pages = [round_figures(msgspec.to_builtins(structs.replace(one, made=""))) for one in (here, there)]
    for page in pages:
        page["histograms"].sort(key=lambda one: (one["protocol"], one["quantity"]))
        for run in page["runs"]:
            run["process_prices"].sort(key=lambda one: one["process"])
    assert pages[0] == pages[1]


def test_large_traces_spans_and_files_in_no_order_are_left_to_spark(place, monkeypatch):
    read = read_local_trace(place)
    assert reading.read_small(read, str(place)) is not None
    stated = read.runs.set_column(
        read.runs.schema.get_field_index("parameters"),
        "parameters",
        pa.array(['{"causality": "stated"}'] * len(read.runs)),
    )
    assert reading.read_small(structs.replace(read, runs=stated), str(place)) is None
    unordered = tuple(
        structs.replace(file, groups=tuple(structs.replace(group, clocks=None) for group in file.groups))
        for file in read.files
    )
    assert reading.read_small(structs.replace(read, files=unordered), str(place)) is None
    monkeypatch.setattr(reading, "SMALL_EVENTS", 10)
    assert reading.read_small(read, str(place)) is None


def list_keys(rows):
    return sorted((row["run"], row["process"], row["index"]) for row in rows)


def test_extents_say_how_long_each_run_is(trace, events):
    for row in queries.find_extents(trace.events):
        own = [event for event in events if event["run"] == row["run"]]
        assert row["events"] == row["clocks"] == len(own)
        assert (row["clock_low"], row["clock_high"]) == (0, len(own) - 1)
        assert row["time_high"] == max(event["time_ns"] for event in own)


def test_events_of_runs_are_whole(trace, events):
    expected = [event for event in events if event["run"] == "small"]
    assert list_keys(queries.collect_runs(trace.events, ["small"])) == list_keys(expected)
    assert queries.collect_runs(trace.events, []) == []


def test_events_of_messages_are_those_asked_for(trace, events):
    send = next(event for event in events if event["kind"] == "send")
    [destination, *_] = send["to"]
    keys = [(send["run"], place, send["sender"], send["number"]) for place in (send["sender"], destination)]
    expected = [
        e for e in events if (e["run"], e["process"], e["sender"], e["number"]) in keys and not e["control"]
    ]
    assert list_keys(queries.read_messages(trace.events, keys)) == list_keys(expected)
    assert queries.read_messages(trace.events, []) == []


@pytest.mark.parametrize("most", [1000, 7])
def test_ranges_give_their_first_events_and_whether_there_are_more(trace, events, most):
    late = max(event["time_ns"] for event in events if event["run"] == "broken: 1 <b>")
    asked = [
        Range("small", "", "clock", 10, 29),
        Range("broken: 1 <b>", "", "time", late // 2, late // 2 + late // 50),
        Range("small", "", "clock", 10**9, 10**9 + 1),
    ]
    found, cut = queries.read_ranges(trace.events, asked, most)
    expected = []
    for position, one in enumerate(asked):
        run, axis, low, high = one.run, one.axis, one.low, one.high
        column = "clock" if axis == "clock" else "time_ns"
        own = [e for e in events if e["run"] == run and low <= e[column] <= high]
        assert (position in cut) == (len(own) > most)
        expected += sorted(own, key=lambda e: (e[column], e["process"], e["index"]))[:most]
    assert list_keys(found) == list_keys(expected)


def test_more_ranges_than_parquet_is_told_of(trace, events):
    asked = [Range("small", "", "clock", i, i) for i in range(queries.PUSHED + 6)]
    found, _ = queries.read_ranges(trace.events, asked, 5)
    assert list_keys(found) == list_keys(e for e in events if e["run"] == "small" and e["clock"] < len(asked))


@pytest.mark.parametrize("bands", [100, 3, 1])
def test_density_counts_every_event_once(trace, events, bands):
    own = [event for event in events if event["run"] == "broken: 1 <b>"]
    low, high = (choose(event["time_ns"] for event in own) for choose in (min, max))
    found = queries.count_density(
        trace.events, trace.known_runs.to_pylist(), {"broken: 1 <b>": (low, high)}, bands, 10
    )
    places = {name: i for i, name in enumerate(BROKEN.build().view.names)}
    width = min(bands, len(places))
    expected = Counter(
        (places[e["process"]] * width // len(places), (e["time_ns"] - low) * 10 // (high - low + 1))
        for e in own
    )
    assert {(row["band"], row["bucket"]): row["count"] for row in found} == expected
    assert {(row["bands"], row["buckets"]) for row in found} == {(width, 10)}


def test_first_findings_are_violations_if_there_are_any(spark):
    rows = [
        ("r", "duplicate", "a", "b", 1, None, None, 0, None),
        ("r", "violation", "a", "b", 3, "c", 1, 9, None),
        ("r", "violation", "a", "b", 2, "c", 1, 4, None),
        ("r", "undelivered", "a", "b", 5, None, None, None, None),
        ("s", "undelivered", "a", "b", 5, None, None, None, None),
    ]
    found = queries.read_first_findings(spark.createDataFrame(rows, FINDINGS), 2)
    assert [(row["run"], row["kind"], row["index"]) for row in sorted(found, key=str)] == [
        ("r", "violation", 4),
        ("r", "violation", 9),
        ("s", "undelivered", None),
    ]


def test_channels_are_added_up_by_band(spark, trace):
    rows = [("broken: 1 <b>", f"p{i}", f"p{j}", 2, 2, 10.0 * j, 1, 1, 1) for i in (1, 8) for j in (7, 8)]
    table = spark.createDataFrame(rows, TABLES["channels"])
    found = sorted(
        queries.add_channels(table, trace.known_runs.to_pylist(), 2), key=lambda row: row["sender_band"]
    )
    assert [
        (r["sender_band"], r["receiver_band"], r["bands"], r["messages"], r["delay_ns_mean"]) for r in found
    ] == [
        (0, 1, 2, 4, 75.0),
        (1, 1, 2, 4, 75.0),
    ]


def test_histograms_are_added_up_by_protocol_and_network(spark, trace):
    rows = [
        ("small", "delay_ns", low, high, 5)
        for low, high in ((0, 1), (1000, 1010), (1010, 1020), (4000, 4040))
    ]
    found = sorted(
        queries.add_histograms(
            spark.createDataFrame(rows, TABLES["histograms"]), trace.known_runs.to_pylist()
        ),
        key=lambda row: row["low"],
    )
    assert [(row["low"], row["high"], row["count"]) for row in found] == [
        (0, 1, 5),
        (1000, 1020, 10),
        (4000, 4040, 5),
    ]
    assert {(row["protocol"], row["network"]) for row in found} == {("matrix", "exponential:50ms")}


def test_windows_are_the_same_through_connect(on_connect, place, events):
    script = """
        import json, sys
        from antecede.report import queries
        from antecede.report.selection import Range
        from antecede.spark import Trace, measure, verify
        trace = Trace.read(spark, sys.argv[1])
        [extent] = [row for row in queries.find_extents(trace.events) if row["run"] == "small"]
        found, cut = queries.read_ranges(trace.events, [Range("small", "", "clock", 3, 30)], 9)
        keys = [("small", "p1", "p1", 1)]
        runs, span = trace.known_runs.to_pylist(), (extent["time_low"], extent["time_high"])
        counts = queries.count_density(trace.events, runs, {"small": span}, 2, 4)
        print(json.dumps([extent["events"], sorted(row["clock"] for row in found), sorted(cut),
                          len(queries.read_messages(trace.events, keys)), sum(row["count"] for row in counts)]))
        """
    own = [event for event in events if event["run"] == "small"]
    sends = [e for e in own if (e["process"], e["sender"], e["number"]) == ("p1", "p1", 1)]
    told = json.loads(on_connect(script, place))
    assert told == [len(own), list(range(3, 12)), [0], len(sends), len(own)]


# The page


@pytest.fixture
def page_of(spark):
    """`page_of(path, *windows)`: what the command would show, on the session of these tests."""
    command = ("antecede", "report", "trace")
    return lambda path, *asked: gather_report(spark, str(path), list(asked), command)


def test_a_trace_is_verified_and_measured_for_its_page(page_of, place, events):
    made = page_of(place)
    broken, small = made.runs
    assert headline(made) == "1 of 2 runs kept causal order; 1 broke it, which its protocol does not promise."
    assert (small.verdict, broken.verdict) == ("yes", "no")
    assert len(broken.findings) == 50 < broken.found["violation"]
    assert broken.findings[0].path[0] == broken.findings[0].message
    assert [len(run.events) for run in made.runs] == [run.size for run in made.runs]
    assert sum(run.size for run in made.runs) == len(events)
    assert small.price is not None
    assert small.price.stamp_bytes_mean > 1
    assert len(small.process_prices) == 3
    assert sum(small.channels.messages) == 40
    assert {histogram.quantity for histogram in made.histograms} >= {"delay_ns", "stamp_bytes"}
    assert "broken: 1 \\u003cb\\u003e" in render(made)


@pytest.fixture
def results(spark, place, events, tmp_path):
    """A directory of results: the trace, what the oracle finds in it, and no measures' rows."""
    (tmp_path / "trace").symlink_to(place)
    judged = [
        report_samples.judge_run(info.row(), [event for event in events if event["run"] == info.run])
        for info in read_runs(place)
    ]
    verdicts, findings = [verdict for verdict, _ in judged], [row for _, found in judged for row in found]
    for name, rows, schema in (("verdicts", verdicts, VERDICTS), ("findings", findings, FINDINGS)):
        spark.createDataFrame(rows, schema).write.parquet(str(tmp_path / name))
    for name, columns in TABLES.items():
        spark.createDataFrame([], columns).write.parquet(str(tmp_path / "measures" / name))
    failed = {
        "case": "c",
        "run": "lost",
        "seed": 4,
        "command": "antecede simulate",
        "reason": "out of memory",
    }
    (tmp_path / "failures.jsonl").write_text(json.dumps(failed) + "\n")
    return tmp_path


def test_results_that_are_there_are_not_computed_again(page_of, results):
    made = page_of(results)
    # Verification gives a reason, and measuring a price: these are the oracle's verdicts, and no measures.
    assert {run.reason for run in made.runs} == {None}
    assert headline(made) == "1 of 2 runs kept causal order; 1 broke it, which its protocol does not promise."
    assert {run.price for run in made.runs} == {None}
    assert made.failed == (Failed("lost", "out of memory", "antecede simulate"),)


def test_a_long_run_is_carried_in_windows(page_of, results, monkeypatch):
    monkeypatch.setattr(selection, "RUN", 150)
    monkeypatch.setattr(selection, "SAMPLE", 20)
    broken, small = page_of(results, "broken: 1 <b>:100:140").runs
    assert small.whole
    assert not broken.whole
    assert len(broken.events) < broken.size == sum(broken.density.counts)
    assert {event.clock for event in broken.events} >= set(range(100, 141))
    titles = [window.title for window in broken.windows]
    assert titles[0] == "100 to 140"
    assert "round finding 1" in titles
    assert "sample 5 of 5" in titles
    # Each finding that is listed has its events, windows or not.
    there = {(event.process, event.index) for event in broken.events}
    assert all((finding.process, finding.index) in there for finding in broken.findings)


def test_a_window_of_no_run_is_refused(page_of, place):
    with pytest.raises(BadParameter, match="one with events is small"):
        page_of(place, "smal:1:2")


def test_what_is_no_trace_is_refused(page_of, tmp_path):
    with pytest.raises(BadTrace, match="a trace is a directory with"):
        page_of(tmp_path)


@pytest.mark.parametrize(
    ("out", "told"), [("no/such/page.html", "no such directory"), (".", "is a directory")]
)
def test_a_place_that_cannot_be_written_is_refused_at_once(out, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert antecede(["report", "trace", "--out", out]) == 2
    assert told in capsys.readouterr().err
