"""A stream of events that name their causes: without Spark on random histories, and on Spark over restarts."""

import gc
import os
from collections import OrderedDict
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from antecede.errors import BadParameter, BadSnapshot
from antecede.spark.frames import ByCauses
from antecede.spark.stream import Status, operator, status_of
from antecede.spark.stream.api import order_stream
from antecede.spark.stream.bucket import from_ipc, to_ipc
from antecede.spark.stream.causes import CausesBucket, CausesSettings
from antecede.spark.stream.operator import PIECES, Processor, make_unpacker
from antecede.spark.stream.status import open_state
from tests.spark.killed_streams import run_causes

SCHEMA = pa.schema(
    [
        pa.field("__partition", pa.string()),
        pa.field("__id", pa.string()),
        pa.field("__causes", pa.list_(pa.string())),
    ]
)


def history(random, events=60, partitions=2):
    """Events that name up to three earlier ones of their partition, in the order in which they happened."""
    made: dict[str, list[str]] = {str(at): [] for at in range(partitions)}
    rows = []
    for at in range(events):
        partition = str(random.randrange(partitions))
        known = made[partition]
        rows.append((partition, f"e{at}", random.sample(known, min(len(known), random.randrange(4)))))
        known.append(f"e{at}")
    return rows


def table_of(rows):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def run_in(parts, settings, *, restart=True, now=lambda part: part):
    """What comes out, with the state going through bytes between any two parts."""
    bucket, status = CausesBucket(settings), Status()
    pieces: list[bytes] = []
    out: list[dict[str, Any]] = []
    for at, part in enumerate(parts):
        found, status = bucket.advance(table_of(part), now(at))
        out += [] if found is None else found.to_pylist()
        piece = bucket.dump_fresh(now(at))
        pieces += [] if piece is None else [piece]
        if restart:
            bucket = settings.open(bucket.dump(), pieces)
    return out, status


def run_in_turns(parts, settings, random, now):
    """The same where each micro-batch is done by one of three workers, which has what it had when it did one last."""
    done: list[tuple[list[bytes], CausesBucket]] = [([], CausesBucket(settings))] * 3
    pieces: list[bytes] = []
    out: list[dict[str, Any]] = []
    head = None
    for at, part in enumerate(parts):
        worker = random.randrange(3)
        had, earlier = done[worker]
        bucket = settings.open(head, pieces[len(had) :], earlier if had else None)
        found, _ = bucket.advance(table_of(part), now(at))
        out += [] if found is None else found.to_pylist()
        piece = bucket.dump_fresh(now(at))
        pieces = [*pieces, *([] if piece is None else [piece])]
        head, done[worker] = bucket.dump(), (pieces, bucket)
    return out


@pytest.mark.parametrize("seed", range(40))
def test_a_worker_goes_on_from_what_it_had_some_micro_batches_ago(seed):
    """Identifiers are forgotten and come again, causes are given up, and positions begin again meanwhile."""
    random = Random(f"turns {seed}")
    rows = history(random, 150)
    shuffled = sorted(rows, key=lambda row: int(row[1][1:]) + random.randrange(20))
    again = [*shuffled, *random.choices(shuffled, k=50)]
    again.sort(key=lambda row: int(row[1][1:]) + random.randrange(60))
    times = sorted(random.randrange(400) for _ in range(20))
    settings = CausesSettings(
        patience_ms=random.choice([None, 30]), remember_ms=random.choice([40, 100, 1000])
    )
    parts = cut(again, random, 20)
    whole, _ = run_in(parts, settings, restart=False, now=times.__getitem__)
    assert run_in_turns(parts, settings, random, times.__getitem__) == whole
    assert run_in(parts, settings, now=times.__getitem__)[0] == whole


class States:
    """What Spark keeps of one bucket, without Spark: a head, and pieces by number; how many of them were read."""

    def __init__(self) -> None:
        self.head: tuple[bytes, int, bytes] | None = None
        self.kept: dict[tuple[int], tuple[bytes]] = {}
        self.read = 0

    def getValueState(self, name, schema):
        return SimpleNamespace(get=lambda: self.head, update=lambda head: setattr(self, "head", head))

    def getMapState(self, name, key, value, ttl):
        return self

    def getValue(self, key):
        self.read += key in self.kept
        return self.kept.get(key)

    def updateValue(self, key, value):
        self.kept[key] = value

    def removeKey(self, key):
        del self.kept[key]

    def iterator(self):
        self.read += len(self.kept)
        return iter(self.kept.items())


