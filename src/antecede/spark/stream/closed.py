"""A hot monitor: all messages go to one receiver, and all cores deliver them.

A keyed operator gives one receiver to one task. Here each micro-batch computes the largest closed set of what has
arrived (`antecede.spark.stream.cut`), and delivers it sorted:

    stage     tasks    check the packets and write them to files, with what the driver has to know of them
    cut       driver   cut off what asks for more than there is, until nothing does
    place     driver   sort the sums by counting: the place of each message
    deliver   tasks    each file's messages, with their places, become Parquet; the rest is held in files

How far it came is a directory for each micro-batch (`antecede.spark.stream.standing`). Spark repeats a micro-batch that
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
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from antecede.errors import BadParameter
from antecede.spark.storage import absolute, escaped, local, readable
from antecede.spark.stream import cut, stamps, standing
from antecede.spark.stream.operator import chosen
from antecede.spark.stream.packets import DELIVERED, PACKETS
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.staged import DELIVERING, STAGED, Group, delivering, opened, staging, sums_of
from antecede.spark.stream.standing import State, closed_statuses, last_held, waiting_closed
from antecede.spark.stream.status import Status

__all__ = [
    "Closing", "closed_statuses", "deliver_closed", "deliver_closed_files", "last_held", "waiting_closed",
]  # fmt: skip


def deliver_closed(
    df: DataFrame,
    protocol: str,
    processes: Sequence[str],
    *,
    receiver: str,
    out: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    parameters: Mapping[str, Any] | None = None,
    tasks: int = 2,
    note: Callable[[Status], None] = lambda status: None,
) -> DataStreamWriter:
    """Write the messages of one receiver in causal order to `out`: start what this gives, with a trigger of yours.

    As `deliver_stream`, for one receiver and without patience; `tasks` is how many files a micro-batch becomes.
    """
    settings = Settings.of(protocol, processes, parameters)
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
    tasks: int = 2,
    note: Callable[[Status], None] = lambda status: None,
) -> DataStreamWriter:
    """The same for the Parquet files of packets that appear in a directory: some three times as fast.

    `reader` is `spark.readStream`, with options if you like. Spark says which files there are, and tasks read them; but
    for storage that PyArrow does not know.
    """
    settings, place = Settings.of(protocol, processes, parameters), absolute(path)
    plain = readable(place)
    closing = Closing.of(settings, receiver, out, checkpoint, tasks, note, plain=plain)
    files = reader.schema(from_arrow_schema(PACKETS)).parquet(escaped(place))
    if not plain:
        return closing.over(chosen(files, None, None), checkpoint)
    # No column is read: Spark has the number of rows from what a file says of itself.
    firsts = files.where("_metadata.row_index = 0").select("_metadata.file_path")
    return closing.over(firsts, checkpoint)


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
        paths, refused, came = self._stage(rows, reached, now, work)
        # What is held came first.
        paths = before.held + paths
        until, delivered, groups = self._cut(reached, paths, before.place, work)
        held = self._deliver(rows, groups, until, work)
        if len(refused):
            pq.write_table(refused, work / "out" / "refused.parquet")
        status = Status(
            now_ms=now,
            rows_in=came,
            delivered=delivered,
            refused=len(refused),
            held=sum(many for _, many, _ in held),
            oldest_ms=min((oldest for *_, oldest in held), default=None),
            frontier={
                name: int(count)
                for at, (name, count) in enumerate(zip(self.settings.processes, until, strict=True))
                if at != self.me
            },
            receivers=1,
        )
        names = [Path(path).name for path, *_ in held]
        return standing.state_of(
            self.settings, self.me, until.tolist(), before.place + delivered, names, status
        )

    def _stage(
        self, rows: DataFrame, reached: cut.Counts, now: int, work: Path
    ) -> tuple[list[str], pa.Table, int]:
        """The files of what came, what is refused of it, and how many came."""
        stage = staging(self.settings, self.me, reached, now, str(work), self.plain)
        found = rows.mapInArrow(stage, STAGED).toArrow()
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
            rows.sparkSession.range(0, many, 1, many).mapInArrow(deliver, DELIVERING).toArrow().to_pylist()
        )
        return sorted((row["path"], row["held"], row["oldest"]) for row in found if row["held"])
