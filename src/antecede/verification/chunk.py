"""A scan of one chunk: what it decides, and the summary of what it does not.

`Scan` drives the kernel: it hands it rows, gives it room when it asks, and says what is wrong when something is.

Memory. A scan of n processes holds n² counters of 4 bytes, and a slab for each message in flight at the same time: 64
bytes, n counters, a bit for each symbol, two for each process. Arrays double when they are full. All of it together
stays within `memory`, or the scan ends with `TooMuchInFlight`. In a block of origins, rows are as wide as the block.
Counters take 8 bytes from where a process could have sent more than 4 bytes count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.jit.hashtable import grown as grown_table
from antecede.jit.hashtable import table_of
from antecede.trace.columns import Rows
from antecede.verification import state as fields
from antecede.verification.findings import (
    DUPLICATE,
    UNADDRESSED,
    VIOLATION,
    Encoded,
    Findings,
    Ids,
    Impossible,
)
from antecede.verification.kernel import (
    EARLY_DELIVERY,
    LATE,
    MORE_DEFERRED,
    MORE_RECORDS,
    MORE_SLABS,
    MORE_SYMBOLS,
    MORE_TABLE,
    SECOND_SEND,
    WRONG_SENDER,
    scan,
)
from antecede.verification.state import (
    Columns,
    State,
    grown,
    new_state,
    pad_lanes,
    words_for,
)

__all__ = ["MEMORY", "Part", "Scan", "Summary", "TooManySymbols", "TooMuchInFlight"]

Array: TypeAlias = NDArray[Any]

MOST_SYMBOLS: Final = 1 << 14
MEMORY: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Summary(Encoded):
    """What a chunk does to the clocks, and what it could not decide, as a value that goes from task to task.

    Rows are processes, messages in flight, or deferred checks; see state.py for what is in them.
    Marks are bits: of the entry clocks of processes, up to a whole word, and then of the crossing messages.

    Size, before compression: n processes, S messages that cross into the chunk, D deliveries of these, F messages still
    in flight at its end take about 4 n² + n S/8 + F (4 n + S/8 + n/4) + D (40 + S/8) bytes. With n = 64 and a thousand
    messages in flight that is half a megabyte, whatever the length of the chunk.
    """

    shape: Array
    """n, deliveries, rows, and the block of origins: its first, and the one after its last."""
    clocks: Array
    marks: Array
    seen: Array
    sends: Array
    numbers: Array
    steady: Array
    flights: Array
    flight_clocks: Array
    flight_marks: Array
    missing: Array
    given: Array
    symbols: Array
    deferred: Array
    deferred_marks: Array
    late: Array
    """Deliveries of messages that were sent here, or nowhere: process, sender, number, index, position."""

    @property
    def n(self) -> int:
        return int(self.shape[0])

    @property
    def deliveries(self) -> int:
        """All of the chunk's, repeated ones too."""
        return int(self.shape[1])

    @property
    def block(self) -> tuple[int, int]:
        return int(self.shape[3]), int(self.shape[4])


@dataclass(frozen=True, slots=True)
class Part:
    """What one scan gives."""

    summary: Summary
    """For `combine`; goes over the network as bytes."""
    findings: Findings
    """Decided here: duplicates and unaddressed deliveries."""
    overtaken: Array
    """Violations decided here, for a `ProofScan` over the same rows: process, sender, number, index, position, and that
    of the send."""
    past: int = 0
    """Pairs of messages of which the first happened before the second, if the scan counts chains ..."""
    longest: int = 0
    """... and the messages in the longest one."""


WRONG: Final = {
    SECOND_SEND: "is sent a second time",
    EARLY_DELIVERY: "is sent after its delivery, by its clocks",
    WRONG_SENDER: "is sent by another process than its sender",
}
NARROW: Final = (1 << 31) - 1
"""What a counter of 32 bits counts to."""


class TooManySymbols(Exception):
    """More messages cross into this chunk than a summary has room for: plan by origin instead."""

    def __init__(self, most: int) -> None:
        self.most = most
        super().__init__(f"more than {most} messages cross into the chunk")


