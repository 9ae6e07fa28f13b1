"""Facts as figures, and the columns of the tables of them. docs/measuring.md says what they mean.

Facts of one key, quantity and bucket add up to a *cell* (`SUMS`): Spark adds up many facts (`add_up`), Arrow a few in
this process (`add_up_here`). One function, `tell_figures`, makes of its cells the figures of a run, of a process, of a
channel and of all runs of a protocol, in Spark's tasks and here. Spark's `percentile` needs every value, or
interpolates between the middles of buckets; `approx_percentile` bounds the error of the rank, not of the value. So
quantiles come from running sums over buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from antecede.spark.errors import mark_errors

__all__ = ["COUNTS", "QUANTITIES", "TABLES", "add_up", "add_up_here", "figure_rows", "spread", "tell_figures"]

QUANTITIES: Final = ("stamp_entries", "stamp_bytes", "delay_ns", "wait_ns")
"""What distributions are of."""
COUNTS: Final = ("events", "sends", "copies", "deliveries", "control_packets")
PERCENTS: Final = (50, 99)
TOGETHER: Final = 4096
"""Rows of a batch."""
SUMS: Final = dict.fromkeys(("count", "total", "total_received"), "sum") | {
    "middle": "min",
    "least": "min",
    "greatest": "max",
}
"""What facts of one bucket come to. `total_received` is of runs that tell when messages arrived."""


def spread(quantity: str) -> list[str]:
    """The columns of a distribution."""
    return [f"{quantity}_{name}" for name in ("mean", "p50", "p99", "max")]


def types(*quantities: str) -> str:
    return ", ".join(
        f"{name} {'double' if name.endswith('_mean') else 'long'}" for q in quantities for name in spread(q)
    )


TABLES: Final = {
    "runs": "run string, protocol string, processes int, "
    + ", ".join(f"{name} long" for name in COUNTS)
    + f", control_per_message double, {types(*QUANTITIES)}, wait_share double, concurrency double, "
    "longest_chain long, duration_ns long",
    "processes": "run string, process string, sends long, deliveries long, control_packets long, "
    + types("delay_ns", "wait_ns"),
    "channels": f"run string, sender string, receiver string, messages long, deliveries long, {types('delay_ns')}",
    "histograms": "run string, quantity string, low long, high long, count long",
}
"""Name -> columns and their types."""

SHARES: Final = ("control_per_message", "wait_share")
FIGURES: Final = (*COUNTS, "delivered", "duration_ns", *SHARES, *(n for q in QUANTITIES for n in spread(q)))


def figure_schema(keys: Sequence[str]) -> pa.Schema:
    kinds = {name: pa.float64() for name in FIGURES if name in SHARES or name.endswith("_mean")}
    return pa.schema(
        [*((key, pa.string()) for key in keys), *((name, kinds.get(name, pa.int64())) for name in FIGURES)]
    )


def add_up(facts: DataFrame, *keys: str) -> DataFrame:
    """The figures of each key. `facts` has a column `total_received` beside those of `FACTS`."""
    sums = (getattr(F, how)(name).alias(name) for name, how in SUMS.items())
    cells = facts.groupBy(*keys, "quantity", "low").agg(*sums)
    schema = figure_schema(keys)

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = figure_rows((row for batch in batches for row in batch.to_pylist()), keys)
        while some := list(islice(rows, TOGETHER)):
            yield pa.RecordBatch.from_pylist(some, schema)

    sorted_cells = cells.repartition(*keys).sortWithinPartitions(*keys)
    return sorted_cells.mapInArrow(mark_errors(work), from_arrow_schema(schema))


def add_up_here(facts: pa.Table, *keys: str) -> pa.Table:
    """The same of facts that are here."""
    cells = facts.group_by([*keys, "quantity", "low"], use_threads=False).aggregate([*SUMS.items()])
    cells = cells.rename_columns({f"{name}_{how}": name for name, how in SUMS.items()})
    rows = sorted(cells.to_pylist(), key=lambda row: [row[key] for key in keys])
    return pa.Table.from_pylist([*figure_rows(rows, keys)], figure_schema(keys))


def figure_rows(cells: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The keys and figures of cells that come key by key."""
    for key, own in groupby(cells, lambda row: tuple(row[name] for name in keys)):
        yield dict(zip(keys, key, strict=True)) | tell_figures([*own])


def tell_figures(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts, the distribution of each quantity, `wait_share` and `duration_ns`."""
    of: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        of.setdefault(cell["quantity"], []).append(cell)

    def add(quantity: str, name: str = "count") -> int:
        return sum(int(cell[name] or 0) for cell in of.get(quantity, ()))

    events = [cell for cell in cells if cell["quantity"] not in QUANTITIES]
    whole, sends = add("delay_ns", "total_received"), add("send")
    told: dict[str, Any] = {
        "events": sum(cell["count"] for cell in events),
        "sends": sends,
        "copies": add("delay_ns"),
        "deliveries": add("deliver"),
        "delivered": sum(cell["count"] for cell in of.get("delay_ns", ()) if cell["low"] is not None),
        "control_packets": add("control send"),
        "control_per_message": add("control send") / sends if sends else None,
        "wait_share": add("wait_ns", "total") / whole if whole and "wait_ns" in of else None,
        "duration_ns": max(c["greatest"] for c in events) - min(c["least"] for c in events) if events else 0,
    }
    for quantity in QUANTITIES:
        told |= zip(spread(quantity), tell_spread(of.get(quantity, ())), strict=True)
    return told


def tell_spread(cells: Iterable[Mapping[str, Any]]) -> list[float | None]:
    """Mean, quantiles and greatest of values; None where there are no values."""
    own = sorted((cell for cell in cells if cell["low"] is not None), key=lambda cell: cell["low"])
    if not own:
        return [None] * 4
    size, greatest = sum(cell["count"] for cell in own), max(cell["greatest"] for cell in own)
    found: list[float | None] = [sum(int(cell["total"]) for cell in own) / size]
    for percent in PERCENTS:
        until = 0
        for cell in own:
            until += cell["count"]
            # The first bucket up to which there are so many percent of the values.
            if until * 100 >= size * percent:
                found.append(min(cell["middle"], greatest))
                break
    return [*found, greatest]
