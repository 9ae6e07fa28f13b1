"""Verify events that name their causes: was a consumer handed an effect first and its cause later?

A row is an event (`id`), with its `causes`, that was handed to a `consumer` at a `position` or `time`. The same event
may stand in several rows, one for each consumer; a row without a consumer is an event that links others.

*Stated* causality: m precedes m' if a chain of causes leads from m' to m. What a process did before counts only if
someone named it. (A trace is judged by *potential* causality: all that a process did before.)

Rows are brought together by partition, with these columns and no others, and a task judges many partitions, one table
after the other. Partitions share nothing. So one partition has to fit into a task's memory: about 300 bytes and the
identifier's own length for each row; without `partition_by` all rows are one partition, in one task. The driver holds
counts. The algorithm is in overtaken.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from antecede.errors import BadParameter, BadTrace
from antecede.jit import kernels_for
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.frames import quote, read_time
from antecede.spark.order.causes import (
    TOGETHER,
    WHOLE,
    ByCauses,
    flatten_causes,
    id_type,
    list_causes,
    number_groups,
    one_array,
    refuse_columns,
    times_of,
)
from antecede.spark.order.graph import Numbers, find_cycles, number_events, walk
from antecede.spark.order.lamport import whole_pieces
from antecede.spark.verify.overtaken import find_late, link_causes
from antecede.storage import absolute, all_whole, join

__all__ = ["CausesVerification", "verify_causes"]

COUNTS: Final = (
    "rows", "events", "causes", "handed", "judged", "violations", "missing", "duplicates", "ties",
)  # fmt: skip
"""What is counted in each partition, in the order of the columns."""
OWN: Final = ("kind", "consumer", "id", "by", "chain", "reason", "verdict", *COUNTS)
"""Columns of the results, which a partition column cannot be named like."""
UNJUDGED: Final = "nothing to judge: no consumer was handed both a cause and an effect of it"
SHOWN: Final = 100
"""Partitions whose refusal is told one by one."""


@dataclass(frozen=True)
class CausesVerification:
    """What was found among events that name their causes. The tables are kept by Spark until `release`."""

    findings: DataFrame
    """kind, the partition columns, consumer, id, by, chain, reason: one row for each finding."""
    partitions: DataFrame
    """The partition columns, verdict, reason and counts: one row for each partition."""
    verdict: str
    """no: something came late or twice. unknown: something is missing or refused, or nothing could be judged."""
    reason: str | None
    counts: Mapping[str, int]
    """Sums over all partitions, and how many partitions there are, are `refused`, and have nothing to judge."""
    partition_by: tuple[str, ...]
    refused: list[dict[str, Any]]
    """The first partitions that cannot be judged: the partition columns and `reason`."""
    kept: DataFrame = field(repr=False)

    def examples(self, most: int) -> list[dict[str, Any]]:
        """The first findings, violations before others; partitions that are refused are in `refused`."""
        told = self.findings.where("kind != 'refused'")
        first = (F.col("kind") != "violation").cast("int")
        names = [quote(name) for name in self.partition_by]
        return [
            row.asDict()
            for row in told.orderBy(first, "kind", *names, "consumer", "id").limit(most).collect()
        ]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `findings` and `verdicts` as Parquet into a directory: both, or nothing."""
        places = [join(absolute(path), name) for name in ("findings", "verdicts")]
        with all_whole(places) as [findings, verdicts]:
            self.findings.write.parquet(findings)
            self.partitions.write.parquet(verdicts)

    def release(self) -> None:
        """Give back the memory and the disk. The tables cost a new verification from then on."""
        self.kept.unpersist()


def verify_causes(rows: DataFrame, asked: ByCauses, consumer: str) -> CausesVerification:
    """Judge every partition; `asked.time` is the column of positions. `BadTrace` if all of them are refused."""
    refuse_request(rows, asked, consumer)
    results = judge(rows, asked, consumer).persist()
    names = [quote(name) for name in asked.partition_by]
    partitions = results.where("kind = 'partition'").select(
        *names, tell_verdict().alias("verdict"), tell_reason().alias("reason"), *COUNTS
    )
    findings = results.where("kind != 'partition'").drop(*COUNTS)
    with raise_task_errors():
        [sums] = partitions.agg(
            F.count(F.lit(1)).alias("partitions"),
            F.count_if(F.col("judged").isNull()).alias("refused"),
            F.count_if(F.col("reason") == UNJUDGED).alias("unjudged"),
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in COUNTS),
        ).collect()
        counts = {name: int(sums[name]) for name in ("partitions", "refused", "unjudged", *COUNTS)}
        bad = findings.where("kind = 'refused'").select(*names, "reason")
        ordered = bad.orderBy(*names) if names else bad
        refused = [row.asDict() for row in ordered.limit(SHOWN).collect()] if counts["refused"] else []
    if refused and counts["refused"] == counts["partitions"]:
        results.unpersist()
        place = ", ".join(f"{name} {refused[0][name]}" for name in asked.partition_by) or "table"
        raise BadTrace(place, refused[0]["reason"], "events that can be judged")
    verdict, reason = sum_up(counts)
    return CausesVerification(
        findings, partitions, verdict, reason, counts, asked.partition_by, refused, results
    )


