"""What a trace is: the one definition of its columns, shared by every part that writes or reads one.

A trace is a directory: `runs.parquet`, one row a run, and `events/*.parquet`, any number of files, each complete once
it is visible. `EVENTS` and `RUNS` name the columns and their types; docs/trace.md tells what they mean.

In files the strings of events are dictionary-encoded, and our reader keeps them so (`READ`): it gives integers and a
short list of names. Another tool sees plain strings.

A file whose rows are in the order (clock, process, index), names compared as UTF-8, says so: its Parquet metadata has
`antecede.order` = `clock,process,index`. A file that holds one run names it under `antecede.run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from antecede.errors import BadParameter, BadTrace

__all__ = [
    "EVENTS", "READ", "ENCODED", "RUNS", "KINDS", "SEND", "RECEIVE", "DELIVER", "ABSENT", "ORDER_KEY", "ORDER",
    "RUN_KEY", "RunInfo", "refuse_columns", "refuse_nulls",
]  # fmt: skip

EVENTS: Final = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("process", pa.string(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("sender", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("to", pa.list_(pa.field("element", pa.string(), nullable=False))),
        pa.field("control", pa.bool_(), nullable=False),
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("clock", pa.int64()),
        pa.field("stamp_entries", pa.int32()),
        pa.field("stamp_bytes", pa.int32()),
        pa.field("label", pa.string()),
    ]
)

RUNS: Final = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("protocol", pa.string(), nullable=False),
        pa.field("parameters", pa.string(), nullable=False),
        pa.field("processes", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("seed", pa.int64()),
        pa.field("workload", pa.string()),
        pa.field("network", pa.string()),
        pa.field("topology", pa.string()),
        pa.field("started_ns", pa.int64(), nullable=False),
        pa.field("version", pa.string(), nullable=False),
    ]
)


ENCODED: Final = pa.dictionary(pa.int32(), pa.string())

READ: Final = pa.schema(
    [field.with_type(ENCODED) if pa.types.is_string(field.type) else field for field in EVENTS]
)
"""`EVENTS` with dictionary-encoded strings: the Arrow schema of what the reader gives."""

KINDS: Final = ("send", "receive", "deliver")
SEND, RECEIVE, DELIVER = range(3)

ABSENT: Final = -1
"""What a caller of the writer gives for a clock or a stamp size that is not there: null in the file."""

ORDER_KEY: Final = b"antecede.order"
ORDER: Final = b"clock,process,index"
RUN_KEY: Final = b"antecede.run"


@cache
def version() -> str:
    """The version of the Antecede that is installed."""
    try:
        return installed_version("antecede")
    except PackageNotFoundError:  # a source tree on the path
        return "unknown"


def refuse_columns(path: object, found: pa.Schema, expected: pa.Schema) -> None:
    """Further columns are someone's own: they are not read."""
    for field in expected:
        if field.name not in found.names:
            raise BadTrace(
                str(path),
                f"column {field.name} ({name_type(field.type)}) is missing; the columns are {', '.join(found.names)}",
            )
        kind = found.field(field.name).type
        if name_type(kind) != name_type(field.type):
            raise BadTrace(
                str(path),
                f"column {field.name} has type {name_type(kind)}, and must have type {name_type(field.type)}",
            )


def refuse_nulls(rows: pa.RecordBatch | pa.Table, place: str, schema: pa.Schema = EVENTS) -> None:
    """Nulls where the contract has none."""
    for name in (name for name in schema.names if name in rows.schema.names):
        if not schema.field(name).nullable and (nulls := rows.column(name).null_count):
            raise BadTrace(place, f"column {name} has {nulls} nulls, and may have none")


def name_type(kind: pa.DataType) -> str:
    """A type as docs/trace.md writes it: how strings and lists are stored is not part of it."""
    if pa.types.is_dictionary(kind):
        return name_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{name_type(kind.value_type)}>"
    return {"large_string": "string", "large_binary": "binary"}.get(str(kind), str(kind))


class RunInfo(Struct, frozen=True, kw_only=True):
    """One run: the row that describes it in `runs.parquet`.

    >>> RunInfo(run="r1", protocol="matrix", processes=("p1", "p2"), parameters={"optimised": True}).row()["parameters"]
    '{"optimised":true}'
    """

    run: str
    protocol: str
    processes: tuple[str, ...]
    """Names, in the order of the dense integers that the writer is given."""
    parameters: Mapping[str, Any] = {}
    """The protocol's, and whatever else it takes to repeat the run: JSON in the file, keys sorted."""
    seed: int | None = None
    workload: str | None = None
    network: str | None = None
    topology: str | None = None
    started_ns: int = 0
    """Since 1970; 0 for a simulated run, whose trace must not depend on when it was made."""
    version: str = msgspec.field(default_factory=version)

    def __post_init__(self) -> None:
        if not self.run:
            raise BadParameter("trace", "a run needs a name, and this one is empty")
        if not self.processes or len(set(self.processes)) != len(self.processes):
            raise BadParameter(
                f"run {self.run}",
                f"processes must be one or more different names, not {list(self.processes)}",
            )
        if self.seed is not None and not -(1 << 63) <= self.seed < 1 << 63:
            raise BadParameter(f"run {self.run}", f"seed must be an integer of 64 bits, not {self.seed}")

    def row(self) -> dict[str, Any]:
        """The row of `runs.parquet`."""
        row = {name: getattr(self, name) for name in RUNS.names}
        row["parameters"] = msgspec.json.encode(self.parameters, order="sorted").decode()
        return row

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> RunInfo:
        """The inverse of `row`."""
        parameters = msgspec.json.decode(row["parameters"], type=dict[str, Any])
        return cls(**{**row, "processes": tuple(row["processes"]), "parameters": parameters})
