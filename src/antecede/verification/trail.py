"""How the news of overtaken messages that cross chunks travelled within one chunk: a scan from the true clocks.

Asked for by `combine` (crossing.py says what is in `data`), answered as bytes for `Outcome.join`: for each target and
each process that learns of it here, the message that told it; and the first later message of the same sender.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.jit.hashtable import find, insert
from antecede.trace.columns import Rows
from antecede.verification import state as names
from antecede.verification.blob import pack, unpack
from antecede.verification.chains import CAME, PINNED, activate, new_watched
from antecede.verification.chunk import MEMORY
from antecede.verification.findings import Ids
from antecede.verification.scanner import Scanner

__all__ = ["Trail"]

Array: TypeAlias = NDArray[Any]


class Trail:
    """Reads the rows of one chunk, in order."""

    def __init__(self, data: bytes, memory: int = MEMORY) -> None:
        """`data` is one of `Outcome.trails`."""
        self._asked = asked = unpack("trail", data)
        n = len(asked["seen"])
        keep = Ids(asked["keep_senders"], asked["keep_numbers"])
        self._scanner = scanner = Scanner(n, True, None, keep, 0, memory)
        scanner.state.clocks[:n, :n] = asked["clocks"]
        scanner.state.seen[:n] = asked["seen"]
        self._board(asked)
        here = asked["here_positions"]
        targets = np.column_stack((here, np.full(len(here), PINNED)))
        watched = new_watched(n, scanner.state.clocks.shape[1], targets, len(here) + len(asked["before"]) + 1)
        for sender, ordinal in zip(asked["before_senders"], asked["before_ordinals"], strict=True):
            activate(watched, sender, np.int64(ordinal), np.int64(PINNED))
        scanner.watch(watched)

    def _board(self, asked: dict[str, Array]) -> None:
        """The messages that cross into the chunk are under way. Who is owed them is not asked here."""
        scanner, crossing = self._scanner, asked["crossing"]
        scanner.reserve(len(crossing))
        state, counts = scanner.state, scanner.counts
        for row, (sender, number) in enumerate(crossing):
            counts[names.FREE] -= 1
            counts[names.USED] += 1
            slab = state.free[counts[names.FREE]]
            state.flights[slab] = (sender, number, asked["crossing_ordinals"][row], 0, 0, True, -1, -1)
            state.flights[slab, names.TARGET] = asked["crossing_targets"][row]
            state.flight_clocks[slab, : asked["crossing_clocks"].shape[1]] = asked["crossing_clocks"][row]
            insert(state.table, find(state.table, sender, number), sender, number, np.int64(slab))

    def feed(self, rows: Rows) -> None:
        self._scanner.feed(rows)

    def finish(self) -> bytes:
        watched, n = self._scanner.watched, len(self._asked["seen"])
        targets = np.concatenate((self._asked["before"], self._asked["here"]))
        told = np.nonzero(watched.via_sender[: len(targets)] >= 0)
        later = np.nonzero(watched.later[: len(targets)] == CAME)
        return pack(
            "trail found",
            {
                "n": np.array([n]),
                "via_target": targets[told[0]],
                "via_process": told[1],
                "via_sender": watched.via_sender[told],
                "via_number": watched.via_number[told],
                "later_target": targets[later[0]],
                "later_process": later[1],
                "later_number": watched.later_number[later],
            },
        )
