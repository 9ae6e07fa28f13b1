"""antecede order: anyone's events in causal order, what is missing among them, and what waits for it.

Spark is imported by the function that uses it: the other commands start without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import typer

from antecede.cli import options
from antecede.cli.columns import (
    list_files,
    name_partition,
    peek_columns,
    refuse_unknown_columns,
    split_names,
    suggest_no_cause,
)
from antecede.cli.options import argument, flag, option
from antecede.cli.output import count_things, print_json, print_sentence
from antecede.cli.spark_session import Asked, Work, open_stream, open_work
from antecede.errors import BadParameter
from antecede.model import View

if TYPE_CHECKING:
    from antecede.spark.order.files import Outcome, StreamOutcome
    from antecede.spark.stream.status import Progress

__all__ = ["order"]

FORMS: Final = (("id", "causes"), ("process", "vector"), ("protocol", "processes"))
"""Options that go together."""


def order(
    events: str = argument(
        "A trace, an ingested log, or a table: Parquet, CSV, JSON Lines, or a name in Spark's catalogue."
    ),
    out: str = option(
        "Write OUT/ordered and OUT/missing, as Parquet; of a stream OUT/delivered.", default=...
    ),
    id_: options.Id = None,
    causes: options.Causes = None,
    process: str | None = option(
        "Of a table with vectors: the column that says whose it is.  [default: process]"
    ),
    vector: str | None = option("Of a table: the column of vectors.  [default: vector]"),
    partition_by: options.PartitionBy = None,
    time: str | None = option("The column that orders concurrent rows."),
    window: str | None = option(
        "With --time: write only rows from FROM on and before TO.", metavar="FROM,TO"
    ),
    no_cause: options.NoCause = None,
    as_json: options.Json = False,
    master: options.Master = None,
    remote: options.Remote = None,
    stream: bool = flag("Order rows continuously, as their files appear in EVENTS.", "--stream"),
    stamp: str | None = option("With --protocol: the column of stamps.  [default: stamp]"),
    protocol: str | None = option("Of packets: the protocol of their stamps."),
    processes: str | None = option(
        "Of packets: who takes part, separated by commas, or how many: p1, p2, ..."
    ),
    settings: options.Settings = None,
    checkpoint: options.Checkpoint = None,
    once: options.Once = False,
    patience: options.Patience = None,
    remember: options.Remember = None,
    every: options.Every = 1.0,
    files: int | None = option("With --stream: files to take at once, at most."),
    by: str = option(
        "With --stream: receiver, or closed: closed sets, for one hot receiver.", default="receiver"
    ),
    receiver: str | None = option("With --by closed: which receiver."),
) -> None:
    """Put events in causal order, each with its position and what it waits for.

    Exit code 0: nothing is missing. 1: some wait for causes that are missing, or a partition has no order.
    docs/ordering.md explains what comes out, docs/stream.md the same for a stream.
    """
    columns: dict[str, Any] = {
        "id": id_,
        "causes": causes,
        "process": process,
        "vector": vector,
        "stamp": stamp,
        "protocol": protocol,
        "processes": () if processes is None else split_processes(processes),
        "parameters": options.parse_settings("order", settings),
        "partition_by": split_names(partition_by),
        "time": time,
        "no_cause": ("", *(no_cause or ())),
    }
    if stream:
        if window is not None:
            raise BadParameter("order --stream", "--window is for a table, not for a stream")
        place = Asked(
            "order --stream", out, checkpoint, once, every, patience, as_json, master, remote, remember
        )
        order_stream(Rows(events, columns, files, by, receiver), place)
        return
    options.refuse_stream_options("order", patience, remember)
    columns["window"] = None if window is None else split_window(window)
    refuse_request(columns)
    named = [(name, columns[name]) for name in ("id", "causes", "process", "vector", "time")]
    named += [("partition-by", name) for name in columns["partition_by"] or ()]
    if not any(columns[name] for form in FORMS for name in form):
        refuse_unnamed_columns(events)
    refuse_unknown_columns("order", events, named)
    with open_work(master, remote, "counting", reads=list_files(events), writes=[out]) as work:
        from antecede.spark.order.files import order_path, write_ordered
        from antecede.spark.stream.api import Asked as Named

        found = order_path(work.spark, events, Named(**columns))
        work.say("sorting")
        outcome = write_ordered(found, out)
    report(outcome, out, as_json)
    if outcome.missing or outcome.refused:
        raise typer.Exit(1)


def split_window(window: str) -> tuple[str, str]:
    """Two times.

    >>> split_window("1,2")
    ('1', '2')
    """
    start, comma, end = window.partition(",")
    if not (start and comma and end):
        raise BadParameter("order", f"--window must be two times, separated by a comma, not {window!r}")
    from antecede.spark.order.api import refuse_bound

    refuse_bound(start)
    refuse_bound(end)
    return start, end


def refuse_unnamed_columns(events: str) -> None:
    """Without names of columns a table has vectors."""
    there = peek_columns(events)
    if there is not None and not {"process", "vector"} <= set(there):
        raise BadParameter(
            "order", f"name the columns: --id and --causes, or --process and --vector, of {', '.join(there)}"
        )


def refuse_request(columns: dict[str, Any]) -> None:
    """What can be refused without a Spark."""
    for one, other in (("id", "causes"), ("protocol", "processes")):
        if bool(columns[one]) != bool(columns[other]):
            raise BadParameter("order", f"give --{one} and --{other} together, or neither")
    forms = [any(columns[name] for name in form) for form in FORMS]
    if sum(forms) > 1:
        expected = " or ".join(" and ".join(f"--{name}" for name in form) for form in FORMS)
        raise BadParameter("order", f"name the columns of one form: {expected}")
    if columns["id"] is None and len(columns["no_cause"]) > 1:
        raise BadParameter("order", "--no-cause needs --id and --causes")
    if columns["window"] is not None and columns["time"] is None and any(forms):
        raise BadParameter("order", "--window needs --time")


def report(outcome: Outcome, out: str, as_json: bool) -> None:
    from dataclasses import asdict

    verdict = "no" if outcome.missing or outcome.refused else "yes"
    if as_json:
        print_json({"verdict": verdict, **asdict(outcome), "out": out})
    for row in outcome.reasons:
        print_sentence(f"refused: {name_partition(row, outcome.partition_by)}: {row['reason']}")
    for row in outcome.holding:
        print_sentence(describe_missing(row, outcome.partition_by))
    if hint := hint_at_lists(outcome):
        print_sentence(hint)
    many = f"{count_things(outcome.rows, 'row')} by {outcome.by}"
    if outcome.partition_by:
        many += f" in {count_things(outcome.partitions, 'partition')}"
    if verdict == "yes":
        print_sentence(f"yes: nothing is missing; {many}; written to {out}")
        return
    parts = []
    if outcome.missing:
        direct = f", {outcome.direct:,} directly" if outcome.by == "causes" else ""
        worst = max(outcome.groups, key=lambda row: row["missing"])
        where = f" (most in {name_partition(worst, outcome.partition_by)})" if outcome.partition_by else ""
        waiting = "1 row waits" if outcome.waiting == 1 else f"{outcome.waiting:,} rows wait"
        parts.append(
            f"{outcome.missing:,} missing, {waiting} for {'it' if outcome.missing == 1 else 'them'}{direct}{where}"
        )
    if outcome.refused:
        parts.append(f"{count_things(outcome.refused, 'partition')} refused")
    print_sentence(f"no: {'; '.join([*parts, many])}; written to {out}")
    if outcome.by == "causes":
        besides = {*outcome.partition_by, "direct", "waiting"}
        ids = [value for row in outcome.holding for name, value in row.items() if name not in besides]
        if (advice := suggest_no_cause(ids)) is not None:
            print_sentence(advice)


def describe_missing(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """What is missing, and how many rows it holds up.

    >>> describe_missing({"shop": "us", "event": "ordered", "direct": 1, "waiting": 2}, ["shop"])
    'missing: shop us: event ordered holds up 2 rows, 1 directly'
    >>> lost = {"receiver": "bob", "sender": "ann", "first": 3, "last": 4, "counted": "channel", "waiting": 9}
    >>> describe_missing(lost, ["receiver"])
    'missing: receiver bob: messages 3 to 4 from ann to it hold up 9 rows'
    """
    if "counted" in row:
        first, last = row["first"], row["last"]
        numbers = f"message {first:,}" if first == last else f"messages {first:,} to {last:,}"
        # Some stamps count only the messages that a sender addressed to the receiver.
        what = f"{numbers} {'of' if row['counted'] == 'sender' else 'from'} {row['sender']}"
        what += "" if row["counted"] == "sender" else " to it"
    else:
        what = name_partition(row, [name for name in row if name not in (*names, "direct", "waiting")])
    where = f"{name_partition(row, names)}: " if names else ""
    direct = f", {row['direct']:,} directly" if "direct" in row else ""
    hold = "hold" if what.startswith("messages ") else "holds"
    return f"missing: {where}{what} {hold} up {count_things(row['waiting'], 'row')}{direct}"


def hint_at_lists(outcome: Outcome) -> str:
    """What to do if a missing identifier looks like several: in text, only JSON is a list."""
    own = (*outcome.partition_by, "direct", "waiting")
    missing = [str(row[name]) for row in outcome.holding for name in row if name not in own]
    several = next((text for text in missing if {",", " ", ";"} & set(text)), None)
    if outcome.by != "causes" or several is None:
        return ""
    return f'{several} is read as one identifier: several causes in a text must be a JSON array, as in ["a", "b"]'


# A stream: until Ctrl-C or, with --once, the end


class Rows(NamedTuple):
    """The options that say where rows are, and how they are read."""

    source: str
    columns: Mapping[str, Any]
    """What orders them: parameters of `antecede.spark.order`."""
    files: int | None
    by: str
    receiver: str | None


def order_stream(rows: Rows, asked: Asked) -> None:
    """Exit code 0: every row came out after its causes. 1: some wait, came out without theirs, or are none."""
    refuse_stream_request(rows, asked)
    delivered = f"{asked.out.rstrip('/')}/delivered"
    with open_stream(asked, "reading what comes") as (work, checkpoint, stop):
        from antecede.spark.order.files import Source, order_files
        from antecede.spark.stream.api import Asked as Columns

        columns = Columns(**rows.columns, patience=asked.patience, remember=asked.remember)
        outcome = order_files(
            work.spark,
            Source(rows.source, columns, rows.files, rows.by, rows.receiver),
            delivered,
            checkpoint,
            once=asked.once,
            every=asked.every_s,
            stop=stop,
            note=lambda told: say_progress(work, told),
        )
    if stop() and not outcome.batches:
        raise KeyboardInterrupt
    report_stream(outcome, delivered, asked.as_json)
    if not outcome.complete:
        raise typer.Exit(1)


def refuse_stream_request(rows: Rows, asked: Asked) -> None:
    """What can be refused without a Spark."""
    forms = "--id and --causes, or --process and --vector, or --protocol and --processes"
    given = [
        name for name in ("id", "causes", "process", "vector", "protocol", "processes") if rows.columns[name]
    ]
    if given in (["protocol"], ["processes"]):
        other = "processes" if given == ["protocol"] else "protocol"
        raise BadParameter(asked.command, f"--{other} is missing: it says how to read the packets' stamps")
    if given not in (["id", "causes"], ["process", "vector"], ["protocol", "processes"]):
        found = ", ".join(f"--{name}" for name in given) or "none"
        raise BadParameter(asked.command, f"name the columns by {forms}, not by {found}")
    groups = rows.columns["partition_by"] or ()
    if rows.columns["protocol"] is not None and len(groups) > 1:
        raise BadParameter(
            asked.command, f"--partition-by takes one column with stamps, not {','.join(groups)}"
        )
    if rows.columns["protocol"] is not None and asked.remember is not None:
        raise BadParameter(asked.command, "--remember needs --causes or --vector")
    from antecede.spark.tables import refuse_directory

    refuse_directory(asked.command, rows.source, "events" if rows.columns["protocol"] is None else "packets")


def split_processes(processes: str) -> tuple[str, ...]:
    """Names separated by commas, or how many there are.

    >>> split_processes("ann, bob"), split_processes("3")
    (('ann', 'bob'), ('p1', 'p2', 'p3'))
    """
    if processes.isdecimal():
        return View.numbered(int(processes)).names
    return View(tuple(name.strip() for name in processes.split(",") if name.strip())).names


def say_progress(work: Work, told: Progress) -> None:
    status = told.status
    words = f"{told.delivered_per_second:,.0f} rows a second"
    work.say(f"{words}, {status.describe_waits()}" if status.held else words)


def report_stream(outcome: StreamOutcome, out: str, as_json: bool) -> None:
    verdict = "yes" if outcome.complete else "no"
    if as_json:
        print_json({"verdict": verdict, **msgspec.structs.asdict(outcome), "out": out})
    many = (
        f"{count_things(outcome.delivered + outcome.late, 'row')} in "
        f"{count_things(outcome.batches, 'micro-batch', 'micro-batches')}; written to {out}"
    )
    if outcome.complete:
        print_sentence(f"yes: all in causal order; {many}")
        return
    why = (
        "for causes that form a cycle or have not come" if outcome.cycles else "for causes that have not come"
    )
    named = f" ({outcome.held_up})" if outcome.held_up else ""
    parts = [
        f"{count:,} {words}"
        for count, words in (
            (outcome.waiting, f"{'waits' if outcome.waiting == 1 else 'wait'} {why}{named}"),
            (outcome.released, "came out without a cause that was given up"),
            (outcome.late, "came late"),
            (outcome.refused, "refused"),
            (
                outcome.broken,
                f"{'line is' if outcome.broken == 1 else 'lines are'} no JSON (column _rescued)",
            ),
        )
        if count
    ]
    print_sentence(f"no: {', '.join(parts)}; {many}")
    if (advice := suggest_no_cause(outcome.missing)) is not None:
        print_sentence(f"{advice}, with another --out")
