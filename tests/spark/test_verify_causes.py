"""Events that name their causes: what consumers were handed late, against all pairs of the transitive closure."""

import json
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from antecede.errors import BadParameter, BadTrace
from antecede.jit import interpret_kernels
from antecede.spark import SPARK_EVENTS, Trace, verify
from antecede.spark.frames import ByCauses
from antecede.spark.order.graph import list_by
from antecede.spark.verify.by_causes import verify_causes
from antecede.spark.verify.tasks import CHAIN_MOST, find_late
from tests.spark.test_order_causes import SPANS, real

TYPES = "part string, id string, causes array<string>, consumer string, at long"
NAMES = {"id": "id", "causes": "causes", "consumer": "consumer"}
SEED = 11


def draw_rows(seed, name):
    """Rows of a partition: some handed in causal order but for some swaps, some to nobody, some twice, some lost."""
    rng = Random(f"{seed}/{name}")
    events: list[tuple] = []
    for place in range(rng.randrange(1, 25)):
        causes = [rng.choice(events)[0] for _ in range(rng.randrange(3)) if events]
        causes += [f"lost{rng.randrange(3)}"] * (rng.random() < 0.04)
        events.append((f"e{place}", causes or None))
    rows = [(name, own, causes, None, None) for own, causes in events if rng.random() < 0.3]
    for consumer in ("x", "y", "z"):
        got = [event for event in events if rng.random() < 0.6]
        for _ in range(rng.randrange(4) if got else 0):
            one, other = rng.randrange(len(got)), rng.randrange(len(got))
            got[one], got[other] = got[other], got[one]
        got += [event for event in got if rng.random() < 0.02]
        # Some stand at the same position: those are in no order.
        rows += [(name, *event, consumer, place - (rng.random() < 0.2)) for place, event in enumerate(got)]
    rng.shuffle(rows)
    return rows


class Definition:
    """A partition by the rules, as slowly as they read."""

    def __init__(self, rows):
        self.causes: dict = {}
        self.places: dict = {}
        self.duplicates = set()
        for _, own, causes, consumer, at in rows:
            self.causes.setdefault(own, set()).update(causes or ())
            if consumer is not None:
                if (consumer, own) in self.places:
                    self.duplicates.add((consumer, own))
                self.places[consumer, own] = min(at, self.places.get((consumer, own), at))
        self.missing = {one for causes in self.causes.values() for one in causes if one not in self.causes}
        self.past = {own: self.walk(own) for own in self.causes}

    def walk(self, own):
        found, left = set(), list(self.causes[own])
        while left:
            cause = left.pop()
            if cause not in found and cause in self.causes:
                found.add(cause)
                left += self.causes[cause]
        return found

    @property
    def pairs(self):
        """(consumer, cause, effect, where each stands), both handed to the consumer."""
        for (consumer, cause), at in self.places.items():
            for (other, effect), then in self.places.items():
                if consumer == other and cause in self.past[effect]:
                    yield consumer, cause, effect, at, then

    @property
    def late(self):
        """For each late cause at a consumer the effects that stand first."""
        firsts: dict = {}
        for consumer, cause, _, _, then in self.pairs:
            firsts[consumer, cause] = min(then, firsts.get((consumer, cause), then))
        found: dict = {}
        for consumer, cause, effect, at, then in self.pairs:
            if then == firsts[consumer, cause] < at:
                found.setdefault((consumer, cause), set()).add(effect)
        return found

    @property
    def ties(self):
        least: dict = {}
        for consumer, cause, _, at, then in self.pairs:
            least[consumer, cause] = min(then - at, least.get((consumer, cause), then - at))
        return sum(difference == 0 for difference in least.values())


def by_part(frame):
    parts: dict = {}
    for row in frame.collect():
        parts.setdefault(row.part, []).append(row)
    return parts


