"""For tests of your own system: record what it sends and delivers, and assert that causal order was kept.

    recorder = Recorder()
    recorder.sent("ann", "order 7", to=["bob", "cid"])      # just before the message leaves
    recorder.delivered("bob", "order 7")                    # as soon as the application has it
    assert_causal(recorder)                                 # else an AssertionError with a space-time diagram

By default everything that a process did before counts as a cause of what it sends. A system whose handlers run side by
side states the causes itself, and only these count:

    recorder.sent("bob", "answer 7", to="ann", after=["order 7"])

Nothing of Antecede needs to be in the system. A message is named by any string or number that is its own in the run, a
process by a name. Threads may share a recorder. Processes each make their own on one directory, and whoever has them
all there asserts:

    Recorder("recorded")                                    # in each process: writes a file of its own
    assert_causal(Recorder("recorded"))                     # in the test, when they have ended

`assert_causal` also takes the path of a trace. docs/testing.md has an example that runs.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from antecede.diagram import render
from antecede.errors import BadParameter, BadTrace
from antecede.jit import kernels_for
from antecede.model import Event, Id, View
from antecede.trace import DELIVER, EVENTS, SEND, RunInfo, TraceWriter, read_events, read_runs
from antecede.trace.clocks import add_clocks
from antecede.verification import KINDS, verify
from antecede.verification.schema import describe_finding

__all__ = ["Recorder", "assert_causal"]

NOBODY: Final = "(nobody)"
"""The sender of a message that was delivered and never sent."""

SHOWN: Final = 5
"""Findings that a failed assertion tells in words."""


class Recorder:
    """What the processes of a system send and deliver.

    With a `directory`, each recorder appends to a file of its own there, a line an event, written before the call
    returns: what a killed process has recorded is not lost. A recorder then speaks of all files in the directory.

    >>> recorder = Recorder()
    >>> recorder.sent("ann", "hello", to="bob")
    >>> recorder.delivered("bob", "hello")
    >>> assert_causal(recorder)
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, run: str = "recorded") -> None:
        self.run = run
        self._directory = None if directory is None else Path(directory)
        self._lock = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self._file = -1
        self._owner = 0

    def sent(
        self,
        process: str,
        message: str | int,
        to: str | Iterable[str],
        *,
        after: str | int | Iterable[str | int] | None = None,
    ) -> None:
        """The process sends the message. Call it before the message can reach anyone.

        `after` names the messages that this one follows. If it is given for any message, `assert_causal` judges all of
        them by stated causality: a message follows those that it names, and what they follow, and nothing else.

        >>> recorder = Recorder()
        >>> recorder.sent("ann", "order 1", to=["bob", "eve"], after=())
        >>> recorder.sent("bob", "bill 1", to="eve", after="order 1")
        """
        everyone = [to] if isinstance(to, str) else list(to)
        row = {"process": process, "kind": "send", "message": str(message), "to": everyone}
        if after is not None:
            row["after"] = [str(one) for one in ([after] if isinstance(after, str | int) else after)]
        self._record(row)

    def delivered(self, process: str, message: str | int) -> None:
        """The message is handed to the application at this process."""
        self._record({"process": process, "kind": "deliver", "message": str(message)})

    def _record(self, row: dict[str, Any]) -> None:
        with self._lock:
            if self._directory is None:
                self._rows.append(row)
                return
            if self._owner != os.getpid():  # A child that was forked writes a file of its own.
                self._directory.mkdir(parents=True, exist_ok=True)
                name = f"{time.time_ns():020d}-{os.getpid()}-{id(self):x}.jsonl"
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
                self._file, self._owner = os.open(self._directory / name, flags, 0o666), os.getpid()
                weakref.finalize(self, os.close, self._file)
            os.write(self._file, f"{json.dumps(row)}\n".encode())

    def rows(self) -> list[dict[str, Any]]:
        """Everything recorded so far, each process's events in its order; of files, the older ones first."""
        if self._directory is None:
            with self._lock:
                return list(self._rows)
        return [row for path in sorted(self._directory.glob("*.jsonl")) for row in read_lines(path)]

    def write(self, directory: str | os.PathLike[str]) -> dict[Id, str]:
        """Write a trace of what was recorded. Returns the messages' names: identity in the trace -> name.

        A trace has no place for causes that `sent` stated: `antecede verify` judges it by potential causality. Raises
        `BadTrace` for what cannot have happened: a message that was sent twice, a circle of deliveries that each
        wait for the other's send.
        """
        return self._write(directory, self.rows())

    def _write(self, directory: str | os.PathLike[str], rows: list[dict[str, Any]]) -> dict[Id, str]:
        ids, processes = identify(rows)
        number = {name: position for position, name in enumerate(processes)}
        with TraceWriter(
            directory, RunInfo(run=self.run, protocol="recorded", processes=processes)
        ) as writer:
            for row in in_order(self.run, rows, ids):
                sender, own = ids[row["message"]]
                kind, to = (
                    (SEND, tuple(number[name] for name in row["to"]))
                    if row["to"] is not None
                    else (DELIVER, None)
                )
                writer.append(number[row["process"]], kind, number[sender], own, to, clock=row["clock"])
        return {(number[sender], own): message for message, (sender, own) in ids.items()}


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    # A process that was killed may have left half a line.
    for line in text[: text.rfind("\n") + 1].splitlines():
        yield json.loads(line)


