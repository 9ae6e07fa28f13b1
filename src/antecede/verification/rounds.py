"""One verification as rounds of questions and answers, whoever runs the tasks.

1. Every part is scanned. A run of one part is finished by that.
2. The summaries of each longer run are put together, which finishes it or asks a question (combine.py).
3. The parts in question are read again, and the run is put together once more, with their answers.

An `Engine` runs the tasks (tasks.py) and keeps what they tell as tables: lists of Arrow batches in this process,
DataFrames on Spark. The driver sees counts, questions and errors, never a finding. A run with an error is left out of
the rest: one bad run does not keep the others from being judged.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from antecede.errors import BadTrace
from antecede.trace.footers import Footer
from antecede.trace.plan import Chunk, Cut, Plan, explain_plan, plan, plan_by_origin
from antecede.verification.findings import KINDS
from antecede.verification.schema import COUNTS, Told, error_of
from antecede.verification.tasks import Assignment, Questions

__all__ = ["FOR_DRIVER", "FOR_COMBINING", "Engine", "Judgement", "judge", "make_verdicts"]

T = TypeVar("T")

ROUNDS_MOST: Final = 16
"""Questions and answers about a run: it takes at most five rounds, and a plan is changed a few times at most."""

QUESTIONS: Final = ("unknown", "keep", "news")
FOR_DRIVER: Final = ("count", "error", "tied", "crowded", "unsorted", *QUESTIONS)
FOR_COMBINING: Final = ("summary", "kept", "found", "news found")


class Engine(ABC, Generic[T]):
    """Runs tasks by a plan of which reads what, and keeps what they tell as tables of `schema.RESULTS`.

    `files` are the footers of a trace's files; without any, all rows are exchanged. `parts` asks for so many of each
    run, `size` for about so many rows to a task.
    """

    def __init__(
        self,
        files: Sequence[Footer] | None,
        runs: pa.Table,
        parts: int | None = None,
        size: int | None = None,
    ) -> None:
        names = (runs[name].to_pylist() for name in ("run", "processes"))
        self.processes = {run: tuple(processes) for run, processes in zip(*names, strict=True)}
        self.files, self.parts, self.size = files, parts, size
        self.merged: set[str] = set()
        """Runs whose files overlap."""
        self.blocks: dict[str, int] = {}
        """Runs that are read by origin, and in how many blocks. One that is packed then goes to one task as a whole."""
        self.own_cuts: list[Cut] = []
        """Cuts of the runs that footers do not tell how to cut."""
        self.replan((), ())

    def replan(self, tied: Iterable[str], crowded: Iterable[str]) -> None:
        """Read the ones as files that overlap, and the others by origin, from now on."""
        self.merged |= set(tied)
        self.blocks |= {run: 2 * self.blocks.get(run, 1) for run in crowded}
        if self.files is None:
            self.plan = Plan((), (), (), dict.fromkeys(sorted(self.processes), "pack"), tuple(self.processes))
        else:
            found = plan(self.files, self.processes, self.parts, self.merged, self.size)
            self.plan = plan_by_origin(found, self.blocks, self.processes)

    @property
    def cuts(self) -> dict[str, Cut]:
        """How the runs that are packed are cut."""
        found = (*self.plan.cuts, *self.own_cuts)
        return {cut.run: Cut(cut.run, () if cut.run in self.blocks else cut.below, cut.rows) for cut in found}

    @property
    def long_runs(self) -> set[str]:
        """The runs that have several parts."""
        parts = [part for chunk in self.plan.chunks for part in chunk.parts]
        cut = {run for run, cut in self.cuts.items() if cut.below}
        return cut | {part.run for part in parts if part.of > 1}

    def explain(self) -> str:
        """The plan in words."""
        return explain_plan(self.plan, list(self.cuts.values()))

    def assign(self, purpose: str, runs: Collection[str], asked: Questions) -> Iterator[Assignment]:
        """What tasks that read files do, one for each chunk. A chunk that is asked nothing is not read."""
        for chunk in self.plan.chunks:
            parts = tuple(part for part in chunk.parts if part.run in runs)
            keys = [(part.run, part.number) for part in parts]
            own = {key: asked[key] for key in keys if key in asked}
            if parts and (own or purpose == "scan"):
                names = {part.run: self.processes[part.run] for part in parts}
                yield Assignment(Chunk(chunk.serial, chunk.rows, parts), names, purpose, own)

    @abstractmethod
    def examine(self, purpose: str, runs: Collection[str], asked: Questions) -> T:
        """Read all parts of these runs, or those that are asked something."""

    @abstractmethod
    def combine(self, tables: Sequence[T], runs: Collection[str]) -> T:
        """Put these runs together, from the summaries and answers in the tables."""

    @abstractmethod
    def hear(self, tables: Sequence[T]) -> Iterable[Told]:
        """The rows of the tables that are for the driver."""

    @abstractmethod
    def drop(self, table: T, runs: Collection[str], parts: Collection[tuple[str, int]] = ()) -> T:
        """The table without the rows of these runs and parts."""

    @abstractmethod
    def second_sends(self, runs: Collection[str]) -> Iterable[tuple[str, BadTrace]]:
        """Which of these runs, whose senders' numbers do not grow, use one twice."""


@dataclass(frozen=True)
class Judgement(Generic[T]):
    tables: list[T]
    """The findings are rows of these."""
    counts: list[Told]
    refused: Mapping[str, BadTrace]
    """Runs that cannot be judged, and why."""


