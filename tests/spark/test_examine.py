"""The tasks of verification, driven without Spark: plans, parts, questions and answers give what the oracle says.

Spark only carries rows between these tasks: `Driven` does it with lists.
"""

from pathlib import Path

import pyarrow as pa
import pytest

from antecede.spark.storage import opened
from antecede.spark.verify.plan import ARROW_INPUT, COLUMNS, dealt
from antecede.trace.footers import footer
from antecede.trace.parquet import batches_of
from antecede.trace.plan import Part, chunked, plan
from antecede.verification.schema import error_of
from antecede.verification.tasks import Assignment, examined, put_together
from tests.spark import planted

RUNS = [planted.run_of(seed) for seed in range(30)] + [
    planted.run_of(seed, processes=n, events=n * 12) for seed, n in ((100, 2), (101, 20))
]


class Driven:
    """One verification: what `antecede.spark.verify` does, with lists for tables."""

    def __init__(self, root, runs, parts=None, merged=()):
        self.processes = {name: tuple(names) for name, names, _ in runs}
        paths = sorted((Path(root) / "events").glob("*.parquet"))
        self.files = [footer(f"file:{path}", opened(f"file:{path}")) for path in paths]
        self.plan = plan(self.files, self.processes, parts, merged)
        self.findings, self.counted, self.told = [], {}, []

    def assigned(self):
        """The input of each reading task."""
        tasks = [
            [
                row(
                    "plan",
                    blob=Assignment(chunk, {p.run: self.processes[p.run] for p in chunk.parts}).encode(),
                )
            ]
            for chunk in self.plan.chunks
        ]
        cuts = {cut.run: cut for cut in self.plan.cuts}
        parts = [
            (Part(cut.run, n, len(cut.below) + 1, ()), 10**9)
            for cut in cuts.values()
            for n in range(len(cut.below) + 1)
        ]
        ranges = list(chunked(parts))
        serials = {(p.run, p.number): chunk.serial for chunk in ranges for p in chunk.parts}
        inputs: dict[int, list] = {chunk.serial: [] for chunk in ranges}
        for chunk in self.plan.packed:
            for piece in (piece for part in chunk.parts for piece in part.pieces):
                for batch in dealt(batches_of(piece, COLUMNS), self.processes, cuts, serials, piece.path):
                    for one in batch.to_pylist():
                        inputs[one["serial"]].append(one)
        return tasks + list(inputs.values())

    def examine(self, purpose, questions=()):
        found = []
        for task in self.assigned():
            own = [*task, *questions]
            batch = pa.RecordBatch.from_pylist(own, schema=ARROW_INPUT)
            found += rows_of(examined([batch], purpose, "events", self.processes))
        return found

    def judge(self):
        scanned = self.examine("scan")
        answers: list[dict] = []
        rounds = 0
        while True:
            rounds += 1
            assert rounds < 9
            told = sorted(
                [r for r in scanned if r["what"] == "summary"] + answers, key=lambda r: (r["run"], r["part"])
            )
            batch = pa.RecordBatch.from_pylist(
                [{k: r[k] for k in ("run", "part", "what", "blob")} for r in told],
                schema=pa.schema([ARROW_INPUT.field(k) for k in ("run", "part", "what", "blob")]),
            )
            together = rows_of(put_together([batch], self.processes)) if told else []
            self.told = [r for r in scanned + together if r["what"] in ("error", "tied", "crowded")]
            asked = {
                what: [r for r in together if r["what"] == what] for what in ("suspects", "keep", "trail")
            }
            if self.told or not any(asked.values()):
                break
            for what, questions in asked.items():
                everywhere = [
                    row(what, q["run"], part, q["blob"])
                    for q in questions
                    for part in (range(300) if what == "suspects" else [q["part"]])
                ]
                if questions:
                    new = self.examine(what, everywhere)
                    if what == "keep":
                        again = {(q["run"], q["part"]) for q in questions}
                        scanned = [r for r in scanned if (r["run"], r["part"]) not in again] + new
                        new = [{**q, "what": "kept"} for q in questions]
                    answers += new
        self.unsorted = {r["run"] for r in together if r["what"] == "unsorted"}
        for r in scanned + together:
            if r["what"] == "finding":
                self.findings.append(r)
            elif r["what"] == "counted":
                self.counted[r["run"]] = self.counted.get(r["run"], 0) + r["number"]
        return self


def row(what, run="", part=0, blob=b""):
    return {"serial": 0, "what": what, "run": run, "part": part, "of": 0, "blob": blob}


def rows_of(batches):
    return [row for batch in batches for row in batch.to_pylist()]


