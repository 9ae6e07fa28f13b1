"""A hot monitor: all messages go to one receiver, and all cores deliver them.

A keyed operator gives one receiver to one task. Here each micro-batch computes the largest closed set of what has
arrived (`antecede.spark.stream.cut`), and delivers it sorted:

    stage     tasks    check the packets and write them to files, beside each what the driver has to know of it
    cut       driver   cut off what asks for more than there is, until nothing does
    place     driver   sort the sums by counting: the place of each message
    deliver   tasks    each file's messages that have places become Parquet; the others are held in new files

So a micro-batch is two jobs of Spark, or one if it is small (`FEW`), and a row crosses from Java to Python once. Each
attempt of a task gives its files names of their own, and the driver uses the files that the successful attempts name:
attempts may run beside each other. Where PyArrow does not know the storage, the same bytes travel through the driver
instead of files, and Spark writes the messages.

First the state is written (`closed_state`), then the messages, to `out/batch=N`. Spark repeats a micro-batch that it
has not committed with the same rows; then the same messages are found again, at the time that the state tells, and are
written if they are not there. So `out` has each message once, whenever the query was killed.

While something is given up and has not come, a machine on the driver decides, one message after the other: another may
ask for what is in the gap, and what fills it is late. When no gap is left, closed sets go on.

For protocols whose stamps are whole vectors: `monitor`, `broadcast`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import structs
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter

from antecede.errors import BadParameter
from antecede.protocols.receiver import BEYOND
from antecede.spark.errors import mark_errors
from antecede.spark.run_tasks import run_tasks
from antecede.spark.storage import (
    absolute,
    clear_directory,
    join,
    local,
    make_directory,
    place,
    readable,
    whole,
)
from antecede.spark.stream import cut
from antecede.spark.stream.bucket import make_refusals, make_rows
from antecede.spark.stream.closed_state import (
    CHUNK,
    Chunk,
    State,
    States,
    hold_packets,
    receiver_of,
    save,
    take_packets,
    write_chunk,
)
from antecede.spark.stream.kernel import CODES
from antecede.spark.stream.packets import DELIVERED, GAVE_UP, ROWS, from_ipc, number_names, to_ipc
from antecede.spark.stream.receiver import CompiledReceivers, MachineReceiver, Output
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.stamps import select_packets
from antecede.spark.stream.status import Status

__all__ = ["Closing", "check_packets", "deliver_closed", "serve"]

STAGED: Final = pa.schema([*CHUNK, ("came", pa.int64()), ("refused", pa.binary())])
OCTETS: Final = 32 << 20
"""Bytes of packets in a chunk, about: a value of Spark or of Arrow has less than 2 GB."""
FEW: Final = 32 << 20
"""Bytes of packets that the driver delivers by itself: a job of Spark would cost more CPU time, and as much time."""


def deliver_closed(
    df: DataFrame,
    protocol: str,
    processes: Sequence[str],
    *,
    receiver: str,
    out: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    parameters: Mapping[str, Any] | None = None,
    patience: str | None = None,
) -> DataStreamWriter:
    """Write the messages of one receiver in causal order to `out`: start what this gives, with a trigger of yours.

    As `order` with stamps, for one receiver. Whether `patience` has ended is looked at when something comes.
    """
    settings = Settings.of(protocol, processes, parameters, patience)
    about = "stream by closed sets"
    if settings.protocol not in cut.KINDS:
        raise BadParameter.choice(about, "protocol", settings.protocol, cut.KINDS)
    me = settings.view.id(receiver)
    if not settings.machine(me).orders_at(me):
        raise BadParameter(about, f"receiver must be the one that the protocol orders for, not {receiver}")
    closing = Closing(settings, me, absolute(out), States(checkpoint, settings, me))
    rows = select_packets(df, None, None).select("receiver", "sender", "number", "stamp", "payload")
    return rows.writeStream.foreachBatch(closing).option("checkpointLocation", absolute(checkpoint))


class Portion(NamedTuple):
    """What becomes of a chunk: which of its rows are packets to look at, and their places, or `cut.HELD`."""

    chunk: Chunk
    rows: np.ndarray
    places: np.ndarray


class Delivered(NamedTuple):
    """What a task delivers and holds: files, or their bytes."""

    messages: str | bytes | None
    held: list[Chunk]


class Step(NamedTuple):
    """What a micro-batch comes to."""

    state: State
    held: list[Chunk]
    delivered: list[Delivered]
    rows: list[pa.Table]
    """Further rows to write: what is refused, and what a machine delivered."""


class Closing:
    """What is done with each micro-batch."""

    def __init__(
        self, settings: Settings, me: int, out: str, states: States, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings, self.me, self.out, self.states, self.clock = settings, me, out, states, clock
        self.code = CODES[settings.protocol]

        self.files = readable(out) and readable(states.home)
        """Whether tasks read and write files themselves."""
        self.work = join(out, "_work") if self.files else None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        spark, out = rows.sparkSession, join(self.out, f"batch={batch}")
        done = self.states.read(spark, batch)
        if done is not None and is_whole(out):
            return
        before, held = self.states.before(spark, batch)
        # A micro-batch that is repeated has the time that it had. It is not Spark's time of the micro-batch: that is a
        # constant of the plan, for which Java compiles it all again.
        now = round(self.clock() * 1000) if done is None else done.status.now_ms
        step = self._close(spark, structs.replace(before, batch=batch), held, rows, now)
        self.states.write(spark, step.state, step.held)
        self._write(spark, step, out)
        if self.files:
            self.states.forget(batch)

    def _place(self, name: str) -> str | None:
        """A directory of the checkpoint for files that attempts of tasks write."""
        return make_directory(join(self.states.home, name)) if self.files else None

    def _write(self, spark: SparkSession, step: Step, out: str) -> None:
        """Write what is delivered: move the files that tasks name to where they are read, or let Spark write."""
        messages = [one.messages for one in step.delivered if one.messages is not None]
        further = pa.concat_tables([DELIVERED.empty_table(), *step.rows])
        if self.work is None:
            tables = [from_ipc(data).cast(DELIVERED) for data in messages]
            rows = pa.concat_tables([further, *tables])
            save(spark.createDataFrame(rows, from_arrow_schema(DELIVERED)), out)
            return
        with whole(out, replace=True) as made:
            system, inside = place(make_directory(made))
            for at, path in enumerate(messages):
                system.move(place(str(path))[1], f"{inside}/part-{at:05d}.parquet")
            if len(further) or not messages:
                # Also if nothing comes out: whoever looks sees that the query has begun.
                pq.write_table(further, f"{inside}/driver.parquet", filesystem=system)
            with system.open_output_stream(f"{inside}/_SUCCESS"):
                pass
        clear_directory(self.work)

    def _close(
        self, spark: SparkSession, before: State, held: list[Chunk], rows: DataFrame, now: int
    ) -> Step:
        # To a machine that gave something up, what has an old number may be new.
        reached = np.array(before.reached, np.int64)
        passed = reached if before.machine is None else np.where(reached < BEYOND, 0, reached)
        stage = make_stager(self.settings, self.me, passed, now, self._place(f"staged-{before.batch}"))
        told = rows.mapInArrow(mark_errors(stage), from_arrow_schema(STAGED)).toArrow()
        refused = [from_ipc(data.as_buffer()) for data in told["refused"].drop_null()]
        status = Status(
            now_ms=now,
            rows_in=pc.sum(told["came"]).as_py() or 0,
            refused=sum(map(len, refused)),
            receivers=1,
        )
        # By name: the order of arrival, and the same if the micro-batch is repeated. Tasks end in any.
        staged = [Chunk(**row) for row in told.select(CHUNK.names).sort_by("chunk").to_pylist()]
        step = Step(structs.replace(before, status=status), held, [], refused)
        if before.machine is not None:
            return self._serve(step, staged)
        step = self._cut(spark, step, staged)
        oldest, patience = step.state.status.oldest_ms, self.settings.patience_ms
        if patience is None or oldest is None or oldest + patience > now:
            return step
        return self._serve(step, [])

    def _cut(self, spark: SparkSession, step: Step, staged: list[Chunk]) -> Step:
        """Deliver the largest closed set."""
        # What is held came first.
        state, n, chunks = step.state, len(self.settings.processes), [*step.held, *staged]
        if not chunks:
            return step
        parts = [chunk.read_sums(n) for chunk in chunks]
        reached = np.array(state.reached, np.int64)
        until, candidates, places = cut.closed(
            self.code, reached, parts, lambda at: chunks[at].read_packets()["stamp"]
        )
        delivered = cut.place_messages(reached, until, parts, candidates, places, 0)
        since = np.concatenate([part.since for part in parts])[places == cut.HELD]
        few = sum(chunk.octets or 0 for chunk in chunks) <= FEW
        # As many tasks as staged chunks: what is held is spread over them.
        shares: list[list[Portion]] = [[] for _ in range(1 if few else len(staged or chunks))]
        ends = np.cumsum([0, *(len(part.rows) for part in parts)])
        for at, (chunk, part) in enumerate(zip(chunks, parts, strict=True)):
            own = places[ends[at] : ends[at + 1]]
            portion = Portion(chunk, part.rows.astype(np.int32), own.astype(np.int32))
            shares[at % len(shares)].append(portion)
        held_place = self._place(f"held-{state.batch}") if len(since) else None
        if self.work is not None:
            make_directory(self.work)
        deliver = make_deliverer(self.settings, self.me, until, state.place, held_place, self.work)
        found = [deliver(share) for share in shares] if few else run_tasks(spark, shares, deliver)
        status = structs.replace(
            state.status,
            delivered=delivered,
            held=len(since),
            oldest_ms=int(since.min()) if len(since) else None,
            frontier=self._frontier(until.tolist()),
        )
        state = structs.replace(state, reached=until.tolist(), place=state.place + delivered, status=status)
        return step._replace(
            state=state, held=[chunk for one in found for chunk in one.held], delivered=found
        )

    def _serve(self, step: Step, staged: list[Chunk]) -> Step:
        """Let a machine decide: something is given up, or was and has not come."""
        state = step.state
        held = [chunk.read_packets() for chunk in step.held]
        came = [
            # By row: the order of arrival.
            chunk.read_packets().take(np.sort(chunk.read_sums(len(state.reached)).rows))
            for chunk in staged
        ]
        receiver = receiver_of(self.settings, state, held)
        none = ROWS.empty_table()
        served = serve(
            self.settings,
            receiver,
            pa.concat_tables([none, *held]),
            pa.concat_tables([none, *came]),
            state.status.now_ms,
        )
        late = pc.sum(pc.equal(served.rows["kind"], "late")).as_py() or 0
        reached = receiver.machine.reached()
        reached[self.me] = BEYOND
        status = structs.replace(
            state.status,
            delivered=state.status.delivered + len(served.rows) - late,
            late=late,
            gave_up=len(served.rows) - served.rows["gave_up"].null_count,
            held=len(served.held),
            oldest_ms=pc.min(served.held["since"]).as_py(),
            frontier=self._frontier(reached),
        )
        state = structs.replace(
            state,
            reached=reached,
            place=receiver.position,
            machine=receiver.dump() if receiver.machine.given_up() else None,
            status=status,
        )
        left = []
        if len(served.held):
            home = self._place(f"held-{state.batch}")
            left = [hold_packets(served.held, self.code, np.array(reached, np.int64), home)]
        return step._replace(
            state=state, held=left, rows=[*step.rows, *([served.rows] if len(served.rows) else [])]
        )

    def _frontier(self, reached: list[int]) -> dict[str, int]:
        named = zip(self.settings.processes, reached, strict=True)
        return {name: count for name, count in named if count < BEYOND}


def is_whole(path: str) -> bool:
    """Whether a table was written there to its end, as far as can be seen."""
    if local(path) is not None:
        return os.path.isdir(str(local(path)))
    if not readable(path):
        return False
    system, inside = place(join(path, "_SUCCESS"))
    return bool(system.get_file_info(inside).type != fs.FileType.NotFound)


# Stage


def make_stager(settings: Settings, me: int, reached: cut.Counts, now: int, home: str | None) -> Any:
    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for at, rows in enumerate(join_batches(batches)):
            packets, sums, refused = check_packets(rows, settings, me, now, reached)
            chunk = write_chunk(f"{context.partitionId():06d}-{at:06d}", packets, sums, home)
            told = {"came": len(rows), "refused": to_ipc(refused) if len(refused) else None}
            yield pa.RecordBatch.from_pylist([chunk._asdict() | told], STAGED)

    return stage


def join_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """What Spark hands over, in pieces."""
    kept: list[pa.RecordBatch] = []
    for batch in batches:
        kept.append(batch)
        if sum(part.nbytes for part in kept) >= OCTETS:
            yield pa.Table.from_batches(kept)
            kept = []
    if sum(part.num_rows for part in kept):
        yield pa.Table.from_batches(kept)


def check_packets(
    rows: pa.Table, settings: Settings, me: int, now: int, reached: cut.Counts
) -> tuple[pa.Table, cut.Sums, pa.Table]:
    """Rows as packets (`ROWS`), what is to be known of those that are for this receiver, and what is refused."""
    source = number_names(rows["sender"], settings.processes)
    here = number_names(rows["receiver"], settings.processes) == me
    since = np.full(len(rows), now)
    packets = pa.table(
        [
            np.zeros(len(rows), np.int64),
            source,
            pc.fill_null(rows["number"], 0),
            since,
            pc.fill_null(rows["stamp"], b""),
            pc.fill_null(rows["payload"], b""),
        ],
        schema=ROWS,
    )
    number = np.array(packets["number"].to_numpy())
    likely = np.where(here & (source != me), source, -1)
    sums, sound = cut.summed(CODES[settings.protocol], reached, packets["stamp"], likely, number, since)
    if sound.all():
        return packets, sums, DELIVERED.empty_table()
    compiled = CompiledReceivers(settings)
    compiled.open("", me)
    refused = []
    for row in np.flatnonzero(~sound).tolist():
        why = (
            compiled.ask_machine(packets, row, me) if here[row] else f"it is not for {settings.processes[me]}"
        )
        assert isinstance(why, str), "a packet that is one is known as one"
        refused.append((row, why))
    grouped = rows.append_column("group", pa.repeat("", len(rows)))
    return packets, sums, make_refusals(grouped, refused).drop_columns(["group"])


# Deliver and hold


def make_deliverer(
    settings: Settings, me: int, until: cut.Counts, first: int, held: str | None, work: str | None
) -> Callable[[list[Portion]], Delivered]:
    """What a task does with its portions; `first` is the place of the first message of the micro-batch."""
    code, names = CODES[settings.protocol], settings.processes

    def deliver(portions: list[Portion]) -> Delivered:
        messages, kept, chunks = [], [], []
        for chunk, rows, places in portions:
            packets = chunk.read_packets()
            order = np.argsort(places)[np.count_nonzero(places < 0) :]
            if len(order):
                messages.append(make_messages(packets.take(rows[order]), names, me, first + places[order]))
            waits = rows[places == cut.HELD]
            if len(waits):
                kept.append(packets.take(waits))
            if sum(table.nbytes for table in kept) >= OCTETS:
                chunks.append(hold_packets(pa.concat_tables(kept), code, until, held))
                kept = []
        if kept:
            chunks.append(hold_packets(pa.concat_tables(kept), code, until, held))
        return Delivered(write_messages(messages, work) if messages else None, chunks)

    return deliver


def make_messages(packets: pa.Table, names: Sequence[str], me: int, positions: cut.Counts) -> pa.Table:
    """Packets as `DELIVERED`, with dictionaries of names."""
    size, source = len(packets), packets["source"].combine_chunks().cast(pa.int32())
    columns = {
        "receiver": repeat_name(names[me], size),
        "position": pa.array(positions, pa.int64()),
        "sender": pa.DictionaryArray.from_arrays(source, pa.array(names, pa.string())),
        "number": packets["number"],
        "payload": packets["payload"],
        "kind": repeat_name("delivered", size),
        "gave_up": pa.nulls(size, GAVE_UP),
        "reason": pa.nulls(size, pa.string()),
    }
    return pa.table(columns)


def repeat_name(name: str, size: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), pa.array([name], pa.string()))


def write_messages(tables: list[pa.Table], work: str | None) -> str | bytes:
    """Write messages as a Parquet file of their own, each table in its order. Its name, or all bytes as a stream."""
    if work is None:
        return to_ipc(pa.concat_tables([table.cast(DELIVERED) for table in tables]))
    path = join(work, f"{uuid.uuid4().hex}.parquet")
    system, inside = place(path)
    # Numbers and payloads are different in each row, and need no dictionary. Without our types in the file, names are
    # read as strings.
    few, table = ["receiver", "sender", "kind"], pa.concat_tables(tables)
    pq.write_table(table, inside, filesystem=system, use_dictionary=few, store_schema=False)
    return path


# Where a machine decides


class Served(NamedTuple):
    rows: pa.Table
    """What is delivered: rows of `DELIVERED`."""
    held: pa.Table


def serve(settings: Settings, receiver: MachineReceiver, held: pa.Table, came: pa.Table, now: int) -> Served:
    """Take what came, rows of `ROWS` that a machine takes, and give up what was waited for too long."""
    outputs: list[Output] = []
    take_packets(settings, receiver, came, outputs)
    if settings.patience_ms is not None:
        receiver.expire(now, settings.patience_ms, outputs)
    rows = make_rows(settings.processes, outputs).drop_columns(["group"])
    table = pa.concat_tables([ROWS.empty_table(), held, came])
    # Each message once: packets may come twice.
    found: dict[tuple[int, int], int] = {}
    ids = zip(table["source"].to_pylist(), table["number"].to_pylist(), strict=True)
    for row, key in enumerate(ids):
        if receiver.machine.holds(key):
            found.setdefault(key, row)
    return Served(rows, table.take(pa.array(list(found.values()), pa.int64())))
