"""A bucket of rows that wait, whoever decides about them: rows go in, rows come out, and the state between is bytes.

No Spark, no clock. What comes out depends on the rows and their order alone and, where patience ends, on `now`. Spark
keeps the bytes (`operator`); tests cut streams wherever they like.

A bucket has one table of the rows that wait, with `__since`, the time at which each came. Whoever decides (`causes`,
`vectors`, `stamps`) is handed that table with the rows that came below, and says what becomes of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from antecede.errors import BadSnapshot
from antecede.spark.stream.counts import MOST, Lack, Step
from antecede.spark.stream.kernel import Numbers
from antecede.spark.stream.packets import GAVE_UP, WAITING
from antecede.spark.stream.status import Cause, Status, sort_causes

__all__ = [
    "ADDED", "DELIVERED", "LACKING", "LATE", "REFUSED", "RELEASED", "REPEATED", "Bucket", "Missing", "Output",
    "encode_names", "fit_rows", "from_ipc", "hide_name", "number_names", "to_ipc",
]  # fmt: skip

ADDED: Final = ("position", "waits_for", "kind", "reason")
"""The columns that rows come out with."""
KINDS: Final = ("delivered", "late", "released", "repeated", "refused")
DELIVERED, LATE, RELEASED, REPEATED, REFUSED = range(5)
LACKING: Final = tuple(GAVE_UP.value_type.names)


class Missing(NamedTuple):
    """Messages that have not come, and the places of the rows that wait for them, directly or through others."""

    receiver: str
    """Or the partition."""
    group: str
    sender: Any
    """As `name_sender` takes it; an identifier, or a cycle of them, is its own name, and has no numbers."""
    first: int | None
    last: int | None
    counted: str
    places: Numbers


class Output:
    """Rows that come out, in order, and what became of them."""

    def __init__(self) -> None:
        self._rows: list[Numbers] = [np.zeros(0, np.int64)]
        self._positions: list[Numbers] = [np.zeros(0, np.int64)]
        self._kinds: list[Numbers] = [np.zeros(0, np.int64)]
        self.size = 0
        self.waits: dict[int, list[dict[str, Any]]] = {}
        self.reasons: dict[int, str] = {}

    def add(self, rows: Any, positions: Any, kinds: Any) -> None:
        """Rows, each with its kind, or all with one; a position of -1 is none."""
        for parts, part in ((self._rows, rows), (self._positions, positions), (self._kinds, kinds)):
            parts.append(np.broadcast_to(np.asarray(part, np.int64), len(rows)))
        self.size += len(rows)

    def add_step(self, rows: Numbers, step: Step, tell: Callable[[Lack], dict[str, Any]]) -> None:
        """What came out of a step; `rows` are the places of its rows."""
        self.waits |= {self.size + place: list(map(tell, lacks)) for place, lacks in step.lacks.items()}
        many = step.many
        kinds = np.full(many, DELIVERED)
        kinds[list(step.lacks)] = RELEASED
        kinds[list(step.late)] = LATE
        self.add(rows[step.rows.order[:many]], step.rows.placed[:many], kinds)

    def refuse(self, row: int, why: str) -> None:
        self.reasons[self.size] = why
        self.add([row], -1, REFUSED)

    @property
    def rows(self) -> Numbers:
        return np.concatenate(self._rows)

    def count(self, kind: int | None = None) -> int:
        """How many are of a kind or, without one, have a position."""
        if kind is None:
            return int((np.concatenate(self._positions) >= 0).sum())
        return int((np.concatenate(self._kinds) == kind).sum())

    def finish(self, table: pa.Table, kind: pa.DataType) -> pa.Table:
        """The rows with the columns of `ADDED`; what they wait for as lists of this type."""
        size, positions = self.size, np.concatenate(self._positions)
        if self.waits:
            waits = pa.array([self.waits.get(at, []) for at in range(size)], kind)
        else:
            ends = pa.array(np.zeros(size + 1, np.int32))
            waits = pa.ListArray.from_arrays(ends, pa.array([], kind.value_type), kind)
        reasons = list(map(self.reasons.get, range(size))) if self.reasons else [None] * size
        position = pa.array(positions, pa.int64(), mask=positions < 0)
        kinds = pa.array(KINDS, pa.string()).take(pa.array(np.concatenate(self._kinds)))
        rows = table.take(self.rows)
        for name, column in zip(ADDED, (position, waits, kinds, pa.array(reasons, pa.string())), strict=True):
            rows = rows.append_column(name, column)
        return rows


class Bucket(ABC):
    """What buckets of `causes`, `vectors` and `stamps` share."""

    patience_ms: int | None
    told: ClassVar[int] = MOST
    """What a status tells: so much of what is missing, of each receiver or partition, or by causes of all."""

    def __init__(self) -> None:
        self.table: pa.Table | None = None
        """The rows that are held, if any."""

    # What a form says of its rows

    def accept(self, rows: pa.Table) -> pa.Table:
        """Rows that came, as they are kept."""
        return rows

    @abstractmethod
    def decide(self, table: pa.Table, came: int, now: int, out: Output) -> Numbers:
        """Decide about the rows that are held and those that came: so many, the last ones. Those that wait."""

    @abstractmethod
    def list_missing(self, most: int | None = None) -> Iterator[Missing]:
        """What has not come, at its root: all of it, or of each receiver or partition about so many."""

    def name_sender(self, sender: Any) -> str:
        return str(sender)

    def find_frontier(self) -> dict[str, int]:
        """Process -> how many of its messages came out, where the most did."""
        return {}

    @abstractmethod
    def finish(self, table: pa.Table, out: Output) -> pa.Table:
        """What comes out, with the columns of the stream's owner."""

    @abstractmethod
    def identify_held(self) -> Iterator[tuple[str, str | None, str | None, int | None]]:
        """The group, receiver, sender and number of each row that is held."""

    @abstractmethod
    def dump(self) -> bytes: ...

    # What they do with them

    def advance(self, rows: pa.Table | None, now: int) -> tuple[pa.Table | None, Status]:
        """Take rows, and give up what was waited for too long. None comes out if no row came or waits."""
        came = 0 if rows is None else len(rows)
        if rows is not None:
            rows = self.accept(rows).append_column("__since", pa.array(np.full(came, now, np.int64)))
        table, out = join_rows(self.table, rows), Output()
        if table is None:
            return None, self._describe(now, 0, out)
        held = self.decide(table, came, now, out)
        self.table = table.take(held) if len(held) else None
        return self.finish(table, out), self._describe(now, came, out)

    def is_tired(self, table: pa.Table, now: int) -> Any:
        """Which rows have waited for as long as patience lasts."""
        if self.patience_ms is None:
            return np.zeros(len(table), np.bool_)
        return table["__since"].to_numpy() + self.patience_ms <= now

    @property
    def deadline(self) -> int | None:
        """When patience with something here ends."""
        if self.patience_ms is None or self.table is None:
            return None
        return int(pc.min(self.table["__since"]).as_py()) + self.patience_ms

    def _describe(self, now: int, came: int, out: Output) -> Status:
        since = np.zeros(0, np.int64) if self.table is None else self.table["__since"].to_numpy()
        causes = (
            Cause(
                one.receiver, self.name_sender(one.sender), one.first or 0, one.last or 0, len(one.places),
                int(since[one.places].min()), one.group, one.counted,
            )
            for one in self.list_missing(self.told)
        )  # fmt: skip
        return Status(
            now_ms=now,
            rows_in=came,
            delivered=out.count() - out.count(LATE),
            late=out.count(LATE),
            refused=out.count(REFUSED),
            gave_up=len(out.waits),
            held=len(since),
            oldest_ms=int(since.min()) if len(since) else None,
            causes=sort_causes(causes),
            frontier=self.find_frontier(),
        )

    def find_missing(self) -> dict[int, list[dict[str, Any]]]:
        """For each row that waits, by its place, what has not come at its root."""
        found: dict[int, list[dict[str, Any]]] = {}
        for one in sorted(self.list_missing(), key=lambda one: (one.counted == "cycle", *one[2:5])):
            told = (self.name_sender(one.sender), one.first, one.last, one.counted)
            for place in one.places.tolist():
                found.setdefault(place, []).append(dict(zip(LACKING, told, strict=True)))
        return found

    def list_held(self) -> list[dict[str, Any]]:
        """What waits, as rows of `WAITING`."""
        # Nothing comes, so nothing comes out: what is held is read.
        self.advance(None, 0)
        if self.table is None:
            return []
        missing, since = self.find_missing(), self.table["__since"].to_pylist()
        held = [
            dict(zip(WAITING.names, (*who, since[place], missing.get(place, [])), strict=True))
            for place, who in enumerate(self.identify_held())
        ]
        return sorted(held, key=lambda row: row["since_ms"])


