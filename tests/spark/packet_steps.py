"""Packets through a bucket without Spark, with the state going through bytes."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from antecede.spark.stream.bucket import hide_name
from antecede.spark.stream.packets import Settings
from antecede.spark.stream.stamps import OWN, StampBucket
from antecede.spark.stream.status import GAVE_UP, Status

KEPT = ("group", "receiver", "sender", "number", "payload")
"""Columns of a packet that tests compare."""


class ByMachines(Settings, frozen=True):
    """Machines alone decide."""

    def counts_at(self, process: int) -> bool:
        return False


class Step(NamedTuple):
    state: bytes
    rows: pa.Table
    status: Status


def add_own(rows: pa.Table) -> pa.Table:
    """Packets with the columns that a bucket reads, and their own under hidden names."""
    own = [name for name in OWN if name.removeprefix("__") in rows.column_names]
    columns = [rows[name.removeprefix("__")] for name in own]
    return pa.table([*rows.columns, *columns], [*map(hide_name, rows.column_names), *own])


def open_bucket(state: bytes | None, settings: Settings, kernel: bool = True) -> StampBucket:
    return (settings if kernel else ByMachines(**structs.asdict(settings))).open(state)


def advance(bucket: StampBucket, rows: pa.Table, now: int) -> tuple[pa.Table, Status]:
    """Packets in, messages out."""
    rows = add_own(rows)
    if hide_name("group") not in rows.column_names:
        rows = rows.append_column(hide_name("group"), pa.repeat("", len(rows)))
    out, status = bucket.advance(rows, now)
    assert out is not None
    return as_messages(out).select([*KEPT, "position", "reason", "kind", "gave_up"]), status


def as_messages(out: pa.Table) -> pa.Table:
    """Rows that came out, under the names that a user gave them, without copies of what came before.

    `gave_up` is null where nothing was.
    """
    out = out.rename_columns([name.removeprefix("user ") for name in out.column_names])
    out = out.filter(pc.not_equal(out["kind"], "repeated"))
    gave_up = [one or None for one in out["waits_for"].to_pylist()]
    kinds = ["delivered" if kind == "released" else kind for kind in out["kind"].to_pylist()]
    out = out.drop_columns(["waits_for", "kind"]).append_column("kind", pa.array(kinds, pa.string()))
    return out.append_column("gave_up", pa.array(gave_up, GAVE_UP))


def step(state: bytes | None, rows: pa.Table, now: int, settings: Settings, *, kernel: bool = True) -> Step:
    """One micro-batch of a bucket. `kernel=False` drives machines alone."""
    bucket = open_bucket(state, settings, kernel)
    out, status = advance(bucket, rows, now)
    return Step(bucket.dump(), out, status)
