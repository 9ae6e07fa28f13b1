"""Whether the vector clocks of a log agree with each other: what can be said without knowing the messages.

The event of process h whose own entry is k is called (h, k). A vector V of it, entry by entry:
  V[h] = k      its own count: 1, 2, 3, ...
  V[j] = v > 0  it knows of (j, v): a *reference*. It is *news* if the event of h before it had a smaller V[j].
An event comes after the one before it at its process, after those that it refers to and, where messages are known, a
delivery comes after its send. These are its *causes*. A clock that counts rightly is, entry by entry but for its own,
the greatest of its causes' clocks.

What is found, each with the value that the entry should have:
  repeated   an event with the own entry of another one; the first in the files counts, and this one is not looked at
  gap        an own entry that is not one more than the one before: expected is that
  missing    news of an event that is not in the log; expected is the last one of that process that is, or null if it
             lies between others: then it is not the clock that is wrong
  behind     an entry less than that of a cause: expected is the greatest of them, `by` is that cause
  future     a cause that knows of this event or of a later one of its process: expected is at most the event before
References are looked at where they are news. So a fault is found where it begins, and not again at each event that
inherits it. If nothing is found, every clock is right: an entry that is not news was right at the event before.

How: each process's events are sorted and gone through once, which gives its news (repeated, gap, and entries that
fall). News and the log are joined by (run, process, own entry): one shuffle of vectors, as many as there are news. Then
two vectors are compared for each. No run is ever in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from antecede.spark.errors import mark_errors

__all__ = ["FINDINGS", "check_clocks"]

KINDS: Final = ("repeated", "gap", "missing", "behind", "future")

EVENT: Final = [
    StructField("run", StringType()),
    StructField("process", StringType()),
    StructField("index", LongType()),
    StructField("file", StringType()),
    StructField("line", LongType()),
]

FINDINGS: Final = StructType(
    [
        StructField("run", StringType()),
        StructField("kind", StringType()),
        StructField("process", StringType()),
        StructField("index", LongType()),
        # Whose entry of the event's clock, what it is, and what it should be.
        StructField("entry", StringType()),
        StructField("found", LongType()),
        StructField("expected", LongType()),
        # The cause that tells.
        StructField("by_process", StringType()),
        StructField("by_index", LongType()),
        StructField("file", StringType()),
        StructField("line", LongType()),
    ]
)

VECTOR: Final = MapType(StringType(), LongType())

STEPS: Final = StructType([*FINDINGS, StructField("vector", VECTOR)])
"""A finding, or news without a kind: `entry` is of whom, `found` of which event."""

Ints = npt.NDArray[np.int64]


def check_clocks(log: DataFrame, *, messages: bool = True) -> DataFrame:
    """What is wrong with the clocks of a log (`SPARK_LOG`), with the columns `FINDINGS`. None: every clock is right.

    `messages` says whether the log may name messages; not having to look makes the plan shorter.
    """
    clocks = log.where("vector is not null and index is not null")
    sorted_clocks = (
        clocks.select("run", "process", "index", "vector", "file", "line")
        .repartition("run", "process")
        .sortWithinPartitions("run", "process", "index", "file", "line")
    )
    news = sorted_clocks.mapInArrow(mark_errors(compare_steps), STEPS)
    if messages:
        news = news.unionByName(relate_deliveries(clocks))
    # Of several events with one own entry the first counts, here as there.
    causes = clocks.groupBy("run", F.col("process").alias("cause"), (F.col("index") + 1).alias("own")).agg(
        F.min_by("vector", F.struct("file", "line")).alias("past")
    )
    lasts = clocks.groupBy("run", F.col("process").alias("cause")).agg(
        F.max(F.col("index") + 1).alias("last")
    )
    # A finding takes no part in the join: without a cause it meets none.
    asked = news.withColumn("cause", F.when(F.col("kind").isNull(), F.col("entry")))
    joined = asked.join(causes.withColumnRenamed("own", "found"), ["run", "cause", "found"], "left")
    findings = joined.select(*STEPS.names, "past").mapInArrow(mark_errors(judge_news), FINDINGS)
    return add_last_events(choose_greatest(findings), lasts)


def relate_deliveries(clocks: DataFrame) -> DataFrame:
    """Each delivery of a known message, as if it were news of its send: it must be behind in nothing."""
    known = clocks.where("message is not null")
    sends = (
        known.where("kind = 'send'")
        .groupBy("run", "message")
        .agg(F.min(F.struct("process", "index")).alias("send"))
    )
    met = known.where("kind = 'deliver'").join(sends, ["run", "message"])
    told = {"entry": F.col("send.process"), "found": F.col("send.index") + 1}
    absent = ("kind", "expected", "by_process", "by_index")
    return met.select(
        [
            told[field.name].alias(field.name)
            if field.name in told
            else F.lit(None).cast(field.dataType).alias(field.name)
            if field.name in absent
            else F.col(field.name)
            for field in STEPS
        ]
    )


def choose_greatest(findings: DataFrame) -> DataFrame:
    """One finding for each entry of an event, with the cause that asks most of it."""
    cause = F.struct("expected", "by_process", "by_index")
    which = [name for name in FINDINGS.names if name not in ("expected", "by_process", "by_index")]
    return (
        findings.groupBy(which)
        .agg(F.max(cause).alias("most"))
        .select(*which, "most.*")
        .select(FINDINGS.names)
    )


def add_last_events(findings: DataFrame, lasts: DataFrame) -> DataFrame:
    """What is expected where an event is missing: only findings meet the last events, not all pairs of vectors."""
    told = findings.join(lasts.withColumnRenamed("cause", "entry"), ["run", "entry"], "left")
    last = F.coalesce("last", F.lit(0))
    # Beyond the last, the clock counts too far; below it, an event is not in the log.
    nearest = F.when(last < F.col("found"), last)
    expected = F.when(F.col("kind") == "missing", nearest).otherwise(F.col("expected"))
    return told.withColumn("expected", expected).select(FINDINGS.names)


# In tasks


def compare_steps(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Go through events sorted by (run, process, index): what is wrong with their own entries, and their news."""
    last: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        carried = 0 if last is None else 1
        # The event before the first is looked at again, as a past and no more.
        rows = batch if last is None else pa.concat_batches([last, batch.select(last.schema.names)])
        process = find_changes(rows.column("run")) | find_changes(rows.column("process"))
        index = rows.column("index").to_numpy()
        again = np.r_[False, index[1:] == index[:-1]] & ~process
        fresh = np.arange(len(index)) >= carried
        yield tell_own_entries(
            "repeated", rows, np.flatnonzero(again & fresh), index + 1, np.full(len(index), -1)
        )
        kept = np.flatnonzero(~again)
        rows, index, fresh = rows.take(pa.array(kept)), index[kept], fresh[kept]
        # A process begins where its first event does, which is never a repetition.
        begins = process[kept]
        before = np.where(begins, -1, np.r_[-1, index[:-1]])
        wrong = np.flatnonzero((index != before + 1) & fresh)
        yield tell_own_entries("gap", rows, wrong, index + 1, before + 2)
        yield from compare_vectors(rows, np.cumsum(begins), before, fresh)
        last = rows.slice(rows.num_rows - 1)


