"""Whether the vector clocks of a log agree with each other: what can be said without knowing the messages.

The event of process h whose own entry is k is called (h, k). A vector V of it, entry by entry:
  V[h] = k      its own count: 1, 2, 3, ...
  V[j] = v > 0  it knows of (j, v): a *reference*. It is *news* if the event of h before it had a smaller V[j].
An event comes after the one before it at its process, after those that it refers to and, where messages are known, a
delivery comes after its send. These are its *causes*. A clock that counts rightly is, entry by entry but for its own,
the greatest of its causes' clocks.

docs/ingest.md has the kinds of findings, each with the value that the entry should have. References are looked at where
they are news. So a fault is found where it begins, and not again at each event that inherits it. If nothing is found,
every clock is right: an entry that is not news was right at the event before.

How: each process's events are sorted, and compared with the one before: that gives its news (and what is repeated, a
gap, or falls). News and the log are joined by (run, process, own entry): one shuffle of vectors, as many as there are
news. Then two vectors are compared for each. No run is ever in one place.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

__all__ = ["FINDINGS", "check_clocks"]

NAMES: Final = [
    "run", "kind", "process", "index", "entry", "found", "expected", "by_process", "by_index", "file", "line",
]  # fmt: skip
NUMBERS: Final = ("index", "found", "expected", "by_index", "line")
FINDINGS: Final = StructType(
    [StructField(name, LongType() if name in NUMBERS else StringType()) for name in NAMES]
)
"""`entry`: whose entry of the event's clock; `found`: what it is; `expected`: what it should be; `by_*`: the cause."""

EVENT: Final = ("run", "process", "index", "file", "line")
OWN: Final = "PARTITION BY run, process ORDER BY index, file, line"


def step(
    kind: str, entry: str, found: str, expected: str, by_process: str = "NULL", by_index: str = "NULL"
) -> str:
    """A finding, or news without a kind: `entry` is of whom, `found` of which event."""
    return f"""struct(CAST({kind} AS string) AS kind, {entry} AS entry, CAST({found} AS bigint) AS found,
        CAST({expected} AS bigint) AS expected, CAST({by_process} AS string) AS by_process,
        CAST({by_index} AS bigint) AS by_index)"""


def differ(one: str, other: str, where: str) -> str:
    """The entries of two vectors of which a condition is true of `value.one` and `value.other`; an absent one is 0."""
    both = f"""map_zip_with({one}, {other}, (key, one, other) ->
        struct(coalesce(one, 0L) AS one, coalesce(other, 0L) AS other))"""
    return f"filter(map_entries({both}), of -> {where})"


REPEATED: Final = step("'repeated'", "process", "index + 1", "NULL")
GAP: Final = step("'gap'", "process", "index + 1", "before + 2")
FALLS: Final = differ("vector", "past", "of.key != process AND of.value.one < of.value.other")
FALL: Final = step("'behind'", "of.key", "of.value.one", "of.value.other", "process", "before")
RISES: Final = differ("vector", "past", "of.key != process AND of.value.one > of.value.other")
NEWS: Final = step("NULL", "of.key", "of.value.one", "NULL")
STEPS: Final = f"""CASE WHEN repeats THEN array({REPEATED}) ELSE concat(
    if(index != before + 1, array({GAP}), array()),
    transform({FALLS}, of -> {FALL}), transform({RISES}, of -> {NEWS})) END"""
"""What an event says, compared with the one before it at its process."""
MISSING: Final = step("'missing'", "step.entry", "step.found", "NULL")
LACKS: Final = differ(
    "past", "vector", "if(of.key = process, of.value.one > index, of.value.one > of.value.other)"
)
LACK: Final = step(
    "if(of.key = process, 'future', 'behind')",
    "of.key",
    "if(of.key = process, of.value.one, of.value.other)",
    "if(of.key = process, index, of.value.one)",
    "step.entry",
    "step.found - 1",
)
JUDGED: Final = f"""CASE WHEN step.kind IS NOT NULL THEN array(step) WHEN past IS NULL THEN array({MISSING})
    ELSE transform({LACKS}, of -> {LACK}) END"""
"""Findings, and news compared with the clocks of the events that they are of."""


def check_clocks(log: DataFrame, *, messages: bool = True) -> DataFrame:
    """What is wrong with the clocks of a log (`SPARK_LOG`), with the columns `FINDINGS`. None: every clock is right.

    `messages` says whether the log may name messages; not having to look makes the plan shorter.
    """
    clocks = log.where("vector is not null and index is not null").withColumn(
        "vector", F.expr("map_filter(vector, (whose, entry) -> entry > 0)")
    )
    ranked = clocks.selectExpr(
        *EVENT, "vector", f"coalesce(lag(index) OVER ({OWN}) = index, false) AS repeats"
    )
    # A repetition is looked at no more: neither as an event nor as the one before.
    own = "OVER (PARTITION BY run, process, repeats ORDER BY index, file, line)"
    compared = ranked.selectExpr(
        *EVENT,
        "vector",
        "repeats",
        f"coalesce(lag(index) {own}, -1L) AS before",
        f"coalesce(lag(vector) {own}, CAST(map() AS map<string,bigint>)) AS past",
    )
    news = compared.selectExpr(*EVENT, "vector", f"explode({STEPS}) AS step")
    if messages:
        news = news.unionByName(relate_deliveries(clocks))
    # Of several events with one own entry the first counts, here as there.
    causes = clocks.groupBy("run", F.col("process").alias("cause"), (F.col("index") + 1).alias("own")).agg(
        F.min_by("vector", F.struct("file", "line")).alias("past")
    )
    lasts = clocks.groupBy("run", F.col("process").alias("entry")).agg(
        F.max(F.col("index") + 1).alias("last")
    )
    # A finding takes no part in the join: without a cause it meets none.
    asked = news.selectExpr("*", "if(step.kind IS NULL, step.entry, NULL) AS cause", "step.found AS own")
    joined = asked.join(causes, ["run", "cause", "own"], "left")
    findings = joined.selectExpr(*EVENT, f"explode({JUDGED}) AS step").selectExpr(*EVENT, "step.*")
    return add_last_events(choose_greatest(findings), lasts)


def relate_deliveries(clocks: DataFrame) -> DataFrame:
    """Each delivery of a known message, as if it were news of its send: it must be behind in nothing."""
    known = clocks.where("message is not null")
    sends = known.where("kind = 'send'").groupBy("run", "message")
    met = known.where("kind = 'deliver'").join(
        sends.agg(F.min(F.struct("process", "index")).alias("send")), ["run", "message"]
    )
    sent = step("NULL", "send.process", "send.index + 1", "NULL")
    return met.selectExpr(*EVENT, "vector", f"{sent} AS step")


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
    told = findings.join(lasts, ["run", "entry"], "left")
    last = F.coalesce("last", F.lit(0))
    # Beyond the last, the clock counts too far; below it, an event is not in the log.
    nearest = F.when(last < F.col("found"), last)
    expected = F.when(F.col("kind") == "missing", nearest).otherwise(F.col("expected"))
    return told.withColumn("expected", expected).select(FINDINGS.names)
