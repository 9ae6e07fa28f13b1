"""What tasks do for a closed set: check packets and put them into files, then deliver from these files.

A staged file is an Arrow file of packets (`ROWS`), and beside it `.npy`: what is to be known of them to find the closed
set and its order (`antecede.spark.stream.cut.Sums`). What is held is kept as such files too.

Rows come from Spark or, if they are those of Parquet files as they are, tasks read these files themselves: then a row
costs no conversion by Java and no crossing. A file is read by the task that has its first row.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from antecede.errors import BadTrace
from antecede.spark.storage import opened as opened_file
from antecede.spark.stream import cut, stamps
from antecede.spark.stream.bucket import GROUPED, ipc, refusals
from antecede.spark.stream.compiled import ROWS, Fast
from antecede.spark.stream.packets import DELIVERED, GAVE_UP, PACKETS
from antecede.spark.stream.settings import Settings

__all__ = [
    "DELIVERING",
    "STAGED",
    "Group",
    "checked",
    "columns",
    "delivering",
    "opened",
    "saved",
    "staging",
    "sums_of",
]

STAGED: Final = "path string, came long, refused binary"
DELIVERING: Final = "path string, held long, oldest long"
OCTETS: Final = 256 << 20
"""Bytes of packets in a staged file, about: a column of Arrow has less than 2 GB."""
COLUMNS: Final = pa.schema(
    [
        pa.field("receiver", pa.dictionary(pa.int32(), pa.string())),
        pa.field("sender", pa.dictionary(pa.int32(), pa.string())),
        *[PACKETS.field(name).with_nullable(True) for name in ("number", "stamp", "payload")],
    ]
)
"""Packets as they are read: of names there are few."""


@cache
def settle() -> None:
    """Once in each worker: Spark collects garbage after each task, and would look through all modules again."""
    gc.collect()
    gc.freeze()


# Stage


def staging(settings: Settings, me: int, reached: cut.Counts, now: int, work: str, plain: bool) -> Any:
    read = from_files if plain else from_rows

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        context = TaskContext.get()
        assert context is not None
        for at, rows in enumerate(read(batches)):
            sound, sums, refused = checked(rows, settings, me, now, reached)
            # In the order of partitions; a task that is tried again has a file of its own.
            path = f"{work}/staged-{context.partitionId():06d}-{at:06d}-{uuid.uuid4().hex}.arrow"
            saved(sound, sums, path)
            yield pa.RecordBatch.from_pydict({"path": [path], "came": [len(rows)], "refused": [ipc(refused)]})

    return stage


def from_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """What Spark hands over, in pieces."""
    kept: list[pa.RecordBatch] = []
    for batch in batches:
        kept.append(batch)
        if sum(part.nbytes for part in kept) >= OCTETS:
            yield piece(kept)
            kept = []
    if sum(part.num_rows for part in kept):
        yield piece(kept)


def piece(batches: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    names = [table[name].combine_chunks().dictionary_encode() for name in ("receiver", "sender")]
    return pa.table([*names, *(table[name] for name in COLUMNS.names[2:])], schema=COLUMNS)


def from_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of the files that Spark names, in pieces."""
    for batch in batches:
        for path in batch.column(0).to_pylist():
            yield from pieces_of(unquote(path))


def pieces_of(path: str) -> Iterator[pa.Table]:
    """A Parquet file's packets."""
    with opened_file(path) as file, pq.ParquetFile(file, read_dictionary=COLUMNS.names[:2]) as parquet:
        missing = [name for name in COLUMNS.names if name not in parquet.schema_arrow.names]
        if missing:
            raise BadTrace(
                path, f"columns {', '.join(parquet.schema_arrow.names)}", f"also {', '.join(missing)}"
            )
        groups: list[int] = []
        octets = 0
        for at in range(parquet.num_row_groups):
            groups.append(at)
            octets += parquet.metadata.row_group(at).total_byte_size
            if octets >= OCTETS or at == parquet.num_row_groups - 1:
                # Tasks are what runs at the same time here.
                table = parquet.read_row_groups(groups, COLUMNS.names, use_threads=False)
                yield typed(table, path)
                groups, octets = [], 0


def typed(table: pa.Table, path: str) -> pa.Table:
    try:
        return table.cast(COLUMNS)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        wanted = ", ".join(f"{field.name} {field.type}" for field in COLUMNS)
        raise BadTrace(path, str(error), wanted) from None


