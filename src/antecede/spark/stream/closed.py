"""A hot monitor: all messages go to one receiver, and all cores deliver them.

A keyed operator gives one receiver to one task. Here each micro-batch computes the largest closed set of what has
arrived (`antecede.spark.stream.cut`), and delivers it sorted:

    stage     tasks    check the packets and write them to files, with what the driver has to know of them
    cut       driver   cut off what asks for more than there is, until nothing does
    place     driver   sort the sums by counting: the place of each message
    deliver   tasks    each file's messages, with their places, become Parquet; the rest is held in files

How far it came is a directory for each micro-batch (`stream.checkpoint`). Spark repeats a micro-batch that
it has not committed with the same rows; then the same directories are made again, or found. So `out` has each message
once, whenever the query was killed: `out/batch=0`, `out/batch=1`, ... appear whole.

The directories must be ones that all workers see. For protocols whose stamps are whole vectors: `monitor`, `broadcast`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from antecede.errors import BadParameter
from antecede.protocols.receiver import BEYOND
from antecede.spark.errors import mark_errors
from antecede.spark.storage import absolute, escaped, local, readable
from antecede.spark.stream import checkpoint as standing
from antecede.spark.stream import cut, stamps
from antecede.spark.stream.checkpoint import State
from antecede.spark.stream.closed_patience import lane_of, serve
from antecede.spark.stream.closed_tasks import (
    DELIVERING,
    STAGED,
    Group,
    columns,
    delivering,
    opened,
    saved,
    staging,
    sums_of,
)
from antecede.spark.stream.compiled import ROWS
from antecede.spark.stream.operator import chosen
from antecede.spark.stream.packets import DELIVERED, PACKETS
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.status import Status

__all__ = ["Closing", "deliver_closed", "deliver_closed_files"]


def deliver_closed(
    df: DataFrame,
    protocol: str,
    processes: Sequence[str],
    *,
    receiver: str,
    out: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    parameters: Mapping[str, Any] | None = None,
    patience: float | None = None,
    tasks: int = 2,
    note: Callable[[Status], None] = lambda status: None,
) -> DataStreamWriter:
    """Write the messages of one receiver in causal order to `out`: start what this gives, with a trigger of yours.

    As `deliver_stream`, for one receiver; `tasks` is how many files a micro-batch becomes. Whether `patience` has ended
    is looked at when something comes.
    """
    settings = Settings.of(protocol, processes, parameters, patience)
    closing = Closing.of(settings, receiver, out, checkpoint, tasks, note, plain=False)
    return closing.over(chosen(df, None, None), checkpoint)


def deliver_closed_files(
    reader: DataStreamReader,
    path: str | os.PathLike[str],
    protocol: str,
    processes: Sequence[str],
    *,
    receiver: str,
    out: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    parameters: Mapping[str, Any] | None = None,
    patience: float | None = None,
    tasks: int = 2,
    note: Callable[[Status], None] = lambda status: None,
) -> DataStreamWriter:
    """The same for the Parquet files of packets that appear in a directory, for a quarter less CPU time.

    `reader` is `spark.readStream`, with options if you like. Spark says which files there are, and tasks read them; but
    for storage that PyArrow does not know.
    """
    settings, place = Settings.of(protocol, processes, parameters, patience), absolute(path)
    plain = readable(place)
    closing = Closing.of(settings, receiver, out, checkpoint, tasks, note, plain=plain)
    files = reader.schema(from_arrow_schema(PACKETS)).parquet(escaped(place))
    if not plain:
        return closing.over(chosen(files, None, None), checkpoint)
    # No column is read: Spark has the number of rows from what a file says of itself.
    firsts = files.where("_metadata.row_index = 0").select("_metadata.file_path")
    return closing.over(firsts, checkpoint)


class Step(NamedTuple):
    """A micro-batch: when, how many came and were refused, the place of the next delivery, how many were delivered."""

    now: int
    came: int
    refused: int
    place: int
    delivered: int = 0
    late: int = 0
    gave_up: int = 0


class Closing:
    """What is done with each micro-batch."""

    def __init__(
        self,
        settings: Settings,
        me: int,
        out: Path,
        home: Path,
        tasks: int,
        note: Callable[[Status], None],
        plain: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings, self.me, self.out, self.home = settings, me, out, home
        self.tasks, self.note, self.plain, self.clock = max(1, tasks), note, plain, clock
        self.code = stamps.CODES[settings.protocol]
        self.n = len(settings.processes)

    @classmethod
    def of(
        cls,
        settings: Settings,
        receiver: str,
        out: str | os.PathLike[str],
        checkpoint: str | os.PathLike[str],
        tasks: int,
        note: Callable[[Status], None],
        *,
        plain: bool,
    ) -> Closing:
        """Checked: what cannot be done this way is a `BadParameter`."""
        about = "stream by closed sets"
        here, home = local(out), local(checkpoint)
        for name, asked, place in (("out", out, here), ("checkpoint", checkpoint, home)):
            if place is None:
                raise BadParameter(about, name, asked, "a directory that all workers see as a path")
        if settings.protocol not in cut.KINDS:
            raise BadParameter(about, "protocol", settings.protocol, f"one of {', '.join(cut.KINDS)}")
        me = settings.view.id(receiver)
        if not settings.machine(me).orders_at(me):
            raise BadParameter(about, "receiver", receiver, "the one that the protocol orders for")
        return cls(settings, me, Path(str(here)), Path(str(home)) / "closed", tasks, note, plain)

    def over(self, rows: DataFrame, checkpoint: str | os.PathLike[str]) -> DataStreamWriter:
        return rows.writeStream.foreachBatch(self).option("checkpointLocation", str(local(checkpoint)))

    def __call__(self, rows: DataFrame, batch: int) -> None:
        done, written = self.home / f"{batch:012d}", self.out / f"batch={batch}"
        if done.exists() and written.exists():
            return
        before = standing.before(self.home, batch, self.settings, self.me, self.out)
        work = self.home / f"work-{batch}"
        for place in (done, written, work):
            shutil.rmtree(place, ignore_errors=True)
        (work / "state").mkdir(parents=True)
        (work / "out").mkdir()
        state = self._close(rows, before, work)
        (work / "state" / "state").write_bytes(msgspec.msgpack.encode(state))
        self.out.mkdir(parents=True, exist_ok=True)
        os.rename(work / "state", done)
        os.rename(work / "out", written)
        standing.forget(self.home)
        self.note(state.status)

    def _close(self, rows: DataFrame, before: State, work: Path) -> State:
        reached = np.array(before.reached, np.int64)
        # Not Spark's time of the micro-batch: that is a constant of the plan, for which Java compiles it all again.
        now = round(self.clock() * 1000)
        # To a machine that gave something up, what has an old number may be new.
        passed = reached if before.lane is None else np.where(reached < BEYOND, 0, reached)
        paths, refused, came = self._stage(rows, passed, now, work)
        if len(refused):
            pq.write_table(refused, work / "out" / "refused.parquet")
        step = Step(now, came, len(refused), before.place)
        if before.lane is not None:
            return self._serve(step, before, paths, work)
        # What is held came first.
        until, delivered, groups = self._cut(reached, before.held + paths, before.place, work)
        step = step._replace(place=before.place + delivered, delivered=delivered)
        held = self._deliver(rows, groups, until, work)
        oldest = min((oldest for *_, oldest in held), default=None)
        names, many = [Path(path).name for path, *_ in held], sum(many for _, many, _ in held)
        status = self._status(step, until.tolist(), many, oldest)
        state = standing.state_of(self.settings, self.me, until.tolist(), step.place, names, status)
        patience = self.settings.patience_ms
        if patience is None or oldest is None or oldest + patience > now:
            return state
        here = [str(work / "state" / name) for name in names]
        return self._serve(step, msgspec.structs.replace(state, held=here), [], work)

    def _serve(self, step: Step, before: State, paths: list[str], work: Path) -> State:
        """By a machine: something is given up, or was and has not come."""
        none = ROWS.empty_table()
        held = pa.concat_tables([none, *map(opened, before.held)])
        # By row: the order of arrival.
        came = [opened(path).take(np.sort(sums_of(path, self.n).rows)) for path in paths]
        lane = lane_of(self.settings, self.me, before.lane, before.reached, step.place, [held])
        found = serve(self.settings, lane, held, pa.concat_tables([none, *came]), step.now)
        if len(found.rows):
            pq.write_table(found.rows, work / "out" / "served.parquet")
        names = ["served.arrow"] if len(found.held) else []
        for name in names:
            reached = np.array(found.reached, np.int64)
            sums, _ = cut.summed(self.code, reached, found.held["stamp"], *columns(found.held))
            saved(found.held, sums, str(work / "state" / name))
        late = pc.sum(pc.equal(found.rows["kind"], "late")).as_py() or 0
        step = step._replace(
            place=step.place + len(found.rows),
            delivered=step.delivered + len(found.rows) - late,
            late=late,
            gave_up=len(found.rows) - found.rows["gave_up"].null_count,
        )
        status = self._status(step, found.reached, len(found.held), pc.min(found.held["since"]).as_py())
        return standing.state_of(self.settings, self.me, found.reached, step.place, names, status, found.lane)

    def _status(self, step: Step, reached: list[int], held: int, oldest: int | None) -> Status:
        names = self.settings.processes
        return Status(
            now_ms=step.now,
            rows_in=step.came,
            delivered=step.delivered,
            late=step.late,
            refused=step.refused,
            gave_up=step.gave_up,
            held=held,
            oldest_ms=oldest,
            frontier={
                name: count
                for at, (name, count) in enumerate(zip(names, reached, strict=True))
                if at != self.me
            },
            receivers=1,
        )

    def _stage(
        self, rows: DataFrame, reached: cut.Counts, now: int, work: Path
    ) -> tuple[list[str], pa.Table, int]:
        """The files of what came, what is refused of it, and how many came."""
        stage = staging(self.settings, self.me, reached, now, str(work), self.plain)
        found = rows.mapInArrow(mark_errors(stage), STAGED).toArrow()
        refused = [pa.ipc.open_stream(data.as_buffer()).read_all() for data in found["refused"]]
        # In an order of their own: tasks end in any.
        paths = sorted(found["path"].to_pylist())
        return (
            paths,
            pa.concat_tables([DELIVERED.empty_table(), *refused]),
            pc.sum(found["came"]).as_py() or 0,
        )

    def _cut(
        self, reached: cut.Counts, paths: list[str], place: int, work: Path
    ) -> tuple[cut.Counts, int, list[Group]]:
        """How far the closed set goes, how many messages it has, and what each task is to deliver from."""
        if not paths:
            return reached, 0, []
        parts = [sums_of(path, self.n) for path in paths]
        until, candidates, places = cut.closed(
            self.code, reached, parts, lambda at: opened(paths[at])["stamp"]
        )
        delivered = cut.placed(reached, until, parts, candidates, places, place)
        groups: list[Group] = [[] for _ in range(self.tasks)]
        ends = np.cumsum([0, *(len(part.rows) for part in parts)])
        for at, (path, part) in enumerate(zip(paths, parts, strict=True)):
            name = str(work / f"places-{at}.npy")
            np.save(name, np.stack([part.rows, places[ends[at] : ends[at + 1]]]))
            groups[at % self.tasks].append((path, name))
        return until, delivered, [group for group in groups if group]

    def _deliver(
        self, rows: DataFrame, groups: list[Group], until: cut.Counts, work: Path
    ) -> list[tuple[str, int, int]]:
        """The files of what is held, with how many messages and since when."""
        many = len(groups)
        if not many:
            return []
        deliver = delivering(groups, self.settings, self.me, until, str(work))
        found = (
            rows.sparkSession.range(0, many, 1, many)
            .mapInArrow(mark_errors(deliver), DELIVERING)
            .toArrow()
            .to_pylist()
        )
        return sorted((row["path"], row["held"], row["oldest"]) for row in found if row["held"])