def test_workers_in_turn_read_the_pieces_that_they_do_not_have(monkeypatch):
    states, settings = States(), CausesSettings()
    processor = Processor(settings, "a query")
    processor.init(states)  # type: ignore[arg-type]
    workers: list[Any] = [OrderedDict() for _ in range(4)]
    many = 600
    for batch in range(many):
        monkeypatch.setattr(operator, "_buckets", workers[batch % 4])
        rows = table_of([("", f"e{batch}", [f"e{batch - 1}"] if batch else [])])
        out = processor.step(1, [pd.DataFrame({"rows": [to_ipc(rows)]})], batch)
        assert from_ipc(out["rows"][0])["position"].to_pylist() == [batch]
    # Three that others added, each time, and 256 that become one, twice. All, each time, would be 180,000.
    assert states.read < 4 * many
    assert len(states.kept) == many % PIECES + many // PIECES
    # A micro-batch that is done again, elsewhere: what a worker has gone on with is no longer what Spark has.
    before = states.head, dict(states.kept)
    rows = [table_of([("", id, [])]) for id in ("one", "another")]
    for worker, part in zip(workers, rows, strict=False):
        states.head, states.kept = before[0], dict(before[1])
        monkeypatch.setattr(operator, "_buckets", worker)
        processor.step(1, [pd.DataFrame({"rows": [to_ipc(part)]})], many)
    monkeypatch.setattr(operator, "_buckets", workers[0])
    out = processor.step(1, [pd.DataFrame({"rows": [to_ipc(pa.concat_tables(rows))]})], many + 1)
    kinds = {row["__id"]: row["kind"] for row in from_ipc(out["rows"][0]).to_pylist()}
    assert kinds == {"one": "delivered", "another": "repeated"}


def cut(rows, random, parts):
    ends = [0, *sorted(random.randrange(len(rows)) for _ in range(parts - 1)), len(rows)]
    return [rows[a:b] for a, b in pairwise(ends)]


def by_partition(out):
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(out, key=lambda row: row["position"]):
        found.setdefault(row["__partition"], []).append(row)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_every_row_comes_out_once_after_its_causes_however_it_is_cut(seed):
    random = Random(f"causes {seed}")
    rows = history(random)
    shuffled = random.sample(rows, len(rows))
    parts = cut(shuffled, random, 6)
    out, status = run_in(parts, CausesSettings())
    assert sorted((row["__partition"], row["__id"]) for row in out) == sorted(row[:2] for row in rows)
    assert status.held == 0
    for partition in by_partition(out).values():
        assert [row["position"] for row in partition] == list(range(len(partition)))
        place = {row["__id"]: row["position"] for row in partition}
        assert all(place[cause] < row["position"] for row in partition for cause in row["__causes"])
    assert {row["kind"] for row in out} == {"delivered"}
    assert out == run_in(parts, CausesSettings(), restart=False)[0]


@pytest.mark.parametrize("seed", range(20))
def test_what_never_comes_is_given_up_and_comes_late(seed):
    random = Random(f"lost {seed}")
    rows = history(random)
    named = sorted({(row[0], cause) for row in rows for cause in row[2]})
    lost = set(random.sample(named, 4))
    here = [row for row in rows if row[:2] not in lost]
    settings = CausesSettings(patience_ms=10)
    late = [row for row in rows if row[:2] in lost]
    out, status = run_in([random.sample(here, len(here)), [], late], settings, now=lambda at: 10 * at)
    assert status.held == 0
    assert sorted((row["__partition"], row["__id"]) for row in out) == sorted(row[:2] for row in rows)
    kinds = {(row["__partition"], row["__id"]): row for row in out}
    for partition, id, causes in rows:
        row, missing = kinds[partition, id], {cause for cause in causes if (partition, cause) in lost}
        if (partition, id) in lost:
            assert row["kind"] == "late"
        else:
            assert row["kind"] == ("released" if missing else "delivered")
            assert set(row["waits_for"] or ()) == missing


def test_what_is_missing_is_named_at_its_root():
    chain = [("", "a", []), ("", "b", ["a"]), ("", "c", ["b"]), ("", "d", ["c"]), ("", "other", ["gone"])]
    _, status = run_in([chain[2:4] + chain[4:] + [chain[1]]], CausesSettings())
    assert [(cause.sender, cause.held) for cause in status.causes] == [("a", 3), ("gone", 1)]