def identify(rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, tuple[str, int]], tuple[str, ...]]:
    """Message -> sender, and number among its messages; and all processes, in the order of their first event."""
    ids: dict[str, tuple[str, int]] = {}
    counts: dict[str, int] = {}
    processes: dict[str, None] = {}
    rows = list(rows)
    for row in rows:
        processes |= dict.fromkeys([row["process"], *row.get("to", ())])
        if row["kind"] == "send":
            if row["message"] in ids:
                place = f"recorder, process {row['process']}"
                advice = "give each message a name of its own, and each run a directory of its own"
                raise BadTrace(place, f"message {row['message']} is sent a second time: {advice}")
            counts[row["process"]] = counts.get(row["process"], 0) + 1
            ids[row["message"]] = (row["process"], counts[row["process"]])
    for row in rows:
        if row["message"] not in ids:
            processes |= {NOBODY: None}
            counts[NOBODY] = counts.get(NOBODY, 0) + 1
            ids[row["message"]] = (NOBODY, counts[NOBODY])
    if not processes:
        raise BadParameter("recorder", "there are no events: does the system call the recorder?")
    return ids, tuple(processes)


def in_order(
    run: str, rows: Iterable[Mapping[str, Any]], ids: Mapping[str, tuple[str, int]]
) -> list[dict[str, Any]]:
    """The rows with clocks, in an order of happened-before."""
    index: dict[str, int] = {}
    events = []
    for row in rows:
        at = index[row["process"]] = index.get(row["process"], -1) + 1
        sender, number = ids[row["message"]]
        same = {
            "run": run,
            "process": row["process"],
            "index": at,
            "kind": row["kind"],
            "control": False,
            "time_ns": 0,
        }
        events.append(
            {**same, "sender": sender, "number": number, "to": row.get("to"), "message": row["message"]}
        )
    table = pa.Table.from_pylist(events, pa.schema([*EVENTS, pa.field("message", pa.string())]))
    with kernels_for(len(events)):
        table = add_clocks(table.sort_by([("process", "ascending"), ("index", "ascending")]))
    keys = [(name, "ascending") for name in ("clock", "process", "index")]
    timed: list[dict[str, Any]] = table.sort_by(keys).to_pylist()
    return timed


# The assertion


def assert_causal(source: Recorder | str | os.PathLike[str], *, allow: Collection[str] = ()) -> None:
    """Raise an `AssertionError` that shows what broke causal order, unless nothing did.

    Everything that `antecede verify` finds counts: violations, duplicates, deliveries of what was not sent or not
    addressed, and what was never delivered. `allow` names kinds that do not, such as `"undelivered"`. A FIFO break is a
    violation, too, and is told only where violations are allowed.
    """
    __tracebackhide__ = True  # pytest shows the line of the test.
    for kind in allow:
        if kind not in KINDS:
            raise BadParameter.choice("assert_causal", "allow", kind, KINDS)
    if not isinstance(source, Recorder):
        _assert(Path(source), [], {}, allow)
        return
    rows = source.rows()
    with tempfile.TemporaryDirectory(prefix="antecede-") as directory:
        names = source._write(directory, rows)
        _assert(Path(directory), rows, names, allow)


def _assert(
    trace: Path, rows: Sequence[Mapping[str, Any]], names: Mapping[Id, str], allow: Collection[str]
) -> None:
    __tracebackhide__ = True
    found = verify(trace)
    stated = any("after" in row for row in rows)
    left_out = [*allow] if "violation" in allow and not stated else [*allow, "fifo_break"]
    left_out += ["violation"] * stated
    kept = pc.invert(pc.is_in(found.findings["kind"], pa.array(left_out, pa.string())))
    wrong = found.findings.filter(kept).to_pylist()
    refused = [f"{run}: {error}" for run, error in found.refused.items()]
    if stated:
        ids, _ = identify(rows)
        run = found.runs["run"][0].as_py()
        wrong += [] if "violation" in allow else [{"run": run, **row} for row in find_late(rows, ids)]
        refused += [] if "unsent" in allow else list_unsent_causes(rows)
    if wrong or refused:
        raise AssertionError("\n".join([*tell(trace, wrong, names), *refused]))


