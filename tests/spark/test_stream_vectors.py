"""A stream of events that carry vectors: without Spark on random histories, against the rule itself; and on Spark."""

from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from antecede.errors import BadParameter, BadSnapshot
from antecede.spark import order
from antecede.spark.stream import status_of, waiting
from antecede.spark.stream.status import open_state
from antecede.spark.stream.vectors import VectorBucket, VectorSettings

MAPS = pa.schema(
    [
        pa.field("__partition", pa.string()),
        pa.field("who", pa.string()),
        pa.field("clock", pa.map_(pa.string(), pa.int64())),
        pa.field("note", pa.list_(pa.struct([("a", pa.int64())]))),
    ]
)
ARRAYS = pa.schema(
    [MAPS.field(0), pa.field("who", pa.int64()), pa.field("clock", pa.list_(pa.int64())), MAPS.field(3)]
)
SETTINGS = VectorSettings("who", "clock")


def history(random, events=60, partitions=2, processes=4):
    """(partition, process, vector) of events that merge what they have seen, in the order in which they happened."""
    clocks = {(part, who): [0] * processes for part in range(partitions) for who in range(processes)}
    rows = []
    for _ in range(events):
        part, who = random.randrange(partitions), random.randrange(processes)
        other = clocks[part, random.randrange(processes)]
        mine = clocks[part, who] = list(map(max, clocks[part, who], other))
        mine[who] += 1
        rows.append((f'["{part}"]', who, tuple(mine)))
    return rows


def table_of(rows, schema=MAPS):
    def values(part, who, vector):
        if schema is ARRAYS:
            return (part, who, list(vector))
        return (part, f"p{who}", [(f"p{at}", count) for at, count in enumerate(vector) if count])

    made = [dict(zip(schema.names, (*values(*row), [{"a": at}]), strict=True)) for at, row in enumerate(rows)]
    return pa.Table.from_pylist(made, schema)


def run_in(parts, settings=SETTINGS, *, schema=MAPS, restart=True, now=lambda part: part):
    bucket: Any = VectorBucket(settings)
    out: list[dict[str, Any]] = []
    status: Any = None
    for at, part in enumerate(parts):
        found, status = bucket.advance(table_of(part, schema) if part else None, now(at))
        out += [] if found is None else found.to_pylist()
        if restart:
            bucket = settings.open(bucket.dump())
    return out, status


def cut(rows, random, parts):
    ends = [0, *sorted(random.randrange(len(rows)) for _ in range(parts - 1)), len(rows)]
    return [rows[a:b] for a, b in pairwise(ends)]


def vector_of(row):
    return dict(row["clock"]) if isinstance(row["who"], str) else dict(enumerate(row["clock"]))


def check_order(out, lost=()):
    """Positions have no gaps, and no row is before one that its vector says happened before."""
    for part in {row["__partition"] for row in out}:
        rows = sorted((row for row in out if row["__partition"] == part), key=lambda row: row["position"])
        assert [row["position"] for row in rows] == list(range(len(rows)))
        seen = set(lost)
        for row in rows:
            vector = vector_of(row)
            before = {(part, who, number) for who, count in vector.items() for number in range(1, count + 1)}
            assert before - {(part, row["who"], vector[row["who"]])} <= seen, row
            seen.add((part, row["who"], vector[row["who"]]))


@pytest.mark.parametrize("schema", [MAPS, ARRAYS], ids=["maps", "arrays"])
@pytest.mark.parametrize("seed", range(10))
def test_every_row_comes_out_once_after_its_past_however_it_is_cut(seed, schema):
    random = Random(f"vectors {seed}")
    rows = history(random)
    parts = cut(random.sample(rows, len(rows)), random, 6)
    out, status = run_in(parts, schema=schema)
    assert (len(out), status.held) == (len(rows), 0)
    assert {row["kind"] for row in out} == {"delivered"}
    assert all(row["waits_for"] == [] and row["note"] for row in out)
    check_order(out)
    assert out == run_in(parts, schema=schema, restart=False)[0]
    shuffled = [random.sample(part, len(part)) for part in parts]
    other, _ = run_in(shuffled, schema=schema)
    named = [{(row["__partition"], row["position"]): row["who"] for row in found} for found in (out, other)]
    assert named[0] == named[1], "what a micro-batch brings has no order"