# Tables


def to_ipc(table: pa.Table) -> bytes:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_ipc(data: Any) -> pa.Table:
    """The inverse, of bytes or an Arrow buffer."""
    return pa.ipc.open_stream(data).read_all()


def join_rows(held: pa.Table | None, rows: pa.Table | None) -> pa.Table | None:
    """What was held, and what came."""
    if held is None or rows is None:
        return held if rows is None else rows
    held = fit_rows(held, rows.schema)
    return pa.concat_tables([held, rows], promote_options="permissive").combine_chunks()


def fit_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with columns of these types, and those that they have besides. Rows that wait may be of an earlier query.

    >>> fit_rows(pa.table({"a": pa.array([1], pa.int32())}), pa.schema({"a": pa.int64(), "b": pa.string()})).to_pylist()
    [{'a': 1, 'b': None}]
    """
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        if at < 0:
            rows = rows.append_column(field.name, pa.nulls(len(rows), field.type))
        elif (kind := rows.schema.field(at).type) != field.type:
            try:
                rows = rows.set_column(at, field.name, rows[field.name].cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise BadSnapshot.changed(f"column {field.name}", kind, field.type) from None
    return rows


def hide_name(name: str) -> str:
    """The name of a user's column inside a stream: none is called like one of ours, or has to be quoted in PySpark.

    >>> hide_name("span.id"), hide_name("100 %")
    ('user span%2Eid', 'user 100 %25')
    """
    return "user " + name.replace("%", "%25").replace("`", "%60").replace(".", "%2E")


def encode_names(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column of few different strings as one array with a dictionary."""
    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks) if encoded.num_chunks else pa.array([], encoded.type)
    return encoded if pa.types.is_dictionary(encoded.type) else encoded.dictionary_encode()


def number_names(column: pa.ChunkedArray, names: Sequence[str]) -> Numbers:
    """The processes that these names are; -1 for none."""
    encoded, ids = encode_names(column), {name: process for process, name in enumerate(names)}
    known = np.array([ids.get(name, -1) for name in encoded.dictionary.to_pylist()] + [-1], np.int64)
    found: Numbers = known[encoded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)]
    return found
