"""What verification finds, as columns: one row for each finding.

Definitions are the oracle's (antecede.oracle): every kind counts copies, a message at a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.blob import pack, unpack

__all__ = ["KINDS", "Encoded", "Findings", "Ids", "Impossible", "NOBODY", "findings_of"]

Column: TypeAlias = NDArray[Any]

KINDS: Final = ("violation", "fifo_break", "duplicate", "unsent", "unaddressed", "undelivered")
VIOLATION, FIFO_BREAK, DUPLICATE, UNSENT, UNADDRESSED, UNDELIVERED = range(6)

NOBODY: Final = -1
"""Stands for a process, or an index, where there is none."""


class Encoded:
    """Arrays that go from task to task as bytes."""

    __slots__ = ()

    def encode(self) -> bytes:
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return pack(type(self).__name__, arrays)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(**unpack(cls.__name__, data))


@dataclass(frozen=True, slots=True)
class Ids(Encoded):
    """Identities of messages."""

    sender: Column
    """int32"""
    number: Column
    """int64"""

    @classmethod
    def none(cls) -> Ids:
        return cls(np.empty(0, np.int32), np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.sender)


@dataclass(frozen=True, slots=True)
class Findings:
    """Columns of equal length. The chain of row r is at `chain_start[r] : chain_start[r + 1]` of the chain columns.

    Only violations and FIFO breaks have `by` and a chain (from the message to `by`, both included).
    """

    kind: Column
    """int8, a position in KINDS"""
    process: Column
    """int32: where it was, or should have been, delivered"""
    sender: Column
    """int32"""
    number: Column
    """int64"""
    index: Column
    """int64: of the delivery, or -1 if there is none (undelivered)"""
    by_sender: Column
    """int32, or -1"""
    by_number: Column
    """int64, 0 where by_sender is -1"""
    chain_start: Column
    """int64, one more than there are rows"""
    chain_sender: Column
    """int32"""
    chain_number: Column
    """int64"""

    def __len__(self) -> int:
        return len(self.kind)

    @classmethod
    def none(cls) -> Findings:
        empty = np.empty(0, np.int64)
        return cls.plain(DUPLICATE, empty, empty, empty, empty)

    @classmethod
    def plain(cls, kind: int, process: Column, sender: Column, number: Column, index: Column) -> Findings:
        """Findings of a kind that has no proof."""
        length = len(process)
        return cls(
            np.full(length, kind, np.int8),
            process.astype(np.int32),
            sender.astype(np.int32),
            number.astype(np.int64),
            index.astype(np.int64),
            np.full(length, NOBODY, np.int32),
            np.zeros(length, np.int64),
            np.zeros(length + 1, np.int64),
            np.empty(0, np.int32),
            np.empty(0, np.int64),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Findings]) -> Findings:
        """One after the other."""
        if not parts:
            return cls.none()
        ends = np.cumsum([0, *(len(part.chain_sender) for part in parts)])
        starts = [part.chain_start[:-1] + end for part, end in zip(parts, ends, strict=False)]
        columns = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)}
        return cls(**columns | {"chain_start": np.append(np.concatenate(starts), ends[-1])})


def findings_of(
    process: Column,
    sender: Column,
    number: Column,
    index: Column,
    ends: Column,
    chain: Column,
    fifo: Column,
    later_number: Column,
) -> Findings:
    """Violations, each with its chain up to `ends`; and where `fifo`, a FIFO break by the sender's later message."""
    by = chain[ends - 1]
    violations = replace(
        Findings.plain(VIOLATION, process, sender, number, index),
        by_sender=by[:, 0].astype(np.int32),
        by_number=by[:, 1].copy(),
        chain_start=np.concatenate(([0], ends)).astype(np.int64),
        chain_sender=chain[:, 0].astype(np.int32),
        chain_number=chain[:, 1].copy(),
    )
    sender, number, by_number = sender[fifo], number[fifo], later_number[fifo]
    breaks = replace(
        Findings.plain(FIFO_BREAK, process[fifo], sender, number, index[fifo]),
        by_sender=sender.astype(np.int32),
        by_number=by_number,
        chain_start=2 * np.arange(len(sender) + 1, dtype=np.int64),
        chain_sender=np.repeat(sender, 2).astype(np.int32),
        chain_number=np.column_stack((number, by_number)).reshape(-1),
    )
    return Findings.concatenate([violations, breaks])


class Impossible(Exception):
    """Rows that cannot be a run in this order. The caller knows file and names, and raises a `BadTrace` with them.

    `reason` goes on after the name of a message: "is sent twice".
    """

    def __init__(self, reason: str, process: int, index: int, sender: int, number: int) -> None:
        self.reason, self.process, self.index, self.sender, self.number = (
            reason,
            process,
            index,
            sender,
            number,
        )
        super().__init__(f"process {process}, index {index}: message {number} of {sender} {reason}")