class TooMuchInFlight(Exception):
    """The clocks of the messages in flight do not fit into the memory allowed: plan smaller blocks of origins."""

    def __init__(self, wanted: int, allowed: int) -> None:
        self.wanted, self.allowed = wanted, allowed
        super().__init__(f"{wanted} bytes for messages in flight, of {allowed} allowed")


class Scan:
    """Reads the rows of one chunk of a run, in order.

    n: how many processes there are. first: nothing precedes this chunk.
    block: only these origins' clock entries, from low up to and without high; needs `first`, and the whole run.
    keep: messages never to forget, see the package. chains: count them, too, which needs `first`.
    symbols, memory: how many messages may cross, bytes allowed.
    """

    def __init__(
        self,
        n: int,
        first: bool = False,
        *,
        block: tuple[int, int] | None = None,
        keep: Ids | None = None,
        chains: bool = False,
        symbols: int = MOST_SYMBOLS,
        memory: int = MEMORY,
    ) -> None:
        assert block is None or first, "a block of origins takes the whole run"
        self.n, self.block, self.first, self.past = n, block, first, 0
        self.most_symbols, self.memory = symbols, memory
        capacity = pad_lanes(n)
        width = pad_lanes(block[1] - block[0]) if block else capacity
        self.state: State = new_state(capacity, width, 0 if first else 64)
        self.counts[fields.FREE] = len(self.state.free)
        self.counts[fields.FIRST], self.counts[fields.COUNTING] = first, chains
        self.counts[fields.LOW], self.counts[fields.HIGH] = block or (0, capacity)
        self.counts[fields.PROCESS_WORDS] = words_for(capacity)
        if not first:
            # Each process has merged in the clock that it entered with.
            for q in range(capacity):
                self.state.marks[q, q // fields.WORD] |= np.uint64(1 << q % fields.WORD)
        if keep is not None and len(keep):
            self.state = self.state._replace(keep=table_of(keep.sender, keep.number))
        self._allow()

    @property
    def counts(self) -> Array:
        return self.state.counts

    def feed(self, rows: Rows) -> None:
        """Raises `Impossible`, `TooManySymbols`, `TooMuchInFlight`."""
        columns = columns_of(rows)
        for column in (columns.process, columns.sender, columns.to):
            assert not len(column) or (column.min() >= 0 and column.max() < self.n), "a process is not known"
        if int(self.state.sends.max(initial=0)) + len(rows) > NARROW:
            self._count_wide()
        row = 0
        while (row := scan(columns, row, self.state)) < len(rows):
            self._serve(int(self.counts[fields.STATUS]), columns, row)
        self.counts[fields.POSITION] += len(rows)
        # A Python integer: the sum over all messages of a long run may not fit into 64 bits.
        self.past += int(self.counts[fields.PAST])
        self.counts[fields.PAST] = 0

    def _serve(self, status: int, columns: Columns, row: int) -> None:
        if status in WRONG:
            at = (columns.process, columns.indices, columns.sender, columns.number)
            raise Impossible(WRONG[status], *(int(column[row]) for column in at))
        more = {MORE_SLABS: self._more_slabs, MORE_TABLE: self._more_table, MORE_SYMBOLS: self._more_symbols}
        if status in more:
            more[status]()
        else:
            self._double(*{MORE_RECORDS: ("records",), MORE_DEFERRED: ("deferred", "deferred_marks")}[status])

    # Room.

    def _count_wide(self) -> None:
        names = ("clocks", "seen", "sends", "flight_clocks")
        self.state = self.state._replace(
            **{name: getattr(self.state, name).astype(np.int64) for name in names}
        )

    def _allow(self, **wanted: int) -> None:
        """Refuse to grow these arrays to so many bytes, if with all others that is too much."""
        held = self.state._asdict()
        total = sum(array.nbytes for name, array in held.items() if name not in wanted) + sum(wanted.values())
        if total > self.memory:
            raise TooMuchInFlight(total, self.memory)

    def _wider(self, **shapes: tuple[int, ...]) -> None:
        sizes = {name: int(np.prod(s)) * getattr(self.state, name).itemsize for name, s in shapes.items()}
        self._allow(**sizes)
        self.state = self.state._replace(**{k: grown(getattr(self.state, k), *s) for k, s in shapes.items()})

    def _double(self, *names: str) -> None:
        arrays = ((name, getattr(self.state, name)) for name in names)
        self._wider(**{name: (2 * len(array), *array.shape[1:]) for name, array in arrays})

    def _more_slabs(self) -> None:
        old = len(self.state.free)
        self._double("free", "flights", "flight_clocks", "flight_marks", "missing", "given")
        self.state.free[:old] = np.arange(2 * old - 1, old - 1, -1)
        self.counts[fields.FREE] = old

    def _more_table(self) -> None:
        self._allow(table=2 * self.state.table.nbytes)
        self.state = self.state._replace(table=grown_table(self.state.table))

    def _more_symbols(self) -> None:
        state, most = self.state, min(2 * len(self.state.symbols), self.most_symbols)
        if most <= len(state.symbols):
            raise TooManySymbols(self.most_symbols)
        bits = int(self.counts[fields.PROCESS_WORDS]) + words_for(most)
        self._wider(
            symbols=(most, 2),
            marks=(len(state.marks), bits),
            flight_marks=(len(state.flight_marks), bits),
            deferred_marks=(len(state.deferred_marks), bits),
        )

    def finish(self) -> Part:
        records = self.state.records[: self.counts[fields.RECORDS]]
        plain = [
            Findings.plain(kind, *records[records[:, 0] == kind, 1:5].T) for kind in (DUPLICATE, UNADDRESSED)
        ]
        overtaken = records[records[:, 0] == VIOLATION, 1:]
        longest = int(self.counts[fields.LONGEST])
        return Part(summarise(self), Findings.concatenate(plain), overtaken, self.past, longest)


def columns_of(rows: Rows) -> Columns:
    """As the kernel takes them."""
    assert rows.index is not None, "verification needs the column index"
    columns = (
        (rows.process, np.int32),
        (rows.kind, np.int8),
        (rows.sender, np.int32),
        (rows.number, np.int64),
        (rows.control, np.bool_),
        (rows.offsets, np.int32),
        (rows.to, np.int32),
        (rows.index, np.int64),
    )
    return Columns(*(_frozen(np.ascontiguousarray(column, dtype)) for column, dtype in columns))


def _frozen(column: Array) -> Array:
    column = column.view()
    column.flags.writeable = False
    return column


# The summary


def summarise(scanner: Scan) -> Summary:
    """The summary of a scan that has read all of its chunk."""
    state, counts, n = scanner.state, scanner.counts, scanner.n
    low, high = scanner.block or (0, n)
    flying = _in_flight(scanner)
    symbols, deferred = int(counts[fields.SYMBOLS]), int(counts[fields.DEFERRED])
    records = state.records[: counts[fields.RECORDS]]
    words = fields.words_for(n)
    return Summary(
        shape=np.array([n, counts[fields.DELIVERIES], counts[fields.POSITION], low, high], np.int64),
        clocks=state.clocks[:n, : high - low],
        marks=_marks_in_use(scanner, state.marks[:n]),
        seen=state.seen[:n],
        sends=state.sends[:n],
        numbers=state.numbers[:n],
        steady=state.steady[:n],
        flights=state.flights[flying],
        flight_clocks=state.flight_clocks[flying, : high - low],
        flight_marks=_marks_in_use(scanner, state.flight_marks[flying]),
        missing=state.missing[flying, :words],
        given=state.given[flying, :words],
        symbols=state.symbols[:symbols],
        deferred=state.deferred[:deferred],
        deferred_marks=_marks_in_use(scanner, state.deferred_marks[:deferred]),
        late=records[records[:, 0] == LATE, 1:6],
    )


def _in_flight(scanner: Scan) -> Array:
    """The slabs in use, in the order of sends."""
    state = scanner.state
    used = np.ones(len(state.free), bool)
    used[state.free[: scanner.counts[fields.FREE]]] = False
    slabs = np.flatnonzero(used)
    ordered: Array = slabs[np.argsort(state.flights[slabs, fields.SENT_AT])]
    return ordered


def _marks_in_use(scanner: Scan, marks: Array) -> Array:
    """Only the words in use."""
    if scanner.first:
        return np.zeros((len(marks), fields.words_for(scanner.n)), np.uint64)
    symbols = fields.words_for(int(scanner.counts[fields.SYMBOLS]))
    return marks[:, : int(scanner.counts[fields.PROCESS_WORDS]) + symbols]
