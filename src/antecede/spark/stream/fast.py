"""The receivers of a bucket that the kernel serves: counts delivered, and the rows that are held.

Only for stamps of counts, where the protocol orders, and as long as nothing was given up. A receiver where something is
gets a machine, made from what stands here (`released`), and stays with it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from antecede.errors import PeerError
from antecede.model import Message, Packet
from antecede.spark.stream import kernel, stamps
from antecede.spark.stream.packets import packet_of
from antecede.spark.stream.settings import Settings

__all__ = ["Fast", "Refused", "ROWS"]

ROWS: Final = pa.schema(
    [
        pa.field("lane", pa.int64()),
        pa.field("source", pa.int64()),
        pa.field("number", pa.int64()),
        pa.field("since", pa.int64()),
        pa.field("stamp", pa.binary()),
        pa.field("payload", pa.binary()),
    ]
)
"""Packets on their way through: of which receiver, from whom, since when."""

Refused = tuple[int, str]
"""A row, and why it is no packet."""


class Fast:
    """Receivers by number; `keys` says which they are."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.code = stamps.CODES[settings.protocol]
        self.n = len(settings.processes)
        self.keys: list[tuple[str, int]] = []
        """Of each receiver: its group and its process."""
        self.delivered: NDArray[np.int64] = np.zeros((0, self.n), np.int64)
        self.places: NDArray[np.int64] = np.zeros(0, np.int64)
        self.held: pa.Table = ROWS.empty_table()

    @staticmethod
    def serves(settings: Settings, me: int) -> bool:
        return settings.protocol in stamps.CODES and settings.machine(me).orders_at(me)

    def open(self, group: str, me: int) -> int:
        """A new receiver."""
        self.keys.append((group, me))
        if len(self.keys) > len(self.places):
            more = max(8, len(self.places))
            self.delivered = np.vstack([self.delivered, np.zeros((more, self.n), np.int64)])
            self.places = np.concatenate([self.places, np.zeros(more, np.int64)])
        self.delivered[len(self.keys) - 1, me] = np.iinfo(np.int64).max
        return len(self.keys) - 1

    def advance(self, rows: pa.Table) -> tuple[pa.Table, NDArray[np.int64], list[Refused]]:
        """Take rows in this order: those that are delivered, their places, and what is refused of `rows`."""
        table = pa.concat_tables([self.held, rows]).combine_chunks() if len(self.held) else rows
        old, total = len(self.held), len(table)
        lanes, sources, numbers = (
            # Arrow's own memory is read-only: another type, for which all would be compiled again.
            np.array(table[name].to_numpy(), np.int64)
            for name in ("lane", "source", "number")
        )
        position, first, last = (np.zeros(total, np.int64) for _ in range(3))
        process, count = self._decode(table, lanes, sources, numbers, position, first, last)
        refused: list[Refused] = []
        if not position.all():
            process, count, refused = self._ask(
                table, lanes, sources, numbers, position, first, last, process, count
            )
        state = np.zeros(total, np.int8)
        order, placed, next_, queue, woken = (np.zeros(total, np.int64) for _ in range(5))
        out = kernel.arrive(
            self.n, old, lanes, sources, numbers, position, first, last, process, count, self.delivered,
            self.places, state, order, placed, *kernel.tables(total), next_, queue, woken,
        )  # fmt: skip
        self.held = table.take(np.flatnonzero(state == kernel.HELD))
        return table.take(order[:out]), placed[:out], [(row - old, why) for row, why in refused]

    def sound(self, table: pa.Table) -> tuple[NDArray[np.int64], list[Refused]]:
        """Which rows are packets, and why the others are none. Nothing is taken."""
        lanes, sources, numbers = (
            np.array(table[name].to_numpy(), np.int64) for name in ("lane", "source", "number")
        )
        position, first, last = (np.zeros(len(table), np.int64) for _ in range(3))
        process, count = self._decode(table, lanes, sources, numbers, position, first, last)
        sure = np.flatnonzero(position)
        if len(sure) == len(table):
            return sure, []
        *_, refused = self._ask(table, lanes, sources, numbers, position, first, last, process, count)
        assert len(sure) + len(refused) == len(table), "a packet that is one is known as one"
        return sure, refused

    def _decode(
        self, table: pa.Table, lanes: Any, sources: Any, numbers: Any, position: Any, first: Any, last: Any
    ) -> tuple[Any, Any]:
        column = table["stamp"].combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        _, offsets, data = column.buffers()
        ends = np.array(np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1])
        octets = np.frombuffer(data if data is not None and data.size else b"\0", np.uint8)
        # Every entry takes a byte at least.
        room = int(ends[-1] - ends[0]) + 1 if len(ends) else 1
        process, count = np.zeros(room, np.int32), np.zeros(room, np.int64)
        mes = np.array([me for _, me in self.keys] or [0], np.int64)[lanes]
        # In two: the source of a packet from nobody, or from oneself, is not looked up.
        sound = np.flatnonzero((sources >= 0) & (sources < self.n) & (sources != mes))
        stamps.decode(
            self.code, self.n, octets, ends, sound, mes, lanes, sources, numbers, self.delivered, position, first,
            last, process, count, np.zeros(self.n + 8, np.int64), np.zeros(self.n + 8, np.int64),
        )  # fmt: skip
        return process, count

    def _ask(
        self, table: pa.Table, lanes: Any, sources: Any, numbers: Any, position: Any, first: Any, last: Any,
        process: Any, count: Any,
    ) -> tuple[Any, Any, list[Refused]]:  # fmt: skip
        """Have the rows that were not sure read by `antecede.wire` and checked by a machine."""
        refused: list[Refused] = []
        added: list[tuple[int, int]] = []
        for row in np.flatnonzero(position == 0).tolist():
            _, me = self.keys[lanes[row]]
            # A new one each: it is only asked, and keeps what it was asked.
            model = self.settings.machine(me)
            try:
                packet = self.packet(table, row, me)
                model.receive(packet)
            except PeerError as error:
                refused.append((row, str(error)))
                continue
            place, needs = model.asks(packet)
            position[row] = place[1]
            first[row] = len(process) + len(added)
            added += [need for need in needs if need[0] not in (me, packet.source)]
            last[row] = len(process) + len(added)
        if added:
            process = np.concatenate([process, np.array([key for key, _ in added], np.int32)])
            count = np.concatenate([count, np.array([reached for _, reached in added], np.int64)])
        return process, count, refused

    def packet(self, table: pa.Table, row: int, me: int) -> Packet[Any]:
        """A row as the packet that a machine takes."""
        source, number = table["source"][row].as_py(), table["number"][row].as_py()
        to = tuple(range(self.n)) if self.settings.everyone else (me,)
        message = Message(source, number, to, table["payload"][row].as_py() or b"")
        return packet_of(table["stamp"][row].as_py(), source, me, message)

    def released(self, lane: int) -> tuple[list[int], list[tuple[Packet[Any], int]]]:
        """What a machine for this receiver starts from: counts delivered, and the packets held with their times."""
        me = self.keys[lane][1]
        rows = np.flatnonzero(self.held["lane"].to_numpy() == lane)
        packets = [
            (self.packet(self.held, row, me), self.held["since"][row].as_py()) for row in rows.tolist()
        ]
        self.held = self.held.take(np.flatnonzero(self.held["lane"].to_numpy() != lane))
        return self.delivered[lane].tolist(), packets
