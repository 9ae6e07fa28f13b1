"""A hot monitor: all messages go to one receiver, and all cores deliver them.

A keyed operator gives one receiver to one task. Here each micro-batch computes the largest closed set of what has
arrived (`antecede.spark.stream.cut`), and delivers it sorted:

    stage     tasks    check the packets and write them to files; to the driver go sender, number and sum alone
    cut       tasks    cut off what asks for more than there is, until nothing does; on the driver if there is little
    place     driver   sort the sums: the place of each message
    deliver   tasks    each file's messages, with their places, become Parquet; the rest is held in files

What is held and how far it came are a directory for each micro-batch, written under another name and then renamed.
Spark repeats a micro-batch that it has not committed with the same rows; then the same directories are made again, or
found. So `out` has each message once, whenever the query was killed: `out/batch=0`, `out/batch=1`, ... appear whole.

The directories must be ones that all workers see. For protocols whose stamps are whole vectors: `monitor`, `broadcast`.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from antecede.errors import BadParameter, BadSnapshot
from antecede.protocols.receiver import Receiver
from antecede.spark.storage import local
from antecede.spark.stream import cut, stamps
from antecede.spark.stream.bucket import arranged, ipc, refusals
from antecede.spark.stream.fast import ROWS, Fast
from antecede.spark.stream.operator import chosen
from antecede.spark.stream.packets import DELIVERED, GAVE_UP, WAITING
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.status import Status

__all__ = ["closed_statuses", "deliver_closed", "last_held", "waiting_closed", "Closing"]

VERSION: Final = 1
FEW: Final = 500_000
"""Messages up to which the driver cuts by itself: a job costs more."""
KEPT: Final = 3
"""Micro-batches whose state is kept."""


class State(Struct, frozen=True):
    """What is known after a micro-batch."""

    version: int
    decided: dict[str, Any]
    receiver: str
    reached: list[int]
    """How many messages of each sender were delivered."""
    place: int
    """Of the next delivery."""
    held: list[str]
    """Files of what is held."""
    status: Status


class Staged(Struct, frozen=True):
    """A file of packets, and what the driver knows of them: sender, number, position and sum, in its order."""

    path: str
    source: Any
    position: Any
    total: Any


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
    places = {"out": local(out), "checkpoint": local(checkpoint)}
    for name, place in places.items():
        if place is None:
            raise BadParameter(
                "stream by closed sets", name, out, "a directory that all workers see as a path"
            )
    if protocol not in cut.KINDS:
        raise BadParameter("stream by closed sets", "protocol", protocol, f"one of {', '.join(cut.KINDS)}")
    me = settings.view.id(receiver)
    if not settings.machine(me).orders_at(me):
        raise BadParameter(
            "stream by closed sets", "receiver", receiver, "the one that the protocol orders for"
        )
    rows = chosen(df, None, None).withColumn("now", F.current_timestamp())
    closing = Closing(
        settings, me, Path(str(places["out"])), Path(str(places["checkpoint"])) / "closed", tasks, note
    )
    writer = rows.writeStream.foreachBatch(closing)
    return writer.option("checkpointLocation", str(places["checkpoint"]))


class Closing:
    """What is done with each micro-batch."""

    def __init__(
        self, settings: Settings, me: int, out: Path, home: Path, tasks: int, note: Callable[[Status], None]
    ) -> None:
        self.settings, self.me = settings, me
        self.out, self.home, self.tasks, self.note = out, home, tasks, note
        self.code = stamps.CODES[settings.protocol]
        self.n = len(settings.processes)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        done, written = self.home / f"{batch:012d}", self.out / f"batch={batch}"
        if done.exists() and written.exists():
            return
        before = self._before(batch)
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
        self._forget(batch)
        self.note(state.status)

    def _before(self, batch: int) -> State:
        """The state that the micro-batch before left."""
        earlier = [p for p in self.home.glob("[0-9]*") if int(p.name) < batch] if self.home.exists() else []
        if not earlier:
            if any(self.out.glob("batch=*")) and not (self.home / f"{batch:012d}").exists():
                raise BadParameter(
                    "stream by closed sets", "out", self.out, "no output of another checkpoint"
                )
            reached = [0] * self.n
            reached[self.me] = 1 << 62
            return State(VERSION, self.settings.decided(), self._name(), reached, 0, [], Status())
        state = msgspec.msgpack.decode((max(earlier) / "state").read_bytes(), type=State)
        for what, found, wanted in (
            ("version", state.version, VERSION),
            ("settings", state.decided, self.settings.decided()),
            ("receiver", state.receiver, self._name()),
        ):
            if found != wanted:
                raise BadSnapshot(f"{what} of the stream", found, wanted)
        return msgspec.structs.replace(state, held=[str(max(earlier) / name) for name in state.held])

    def _name(self) -> str:
        return self.settings.processes[self.me]

    def _close(self, rows: DataFrame, before: State, work: Path) -> State:
        reached = np.array(before.reached, np.int64)
        staged, refused, now, came = self._stage(rows, reached, work)
        staged += [self._resumed(path) for path in before.held]
        source, position, total = (
            np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in staged)])
            for name in ("source", "position", "total")
        )
        until = self._cut(rows, staged, cut.prefixes(reached, source, position), len(source))
        places = cut.ranked(reached, until, source, position, total, before.place)
        held = self._deliver(rows, staged, places, work)
        if len(refused):
            pq.write_table(refused, work / "out" / "refused.parquet")
        delivered = int((places >= 0).sum())
        status = Status(
            now_ms=now or before.status.now_ms,
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
        return State(
            VERSION, self.settings.decided(), self._name(), until.tolist(), before.place + delivered,
            [Path(path).name for path, *_ in held], status,
        )  # fmt: skip

    # Stage

    def _stage(
        self, rows: DataFrame, reached: cut.Counts, work: Path
    ) -> tuple[list[Staged], pa.Table, int, int]:
        function = staging(self.settings, self.me, reached, str(work))
        found = rows.mapInArrow(
            function, "path string, now long, came long, seen binary, refused binary"
        ).toArrow()
        staged, refused = [], []
        for row in found.to_pylist():
            seen = np.frombuffer(row["seen"], np.int64).reshape(3, -1)
            staged.append(Staged(row["path"], *seen))
            refused.append(pa.ipc.open_stream(row["refused"]).read_all())
        none = DELIVERED.empty_table()
        now = pc.max(found["now"]).as_py() or 0
        # In an order of their own: tasks end in any.
        staged.sort(key=lambda part: part.path)
        return staged, pa.concat_tables([none, *refused]), now, pc.sum(found["came"]).as_py() or 0

    def _resumed(self, path: str) -> Staged:
        table = opened(path)
        source, number = columns(table)
        return Staged(path, source, *cut.sums(self.code, self.n, table["stamp"], source, number))

    # Cut

    def _cut(self, rows: DataFrame, staged: list[Staged], until: cut.Counts, many: int) -> cut.Counts:
        parts = [(part.path, part.position) for part in staged]
        spark = rows.sparkSession
        while True:
            cutting = cutter(self.code, self.me, until)
            if many <= FEW:
                answers = [cutting(path) for path, _ in parts]
            else:
                paths = [path for path, _ in parts]
                jobs = spark.range(0, len(paths), 1, len(paths)).mapInArrow(
                    each(paths, cutting), "cut binary"
                )
                answers = [np.frombuffer(row, np.int64) for row in jobs.toArrow()["cut"].to_pylist()]
            less: cut.Counts = np.minimum.reduce([until, *answers])
            if (less == until).all():
                return less
            until = less

    # Deliver

    def _deliver(
        self, rows: DataFrame, staged: list[Staged], places: cut.Counts, work: Path
    ) -> list[tuple[str, int, int]]:
        """The files of what is held, with how many messages and since when."""
        ends = np.cumsum([0, *(len(part.source) for part in staged)])
        groups: list[list[tuple[str, str]]] = [[] for _ in range(max(1, self.tasks))]
        for at, part in enumerate(staged):
            name = str(work / f"places-{at}.npy")
            np.save(name, places[ends[at] : ends[at + 1]])
            groups[at % len(groups)].append((part.path, name))
        function = delivering(
            [group for group in groups if group], self.settings.processes, self._name(), str(work)
        )
        many = sum(bool(group) for group in groups)
        if not many:
            return []
        schema = "path string, held long, oldest long"
        found = rows.sparkSession.range(0, many, 1, many).mapInArrow(function, schema).toArrow().to_pylist()
        return sorted((row["path"], row["held"], row["oldest"]) for row in found if row["held"])

    def _forget(self, batch: int) -> None:
        """Remove what no micro-batch will ask for again."""
        for place in self.home.glob("work-*"):
            shutil.rmtree(place, ignore_errors=True)
        for place in sorted(self.home.glob("[0-9]*"))[:-KEPT]:
            shutil.rmtree(place, ignore_errors=True)


def waiting_closed(checkpoint: str | os.PathLike[str]) -> pa.Table:
    """What waits in the query with this checkpoint: rows of `antecede.spark.stream.watch.WAITING`."""
    found = []
    for state, home in last_states(checkpoint):
        settings = Settings(
            state.decided["protocol"], tuple(state.decided["processes"]), state.decided["parameters"]
        )
        me = settings.view.id(state.receiver)
        fast = Fast(settings)
        fast.open("", me)
        machine = settings.machine(me, state.reached)
        for name in state.held:
            table = opened(str(home / name))
            for row, since in enumerate(table["since"].to_pylist()):
                packet = fast.packet(table, row, me)
                machine.receive(packet)
                assert packet.message is not None
                found.append((packet.message.id, since))
        rows = [
            told(settings, machine, state.receiver, key, since) for key, since in found if machine.holds(key)
        ]
        return pa.Table.from_pylist(rows, WAITING)
    return WAITING.empty_table()


def told(
    settings: Settings, machine: Receiver, receiver: str, key: tuple[int, int], since: int
) -> dict[str, Any]:
    names = settings.processes
    awaits = [
        {"sender": names[a.sender], "first": a.first, "last": a.last, "counted": a.counted}
        for a in machine.awaits(key)
    ]
    told = {"group": "", "receiver": receiver, "sender": names[key[0]], "number": key[1]}
    return {**told, "since_ms": since, "awaits": awaits}


def last_states(checkpoint: str | os.PathLike[str]) -> Iterator[tuple[State, Path]]:
    """The last state, if there is one, and where it is."""
    for place in sorted((Path(str(local(checkpoint))) / "closed").glob("[0-9]*"))[-1:]:
        yield msgspec.msgpack.decode((place / "state").read_bytes(), type=State), place


def last_held(checkpoint: str | os.PathLike[str]) -> int:
    """How many messages wait in the query with this checkpoint."""
    return sum(state.status.held for state, _ in last_states(checkpoint))


def closed_statuses(checkpoint: str | os.PathLike[str], batch: int) -> list[Status]:
    """The status after a micro-batch, if its state is still kept."""
    here = local(checkpoint)
    place = Path(here or "", "closed", f"{batch:012d}", "state")
    if here is None or not place.exists():
        return []
    return [msgspec.msgpack.decode(place.read_bytes(), type=State).status]


# What tasks do


def opened(path: str) -> pa.Table:
    with pa.memory_map(path) as file:
        return pa.ipc.open_file(file).read_all()


def saved(table: pa.Table, path: str) -> None:
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def columns(table: pa.Table) -> tuple[cut.Counts, cut.Counts]:
    return np.array(table["source"].to_numpy()), np.array(table["number"].to_numpy())


def staging(settings: Settings, me: int, reached: cut.Counts, work: str) -> Any:
    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(list(batches)) if (batches := list(batches)) else None
        if rows is None or not len(rows):
            return
        now = int(pc.max(rows["now"]).cast(pa.int64()).as_py()) // 1000
        sound, refused = checked(rows, settings, me, now, reached)
        context = TaskContext.get()
        assert context is not None
        # In the order of partitions; a task that is tried again has a file of its own.
        path = f"{work}/staged-{context.partitionId():06d}-{uuid.uuid4().hex}.arrow"
        saved(sound, path)
        source, number = columns(sound)
        position, total = cut.sums(
            stamps.CODES[settings.protocol], len(reached), sound["stamp"], source, number
        )
        seen = np.vstack([source, position, total]).tobytes()
        yield pa.RecordBatch.from_pydict(
            {"path": [path], "now": [now], "came": [len(rows)], "seen": [seen], "refused": [ipc(refused)]}
        )

    return stage


def checked(
    rows: pa.Table, settings: Settings, me: int, now: int, reached: cut.Counts
) -> tuple[pa.Table, pa.Table]:
    """Those that are packets for this receiver and were not delivered, and what is refused."""
    rows = arranged(rows)
    fast = Fast(settings)
    fast.open("", me)
    ids = {name: process for process, name in enumerate(settings.processes)}
    encoded = rows["sender"].combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks().chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
    known = np.array([ids.get(name, -1) for name in encoded.dictionary.to_pylist()] + [-1], np.int64)
    source = known[encoded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)]
    lane = np.zeros(len(rows), np.int64)
    number = pc.fill_null(rows["number"], 0)
    packets = pa.table(
        [lane, source, number, np.full(len(rows), now), rows["stamp"], rows["payload"]], schema=ROWS
    )
    sound, refused = fast.sound(packets)
    name = settings.processes[me]
    other = np.flatnonzero(
        pc.not_equal(rows["receiver"], name).fill_null(True).to_numpy(zero_copy_only=False)
    )
    if len(other):
        told = dict(refused) | dict.fromkeys(other.tolist(), f"it is not for {name}")
        refused = sorted(told.items())
        sound = np.setdiff1d(sound, other)
    return packets.take(sound), refusals(rows, refused).drop_columns(["group"])


def cutter(code: int, me: int, until: cut.Counts) -> Callable[[str], cut.Counts]:
    def cutting(path: str) -> cut.Counts:
        table = opened(path)
        source, number = columns(table)
        position = number if code == stamps.CODES["broadcast"] else None
        if position is None:
            position, _ = cut.sums(code, len(until), table["stamp"], source, number)
        return cut.asking(code, me, table["stamp"], source, number, position, until)

    return cutting


def each(paths: list[str], cutting: Callable[[str], cut.Counts]) -> Any:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            answers = [cutting(paths[at]).tobytes() for at in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"cut": pa.array(answers, pa.binary())})

    return work


def delivering(
    groups: list[list[tuple[str, str]]], processes: Sequence[str], receiver: str, work: str
) -> Any:
    names = list(processes)

    def deliver(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for at in [at for batch in batches for at in batch.column(0).to_pylist()]:
            parts = [(opened(path), np.load(places)) for path, places in groups[at]]
            table = pa.concat_tables([part for part, _ in parts]).combine_chunks()
            places = np.concatenate([places for _, places in parts])
            out = np.flatnonzero(places >= 0)
            out = out[np.argsort(places[out])]
            if len(out):
                messages = delivered(table.take(out), places[out], names, receiver)
                pq.write_table(messages, f"{work}/out/part-{at:05d}.parquet")
            held = table.take(np.flatnonzero(places == cut.HELD))
            path = f"{work}/state/held-{at:05d}.arrow"
            if len(held):
                saved(held, path)
            oldest = pc.min(held["since"]).as_py()
            yield pa.RecordBatch.from_pydict({"path": [path], "held": [len(held)], "oldest": [oldest or 0]})

    return deliver


def delivered(table: pa.Table, places: cut.Counts, names: list[str], receiver: str) -> pa.Table:
    size = len(table)
    made = {
        "receiver": pa.repeat(receiver, size),
        "position": pa.array(places, pa.int64()),
        "sender": pa.array(names, pa.string()).take(table["source"].combine_chunks()),
        "number": table["number"],
        "payload": table["payload"],
        "kind": pa.repeat("delivered", size),
        "gave_up": pa.nulls(size, GAVE_UP),
        "reason": pa.nulls(size, pa.string()),
    }
    return pa.table(made, DELIVERED)
