"""A hot monitor: all messages go to one receiver, and all cores deliver them.

A keyed operator gives one receiver to one task. Here each micro-batch computes the largest closed set of what has
arrived (`antecede.spark.stream.cut`), and delivers it sorted:

    stage     tasks    check the packets. A staged row is thousands of packets as one Arrow stream, and beside it what
                       the driver has to know of them
    cut       driver   cut off what asks for more than there is, until nothing does
    place     driver   sort the sums by counting: the place of each message
    hold      tasks    what is not delivered is packed again, and becomes the state
    deliver   tasks    staged packets with places become Parquet

It runs on any storage that Spark writes to, whatever attempts of a task run beside each other: Spark's own writers and
committers write the state, and messages too where PyArrow does not know the storage. First the state is written
(`closed_state`), then the messages, to `out/batch=N`. Spark repeats a micro-batch that it has not committed with the
same rows; then the same messages are found again, at the time that the state tells, and are written if they are not
there. So `out` has each message once, whenever the query was killed.

While something is given up and has not come, a machine on the driver decides, one message after the other: another may
ask for what is in the gap, and what fills it is late. When no gap is left, closed sets go on.

For protocols whose stamps are whole vectors: `monitor`, `broadcast`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import structs
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter

from antecede.errors import BadParameter, BadSnapshot
from antecede.protocols.receiver import BEYOND
from antecede.spark.errors import mark_errors
from antecede.spark.storage import absolute, join, local, place, readable, whole
from antecede.spark.stream import cut
from antecede.spark.stream.bucket import make_refusals, make_rows
from antecede.spark.stream.closed_state import (
    CHUNK,
    HELD,
    State,
    States,
    pack_chunk,
    receiver_of,
    rows_of,
    save,
    take_packets,
)
from antecede.spark.stream.kernel import CODES
from antecede.spark.stream.order import select_packet_columns
from antecede.spark.stream.packets import DELIVERED, GAVE_UP, ROWS, from_ipc, number_names, to_ipc
from antecede.spark.stream.receiver import CompiledReceivers, MachineReceiver, Output
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.status import Status

__all__ = ["Closing", "check_packets", "deliver_closed", "serve"]

STAGED: Final = pa.schema(
    [
        ("chunk", pa.string()),
        ("packets", pa.binary()),
        ("sums", pa.binary()),
        ("came", pa.int64()),
        ("refused", pa.binary()),
    ]
)
OCTETS: Final = 32 << 20
"""Bytes of packets in a staged row, about: a value of Spark or of Arrow has less than 2 GB."""
TASKS: Final = 4
"""Tasks that pack what is held: about as many rows of state there are."""


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
) -> DataStreamWriter:
    """Write the messages of one receiver in causal order to `out`: start what this gives, with a trigger of yours.

    As `deliver_stream`, for one receiver. Whether `patience` has ended is looked at when something comes.
    """
    settings = Settings.of(protocol, processes, parameters, patience)
    about = "stream by closed sets"
    if settings.protocol not in cut.KINDS:
        raise BadParameter(about, "protocol", settings.protocol, f"one of {', '.join(cut.KINDS)}")
    me = settings.view.id(receiver)
    if not settings.machine(me).orders_at(me):
        raise BadParameter(about, "receiver", receiver, "the one that the protocol orders for")
    closing = Closing(settings, me, absolute(out), States(checkpoint, settings, me))
    rows = select_packet_columns(df, None, None).select("receiver", "sender", "number", "stamp", "payload")
    return rows.writeStream.foreachBatch(closing).option("checkpointLocation", absolute(checkpoint))


class Places(NamedTuple):
    """What becomes of a chunk: which of its rows are packets to look at, and their places, or `cut.HELD`."""

    digest: int
    """Of its sums: a chunk that Spark had to make again must be the same."""
    rows: cut.Counts
    places: cut.Counts


class Step(NamedTuple):
    """What a micro-batch comes to."""

    state: State
    held: DataFrame | None
    """Rows of `HELD`, if there are any."""
    chunks: DataFrame | None
    places: Mapping[str, Places]
    """What is delivered of the chunks."""
    rows: list[pa.Table]
    """Further rows to write: what is refused, and what a machine delivered."""


class Closing:
    """What is done with each micro-batch."""

    def __init__(
        self, settings: Settings, me: int, out: str, states: States, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings, self.me, self.out, self.states, self.clock = settings, me, out, states, clock
        self.code = CODES[settings.protocol]

    def __call__(self, rows: DataFrame, batch: int) -> None:
        spark, out = rows.sparkSession, join(self.out, f"batch={batch}")
        done = self.states.read(spark, batch)
        if done is not None and is_whole(out):
            return
        before, held = self.states.before(spark, batch)
        # A micro-batch that is repeated has the time that it had. It is not Spark's time of the micro-batch: that is a
        # constant of the plan, for which Java compiles it all again.
        now = round(self.clock() * 1000) if done is None else done.status.now_ms
        # To a machine that gave something up, what has an old number may be new.
        reached = np.array(before.reached, np.int64)
        passed = reached if before.machine is None else np.where(reached < BEYOND, 0, reached)
        staged = rows.mapInArrow(
            mark_errors(make_stager(self.settings, self.me, passed, now)), from_arrow_schema(STAGED)
        ).persist()
        try:
            step = self._close(spark, structs.replace(before, batch=batch), held, staged, now)
            self.states.write(spark, step.state, step.held)
            self._write(spark, step, out)
        finally:
            staged.unpersist()

    def _write(self, spark: SparkSession, step: Step, out: str) -> None:
        """Write what is delivered.

        Where PyArrow knows the storage, tasks write Parquet themselves: rows need not go back to Java. Each attempt of
        a task has names of its own in a place that nobody reads, and the driver moves the files of those that count.
        Elsewhere Spark writes rows.
        """
        names, receiver = self.settings.processes, self.settings.processes[self.me]
        further = pa.concat_tables([DELIVERED.empty_table(), *step.rows])
        if not readable(out):
            rows = spark.createDataFrame(further, from_arrow_schema(DELIVERED))
            if step.chunks is not None:
                deliver = mark_errors(make_deliverer(step.places, names, receiver))
                rows = rows.union(step.chunks.mapInArrow(deliver, rows.schema))
            save(rows, out)
            return
        work = join(self.out, "_work", uuid.uuid4().hex)
        system, aside = place(work)
        system.create_dir(aside)
        paths: list[str] = []
        if step.chunks is not None:
            task = mark_errors(make_writer(step.places, names, receiver, work))
            paths = sorted(step.chunks.mapInArrow(task, "path string").toArrow()["path"].to_pylist())
        with whole(out, replace=True) as made:
            system, inside = place(made)
            system.create_dir(inside)
            for at, path in enumerate(paths):
                system.move(place(path)[1], f"{inside}/part-{at:05d}.parquet")
            if len(further) or not paths:
                # Also if nothing comes out: whoever looks sees that the query has begun.
                pq.write_table(further, f"{inside}/driver.parquet", filesystem=system)
            with system.open_output_stream(f"{inside}/_SUCCESS"):
                pass
        system.delete_dir(aside)

    def _close(
        self, spark: SparkSession, before: State, held: DataFrame | None, staged: DataFrame, now: int
    ) -> Step:
        told = staged.select("chunk", "sums", "came", "refused").toArrow()
        refused = [from_ipc(data.as_buffer()) for data in told["refused"].drop_null()]
        status = Status(
            now_ms=now,
            rows_in=pc.sum(told["came"]).as_py() or 0,
            refused=sum(map(len, refused)),
            receivers=1,
        )
        step = Step(structs.replace(before, status=status), held, None, {}, refused)
        if before.machine is not None:
            return self._serve(spark, step, staged)
        chunks, sums = staged.select(*CHUNK), [told]
        if held is not None:
            chunks = held.select(*CHUNK).union(chunks)
            sums = [held.select("chunk", "sums").toArrow(), told]
        step = self._cut(step, chunks, sums)
        oldest, patience = step.state.status.oldest_ms, self.settings.patience_ms
        if patience is None or oldest is None or oldest + patience > now:
            return step
        return self._serve(spark, step, None)

    def _cut(self, step: Step, chunks: DataFrame, told: list[pa.Table]) -> Step:
        """Deliver the largest closed set."""
        state, n = step.state, len(self.settings.processes)
        # What is held came first; the rest in an order of its own, because tasks end in any.
        columns = [(table["chunk"].to_pylist(), table["sums"].to_pylist()) for table in told]
        named = [one for both in columns for one in sorted(zip(*both, strict=True))]
        if not named:
            return step
        parts = [cut.Sums.unpacked(np.frombuffer(sums, np.int64), n) for _, sums in named]
        reached, stamps = np.array(state.reached, np.int64), Stamps(chunks)
        until, candidates, places = cut.closed(
            self.code, reached, parts, lambda at: stamps.by_chunk[named[at][0]]
        )
        delivered = cut.place_messages(reached, until, parts, candidates, places, state.place)
        ends = np.cumsum([0, *(len(part.rows) for part in parts)])
        since = np.concatenate([part.since for part in parts])[places == cut.HELD]
        found = {
            chunk: Places(crc32(sums), part.rows, places[ends[at] : ends[at + 1]])
            for at, ((chunk, sums), part) in enumerate(zip(named, parts, strict=True))
        }
        status = structs.replace(
            state.status,
            delivered=delivered,
            held=len(since),
            oldest_ms=int(since.min()) if len(since) else None,
            frontier=self._frontier(until.tolist()),
        )
        state = structs.replace(
            state,
            reached=until.tolist(),
            place=state.place + delivered,
            status=status,
        )
        holding = [chunk for chunk, one in found.items() if (one.places == cut.HELD).any()]
        hold = make_holder(found, self.code, until, state.batch)
        kept = chunks.where(F.col("chunk").isin(holding)).coalesce(TASKS)
        kept = kept.mapInArrow(mark_errors(hold), from_arrow_schema(HELD))
        left = kept if holding else None
        return step._replace(state=state, held=left, chunks=chunks if delivered else None, places=found)

    def _serve(self, spark: SparkSession, step: Step, staged: DataFrame | None) -> Step:
        """Let a machine decide: something is given up, or was and has not come."""
        state = step.state
        held = [] if step.held is None else [table for table, _ in collect_packets(step.held)]
        came = ROWS.empty_table()
        for table, sums in () if staged is None else collect_packets(staged):
            # By chunk and row: the order of arrival, and the same if the micro-batch is repeated.
            rows = np.sort(cut.Sums.unpacked(sums, len(state.reached)).rows)
            came = pa.concat_tables([came, table.take(rows)])
        receiver = receiver_of(self.settings, state, held)
        table = pa.concat_tables([ROWS.empty_table(), *held])
        served = serve(self.settings, receiver, table, came, state.status.now_ms)
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
        left = rows_of(spark, state, [served.held]) if len(served.held) else None
        return step._replace(
            state=state, held=left, rows=[*step.rows, *([served.rows] if len(served.rows) else [])]
        )

    def _frontier(self, reached: list[int]) -> dict[str, int]:
        named = zip(self.settings.processes, reached, strict=True)
        return {name: count for name, count in named if count < BEYOND}


class Stamps:
    """The stamps of all chunks, brought to the driver when the first is asked for: most closed sets need none."""

    def __init__(self, chunks: DataFrame) -> None:
        self._chunks = chunks

    @cached_property
    def by_chunk(self) -> dict[str, Any]:
        found = self._chunks.select("chunk", "packets").toArrow()
        named = zip(found["chunk"].to_pylist(), found["packets"], strict=True)
        return {chunk: from_ipc(packets.as_buffer())["stamp"] for chunk, packets in named}


def is_whole(path: str) -> bool:
    """Whether a table was written there to its end, as far as can be seen."""
    if local(path) is not None:
        return os.path.isdir(str(local(path)))
    if not readable(path):
        return False
    system, inside = place(join(path, "_SUCCESS"))
    return bool(system.get_file_info(inside).type != fs.FileType.NotFound)


# Stage


def make_stager(settings: Settings, me: int, reached: cut.Counts, now: int) -> Any:
    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for at, rows in enumerate(join_batches(batches)):
            packets, sums, refused = check_packets(rows, settings, me, now, reached)
            row = {
                "chunk": f"{context.partitionId():06d}-{at:06d}",
                "packets": to_ipc(packets),
                "sums": sums.packed().tobytes(),
                "came": len(rows),
                "refused": to_ipc(refused) if len(refused) else None,
            }
            yield pa.RecordBatch.from_pylist([row], STAGED)

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


def matching(row: dict[str, Any], found: Mapping[str, Places]) -> Places:
    """The places of a chunk. Spark makes a chunk again that it has lost: the rows must have come in the same order."""
    chunk, one = row["chunk"].as_py(), found[row["chunk"].as_py()]
    if crc32(row["sums"].as_buffer()) != one.digest:
        raise BadSnapshot(f"chunk {chunk} of the micro-batch", "made again in another order", "the same rows")
    return one


def chunk_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for values in zip(*batch.columns, strict=True):
            yield dict(zip(batch.schema.names, values, strict=True))


def deliver_chunks(
    batches: Iterable[pa.RecordBatch], found: Mapping[str, Places], names: Sequence[str], receiver: str
) -> Iterator[pa.Table]:
    """The messages of each chunk that have places, in their order: `DELIVERED`, with dictionaries of names."""
    for row in chunk_rows(batches):
        one = matching(row, found)
        order = np.argsort(one.places)[np.count_nonzero(one.places < 0) :]
        if not len(order):
            continue
        table, size = from_ipc(row["packets"].as_buffer()).take(one.rows[order]), len(order)
        source = table["source"].combine_chunks().cast(pa.int32())
        columns = {
            "receiver": repeat_name(receiver, size),
            "position": pa.array(one.places[order], pa.int64()),
            "sender": pa.DictionaryArray.from_arrays(source, pa.array(names, pa.string())),
            "number": table["number"],
            "payload": table["payload"],
            "kind": repeat_name("delivered", size),
            "gave_up": pa.nulls(size, GAVE_UP),
            "reason": pa.nulls(size, pa.string()),
        }
        yield pa.table(columns)


def repeat_name(name: str, size: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), pa.array([name], pa.string()))


def make_deliverer(found: Mapping[str, Places], names: Sequence[str], receiver: str) -> Any:
    def deliver(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in deliver_chunks(batches, found, names, receiver):
            yield from table.cast(DELIVERED).combine_chunks().to_batches()

    return deliver


def make_writer(found: Mapping[str, Places], names: Sequence[str], receiver: str, work: str) -> Any:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in deliver_chunks(batches, found, names, receiver):
            path = join(work, f"{uuid.uuid4().hex}.parquet")
            system, inside = place(path)
            # Numbers and payloads are different in each row, and need no dictionary. Without our types in the file,
            # names are read as strings.
            few = ["receiver", "sender", "kind"]
            pq.write_table(table, inside, filesystem=system, use_dictionary=few, store_schema=False)
            yield pa.RecordBatch.from_pydict({"path": [path]})

    return write


def make_holder(found: Mapping[str, Places], code: int, until: cut.Counts, batch: int) -> Any:
    def hold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        kept: list[pa.Table] = []
        at = 0

        def pack() -> pa.RecordBatch:
            packets = pa.concat_tables(kept).combine_chunks()
            # Before those that are staged, and named apart in each micro-batch.
            chunk = f"-held-{batch}-{context.partitionId():06d}-{at:06d}"
            row = {"state": None, **pack_chunk(chunk, packets, code, until)}
            return pa.RecordBatch.from_pylist([row], HELD)

        for row in chunk_rows(batches):
            one = matching(row, found)
            packets = from_ipc(row["packets"].as_buffer())
            kept.append(packets.take(one.rows[one.places == cut.HELD]))
            if sum(table.nbytes for table in kept) >= OCTETS:
                yield pack()
                kept, at = [], at + 1
        if kept:
            yield pack()

    return hold


# Where a machine decides


class Served(NamedTuple):
    rows: pa.Table
    """What is delivered: rows of `DELIVERED`."""
    held: pa.Table


def collect_packets(chunks: DataFrame) -> Iterator[tuple[pa.Table, cut.Counts]]:
    """The packets of chunks and their sums, on the driver."""
    found = chunks.select(*CHUNK).toArrow().sort_by("chunk")
    for packets, sums in zip(found["packets"], found["sums"], strict=True):
        yield from_ipc(packets.as_buffer()), np.frombuffer(sums.as_py(), np.int64)


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