def assert_all_found(found, rows):
    findings, partitions = by_part(found.findings), by_part(found.partitions)
    late = 0
    for name in {row[0] for row in rows}:
        definition = Definition([row for row in rows if row[0] == name])
        own = findings.get(name, [])
        kinds = {
            kind: [row for row in own if row.kind == kind] for kind in ("violation", "missing", "duplicate")
        }
        assert len(own) == sum(map(len, kinds.values()))
        assert {row.id for row in kinds["missing"]} == definition.missing
        assert len(kinds["missing"]) == len(definition.missing)
        assert all(row.id in definition.causes[row.by] for row in kinds["missing"])
        assert {(row.consumer, row.id) for row in kinds["duplicate"]} == definition.duplicates
        assert len(kinds["duplicate"]) == len(definition.duplicates)
        expected = definition.late
        assert {(row.consumer, row.id) for row in kinds["violation"]} == set(expected)
        assert len(kinds["violation"]) == len(expected)
        for row in kinds["violation"]:
            assert row.by in expected[row.consumer, row.id]
            assert (row.chain[0], row.chain[-1]) == (row.id, row.by)
            steps = zip(row.chain, row.chain[1:], strict=False)
            assert all(cause in definition.causes[effect] for cause, effect in steps)
        [told] = partitions[name]
        counted = (told.violations, told.missing, told.duplicates, told.ties)
        assert counted == (*map(len, kinds.values()), definition.ties)
        assert told.judged == len({pair[:2] for pair in definition.pairs})
        wrong = expected or definition.duplicates
        assert told.verdict == (
            "no" if wrong else "unknown" if definition.missing or not told.judged else "yes"
        )
        late += len(expected)
    return late


@pytest.fixture(scope="module")
def rows():
    print(f"seed {SEED}")
    return [row for name in [*(f"p{i}" for i in range(60)), None] for row in draw_rows(SEED, name)]


@pytest.mark.parametrize("kind", ["position", "time"])
def test_all_that_came_late_is_found_and_nothing_else(spark, rows, kind):
    table = spark.createDataFrame(rows, TYPES).repartition(3)
    names = {kind: "at"}
    if kind == "time":
        table = table.withColumn("at", F.timestamp_micros(F.col("at") + 1_700_000_000_000_000))
    found = verify(table, **NAMES, **names, partition_by="part")
    assert assert_all_found(found, rows) > 50
    assert found.verdict == "no"
    assert found.counts["partitions"] == len({row[0] for row in rows})
    assert found.counts["ties"] > 0
    found.release()


def test_large_partitions_are_judged_by_joins_alike(spark, rows):
    """Some partitions go by joins, others by tasks; two of the large ones are refused."""
    bad: list[tuple] = [("cyclic", f"c{i}", [f"c{(i + 1) % 3}"], "x", 5) for i in range(3)]
    bad += [("cyclic", f"d{i}", None, "x", i) for i in range(50)]
    bad += [("nameless", None if i == 7 else f"n{i}", None, "x", i) for i in range(50)]
    bad += [("nameless", f"m{i}", [f"m{1 - i}"], "x", i) for i in range(2)]
    large = {row[0] for row in rows if sum(other[0] == row[0] for other in rows) > 25}
    assert 2 < len(large) < 60, "some are large, and some are not"
    table = spark.createDataFrame(rows + bad, TYPES).repartition(3)
    asked = ByCauses("id", "causes", ("part",), "at")
    found = verify_causes(table, asked, "consumer", full=25)
    assert {row["part"]: row["reason"] for row in found.refused} == {
        "cyclic": "the causes form a cycle: c0 -> c2 -> c1 -> c0",
        "nameless": "1 row without an id; the causes form a cycle: m0 -> m1 -> m0",
    }
    kept = replace(
        found,
        findings=found.findings.where("kind != 'refused'"),
        partitions=found.partitions.where("coalesce(part, '') not in ('cyclic', 'nameless')"),
    )
    assert assert_all_found(kept, rows) > 50
    found.release()


