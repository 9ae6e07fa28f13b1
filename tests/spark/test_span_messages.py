"""Messages are found in spans, and spans are verified by what they state."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from antecede.spark import Trace, measure, verify
from antecede.spark.spans.api import read_spans, write_spans
from antecede.spark.spans.messages import find_messages
from antecede.spark.spans.verify import verify_spans
from antecede.spark.verify.by_causes import UNJUDGED
from tests.spark.otlp_lines import full_id, make_line, make_span, overtaken, process, send


def written(path, lines):
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def found_late(spark, tmp_path_factory):
    place = tmp_path_factory.mktemp("spans")
    _, counts = write_spans(spark, written(place / "a.jsonl", overtaken()), place / "out")
    return place / "out", counts


def test_a_message_that_its_answer_overtook_is_found_with_the_spans_between(spark, found_late):
    place, counts = found_late
    assert (counts.messages, counts.deliveries, counts.absent, counts.undelivered) == (2, 3, 0, 0)
    found = verify_spans(spark, place)
    [row] = found.findings.collect()
    assert (row.process, row.id, row.by) == ("audit", full_id("ask"), full_id("answer", "u"))
    assert row.spans == [full_id("ask"), full_id("bill", "u"), full_id("answer", "u")]
    assert [(one.sender, one.number) for one in row.chain] == [("shop", 1), ("billing", 1)]
    assert (row.name, row.by_name) == ("ask of t", "answer of u")
    assert row.span_names == ["ask of t of shop", "bill of u of billing", "answer of u of billing"]
    [verdict] = found.verdicts
    assert (verdict["verdict"], verdict["reason"], verdict["deliveries"]) == ("no", "1 violation", 3)
    found.release()
    # The potential notion finds it, too: the trace is one like any other.
    plain = verify(Trace.read(spark, place))
    [same] = plain.findings.where("kind = 'violation'").collect()
    assert (same.process, same.sender, same.number, same["index"]) == ("audit", "shop", 1, row["index"])
    plain.release()
    # So it is for what measures it: a trace whose events have no clocks.
    [row] = measure(Trace.read(spark, place)).runs.collect()
    assert (row.sends, row.copies, row.delay_ns_max) == (2, 3, 29_000)


@pytest.mark.parametrize("options", [(), ("--master", "local[2]")], ids=["here", "on Spark"])
def test_by_potential_causality_findings_speak_of_spans_too(warm, found_late, tmp_path, options):
    """On Spark they spoke of sender and number, and findings that were written everywhere."""
    place, _ = found_late
    request = ("verify", place, "--causality", "potential", "--out", tmp_path / "found", *options)
    done = warm(*request)
    assert done.returncode == 1, done.stderr
    late, first = f"ask of t ({full_id('ask')})", f"answer of u ({full_id('answer', 'u')})"
    words = f"audit delivered {late} after {first}, which it causally precedes: {late} -> {first}"
    assert words in done.stderr
    [row] = pq.read_table(tmp_path / "found" / "findings").to_pylist()
    assert (row["id"], row["by"]) == (full_id("ask"), full_id("answer", "u"))
    assert (row["name"], row["by_name"], row["trace_id"]) == (
        "ask of t",
        "answer of u",
        full_id("ask").partition(":")[0],
    )
    assert row["spans"] == [row["id"], row["by"]]
    assert (row["sender"], row["number"]) == ("shop", 1)


def test_requests_that_nothing_joins_are_no_violation_of_stated_causality(spark, tmp_path):
    """Two threads of one process: the second request overtakes the first, and nobody says that they are related."""
    lines = [
        make_line("shop", send("a", 1), send("b", 2, trace="u")),
        make_line("audit", process("y", 10, trace="u", parent="b"), process("x", 20, parent="a")),
    ]
    write_spans(spark, written(tmp_path / "a.jsonl", lines), tmp_path / "out")
    stated = verify_spans(spark, tmp_path / "out")
    assert [(row["verdict"], row["reason"]) for row in stated.verdicts] == [("unknown", UNJUDGED)]
    stated.release()
    potential = verify(Trace.read(spark, tmp_path / "out"))
    assert [row["verdict"] for row in potential.verdicts] == ["no"]
    potential.release()


def test_a_message_is_known_by_the_most_trusted_of_its_marks(spark, tmp_path):
    same = {"messaging_destination_name": "orders"}
    at = {**same, "messaging_destination_partition_id": 3}
    sends = [
        send("s1", 1, messaging_message_id="m1", **same),
        send("s2", 2, messaging_message_id="m2", **same),
        send("s3", 3, messaging_message_id="m3", **same),
        # Old names of attributes, and the oldest send, which had no operation.
        make_span(
            "s4",
            4,
            kind=4,
            messaging_system="kafka",
            messaging_destination="orders",
            messaging_kafka_destination_partition=3,
            messaging_kafka_message_offset=77,
        ),
        # An offset of 0 from every producer is no identity.
        *(send(f"z{n}", 5, messaging_kafka_offset=0, **at) for n in "12"),
        # A batch: the send carries what was created.
        *(make_span(f"c{n}", 6, messaging_system="kafka", messaging_operation_type="create") for n in "12"),
        send("batch", 7, links=[("c1", "t"), ("c2", "t")]),
    ]
    handed = [
        process("link", 20, links=[("s1", "t")], parent="s2", messaging_message_id="m3", **same),
        process("parent", 21, parent="s2", messaging_message_id="m3", **same),
        process("by-id", 22, trace="u", messaging_message_id="m3", **same),
        process("offset", 23, trace="u", messaging_kafka_offset=77, **at),
        process("zero", 24, trace="u", messaging_kafka_offset=0, **at),
        process("many", 25, trace="u", links=[("c1", "t"), ("c2", "t")]),
        process("lost", 26, trace="u", links=[("gone", "t")]),
    ]
    lines = [make_line("shop", *sends), make_line("audit", *handed)]
    spans, rejected = read_spans(spark, written(tmp_path / "a.jsonl", lines))
    assert rejected.count() == 0
    rows = find_messages(spans).collect()
    known = {(row.name, row.handed_name, row.known_by) for row in rows if row.handed_name and row.name}
    assert known == {
        ("s1 of t", "link of t", "link"),
        ("s2 of t", "parent of t", "parent"),
        ("s3 of t", "by-id of u", "message id"),
        ("s4 of t", "offset of u", "offset"),
        ("c1 of t", "many of u", "link"),
        ("c2 of t", "many of u", "link"),
    }
    assert {row.handed_name for row in rows if row.name is None} == {"zero of u", "lost of u"}
    assert {row.name for row in rows if row.handed_name is None} == {"z1 of t", "z2 of t"}


def test_spans_of_consumers_alone_leave_the_run_unknown(spark, tmp_path):
    """A trace without events had no file, and verify said so instead of what is not there."""
    line = make_line(
        "audit", process("a", 1, parent="gone"), process("b", 2, trace="u", links=[("gone", "t")])
    )
    _, counts = write_spans(spark, written(tmp_path / "a.jsonl", [line]), tmp_path / "out")
    assert (counts.messages, counts.unsent) == (0, 2)
    found = verify_spans(spark, tmp_path / "out")
    assert [row["verdict"] for row in found.verdicts] == ["unknown"]
    found.release()


def test_a_span_that_was_exported_twice_is_one_span(spark, tmp_path):
    """A send that stood twice in the files was the identity of no message, and nothing was delivered."""

    def find(lines):
        spans, _ = read_spans(spark, written(tmp_path / "a.jsonl", lines))
        return sorted(map(str, find_messages(spans).drop("repeats").collect()))

    once = find(overtaken())
    assert len(once) == 3
    assert find(2 * overtaken()) == once


def test_a_receive_before_its_process_is_one_delivery_and_a_second_process_is_counted(spark, tmp_path):
    receive = {"messaging_operation_type": "receive", "until": 19}
    lines = [
        make_line("shop", send("a", 1), send("b", 2)),
        make_line(
            "audit",
            process("poll", 5, links=[("a", "t"), ("b", "t")], **receive),
            process("x", 20, links=[("a", "t")]),
            process("x2", 21, links=[("a", "t")]),
        ),
    ]
    spans, _ = read_spans(spark, written(tmp_path / "a.jsonl", lines))
    rows = {row.name: row for row in find_messages(spans).collect()}
    start = rows["a of t"].sent_ns - 1000
    assert (rows["a of t"].handed_name, rows["a of t"].repeats) == ("x of t", 1)
    # Of a receive the end counts: it begins when it starts to wait.
    assert (rows["b of t"].handed_name, rows["b of t"].handed_ns - start) == ("poll of t", 19_000)


def test_calls_are_messages_if_asked_for(spark, tmp_path):
    lines = [
        make_line("shop", make_span("call", 1, until=9, kind=3), make_span("fire", 2, until=3, kind=3)),
        make_line(
            "stock",
            make_span("serve", 4, until=8, parent="call", kind=2),
            make_span("work", 5, parent="serve"),
        ),
        make_line("mail", make_span("later", 6, until=20, parent="fire")),
    ]
    spans, _ = read_spans(spark, written(tmp_path / "a.jsonl", lines))
    assert find_messages(spans).count() == 0
    told = {
        (row.kind, row.sender, row.consumer, row.name, row.handed_name)
        for row in find_messages(spans, rpc=True).collect()
    }
    assert told == {
        ("request", "shop", "stock", "call of t", "serve of t"),
        ("reply", "stock", "shop", "serve of t", "call of t"),
        # Its caller did not wait: there is no reply.
        ("request", "shop", "mail", "fire of t", "later of t"),
    }
    _, counts = write_spans(spark, tmp_path / "a.jsonl", tmp_path / "out", rpc=True)
    assert (counts.messages, counts.deliveries, counts.undelivered) == (3, 3, 0)
    assert verify(Trace.read(spark, tmp_path / "out")).verdicts[0]["verdict"] == "yes"


def test_spans_that_were_sampled_away_leave_the_run_unknown_with_the_count(spark, tmp_path):
    lines = [
        make_line("shop", send("a", 1, parent="gone"), send("b", 2)),
        make_line("audit", process("x", 20, links=[("a", "t")]), process("y", 21, links=[("lost", "t")])),
    ]
    write_spans(spark, written(tmp_path / "a.jsonl", lines), tmp_path / "out")
    [verdict] = verify_spans(spark, tmp_path / "out").verdicts
    assert verdict["verdict"] == "unknown"
    assert verdict["reason"] == (
        "2 spans that others name are not there; 1 span was handed a message whose send is not there; "
        "1 message was handed to nobody that has a span"
    )
    [run] = pq.read_table(tmp_path / "out" / "runs.parquet").to_pylist()
    assert json.loads(run["parameters"])["causality"] == "stated"
    assert verify(Trace.read(spark, tmp_path / "out")).verdicts[0]["verdict"] == "unknown"


def test_an_id_that_both_ends_of_a_call_share_leaves_the_run_unknown(spark, tmp_path):
    """One of the two spans was dropped without a word, and with it the call."""
    lines = [
        make_line(
            "shop", make_span("root", 0, until=9), make_span("call", 1, until=9, parent="root", kind=3)
        ),
        make_line("stock", make_span("call", 4, until=8, parent="root", kind=2)),
        make_line("mail", make_span("later", 6, until=8, parent="root", kind=2)),
    ]
    _, counts = write_spans(spark, written(tmp_path / "a.jsonl", lines), tmp_path / "out", rpc=True)
    assert (counts.messages > 0, counts.shared) == (True, 1)
    [verdict] = verify_spans(spark, tmp_path / "out").verdicts
    assert verdict["verdict"] == "unknown"
    assert "1 id is of spans of several processes" in verdict["reason"]


def test_processes_are_told_apart_by_what_is_asked_for(spark, tmp_path):
    lines = [make_line("shop", make_span("a", 1, thread_name="t-1"), **{"k8s.pod.name": "pod-7"})]
    written(tmp_path / "a.jsonl", lines)
    asked = {(): "shop/pod-7", ("service.name",): "shop", ("k8s.pod.name", "thread.name"): "pod-7/t-1"}
    for process_of, expected in asked.items():
        [row] = read_spans(spark, tmp_path / "a.jsonl", process=process_of).spans.collect()
        assert row.process == expected


# Nodes of our own, judged from their telemetry.


@pytest.mark.parametrize(
    ("protocol", "verdict", "words"),
    [
        ("matrix", "yes", "yes: 1 run, 3 deliveries, nothing wrong"),
        ("fifo", "no", "reader was handed send helper,reader ("),
    ],
)
def test_nodes_are_judged_from_their_own_spans(warm, tmp_path, protocol, verdict, words):
    worker = [sys.executable, "-m", "tests.net_spans_worker", protocol, str(tmp_path / "spans.jsonl")]
    subprocess.run(worker, check=True, cwd=Path(__file__).parents[2])
    options = ("--format", "otlp", "--process", "messaging.client.id", "--out", tmp_path / "out")
    ended = warm("ingest", tmp_path / "spans.jsonl", *options)
    assert ended.returncode == 0, ended.stderr
    assert "2 messages, 3 deliveries" in ended.stderr
    ended = warm("verify", tmp_path / "out", "--json")
    assert ended.returncode == (verdict == "no"), ended.stderr
    told = json.loads(ended.stdout)
    assert (told["verdict"], told["causality"], told["judged"]) == (verdict, "stated", 1)
    assert "causality: stated, by parents and links, 1 cause judged;" in ended.stderr
    assert words in ended.stderr