class Rounds(Generic[T]):
    """The tables of one verification, and what the driver has heard of them."""

    def __init__(self, engine: Engine[T]) -> None:
        self.engine = engine
        self.scanned: list[T] = []
        self.told: list[Told] = []
        """Of `scanned`."""
        self.answers: list[T] = []
        self.finished: list[T] = []
        self.counts: list[Told] = []
        """Of `finished`."""
        self.refused: dict[str, BadTrace] = {}

    def hear(self, *tables: T) -> list[Told]:
        told = list(self.engine.hear(tables))
        for row in sorted((row for row in told if row.what == "error"), key=lambda row: (row.part, row.blob)):
            if not row.run:
                raise error_of(row.blob)
            self.refused.setdefault(row.run, error_of(row.blob))
        return told

    def scan(self, runs: Collection[str] | None = None) -> list[Told]:
        """Scan these runs anew, or all."""
        new = self.engine.examine("scan", self.engine.processes if runs is None else runs, {})
        heard = self.hear(new)
        self._replace(new, heard, runs or ())
        self.answers, self.finished, self.counts = [], [], []
        return heard

    def _replace(
        self, new: T, heard: list[Told], runs: Collection[str], parts: Collection[tuple[str, int]] = ()
    ) -> None:
        self.scanned = [self.engine.drop(table, runs, parts) for table in self.scanned]
        self.told = [row for row in self.told if row.run not in runs and (row.run, row.part) not in parts]
        self.scanned.append(new)
        self.told += heard

    def combine(self, runs: Collection[str]) -> list[Told]:
        """Put these runs together. Those without a question are finished."""
        together = self.engine.combine([*self.scanned, *self.answers], runs)
        heard = self.hear(together)
        asked = {row.run for row in heard if row.what in QUESTIONS}
        self.finished.append(self.engine.drop(together, asked))
        self.counts += [row for row in heard if row.run not in asked]
        return heard

    def ask(self, told: Sequence[Told]) -> list[Told]:
        """Take the questions to the parts."""
        heard: list[Told] = []
        for what in QUESTIONS:
            asked = {(row.run, row.part): row.blob for row in told if row.what == what}
            if asked:
                new = self.engine.examine(what, {run for run, _ in asked}, asked)
                heard += (said := self.hear(new))
                if what == "keep":
                    self._replace(new, said, (), asked)
                else:
                    self.answers.append(new)
        return heard


def judge(engine: Engine[T]) -> Judgement[T]:
    """Every run of the engine's trace."""
    rounds = Rounds(engine)
    heard = rounds.scan()
    unfinished = set(engine.long_runs)
    for _ in range(ROUNDS_MOST):
        tied, crowded = (
            {row.run for row in heard if row.what == what} - rounds.refused.keys()
            for what in ("tied", "crowded")
        )
        if tied or crowded:
            engine.replan(tied, crowded)
            heard = rounds.scan(tied | crowded)
            unfinished = set(engine.long_runs)
            continue
        unfinished -= rounds.refused.keys()
        if not unfinished:
            break
        heard = rounds.combine(unfinished)
        unfinished = {row.run for row in heard if row.what in (*QUESTIONS, "tied", "crowded")}
        heard += rounds.ask(heard)
    else:
        raise AssertionError(f"runs that are not finished: {sorted(unfinished)[:8]}")
    counts = [row for row in (*rounds.told, *rounds.counts) if row.run not in rounds.refused]
    unsorted = {row.run for row in counts if row.what == "unsorted"}
    rounds.refused.update(engine.second_sends(unsorted) if unsorted else ())
    tables = [engine.drop(table, rounds.refused) for table in (*rounds.scanned, *rounds.finished)]
    counts = [row for row in counts if row.what == "count" and row.run not in rounds.refused]
    return Judgement(tables, counts, rounds.refused)


# Verdicts


def make_verdicts(
    runs: pa.Table, counts: Iterable[Told], refused: Mapping[str, BadTrace]
) -> Iterator[dict[str, Any]]:
    """A verdict for each run: no if anything was found; else unknown if the run says why, or is refused; else yes.

    `runs` has run and parameters, which may say why a run cannot be known. If every run is refused, so is the trace.
    """
    told = runs.select(["run", "parameters"]).to_pylist()
    unknown = {row["run"]: json.loads(row["parameters"]).get("unknown") for row in told}
    if refused and refused.keys() >= unknown.keys():
        raise refused[min(refused, key=str.encode)]
    sums: dict[str, dict[str, int]] = {run: {} for run in unknown}
    for row in counts:
        name = COUNTS[row.kind] if row.kind is not None else "deliveries"
        sums[row.run][name] = sums[row.run].get(name, 0) + (row.number or 0)
    for run in sorted(unknown, key=str.encode):
        found = {name: sums[run].get(name, 0) for name in ("deliveries", *COUNTS.values())}
        if run in refused:
            verdict, reason = "unknown", str(refused[run])
        elif any(found[name] for name in COUNTS.values()):
            verdict, reason = "no", tell_counts(found)
        else:
            verdict, reason = ("yes" if unknown[run] is None else "unknown"), unknown[run] or ""
        yield {"run": run, "verdict": verdict, "reason": reason or None, **found}


def tell_counts(found: Mapping[str, int]) -> str:
    """
    >>> tell_counts(dict.fromkeys(COUNTS.values(), 0) | {"violations": 1, "duplicates": 1200})
    '1 violation, 1,200 duplicates'
    """
    words = {kind: (kind if found[count] == 1 else count).replace("_", " ") for kind, count in COUNTS.items()}
    return ", ".join(f"{found[COUNTS[kind]]:,} {words[kind]}" for kind in KINDS if found[COUNTS[kind]])
