"""Messages, from the spans of those that sent them and were handed them: a trace, and whose spans are behind it.

docs/spans.md says which spans are messages, and which message a consumer was handed. A process is handed a message
once: further spans of it are counted, and are no finding.

With `rpc`, calls are messages, too: the request, from the span of a caller to its child at another process, or to the
`server` child of a `client`; and the reply, from the end of the child to the end of its parent. A call whose caller
ended first has no reply.

Spans that others name, and that are not there, may have been messages. So may those that name them: the run is unknown.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from antecede.spark.ingest.to_trace import keep_aside, write_events, write_runs
from antecede.spark.spans.schema import parse_columns
from antecede.spark.trace import SPARK_EVENTS, describe_run, fit_columns
from antecede.storage import join

__all__ = ["MESSAGES", "MessageCounts", "find_messages", "write_messages"]

MESSAGES: Final = """
    run string, sender string, number bigint, kind string, id string, trace_id string, name string, sent_ns bigint,
    messaging_system string, messaging_destination string, known_by string,
    consumer string, index bigint, handed_id string, handed_trace_id string, handed_name string, handed_ns bigint,
    repeats bigint
"""
"""One row for each message and each process that was handed it; one without a consumer if none was."""

KNOWN_BY: Final = ("link", "parent", "message id", "offset")
"""How a consumer's message was found, most trusted first."""
IDENTITY: Final = {
    3: "concat_ws('\\n', messaging_system, coalesce(messaging_destination, ''), 'id', messaging_message_id)",
    4: "concat_ws('\\n', messaging_system, messaging_destination, 'at', messaging_partition, messaging_offset)",
}
COMPLETE: Final = {
    3: "messaging_message_id IS NOT NULL",
    4: "messaging_destination IS NOT NULL AND messaging_partition IS NOT NULL AND messaging_offset IS NOT NULL",
}
REPLY: Final = "/reply"
"""What the id of a reply ends with: it has no span of its own."""


@dataclass(frozen=True)
class MessageCounts:
    """What was found, in numbers."""

    messages: int
    deliveries: int
    repeats: int
    """Spans of a message at a process beside the first."""
    undelivered: int
    """Messages that no span was handed."""
    unsent: int
    """Spans that were handed a message whose send is not there."""
    absent: int
    """Spans that others name and that are not there."""
    shared: int
    """Ids that spans of several processes have."""


def find_messages(spans: DataFrame, *, rpc: bool = False) -> DataFrame:
    """Who was handed which message, of a table of spans: `MESSAGES`, without run, number and index.

    A row without an id was handed a message whose send is not there.
    """
    timed = spans.where("start_ns IS NOT NULL AND process IS NOT NULL")
    concerned = timed if rpc else timed.where("messaging_operation IS NOT NULL")
    # Exporters send a span again until someone acknowledges it: files may have it several times.
    once = concerned.dropDuplicates(["id"])
    found = match(once)
    return found.unionByName(find_calls(once)) if rpc else found


