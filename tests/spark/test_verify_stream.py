"""Findings of a stream of events that name their causes: those of the batch, however the rows are cut."""

import gc
import json
from random import Random
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from antecede.errors import BadParameter, BadSnapshot
from antecede.spark import verify
from antecede.spark.stream.operator import PROVIDER, ROCKSDB
from antecede.spark.verify.in_stream import JudgingBucket, JudgingSettings
from antecede.spark.verify.tasks import judge_table

ROWS = pa.schema(
    [
        ("__partition", pa.string()),
        ("shop", pa.string()),
        ("__hash", pa.int64()),
        ("__id", pa.string()),
        ("__mark", pa.int64()),
        ("__causes", pa.list_(pa.string())),
        ("__consumer", pa.string()),
        ("__at", pa.int64()),
    ]
)
FINDINGS = pa.schema(
    [
        ("kind", pa.string()),
        ("shop", pa.string()),
        ("consumer", pa.string()),
        ("id", pa.string()),
        ("by", pa.string()),
        ("chain", pa.list_(pa.string())),
        ("reason", pa.string()),
    ]
)


def settings(**options):
    return JudgingSettings(("shop",), FINDINGS.serialize().to_pybytes(), **options)


def history(random, events=150):
    """(shop, id, causes, consumer, at): most are handed over in order, some late, twice, or with a lost cause."""
    known: dict[str, list[str]] = {"eu": [], "us": []}
    rows = []
    for at in range(events):
        shop = random.choice(sorted(known))
        causes = random.sample(known[shop], min(len(known[shop]), random.randrange(3)))
        if random.random() < 0.06:
            causes.append(f"lost{at}")
        known[shop].append(f"e{at}")
        for consumer in random.sample(["audit", "mail", None], random.randrange(1, 3)):
            late = 30 if random.random() < 0.2 else 0
            rows.append((shop, f"e{at}", causes, consumer, None if consumer is None else 10 * at + late * 10))
            if consumer is not None and random.random() < 0.06:
                rows.append((shop, f"e{at}", causes, consumer, 10 * at + 5))
    return rows


def table_of(rows):
    made = [
        {
            "__partition": shop, "shop": shop, "__hash": 0, "__id": id, "__mark": crc32(id.encode()),
            "__causes": causes, "__consumer": consumer, "__at": at,
        }
        for shop, id, causes, consumer, at in rows
    ]  # fmt: skip
    return pa.Table.from_pylist(made, ROWS)


def judge_all(rows):
    """The findings of the batch."""
    told = judge_table(table_of(rows).drop_columns(["__partition"]), ("shop",))
    return [row for row in told.select(FINDINGS.names).to_pylist() if row["kind"] != "partition"]


def run_in(parts, own, *, now=lambda at: at, end=None, restart=True, turns=None):
    """With `turns`, each micro-batch is done by one of three workers, which has what it had when it did one last."""
    bucket: Any = JudgingBucket(own)
    pieces: list[bytes] = []
    done: list[tuple[int, Any]] = [(0, None)] * 3
    worker = 0
    out: list[dict[str, Any]] = []
    times = [now(at) for at in range(len(parts))] + ([] if end is None else [end])
    for at, time in enumerate(times):
        found, _ = bucket.advance(table_of(parts[at]) if at < len(parts) and parts[at] else None, time)
        out += [] if found is None else found.to_pylist()
        piece = bucket.dump_fresh(time)
        pieces += [] if piece is None else [piece]
        head, done[worker] = bucket.dump(), (len(pieces), bucket)
        worker = worker if turns is None else turns.randrange(3)
        had, earlier = (0, None) if turns is None else done[worker]
        if restart:
            bucket = own.open(head, pieces[had:], earlier)
    return out, bucket


def name(finding):
    return finding["kind"], finding["shop"], finding["consumer"], finding["id"]


def test_no_search_for_garbage_passes_the_events_that_are_known():
    """Spark collects garbage after each task. Where it looks through all events, each micro-batch takes longer."""
    rows = history(Random(1))
    _, bucket = run_in([rows[:50], rows[50:100], rows[100:]], settings())
    gc.collect()
    events = [partition.events for partition in bucket.partitions.values()]
    kept = [*events, *(event for one in events for event in one.values())]
    kept += [ids for _, came in (*bucket.ages, *bucket.unchecked) for ids in came.values()]
    assert len(kept) > 150
    assert not any(map(gc.is_tracked, kept))