def wrong(driven, runs):
    assert driven.told == []
    lines = []
    for run in runs:
        own = [f for f in driven.findings if f["run"] == run[0]]
        verdict = {"deliveries": driven.counted.get(run[0], 0), "verdict": "no" if own else "yes"}
        lines += planted.differences(run, verdict, own)
    return lines


@pytest.mark.parametrize("parts", [None, 2, 9])
@pytest.mark.parametrize(
    ("how", "ways"),
    [
        ({"files": 3}, {"sequence"}),
        ({"by_process": True}, {"sequence", "merge", "pack"}),
        ({"shuffled": True, "files": 3}, {"merge", "pack"}),
    ],
    ids=["in order", "a file for each process", "shuffled"],
)
def test_tasks_find_what_the_oracle_finds(tmp_path, how, ways, parts):
    planted.write(tmp_path / "trace", RUNS, group=5, **how)
    driven = Driven(tmp_path / "trace", RUNS, parts).judge()
    assert set(driven.plan.ways.values()) <= ways
    assert wrong(driven, RUNS) == []


# What is wrong with the rows


def broken(change):
    """A run of two processes that is fine but for one change."""

    def event(process, index, kind, number, clock, **more):
        return {
            "run": "r", "process": process, "index": index, "kind": kind, "sender": "p0", "number": number,
            "to": None, "control": False, "time_ns": 0, "clock": clock, **more,
        }  # fmt: skip

    rows = []
    for i in range(4):
        rows.append(event("p0", i, "send", i + 1, 2 * i, to=["p1"]))
        rows.append(event("p1", i, "deliver", i + 1, 2 * i + 1))
    change(rows)
    return ("r", ["p0", "p1"], rows)


def set_field(row, **fields):
    return lambda rows: rows[row].update(fields)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (set_field(3, index=2), "run r, process p1: found index 2 after index "),
        (set_field(0, index=1), "run r, process p0: found index 1 "),
        (
            set_field(5, clock=3),
            "found clock 3, index 2, after clock 4 of p0, index 2, expected rows in the order",
        ),
        (set_field(5, process="p7"), "run r: found process p7, expected one of the run's processes"),
        (set_field(5, sender="p7"), "run r: found sender p7, expected one of the run's processes"),
        (set_field(4, to=["p7"]), "run r: found destination p7, expected one of the run's processes"),
        (set_field(5, kind="lost"), "run r: found kind lost, expected send or receive or deliver"),
        (
            set_field(4, sender="p1"),
            "process p0, index 2: found a send by another process of message 3 of p1",
        ),
        (
            set_field(1, number=4),
            "index 0: found a delivery, before its send, of message 4 of p0, expected sends before",
        ),
    ],
)
def test_rows_that_cannot_be_a_run_are_refused_in_one_line(tmp_path, change, told, parts):
    run = broken(change)
    planted.write(tmp_path / "trace", [run], group=2)
    driven = Driven(tmp_path / "trace", [run], parts).judge()
    _, first = min((row["part"], str(error_of(row["blob"]))) for row in driven.told if row["what"] == "error")
    assert told in first
    assert "\n" not in first


def test_a_number_that_is_used_again_later_is_refused_or_left_to_be_counted(tmp_path):
    run = broken(set_field(6, number=1))
    planted.write(tmp_path / "trace", [run], group=2)
    [error] = Driven(tmp_path / "trace", [run], 1).judge().told
    assert "run r, process p0, index 3: found a second send of message 1 of p0" in str(
        error_of(error["blob"])
    )
    assert Driven(tmp_path / "trace", [run], 3).judge().unsorted == {"r"}


def test_files_that_share_a_clock_out_of_order_are_merged(tmp_path):
    run = broken(lambda rows: None)
    rows = run[2]
    for row in rows:
        row["clock"] = {"p0": 2 * row["index"], "p1": 2 * row["index"] + 2}[row["process"]]
    rows.sort(key=lambda row: (row["clock"], row["process"], row["index"]))
    root = planted.write(tmp_path / "trace", [run])
    for path in (root / "events").iterdir():
        path.unlink()
    # At clock 4, p1's row is in the first file and p0's in the second.
    edge = [row["clock"] for row in rows].index(4)
    first, second = [*rows[:edge], rows[edge + 1]], [rows[edge], *rows[edge + 2 :]]
    planted.write_file(root / "events" / "00000-r.parquet", first, run="r")
    planted.write_file(root / "events" / "00001-r.parquet", second, run="r")
    driven = Driven(root, [run], 1).judge()
    assert [row["what"] for row in driven.told] == ["tied"]
    assert wrong(Driven(root, [run], 1, merged=["r"]).judge(), [run]) == []