def match(spans: DataFrame) -> DataFrame:
    """Messages, each with the spans that were handed it; then the spans that were handed a message of no send."""
    sends = query(
        """WITH created AS (SELECT * FROM {spans} WHERE messaging_operation = 'create'),
            sends AS (SELECT * FROM {spans} WHERE messaging_operation = 'send'),
            carried AS (SELECT id FROM (SELECT id, explode(causes) AS made FROM sends) LEFT SEMI JOIN created
                ON made = created.id)
        SELECT * FROM created UNION ALL SELECT sends.* FROM sends LEFT ANTI JOIN carried ON sends.id = carried.id""",
        spans=spans,
    )
    identities = ", ".join(
        f"if({COMPLETE[level]}, struct({level} AS level, {key} AS key), NULL)"
        for level, key in IDENTITY.items()
    )
    ways = ", ".join(f"'{way}'" for way in KNOWN_BY)
    # An offset of 0 from every producer, or the id of a message that was sent again, is the identity of none: a key
    # has to be single. All messages of the most trusted level that any was found at: a batch has a link for each.
    handed = query(
        f"""WITH wanted AS (
            SELECT id AS handed_id, trace_id AS handed_trace_id, name AS handed_name, messaging_operation AS operation,
                process AS consumer,
                if(messaging_operation = 'receive', coalesce(end_ns, start_ns), start_ns) AS handed_ns,
                explode_outer(array_compact(concat(transform(links, one -> struct(1 AS level, one AS key)),
                    array(if(parent IS NULL, NULL, struct(2 AS level, parent AS key)), {identities})))) AS want
            FROM {{spans}} WHERE messaging_operation IN ('receive', 'process')),
        keys AS (SELECT id,
            explode(array_compact(array(struct(0 AS level, id AS key), {identities}))) AS have FROM {{sends}}),
        single AS (SELECT have.key AS key, min(id) AS sent_id FROM keys GROUP BY have.key HAVING count(*) = 1),
        reached AS (SELECT wanted.*, sent_id FROM wanted LEFT JOIN single ON want.key = single.key),
        best AS (SELECT *, min(if(sent_id IS NULL, NULL, want.level)) OVER (PARTITION BY handed_id) AS level,
            row_number() OVER (PARTITION BY handed_id ORDER BY want.level) AS one FROM reached)
        SELECT * EXCEPT (want, level, one), get(array({ways}), level - 1) AS known_by
        FROM best WHERE want.level = level AND sent_id IS NOT NULL OR level IS NULL AND one = 1""",
        spans=spans,
        sends=sends,
    )
    # One row for each message at each process. A receive before its process is no repetition.
    sent = query(
        """WITH ranked AS (SELECT *,
            row_number() OVER (PARTITION BY sent_id, consumer ORDER BY operation, handed_ns, handed_id) AS rank,
            count_if(operation = 'process') OVER (PARTITION BY sent_id, consumer) AS processed,
            count(1) OVER (PARTITION BY sent_id, consumer) AS many
            FROM {handed} WHERE sent_id IS NOT NULL),
        once AS (SELECT * EXCEPT (operation, rank, processed, many),
            if(processed > 0, processed, many) - 1 AS repeats FROM ranked WHERE rank = 1)
        SELECT own.id, own.trace_id, own.name, own.process AS sender, own.start_ns AS sent_ns, own.messaging_system,
            own.messaging_destination, 'message' AS kind, once.* EXCEPT (sent_id)
        FROM {sends} AS own LEFT JOIN once ON own.id = once.sent_id""",
        sends=sends,
        handed=handed,
    )
    lost = handed.where("sent_id IS NULL").drop("sent_id", "operation")
    return sent.unionByName(lost.withColumn("repeats", F.lit(0).cast("bigint")), allowMissingColumns=True)


def find_calls(spans: DataFrame) -> DataFrame:
    """Requests and replies."""
    return query(
        f"""WITH plain AS (SELECT * FROM {{spans}} WHERE messaging_operation IS NULL),
        calls AS (SELECT own.*, caller.trace_id AS caller_trace_id, caller.name AS caller_name,
            caller.process AS caller, caller.start_ns AS caller_start_ns, caller.end_ns AS caller_end_ns
            FROM plain AS own JOIN plain AS caller ON own.parent = caller.id
            WHERE own.process != caller.process OR own.kind = 'server' AND caller.kind = 'client'),
        requests AS (SELECT 'request' AS kind, parent AS id, caller_trace_id AS trace_id, caller_name AS name,
            caller AS sender, caller_start_ns AS sent_ns, process AS consumer, id AS handed_id,
            trace_id AS handed_trace_id, name AS handed_name, start_ns AS handed_ns,
            count(1) OVER (PARTITION BY parent, process) - 1 AS repeats,
            row_number() OVER (PARTITION BY parent, process ORDER BY start_ns, id) AS rank FROM calls),
        replies AS (SELECT 'reply' AS kind, concat(id, '{REPLY}') AS id, trace_id, name,
            process AS sender, end_ns AS sent_ns, caller AS consumer, parent AS handed_id,
            caller_trace_id AS handed_trace_id, caller_name AS handed_name, caller_end_ns AS handed_ns,
            CAST(0 AS bigint) AS repeats FROM calls WHERE end_ns <= caller_end_ns)
        SELECT *, 'rpc' AS known_by, CAST(NULL AS string) AS messaging_system,
            CAST(NULL AS string) AS messaging_destination
        FROM (SELECT * EXCEPT (rank) FROM requests WHERE rank = 1 UNION ALL SELECT * FROM replies)""",
        spans=spans,
    )


def query(text: str, **tables: DataFrame) -> DataFrame:
    return next(iter(tables.values())).sparkSession.sql(text, **tables)  # type: ignore[arg-type]


# The trace


