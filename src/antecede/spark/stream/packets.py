"""Packets as rows: what goes into a stream, and what comes out of it.

A row of `PACKETS` is one packet at one receiver:

  receiver   string   the process that it came to
  sender     string   the process that sent it
  number     int64    the message's number: its sender's own count. Null: a packet of the protocol itself (`bounded`
                      has such), which orders and is not delivered
  stamp      binary   the stamp as `antecede.wire` writes it, after one byte: its code in `antecede.wire.stamps`
  payload    binary   the application's. May be null
  arrival    int64    optional: the order of arrival. Rows of one receiver are taken in this order within a micro-batch;
                      without it, by sender and number
  label      string   optional, for `history`: the message's label
  group      string   optional: which of several systems with the same processes it belongs to

The copy of a message that a process sends to itself crosses no network: it is not among the packets, and nothing waits
for it.

It comes out with all of its columns, and with

  position   int64    0, 1, 2, ... at each receiver: the order of delivery. Null if it is refused or repeated
  waits_for  array    the causes that were given up for it, and had not come when it was delivered: whose, first..last,
                      by which count (`antecede.model.Awaited`)
  kind       string   `delivered`; `released`: without causes that were given up; `late`: delivered after others that
                      follow it, because it had been given up, or no stamp told of it; `repeated`: it came before;
                      `refused`: not a packet of this protocol and these processes
  reason     string   why it is refused
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from antecede.errors import BadParameter, BadSnapshot, WireError
from antecede.model import Message, Packet, Stamp, View
from antecede.spark.frames import ALL_PACKETS, PACKETS
from antecede.wire import Limits
from antecede.wire.octets import Reader, Writer
from antecede.wire.stamps import BY_CODE, BY_STAMP

if TYPE_CHECKING:
    # Workers load this module, and simulate nothing.
    from antecede.sim.run import RunSpec

__all__ = [
    "ADDED", "GAVE_UP", "PACKETS", "WAITING", "encode_names", "finish_rows", "fit_rows", "from_ipc", "join_rows",
    "number_names", "packet_of", "packets_of", "simulated", "stamp_of", "to_ipc",
]  # fmt: skip

GAVE_UP: Final = pa.list_(
    pa.struct({"sender": pa.string(), "first": pa.int64(), "last": pa.int64(), "counted": pa.string()})
)
WAITING: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("group", "receiver", "sender")),
        *((name, pa.int64()) for name in ("number", "since_ms")),
        ("awaits", GAVE_UP),
    ]
)
"""A message that waits: at whom, whose, since when, and for which messages of whom."""
ADDED: Final = ("position", "waits_for", "kind", "reason")
"""The columns that rows come out with."""

LIMITS: Final = Limits()
NO_STAMP: Final = Stamp()


def stamp_of(packet: Packet[Any], limits: Limits = LIMITS) -> bytes:
    """A packet's stamp as bytes.

    >>> from antecede.protocols import create
    >>> message, [packet] = create("fifo", View.numbered(2), 0).send(1, b"hello")
    >>> stamp_of(packet).hex(" ")
    '02 01'
    """
    kind = BY_STAMP.get(type(packet.stamp))
    if kind is None:
        raise BadParameter(
            "packet", f"stamp must be one of antecede.wire.stamps, not {type(packet.stamp).__name__}"
        )
    writer = Writer(limits)
    writer.out.append(kind.code)
    kind.put(writer, packet)
    return bytes(writer.out)


def packet_of(
    stamp: bytes, source: int, dest: int, message: Message | None, limits: Limits = LIMITS
) -> Packet[Any]:
    """The packet of a message, or of none, with the stamp that these bytes are. Others are a `WireError`.

    >>> packet_of(b"\\x02\\x01", 0, 1, Message(0, 1, (1,), b"hello")).stamp
    Sequence(sequence=1)
    >>> packet_of(b"\\x02\\x01\\x09", 0, 1, Message(0, 1, (1,)))
    Traceback (most recent call last):
    antecede.errors.WireError: not a packet at byte 2: 1 bytes follow the stamp
    """
    if not stamp or len(stamp) > limits.packet_bytes:
        raise WireError(f"the stamp has {len(stamp)} bytes, and may have 1 to {limits.packet_bytes}")
    kind = BY_CODE.get(stamp[0])
    if kind is None:
        raise WireError(f"no stamp has code {stamp[0]}: codes are 1..{max(BY_CODE)}", 0)
    if kind.stamp.control is not (message is None):
        verb = (
            "belongs to no message, and has a" if message is not None else "belongs to a message, and has no"
        )
        raise WireError(f"{kind.stamp.__name__} {verb} number")
    reader = Reader(stamp, limits)
    reader.at = 1
    taken = kind.take(reader, Packet(source, dest, NO_STAMP, message))
    if reader.at < len(stamp):
        raise WireError(f"{len(stamp) - reader.at} bytes follow the stamp", reader.at)
    return Packet(source, dest, taken, message)


def packets_of(
    packets: Iterable[Packet[Any]], view: View, *, arrival: int = 0, group: str | None = None
) -> pa.Table:
    """Packets, in the order in which they arrived, as rows of `PACKETS`; their arrivals count from `arrival` on.

    >>> from antecede.protocols import create
    >>> view = View.of("ann", "bob")
    >>> message, [packet] = create("fifo", view, "ann").send("bob", b"hello")
    >>> packets_of([packet], view).to_pylist()[0] | {"stamp": ...}
    {'receiver': 'bob', 'sender': 'ann', 'number': 1, 'stamp': Ellipsis, 'payload': b'hello', 'arrival': 0}
    """
    rows: list[dict[str, Any]] = []
    for at, packet in enumerate(packets, start=arrival):
        message = packet.message
        row = {"receiver": view.name(packet.dest), "sender": view.name(packet.source), "arrival": at}
        row |= {"stamp": stamp_of(packet), "group": group}
        if message is not None:
            row |= {"number": message.number, "payload": message.payload, "label": message.label or None}
        rows.append(row)
    labels = ["label"] if any(row.get("label") for row in rows) else []
    names = [*PACKETS.names, *labels, *(["group"] if group is not None else [])]
    return pa.Table.from_pylist(rows, pa.schema([ALL_PACKETS.field(name) for name in names]))


def simulated(spec: RunSpec, group: str | None = None) -> tuple[View, pa.Table]:
    """A simulated run: its processes, and the packets that crossed its network in the order of arrival.

    >>> from antecede.sim.run import RunSpec
    >>> view, rows = simulated(RunSpec(protocol="matrix", processes=3, messages=50, seed=1))
    >>> view.names, rows.num_rows
    (('p1', 'p2', 'p3'), 50)
    """
    simulation = spec.build()
    came: list[Packet[Any]] = []
    for machine in simulation.engine.machines:
        receive = machine.receive

        def noted(packet: Packet[Any], receive: Any = receive) -> Any:
            came.append(packet)
            return receive(packet)

        machine.receive = noted  # type: ignore[method-assign]
    simulation.finish()
    return simulation.view, packets_of(came, simulation.view, group=group)


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


def finish_rows(
    rows: pa.Table, position: pa.Array, waits: Mapping[int, list[Any]], kind: pa.DataType, *texts: pa.Array
) -> pa.Table:
    """Rows with the columns of `ADDED`: what a row waits for by its place, as lists of this type; kinds, and reasons.

    >>> rows = pa.table({"id": ["a", "b"]})
    >>> waits = {1: [7]}, pa.list_(pa.int64())
    >>> finish_rows(rows, pa.array([0, 1]), *waits, pa.array(["delivered", "released"])).to_pylist()[1]
    {'id': 'b', 'position': 1, 'waits_for': [7], 'kind': 'released'}
    """
    size = len(rows)
    if waits:
        lists = pa.array([waits.get(at, []) for at in range(size)], kind)
    else:
        ends = pa.array(np.zeros(size + 1, np.int32))
        lists = pa.ListArray.from_arrays(ends, pa.array([], kind.value_type), kind)
    for name, column in zip(ADDED, (position, lists, *texts), strict=False):
        rows = rows.append_column(name, column)
    return rows


def encode_names(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column of few different strings as one array with a dictionary."""
    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks) if encoded.num_chunks else pa.array([], encoded.type)
    return encoded if pa.types.is_dictionary(encoded.type) else encoded.dictionary_encode()


def number_names(column: pa.ChunkedArray, names: Sequence[str]) -> NDArray[np.int64]:
    """The processes that these names are; -1 for none."""
    encoded, ids = encode_names(column), {name: process for process, name in enumerate(names)}
    known = np.array([ids.get(name, -1) for name in encoded.dictionary.to_pylist()] + [-1], np.int64)
    found: NDArray[np.int64] = known[encoded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)]
    return found