def test_the_command_tells_what_came_late_once_and_goes_on_where_it_was(warm, tmp_path):
    def put(name, *rows):
        keys = ("shop", "id", "after", "reader", "at")
        lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
        (tmp_path / "in" / name).write_text("\n".join(lines) + "\n")

    (tmp_path / "in").mkdir()
    named = ["--id", "id", "--causes", "after", "--consumer", "reader", "--position", "at"]
    request = ["verify", tmp_path / "in", *named, "--partition-by", "shop", "--stream", "--once", "--json"]
    request += ["--out", tmp_path / "out"]
    put("0.json", ("eu", "sent", ["paid"], "audit", 1), ("eu", "paid", "ordered", None, None))
    done = warm(*request)
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "yes"), done.stderr
    assert "yes: by stated causes, nothing wrong so far" in done.stderr
    put("1.json", ("eu", "ordered", None, "audit", 2), ("us", "a", "a", "audit", 1))
    done = warm(*request)
    told = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert (told["verdict"], told["causality"]) == ("no", "stated")
    assert told["found"] == {"violation": 1, "refused": 1}
    late = "shop eu: audit was handed ordered after its effect sent: ordered -> paid -> sent"
    assert late in done.stderr
    assert "shop us: refused: the causes form a cycle: a -> a" in done.stderr
    assert json.loads(warm(*request).stdout) == told, "nothing is told again, and what was told is remembered"
    found = pq.read_table(tmp_path / "out" / "findings").to_pylist()
    assert {(row["kind"], row["shop"], row["id"]) for row in found} == {
        ("violation", "eu", "ordered"),
        ("refused", "us", None),
    }
    done = warm(*request[:2], *named[:-2], "--time", "id", *request[10:])
    assert done.returncode == 2
    assert "of a query with time at" in done.stderr


@pytest.mark.parametrize("seed", range(12))
def test_a_stream_finds_what_the_batch_finds_however_it_is_cut(seed):
    random = Random(f"verify {seed}")
    rows = history(random)
    wanted = judge_all(rows)
    assert {"violation", "missing", "duplicate"} <= {finding["kind"] for finding in wanted}, f"seed {seed}"
    one, _ = run_in([rows], settings(patience_ms=5), end=5)
    assert sorted(map(repr, one)) == sorted(map(repr, wanted)), f"seed {seed}: all at once, even chains agree"
    shuffled = random.sample(rows, len(rows))
    # Of two copies that a consumer was handed, the first decides: it has to come first.
    places: dict[Any, list[int]] = {}
    for place, row in enumerate(shuffled):
        places.setdefault((row[0], row[1], row[3]), []).append(place)
    for copies in places.values():
        for place, row in zip(
            copies, sorted((shuffled[at] for at in copies), key=lambda row: row[4] or 0), strict=True
        ):
            shuffled[place] = row
    size = len(rows) // 5
    parts = [shuffled[at : at + size] for at in range(0, len(rows), size)]
    cut, _ = run_in(parts, settings(patience_ms=50), end=100)
    small = [random.sample(rows, random.choice([0, 0, 12])) for _ in range(40)]
    for remember in (5, 1000):
        own = settings(patience_ms=50, remember_ms=remember)
        whole, _ = run_in(small, own, end=100, restart=False)
        assert run_in(small, own, end=100, turns=random)[0] == whole, f"seed {seed}"
    assert sorted(map(repr, map(name, cut))) == sorted(map(repr, map(name, wanted))), f"seed {seed}"
    for finding in cut:
        if finding["kind"] == "violation":
            assert (finding["chain"][0], finding["chain"][-1]) == (finding["id"], finding["by"])


@pytest.mark.parametrize("fault", [("eu", "e3", ["e9"], None, None), ("eu", "x", [], "audit", None)])
def test_a_partition_that_is_refused_is_told_once_as_the_batch_tells_it(fault):
    rows: list[Any] = [("eu", f"e{at}", [f"e{at - 1}"] if at else [], "audit", at) for at in range(12)]
    rows += [("us", "b", ["a"], "audit", 1), ("us", "a", [], "audit", 2), fault]
    wanted = judge_all(rows)
    for parts in ([rows], [[row] for row in rows], [[row] for row in rows[::-1]]):
        out, _ = run_in(parts, settings())
        told = sorted(map(repr, ((*name(row), row["reason"]) for row in out)))
        assert told == sorted(map(repr, ((*name(row), row["reason"]) for row in wanted)))


