"""A bucket of rows that wait, whoever decides about them: rows go in, rows come out, and the state between is bytes.

No Spark, no clock. What comes out depends on the rows and their order alone and, where patience ends, on `now`. Spark
keeps the bytes (`operator`); tests cut streams wherever they like.

The state of a `Bucket` is a head: its version and settings, and what those who decide keep. A bucket that remembers has
pieces, too, one for each micro-batch that brought something: msgpack, a list of entries, each with its time first. It
is opened from its head and all pieces, or from an earlier bucket and the pieces since.

A `WaitingRoom` has one table of the rows that wait, with `__since`, the time at which each came. Whoever decides
(`causes`, `vectors`, `stamps`) is handed that table with the rows that came below, and says what becomes of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from antecede.errors import BadSnapshot
from antecede.spark.stream.counts import MOST, Lack, Step
from antecede.spark.stream.kernel import Numbers
from antecede.spark.stream.status import GAVE_UP, WAITING, Cause, Status, sort_causes

__all__ = [
    "ADDED", "DELIVERED", "LACKING", "LATE", "REFUSED", "RELEASED", "REPEATED", "VERSION", "Bucket", "BucketSettings",
    "Missing", "Output", "Trail", "WaitingRoom", "encode_columns", "fit_rows", "from_ipc", "hide_name",
    "read_state", "to_ipc",
]  # fmt: skip

VERSION: Final = 7
"""Of the states of all buckets. Before there was one for all, the highest was 6; 0.1 had 1."""
ADDED: Final = ("position", "waits_for", "kind", "reason")
"""The columns that rows come out with."""
KINDS: Final = ("delivered", "late", "released", "repeated", "refused")
DELIVERED, LATE, RELEASED, REPEATED, REFUSED = range(5)
LACKING: Final = tuple(GAVE_UP.value_type.names)


class BucketSettings(Struct, frozen=True, kw_only=True):
    """What decides in a bucket. A state has them, too."""

    patience_ms: int | None = None
    """None: for ever. Then a bucket does not act when time has passed and nothing came."""
    remember_ms: int = 604_800_000
    buckets: int = 1
    columns: dict[str, str] = {}
    """What the state is about, in words."""

    def make(self) -> Any:
        """A new bucket."""
        raise NotImplementedError

    def decided(self) -> dict[str, Any]:
        """What a state must agree with: a query that is started again with other settings is not continued wrongly.

        Patience and memory may change from one start to the next.
        """
        return {"buckets": self.buckets, **self.columns}

    def open(self, head: bytes | None, pieces: Iterable[bytes] = (), earlier: Any = None) -> Any:
        """The bucket with this head and these pieces, in order: all, or those since `earlier`, which is spent."""
        bucket = self.make()
        if head is not None:
            bucket.load(read_state(head, getattr(self, "group", None)), pieces, earlier)
        return bucket


class Trail(NamedTuple):
    """Which pieces a bucket has: up to a micro-batch of this number, and a digest of them all."""

    serial: int = 0
    chain: bytes = b""


class Bucket(ABC):
    """What decides about the rows of some partitions, without Spark. Its state between two calls is bytes."""

    form: ClassVar[str]
    memory: ClassVar[tuple[str, ...]] = ()
    """What the pieces are about, by its names: it goes from an earlier bucket to the one that follows."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.trail = Trail()

    @property
    @abstractmethod
    def deadline(self) -> int | None:
        """When patience with something here ends, in milliseconds."""

    @abstractmethod
    def advance(self, rows: pa.Table | None, now: int) -> tuple[pa.Table | None, Status]:
        """Take the rows of a micro-batch; give those that come out, if any ever came."""

    @abstractmethod
    def list_state(self) -> dict[str, Any]:
        """What is kept beside the settings and the pieces."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse."""

    def dump(self) -> bytes:
        about = {"antecede stream": VERSION, "form": self.form, "settings": self.settings}
        return msgspec.msgpack.encode({**about, **self.list_state()})

    def load(self, state: dict[str, Any], pieces: Iterable[bytes], earlier: Any) -> None:
        """Go on with a state. One of another form or of other settings is a `BadSnapshot`."""
        if state["form"] != self.form:
            raise BadSnapshot.changed("form", state["form"], self.form)
        old = msgspec.convert(state["settings"], type(self.settings)).decided()
        for name, wanted in self.settings.decided().items():
            if (found := old[name]) != wanted:
                raise BadSnapshot.changed(
                    name, "none" if found == "" else found, "none" if wanted == "" else wanted
                )
        for name in self.memory if earlier is not None else ():
            setattr(self, name, getattr(earlier, name))
        for when, entry in (one for piece in pieces for one in msgspec.msgpack.decode(piece)):
            self.remember(entry, when)
        self.load_state(state)

    # Of a bucket that remembers

    def dump_fresh(self, now: int) -> bytes | None:
        """The piece of the last micro-batch, if there is something to remember."""
        entry = self.list_fresh()
        return None if entry is None else msgspec.msgpack.encode([[now, entry]])

    def list_fresh(self) -> Any:
        return None

    def remember(self, entry: Any, when: int) -> None:
        """Know again what a piece says."""
        raise NotImplementedError