def test_a_long_chain_backwards_is_found_by_a_task_after_all(spark):
    chain = [(f"{i:03}", f"{i - 1:03}" if i else None, "x", -i) for i in range(6)]
    table = spark.createDataFrame(chain, "id string, cause string, consumer string, at long")
    asked = ByCauses("id", "cause", (), "at")
    for rounds in (20, 2):
        found = verify_causes(table, asked, "consumer", full=4, rounds=rounds)
        assert found.counts["violations"] == 5
        last = found.findings.where("id = '000'").collect()[0]
        assert (last.by, last.chain) == ("005", [f"{i:03}" for i in range(6)])
        found.release()


def test_findings_do_not_hang_on_the_order_of_rows(spark, rows):
    answers = []
    for seed in (1, 2):
        Random(seed).shuffle(shuffled := list(rows))
        found = verify(spark.createDataFrame(shuffled, TYPES), **NAMES, position="at", partition_by="part")
        answers.append(sorted(map(repr, found.findings.collect())))
        found.release()
    assert answers[0] == answers[1]


def test_an_order_that_was_kept_is_yes_and_one_swap_is_found(spark):
    """Each event follows the one before; x gets every other one, so chains go through what it never saw."""
    chain = [(f"e{i}", f"e{i - 1}" if i else None, None, None) for i in range(40)]
    seen = [(f"e{i}", None, "x", i) for i in range(0, 40, 2)]
    types = "id string, causes string, consumer string, at int"
    found = verify(spark.createDataFrame(chain + seen, types), **NAMES, position="at")
    assert (found.verdict, found.reason, found.counts["judged"]) == ("yes", None, 19)
    assert found.findings.count() == 0
    seen[5] = ("e10", None, "x", 13)
    found = verify(spark.createDataFrame(chain + seen, types), **NAMES, position="at")
    [row] = found.findings.collect()
    assert (row.kind, row.consumer, row.id, row.by, row.chain) == (
        "violation", "x", "e10", "e12", ["e10", "e11", "e12"],
    )  # fmt: skip
    assert (found.verdict, found.reason) == ("no", "1 violation")


def test_bad_partitions_are_refused_by_name_and_the_others_are_judged(spark, rows):
    some = [row for row in rows if row[0] in ("p1", "p2", "p3")]
    bad = [
        ("cycle", "a", ["c"], "x", 1),
        ("cycle", "b", ["a"], "x", 2),
        ("cycle", "c", ["b"], None, None),
        ("cycle", "d", ["c"], "x", 0),
        ("cycle", "f", ["lost"], "x", 0),
        ("itself", "a", ["a"], "x", 1),
        ("nameless", None, ["a"], "x", 1),
        ("nowhere", "a", None, "x", None),
        ("nowhere", "b", ["a"], "x", 1),
    ]
    table = spark.createDataFrame(some + bad, TYPES)
    found = verify(table, **NAMES, position="at", partition_by="part")
    assert {row["part"]: row["reason"] for row in found.refused} == {
        "cycle": "the causes form a cycle: a -> b -> c -> a",
        "itself": "the causes form a cycle: a -> a",
        "nameless": "1 row without an id",
        "nowhere": "1 row handed to a consumer at no position or time, or at a text that is neither an integer nor "
        "ISO 8601",
    }
    refused = found.findings.where("kind = 'refused'").collect()
    assert {row.part: row.reason for row in refused} == {row["part"]: row["reason"] for row in found.refused}
    assert len(refused) == found.counts["refused"] == 4
    told = {row.part: row for row in found.partitions.collect()}
    assert {told[name].verdict for name in ("cycle", "itself", "nameless", "nowhere")} == {"unknown"}
    assert told["cycle"].violations is None
    rest = verify(spark.createDataFrame(some, TYPES), **NAMES, position="at", partition_by="part")
    good = found.findings.where("kind != 'refused'")
    assert sorted(map(repr, good.collect())) == sorted(map(repr, rest.findings.collect()))
    with pytest.raises(BadTrace, match="part cycle: the causes form a cycle: a -> b -> c -> a"):
        verify(spark.createDataFrame(bad[:5], TYPES), **NAMES, position="at", partition_by="part")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "nothing to judge"),
        ([("p", "a", None, "x", 1), ("p", "b", None, "x", 2)], "nothing to judge"),
        ([("p", "a", None, "x", 1), ("p", "b", ["a"], "y", 2)], "nothing to judge"),
        ([("p", "a", None, "x", 1), ("p", "b", ["a", "lost"], "x", 2)], "1 missing"),
    ],
)
def test_a_yes_of_nothing_is_unknown(spark, rows, reason):
    found = verify(spark.createDataFrame(rows, TYPES), **NAMES, position="at")
    assert found.verdict == "unknown"
    assert (found.reason or "").startswith(reason)


