"""What machines know and packets carry, in the papers' own variables: for transcripts.

Everything is read from `Machine.dump`, `waiting` and the stamps: what a snapshot holds is what is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from antecede.model import Id, Packet, View, bits
from antecede.protocols import Machine
from antecede.protocols.history import History

Names = Mapping[Id, str]


def state(machine: Machine, names: Names) -> list[str]:
    """The machine's variables, one on each line."""
    return STATES[machine.name](machine, machine.dump(), names)


def stamp(packet: Packet[Any], view: View, names: Names) -> list[str]:
    """What a packet carries."""
    return STAMPS[type(packet.stamp).__name__](packet.stamp, view, names)


# Words


def _set(items: Iterable[str]) -> str:
    return "{" + ", ".join(items) + "}"


def _vector(view: View, counts: Sequence[int]) -> str:
    return " ".join(f"{name}:{count}" for name, count in zip(view.names, counts, strict=True))


def _queue(messages: Iterable[Mapping[str, Any]], names: Names) -> str:
    return ", ".join(names[m["sender"], m["number"]] for m in messages) or "empty"


def _processes(view: View, processes: Iterable[int]) -> str:
    return _set(map(view.name, processes))


def _log(entries: Iterable[tuple[Id, int]], view: View, names: Names) -> str:
    return (
        ", ".join(f"{names[key]} for {_processes(view, bits(to))}" for key, to in sorted(entries)) or "empty"
    )


# States


def _matrix(machine: Machine, dump: dict[str, Any], names: Names) -> list[str]:
    view = machine.view
    rows = [f"SENT[{view.name(k)}] {_vector(view, counts)}" for k, _, counts in dump["_rows"]]
    return [*rows, f"REC      {_vector(view, dump['_delivered'])}"]


def _describe_bounded(machine: Machine, dump: dict[str, Any], names: Names) -> list[str]:
    view, columns = machine.view, dump["_columns"]
    entries = [
        f"M[{view.name(int(i))}, {view.name(j)}] = {c if isinstance(c, int) else c[2]}"
        for j, col in enumerate(columns)
        for i, c in col.items()
    ]
    return [
        f"{len(entries)} entries" + (f": {', '.join(entries)}" if entries else ""),
        f"DELIV {_vector(view, dump['_delivered'])}",
    ]


def _monitor(machine: Machine, dump: dict[str, Any], names: Names) -> list[str]:
    lines = [f"f {_vector(machine.view, dump['_known'])}"]
    if machine.orders_at(machine.me):
        lines.append(f"k {_vector(machine.view, dump['_delivered'])}")
    return lines


def _broadcast(machine: Machine, dump: dict[str, Any], names: Names) -> list[str]:
    return [f"VT {_vector(machine.view, dump['_delivered'])}"]


def _buffer(machine: Machine, dump: dict[str, Any], names: Names) -> list[str]:
    flight = [flight["message"] for flight in dump["_flight"].values()]
    return [
        f"output buffer: {_queue(dump['_output'], names)}",
        f"posted, unacknowledged: {_queue(flight, names)}",
        f"input buffer: {_queue(dump['_inbox'], names)}",
    ]


def _history(machine: Machine, dump: dict[str, Any], names: Names) -> list[str]:
    """H, C, D and W as figure 4.1 of Rodrigues & Veríssimo 1995 shows them."""
    assert isinstance(machine, History)
    records = machine.histories()
    copies = [f"{names[key]}: {_processes(machine.view, copied)}" for key, (_, copied) in records.items()]
    delivered = sorted((sender, number) for (sender, _), number in dump["_delivered"].items())
    return [
        f"H {_set(names[key] for key in records)}",
        f"C {_set(copies)}",
        f"D {_set(names[key] for key in delivered)}",
        f"W {_set(names[waiting.message.id] for waiting in machine.waiting())}",
    ]


def _optimal(machine: Machine, dump: dict[str, Any], names: Names) -> list[str]:
    return [f"log: {_log(dump['_log'].items(), machine.view, names)}"]


def _underway(machine: Machine, dump: dict[str, Any], names: Names) -> list[str]:
    log = [((i, int(number)), to) for i, row in enumerate(dump["_rows"]) for number, to in row.items()]
    return [f"under way: {_log(log, machine.view, names)}", f"S {_vector(machine.view, dump['_settled'])}"]