def read_state(head: bytes, group: str | None = None) -> dict[str, Any]:
    """The state of a bucket. One of 0.1 is migrated, and has groups in this column; others are a `BadSnapshot`."""
    try:
        state: dict[str, Any] = msgspec.msgpack.decode(head)
        version = state["antecede stream"]
    except (msgspec.DecodeError, LookupError, TypeError):
        raise BadSnapshot("the checkpoint does not have the state of a stream") from None
    if version == 1:
        from antecede.spark.stream.stamps import migrate_state

        return migrate_state(state, group or "group")
    if version != VERSION:
        raise BadSnapshot.version("the stream", version, f"1 or {VERSION}")
    return state


class Missing(NamedTuple):
    """Messages that have not come, and the places of the rows that wait for them, directly or through others."""

    receiver: str
    """Or the partition."""
    group: str
    sender: str
    """Or an identifier, or a cycle of them: those have no numbers."""
    first: int | None
    last: int | None
    counted: str
    places: Numbers


class Output:
    """Rows that come out, in order, and what became of them. Most are `delivered`, and lack nothing."""

    def __init__(self) -> None:
        self.rows, self.positions = array("q"), array("q")
        """Positions are -1 for none. By causes, they are given when all rows are there."""
        # By place in `rows`.
        self.kinds: dict[int, int] = {}
        self.waits: dict[int, list[Any]] = {}
        self.reasons: dict[int, str] = {}

    def add(self, row: int, kind: int, position: int | None = None, waits: list[Any] | None = None) -> None:
        if kind != DELIVERED:
            self.kinds[len(self.rows)] = kind
        if waits:
            self.waits[len(self.rows)] = waits
        self.rows.append(row)
        if position is not None:
            self.positions.append(position)

    def add_step(self, rows: Numbers, step: Step, tell: Callable[[Lack], dict[str, Any]]) -> None:
        """What came out of a step; `rows` are the places of its rows."""
        first, many = len(self.rows), step.many
        self.waits |= {first + place: list(map(tell, lacks)) for place, lacks in step.lacks.items()}
        self.kinds |= {first + place: RELEASED for place in step.lacks} | {
            first + place: LATE for place in step.late
        }
        self.rows.frombytes(rows[step.rows.order[:many]].tobytes())
        self.positions.frombytes(step.rows.placed[:many].tobytes())

    def refuse(self, row: int, why: str) -> None:
        self.reasons[len(self.rows)] = why
        self.add(row, REFUSED, -1)

    def count(self, kind: int) -> int:
        return sum(one == kind for one in self.kinds.values())

    def finish(self, table: pa.Table, kind: pa.DataType) -> pa.Table:
        """The rows with the columns of `ADDED`; what they wait for as lists of this type."""
        size = len(self.rows)
        if self.waits:
            waits = pa.array([self.waits.get(at, []) for at in range(size)], kind)
        else:
            ends = pa.array(np.zeros(size + 1, np.int32))
            waits = pa.ListArray.from_arrays(ends, pa.array([], kind.value_type), kind)
        positions, kinds = np.array(self.positions, np.int64), np.full(size, DELIVERED)
        kinds[list(self.kinds)] = list(self.kinds.values())
        columns = (
            pa.array(positions, mask=positions < 0),
            waits,
            pa.array(KINDS).take(pa.array(kinds)),
            pa.array([self.reasons.get(at) for at in range(size)], pa.string())
            if self.reasons
            else pa.nulls(size, pa.string()),
        )
        rows = table.take(np.array(self.rows, np.int64))
        for name, column in zip(ADDED, columns, strict=True):
            rows = rows.append_column(name, column)
        return rows


