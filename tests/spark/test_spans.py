"""Spans of every format become one table, and what cannot be read is told."""

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from antecede.errors import BadParameter
from antecede.spark import missing, order, read_spans
from antecede.spark.spans.otlp import find_usual, read_id
from antecede.spark.spans.schema import Wrong, name_kind, read_integer
from tests.spark.otlp_lines import full_id, make_line, send

DATA = Path(__file__).parents[1] / "data" / "spans"
REAL = Path(__file__).parents[3] / "shared" / "data" / "spans"
real = pytest.mark.skipif(not REAL.is_dir(), reason=f"no spans at {REAL}: they are no part of the project")

SHOP, BILLING = "5b8efff798038103d269b633813fc60c", "0af7651916cd43dd8448eb211c80319c"
CHECKOUT, SEND, AUDIT = (f"{SHOP}:eee19b7ec3c1b17{last}" for last in "456")
PROCESS, WRITE = (f"{BILLING}:b7ad6b716920333{last}" for last in "12")
LOST = f"{BILLING}:00f067aa0ba902b7"
START_NS = 1661140374351773094

NEZHA = {
    "id": "SpanID",
    "trace_id": "TraceID",
    "parent": "ParentID",
    "instance": "PodName",
    "name": "OperationName",
    "start_ns": "StartTimeUnixNano",
    "end_ns": "EndTimeUnixNano",
}


def by_id(spans):
    return {row.id: row for row in spans.collect()}


def pick_messaging(row):
    return tuple(row[f"messaging_{name}"] for name in ("system", "destination", "operation", "message_id"))


@pytest.fixture(scope="module")
def otlp(spark):
    spans, rejected = read_spans(spark, DATA / "otlp.jsonl")
    return by_id(spans), {row.text: row.reason for row in rejected.collect()}


def test_a_span_names_its_parent_and_its_links(otlp):
    spans, _ = otlp
    assert {id: row.causes for id, row in spans.items()} == {
        CHECKOUT: [],
        SEND: [CHECKOUT],
        AUDIT: [CHECKOUT],
        PROCESS: [SEND],
        WRITE: [LOST],
    }
    assert (spans[SEND].parent, spans[SEND].links) == (CHECKOUT, [])
    assert (spans[PROCESS].parent, spans[PROCESS].links) == (None, [SEND])
    assert (spans[SEND].trace_id, spans[SEND].span_id) == (SHOP, "eee19b7ec3c1b175")


def test_nanoseconds_are_kept(otlp):
    spans, _ = otlp
    row = spans[CHECKOUT]
    assert (row.start_ns, row.end_ns) == (START_NS, START_NS + 11209415)
    epoch = dt.datetime(1970, 1, 1)
    assert (row.start - epoch) // dt.timedelta(microseconds=1) == START_NS // 1000
    assert spans[SEND].start_ns == START_NS + 1


def test_kinds_are_numbers_or_names(otlp):
    spans, _ = otlp
    kinds = {CHECKOUT: "server", SEND: "producer", AUDIT: "producer", PROCESS: "consumer", WRITE: "internal"}
    assert {id: row.kind for id, row in spans.items()} == kinds


@pytest.mark.parametrize("kind", ["3", "Client", "CLIENT", "SPAN_KIND_CLIENT"])
def test_a_kind_may_be_written_in_four_ways(kind):
    assert name_kind(kind) == "client"


@pytest.mark.parametrize("kind", ["0", "7", "", "SPAN_KIND_UNSPECIFIED", "unspecified", "sensor", None])
def test_a_kind_that_nobody_defined_is_none(kind):
    assert name_kind(kind) is None


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("00000000000000a1", "00000000000000a1"),
        ("00000000000000A1", "00000000000000a1"),
        ("AAAAAAAAAKE=", "00000000000000a1"),
        *((text, None) for text in ("", "0" * 16, "a1", "0" * 15 + "g", "0" * 16 + "a", "AAAAAAAAAAA=")),
        *((text, None) for text in ("-000000000000001", " 00000000000001a", "0" * 15 + "a\n", "\u0661" * 16)),
    ],
)
def test_only_eight_bytes_in_hex_or_base64_are_an_id(text, id):
    if id is not None:
        assert read_id(text, "spanId", 8) == id
        return
    with pytest.raises(Wrong, match=r"^its spanId is not 8 bytes in hex or base64: "):
        read_id(text, "spanId", 8)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("5", 5), ("05", 5), (5, 5), ("1661140374351773094", 1661140374351773094)),
        *(("9223372036854775807", (1 << 63) - 1), ("9223372036854775808", None), (1 << 63, None)),
        *((text, None) for text in ("-5", "+5", " 5", "5 ", "5\n", "1.5", "1e3", "", "\u0665", "0x5", "5_0")),
        *((value, None) for value in (-5, 1.5, 2.0, True, None)),
    ],
)
def test_only_digits_are_an_integer(text, number):
    assert read_integer(text) == number


