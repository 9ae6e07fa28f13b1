"""antecede verify: was every message delivered once, to whom it was addressed, in causal order?

A trace of up to some two million events on a local disk is verified in this process. Spark verifies larger ones, those
that lie elsewhere, and whatever `--master` or `--remote` is given for. What a run needs is imported when it needs it:
the answer about a small trace comes within a second.

With `--id` and `--causes` a table of events is verified instead, on Spark: cli/verify_causes.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct

from antecede.cli import options
from antecede.cli.options import argument, flag, option
from antecede.cli.output import (
    RUNS_MOST,
    SHOWN,
    count_things,
    print_csv,
    print_json,
    print_sentence,
    print_table,
)
from antecede.cli.spark_session import Asked, open_work
from antecede.cli.verify_causes import Columns, refuse_request, verify_causes
from antecede.cli.verify_stream import verify_stream
from antecede.errors import BadParameter
from antecede.storage import local

if TYPE_CHECKING:
    import pyarrow as pa

    from antecede.spark.session import SparkSession
    from antecede.trace.footers import LocalTrace

__all__ = ["verify"]

COUNTS = ("deliveries", "violations", "fifo_breaks", "duplicates", "unsent", "unaddressed", "undelivered")


def verify(
    trace: str = argument(
        "A trace, or a directory of results that has one. With --id a table: Parquet, CSV, JSON Lines, or Spark's."
    ),
    as_json: options.Json = False,
    as_csv: options.Csv = False,
    out: str | None = option("Write OUT/findings and OUT/verdicts, as Parquet."),
    id_: options.Id = None,
    causes: options.Causes = None,
    consumer: str | None = option("Of a table: the column of who was handed the event."),
    position: str | None = option("Of a table: the column of where the event stood at its consumer."),
    time: str | None = option("Of a table: the column of when it was handed over, instead of --position."),
    partition_by: options.PartitionBy = None,
    no_cause: options.NoCause = None,
    causality: str | None = option(
        "Of spans: stated, by parents and links, or potential, by all that a process did before.  [default: stated]"
    ),
    explain: bool = flag("Say how the trace is read.", "--explain"),
    stream: bool = flag(
        "Verify files as they appear in a directory; of a trace also feed://HOST:PORT,... and nats://HOST:PORT/STREAM.",
        "--stream",
    ),
    checkpoint: options.Checkpoint = None,
    once: options.Once = False,
    patience: options.Patience = None,
    every: options.Every = 1.0,
    remember: str | None = option(
        "With --stream: how long it knows events, or an idle run.  [default: 7 days; of a trace, for ever]"
    ),
    master: options.Master = None,
    remote: options.Remote = None,
) -> None:
    """Say whether every run of a trace, or every consumer of events, kept causal order, and show what broke it.

    Exit code 0: yes, or not known to be broken. 1: no. docs/verification.md explains findings and cost.
    """
    if causality not in (None, "stated", "potential"):
        raise BadParameter.choice("verify", "--causality", causality, ("stated", "potential"))
    options.refuse_two_forms("verify", as_json, as_csv)
    columns = Columns(id_, causes, consumer, position, time, partition_by, tuple(no_cause or ()))
    if columns.is_given() and explain:
        raise BadParameter("verify", "--explain is for a trace, without --id and --causes")
    if as_csv and (columns.is_given() or stream):
        raise BadParameter(
            "verify", "--csv prints a table of runs: it is for a trace, without --id and --stream"
        )
    if stream:
        if columns.is_given():
            refuse_request(columns)
        if out is None:
            raise BadParameter(
                "verify --stream", "--out is missing: name a directory for findings and checkpoint"
            )
        asked = Asked(
            "verify --stream", out, checkpoint, once, every, patience, as_json, master, remote, remember
        )
        verify_stream(trace, columns if columns.is_given() else None, asked)
        return
    options.refuse_stream_options("verify", patience, remember)
    if not columns.is_given() and (place := local(trace)) is not None and os.path.isfile(place):
        raise BadParameter(
            "verify",
            f"{trace} is a file, and a trace is a directory; to verify a table of events, name its columns with "
            "--id, --causes, --consumer, and --position or --time",
        )
    if columns.is_given():
        verify_causes(trace, columns, out, as_json, master, remote)
        return
    chosen = choose(trace, out, master, remote, causality)
    found = (
        verify_on_spark(trace, out, master, remote, chosen, causality)
        if isinstance(chosen, str)
        else verify_here(chosen, out)
    )
    if explain:
        print(found.plan, file=sys.stderr)
    verdict = combine_verdicts(found.rows)
    report(found, verdict, as_json, as_csv)
    if verdict == "no":
        raise typer.Exit(1)
    if found.refused:
        raise typer.Exit(2)


class Found(Struct, frozen=True):
    """What either way of verifying gives."""

    rows: list[dict[str, Any]]
    """The verdicts, each with the run's protocol."""
    examples: list[str]
    """The first findings in words, violations before others."""
    plan: str
    causality: str
    """potential, or stated."""
    refused: bool
    """Whether the rows of some run cannot be a run."""
    judged: int | None = None
    """By stated causality, the causes that were handed to a process which was handed an effect of them, too."""


