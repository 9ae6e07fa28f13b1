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
from antecede.spark.stream.cut import octets_of
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
        position, first, last, order, placed, next_, queue, woken = (
            np.zeros(total, np.int64) for _ in range(8)
        )
        octets, ends = octets_of(table["stamp"])
        # Every entry takes a byte at least; what a machine is asked about takes its turn.
        room = int(ends[-1] - ends[0]) + self.n + 1 if total else 1
        process, count = np.zeros(room, np.int32), np.zeros(room, np.int64)
        state, cursor, mes = np.zeros(total, np.int8), np.zeros(3, np.int64), self._mes(lanes)
        scratch = np.zeros(self.n + 8, np.int64), np.zeros(self.n + 8, np.int64), np.zeros(1, np.int64)
        tables = kernel.tables(total)
        refused: list[Refused] = []
        while True:
            row = kernel.arrive(
                self.code, self.n, octets, ends, mes, lanes, sources, numbers, position, first, last, process, count,
                self.delivered, self.places, state, order, placed, *tables, next_, queue, woken, *scratch, cursor,
            )  # fmt: skip
            if row < 0:
                break
            asked = self.asked(table, row, int(mes[row]))
            if isinstance(asked, str):
                refused.append((row, asked))
                state[row] = kernel.DROPPED
                cursor[0] = row + 1
                continue
            position[row], needs = asked
            first[row] = used = int(cursor[1])
            if used + len(needs) > len(process):
                process, count = (np.concatenate([part, np.zeros_like(part)]) for part in (process, count))
            for key, reached in needs:
                process[used], count[used] = key, reached
                used += 1
            last[row] = cursor[1] = used
        out = int(cursor[2])
        self.held = table.take(np.flatnonzero(state == kernel.HELD))
        return table.take(order[:out]), placed[:out], [(row - old, why) for row, why in refused]

    def _mes(self, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The process of each row's receiver."""
        processes: NDArray[np.int64] = np.array([me for _, me in self.keys] or [0], np.int64)[lanes]
        return processes

    def asked(self, table: pa.Table, row: int, me: int) -> str | tuple[int, list[tuple[int, int]]]:
        """Have a row that is not sure read and checked by a machine: its place and needs, or why it is no packet."""
        # A new one each: it is only asked, and keeps what it was asked.
        model = self.settings.machine(me)
        try:
            packet = self.packet(table, row, me)
            model.receive(packet)
        except PeerError as error:
            return str(error)
        place, needs = model.asks(packet)
        return place[1], [need for need in needs if need[0] not in (me, packet.source)]

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