ODD_IDS = [
    "",
    "0",
    "0" * 16,
    "0" * 32,
    "f" * 15,
    "F" * 16,
    "f" * 16 + "\n",
    "g" * 16,
    "\u0661" * 16,
    "f" * 33,
    None,
]
ODD_TIMES = [
    "",
    "0",
    "05",
    "9",
    "-5",
    "+5",
    " 5",
    "1.5",
    "0x5",
    "\u0665",
    "9" * 19,
    "1" * 20,
    "soon",
    "null",
    None,
]


def test_what_columns_call_usual_is_what_reading_each_span_finds():
    trace, span = "0" * 31 + "a", "0" * 15 + "a"
    usual = [(trace, span, span, "5", "8" * 19), (trace, span, None, "1", "1661140374351773094")]
    odd: list[tuple[str | None, ...]] = [(id, span, span, "5", "5") for id in [*ODD_IDS, span]]
    odd += [(trace, id, None, "5", "5") for id in [*ODD_IDS, trace]]
    odd += [(trace, span, id, "5", "5") for id in [*filter(None, ODD_IDS), trace]]
    odd += [(trace, span, None, *both) for time in ODD_TIMES for both in ((time, "5"), ("5", time))]
    columns = [pa.array(column, pa.string()) for column in zip(*usual, *odd, strict=True)]
    assert find_usual(*columns) == [True] * len(usual) + [False] * len(odd)
    for of, id, _, *times in usual:
        assert (read_id(of, "", 16), read_id(id, "", 8)) == (of, id)
        assert [read_integer(time) for time in times] == [int(time) for time in times]


def test_old_names_of_attributes_mean_what_the_new_ones_do(otlp):
    spans, _ = otlp
    assert pick_messaging(spans[SEND]) == ("kafka", "orders", "send", "m-1")
    assert pick_messaging(spans[PROCESS]) == ("kafka", "orders", "process", "m-1")
    # The oldest conventions forbade an operation on a send.
    assert pick_messaging(spans[AUDIT]) == ("rabbitmq", "audit", "send", None)
    assert pick_messaging(spans[WRITE]) == (None, None, None, None)


def test_a_process_is_a_service_and_its_instance(otlp):
    spans, _ = otlp
    assert (spans[SEND].service, spans[SEND].instance, spans[SEND].process) == (
        "shop",
        "shop-1",
        "shop/shop-1",
    )
    assert (spans[WRITE].instance, spans[WRITE].process) == ("h1/4711", "billing/h1/4711")
    assert (spans[AUDIT].instance, spans[AUDIT].process) == (None, "audit")


def test_what_cannot_be_read_is_told(otlp):
    _, rejected = otlp
    lines = (DATA / "otlp.jsonl").read_text().splitlines()
    broken = "it is no OTLP in JSON"
    [span] = [text for text, reason in rejected.items() if reason.startswith("its spanId")]
    assert rejected == {
        # Cut off; no JSON; a document behind a document, which Spark's parser does not see; no list of resources.
        lines[1]: broken,
        lines[3]: broken,
        lines[8]: broken,
        lines[9]: broken,
        lines[5]: "it has neither resourceSpans nor batches",
        span: "its spanId is not 8 bytes in hex or base64: nothex",
    }
    assert json.loads(span)["name"] == "broken"


