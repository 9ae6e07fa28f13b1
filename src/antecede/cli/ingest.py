"""antecede ingest: logs that others wrote become a trace, spans a table of events that name their causes.

Spark is imported by the functions that use it: the other commands start without.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.columns import peek_columns
from antecede.cli.options import Json, Master, Remote, argument, flag, option
from antecede.cli.output import SHOWN, count_things, print_json, print_sentence
from antecede.cli.spark_session import open_work
from antecede.errors import BadParameter, show_place
from antecede.trace.foreign.formats import (
    FORMATS,
    SPAN_FORMATS,
    choose_columns,
    refuse_absent_columns,
    refuse_request,
    refuse_span_request,
)

if TYPE_CHECKING:
    from antecede.spark.ingest.api import Counts, Ingested
    from antecede.spark.spans.api import SpanCounts

__all__ = ["ingest"]


def ingest(
    files: list[str] = argument("Files, or directories of files: paths or URIs."),
    format: str = option("shiviz, tracing, tlaplus or table; or otlp, jaeger or spans.", default=...),
    out: str = option(
        "Write the trace, or the spans, and what else was read into this directory.", default=...
    ),
    pattern: str | None = option("shiviz: the expression of a record, with groups host, clock and event."),
    delimiter: str | None = option("shiviz: the expression between executions."),
    columns: list[str] | None = option(
        "table, spans: which column is which; once for each column, or with commas between.",
        "--map",
        metavar="OURS=THEIRS",
    ),
    run: str | None = option("All files are one run of this name.  [default: each is its own]"),
    no_cause: list[str] | None = option("spans: a parent that means none.  [default: root]", metavar="TEXT"),
    process: list[str] | None = option(
        "spans: an attribute that tells processes apart, as in k8s.pod.name.  [default: service and instance]",
        metavar="ATTRIBUTE",
    ),
    rpc: bool = flag("spans: requests and replies of calls are messages, too.", "--rpc"),
    as_json: Json = False,
    master: Master = None,
    remote: Remote = None,
) -> None:
    """Read logs and spans of other programs, list the lines that cannot be read, and say whether clocks agree.

    Exit code 0: all was read, and the clocks are consistent. 1: lines were rejected, or clocks are not. The answer is
    unknown, with exit code 0, if the log has neither messages nor clocks.
    docs/ingest.md explains the formats and what is written; docs/spans.md those of spans, which become one table.
    """
    mapping = parse_mapping(columns)
    if format not in (known := (*FORMATS, *SPAN_FORMATS)):
        raise BadParameter.choice("ingest", "--format", format, known)
    if format in SPAN_FORMATS:
        refuse_options(format, pattern=pattern, delimiter=delimiter)
        if no_cause and format != "spans":
            raise BadParameter("ingest", f"--no-cause is for the format spans, not for {format}")
        refuse_span_request(format, mapping)
        asked = {
            "no_cause": no_cause or ["root"],
            "process": process or [],
            "run": run or "spans",
            "rpc": rpc,
        }
        ingest_spans(files, format, out, mapping, asked, as_json, master, remote)
        return
    refuse_options(format, no_cause=no_cause, process=process, rpc=rpc)
    refuse_request(format, pattern, delimiter, mapping)
    if mapping is not None and (there := peek_columns(files[0])) is not None:
        refuse_absent_columns("ingest", mapping, there)
    with open_work(master, remote, "listing files", reads=files, writes=[out]) as work:
        from antecede.spark.ingest.api import ingest as read_logs

        read = read_logs(
            work.spark, files, format, pattern=pattern, delimiter=delimiter, mapping=mapping, run=run
        )
        work.say("reading")
        written = read.write(out)
        work.say("counting")
        counts = written.counts()
        verdict = judge(counts)
        examples = collect_examples(written) if verdict == "no" else []
    report(verdict, counts, examples, out, as_json)
    if verdict == "no":
        raise typer.Exit(1)


def refuse_options(format: str, **options: object) -> None:
    for name, given in options.items():
        if given:
            raise BadParameter("ingest", f"the format {format} has no option --{name.replace('_', '-')}")


def ingest_spans(
    files: Sequence[str],
    format: str,
    out: str,
    mapping: dict[str, str] | None,
    asked: dict[str, Any],
    as_json: bool,
    master: str | None,
    remote: str | None,
) -> None:
    """Write spans as one table, the trace of their messages, and what cannot be read beside it."""
    if format == "spans" and (there := peek_columns(files[0])) is not None:
        choose_columns(mapping, there)
    with open_work(master, remote, "reading", reads=files, writes=[out]) as work:
        from antecede.spark.spans.api import write_spans

        read, counts = write_spans(work.spark, files, out, format, mapping, **asked)
        rows = read.rejected.orderBy("file", "text").limit(SHOWN).collect() if counts.rejected else []
    report_spans(counts, [{**row.asDict(), "line": None} for row in rows], out, as_json, asked["rpc"])
    if counts.rejected:
        raise typer.Exit(1)


def report_spans(
    counts: SpanCounts, examples: Sequence[dict[str, Any]], out: str, as_json: bool, rpc: bool
) -> None:
    verdict = "no" if counts.rejected else "yes" if counts.spans else "unknown"
    if as_json:
        print_json({"verdict": verdict, **asdict(counts), "examples": examples, "out": out})
    for row in examples:
        print_sentence(describe_row(row))
    parts = [
        f"{count_things(counts.spans, 'span')} of {count_things(counts.traces, 'trace')}, "
        f"{count_things(counts.causes, 'cause')} stated",
        f"{count_things(counts.messages, 'message')}, {count_things(counts.deliveries, 'delivery', 'deliveries')}",
        f"{count_things(counts.rejected, 'line or span', 'lines or spans')} rejected",
    ]
    told = {
        "absent": "spans that others name are not there",
        "unsent": "spans were handed a message whose send is not there",
        "undelivered": "messages were handed to nobody that has a span",
        "repeats": "spans repeat a delivery of their process",
        "shared": "ids are of spans of several processes, of which one counts",
    }
    parts += [f"{getattr(counts, name):,} {words}" for name, words in told.items() if getattr(counts, name)]
    if counts.across:
        parts.append(
            f"{counts.across:,} causes are in another trace, so order the spans without --partition-by"
        )
    if counts.spans and not counts.messages and not rpc:
        parts.append("no span is of a message, so try --rpc, by which calls are messages, too")
    if counts.rejected and not counts.spans:
        parts.append("nothing could be read, so look at --format, and for a table of spans at --map")
    print_sentence(f"{verdict}: {'; '.join(parts)}; written to {out}")


def parse_mapping(columns: Sequence[str] | None) -> dict[str, str] | None:
    """The mapping of a table's columns.

    >>> parse_mapping(["process=host,kind=what", "time_ns=when"])
    {'process': 'host', 'kind': 'what', 'time_ns': 'when'}
    """
    if not columns:
        return None
    mapping: dict[str, str] = {}
    # A comma may be in the name of a column: it separates where another OURS= follows.
    for column in (part for given in columns for part in re.split(r",(?=\w+=)", given)):
        ours, equals, theirs = column.partition("=")
        if not equals or not ours or not theirs:
            raise BadParameter("ingest", f"--map must be OURS=THEIRS, as in process=host, not {column!r}")
        if ours in mapping:
            raise BadParameter("ingest", f"--map names {ours} twice: name each of ours once")
        mapping[ours] = theirs
    return mapping


def judge(counts: Counts) -> str:
    """Yes: all was read, and it can be checked. Without messages or clocks there is nothing that could be wrong."""
    if counts.rejected or counts.clocks:
        return "no"
    return "yes" if counts.messages or counts.vectors else "unknown"


def collect_examples(read: Ingested) -> list[dict[str, Any]]:
    """Some of what is wrong, as it is in the tables."""
    rejected = read.rejected.orderBy("file", "line").limit(SHOWN).collect()
    clocks = read.clocks.orderBy("run", "process", "index", "entry").limit(SHOWN).collect()
    return [row.asDict() for row in (*rejected, *clocks)]


def report(verdict: str, counts: Counts, examples: Sequence[dict[str, Any]], out: str, as_json: bool) -> None:
    if as_json:
        print_json({"verdict": verdict, **asdict(counts), "examples": examples, "out": out})
    for row in examples:
        print_sentence(describe_row(row))
    unknown = f", {counts.unknown:,} of unknown order" if counts.unknown else ""
    parts = [
        f"{count_things(counts.events, 'event')}, {count_things(counts.messages, 'message')}, "
        f"{count_things(counts.runs, 'run')}{unknown}",
        f"{count_things(counts.rejected, 'line')} rejected, "
        f"{count_things(counts.clocks, 'entry', 'entries')} of clocks wrong",
    ]
    if counts.tied:
        ties = f"{count_things(counts.tied, 'event')} tied in time"
        parts.append(f"{ties}, deliveries first and sends last, then as in the file")
    if counts.rejected and not counts.events:
        parts.append("nothing could be read, so look at --format, --pattern and --map")
    elif not counts.messages:
        rest = (
            f"`antecede order {shlex.quote(out)} --out DIR` orders the events by their clocks"
            if counts.vectors
            else "there are no vector clocks either"
        )
        parts.append(f"no messages are named, so verify and report have nothing to judge: {rest}")
    print_sentence(f"{verdict}: {'; '.join(parts)}; written to {out}")


def describe_row(row: dict[str, Any]) -> str:
    """One line for people.

    >>> describe_row({"file": "file:/a.log", "line": 3, "text": "oops", "reason": "it is no part of a record"})
    'rejected: /a.log, line 3: it is no part of a record: oops'
    """
    place = show_place(row["file"]) + ("" if row["line"] is None else f", line {row['line']}")
    if "reason" in row:
        text = row["text"] or ""
        return f"rejected: {place}: {row['reason']}: {text[:80]}{'...' * (len(text) > 80)}"
    should = "" if row["expected"] is None else f", should be {row['expected']}"
    by = "" if row["by_process"] is None else f" by event {row['by_index']} of {row['by_process']}"
    event = f"event {row['index']} of {row['process']}"
    return f"{row['kind']}: {place}: {event}: entry of {row['entry']} is {row['found']}{should}{by}"