def sum_up(counts: Mapping[str, int]) -> tuple[str, str | None]:
    """The verdict about all partitions, and why.

    >>> none = dict.fromkeys((*COUNTS, "refused"), 0)
    >>> sum_up({**none, "violations": 1, "missing": 2, "judged": 5})
    ('no', '1 violation, 2 missing')
    >>> sum_up(none)[0], sum_up({**none, "judged": 1})
    ('unknown', ('yes', None))
    """
    told = [
        f"{counts[name]:,} {name.removesuffix('s') if counts[name] == 1 else name}"
        for name in ("violations", "duplicates", "missing")
        if counts[name]
    ]
    if counts["refused"]:
        told.append(f"{counts['refused']:,} partition{'s' * (counts['refused'] != 1)} refused")
    if counts["violations"] or counts["duplicates"]:
        return "no", ", ".join(told)
    if told:
        return "unknown", ", ".join(told)
    return ("yes", None) if counts["judged"] else ("unknown", UNJUDGED)


def tell_verdict() -> Column:
    """The verdict about one partition: the rules of `sum_up`."""
    wrong = (F.col("violations") > 0) | (F.col("duplicates") > 0)
    unknown = F.col("judged").isNull() | (F.col("missing") > 0) | (F.col("judged") == 0)
    return F.when(wrong, "no").when(unknown, "unknown").otherwise("yes")


def tell_reason() -> Column:
    def count(name: str, one: str) -> Column:
        return F.when(F.col(name) == 1, f"1 {one}").when(
            F.col(name) > 1, F.concat(F.format_number(name, 0), F.lit(f" {name}"))
        )

    told = F.concat_ws(
        ", ", count("violations", "violation"), count("duplicates", "duplicate"), count("missing", "missing")
    )
    return F.coalesce("reason", F.when(told != "", told), F.when(F.col("judged") == 0, UNJUDGED))


def refuse_request(rows: DataFrame, asked: ByCauses, consumer: str) -> None:
    assert asked.time is not None
    for what, name in (("consumer", consumer), ("position or time", asked.time)):
        if rows.columns.count(name) != 1:
            raise BadParameter("verify", what, name, f"one of the columns {', '.join(rows.columns)}")
    refuse_columns(rows, asked, owner="verify", added=())
    kind = rows.schema[consumer].dataType
    if not isinstance(kind, (StringType, *WHOLE)):
        raise BadParameter(
            "verify", "consumer", f"{consumer} of type {kind.simpleString()}", "text or integers"
        )
    kind = rows.schema[asked.time].dataType
    known = (StringType, DoubleType, FloatType, TimestampType, TimestampNTZType, DateType, *WHOLE)
    if not isinstance(kind, known) and not (isinstance(kind, DecimalType) and kind.scale == 0):
        found = f"{asked.time} of type {kind.simpleString()}"
        raise BadParameter("verify", "position or time", found, "numbers, timestamps or text")
    for name in asked.partition_by:
        if name in OWN:
            raise BadParameter(
                "verify", "partition_by", name, f"a name that findings do not have: {', '.join(OWN)}"
            )


# Tasks


def judge(rows: DataFrame, asked: ByCauses, consumer: str) -> DataFrame:
    """The findings, and a row of kind `partition` with the counts of each partition."""
    names = [quote(name) for name in asked.partition_by]
    spread = select_judged(rows, asked, consumer)
    spread = spread.repartition("__hash").sortWithinPartitions("__hash") if names else spread.repartition(1)
    counts = [StructField(name, LongType()) for name in COUNTS]
    schema = StructType([*findings_schema(rows, asked, consumer), *counts])
    return spread.mapInArrow(mark_errors(partial(judge_batches, names=asked.partition_by)), schema)