def choose(
    trace: str, out: str | None, master: str | None, remote: str | None, causality: str | None
) -> LocalTrace | str:
    """The trace, if it is to be verified in this process; else why Spark is to do it."""
    from antecede.trace.footers import read_local_trace
    from antecede.verification import EMBEDDED_MOST

    for name, value in (("--master", master), ("--remote", remote)):
        if value is not None:
            return f"{name} is given"
    for place in (trace, out):
        if place is not None and local(place) is None:
            return f"{place} is not on a local disk"
    read = read_local_trace(trace)
    if read.rows > EMBEDDED_MOST:
        return f"{read.rows:,} events are more than {EMBEDDED_MOST:,}"
    if is_stated(read.runs, causality):
        return "causality as spans state it is judged there"
    return read


def is_stated(runs: pa.Table, causality: str | None) -> bool:
    """Whether runs are to be judged by the causes that spans state: by default, if they were made of spans."""
    from antecede.trace.foreign.formats import is_stated

    return causality == "stated" or (
        causality is None and any(map(is_stated, runs["parameters"].to_pylist()))
    )


def verify_here(trace: LocalTrace, out: str | None) -> Found:
    from antecede.verification.embedded import verify_local

    found = verify_local(trace)
    messages = read_messages(trace)
    if messages is not None:
        found = replace(found, findings=name_findings(found.findings, messages))
    if out is not None:
        found.write(out)
    protocols = dict(zip(*(trace.runs[name].to_pylist() for name in ("run", "protocol")), strict=True))
    rows = [{**row, "protocol": protocols[row["run"]]} for row in found.runs.to_pylist()]
    names = {} if messages is None else name_messages(messages)
    examples = [describe_example(row, names) for row in found.examples(SHOWN)]
    return Found(rows, examples, found.plan, "potential", bool(found.refused))


def verify_on_spark(
    trace: str, out: str | None, master: str | None, remote: str | None, why: str, causality: str | None
) -> Found:
    places = [] if out is None else [f"{out.rstrip('/')}/{name}" for name in ("findings", "verdicts")]
    with open_work(master, remote, "reading footers", reads=[trace], writes=places) as work:
        from antecede.spark.spans.verify import list_messages, name_trace_findings, read_aliases
        from antecede.spark.spans.verify import read_messages as read_messages_of
        from antecede.spark.trace import Trace
        from antecede.spark.verify.api import verify as judge

        read = Trace.read(work.spark, trace)
        work.say("verifying")
        if is_stated(read.known_runs, causality):
            return verify_stated(work.spark, trace, out)
        found = judge(read)
        messages = read_messages_of(work.spark, trace)
        if messages is not None:
            found = replace(found, findings=name_trace_findings(found.findings, messages))
        if out is not None:
            work.say("writing")
            found.write(out)
        protocols = {row["run"]: row["protocol"] for row in read.runs.select("run", "protocol").collect()}
        rows = [{**row, "protocol": protocols.get(row["run"])} for row in found.verdicts]
        examples = found.examples(SHOWN) if any(row["verdict"] == "no" for row in rows) else []
        aliases = [] if messages is None else read_aliases(messages, list_messages(examples))
    plan = f"on Spark: {why}\n{found.plan}"
    names = name_messages(aliases)
    return Found(
        rows, [describe_example(row, names) for row in examples], plan, "potential", bool(found.refused)
    )


def verify_stated(spark: SparkSession, trace: str, out: str | None) -> Found:
    """Verify messages of spans by parents and links, in the words of the spans."""
    from antecede.spark.spans.verify import describe_late, verify_spans

    found = verify_spans(spark, trace)
    if out is not None:
        found.write(out)
    rows = [{**row, "protocol": "unknown"} for row in found.verdicts]
    examples = list(map(describe_late, found.examples(SHOWN)))
    found.release()
    plan = "on Spark: by the causes that spans state"
    return Found(rows, examples, plan, "stated", False, found.judged)