def test_what_each_row_waits_for_is_named_at_its_root():
    bucket = CausesBucket(CausesSettings())
    bucket.advance(
        table_of([("", "b", ["a"]), ("", "c", ["b"]), ("", "d", ["c", "gone"]), ("", "own", ["own"])]), 0
    )
    held = {
        row["sender"]: [one["sender"] for one in row["awaits"]]
        for row in open_state(bucket.dump()).list_held()
    }
    assert held == {"b": ["a"], "c": ["a"], "d": ["a", "gone"], "own": ["own -> own"]}


def test_what_waits_is_listed_whatever_the_column_of_identifiers_is_called():
    bucket = CausesBucket(CausesSettings(id="user id"))
    bucket.advance(table_of([("", "b", ["a"])]).rename_columns({"__id": "user id"}), 0)
    assert [row["awaits"][0]["sender"] for row in open_state(bucket.dump()).list_held()] == ["a"]


def test_rows_of_a_cycle_are_told_as_a_cycle_and_not_under_an_absent_cause():
    bucket = CausesBucket(CausesSettings())
    chained = [
        ("", "b", ["a"]),
        ("", "c", ["b"]),
        ("", "a", ["c"]),
        ("", "after", ["b"]),
        ("x", "b", ["gone"]),
    ]
    _, status = bucket.advance(table_of(chained), 0)
    told = [(cause.receiver, cause.sender, cause.counted, cause.held) for cause in status.causes]
    assert told == [("", "a -> b -> c -> a", "cycle", 4), ("x", "gone", "id", 1)]
    assert status.describe_waits() == "1 message and 1 cycle hold up 5: a -> b -> c -> a, gone"
    both = [("y", "a", ["b", "gone"]), ("y", "b", ["a"]), ("y", "c", ["gone"]), ("y", "d", ["d"])]
    _, status = bucket.advance(table_of(both), 1)
    found = [(cause.sender, cause.counted, cause.held) for cause in status.causes if cause.receiver == "y"]
    assert found == [("a -> b -> a", "cycle", 2), ("d -> d", "cycle", 1), ("gone", "id", 1)]
    held = {
        row["sender"]: row["awaits"] for row in open_state(bucket.dump()).list_held() if row["group"] == "y"
    }
    named = {id: [(one["sender"], one["counted"]) for one in awaits] for id, awaits in held.items()}
    cycle = ("a -> b -> a", "cycle")
    assert named == {
        "a": [("gone", "id"), cycle], "b": [("gone", "id"), cycle], "c": [("gone", "id")], "d": [("d -> d", "cycle")],
    }  # fmt: skip


def test_a_circle_is_released_when_patience_ends():
    rows = [("", "a", ["b"]), ("", "b", ["a"]), ("", "c", ["b"]), ("", "own", ["own"])]
    out, status = run_in([rows, []], CausesSettings(patience_ms=5), now=lambda at: 5 * at)
    assert status.held == 0
    assert sorted(row["__id"] for row in out) == ["a", "b", "c", "own"]
    assert {row["kind"] for row in out} >= {"released"}
    out, status = run_in([rows], CausesSettings())
    assert (out, status.held) == ([], 4)


def test_copies_and_rows_without_an_id_come_out_and_say_so():
    rows = [("", "b", ["a"]), ("", "b", ["a"]), ("", None, ["a"]), ("", "a", []), ("", "a", [])]
    out, status = run_in([rows, [("", "b", ["a"])], [("", None, [])]], CausesSettings())
    assert status.held == 0
    assert [row["position"] for row in out] == list(range(7))
    assert sorted((str(row["__id"]), row["kind"]) for row in out) == [
        ("None", "delivered"),
        ("None", "delivered"),
        ("a", "delivered"),
        ("a", "repeated"),
        ("b", "delivered"),
        ("b", "repeated"),
        ("b", "repeated"),
    ]


def test_identifiers_are_forgotten_after_a_time_and_then_are_missing():
    settings = CausesSettings(remember_ms=100)
    parts = [[("", "a", [])], [("", "b", ["a"])], [("", "c", ["a"])]]
    out, status = run_in(parts, settings, now=lambda at: 60 * at)
    assert [row["__id"] for row in out] == ["a", "b"]
    assert [cause.sender for cause in status.causes] == ["a"]