def select_judged(rows: DataFrame, asked: ByCauses, consumer: str) -> DataFrame:
    """The columns that are judged, under names of our own, after those of partitions."""
    names = [quote(name) for name in asked.partition_by]
    kind = id_type(rows, asked)
    own = F.col(quote(asked.id)).cast(kind)
    assert asked.time is not None
    at = read_time(rows, asked.time)
    if isinstance(rows.schema[asked.time or ""].dataType, (DoubleType, FloatType)):
        at = F.when(~F.isnan(at), at)
    return rows.select(
        *names,
        (F.xxhash64(*names) if names else F.lit(0).cast("long")).alias("__hash"),
        own.alias("__id"),
        F.xxhash64(own).alias("__mark"),
        list_causes(rows, asked).alias("__causes"),
        F.col(quote(consumer)).alias("__consumer"),
        at.alias("__at"),
    )


def findings_schema(rows: DataFrame, asked: ByCauses, consumer: str) -> StructType:
    """The columns of findings."""
    kind = id_type(rows, asked)
    return StructType(
        [
            StructField("kind", StringType()),
            *(StructField(name, rows.schema[name].dataType) for name in asked.partition_by),
            StructField("consumer", rows.schema[consumer].dataType),
            StructField("id", kind),
            StructField("by", kind),
            StructField("chain", ArrayType(kind)),
            StructField("reason", StringType()),
        ]
    )