@pytest.mark.parametrize("seed", range(10))
def test_what_never_comes_is_given_up_and_comes_late(seed):
    random = Random(f"lost {seed}")
    rows = history(random)
    lost = random.sample(rows[:30], 3)
    here = [row for row in rows if row not in lost]
    settings = VectorSettings("who", "clock", patience_ms=10)
    out, status = run_in([random.sample(here, len(here)), [], lost], settings, now=lambda at: 10 * at)
    assert status.held == 0
    assert sorted((r["__partition"], r["who"], tuple(sorted(vector_of(r).items()))) for r in out) == sorted(
        (r["__partition"], r["who"], tuple(sorted(vector_of(r).items()))) for r in table_of(rows).to_pylist()
    )
    gone = {(part, f"p{who}", vector[who]) for part, who, vector in lost}
    early = [row for row in out if row["kind"] != "late"]
    assert len(out) - len(early) == len(lost)
    check_order(early, gone)
    for row in early:
        vector = vector_of(row)
        own = row["who"]
        newest = {(who, number - (who == own)) for who, number in vector.items()}
        missing = {who for who, number in newest if (row["__partition"], who, number) in gone}
        assert {one["process"] for one in row["waits_for"]} == missing
        assert row["kind"] == ("released" if missing else "delivered")


def test_two_lost_rows_are_the_two_that_are_named():
    random = Random("roots")
    rows = history(random, events=600, partitions=1, processes=5)
    ours = [row for row in rows if row[1] == 3]
    for lost in ([ours[4], ours[9]], [ours[4], next(row for row in rows[40:] if row[1] == 1)]):
        here = [row for row in rows if row not in lost]
        _, status = run_in([here])
        named = {(cause.sender, cause.first, cause.last) for cause in status.causes}
        assert named == {(f"p{who}", vector[who], vector[who]) for _, who, vector in lost}
        assert status.held > 100
        assert max(cause.held for cause in status.causes) == status.held
        bucket = VectorBucket(SETTINGS)
        bucket.advance(table_of(here), 0)
        held = open_state(bucket.dump()).list_held()
        assert len(held) == status.held
        asked = {(one["sender"], one["first"], one["last"]) for row in held for one in row["awaits"]}
        assert asked == named, "each row is told what is missing at its root"
    assert status.describe_waits().startswith(f"2 messages hold up {status.held:,}: ")


def test_copies_come_out_and_say_so_and_what_is_no_vector_is_refused():
    first, second = ('["0"]', 0, (1, 0)), ('["0"]', 1, (1, 1))
    out, _ = run_in([[second, second], [first], [first, second]])
    assert [(row["who"], row["kind"]) for row in out] == [
        ("p0", "delivered"),
        ("p1", "delivered"),
        ("p1", "repeated"),
        ("p0", "repeated"),
        ("p1", "repeated"),
    ]
    bad = pa.Table.from_pylist(
        [
            {"__partition": "", "who": None, "clock": [("p1", 1)]},
            {"__partition": "", "who": "p1", "clock": None},
            {"__partition": "", "who": "p1", "clock": [("p2", 1)]},
            {"__partition": "", "who": "p1", "clock": [("p1", 1), ("p2", -1)]},
            {"__partition": "", "who": "p1", "clock": [("p1", 1)]},
        ],
        MAPS,
    )
    found, status = VectorBucket(SETTINGS).advance(bad, 0)
    assert found is not None
    told = sorted((row["kind"], row["position"], row["reason"] or "") for row in found.to_pylist())
    assert [row for row in told if row[0] == "delivered"] == [("delivered", 0, "")]
    assert [row[2] for row in told if row[0] == "refused"] == [
        "a negative entry", "no name of its process", "no number of its own", "no vector",
    ]  # fmt: skip
    assert (status.refused, status.held) == (4, 0)


def test_vectors_that_contradict_each_other_are_released_when_patience_ends():
    rows = [("", 0, (1, 1)), ("", 1, (1, 1)), ("", 0, (2, 1))]
    out, status = run_in([rows], VectorSettings("who", "clock"))
    assert (out, status.held) == ([], 3)
    out, status = run_in([rows, []], VectorSettings("who", "clock", patience_ms=5), now=lambda at: 5 * at)
    assert status.held == 0
    assert sorted(row["kind"] for row in out) == ["delivered", "delivered", "released"]


def test_a_row_that_is_released_before_an_earlier_one_of_its_process_says_so_and_that_one_comes_late():
    """The first event of process 0 has a vector with two events of process 1, the second of which follows it."""
    rows = [("", 0, (1, 2)), ("", 0, (2, 0)), ("", 1, (0, 1)), ("", 1, (2, 2))]
    out, status = run_in([rows, []], VectorSettings("who", "clock", patience_ms=5), now=lambda at: 5 * at)
    assert status.held == 0
    found = [
        (dict(row["clock"]), row["kind"], [(one["process"], one["number"]) for one in row["waits_for"]])
        for row in out
    ]
    assert found == [
        ({"p1": 1}, "delivered", []),
        ({"p0": 2}, "released", [("p0", 1)]),
        ({"p0": 2, "p1": 2}, "delivered", []),
        ({"p0": 1, "p1": 2}, "late", []),
    ]


