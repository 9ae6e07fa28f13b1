"""Closed sets where patience has ended: a machine serves until all that was given up has come.

What is given up leaves gaps in the counts. While there are any, a message may come that fills one, and is late; another
may ask for what is in one, and is marked. The machine knows all that (`Receiver.skip`), so it decides, as it does in a
bucket: one message after the other. When no gap is left there is nothing more to it than counts, and closed sets go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from antecede.protocols.receiver import BEYOND
from antecede.spark.stream.bucket import outputs_of
from antecede.spark.stream.compiled import ROWS, Fast
from antecede.spark.stream.receiver import Lane, Output
from antecede.spark.stream.settings import Settings

__all__ = ["Served", "lane_of", "serve"]


class Served(NamedTuple):
    rows: pa.Table
    """What is delivered: rows of `DELIVERED`."""
    reached: list[int]
    lane: list[Any] | None
    """The machine, as `Lane.dump` has it, if something that was given up has not come."""
    held: pa.Table


def lane_of(
    settings: Settings,
    me: int,
    kept: list[Any] | None,
    reached: Sequence[int],
    place: int,
    held: Iterable[pa.Table],
) -> Lane:
    """The receiver that was kept or, if none was, one where so much was delivered and this is held."""
    if kept is not None:
        return Lane.load(settings, kept)
    lane = Lane("", settings.machine(me, reached))
    lane.position = place
    for table in held:
        take(settings, lane, table, [])
    return lane


def take(settings: Settings, lane: Lane, table: pa.Table, outputs: list[Output]) -> None:
    fast = Fast(settings)
    for row, since in enumerate(table["since"].to_pylist()):
        lane.take(fast.packet(table, row, lane.machine.me), since, outputs)


def serve(settings: Settings, lane: Lane, held: pa.Table, came: pa.Table, now: int) -> Served:
    """Take what came, rows of `ROWS` that a machine takes, and give up what was waited for too long."""
    outputs: list[Output] = []
    take(settings, lane, came, outputs)
    if settings.patience_ms is not None:
        lane.expire(now, settings.patience_ms, outputs)
    reached = lane.machine.reached()
    reached[lane.machine.me] = BEYOND
    rows = outputs_of(settings.processes, outputs).drop_columns(["group"])
    kept = lane.dump() if lane.machine.given_up() else None
    table = pa.concat_tables([ROWS.empty_table(), held, came])
    return Served(rows, reached, kept, table.take(pa.array(held_rows(table, lane), pa.int64())))


def held_rows(table: pa.Table, lane: Lane) -> list[int]:
    """Each message once: packets may come twice."""
    found: dict[tuple[int, int], int] = {}
    ids = zip(table["source"].to_pylist(), table["number"].to_pylist(), strict=True)
    for row, key in enumerate(ids):
        if lane.machine.holds(key):
            found.setdefault(key, row)
    return list(found.values())
