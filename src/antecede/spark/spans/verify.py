"""Verify spans by stated causality: was a process handed a message after one that follows from it?

A message follows from another if a chain of parents and links leads from it to the other. What a process did before
counts only if a span names it. The answer has the columns of a trace's verification (`antecede.verification.schema`),
and beside them those of the spans: `id` (the late message), `by` (the one that was handed over before it), `trace_id`,
`name`, `by_name`, and `spans`, the chain of all ids between, with their operations and processes in `span_names`.

Traces that no link joins share nothing, and are judged in parallel; those that links join are judged together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.errors import BadTrace
from antecede.spark.spans.messages import MESSAGES, REPLY
from antecede.spark.spans.schema import SPANS
from antecede.spark.storage import absolute, escape_path, files, join
from antecede.spark.trace.api import Trace
from antecede.spark.verify.api import verify
from antecede.spark.verify.by_causes import CausesVerification
from antecede.storage import all_whole

__all__ = [
    "SpansVerification",
    "describe_late",
    "list_messages",
    "name_trace_findings",
    "read_aliases",
    "read_messages",
    "verify_spans",
]

COUNTS: Final = ("violations", "fifo_breaks", "duplicates", "unsent", "unaddressed", "undelivered")


@dataclass(frozen=True)
class SpansVerification:
    """What was found. The tables are kept by Spark until `release`."""

    findings: DataFrame
    """The columns of a trace's findings, and id, by, trace_id, name, by_name, spans, span_names."""
    verdicts: list[dict[str, Any]]
    """One for each run: run, verdict, reason, deliveries, and a count of each kind."""
    judged: int
    """Deliveries of messages of which the process was handed an effect, too."""
    found: CausesVerification

    def examples(self, most: int) -> list[dict[str, Any]]:
        rows = self.findings.orderBy("process", "index").limit(most).collect()
        return [row.asDict(recursive=True) for row in rows]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `findings` and `verdicts` as Parquet into a directory: both, or nothing."""
        places = [join(absolute(path), name) for name in ("findings", "verdicts")]
        with all_whole(places) as [findings, verdicts]:
            self.findings.write.parquet(findings)
            table = self.findings.sparkSession.createDataFrame(self.verdicts, VERDICT)
            table.coalesce(1).write.parquet(verdicts)

    def release(self) -> None:
        self.found.release()


VERDICT: Final = "run string, verdict string, reason string, deliveries bigint, " + ", ".join(
    f"{name} bigint" for name in COUNTS
)


def read_messages(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame | None:
    """Whose spans the messages of a directory are (`antecede.spark.spans.messages`), if it was made of spans."""
    place = join(absolute(path), "messages")
    return spark.read.schema(MESSAGES).parquet(escape_path(place)) if files(spark, place) else None


def verify_spans(spark: SparkSession, path: str | os.PathLike[str]) -> SpansVerification:
    """Judge the messages of a directory that `ingest` wrote of spans."""
    trace, messages = Trace.read(spark, path), read_messages(spark, path)
    if messages is None:
        raise BadTrace(absolute(path), "it has no messages/: name a directory that ingest wrote of spans")
    spans = spark.read.schema(SPANS).parquet(escape_path(join(absolute(path), "spans")))
    found = verify(
        list_events(spans, messages),
        id="id",
        causes="causes",
        consumer="handed_to",
        time="at",
        partition_by="together",
    )
    [run] = trace.known_runs.to_pylist()
    unknown = json.loads(run["parameters"]).get("unknown")
    return SpansVerification(
        name_findings(found.findings, messages, spans),
        [make_verdict(run["run"], unknown, messages, found)],
        found.counts["judged"],
        found,
    )


def describe_late(row: Mapping[str, Any]) -> str:
    """A finding in the words of the spans."""
    chain = " -> ".join(row["spans"])
    late, first = (
        f"{row[name] or 'a message'} ({row[id]})" for name, id in (("name", "id"), ("by_name", "by"))
    )
    return f"{row['run']}: violation: {row['process']} was handed {late} after {first}, which follows from it: {chain}"


def list_events(spans: DataFrame, messages: DataFrame) -> DataFrame:
    """Spans, which link, and messages, which were handed over: id, causes, handed_to, at, together."""
    # What a span was handed is its cause, however it was found.
    handed = messages.where("known_by IN ('message id', 'offset')").selectExpr(
        "handed_id AS id", "array(id) AS causes"
    )
    replies = messages.where("kind = 'reply'").selectExpr("id", f"array(replace(id, '{REPLY}')) AS causes")
    links = spans.select("id", "causes").unionByName(handed).unionByName(replies)
    linking = links.selectExpr(
        "id", "causes", "CAST(NULL AS string) AS handed_to", "CAST(NULL AS bigint) AS at"
    )
    none = "CAST(array() AS array<string>) AS causes"
    given = messages.where("consumer IS NOT NULL").selectExpr(
        "id", none, "consumer AS handed_to", "handed_ns AS at"
    )
    across = links.selectExpr("substring_index(id, ':', 1) AS own", "explode(causes) AS cause").selectExpr(
        "own", "substring_index(cause, ':', 1) AS other"
    )
    joined = across.where("own != other").selectExpr("explode(array(own, other)) AS trace").distinct()
    events = linking.unionByName(given).selectExpr("*", "substring_index(id, ':', 1) AS trace")
    marked = joined.selectExpr("trace", "'' AS shared")
    return events.join(marked, "trace", "left").selectExpr(
        "id", "causes", "handed_to", "at", "coalesce(shared, trace) AS together"
    )


def name_findings(findings: DataFrame, messages: DataFrame, spans: DataFrame) -> DataFrame:
    """The findings by sender and number, with the ids, names and chains of spans."""
    late = findings.where("kind = 'violation'").selectExpr("id", "by", "consumer", "chain AS spans")
    named = messages.select("run", "id", "sender", "number", "trace_id", "name").distinct()
    at = messages.where("consumer IS NOT NULL").select("id", "consumer", "index")
    others = named.selectExpr("id AS by", "sender AS by_sender", "number AS by_number", "name AS by_name")
    # A chain has spans that are no messages between: a finding of a trace names the messages alone.
    steps = late.selectExpr("id", "consumer", "posexplode(spans) AS (step, one)")
    sent = named.selectExpr("id AS one", "struct(sender, number) AS message")
    whose = spans.selectExpr("id AS one", "concat_ws(' of ', name, process) AS whose")
    told = steps.join(sent, "one", "left").join(whose, "one", "left")
    chains = (
        told.groupBy("id", "consumer")
        .agg(F.array_sort(F.collect_list(F.struct("step", "message", "whose"))).alias("steps"))
        .selectExpr(
            "id",
            "consumer",
            "filter(steps.message, one -> one IS NOT NULL) AS chain",
            "transform(steps, one -> one.whose) AS span_names",
        )
    )
    rows = (
        late.join(named, "id")
        .join(others, "by")
        .join(at, ["id", "consumer"])
        .join(chains, ["id", "consumer"])
    )
    return rows.selectExpr(
        "run",
        "'violation' AS kind",
        "consumer AS process",
        "sender",
        "number",
        "by_sender",
        "by_number",
        "index",
        "chain",
        "id",
        "by",
        "trace_id",
        "name",
        "by_name",
        "spans",
        "span_names",
    )


def name_trace_findings(findings: DataFrame, messages: DataFrame) -> DataFrame:
    """Findings of a trace of spans by all that processes did before, with id, by, trace_id, name, by_name and spans."""
    named = messages.select("run", "sender", "number", "id", "trace_id", "name").distinct()
    others = named.selectExpr(
        "run", "sender AS by_sender", "number AS by_number", "id AS by", "name AS by_name"
    )
    key = "struct(sender AS sender, number AS number)"
    steps = findings.select("run", "chain").distinct().selectExpr("*", "posexplode(chain) AS (step, one)")
    linked = steps.join(named.selectExpr("run", f"{key} AS one", "id"), ["run", "one"])
    chains = linked.groupBy("run", "chain").agg(
        F.array_sort(F.collect_list(F.struct("step", "id"))).alias("steps")
    )
    rows = findings.join(named, ["run", "sender", "number"], "left")
    rows = rows.join(others, ["run", "by_sender", "by_number"], "left").join(chains, ["run", "chain"], "left")
    return rows.select(
        *findings.columns, "id", "by", "trace_id", "name", "by_name", F.col("steps.id").alias("spans")
    )


def read_aliases(messages: DataFrame, keys: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    """run, sender, number, id, name of these messages: what spans call them."""
    wanted = messages.sparkSession.createDataFrame(sorted(keys), "sender string, number bigint")
    named = messages.join(F.broadcast(wanted), ["sender", "number"], "left_semi")
    rows = named.select("run", "sender", "number", "id", "name").distinct().collect()
    return [row.asDict() for row in rows]


def list_messages(findings: Iterable[Mapping[str, Any]]) -> set[tuple[str, int]]:
    """The messages that findings name: the late one, the other, and those between."""
    keys = {(row["sender"], row["number"]) for row in findings}
    keys |= {(row["by_sender"], row["by_number"]) for row in findings if row["by_sender"] is not None}
    return keys | {(one["sender"], one["number"]) for row in findings for one in row["chain"] or ()}


def make_verdict(
    run: str, unknown: str | None, messages: DataFrame, found: CausesVerification
) -> dict[str, Any]:
    violations, missing = found.counts["violations"], found.counts["missing"]
    deliveries = messages.where("consumer IS NOT NULL").count()
    told = [f"{violations:,} violation{'s' * (violations != 1)}"] if violations else []
    if unknown:
        told.append(unknown)
    elif missing:
        told.append(f"{missing:,} spans that others name are not there")
    if found.counts["refused"]:
        told.append(f"{found.counts['refused']:,} traces cannot be judged: {found.refused[0]['reason']}")
    verdict = "no" if violations else "unknown" if told or not deliveries else "yes"
    counted = dict.fromkeys(COUNTS, 0) | {"violations": violations}
    return {
        "run": run,
        "verdict": verdict,
        "reason": "; ".join(told) or None,
        "deliveries": deliveries,
        **counted,
    }