def test_a_silent_partition_is_forgotten_and_the_state_stays_bounded():
    settings = VectorSettings("who", "clock", remember_ms=100)
    bucket = VectorBucket(settings)
    sizes = []
    for batch in range(30):
        rows = [(f'["{batch}-{part}"]', batch, (0,) * batch + (1,)) for part in range(20)]
        bucket.advance(table_of(rows), 20 * batch)
        sizes.append(len(bucket.dump()))
        bucket = settings.open(bucket.dump())
    assert len(bucket.partitions) <= 2 * 6 * 20
    assert len(bucket.processes) <= 2 * 6
    assert max(sizes[12:]) <= 2.2 * sizes[6]


def test_a_state_with_other_buckets_is_refused():
    with pytest.raises(BadSnapshot, match="written with buckets 1, not 4"):
        VectorSettings("who", "clock", buckets=4).open(VectorBucket(SETTINGS).dump())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"vector": "other", "partition_by": ""}, "written with vector clock, not other"),
        ({"vector": "clock", "partition_by": "room"}, "written with partition_by none, not room"),
    ],
)
def test_a_query_by_other_columns_is_refused(changed, words):
    kept, other = (
        VectorSettings("who", "clock", columns=columns)
        for columns in ({"vector": "clock", "partition_by": ""}, changed)
    )
    with pytest.raises(BadSnapshot, match=words):
        other.open(VectorBucket(kept).dump())


def write_files(directory, rows, parts):
    directory.mkdir(exist_ok=True)
    size = -(-len(rows) // parts)
    for part in range(parts):
        pq.write_table(table_of(rows[part * size : (part + 1) * size]), directory / f"{part}.parquet")


def run_here(spark, home):
    schema = "__partition string, who string, clock map<string, bigint>, note array<struct<a: bigint>>"
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 4).parquet(str(home / "in"))
    stream = stream.withColumnRenamed("__partition", "room")
    writer = order(stream, process="who", vector="clock", partition_by="room", buckets=4).writeStream
    writer = writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True)
    query = writer.start(str(home / "out"))
    query.awaitTermination()
    return [told.status for told in map(status_of, query.recentProgress) if told is not None]


def test_a_stream_of_vectors_keeps_all_columns_over_restarts(spark, tmp_path):
    random = Random(3)
    rows = history(random, events=200, partitions=5)
    shuffled = random.sample(rows, len(rows))
    write_files(tmp_path / "in", shuffled[:120], 2)
    first = run_here(spark, tmp_path)
    assert first[-1].held > 0
    assert first[-1].causes
    held = waiting(spark, tmp_path / "checkpoint").toArrow().to_pylist()
    assert len(held) == first[-1].held
    assert all(row["awaits"] for row in held)
    pq.write_table(table_of(shuffled[120:]), tmp_path / "in" / "last.parquet")
    assert run_here(spark, tmp_path)[-1].held == 0
    out = (
        spark.read.parquet(str(tmp_path / "out"))
        .withColumnRenamed("room", "__partition")
        .toArrow()
        .to_pylist()
    )
    assert len(out) == len(rows)
    assert all(row["note"] for row in out)
    check_order(out)


def test_what_is_no_stream_of_vectors_is_refused(spark, tmp_path):
    stream = spark.readStream.schema("who string, clock array<bigint>, kind string").parquet(str(tmp_path))
    with pytest.raises(BadParameter, match="the table has a column kind"):
        order(stream, process="who", vector="clock")
    with pytest.raises(BadParameter, match="process must be text with maps and integers with arrays"):
        order(stream.drop("kind"), process="who", vector="clock")
    with pytest.raises(
        BadParameter, match="patience must be a time such as 30 seconds or 7 days, not 'soon'"
    ):
        order(stream.drop("kind"), process="who", vector="clock", patience="soon")
    with pytest.raises(BadParameter, match="a stream"):
        order(stream.drop("kind"), process="who", vector="clock", window=(1, 2))


def test_a_reason_stays_with_the_row_that_is_refused():
    """A row that is released in the same micro-batch comes out after one that is refused, and has no reason."""
    settings = VectorSettings("who", "clock", patience_ms=10)
    bucket = VectorBucket(settings)
    bucket.advance(table_of([("", 0, (1, 1))]), 0)
    out, _ = bucket.advance(table_of([("", 1, (1, 0))]), 10)
    assert out is not None
    assert [(row["who"], row["kind"], row["reason"]) for row in out.to_pylist()] == [
        ("p1", "refused", "no number of its own"),
        ("p0", "released", None),
    ]
