"""States of earlier versions of a stream of packets, as this version has them.

  version 1   what waits are messages with their payloads, in machines and in a table of the kernel. They become rows
              with the columns of a packet; other columns are null
  version 2   the same inside `packets`, and beside it `rows`: a payload is the number of a row. Those in `old` have
              payloads, as in version 1

Since version 3 all that waits is a row, and the payload of each message in a machine is the number of its row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from antecede.spark.stream.packets import from_ipc, stamp_of, to_ipc
from antecede.spark.stream.receiver import MachineReceiver
from antecede.spark.stream.settings import Settings

__all__ = ["migrate_state"]

WAITING_ROW: Final = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("__receiver", "__sender", "__group", "__label")),
        *(pa.field(name, pa.int64()) for name in ("__number", "__since", "__row")),
        pa.field("__stamp", pa.binary()),
    ]
)
"""What a bucket knows of a row that waits, beside the columns of its owner."""


def migrate_state(
    state: dict[str, Any], settings: Settings, schema: pa.Schema, group: str | None
) -> dict[str, Any]:
    """A state of version 1 or 2 -> the same of version 3. Rows have these columns; `group` is one of them."""
    kept = [] if state.get("rows") is None else from_ipc(state["rows"]).to_pylist()
    rows, number = {row["__row"]: row for row in kept}, state.get("next", 0)
    old = {tuple(key) for key in state["old"]} if "old" in state else None
    columns = [field for field in schema if field.name not in WAITING_ROW.names]
    waits = []
    for message in list_messages(state, settings):
        key = tuple(message[name] for name in ("__group", "__receiver", "__sender", "__number"))
        payload = message.pop("payload")
        if old is None or key in old:
            known = {name: message[f"__{name}"] for name in ("receiver", "sender", "number")}
            known |= {"payload": payload, group or "group": message["__group"]}
            message["__row"], number = number, number + 1
        else:
            message["__row"] = int.from_bytes(payload, "little")
            known = rows[message["__row"]]
        waits.append({**{field.name: known.get(field.name) for field in columns}, **message})
    number_pending(state, settings, waits)
    waits.sort(key=lambda one: one["__row"])
    table = pa.Table.from_pylist(waits, pa.schema([*columns, *WAITING_ROW])) if waits else None
    return {**state, "rows": None if table is None else to_ipc(table)}


def list_messages(state: dict[str, Any], settings: Settings) -> Iterator[dict[str, Any]]:
    """What waits in a state of version 1: as `OWN` names it, with its payload."""
    names = settings.processes
    kernel = state.get("kernel", {"held": None})
    if kernel["held"] is not None:
        for one in from_ipc(kernel["held"]).to_pylist():
            group, me = kernel["keys"][one["lane"]]
            yield {
                "__group": group,
                "__receiver": names[me],
                "__sender": names[one["source"]],
                "__number": one["number"],
                "__stamp": one["stamp"],
                "__since": one["since"],
                "payload": one["payload"],
            }
    for part in state["lanes"]:
        receiver = MachineReceiver.load(settings, part, state["machines"])
        for key, since in receiver.since.items():
            packet = receiver.machine.held(key)
            assert packet.message is not None
            yield {
                "__group": receiver.group,
                "__receiver": names[receiver.machine.me],
                "__sender": names[packet.source],
                "__number": packet.message.number,
                "__stamp": stamp_of(packet),
                "__label": packet.message.label,
                "__since": since,
                "payload": packet.message.payload,
            }


def number_pending(state: dict[str, Any], settings: Settings, rows: list[dict[str, Any]]) -> None:
    """Give the messages that machines hold the numbers of their rows as payloads."""
    names = settings.processes
    numbers = {
        (row["__group"], row["__receiver"], row["__sender"], row["__number"]): row["__row"] for row in rows
    }
    for group, me, _, machine, _ in state["lanes"]:
        for packet in machine["pending"]:
            if (message := packet["message"]) is not None:
                key = (group, names[me], names[message["sender"]], message["number"])
                message["payload"] = numbers[key].to_bytes(8, "little")
