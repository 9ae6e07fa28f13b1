"""Consistent cuts: where a run can be cut so that no message goes from after the cut to before it.

A *cut* says for each process how many of its events are before it. It is consistent if what is delivered before it
was sent before it (Mattern 1989). Below any cut there is a greatest consistent one, and it is found by steps that any
task can take by itself: if a message is sent after the cut and delivered before it, the cut of the receiver comes
down to that delivery. Cuts come down only, in any order of steps to the same end. A chain of such steps that comes to
a process again brings nothing new there, so after as many rounds as there are processes, and mostly after two or
three, nothing moves.

Two questions are of this kind.
- What waits for messages that are missing? Everything that is not in the greatest cut before their deliveries.
- Where can a long run be cut into pieces that are ordered one after the other? At the greatest cuts before some points
  in time. Several cuts of one run, each after the one before it, come down together.

An edge is a message from its send to one delivery: (source, sent, target, delivered), processes of all runs numbered
as *lines*. Cuts are a table of one row a line and one column a cut: small, so it goes to every task and comes back
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

__all__ = ["find_consistent_cuts", "link_events", "number_lines", "lower_cuts", "count_cuts_before"]

Numbers = NDArray[np.int64]

EDGES: Final = ("source", "sent", "target", "delivered")
LOWERED: Final = "line long, cut long, at long"


def number_lines(counts: pa.Table) -> pa.Table:
    """The lines of a table (run, process, rows), in the order of names."""
    table = counts.select(["run", "process", "rows"]).sort_by(
        [("run", "ascending"), ("process", "ascending")]
    )
    return table.append_column("line", pa.array(np.arange(len(table))))


def link_events(events: DataFrame, lines: pa.Table) -> DataFrame:
    """The messages of these lines' runs, from each send to each of its deliveries."""
    known = F.broadcast(events.sparkSession.createDataFrame(lines.select(["run", "process", "line"])))
    said = events.where(~F.col("control")).join(known, ["run", "process"])
    sends = said.where("kind = 'send'").select(
        "run", "sender", "number", F.col("line").alias("source"), F.col("index").alias("sent")
    )
    deliveries = said.where("kind = 'deliver'").select(
        "run", "sender", "number", F.col("line").alias("target"), F.col("index").alias("delivered")
    )
    return deliveries.join(sends, ["run", "sender", "number"]).select(*EDGES)


def count_cuts_before(cuts: Numbers, line: Numbers, index: Numbers) -> Numbers:
    """How many cuts each of these events is behind.

    >>> count_cuts_before(np.array([[2, 5], [0, 1]]), np.array([0, 0, 1, 0]), np.array([1, 2, 0, 9])).tolist()
    [0, 1, 1, 2]
    """
    # All rows of the table in one sorted list: each line above the one before.
    wide = max(int(cuts.max(initial=0)), int(index.max(initial=0))) + 1
    ends = (cuts + wide * np.arange(len(cuts))[:, None]).ravel()
    behind: Numbers = np.searchsorted(ends, line * wide + index, side="right") - line * cuts.shape[1]
    return behind


def lower_cuts(cuts: Numbers, source: Numbers, sent: Numbers, target: Numbers, delivered: Numbers) -> Numbers:
    """The greatest cuts below these ones that these edges do not cross backwards.

    >>> p, q, r = 0, 1, 2  # p sends at 3 to q, which delivers at 1, then sends at 2 to r, which delivers at 0
    >>> edges = np.array([p, q]), np.array([3, 2]), np.array([q, r]), np.array([1, 0])
    >>> lower_cuts(np.array([[3], [9], [9]]), *edges).tolist()
    [[3], [1], [0]]
    """
    cuts = cuts.copy()
    while True:
        behind = count_cuts_before(cuts, source, sent)
        back = np.flatnonzero(behind > count_cuts_before(cuts, target, delivered))
        if not len(back):
            return cuts
        np.minimum.at(cuts, (target[back], behind[back] - 1), delivered[back])
        # A cut is not above the next one.
        cuts = np.minimum.accumulate(cuts[:, ::-1], axis=1)[:, ::-1].copy()
        # What is in order now stays so, unless its source's cut comes down: look at all again, in this batch.


def lower_in_task(cuts: Numbers) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The work of a task: how far its edges bring the cuts down."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        now = cuts
        for batch in batches:
            now = lower_cuts(now, *(batch.column(name).to_numpy() for name in EDGES))
        line, cut = np.nonzero(now < cuts)
        yield pa.record_batch({"line": line, "cut": cut, "at": now[line, cut]})

    return task


def find_consistent_cuts(links: DataFrame, cuts: Numbers) -> Numbers:
    """The greatest consistent cuts below these. `links` are edges; they are read once for each round."""
    while True:
        found = (
            links.mapInArrow(lower_in_task(cuts), LOWERED)
            .groupBy("line", "cut")
            .agg(F.min("at").alias("at"))
            .toArrow()
        )
        if not len(found):
            return cuts
        cuts = cuts.copy()
        at = found["line"].to_numpy(), found["cut"].to_numpy()
        cuts[at] = np.minimum(cuts[at], found["at"].to_numpy())
        cuts = np.minimum.accumulate(cuts[:, ::-1], axis=1)[:, ::-1].copy()
