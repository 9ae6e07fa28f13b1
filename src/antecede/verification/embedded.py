"""Verification in this process: the tasks that Spark would run, one after the other, on a trace on a local disk."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from antecede.errors import BadParameter, BadTrace
from antecede.jit import has_numba, is_compiling, kernels_for
from antecede.storage import absolute, all_whole, join, local
from antecede.trace.checks import refuse_second_sends
from antecede.trace.clocks import add_clocks
from antecede.trace.columns import ORDER_COLUMNS, Names, Rows, by_run, rows_of
from antecede.trace.footers import LocalTrace, read_local_trace
from antecede.trace.parquet import batches_of, read_part
from antecede.trace.plan import Cut, Piece
from antecede.trace.schema import EVENTS
from antecede.verification.rounds import FOR_COMBINING, FOR_DRIVER, Engine, judge, make_verdicts
from antecede.verification.schema import FINDINGS, RESULTS, VERDICTS, Told, refusal
from antecede.verification.tasks import (
    DEALT,
    Questions,
    deal_rows,
    examine_chunk,
    examine_rows,
    put_together,
)

__all__ = ["EMBEDDED_MOST", "Verification", "verify", "verify_local"]

EMBEDDED_MOST: Final = 2_000_000
"""Events of a trace up to which this process is faster than Spark, which takes seconds to start."""

ORDER: Final = ("run", "kind", "process", "index", "sender", "number")
"""Findings are sorted by these."""


@dataclass(frozen=True)
class Verification:
    """What was found in a trace."""

    verdict: str
    """`no` if any run says no, else `unknown` if any is not known, else `yes`."""
    runs: pa.Table
    """run, verdict, reason, deliveries and a count of each kind: one row for each run, by name."""
    findings: pa.Table
    """run, kind, process, sender, number, by_sender, by_number, index, chain: one row for each finding."""
    plan: str
    """How the trace was read, in words."""
    refused: Mapping[str, BadTrace]
    """Runs that cannot be judged, and why: their verdict is `unknown`."""

    def examples(self, most: int) -> list[dict[str, Any]]:
        """The first findings, violations before others; FIFO breaks are violations too, and are not told again."""
        kinds = self.findings["kind"].to_pylist()
        first = [at for at, kind in enumerate(kinds) if kind == "violation"][:most]
        rest = [at for at, kind in enumerate(kinds) if kind not in ("violation", "fifo_break")]
        shown = pa.array([*first, *rest[: most - len(first)]], pa.int64())
        return self.findings.take(shown).to_pylist()  # type: ignore[no-any-return]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `findings` and `verdicts` as Parquet into a local directory: both, or nothing."""
        place = absolute(path)
        if local(place) is None:
            raise BadParameter(
                "output", f"the path must be local where Spark is not used, not {os.fspath(path)}"
            )
        with all_whole([join(place, name) for name in ("findings", "verdicts")]) as asides:
            for table, aside in zip((self.findings, self.runs), asides, strict=True):
                inside = local(aside)
                assert inside is not None
                os.makedirs(inside)
                pq.write_table(table, os.path.join(inside, "part-00000.parquet"))


def verify(trace: str | os.PathLike[str]) -> Verification:
    """Say of every run of a trace on a local disk whether causal order was kept, and show what broke it. No Spark.

    `trace` is a directory with `runs.parquet` and `events/`, or a directory of results that has one. Raises `BadTrace`
    for what is no trace. A run whose rows cannot be a run is `unknown`, and `refused` says why; if no run can be
    judged, that is raised.

    >>> import tempfile
    >>> from antecede.trace import DELIVER, SEND, RunInfo, TraceWriter
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with TraceWriter(place, RunInfo(run="late", protocol="none", processes=("ann", "bob"))) as writer:
    ...         writer.append(0, SEND, 0, 1, to=(1,), clock=0)
    ...         writer.append(0, SEND, 0, 2, to=(1,), clock=1)
    ...         writer.append(1, DELIVER, 0, 2, clock=2)
    ...         writer.append(1, DELIVER, 0, 1, clock=3)
    ...     found = verify(place)
    >>> found.verdict, found.runs["reason"].to_pylist()
    ('no', ['1 violation, 1 fifo break'])
    """
    return verify_local(read_local_trace(trace))


def verify_local(trace: LocalTrace, parts: int | None = None) -> Verification:
    """The same of a trace whose footers are read. `parts` asks for so many of each run."""
    engine = Embedded(trace, parts)
    with kernels_for(trace.rows):
        judgement = judge(engine)
        how = tell_way(trace.rows)
    rows = list(make_verdicts(trace.runs, judgement.counts, judgement.refused))
    verdicts = {row["verdict"] for row in rows}
    return Verification(
        next((verdict for verdict in ("no", "unknown") if verdict in verdicts), "yes"),
        pa.Table.from_pylist(rows, schema=VERDICTS),
        findings_of(judgement.tables),
        f"{how}\n{engine.explain()}",
        judgement.refused,
    )


def tell_way(rows: int) -> str:
    """How this is done, in words."""
    how = "compiled by Numba" if is_compiling() else "as plain Python"
    if not has_numba():
        how += " (Numba, which antecede[spark] installs, is 50 times faster on large traces)"
    return f"in this process, without Spark: {rows:,} events on a local disk; kernels run {how}"