def test_ids_and_consumers_may_be_integers_and_times_may_be_text(spark):
    rows = [(1, 0, 7, "2026-01-01T00:00:00.000000001Z"), (0, None, 7, "2026-01-01T00:00:00.000000002Z")]
    table = spark.createDataFrame(rows, "id int, causes int, `the consumer` short, at string")
    found = verify(table, id="id", causes="causes", consumer="the consumer", time="at")
    [row] = found.findings.collect()
    assert (row.consumer, row.id, row.by, row.chain) == (7, 0, 1, [0, 1])


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date", "string"])
def test_times_that_nanoseconds_of_64_bits_do_not_reach_keep_their_order(spark, kind):
    """9999-12-31 is what many write for "never"."""
    rows = [("a", None, "x", "9999-12-31"), ("b", "a", "x", "2026-01-01"), ("c", "b", "x", "0001-01-01")]
    table = spark.createDataFrame(rows, "id string, causes string, consumer string, at string")
    found = verify(table.withColumn("at", F.col("at").cast(kind)), **NAMES, time="at")
    assert sorted((row.id, row.by) for row in found.findings.collect()) == [("a", "c"), ("b", "c")]
    found.release()


def test_a_partition_column_that_is_named_twice_is_one(spark):
    table = spark.createDataFrame([("p", "a", None, "x", 2), ("p", "b", ["a"], "x", 1)], TYPES)
    found = verify(table, **NAMES, position="at", partition_by=["part", "part"])
    assert found.partition_by == ("part",)
    assert [(row.part, row.id, row.by) for row in found.findings.collect()] == [("p", "a", "b")]
    found.release()


def test_no_cause_means_none(spark):
    table = spark.createDataFrame(
        [("a", "root", "x", 1.5), ("b", "a", "x", 0.5)],
        "id string, causes string, consumer string, at double",
    )
    found = verify(table, **NAMES, time="at", no_cause="root")
    assert [(row.kind, row.id) for row in found.findings.collect()] == [("violation", "a")]


@pytest.mark.parametrize("compiled", [True, False])
def test_a_long_chain_is_cut_and_says_so(compiled):
    many = CHAIN_MOST + 10 if not compiled else 20_000
    up, above = list_by(np.arange(1, many), np.arange(many - 1), many)
    arguments = (
        up,
        above,
        np.arange(many),
        np.array([0, many]),
        np.arange(many)[::-1].copy(),
        np.arange(many),
    )
    if compiled:
        found = find_late(*arguments)
    else:
        with interpret_kernels():
            found = find_late(*arguments)
    assert found.late.tolist() == list(range(1, many))
    assert set(found.first[1:].tolist()) == {0}
    chains = [found.pool[start:end] for start, end in zip(found.starts, found.starts[1:], strict=False)]
    for entry, chain in zip(found.late.tolist(), chains, strict=True):
        whole = range(many - 1 - entry, many)
        cut = [*whole[: CHAIN_MOST - 2], -1, whole[-1]]
        assert chain.tolist() == (list(whole) if len(whole) <= CHAIN_MOST else cut)