def judge_batches(batches: Iterable[pa.RecordBatch], names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """In a task: the findings of whole partitions."""
    for table in whole_pieces(iter(batches), ("__hash",), TOGETHER):
        with kernels_for(len(table)):
            told = judge_table(table.combine_chunks(), names)
        for part in told:
            yield from part.to_batches(max_chunksize=1 << 16)


def judge_table(table: pa.Table, names: tuple[str, ...]) -> list[pa.Table]:
    """Judge a table that holds partitions from end to end."""
    group = number_groups(table, names)
    many = int(group.max(initial=-1)) + 1
    ids, consumer = one_array(table["__id"]), one_array(table["__consumer"])
    mine = pc.is_valid(consumer).to_numpy(zero_copy_only=False)
    stated, row = flatten_causes(table["__causes"], ())
    shown, node, cause = number_events(group, ids, stated, row)
    effect = node[row]
    nodes = len(shown)
    present = np.zeros(nodes, np.bool_)
    present[node] = True
    mark, home = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    mark[node] = one_array(table["__mark"]).to_numpy()
    home[node] = group
    home[cause] = group[row]
    reasons = explain_groups(table, group, mine, show_cycles(present, cause, effect, group, node, shown))
    good = np.ones(many, np.bool_)
    good[list(reasons)] = False

    answer = Answer(table, names, first_rows(group, many), shown)
    told = [
        answer.tell(
            "refused", np.array(sorted(reasons), np.int64), reason=[reasons[g] for g in sorted(reasons)]
        )
    ]
    sound, known = good[group[row]], present[cause]
    lost, sample, times = sample_lost(cause[~known & sound], effect[~known & sound], mark)
    told.append(
        answer.tell(
            "missing",
            home[lost],
            id=lost,
            by=sample,
            chain=(np.arange(len(lost) + 1) * 2, np.stack([lost, sample], 1).ravel()),
            reason=[f"named by {count:,} event{'s' * (count != 1)}" for count in times.tolist()],
        )
    )

    handed = np.flatnonzero(mine & good[group])
    at = times_of(one_array(table["__at"]))
    pair = number_groups(table, (*names, "__consumer"))
    handed = handed[np.lexsort((mark[node[handed]], at[handed], pair[handed]))]
    _, once, copies = np.unique(pair[handed] * nodes + node[handed], return_index=True, return_counts=True)
    again = handed[once[copies > 1]]
    told.append(
        answer.tell(
            "duplicate",
            group[again],
            consumer=again,
            id=node[again],
            reason=[f"handed over {count:,} times" for count in copies[copies > 1].tolist()],
        )
    )
    entries = handed[np.sort(once)]
    starts = np.flatnonzero(np.append(True, pair[entries][1:] != pair[entries][:-1])[: len(entries)])
    up, above = link_causes(nodes, cause[known & sound], effect[known & sound])
    found = find_late(up, above, mark, np.append(starts, len(entries)), node[entries], at[entries])
    late = entries[found.late]
    told.append(
        answer.tell(
            "violation",
            group[late],
            consumer=late,
            id=node[late],
            by=node[entries[found.first[found.late]]],
            chain=(found.starts, found.pool),
        )
    )
    judged = found.first >= 0
    tied = judged.copy()
    tied[judged] = at[entries[found.first[judged]]] == at[entries[judged]]
    counted = {
        "events": home[present],
        "causes": group[row],
        "handed": group[mine],
        "judged": group[entries[judged]],
        "violations": group[late],
        "missing": home[lost],
        "duplicates": group[again],
        "ties": group[entries[tied]],
    }
    counts = {name: np.bincount(where, minlength=many) for name, where in counted.items()}
    counts["rows"] = np.bincount(group, minlength=many)
    told.append(
        answer.tell(
            "partition",
            np.arange(many),
            reason=[reasons.get(number) for number in range(many)],
            counts=counts,
            unknown=~good,
        )
    )
    return [part for part in told if len(part)]


def show_cycles(
    present: NDArray[np.bool_],
    cause: Numbers,
    effect: Numbers,
    group: Numbers,
    node: Numbers,
    shown: pa.Array,
) -> dict[int, str]:
    """For each group in which an event is its own ancestor, the cycle in words."""
    _, _, reached, *_ = walk(present, cause, effect, np.zeros(len(present), np.int64), 0)
    stuck = ~reached & present
    cycles = find_cycles(stuck, cause, effect, group, node, shown) if stuck.any() else {}
    return {number: f"a cycle: {' -> '.join(map(str, [*ids, ids[0]]))}" for number, ids in cycles.items()}


def explain_groups(
    table: pa.Table, group: Numbers, mine: NDArray[np.bool_], cycles: Mapping[int, str]
) -> dict[int, str]:
    """Why groups cannot be judged, of those that cannot."""
    unnamed = pc.is_null(table["__id"]).to_numpy()
    unplaced = pc.is_null(table["__at"]).to_numpy() & mine
    reasons: dict[int, list[str]] = {}
    for bad, words in ((unnamed, "without an id"), (unplaced, "handed to a consumer at no position or time")):
        numbers, counts = np.unique(group[bad], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            reasons.setdefault(number, []).append(f"{count:,} row{'s' * (count != 1)} {words}")
    for number, cycle in cycles.items():
        reasons.setdefault(number, []).append(cycle)
    return {number: "; ".join(told) for number, told in reasons.items()}


def sample_lost(cause: Numbers, effect: Numbers, mark: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Events that are named and are not there: each once, one of those that name it, and how many do."""
    order = np.lexsort((mark[effect], cause))
    cause, effect = cause[order], effect[order]
    distinct = np.append(True, (cause[1:] != cause[:-1]) | (effect[1:] != effect[:-1]))[: len(cause)]
    lost, first, times = np.unique(cause[distinct], return_index=True, return_counts=True)
    return lost, effect[distinct][first], times


def first_rows(group: Numbers, many: int) -> Numbers:
    """The first row of each group."""
    rows = np.zeros(many, np.int64)
    rows[group[::-1]] = np.arange(len(group))[::-1]
    return rows


class Answer:
    """Makes the rows of findings and counts, in the columns of the result."""

    def __init__(self, table: pa.Table, names: tuple[str, ...], rows: Numbers, shown: pa.Array) -> None:
        self.table, self.names, self.rows, self.shown = table, names, rows, shown
        """`rows` has a row of each group, `shown` the identifier of each event."""

    def tell(
        self,
        kind: str,
        group: Numbers,
        *,
        consumer: Numbers | None = None,
        id: Numbers | None = None,
        by: Numbers | None = None,
        chain: tuple[Numbers, Numbers] | None = None,
        reason: list[str] | list[str | None] | None = None,
        counts: Mapping[str, Numbers] | None = None,
        unknown: NDArray[np.bool_] | None = None,
    ) -> pa.Table:
        """One row for each of `group`. `consumer` are rows that name it, `id`, `by` and `chain` are events."""
        many = len(group)
        whose = self.table["__consumer"]
        columns = {"kind": pa.array([kind], pa.string()).take(pa.array(np.zeros(many, np.int64)))}
        columns |= {name: self.table[name].take(pa.array(self.rows[group])) for name in self.names}
        columns["consumer"] = (
            pa.nulls(many, whose.type) if consumer is None else whose.take(pa.array(consumer))
        )
        columns["id"], columns["by"] = self.name_events(id, many), self.name_events(by, many)
        if chain is None:
            columns["chain"] = pa.nulls(many, pa.list_(self.shown.type))
        else:
            starts, events = chain
            linked = self.name_events(events, len(events))
            columns["chain"] = pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), linked)
        columns["reason"] = pa.nulls(many, pa.string()) if reason is None else pa.array(reason, pa.string())
        for name in COUNTS:
            if counts is None:
                columns[name] = pa.nulls(many, pa.int64())
            else:
                # What was not judged has no counts of what was found.
                hidden = unknown if name in COUNTS[COUNTS.index("judged") :] else None
                columns[name] = pa.array(counts[name], pa.int64(), mask=hidden)
        return pa.table(columns)

    def name_events(self, events: Numbers | None, many: int) -> pa.Array:
        if events is None:
            return pa.nulls(many, self.shown.type)
        return self.shown.take(pa.array(events, mask=events < 0))