def read_messages(trace: LocalTrace) -> list[dict[str, Any]] | None:
    """Whose spans the messages of a trace are, if it was made of spans."""
    from pathlib import Path

    import pyarrow.parquet as pq

    place = Path(local(trace.root) or "", "messages")
    if not place.is_dir():
        return None
    rows: list[dict[str, Any]] = pq.read_table(
        place, columns=["sender", "number", "trace_id", "name", "id"], use_threads=False
    ).to_pylist()
    return rows


def name_messages(messages: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], str]:
    """What the owner of spans calls messages."""
    return {(row["sender"], row["number"]): f"{row['name'] or 'a message'} ({row['id']})" for row in messages}


def name_findings(findings: pa.Table, messages: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Findings with the columns of spans, as `antecede.spark.spans.verify` names them."""
    import pyarrow as pa

    known = {(row["sender"], row["number"]): row for row in messages}
    nobody: dict[str, Any] = {}

    def look_up(prefix: str, name: str) -> list[Any]:
        columns = (findings[f"{prefix}{part}"].to_pylist() for part in ("sender", "number"))
        return [known.get(key, nobody).get(name) for key in zip(*columns, strict=True)]

    named = {"id": look_up("", "id"), "by": look_up("by_", "id"), "trace_id": look_up("", "trace_id")}
    named |= {"name": look_up("", "name"), "by_name": look_up("by_", "name")}
    for name, values in named.items():
        findings = findings.append_column(name, pa.array(values, pa.string()))
    spans = [
        None
        if chain is None
        else [known.get((one["sender"], one["number"]), nobody).get("id") for one in chain]
        for chain in findings["chain"].to_pylist()
    ]
    return findings.append_column("spans", pa.array(spans, pa.list_(pa.string())))


def describe_example(
    row: Mapping[str, Any], names: Mapping[tuple[str, int], str] = MappingProxyType({})
) -> str:
    """A finding in words."""
    from antecede.verification.schema import describe_finding

    def name(sender: str, number: int) -> str:
        return names.get((sender, number), f"{sender}.{number}")

    return f"{row['run']}: {describe_finding(row, name)}"


def combine_verdicts(rows: Iterable[Mapping[str, Any]]) -> str:
    verdicts = {row["verdict"] for row in rows}
    return next((verdict for verdict in ("no", "unknown") if verdict in verdicts), "yes")


def report(found: Found, verdict: str, as_json: bool, as_csv: bool) -> None:
    rows = found.rows
    runs = [{key: row[key] for key in ("run", "verdict", "reason", *COUNTS)} for row in rows]
    if as_json:
        judged = {} if found.judged is None else {"judged": found.judged}
        print_json({"verdict": verdict, "causality": found.causality, **judged, "runs": runs})
    elif as_csv:
        print_csv(runs)
    else:
        from rich.console import Console

        few = len(rows) <= RUNS_MOST
        headings, lines = list_runs(rows) if few else list_protocols(rows)
        spoken = [heading.replace("_", " ") for heading in headings]
        print_table(Console(stderr=True), spoken, lines, left=2 if few else 1)
    for line in found.examples:
        print_sentence(line)
    print_sentence(describe_answer(rows, verdict))
    if found.judged is not None:
        causes = f"{count_things(found.judged, 'cause')} judged"
        print_sentence(
            f"causality: stated, by parents and links, {causes}; --causality potential asks for the other"
        )


def describe_answer(rows: Sequence[Mapping[str, Any]], verdict: str) -> str:
    """The answer in one line."""
    runs, deliveries = len(rows), sum(row["deliveries"] for row in rows)
    of = f"{count_things(runs, 'run')}, {count_things(deliveries, 'delivery', 'deliveries')}"
    own = [row for row in rows if row["verdict"] == verdict]
    if verdict == "yes":
        return f"yes: {of}, nothing wrong"
    return f"{verdict}: {len(own)} of {of}: run {own[0]['run']}: {own[0]['reason']}"


def list_runs(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a line for each run."""
    counts = choose_counts(rows)
    lines = [[row["run"], row["verdict"], *(f"{row[count]:,}" for count in counts)] for row in rows]
    return ["run", "verdict", *counts], lines


def list_protocols(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a line for each protocol."""
    counts = choose_counts(rows)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["protocol"] or "", []).append(row)
    lines = []
    for protocol, own in sorted(groups.items()):
        verdicts = [sum(row["verdict"] == verdict for row in own) for verdict in ("yes", "no", "unknown")]
        sums = [sum(row[count] for row in own) for count in counts]
        lines.append([protocol, *(f"{number:,}" for number in (len(own), *verdicts, *sums))])
    return ["protocol", "runs", "yes", "no", "unknown", *counts], lines


def choose_counts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Deliveries, and what was found anywhere: a row of zeros says nothing."""
    return [count for count in COUNTS if count == "deliveries" or any(row[count] for row in rows)]