def test_a_row_costs_what_it_changes_and_not_the_partition():
    """A partition was judged as a whole for each row."""

    def visit(known):
        chain: list[Any] = [
            ("eu", f"e{at}", [f"e{at - 1}"] if at else [], "audit", at) for at in range(known + 50)
        ]
        bucket = JudgingBucket(settings())
        bucket.advance(table_of(chain[:known]), 0)
        before = bucket.visited
        for at in range(known, known + 50):
            assert bucket.advance(table_of(chain[at : at + 1]), at)[0] is None
        return bucket.visited - before

    assert visit(100) == visit(2000) <= 4 * 50
    backwards: list[Any] = [("eu", f"e{at}", [f"e{at - 1}"] if at else [], "audit", at) for at in range(2000)]
    bucket = JudgingBucket(settings())
    for row in backwards[::-1]:
        bucket.advance(table_of([row]), 0)
    assert bucket.visited <= 6 * 2000, "rows that come before their causes cost as little"


def test_what_is_missing_is_told_when_patience_ends_and_not_if_it_comes():
    effect: Any = ("eu", "b", ["a"], "audit", 2)
    cause: Any = ("eu", "a", [], "audit", 1)
    out, _ = run_in([[effect], []], settings(patience_ms=10), now=lambda at: 10 * at)
    assert [(row["kind"], row["id"], row["by"]) for row in out] == [("missing", "a", "b")]
    out, _ = run_in([[effect], [cause]], settings(patience_ms=10), now=lambda at: 9 * at, end=100)
    assert out == []


def test_what_is_remembered_is_bounded_and_an_older_cause_is_missing():
    own = settings(remember_ms=100)
    bucket = JudgingBucket(own)
    for batch in range(40):
        bucket.advance(
            table_of([("eu", f"e{batch}-{at}", [], "audit", batch) for at in range(10)]), 20 * batch
        )
    assert sum(len(partition.events) for partition in bucket.partitions.values()) == 50
    late, _ = bucket.advance(table_of([("eu", "effect", ["e0-0"], "audit", 99)]), 820)
    assert late is None or not len(late)
    told, _ = bucket.advance(None, 920)
    assert told is not None
    assert [(row["kind"], row["id"]) for row in told.to_pylist()] == [("missing", "e0-0")]


def test_a_state_with_other_buckets_is_refused():
    with pytest.raises(BadSnapshot, match="written with buckets 1, not 4"):
        settings(buckets=4).open(JudgingBucket(settings()).dump(), ())


def test_a_stream_is_verified_on_spark_over_restarts(spark, tmp_path):
    own = spark.newSession()
    own.conf.set(PROVIDER, ROCKSDB)
    own.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    random = Random("on spark")
    rows = history(random, events=80)
    columns = pa.schema(
        [("shop", pa.string()), ("event", pa.string()), ("after", pa.list_(pa.string())), ("reader", pa.string()),
         ("place", pa.int64())]
    )  # fmt: skip
    asked: dict[str, Any] = {
        "id": "event", "causes": "after", "consumer": "reader", "position": "place", "partition_by": "shop",
    }  # fmt: skip
    (tmp_path / "in").mkdir()

    def run():
        schema = "shop string, event string, after array<string>, reader string, place long"
        stream = own.readStream.schema(schema).parquet(str(tmp_path / "in"))
        found = verify(stream, **asked, remember="1 day")
        writer = found.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
        return found

    for part, some in enumerate((rows[::2], rows[1::2])):
        table = pa.Table.from_pylist([dict(zip(columns.names, row, strict=True)) for row in some], columns)
        pq.write_table(table, tmp_path / "in" / f"{part}.parquet")
        found = run()
    batch = verify(spark.read.parquet(str(tmp_path / "in")), **asked)
    assert found.schema == batch.findings.schema
    names = ["kind", "shop", "consumer", "id"]
    told = spark.read.parquet(str(tmp_path / "out")).select(*names).where("kind != 'missing'").collect()
    wanted = batch.findings.select(*names).where("kind != 'missing'").collect()
    assert sorted(map(repr, told)) == sorted(map(repr, wanted))
    assert any(row["kind"] == "violation" for row in told)
    batch.release()


def test_what_is_no_stream_to_verify_is_refused(spark, tmp_path):
    stream = spark.readStream.schema("id string, after string, reader string, place long").parquet(
        str(tmp_path)
    )
    asked: dict[str, Any] = {"id": "id", "causes": "after", "consumer": "reader", "position": "place"}
    with pytest.raises(BadParameter, match="state store"):
        verify(stream, **asked)
    with pytest.raises(BadParameter, match=r"patience must be a time such as .*, not 'soon'"):
        verify(stream, **asked, patience="soon", remember="1 day")