WRONG: list[tuple[str, object, str | None]] = [
    ("traceId", "", "its traceId is not 16 bytes in hex or base64: "),
    ("traceId", "0" * 32, "its traceId is not 16 bytes in hex or base64: " + "0" * 32),
    ("spanId", None, "its spanId is not 8 bytes in hex or base64: "),
    ("parentSpanId", "12", "its parentSpanId is not 8 bytes in hex or base64: 12"),
    ("startTimeUnixNano", "soon", "its startTimeUnixNano is no integer: soon"),
    ("startTimeUnixNano", "1.5", "its startTimeUnixNano is no integer: 1.5"),
    ("endTimeUnixNano", "9" * 19, "its endTimeUnixNano is no integer: " + "9" * 19),
    ("links", [{"traceId": SHOP}], "it has a link without ids of 16 and 8 bytes"),
    ("links", "none", "it is no OTLP in JSON"),
    ("attributes", {"a": 1}, "it is no OTLP in JSON"),
    ("parentSpanId", "0" * 16, None),
    ("startTimeUnixNano", START_NS, None),
    ("endTimeUnixNano", None, None),
    ("unknownField", [[{}]], None),
]


def test_a_span_that_is_wrong_is_rejected_with_the_reason(spark, tmp_path):
    lines = []
    for case, (field, value, _) in enumerate(WRONG):
        span = {"traceId": SHOP, "spanId": "eee19b7ec3c1b174", "name": f"case {case}", field: value}
        lines.append(json.dumps({"resourceSpans": [{"scopeSpans": [{}, {"spans": [span]}]}]}))
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    spans, rejected = read_spans(spark, tmp_path)
    reasons = {row.text.partition('"case ')[2].partition('"')[0]: row.reason for row in rejected.collect()}
    assert reasons == {str(case): reason for case, (*_, reason) in enumerate(WRONG) if reason is not None}
    sound = {f"case {case}" for case, (*_, reason) in enumerate(WRONG) if reason is None}
    assert {row.name for row in spans.collect()} == sound


def test_a_rejected_span_may_hold_bytes_that_are_no_text(spark, tmp_path):
    """The task failed."""
    span = {"traceId": SHOP, "spanId": "nothex", "attributes": [{"key": "a?"}]}
    line = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    (tmp_path / "a.jsonl").write_bytes(line.encode().replace(b"a?", b"a\xff"))
    [row] = read_spans(spark, tmp_path).rejected.collect()
    assert row.reason == "its spanId is not 8 bytes in hex or base64: nothex"
    assert "a\ufffd" in row.text


def test_tempo_writes_the_same_spans_in_base64_over_many_lines(spark, otlp):
    spans, rejected = read_spans(spark, DATA / "tempo.json")
    assert rejected.count() == 0
    expected = {id: row for id, row in otlp[0].items() if id != AUDIT}
    assert by_id(spans) == expected


def test_tempo_also_wraps_a_trace(spark, tmp_path, otlp):
    (tmp_path / "a.json").write_text('{"trace":' + (DATA / "tempo.json").read_text() + "}")
    spans, rejected = read_spans(spark, tmp_path / "a.json")
    assert (set(by_id(spans)), rejected.count()) == (set(otlp[0]) - {AUDIT}, 0)


def test_documents_may_stand_in_an_array(spark, tmp_path, otlp):
    line = (DATA / "otlp.jsonl").read_text().splitlines()[0]
    (tmp_path / "a.json").write_text(f"[{line}, {line}]")
    (tmp_path / "b.json").write_text(f"[{line}, 1]")
    spans, rejected = read_spans(spark, tmp_path)
    assert {row.id for row in spans.collect()} <= set(otlp[0])
    [wrong] = rejected.collect()
    assert (spans.count() % 2, wrong.text, wrong.reason) == (0, f"[{line}, 1]", "it is no OTLP in JSON")


def test_an_array_may_have_each_document_on_a_line(spark, tmp_path, otlp):
    """Its commas and brackets were taken for parts of the documents."""
    lines = (DATA / "otlp.jsonl").read_text().splitlines()[:3:2]
    (tmp_path / "a.json").write_text(f"[{lines[0]},\n{lines[1]}]\n")
    (tmp_path / "b.json").write_text(f"[\n{lines[0]},\n{lines[1]}\n]\n")
    spans, rejected = read_spans(spark, tmp_path)
    found = [row.id for row in spans.collect()]
    one, _ = read_spans(spark, tmp_path / "a.json")
    assert sorted(found) == sorted(2 * [row.id for row in one.collect()])
    assert len(found) > 2
    assert rejected.count() % 2 == 0, "what is wrong with a span of these lines is so in both files"
    assert not [row for row in rejected.collect() if row.reason == "it is no OTLP in JSON"]


