"""Logs of the `tracing` library (DistributedClocks/tracing) as JSON Lines: one event a line.

    {"TracerIdentity": "ann", "TraceID": 17, "Tag": "GenerateTokenTrace", "Body": {"Token": "qUR..."},
     "VectorClock": {"ann": 4}}

A token goes along with a message: `GenerateTokenTrace` is made by its sender and `ReceiveTokenTrace` by its receiver,
with the same token. So tokens are the messages' identities, and these two kinds of lines are sends and deliveries of a
trace. The others are steps of the process alone. All traces of a file (`TraceID`) are one run: their processes share
their clocks.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from antecede.trace.foreign.log import Rows, refusal_of_clock

__all__ = ["read"]

KINDS: Final = {"GenerateTokenTrace": "send", "ReceiveTokenTrace": "deliver"}


class Line(Struct, rename="pascal"):
    tracer_identity: str
    tag: str
    vector_clock: dict[str, int]
    body: Raw = Raw(b"{}")
    trace_id: Raw = msgspec.field(default=Raw(b"null"), name="TraceID")


LINE: Final = msgspec.json.Decoder(Line)
TOKEN: Final = msgspec.json.Decoder(dict[str, Any])


def read(rows: Rows, run: str, number: int, line: bytes) -> None:
    """Add what one line says.

    >>> rows = Rows("a.jsonl")
    >>> read(rows, "a", 1, b'{"TracerIdentity": "ann", "Tag": "Start", "VectorClock": {"ann": 1}}')
    >>> rows.batch().to_pylist()[0]["process"]
    'ann'
    """
    try:
        event = LINE.decode(line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        rows.reject(run, number, line.decode(errors="replace"), f"no event in JSON: {error}")
        return
    kind = KINDS.get(event.tag)
    message = token(event.body) if kind else None
    if kind and message is None:
        reason: str | None = f"{event.tag} without a Token"
    else:
        reason = refusal_of_clock(event.tracer_identity, event.vector_clock)
    if reason:
        rows.reject(run, number, line.decode(errors="replace"), reason)
        return
    fields = f'{{"TraceID":{bytes(event.trace_id).decode()},"Body":{bytes(event.body).decode()}}}'
    rows.add(run, number, event.tracer_identity, event.vector_clock, event.tag, kind, message, fields)


def token(body: Raw) -> str | None:
    """The token of a send or a delivery, if it has one."""
    try:
        found = TOKEN.decode(body).get("Token")
    except msgspec.MsgspecError:
        return None
    return found if isinstance(found, str) and found else None