@pytest.mark.parametrize("seed", range(5))
def test_compiled_and_interpreted_find_the_same(seed):
    rng = np.random.default_rng(seed)
    many = 300
    effect = np.sort(rng.integers(1, many, 2 * many))
    up, above = list_by(effect, rng.integers(0, effect), many)
    handed = [rng.permutation(many)[: rng.integers(1, many)] for _ in range(4)]
    at = [np.sort(rng.integers(0, 100, len(one))) for one in handed]
    consumers = np.cumsum([0, *map(len, handed)])
    arguments = (up, above, rng.permutation(many), consumers, np.concatenate(handed), np.concatenate(at))
    compiled = find_late(*arguments)
    with interpret_kernels():
        plain = find_late(*arguments)
    assert len(plain.late) > 100
    for one, other in zip(compiled, plain, strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "give position or time, one of them"),
        ({"position": "at", "time": "at"}, "give position or time, one of them (they are at and at)"),
        (
            {"position": "where"},
            "position or time must be one of the columns part, id, causes, consumer, at, not 'where'",
        ),
        ({"position": "causes"}, "and causes is array<string>"),
        (
            {"position": "at", "consumer": "who"},
            "consumer must be one of the columns part, id, causes, consumer, at, not 'who'",
        ),
        (
            {"position": "at", "consumer": "causes"},
            "consumer must be text or integers, and causes is array<string>",
        ),
        ({"position": "at", "id": None}, "a DataFrame needs id, causes and consumer"),
        (
            {"position": "at", "partition_by": "consumer"},
            "partition_by cannot be consumer: findings have the columns",
        ),
        ({"position": "at", "chunks": 3}, "chunks does not go with a DataFrame"),
    ],
)
def test_what_is_asked_wrongly_is_refused(spark, options, told):
    table = spark.createDataFrame([], TYPES)
    with pytest.raises(BadParameter) as error:
        verify(table, **NAMES | options)
    assert told in str(error.value)


def test_tables_of_others_streams_and_names_for_a_trace_are_refused(spark):
    with pytest.raises(BadParameter, match="must be a Spark DataFrame"):
        verify([], **NAMES, position="at")  # type: ignore[call-overload]
    with pytest.raises(BadParameter, match=r"consumer must be one of the columns .*, not 'v'"):
        verify(
            spark.readStream.format("rate").load(), id="value", causes="value", consumer="v", time="timestamp"
        )
    empty = spark.createDataFrame([], SPARK_EVENTS)
    with pytest.raises(BadParameter, match="id does not go with a trace"):
        verify(Trace.of(empty), id="id")  # type: ignore[call-overload]


@real
def test_real_spans_started_after_their_parents(spark):
    """Parents state the causes of a span, and a pod is handed its spans by start: none comes before its parent."""
    table = spark.read.option("header", True).csv([str(path) for path in sorted(SPANS.glob("*.csv.gz"))])
    names = {"id": "SpanID", "causes": "ParentID", "partition_by": "TraceID", "no_cause": "root"}
    found = verify(table, **names, consumer="PodName", time="StartTimeUnixNano")
    assert found.counts["rows"] == table.count()
    assert found.counts["judged"] > 1000
    print(found.verdict, found.reason, found.counts)
    assert found.counts["violations"] == 0
    # The same check finds what is wrong: by their ends, a parent comes after its children.
    late = verify(table, **names, consumer="PodName", time="EndTimeUnixNano")
    assert late.counts["violations"] > 1000


def lines(path, rows):
    keys = ("part", "id", "causes", "consumer", "at")
    path.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    return path


OPTIONS = ("--id", "id", "--causes", "causes", "--consumer", "consumer", "--position", "at")