def test_a_link_that_leads_nowhere_is_no_link(spark, tmp_path):
    """Contexts that were not valid are recorded with zeros: the span was rejected for them."""
    span = send("ask", 1, links=[("x", "u")])
    nowhere: list[dict[str, str]] = [
        {},
        {"traceId": "0" * 32, "spanId": "0" * 16},
        {"traceId": "", "spanId": ""},
    ]
    span["links"] += nowhere
    half = send("half", 2)
    half["links"] = [{"traceId": span["traceId"], "spanId": ""}]
    (tmp_path / "a.jsonl").write_text(make_line("shop", span, half))
    spans, rejected = read_spans(spark, tmp_path / "a.jsonl")
    assert [row.links for row in spans.collect()] == [[full_id("x", "u")]]
    assert [row.reason for row in rejected.collect()] == ["it has a link without ids of 16 and 8 bytes"]


@pytest.mark.parametrize("size", [1 << 20, 1511])
def test_documents_are_found_wherever_a_file_is_cut(spark, tmp_path, size):
    lines = (DATA / "otlp.jsonl").read_text()
    text = "\n" + lines + (DATA / "tempo.json").read_text() + "\ntail\n" + lines.replace("\n", "\r\n")
    (tmp_path / "a.json").write_bytes(text.encode())
    names = {"spark.sql.files.maxPartitionBytes": size, "spark.sql.files.openCostInBytes": 1}
    before = {name: spark.conf.get(name) for name in names}
    try:
        for name, value in names.items():
            spark.conf.set(name, value)
        spans, rejected = read_spans(spark, tmp_path)
        assert (spans.rdd.getNumPartitions() > 4) == (size < len(text))
        assert (spans.count(), rejected.count()) == (5 + 4 + 5, 6 + 1 + 6)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_jaeger(spark):
    spans, rejected = read_spans(spark, DATA / "jaeger.json", "jaeger")
    found = by_id(spans)
    second = f"{SHOP}:000007b169203331"
    assert set(found) == {CHECKOUT, second}
    row = found[second]
    assert (row.parent, row.links, row.causes) == (CHECKOUT, [PROCESS], [CHECKOUT, PROCESS])
    micros = START_NS // 1000
    assert (row.start_ns, row.end_ns) == ((micros + 1) * 1000, (micros + 4) * 1000)
    assert (row.name, row.kind, row.process) == ("orders process", "consumer", "billing/b-7")
    assert pick_messaging(row) == ("rabbitmq", None, "process", None)
    assert (found[CHECKOUT].instance, found[CHECKOUT].kind) == ("pod-a", "server")
    [wrong] = rejected.collect()
    assert wrong.reason == "its startTime is no integer: soon"
    assert wrong.file.endswith("jaeger.json")


def test_traces_of_jaeger_by_themselves(spark, tmp_path):
    lines = {
        '{"data": [{"spans": [': "it is no JSON of Jaeger",
        '{"resourceSpans": []}': "it has neither data nor spans",
        '{"spans": [{"traceID": "xyz", "spanID": "1"}]}': "its traceID is no hex: xyz",
        '{"spans": [{"traceID": "a", "spanID": "0"}]}': "its spanID is no hex: 0",
        '{"spans": [{"traceID": "a", "spanID": "1", "references": [{"refType": "CHILD_OF"}]}]}': (
            "it has a reference without ids in hex"
        ),
        '{"spans": [{"traceID": "a", "spanID": "1", "startTime": 9999999999999999}]}': (
            "its startTime is no integer: 9999999999999999"
        ),
        '{"spans": [{"traceID": "a", "spanID": "1", "parentSpanID": "2"}]}': None,
        # A span by itself, as Jaeger's storages have them.
        '{"traceID": "a", "spanID": "3", "parentSpanID": "2", "process": {"serviceName": "shop"}}': None,
    }
    (tmp_path / "a.json").write_text("\n".join(lines))
    spans, rejected = read_spans(spark, tmp_path, "jaeger")
    assert sorted(row.reason for row in rejected.collect()) == sorted(filter(None, lines.values()))
    trace = "a".rjust(16, "0")
    assert [row.causes for row in spans.collect()] == 2 * [[f"{trace}:{'2'.rjust(16, '0')}"]]
    assert {row.process for row in spans.collect()} == {None, "shop"}


