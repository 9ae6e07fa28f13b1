"""Rows of integers on their way into Arrow: packed one by one, rendered a group at a time.

A row is packed into a buffer as fixed-size integers. Destinations and labels are interned, for one group only, so that
memory does not grow with the number of different ones. Rendering looks at whole columns: names are dictionaries over
the integers, positions in each process's own order are counted with one stable sort.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from antecede.errors import BadParameter, UnknownProcess
from antecede.trace.schema import ENCODED, EVENTS, KINDS, READ, RunInfo

__all__ = ["ROW", "WRITTEN", "Renderer"]

ROW: Final = struct.Struct("<qqqiiiiiibb")
FIELDS: Final = np.dtype(
    [(name, "<i8") for name in ("time_ns", "clock", "number")]
    + [(name, "<i4") for name in ("process", "sender", "to", "label", "stamp_entries", "stamp_bytes")]
    + [(name, "i1") for name in ("control", "kind")]
)
assert FIELDS.itemsize == ROW.size

WRITTEN: Final = READ.set(
    READ.get_field_index("to"),
    EVENTS.field("to").with_type(pa.list_(EVENTS.field("to").type.value_field.with_type(ENCODED))),
)
"""What is given to Parquet: names as integers in the lists too. (Arrow cannot read such lists back, so no file says
that it was written from them.)"""

Column = npt.NDArray[Any]


class Renderer:
    """Turns packed rows of one run into record batches, counting each process's events and watching their order."""

    def __init__(self, run: RunInfo) -> None:
        self.run = run
        self._names = pa.array(run.processes, pa.string())
        self._kinds = pa.array(KINDS, pa.string())
        self._counts = np.zeros(len(run.processes), np.int64)
        # Files are read by tools that compare names, not our integers.
        self._rank = np.argsort(np.argsort(np.array([name.encode() for name in run.processes], object)))
        self._last: tuple[int, int] | None = None
        self.ordered = True
        """Whether all rows since `restart` came in the order (clock, process, index)."""

    def restart(self) -> None:
        """A new file begins, with an order of its own."""
        self._last, self.ordered = None, True

    def render(
        self, packed: memoryview, to: Collection[tuple[int, ...]], labels: Collection[str]
    ) -> pa.RecordBatch:
        """The batch of these rows; `to` and `labels` are what their interned integers stand for."""
        rows = np.frombuffer(packed, FIELDS)
        flat = np.fromiter((process for group in to for process in group), np.int32)
        process, sender = rows["process"].astype(np.int32), rows["sender"].astype(np.int32)
        self._check(process, sender, flat, rows["kind"])
        index = self._index(process)
        self._watch(rows["clock"], process)
        columns = {
            "run": names(np.zeros(len(rows), np.int32), pa.array([self.run.run], pa.string())),
            "process": names(process, self._names),
            "index": pa.array(index),
            "kind": names(rows["kind"].astype(np.int32), self._kinds),
            "sender": names(sender, self._names),
            "to": self._lists(rows["to"], to, flat),
            "control": pa.array(rows["control"] != 0),
            "label": names(rows["label"].astype(np.int32), pa.array(labels, pa.string())),
        }
        for name in ("number", "time_ns"):
            columns[name] = pa.array(np.ascontiguousarray(rows[name]))
        for name in ("clock", "stamp_entries", "stamp_bytes"):
            columns[name] = pa.array(np.ascontiguousarray(rows[name]), mask=rows[name] < 0)
        return pa.RecordBatch.from_arrays([columns[name] for name in WRITTEN.names], schema=WRITTEN)

    def _check(self, process: Column, sender: Column, to: Column, kind: Column) -> None:
        for column in (process, sender, to):
            wrong = column[(column < 0) | (column >= len(self.run.processes))]
            if len(wrong):
                raise UnknownProcess(int(wrong[0]), self.run.processes)
        wrong = kind[(kind < 0) | (kind >= len(KINDS))]
        if len(wrong):
            raise BadParameter(
                f"run {self.run.run}", f"kind must be 0 to {len(KINDS) - 1}, not {int(wrong[0])}"
            )

    def _index(self, process: Column) -> Column:
        """Each row's position in its process's own order, going on from the groups before."""
        here = np.bincount(process, minlength=len(self._counts))
        by_process = np.argsort(process, kind="stable")
        index = np.empty(len(process), np.int64)
        index[by_process] = np.arange(len(process)) - np.repeat(np.cumsum(here) - here - self._counts, here)
        self._counts += here
        return index

    def _watch(self, clock: Column, process: Column) -> None:
        rank = self._rank[process]
        if self._last is not None:
            clock, rank = np.append(self._last[0], clock), np.append(self._last[1], rank)
        step = np.diff(clock)
        # Rows of one process that share a clock are in order: their indices grow.
        in_order = np.all((step > 0) | ((step == 0) & (np.diff(rank) >= 0))) and np.all(clock >= 0)
        self.ordered = self.ordered and bool(in_order)
        self._last = (int(clock[-1]), int(rank[-1]))

    def _lists(self, which: Column, to: Collection[tuple[int, ...]], flat: Column) -> pa.Array:
        """Interned destinations as lists, gathered without a loop over rows."""
        lengths = np.fromiter((len(group) for group in to), np.int64, len(to))
        starts = np.cumsum(lengths) - lengths
        absent = which < 0
        # One more group, empty, is what -1 looks up.
        length = np.append(lengths, 0)[which]
        offsets = np.concatenate(([0], np.cumsum(length)))
        gather = np.arange(offsets[-1]) + np.repeat(np.append(starts, 0)[which] - offsets[:-1], length)
        return pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)),
            names(flat[gather], self._names),
            type=WRITTEN.field("to").type,
            mask=pa.array(absent),
        )


def names(which: Column, dictionary: pa.Array) -> pa.Array:
    """Integers as names; -1 is null."""
    absent = which < 0
    indices = pa.array(which, mask=absent) if absent.any() else pa.array(which)
    return pa.DictionaryArray.from_arrays(indices, dictionary, safe=False)