def write_messages(
    spans: DataFrame, directory: str, *, run: str, format: str, rejected: int, rpc: bool
) -> MessageCounts:
    """Write `events/`, `runs.parquet` and `messages/` into a directory: a trace, and whose spans are behind it."""
    # Its plan has the spans twenty times.
    with keep_aside(find_messages(spans, rpc=rpc), directory) as found:
        named = number_messages(found).persist()
        events = make_events(named).persist()
        try:
            counts = count_messages(spans, found)
            own = {name: F.col(name) for name in events.columns} | {
                "run": F.lit(run),
                "control": F.lit(False),
            }
            rows = events.select(fit_columns(SPARK_EVENTS, own))
            write_events(rows, counts.messages + counts.deliveries, join(directory, "events"))
            at = events.where("kind = 'deliver'").selectExpr("id", "process AS consumer", "index")
            table = named.join(at, ["id", "consumer"], "left").withColumn("run", F.lit(run))
            table.select(*parse_columns(MESSAGES)).write.parquet(join(directory, "messages"))
            write_runs(sum_up_run(spans, counts, rejected, run, format), join(directory, "runs.parquet"))
        finally:
            events.unpersist()
            named.unpersist()
    return counts


def number_messages(found: DataFrame) -> DataFrame:
    """The messages with the numbers that count each sender's, from 1."""
    return query(
        """WITH sent AS (SELECT * FROM {found} WHERE id IS NOT NULL),
            numbers AS (SELECT id, row_number() OVER (PARTITION BY sender ORDER BY sent_ns, id) AS number
                FROM (SELECT DISTINCT sender, sent_ns, id FROM sent))
        SELECT sent.*, CAST(number AS bigint) AS number FROM sent JOIN numbers ON sent.id = numbers.id""",
        found=found,
    )


def make_events(named: DataFrame) -> DataFrame:
    """Sends and deliveries, with the position at their process. At one time deliveries come before sends."""
    return query(
        """WITH both AS (
            SELECT sender AS process, 'send' AS kind, sent_ns AS time_ns, sender, number, id,
                sort_array(collect_set(consumer)) AS to FROM {named} GROUP BY sender, number, id, sent_ns
            UNION ALL SELECT consumer, 'deliver', handed_ns, sender, number, id, NULL FROM {named}
                WHERE consumer IS NOT NULL)
        SELECT *, CAST(row_number() OVER (PARTITION BY process ORDER BY time_ns, kind, id) AS bigint) - 1 AS index
        FROM both""",
        named=named,
    )


def count_messages(spans: DataFrame, found: DataFrame) -> MessageCounts:
    [row] = found.selectExpr(
        "count(DISTINCT id) AS messages",
        "count_if(id IS NOT NULL AND consumer IS NOT NULL) AS deliveries",
        "coalesce(sum(repeats), 0) AS repeats",
        "count_if(consumer IS NULL) AS undelivered",
        "count_if(id IS NULL) AS unsent",
    ).collect()
    named = spans.selectExpr("explode(causes) AS id").distinct()
    owned = spans.groupBy("id").agg(F.min("process").alias("least"), F.max("process").alias("most"))
    return MessageCounts(
        **row.asDict(),
        absent=named.join(owned, "id", "left_anti").count(),
        shared=owned.where("least != most").count(),
    )


def sum_up_run(spans: DataFrame, counts: MessageCounts, rejected: int, run: str, format: str) -> DataFrame:
    """The row of `runs.parquet`. `causality` is what a verdict about spans speaks of, if nothing else is asked for."""
    parameters = {"causality": "stated", "format": format, "unknown": explain_unknown(counts, rejected)}
    text = json.dumps({name: value for name, value in parameters.items() if value}, sort_keys=True)
    row = {
        "run": F.lit(run),
        "parameters": F.lit(text),
        "processes": F.sort_array(F.collect_set("process")),
        "started_ns": F.coalesce(F.min("start_ns"), F.lit(0)),
    }
    return spans.agg(*describe_run(row))


def explain_unknown(counts: MessageCounts, rejected: int) -> str | None:
    """Why the order of the run cannot be told for sure, or None.

    >>> explain_unknown(MessageCounts(5, 4, 0, 1, 0, 2, 0), 0)
    '2 spans that others name are not there; 1 message was handed to nobody that has a span'
    """
    if not counts.messages:
        return "no span says that it sent a message; with --rpc, calls are messages"
    reasons = [
        (counts.absent, "span that others name is not there", "spans that others name are not there"),
        (
            counts.unsent,
            "span was handed a message whose send is not there",
            "spans were handed a message whose send is not there",
        ),
        (
            counts.undelivered,
            "message was handed to nobody that has a span",
            "messages were handed to nobody that has a span",
        ),
        (counts.shared, "id is of spans of several processes", "ids are of spans of several processes"),
        (rejected, "line or span cannot be read", "lines or spans cannot be read"),
    ]
    told = [f"{count:,} {one if count == 1 else many}" for count, one, many in reasons if count]
    return "; ".join(told) or None
