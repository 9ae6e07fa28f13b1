"""Traces of TLA+ models as NDJSON: one event a line, as the specification of EWD998 logs them (tlaplus/Examples).

    {"event": ">", "node": 1, "pkt": {"snd": 1, "rcv": 2, "msg": {...}, "vc": {"1": 4, "2": 1}}}

`>` is a send by `snd`, `<` a receive by `rcv`, `d` a step of the node alone, whose packet has only its clock. `vc` is
the node's clock at the event. The first line may give the constants of the model, `{"N": 5}`: it is no event.

Nothing says which send a receive belongs to. So sends and receives have a kind in the log, but no identity: what the
clocks imply is not taken for what happened.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from antecede.trace.foreign.log import Rows, refusal_of_clock

__all__ = ["read"]

ABSENT: Final = Raw(b"null")

KINDS: Final[dict[str, str | None]] = {">": "send", "<": "deliver", "d": None}


class Packet(Struct):
    vc: dict[str, int]
    # What is only handed on is kept as it is written.
    snd: Raw = ABSENT
    rcv: Raw = ABSENT
    msg: Raw = ABSENT


class Line(Struct):
    event: str
    node: int | str
    pkt: Packet


class Constants(Struct):
    N: int


LINE: Final = msgspec.json.Decoder(Line)
CONSTANTS: Final = msgspec.json.Decoder(Constants)


def read(rows: Rows, run: str, number: int, line: bytes) -> None:
    """Add what one line says.

    >>> rows = Rows("a.ndjson")
    >>> read(rows, "a", 2, b'{"event": "d", "node": 0, "pkt": {"vc": {"0": 1}}}')
    >>> rows.batch().to_pylist()[0]["vector"]
    [('0', 1)]
    """
    try:
        event = LINE.decode(line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        if not (number == 1 and constants(line)):
            rows.reject(run, number, line.decode(errors="replace"), f"no event in JSON: {error}")
        return
    node, packet = str(event.node), event.pkt
    if reason := refusal(event, node):
        rows.reject(run, number, line.decode(errors="replace"), reason)
        return
    fields = f'{{"snd":{said(packet.snd)},"rcv":{said(packet.rcv)},"msg":{said(packet.msg)}}}'
    rows.add(run, number, node, packet.vc, event.event, KINDS[event.event], None, fields)


def refusal(event: Line, node: str) -> str | None:
    """Why an event cannot be one of this node, or None."""
    if event.event not in KINDS:
        return f"event is {event.event}, and must be >, < or d"
    if event.event != "d":
        name, place = ("snd", event.pkt.snd) if event.event == ">" else ("rcv", event.pkt.rcv)
        # A name or a number: one that is quoted is the same node.
        if said(place).strip('"') != node:
            return f"event {event.event} at node {node}, but {name} of its packet is {said(place)}"
    return refusal_of_clock(node, event.pkt.vc)


def said(raw: Raw) -> str:
    return bytes(raw).decode()


def constants(line: bytes) -> bool:
    try:
        CONSTANTS.decode(line)
    except msgspec.MsgspecError:
        return False
    return True