def findings_of(tables: Sequence[pa.Table]) -> pa.Table:
    """The findings among results, sorted."""
    found = select_rows(pa.concat_tables(tables), what=["finding"]).select(FINDINGS.names)
    # Names are compared as UTF-8, and what has no index comes last.
    order = pc.sort_indices(found.select(ORDER), sort_keys=[(name, "ascending") for name in ORDER])
    return found.take(order).cast(FINDINGS)


class Embedded(Engine[pa.Table]):
    """Runs tasks here, one after the other, and keeps tables of Arrow's."""

    def __init__(self, trace: LocalTrace, parts: int | None = None) -> None:
        self.root = trace.root
        super().__init__(trace.files, trace.runs, parts, None if parts else max(1, trace.rows))
        self.own_cuts = [Cut(run, (), 0) for run in self.plan.blind]

    @cached_property
    def gathered(self) -> dict[str, list[pa.RecordBatch]]:
        """The rows of these runs, with clocks."""
        found: dict[str, list[pa.RecordBatch]] = {run: [] for run in self.cuts}
        for file in self.files or ():
            if file.run is None or file.run in found:
                piece = Piece(file.path, 0, len(file.groups) - 1)
                for batch in batches_of(piece, ("run", *ORDER_COLUMNS)):
                    for run, own in by_run(batch):
                        if run in found:
                            found[run].append(own)
                        elif run not in self.processes:
                            raise BadTrace(
                                file.path, f"it has events of run {run}, which runs.parquet does not name"
                            )
        return found

    def examine(self, purpose: str, runs: Collection[str], asked: Questions) -> pa.Table:
        return as_table(self._examine(purpose, runs, asked))

    def _examine(self, purpose: str, runs: Collection[str], asked: Questions) -> Iterator[pa.RecordBatch]:
        for given in self.assign(purpose, runs, asked):
            yield from examine_chunk(given)
        for run in self.cuts.keys() & set(runs):
            yield from examine_rows(self._dealt(run), purpose, self.root, self.processes, asked)

    def _dealt(self, run: str) -> Iterator[pa.RecordBatch]:
        cut = self.cuts[run]
        serials = {(run, part): 0 for part in range(len(cut.below) + 1)}
        try:
            batches = with_clocks(self.gathered[run])
        except BadTrace as error:
            yield pa.RecordBatch.from_pylist(
                [{"what": "error", "run": run, "blob": refusal(error).blob}], DEALT
            )
            return
        yield from deal_rows(batches, self.processes, {run: cut}, serials, self.root)

    def combine(self, tables: Sequence[pa.Table], runs: Collection[str]) -> pa.Table:
        rows = select_rows(pa.concat_tables(tables), what=FOR_COMBINING, run=runs)
        rows = rows.sort_by([("run", "ascending"), ("part", "ascending")])
        return as_table(put_together(rows.to_batches(), self.processes))

    def hear(self, tables: Sequence[pa.Table]) -> Iterator[Told]:
        for table in tables:
            rows = select_rows(table, what=FOR_DRIVER).select(Told.__struct_fields__)
            yield from (Told(**row) for row in rows.to_pylist())

    def drop(
        self, table: pa.Table, runs: Collection[str], parts: Collection[tuple[str, int]] = ()
    ) -> pa.Table:
        if not runs and not parts:
            return table
        kept = [
            run not in runs and (run, part) not in parts
            for run, part in zip(table["run"].to_pylist(), table["part"].to_pylist(), strict=True)
        ]
        return table.filter(pa.array(kept, pa.bool_()))

    def second_sends(self, runs: Collection[str]) -> Iterator[tuple[str, BadTrace]]:
        for run in sorted(runs, key=str.encode):
            names = Names.of(self.processes[run])
            everyone = np.ones(len(names), bool)
            try:
                refuse_second_sends(run, names, self.root, self._rows(run, names), everyone)
            except BadTrace as error:
                yield run, error

    def _rows(self, run: str, names: Names) -> Iterator[Rows]:
        for part in (part for chunk in self.plan.chunks for part in chunk.parts if part.run == run):
            yield from (rows for _, rows in read_part(part, names))
        yield from (rows_of(batch, names) for batch in self.gathered.get(run, ()))


def with_clocks(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows of a run with a clock in each: their own where all have one, else computed ones."""
    if not any(batch.column("clock").null_count for batch in batches):
        return batches
    columns = [field.name for field in batches[0].schema]
    plain = pa.schema([EVENTS.field(name) for name in columns])
    table = pa.concat_tables(pa.Table.from_batches([batch]).cast(plain) for batch in batches)
    table = table.sort_by([("process", "ascending"), ("index", "ascending")])
    return add_clocks(table).to_batches()  # type: ignore[no-any-return]


def select_rows(table: pa.Table, **named: Collection[str]) -> pa.Table:
    """The rows whose columns have one of these values.

    A filter by an expression would run in threads of Arrow's. One that is still at work when Python ends aborts the
    process (apache/arrow#34314, #45017).
    """
    for name, values in named.items():
        table = table.filter(pc.is_in(table[name], pa.array(list(values), pa.string())))
    return table


def as_table(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches), schema=RESULTS)
