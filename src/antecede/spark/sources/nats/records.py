"""Messages of a broker as rows, and rows as messages: one JSON object each, the columns by name, bytes in base64.

packets   antecede.spark.stream.packets: receiver, sender, number, stamp, payload, label, group; `arrival` is the
          message's place in its stream
events    antecede.trace.schema: the columns of a trace
raw       sequence, subject, time_ns and data: whatever else is in a stream, to be taken apart by its owner
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from antecede.errors import BadParameter, BadTrace
from antecede.spark.schema import ALL_PACKETS
from antecede.spark.sources.nats.broker import Stored
from antecede.spark.trace.api import SPARK_EVENTS
from antecede.trace import EVENTS, KINDS

__all__ = ["ROWS", "Rows", "encode", "rows_of"]


class PacketRecord(Struct, frozen=True):
    receiver: str
    sender: str
    stamp: bytes
    number: int | None = None
    payload: bytes | None = None
    label: str | None = None
    group: str | None = None


class EventRecord(Struct, frozen=True):
    run: str
    process: str
    index: int
    kind: str
    sender: str
    number: int
    to: list[str] | None = None
    control: bool = False
    time_ns: int = 0
    clock: int | None = None
    stamp_entries: int | None = None
    stamp_bytes: int | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")


class Rows(Struct, frozen=True):
    """One kind of rows."""

    name: str
    spark: StructType
    arrow: pa.Schema
    row: Callable[[Stored], Mapping[str, Any]]

    def batch(self, stream: str, messages: Sequence[Stored]) -> pa.RecordBatch:
        """Messages as rows. One that is no such row is told with its place."""
        return pa.RecordBatch.from_pylist([self._row(stream, one) for one in messages], schema=self.arrow)

    def _row(self, stream: str, message: Stored) -> Mapping[str, Any]:
        try:
            return self.row(message)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            place = f"stream {stream}, message {message.sequence}"
            raise BadTrace(
                place, f"it is not a JSON object with the columns of {self.name}: {error}"
            ) from None


_PACKET = msgspec.json.Decoder(PacketRecord)
_EVENT = msgspec.json.Decoder(EventRecord)


def _packet(message: Stored) -> dict[str, Any]:
    return {**msgspec.structs.asdict(_PACKET.decode(message.data)), "arrival": message.sequence}


def _event(message: Stored) -> dict[str, Any]:
    return msgspec.structs.asdict(_EVENT.decode(message.data))


RAW: Final = pa.schema(
    [("sequence", pa.int64()), ("subject", pa.string()), ("time_ns", pa.int64()), ("data", pa.binary())]
)

ROWS: Final = {
    rows.name: rows
    for rows in (
        Rows("packets", from_arrow_schema(ALL_PACKETS), ALL_PACKETS, _packet),
        Rows("events", SPARK_EVENTS, EVENTS, _event),
        Rows("raw", from_arrow_schema(RAW), RAW, Stored._asdict),
    )
}


def rows_of(name: str) -> Rows:
    """
    >>> rows_of("messages")
    Traceback (most recent call last):
    antecede.errors.BadParameter: jetstream: rows must be one of packets, events, raw, not 'messages'
    """
    if name not in ROWS:
        raise BadParameter.choice("jetstream", "rows", name, ("packets", "events", "raw"))
    return ROWS[name]


def encode(row: Mapping[str, Any]) -> bytes:
    """A row as a message.

    >>> encode({"receiver": "ann", "number": 1, "payload": b"hello", "reason": None})
    b'{"receiver":"ann","number":1,"payload":"aGVsbG8="}'
    """
    return msgspec.json.encode({name: value for name, value in row.items() if value is not None})