def find_late(
    rows: Sequence[Mapping[str, Any]], ids: Mapping[str, tuple[str, int]]
) -> Iterator[dict[str, Any]]:
    """The violations of causality as `sent` states it, in the columns of a finding.

    A process that delivers a message has skipped those of its causes, direct or not, that it has not delivered. If it
    delivers such a one later, that is a violation. Each message is looked at once for each process.
    """
    causes = {row["message"]: row.get("after", ()) for row in rows if row["kind"] == "send"}
    delivered: dict[str, set[str]] = {}
    effects: dict[str, dict[str, str]] = {}
    """Process -> message -> the effect of it by which it was reached; of a message that was delivered, itself."""
    for row in rows:
        if row["kind"] != "deliver" or row["message"] in delivered.setdefault(row["process"], set()):
            continue
        process, message = row["process"], row["message"]
        reached = effects.setdefault(process, {})
        delivered[process].add(message)
        if message in reached:
            chain = [message]
            while reached[chain[-1]] != chain[-1]:
                chain.append(reached[chain[-1]])
            links = [dict(zip(("sender", "number"), ids[one], strict=True)) for one in chain]
            by = {f"by_{name}": value for name, value in links[-1].items()}
            yield {"kind": "violation", "process": process, **links[0], **by, "chain": links}
            continue
        reached[message] = message
        queue = [message]
        for effect in queue:
            news = [cause for cause in causes.get(effect, ()) if cause not in reached]
            reached |= dict.fromkeys(news, effect)
            queue += news


def list_unsent_causes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    sends = [row for row in rows if row["kind"] == "send"]
    known = {row["message"] for row in sends}
    return [
        f"{row['message']} is said to follow {cause}, which nobody sent"
        for row in sends
        for cause in row.get("after", ())
        if cause not in known
    ]


def tell(trace: Path, rows: list[dict[str, Any]], names: Mapping[Id, str]) -> Iterator[str]:
    root = trace if (trace / "runs.parquet").exists() else trace / "trace"
    views = {info.run: View(info.processes) for info in read_runs(root)}
    rows.sort(key=lambda row: KINDS.index(row["kind"]))
    late = [row for row in rows if row["chain"]]
    if not rows:
        yield "causal order cannot be judged"
        return
    what = "causal order was not kept" if late else "messages and deliveries do not match"
    yield f"{what}: {len(rows)} finding{'s' * (len(rows) != 1)}"
    for row in rows[:SHOWN]:
        yield f"  {describe_finding(row, partial(name_of, views[row['run']], names))}"
    if len(rows) > SHOWN:
        yield f"  and {len(rows) - SHOWN} more"
    if not late:
        yield f"  allow={sorted({row['kind'] for row in rows})} accepts this"
    if late:
        yield ""
        yield draw(root, late, views[late[0]["run"]], names)


def name_of(view: View, names: Mapping[Id, str], sender: str, number: int) -> str:
    """What the recorder was told that the message is called, or its identity."""
    return names.get((view.id(sender), number), f"{sender}.{number}")


def draw(root: Path, late: Sequence[Mapping[str, Any]], view: View, names: Mapping[Id, str]) -> str:
    """The space-time diagram of the first violation: its chain, and the processes that have to do with it.

    Each delivery in it that is late is marked.
    """
    row = late[0]
    chain = {(link["sender"], link["number"]) for link in row["chain"]}
    numbers = pa.array(sorted({number for _, number in chain}), pa.int64())
    columns = ("process", "kind", "sender", "number", "to", "control")
    found = [
        event
        for batch in read_events(root, row["run"], columns)
        for event in batch.filter(pc.is_in(batch["number"], numbers)).to_pylist()
        if (event["sender"], event["number"]) in chain and not event["control"] and event["kind"] != "receive"
    ]
    used = {name for event in found for name in (event["process"], event["sender"], *(event["to"] or ()))}
    fewer = View(tuple(name for name in view.names if name in used))
    events = [
        Event(
            fewer.id(event["process"]), event["kind"], fewer.id(event["sender"]), event["number"],
            tuple(fewer.id(name) for name in event["to"] or ()),
        )
        for event in found
    ]  # fmt: skip
    named = {(fewer.id(sender), number): name_of(view, names, sender, number) for sender, number in chain}
    marks = {
        ((fewer.id(one["sender"]), one["number"]), fewer.id(one["process"]))
        for one in late
        if one["run"] == row["run"] and (one["sender"], one["number"]) in chain
    }
    return render(events, fewer, named, marks)