class WaitingRoom(Bucket):
    """What buckets of `causes`, `vectors` and `stamps` share."""

    told: ClassVar[int] = MOST
    """What a status tells: so much of what is missing, of each receiver or partition, or by causes of all."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
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

    def find_frontier(self) -> dict[str, int]:
        """Process -> how many of its messages came out, where the most did."""
        return {}

    @abstractmethod
    def finish(self, table: pa.Table, out: Output) -> pa.Table:
        """What comes out, with the columns of the stream's owner."""

    @abstractmethod
    def identify_held(self, table: pa.Table) -> Iterable[tuple[str, str | None, str | None, int | None]]:
        """The group, receiver, sender and number of each row that is held."""

    def list_state(self) -> dict[str, Any]:
        return {"table": None if self.table is None else to_ipc(self.table)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.table = None if state["table"] is None else from_ipc(state["table"])

    # What they do with them

    def advance(self, rows: pa.Table | None, now: int) -> tuple[pa.Table | None, Status]:
        """Take rows, and give up what was waited for too long. None comes out if no row came or waits."""
        came = 0 if rows is None else len(rows)
        if rows is not None:
            rows = self.accept(rows).append_column("__since", pa.array(np.full(came, now, np.int64)))
        table, out = join_rows(self.table, rows), Output()
        if table is None:
            return None, self.describe(now, 0, out)
        held = self.decide(table, came, now, out)
        self.table = table.take(held) if len(held) else None
        return self.finish(table, out), self.describe(now, came, out)

    def is_tired(self, table: pa.Table, now: int) -> Any:
        """Which rows have waited for as long as patience lasts."""
        if self.settings.patience_ms is None:
            return np.zeros(len(table), np.bool_)
        return table["__since"].to_numpy() + self.settings.patience_ms <= now

    @property
    def deadline(self) -> int | None:
        if self.settings.patience_ms is None or self.table is None:
            return None
        return int(pc.min(self.table["__since"]).as_py()) + int(self.settings.patience_ms)

    def describe(self, now: int, came: int, out: Output) -> Status:
        since = np.zeros(0, np.int64) if self.table is None else self.table["__since"].to_numpy()
        causes = (
            Cause(
                one.receiver, one.sender, one.first or 0, one.last or 0, len(one.places),
                int(since[one.places].min()), one.group, one.counted,
            )
            for one in self.list_missing(self.told)
        )  # fmt: skip
        return Status(
            now_ms=now,
            rows_in=came,
            delivered=int((np.array(out.positions, np.int64) >= 0).sum()) - out.count(LATE),
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
            told = dict(zip(LACKING, (one.sender, one.first, one.last, one.counted), strict=True))
            for place in one.places.tolist():
                found.setdefault(place, []).append(told)
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
            for place, who in enumerate(self.identify_held(self.table))
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


def encode_columns(columns: Iterable[pa.ChunkedArray]) -> tuple[list[tuple[Any, ...]], Numbers]:
    """The values that these columns of few different ones have together, and which of them each row has.

    >>> values, code = encode_columns([pa.chunked_array([["a", "b", None]]), pa.chunked_array([["x", "x", "y"]])])
    >>> [values[one] for one in code.tolist()]
    [('a', 'x'), ('b', 'x'), (None, 'y')]
    """
    found: list[tuple[Any, ...]] = []
    code = np.zeros(0, np.int64)
    for place, column in enumerate(columns):
        encoded = column.combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = pa.concat_arrays(encoded.chunks) if encoded.num_chunks else pa.array([], encoded.type)
        encoded = encoded if pa.types.is_dictionary(encoded.type) else encoded.dictionary_encode()
        names = [*encoded.dictionary.to_pylist(), None]
        own = encoded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
        if place:
            distinct, code = np.unique(code * len(names) + own, return_inverse=True)
            found = [(*found[one // len(names)], names[one % len(names)]) for one in distinct.tolist()]
        else:
            found, code = [(name,) for name in names], own
    return found, code
