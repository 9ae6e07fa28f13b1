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
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from antecede.errors import BadTrace
from antecede.spark.frames import escape_path, files
from antecede.spark.spans.messages import MESSAGES, REPLY, query
from antecede.spark.spans.schema import SPANS
from antecede.spark.trace import Trace
from antecede.spark.verify.api import verify
from antecede.spark.verify.by_causes import UNJUDGED, CausesVerification, write_found
from antecede.storage import absolute, join
from antecede.verification.schema import COUNTS, VERDICTS

__all__ = [
    "SpansVerification", "describe_late", "list_messages", "name_trace_findings", "read_aliases", "read_messages",
    "verify_spans",
]  # fmt: skip


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
        verdicts = self.findings.sparkSession.createDataFrame(self.verdicts, from_arrow_schema(VERDICTS))
        write_found(path, self.findings, verdicts.coalesce(1))

    def release(self) -> None:
        self.found.release()


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
    return query(
        f"""WITH links AS (SELECT id, causes FROM {{spans}}
            UNION ALL SELECT handed_id, array(id) FROM {{messages}} WHERE known_by IN ('message id', 'offset')
            UNION ALL SELECT id, array(replace(id, '{REPLY}')) FROM {{messages}} WHERE kind = 'reply'),
        events AS (SELECT id, causes, CAST(NULL AS string) AS handed_to, CAST(NULL AS bigint) AS at FROM links
            UNION ALL SELECT id, CAST(array() AS array<string>), consumer, handed_ns FROM {{messages}}
                WHERE consumer IS NOT NULL),
        across AS (SELECT substring_index(id, ':', 1) AS own, substring_index(cause, ':', 1) AS other
            FROM (SELECT id, explode(causes) AS cause FROM links)),
        joined AS (SELECT DISTINCT explode(array(own, other)) AS trace FROM across WHERE own != other)
        SELECT id, causes, handed_to, at, if(joined.trace IS NULL, substring_index(id, ':', 1), '') AS together
        FROM events LEFT JOIN joined ON substring_index(id, ':', 1) = joined.trace""",
        spans=spans,
        messages=messages,
    )


def name_findings(findings: DataFrame, messages: DataFrame, spans: DataFrame) -> DataFrame:
    """The findings by sender and number, with the ids, names and chains of spans."""
    # A chain has spans that are no messages between: a finding of a trace names the messages alone.
    return query(
        """WITH late AS (SELECT id, by, consumer, chain AS spans FROM {findings} WHERE kind = 'violation'),
        named AS (SELECT DISTINCT run, id, sender, number, trace_id, name FROM {messages}),
        steps AS (SELECT id, consumer, posexplode(spans) AS (step, one) FROM late),
        told AS (SELECT steps.id, steps.consumer, struct(step,
                if(named.id IS NULL, NULL, struct(sender, number)) AS message,
                concat_ws(' of ', spans.name, spans.process) AS whose) AS told
            FROM steps LEFT JOIN named ON one = named.id LEFT JOIN {spans} AS spans ON one = spans.id),
        chains AS (SELECT id, consumer, array_sort(collect_list(told)) AS steps FROM told GROUP BY id, consumer)
        SELECT named.run, 'violation' AS kind, late.consumer AS process, named.sender, named.number,
            others.sender AS by_sender, others.number AS by_number, at.index,
            filter(steps.message, one -> one IS NOT NULL) AS chain, late.id, late.by, named.trace_id, named.name,
            others.name AS by_name, late.spans, steps.whose AS span_names
        FROM late JOIN named ON late.id = named.id JOIN named AS others ON late.by = others.id
            JOIN {messages} AS at ON late.id = at.id AND late.consumer = at.consumer
            JOIN chains ON late.id = chains.id AND late.consumer = chains.consumer""",
        findings=findings,
        messages=messages,
        spans=spans,
    )


def name_trace_findings(findings: DataFrame, messages: DataFrame) -> DataFrame:
    """Findings of a trace of spans by all that processes did before, with id, by, trace_id, name, by_name and spans."""
    return query(
        """WITH named AS (SELECT DISTINCT run, sender, number, id, trace_id, name FROM {messages}),
        steps AS (SELECT run, chain, posexplode(chain) AS (step, one)
            FROM (SELECT DISTINCT run, chain FROM {findings})),
        chains AS (SELECT steps.run, chain, array_sort(collect_list(struct(step, id))) AS steps
            FROM steps JOIN named ON steps.run = named.run AND one.sender = sender AND one.number = number
            GROUP BY steps.run, chain)
        SELECT found.*, named.id, others.id AS by, named.trace_id, named.name, others.name AS by_name,
            steps.id AS spans
        FROM {findings} AS found
            LEFT JOIN named ON found.run = named.run AND found.sender = named.sender AND found.number = named.number
            LEFT JOIN named AS others ON found.run = others.run AND found.by_sender = others.sender
                AND found.by_number = others.number
            LEFT JOIN chains ON found.run = chains.run AND found.chain = chains.chain""",
        findings=findings,
        messages=messages,
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
    if not told and not found.counts["judged"]:
        told.append(UNJUDGED)
    verdict = "no" if violations else "unknown" if told else "yes"
    counted = dict.fromkeys(COUNTS.values(), 0) | {"violations": violations}
    return {
        "run": run,
        "verdict": verdict,
        "reason": "; ".join(told) or None,
        "deliveries": deliveries,
        **counted,
    }