def test_the_command_says_no_and_writes_what_it_found(warm, tmp_path):
    rows = [
        ("p", "a", None, "x", 2),
        ("p", "b", ["a"], None, None),
        ("p", "c", ["b"], "x", 1),
        ("q", "a", ["a"], "x", 1),
    ]
    path = lines(tmp_path / "events.jsonl", rows)
    done = warm("verify", path, *OPTIONS, "--partition-by", "part", "--json", "--out", tmp_path / "out")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert (told["verdict"], told["causality"], told["reason"]) == (
        "no",
        "stated",
        "1 violation, 1 partition refused",
    )
    assert (told["violations"], told["refused"], told["partitions"]) == (1, 1, 2)
    assert told["refusals"] == [{"part": "q", "reason": "the causes form a cycle: a -> a"}]
    assert "part p: x was handed a after its effect c: a -> b -> c" in done.stderr
    assert "refused: part q: the causes form a cycle: a -> a" in done.stderr
    findings = pq.read_table(tmp_path / "out" / "findings").to_pylist()
    assert {(row["kind"], row["part"], row["id"], tuple(row["chain"] or ())) for row in findings} == {
        ("violation", "p", "a", ("a", "b", "c")),
        ("refused", "q", None, ()),
    }
    verdicts = pq.read_table(tmp_path / "out" / "verdicts").to_pylist()
    assert {row["part"]: row["verdict"] for row in verdicts} == {"p": "no", "q": "unknown"}


def test_the_command_says_yes_or_unknown_with_code_0(warm, tmp_path):
    path = tmp_path / "events.csv"
    path.write_text('id,causes,consumer,at\na,,x,1\nb,"[""a""]",x,2\nc,b,x,2\n')
    done = warm("verify", path, *OPTIONS)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(
        "yes: by stated causes, nothing came late: 3 rows, 3 handed over, 2 causes judged"
    )
    assert "1 tie: " in done.stderr
    path.write_text("id,causes,consumer,at\na,,x,1\n")
    done = warm("verify", path, *OPTIONS)
    assert done.returncode == 0
    assert done.stderr.startswith("unknown: by stated causes, nothing to judge")


def test_a_word_that_is_missing_everywhere_may_mean_no_cause(warm, tmp_path):
    path = lines(tmp_path / "e.jsonl", [("p", "a", ["root"], "x", 1), ("q", "b", ["root"], "x", 1)])
    advice = "if root means that a row has no cause, add --no-cause root"
    done = warm("verify", path, *OPTIONS, "--partition-by", "part")
    assert done.stderr.splitlines()[-1] == advice
    done = warm("order", path, *OPTIONS[:4], "--partition-by", "part", "--out", tmp_path / "out")
    assert done.stderr.splitlines()[-1] == advice
    assert "--no-cause" not in warm("verify", path, *OPTIONS).stderr


def test_a_refused_partition_alone_is_code_1_and_no_other_partition_code_2(warm, tmp_path):
    good = [("p", "a", None, "x", 1), ("p", "b", ["a"], "x", 2)]
    path = lines(tmp_path / "some.jsonl", [*good, ("q", "a", ["a"], "x", 1)])
    done = warm("verify", path, *OPTIONS, "--partition-by", "part")
    assert done.returncode == 1
    assert "unknown: by stated causes, 1 partition refused" in done.stderr
    path = lines(tmp_path / "all.jsonl", [("q", "a", ["a"], "x", 1)])
    done = warm("verify", path, *OPTIONS, "--partition-by", "part", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "part q: the causes form a cycle: a -> a" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--id", "id"),
        (*OPTIONS, "--time", "at"),
        OPTIONS[:-2],
        (*OPTIONS, "--stream"),
        (*OPTIONS, "--patience", "1 hour"),
        (*OPTIONS[:-2], "--stream", "--out", "out"),
        (*OPTIONS, "--explain"),
        ("--partition-by", "part"),
        ("--no-cause", "root"),
    ],
)
def test_wrong_options_are_code_2_before_spark_starts(options, capsys, tmp_path):
    from antecede.cli import run

    assert run(["verify", str(lines(tmp_path / "e.jsonl", [])), *options]) == 2
    assert capsys.readouterr().err.startswith("antecede: verify")