def _permit(machine: Machine, dump: dict[str, Any], names: Names) -> list[str]:
    view = machine.view
    unacknowledged = [
        f"{names[machine.me, number]} by {view.name(dest)}"
        for number, dest, sequence, _ in sorted(dump["_order"], key=lambda entry: entry[1])
        if sequence > dump["_acked"][dest]
    ]
    flagged = [names[sender, number] for sender, numbers in enumerate(dump["_flagged"]) for number in numbers]
    return [
        f"unacknowledged: {', '.join(unacknowledged) or 'none'}",
        f"queue: {_queue(dump['_inbox'], names)}",
        f"flagged in the queue: {', '.join(flagged) or 'none'}",
        f"permitted up to {_vector(view, dump['_permitted'])}",
        f"outbox: {', '.join(_name_held(item, names) for item in dump['_outbox']) or 'empty'}",
    ]


def _name_held(item: Mapping[str, Any], names: Names) -> str:
    if item["type"] == "Restraint":
        return f"restraint of {names[item['sender'], item['number']]}"
    return names[item["message"]["sender"], item["message"]["number"]]


def _contexts(machine: Machine, dump: dict[str, Any], names: Names) -> list[str]:
    view = machine.view
    history = sorted(machine.everything().obligations)  # type: ignore[attr-defined]
    return [f"history: {', '.join(_obligation(one, view) for one in history) or 'empty'}"]


def _obligation(one: Sequence[int], view: View) -> str:
    sender, dest, count = one
    return f"{view.name(sender)} to {view.name(dest)}: {count}"


STATES: dict[str, Callable[[Machine, dict[str, Any], Names], list[str]]] = {
    "matrix": _matrix,
    "bounded": _describe_bounded,
    "sparing": _describe_bounded,
    "underway": _underway,
    "monitor": _monitor,
    "broadcast": _broadcast,
    "buffer": _buffer,
    "history": _history,
    "optimal": _optimal,
    "permit": _permit,
    "contexts": _contexts,
}


# Stamps


def _matrix_stamp(stamp: Any, view: View, names: Names) -> list[str]:
    return [f"row {view.name(row.process)}: {_vector(view, row.counts)}" for row in stamp.rows]


def _describe_bounded_stamp(stamp: Any, view: View, names: Names) -> list[str]:
    entries = [f"ST[{view.name(i)}, {view.name(j)}] = {count}" for i, j, count, *_ in stamp.matrix]
    return [", ".join(entries) or "nothing"]


def _extra(stamp: Any, view: View, names: Names) -> list[str]:
    return [", ".join(f"deliver {count} of {view.name(i)} first" for i, count in stamp.column)]


def _history_stamp(stamp: Any, view: View, names: Names) -> list[str]:
    return [f"H_m {_set(names[entry.sender, entry.number] for entry in stamp.history)}"]


def _log_stamp(stamp: Any, view: View, names: Names) -> list[str]:
    return [f"log: {_log((((s, c), to) for s, c, to in stamp.log), view, names)}"]


STAMPS: dict[str, Callable[[Any, View, Names], list[str]]] = {
    "ContextStamp": lambda stamp, view, names: [
        f"after {', '.join(_obligation(one, view) for one in sorted(stamp.after)) or 'nothing'}"
    ],
    "MatrixStamp": _matrix_stamp,
    "BoundedStamp": _describe_bounded_stamp,
    "SparingStamp": _describe_bounded_stamp,
    "UnderwayStamp": _log_stamp,
    "SparingExtra": _extra,
    "Extra": _extra,
    "HistoryStamp": _history_stamp,
    "LogStamp": lambda stamp, view, names: [
        f"log: {_log((((row[0], c), to) for row in stamp.log for c, to in row[2]), view, names)}"
    ],
    "MonitorStamp": lambda stamp, view, names: [f"e {_vector(view, stamp.vector)}"],
    "VectorStamp": lambda stamp, view, names: [f"VT {_vector(view, stamp.vector)}"],
    "PermitStamp": lambda stamp, view, names: [
        f"number {stamp.sequence} of the channel, {'flagged' if stamp.flagged else 'not flagged'}"
    ],
}