def find_changes(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Where a value differs from the one before it; the first does."""
    differ = pc.not_equal(column[1:], column[:-1])
    told: npt.NDArray[np.bool_] = np.r_[True, differ.to_numpy(zero_copy_only=False)]
    return told


def tell_own_entries(
    kind: str, rows: pa.RecordBatch, at: Ints, found: Ints, expected: Ints
) -> pa.RecordBatch:
    """Findings about own entries; an expected -1 is none."""
    return build_steps(rows, at, kind, rows.column("process").take(pa.array(at)), found[at], expected[at])


def build_steps(
    rows: pa.RecordBatch,
    at: Ints,
    kind: str | None,
    entry: pa.Array,
    found: Ints,
    expected: Ints,
    by: tuple[pa.Array, Ints] | None = None,
    vector: bool = False,
) -> pa.RecordBatch:
    """Rows of `STEPS` about the events at these places."""
    size = len(at)
    where = pa.array(at)
    columns = {
        "kind": pa.array([kind] * size, pa.string()),
        "entry": entry,
        "found": pa.array(found, pa.int64()),
        "expected": pa.array(expected, pa.int64(), mask=expected < 0),
        "by_process": pa.nulls(size, pa.string()) if by is None else by[0],
        "by_index": pa.nulls(size, pa.int64()) if by is None else pa.array(by[1], pa.int64()),
        "vector": rows.column("vector").take(where) if vector else pa.nulls(size, VECTORS),
    }
    for name in ("run", "process", "index", "file", "line"):
        columns[name] = rows.column(name).take(where)
    return pa.RecordBatch.from_arrays([columns[name] for name in STEPS.names], names=STEPS.names)


VECTORS: Final = pa.map_(pa.string(), pa.int64())


def compare_vectors(
    rows: pa.RecordBatch, group: Ints, before: Ints, fresh: npt.NDArray[np.bool_]
) -> Iterator[pa.RecordBatch]:
    """Compare each event's vector with the one before it at its process: what fell, and what is news.

    Entries are sorted by (process, whose entry, event): the one before in that order is the same entry of an earlier
    event, which is the event before it or one since which the entry was absent.
    """
    row, code, value, names = list_entries(rows.column("vector"))
    order = np.lexsort((row, code, group[row]))
    row, code, value = row[order], code[order], value[order]
    chained = np.r_[False, (code[1:] == code[:-1]) & (group[row[1:]] == group[row[:-1]])]
    lagged = np.r_[0, row[:-1]]
    past = np.where(chained & (lagged == row - 1), np.r_[0, value[:-1]], 0)
    own = rows.column("process")
    mine = pc.equal(names.take(pa.array(code)), own.take(pa.array(row))).to_numpy(zero_copy_only=False)
    fell = np.flatnonzero((value < past) & ~mine & fresh[row])
    yield tell_falls(rows, row[fell], names.take(pa.array(code[fell])), value[fell], past[fell], before)
    # An entry that the next event of the process has not at all fell too.
    following = np.r_[chained[1:] & (row[1:] == row[:-1] + 1), False]
    lost = row + 1
    has_next = (lost < len(group)) & (group[np.minimum(lost, len(group) - 1)] == group[row])
    gone = np.flatnonzero(has_next & ~following & ~mine & fresh[np.minimum(lost, len(group) - 1)])
    yield tell_falls(
        rows, lost[gone], names.take(pa.array(code[gone])), np.zeros(len(gone), np.int64), value[gone], before
    )
    news = np.flatnonzero((value > past) & ~mine & fresh[row])
    none = np.full(len(news), -1)
    yield build_steps(rows, row[news], None, names.take(pa.array(code[news])), value[news], none, vector=True)


def tell_falls(
    rows: pa.RecordBatch, at: Ints, entry: pa.Array, found: Ints, expected: Ints, before: Ints
) -> pa.RecordBatch:
    cause = rows.column("process").take(pa.array(at)), before[at]
    return build_steps(rows, at, "behind", entry, found, expected, cause)


def list_entries(vectors: pa.Array) -> tuple[Ints, Ints, Ints, pa.Array]:
    """The entries of vectors, one after the other: in which row, of whom (as a number, and the names), how much."""
    offsets = np.asarray(vectors.offsets)
    keys = pc.dictionary_encode(vectors.keys[offsets[0] : offsets[-1]])
    values = vectors.items[offsets[0] : offsets[-1]].to_numpy(zero_copy_only=False)
    row = np.repeat(np.arange(len(vectors)), np.diff(offsets))
    code = keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    some = values > 0
    return row[some], code[some], values[some].astype(np.int64), keys.dictionary


def judge_news(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compare news with the clocks of the events that they are of. Findings pass through."""
    for batch in batches:
        columns = batch.select(FINDINGS.names)
        kind = batch.column("kind")
        yield columns.filter(pc.is_valid(kind))
        news = batch.filter(pc.is_null(kind))
        found = pc.is_valid(news.column("past"))
        yield tell_missing(news.filter(pc.invert(found)))
        yield from compare_causes(news.filter(found))


def tell_missing(news: pa.RecordBatch) -> pa.RecordBatch:
    told: dict[str, Any] = {"kind": pa.array(["missing"] * news.num_rows, pa.string())}
    columns = [told.get(name, news.column(name)) for name in FINDINGS.names]
    return pa.RecordBatch.from_arrays(columns, names=FINDINGS.names)


def compare_causes(news: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Each entry of a cause's clock against that of the event."""
    if not news.num_rows:
        return
    both = pa.concat_arrays([news.column("vector"), news.column("past")])
    row, code, value, names = list_entries(both)
    size = news.num_rows
    is_past = row >= size
    key = np.where(is_past, row - size, row) * max(len(names), 1) + code
    order = np.argsort(key[~is_past])
    known, amounts = key[~is_past][order], value[~is_past][order]
    asked, needed, row, code = key[is_past], value[is_past], row[is_past] - size, code[is_past]
    place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    has = np.where(known[place] == asked, amounts[place], 0) if len(known) else np.zeros(len(asked), np.int64)
    whose = names.take(pa.array(code))
    mine = pc.equal(whose, news.column("process").take(pa.array(row))).to_numpy(zero_copy_only=False)
    behind = np.flatnonzero((needed > has) & ~mine)
    yield build_findings(
        "behind", news, row[behind], whose.take(pa.array(behind)), has[behind], needed[behind]
    )
    own = news.column("index").to_numpy()[row] + 1
    future = np.flatnonzero(mine & (needed >= own))
    yield build_findings(
        "future", news, row[future], whose.take(pa.array(future)), needed[future], own[future] - 1
    )


def build_findings(
    kind: str, news: pa.RecordBatch, at: Ints, entry: pa.Array, found: Ints, expected: Ints
) -> pa.RecordBatch:
    where = pa.array(at)
    told = {
        "kind": pa.array([kind] * len(at), pa.string()),
        "entry": entry,
        "found": pa.array(found, pa.int64()),
        "expected": pa.array(expected, pa.int64()),
        "by_process": news.column("entry").take(where),
        "by_index": pc.subtract(news.column("found").take(where), 1),
    }
    columns = [told[name] if name in told else news.column(name).take(where) for name in FINDINGS.names]
    return pa.RecordBatch.from_arrays(columns, names=FINDINGS.names)