def test_rows_of_clickhouse(spark):
    spans, rejected = read_spans(spark, DATA / "otel_traces.jsonl", "spans")
    found = by_id(spans)
    assert set(found) == {CHECKOUT, PROCESS}
    assert (found[CHECKOUT].start_ns, found[CHECKOUT].end_ns) == (START_NS, START_NS + 11209415)
    assert (found[CHECKOUT].process, found[CHECKOUT].kind) == ("shop/shop-1", "server")
    assert (found[PROCESS].causes, found[PROCESS].start_ns) == ([CHECKOUT], START_NS + 5)
    assert pick_messaging(found[PROCESS]) == ("kafka", None, "receive", None)
    reasons = {row.reason: row.text for row in rejected.collect()}
    assert set(reasons) == {"its start_ns is no time: soon", "it has no id", "it is no row of the table"}
    assert reasons["it is no row of the table"] == '{"TraceId": "cut'


def test_clickhouse_in_parquet_with_timestamps(spark, tmp_path):
    at = dt.datetime(2022, 8, 22, 3, 52, 54, 351773, tzinfo=dt.UTC)
    columns = {
        "Timestamp": pa.array([at], pa.timestamp("us", "UTC")),
        "TraceId": ["t"],
        "SpanId": ["s"],
        "SpanAttributes": pa.array(
            [[("messaging.operation.type", "settle")]], pa.map_(pa.string(), pa.string())
        ),
        "Links.TraceId": [["u"]],
        "Links.SpanId": [["r"]],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    [row] = read_spans(spark, tmp_path, "spans").spans.collect()
    assert (row.id, row.causes, row.start_ns) == ("t:s", ["u:r"], START_NS // 1000 * 1000)
    assert row.messaging_operation == "settle"


def test_a_line_of_csv_with_too_few_or_too_many_values_is_no_root(spark, tmp_path):
    text = "t,s,p\na,1,root\na,2,1\na,3\na,4,1,9\na,,1\na,5,none\n"
    (tmp_path / "a.csv").write_text(text)
    mapping = {"trace_id": "t", "id": "s", "parent": "p"}
    spans, rejected = read_spans(spark, tmp_path, "spans", mapping, no_cause=["root", "none"])
    assert {row.id: row.causes for row in spans.collect()} == {"a:1": [], "a:2": ["a:1"], "a:5": []}
    told = {(row.text, row.reason) for row in rejected.collect()}
    row = '{"t":"a","p":"1"}'
    broken = "it is no row of the table"
    assert told == {("a,3", broken), ("a,4,1,9", broken), (row, "it has no id")}


@pytest.mark.parametrize(
    ("format", "mapping", "wrong"),
    [
        ("zipkin", None, "format must be one of otlp, jaeger, spans, not 'zipkin'"),
        ("otlp", {"id": "a", "trace_id": "b"}, "map is for the format spans, not for otlp"),
        ("spans", {"id": "SpanID"}, "map must name the columns for id and trace_id, and has no trace_id"),
        (
            "spans",
            {"id": "SpanID", "trace_id": "t", "span": "x"},
            "the key of map span=x must be one of id, trace_id",
        ),
        ("spans", {**NEZHA, "link_span_ids": "x"}, "map has only one of link_trace_ids and link_span_ids"),
        ("spans", {**NEZHA, "duration_ns": "x"}, "map has both end_ns and duration_ns"),
        ("spans", NEZHA, "map has id=SpanID, and the table has no such column; its columns are a, b"),
        (
            "spans",
            None,
            "the table has no column SpanId, as ClickHouse's otel_traces has: map at least id and trace_id to its "
            "columns, which are a, b",
        ),
    ],
)
def test_a_wrong_request_is_refused(spark, tmp_path, format, mapping, wrong):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadParameter, match=f"^read_spans: {wrong}"):
        read_spans(spark, tmp_path / "a.csv", format, mapping)


def test_spans_are_ordered_as_they_are(spark):
    spans, _ = read_spans(spark, DATA / "otlp.jsonl")
    apart = order(spans, id="id", causes="causes", partition_by="trace_id", time="start_ns")
    assert {row.id for row in missing(apart).collect()} == {LOST, SEND}
    # Links lead from trace to trace.
    together = order(spans, id="id", causes="causes", time="start_ns")
    assert [row.id for row in missing(together).collect()] == [LOST]
    assert [row.id for row in together.orderBy("position").collect()] == [
        CHECKOUT,
        SEND,
        AUDIT,
        PROCESS,
        WRITE,
    ]


@real
@pytest.mark.parametrize(
    ("name", "count", "traces"), [("2023-01-29-08_44", 4907, 59), ("2022-08-22-03_53", 23019, 497)]
)
def test_real_spans_by_a_mapping(spark, name, count, traces):
    spans, rejected = read_spans(spark, REAL / f"{name}.csv.gz", "spans", NEZHA)
    assert rejected.count() == 0
    ordered = order(spans, id="id", causes="causes", partition_by="trace_id", time="start_ns").cache()
    assert (ordered.count(), ordered.select("trace_id").distinct().count()) == (count, traces)
    assert missing(ordered).count() == 0
    before = ordered.select(F.col("id").alias("parent"), F.col("position").alias("at"))
    assert ordered.join(before, "parent").where("at >= position").count() == 0
    assert ordered.where("start_ns % 1000 != 0").count() > 0
    ordered.unpersist()


# The command


def test_the_command_writes_what_order_takes(warm, tmp_path):
    ended = warm("ingest", DATA / "otlp.jsonl", "--format", "otlp", "--out", tmp_path / "out", "--json")
    assert ended.returncode == 1, ended.stderr
    told = json.loads(ended.stdout)
    assert {name: told[name] for name in ("verdict", "spans", "traces", "rejected", "causes", "across")} == {
        "verdict": "no",
        "spans": 5,
        "traces": 2,
        "rejected": 6,
        "causes": 4,
        "across": 1,
    }
    assert len(told["examples"]) == 5
    assert "no: 5 spans of 2 traces, 4 causes stated; 2 messages, 1 delivery; 6 lines or" in ended.stderr
    assert "1 causes are in another trace" in ended.stderr
    assert len(pq.read_table(tmp_path / "out" / "rejected")) == 6
    options = ("--id", "id", "--causes", "causes", "--partition-by", "trace_id", "--time", "start_ns")
    ended = warm("order", tmp_path / "out" / "spans", *options, "--out", tmp_path / "ordered", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["missing"]) == (1, 2)


@real
def test_the_command_reads_real_spans(warm, tmp_path):
    columns = ",".join(f"{ours}={theirs}" for ours, theirs in NEZHA.items())
    source = REAL / "2023-01-29-08_43.csv.gz"
    ended = warm("ingest", source, "--format", "spans", "--map", columns, "--out", tmp_path / "out")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith(
        "yes: 4,445 spans of 53 traces, 4,392 causes stated; 0 messages, 0 deliveries; 0 lines or spans rejected; "
        "no span is of a message, so try --rpc, by which calls are messages, too"
    )
    options = ("--id", "id", "--causes", "causes", "--partition-by", "trace_id", "--time", "start_ns")
    ended = warm("order", tmp_path / "out" / "spans", *options, "--out", tmp_path / "ordered")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("yes: nothing is missing; 4,445 rows")


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (
            ["--format", "zipkin"],
            "--format must be one of shiviz, tracing, tlaplus, table, otlp, jaeger, spans, not 'zipkin'",
        ),
        (["--format", "jaeger", "--map", "id=a"], "map is for the format spans, not for jaeger"),
        (["--format", "spans", "--map", "id=a,span=b"], "the key of map span=b must be one of"),
        (["--format", "otlp", "--pattern", "a"], "the format otlp has no option --pattern"),
        (["--format", "shiviz", "--rpc"], "the format shiviz has no option --rpc"),
        (["--format", "otlp", "--no-cause", "a"], "--no-cause is for the format spans, not for otlp"),
        (["--format", "shiviz", "--no-cause", "a"], "the format shiviz has no option --no-cause"),
    ],
)
def test_a_wrong_command_is_refused_before_spark_starts(capsys, tmp_path, options, wrong):
    from antecede.cli import run

    # Files are looked for when Spark is about to start.
    code = run(["ingest", "nowhere.json", "--out", str(tmp_path / "out"), *options])
    assert code == 2
    assert wrong in capsys.readouterr().err