def test_positions_go_on_alike_whether_a_bucket_is_kept_or_read_again():
    """A repeated row, a row without an identifier and a row that waits keep their partitions known. A partition that
    was forgotten is not known again because a row waits in it now."""
    parts = [
        [("p", "a", []), ("q", None, []), ("r", "a", []), ("r", "b", ["never"]), ("s", "a", [])],
        [("p", "a", [])],
        [("p", "c", []), ("q", None, []), ("r", "c", []), ("s", "b", ["never"])],
        [("p", "d", []), ("q", None, []), ("r", "never", []), ("s", "c", [])],
    ]
    times = (0, 90, 110, 300)
    settings = CausesSettings(remember_ms=100)
    kept, again = (
        run_in(parts, settings, now=times.__getitem__, restart=restart)[0] for restart in (False, True)
    )
    assert kept == again
    found = {name: [row["position"] for row in rows] for name, rows in by_partition(kept).items()}
    assert found == {"p": [0, 0, 1, 2], "q": [0, 0, 0], "r": [0, 1, 2, 3], "s": [0, 0]}


def test_an_identifier_that_was_forgotten_and_came_again_is_known_after_a_restart():
    parts: list[list[tuple[str, str, list[str]]]] = [
        [("", "a", [])],
        [("", "b", [])],
        [("", "a", [])],
        [("", "a", [])],
    ]
    settings, times = CausesSettings(remember_ms=100), (0, 110, 120, 130)
    out, _ = run_in(parts, settings, now=times.__getitem__)
    assert [row["kind"] for row in out] == ["delivered", "delivered", "delivered", "repeated"]


def test_a_query_that_remembers_for_longer_gives_what_waited_for_what_it_knows_again():
    short, long = CausesSettings(remember_ms=10), CausesSettings(remember_ms=1000)
    bucket = CausesBucket(short)
    bucket.advance(table_of([("", "a", [])]), 0)
    piece = bucket.dump_fresh(0)
    assert piece is not None
    _, status = bucket.advance(table_of([("", "b", ["a"])]), 20)
    assert status.held == 1
    found, status = long.open(bucket.dump(), [piece]).advance(table_of([("", "c", [])]), 30)
    assert found is not None
    assert [(row["__id"], row["kind"]) for row in found.to_pylist()] == [
        ("b", "delivered"),
        ("c", "delivered"),
    ]
    assert status.held == 0


def test_a_state_of_another_version_is_refused():
    bucket = CausesBucket(CausesSettings())
    bucket.advance(table_of([("", "b", ["a"])]), 0)
    with pytest.raises(BadSnapshot, match="written with buckets 1, not 4"):
        CausesSettings(buckets=4).open(bucket.dump())


def test_a_query_goes_on_with_new_columns_and_types_of_rows_that_wait():
    settings = CausesSettings(patience_ms=10)
    bucket = CausesBucket(settings)
    bucket.advance(table_of([("", "b", ["a"])]).append_column("n", pa.array([7])), 0)
    now = pa.schema([*SCHEMA, ("n", pa.string()), ("more", pa.float64())])
    for rows in (None, now.empty_table()):
        found, _ = settings.open(bucket.dump()).advance(rows, 10)
        assert found is not None
        packed = pa.record_batch([pa.array([to_ipc(found)])], ["rows"])
        [out] = make_unpacker(now)([packed])
        assert out.schema.equals(now)
        assert out.to_pylist() == [
            {"__partition": "", "__id": "b", "__causes": ["a"], "n": "7", "more": None}
        ]


def test_a_column_of_rows_that_wait_that_cannot_be_what_it_is_now_is_refused():
    bucket = CausesBucket(CausesSettings())
    bucket.advance(table_of([("", "b", ["a"])]).append_column("n", pa.array(["seven"])), 0)
    again = CausesSettings().open(bucket.dump())
    with pytest.raises(BadSnapshot, match="written with column n string, not int64"):
        again.advance(table_of([("", "a", [])]).append_column("n", pa.array([7])), 1)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"id": "other (string)", "partition_by": "room"},
            "written with id event .string., not other .string.",
        ),
        ({"id": "event (string)", "partition_by": ""}, "written with partition_by room, not none"),
    ],
)
def test_a_query_by_other_columns_is_refused(columns, words):
    first = CausesSettings(columns={"id": "event (string)", "partition_by": "room"})
    bucket = CausesBucket(first)
    bucket.advance(table_of([("", "b", ["a"])]), 0)
    assert [row["sender"] for row in open_state(bucket.dump()).list_held()] == ["b"]
    with pytest.raises(BadSnapshot, match=words):
        CausesSettings(columns=columns).open(bucket.dump())


