r"""Logs of one event a line, in JSON. Blank lines say nothing, and lines that are not UTF-8 are rejected.

Of the `tracing` library (DistributedClocks/tracing):

    {"TracerIdentity": "ann", "TraceID": 17, "Tag": "GenerateTokenTrace", "Body": {"Token": "qUR..."},
     "VectorClock": {"ann": 4}}

A token goes along with a message: `GenerateTokenTrace` is made by its sender and `ReceiveTokenTrace` by its receiver,
with the same token. So tokens are the messages' identities, and these two kinds of lines are sends and deliveries of a
trace. The others are steps of the process alone. All traces of a file (`TraceID`) are one run: their processes share
their clocks.

Of TLA+ models, as the specification of EWD998 logs them (tlaplus/Examples):

    {"event": ">", "node": 1, "pkt": {"snd": 1, "rcv": 2, "msg": {...}, "vc": {"1": 4, "2": 1}}}

`>` is a send by `snd`, `<` a receive by `rcv`, `d` a step of the node alone, whose packet has only its clock. `vc` is
the node's clock at the event. The first line may give the constants of the model, `{"N": 5}`: it is no event. Nothing
says which send a receive belongs to. So sends and receives have a kind in the log, but no identity: what the clocks
imply is not taken for what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any, Final

import msgspec
import pyarrow as pa
from msgspec import Raw, Struct

from antecede.trace.foreign.log import Rows, refusal_of_clock

__all__ = ["LINES", "read", "read_tlaplus", "read_tracing"]

ROWS: Final = 1 << 14
"""Lines that become one batch."""
NULL: Final = Raw(b"null")
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError)

Line = Callable[[Rows, str, int, bytes], None]
"""Adds to the rows what a line says: a run's name, the line's number, its bytes."""


def read(file: IO[bytes], name: str, run: str, read_line: Line, most: int = ROWS) -> Iterator[pa.RecordBatch]:
    """Read a file, some rows at a time. `name` is the file's in the rows.

    >>> import io
    >>> [batch] = read(io.BytesIO(b'{"event":"d","node":1,"pkt":{"vc":{"1":2}}}'), "a.ndjson", "a", read_tlaplus)
    >>> batch.select(["process", "index", "line"]).to_pylist()
    [{'process': '1', 'index': 1, 'line': 1}]
    """
    rows = Rows(name)
    for number, content in enumerate(file, 1):
        line = content.removesuffix(b"\n").removesuffix(b"\r")
        if line and not line.isspace():
            try:
                line.isascii() or line.decode()
            except UnicodeDecodeError:
                rows.reject(run, number, line.decode(errors="replace"), "it is not UTF-8")
            else:
                read_line(rows, run, number, line)
        if len(rows) >= most:
            yield rows.batch()
            rows = Rows(name)
    if len(rows):
        yield rows.batch()


# tracing

TRACING: Final = {"GenerateTokenTrace": "send", "ReceiveTokenTrace": "deliver"}


class Tracing(Struct, rename="pascal"):
    tracer_identity: str
    tag: str
    vector_clock: dict[str, int]
    body: Raw = Raw(b"{}")
    trace_id: Raw = msgspec.field(default=NULL, name="TraceID")


TRACING_LINE: Final = msgspec.json.Decoder(Tracing)
BODY: Final = msgspec.json.Decoder(dict[str, Any])


def read_tracing(rows: Rows, run: str, number: int, line: bytes) -> None:
    try:
        event = TRACING_LINE.decode(line)
    except UNREADABLE as error:
        rows.reject(run, number, line.decode(errors="replace"), f"no event in JSON: {error}")
        return
    kind = TRACING.get(event.tag)
    message = find_token(event.body) if kind else None
    if kind and message is None:
        reason: str | None = f"{event.tag} without a Token"
    else:
        reason = refusal_of_clock(event.tracer_identity, event.vector_clock)
    if reason:
        rows.reject(run, number, line.decode(errors="replace"), reason)
        return
    fields = f'{{"TraceID":{write(event.trace_id)},"Body":{write(event.body)}}}'
    rows.add(run, number, event.tracer_identity, event.vector_clock, event.tag, kind, message, fields)


def find_token(body: Raw) -> str | None:
    """The token of a send or a delivery, if it has one."""
    try:
        found = BODY.decode(body).get("Token")
    except msgspec.MsgspecError:
        return None
    return found if isinstance(found, str) and found else None


def write(raw: Raw) -> str:
    return bytes(raw).decode()


# TLA+

TLAPLUS: Final[dict[str, str | None]] = {">": "send", "<": "deliver", "d": None}


class Packet(Struct):
    vc: dict[str, int]
    # What is only handed on is kept as it is written.
    snd: Raw = NULL
    rcv: Raw = NULL
    msg: Raw = NULL


class Tlaplus(Struct):
    event: str
    node: int | str
    pkt: Packet


class Constants(Struct):
    N: int


TLAPLUS_LINE: Final = msgspec.json.Decoder(Tlaplus)
CONSTANTS: Final = msgspec.json.Decoder(Constants)


def read_tlaplus(rows: Rows, run: str, number: int, line: bytes) -> None:
    try:
        event = TLAPLUS_LINE.decode(line)
    except UNREADABLE as error:
        if not (number == 1 and is_constants(line)):
            rows.reject(run, number, line.decode(errors="replace"), f"no event in JSON: {error}")
        return
    node, packet = str(event.node), event.pkt
    if reason := refuse_event(event, node):
        rows.reject(run, number, line.decode(errors="replace"), reason)
        return
    fields = f'{{"snd":{write(packet.snd)},"rcv":{write(packet.rcv)},"msg":{write(packet.msg)}}}'
    rows.add(run, number, node, packet.vc, event.event, TLAPLUS[event.event], None, fields)


def refuse_event(event: Tlaplus, node: str) -> str | None:
    """Why an event cannot be one of this node, or None."""
    if event.event not in TLAPLUS:
        return f"event is {event.event}, and must be >, < or d"
    if event.event != "d":
        name, place = ("snd", event.pkt.snd) if event.event == ">" else ("rcv", event.pkt.rcv)
        # A name or a number: one that is quoted is the same node.
        if write(place).strip('"') != node:
            return f"event {event.event} at node {node}, but {name} of its packet is {write(place)}"
    return refusal_of_clock(node, event.pkt.vc)


def is_constants(line: bytes) -> bool:
    try:
        CONSTANTS.decode(line)
    except msgspec.MsgspecError:
        return False
    return True


LINES: Final[dict[str, Line]] = {"tracing": read_tracing, "tlaplus": read_tlaplus}