def checked(
    rows: pa.Table, settings: Settings, me: int, now: int, reached: cut.Counts
) -> tuple[pa.Table, cut.Sums, pa.Table]:
    """Those that are packets for this receiver, what is to be known of them, and what is refused."""
    source = processes(rows["sender"], settings.processes)
    here = processes(rows["receiver"], settings.processes) == me
    packets = pa.table(
        [
            np.zeros(len(rows), np.int64),
            source,
            pc.fill_null(rows["number"], 0),
            np.full(len(rows), now),
            pc.fill_null(rows["stamp"], b"").combine_chunks(),
            pc.fill_null(rows["payload"], b"").combine_chunks(),
        ],
        schema=ROWS,
    )
    number = np.array(packets["number"].to_numpy())
    likely = np.where(here & (source != me), source, -1)
    sums, sound = cut.summed(stamps.CODES[settings.protocol], reached, packets["stamp"], likely, number)
    if sound.all():
        return packets, sums, DELIVERED.empty_table()
    return packets, sums, refusing(rows, packets, settings, me, here, sound)


def refusing(
    rows: pa.Table, packets: pa.Table, settings: Settings, me: int, here: Any, sound: Any
) -> pa.Table:
    """The rows that are no packets, with the reason that a machine gives."""
    fast = Fast(settings)
    fast.open("", me)
    told = []
    for row in np.flatnonzero(~sound).tolist():
        why = fast.asked(packets, row, me) if here[row] else f"it is not for {settings.processes[me]}"
        assert isinstance(why, str), "a packet that is one is known as one"
        told.append((row, why))
    names = ["receiver", "sender", "number", "payload"]
    strings = rows.select(names).cast(pa.schema([GROUPED.field(name) for name in names]))
    plain = strings.append_column("group", pa.repeat("", len(rows)))
    return refusals(plain, told).drop_columns(["group"])


def processes(column: pa.ChunkedArray, names: Sequence[str]) -> cut.Counts:
    """The processes that these names are; -1 for none."""
    ids = {name: process for process, name in enumerate(names)}
    found = [np.zeros(0, np.int64)]
    for chunk in column.chunks:
        known = np.array([ids.get(name, -1) for name in chunk.dictionary.to_pylist()] + [-1], np.int64)
        found.append(known[chunk.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)])
    return np.concatenate(found)


# Files


def opened(path: str) -> pa.Table:
    with pa.memory_map(path) as file:
        return pa.ipc.open_file(file).read_all()


def saved(table: pa.Table, sums: cut.Sums, path: str) -> None:
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    np.save(f"{path}.npy", sums.packed())


def sums_of(path: str, n: int) -> cut.Sums:
    return cut.Sums.unpacked(np.load(f"{path}.npy"), n)


def columns(table: pa.Table) -> tuple[cut.Counts, cut.Counts]:
    return np.array(table["source"].to_numpy()), np.array(table["number"].to_numpy())


# Deliver


Group = list[tuple[str, str]]
"""Staged files that one task delivers from, each with the file of rows and their places."""


def delivering(groups: list[Group], settings: Settings, me: int, until: cut.Counts, work: str) -> Any:
    def deliver(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for at in [at for batch in batches for at in batch.column(0).to_pylist()]:
            parts = [(opened(path), *np.load(places)) for path, places in groups[at]]
            write(parts, settings, me, f"{work}/out/part-{at:05d}.parquet")
            held = pa.concat_tables([part.take(rows[places == cut.HELD]) for part, rows, places in parts])
            held = held.combine_chunks()
            path = f"{work}/state/held-{at:05d}.arrow"
            if len(held):
                sums, _ = cut.summed(stamps.CODES[settings.protocol], until, held["stamp"], *columns(held))
                saved(held, sums, path)
            oldest = pc.min(held["since"]).as_py()
            yield pa.RecordBatch.from_pydict({"path": [path], "held": [len(held)], "oldest": [oldest or 0]})

    return deliver


def write(
    parts: list[tuple[pa.Table, cut.Counts, cut.Counts]], settings: Settings, me: int, path: str
) -> None:
    """The messages that have places, in their order, as Parquet."""
    wanted = ["source", "number", "payload"]
    table = pa.concat_tables([part.select(wanted) for part, _, _ in parts]).combine_chunks()
    begins = np.cumsum([0, *(len(part) for part, _, _ in parts)])
    rows = np.concatenate([begin + rows for begin, (_, rows, _) in zip(begins, parts, strict=False)])
    places = np.concatenate([places for _, _, places in parts])
    order = np.argsort(places)[np.count_nonzero(places < 0) :]
    size = len(order)
    if not size:
        return
    table = table.take(rows[order])
    made = {
        "receiver": alike(settings.processes[me], size),
        "position": pa.array(places[order], pa.int64()),
        "sender": pa.DictionaryArray.from_arrays(
            table["source"].combine_chunks().cast(pa.int32()), pa.array(settings.processes, pa.string())
        ),
        "number": table["number"],
        "payload": table["payload"],
        "kind": alike("delivered", size),
        "gave_up": pa.nulls(size, GAVE_UP),
        "reason": pa.nulls(size, pa.string()),
    }
    # A dictionary of what is different in each row would be made in vain. Without our types, names are read as strings.
    few = ["receiver", "sender", "kind"]
    pq.write_table(pa.table(made), path, use_dictionary=few, store_schema=False)


def alike(value: str, size: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), pa.array([value], pa.string()))