def test_what_is_remembered_stays_bounded():
    settings, sizes = CausesSettings(remember_ms=100), []
    bucket = CausesBucket(settings)
    pieces: list[tuple[int, bytes]] = []
    for batch in range(60):
        now = 20 * batch
        rows = [(f"{batch}", f"e{batch}-{at}", [f"e{batch}-{at - 1}"] if at else []) for at in range(20)]
        bucket.advance(table_of(rows), now)
        piece = bucket.dump_fresh(now)
        assert piece is not None
        # Spark forgets pieces by their time to live.
        pieces = [(when, one) for when, one in [*pieces, (now, piece)] if when + 100 > now]
        head = bucket.dump()
        sizes.append(len(head) + sum(len(one) for _, one in pieces))
        bucket = settings.open(head, [one for _, one in pieces])
    assert sum(map(len, bucket.emitted.values())) <= 5 * 20
    assert len(bucket.emitted) <= 5
    assert len(bucket.positions) <= 5
    assert max(sizes[30:]) <= 1.1 * max(sizes[10:30])


def test_no_search_for_garbage_passes_what_is_remembered():
    """Spark collects garbage after each task. Where it looks through all identifiers, each micro-batch takes longer."""
    bucket, loaded = CausesBucket(CausesSettings()), CausesBucket(CausesSettings())
    for batch in range(4):
        bucket.advance(table_of([("", f"{batch}-{at}", []) for at in range(10)]), batch)
        piece = bucket.dump_fresh(batch)
        assert piece is not None
        loaded = CausesSettings().open(bucket.dump(), [piece], loaded)
    gc.collect()
    for one in (bucket, loaded):
        kept = [*one.emitted.values(), *(ids for _, fresh in one.ages for ids in fresh.values())]
        assert sum(map(len, kept)) == 40 + 40
        assert not any(map(gc.is_tracked, kept))


def write_files(directory, rows, parts):
    """Files of events with columns of several types, in the order of their times."""
    directory.mkdir(exist_ok=True)
    columns = [
        ("tenant", pa.int64()),
        ("event", pa.string()),
        ("after", pa.list_(pa.string())),
        ("body", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    ]
    made = [
        {"tenant": int(partition), "event": id, "after": causes or None, "body": {"a": at, "b": [str(at)]}}
        for at, (partition, id, causes) in enumerate(rows)
    ]
    size = -(-len(rows) // parts)
    for part in range(parts):
        path = directory / f"{part}.parquet"
        pq.write_table(pa.Table.from_pylist(made[part * size : (part + 1) * size], pa.schema(columns)), path)
        os.utime(path, (part + 1, part + 1))


def check_output(spark, home, rows):
    """Each row once, after its causes, with positions without gaps."""
    out = [row.asDict(recursive=True) for row in spark.read.parquet(str(home / "out")).collect()]
    places = {(row["tenant"], row["event"]): row["position"] for row in out}
    assert len(out) == len(places) == len(rows)
    for row in out:
        for cause in row["after"] or ():
            assert places[row["tenant"], cause] < row["position"]
    for tenant in {row["tenant"] for row in out}:
        own = sorted(row["position"] for row in out if row["tenant"] == tenant)
        assert own == list(range(len(own)))
    assert {row["body"]["a"] for row in out} == set(range(len(rows)))


def test_a_stream_of_causes_says_what_it_holds_and_why(spark, tmp_path):
    random = Random(5)
    rows = random.sample(history(random, events=200, partitions=5), 200)
    write_files(tmp_path / "in", rows, 3)
    query = run_causes(spark, tmp_path, True)
    statuses = [told.status for told in map(status_of, query.recentProgress) if told is not None]
    assert sum(status.rows_in for status in statuses) == 200
    assert statuses[0].held > statuses[-1].held == 0
    assert statuses[0].causes
    check_output(spark, tmp_path, rows)


def test_what_is_no_stream_of_causes_is_refused(spark):
    rows = spark.createDataFrame([], "id string, after array<string>")
    with pytest.raises(BadParameter, match="state store"):
        order_stream(rows, ByCauses("id", "after"))
