"""Whole partitions of events that name their causes, judged in a task: Arrow in, findings and counts out.

An *event* is an identifier, with the causes of all rows that have it. Rules, for each consumer by itself
  1. an event stands where the consumer was handed it first;
  2. the first effect of an event is the one that stands first among all that have the event in their past, whether
     or not the consumer was handed what lies between;
  3. an event is late if its first effect stands before it. Equal positions are in no order: a tie is not late.

Each consumer costs one walk from what it was handed up to all causes of that, and one back: linear in those events and
the causes that they name. The first effect of an event is the least of its effects and of their first effects, so an
event is settled when all its effects are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from antecede.jit import allocating
from antecede.spark.order.graph import find_ties, flatten_causes, follow_causes, list_by, make_room
from antecede.spark.run_tasks import Numbers, find_starts, number_groups, one_array, times_of

__all__ = ["CHAIN_MOST", "COUNTS", "describe_cycle", "describe_rows", "find_late", "judge_table"]

COUNTS: Final = (
    "rows", "events", "causes", "handed", "judged", "violations", "missing", "duplicates", "ties",
)  # fmt: skip
"""What is counted in each partition, in the order of the columns."""
CHAIN_MOST: Final = 256
"""Events of a chain that are told, at most. If n events come backwards, all their chains have n²/2 events."""
UNNAMED: Final = "without an id"
UNPLACED: Final = (
    "handed to a consumer at no position or time, or at a text that is neither an integer nor ISO 8601"
)


def judge_table(table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """In a task: judge a table that holds partitions from end to end."""
    group = number_groups(table, names)
    many = int(group.max(initial=-1)) + 1
    mine = pc.is_valid(one_array(table["__consumer"])).to_numpy(zero_copy_only=False)
    stated, row = flatten_causes(table["__causes"])
    events = follow_causes(group, one_array(table["__id"]), stated, row, most=0)
    shown, node, cause, effect = events.names, events.node, events.cause, events.effect
    nodes = len(shown)
    mark, home = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    mark[node] = one_array(table["__mark"]).to_numpy()
    home[node] = group
    home[cause] = group[row]
    reasons = explain_groups(table, group, mine, events.cycles)
    good = np.ones(many, np.bool_)
    good[list(reasons)] = False
    rows = np.zeros(many, np.int64)
    rows[group[::-1]] = np.arange(len(group))[::-1]

    def tell(kind: str, whose: Numbers, **columns: Any) -> pa.Table:
        """A row for each of these groups; what a kind does not have is null."""
        own = {name: table[name].take(pa.array(rows[whose])) for name in names}
        return pa.table({"kind": pa.repeat(kind, len(whose)), **own, **columns})

    def name(numbers: Numbers) -> pa.Array:
        return shown.take(pa.array(numbers, mask=numbers < 0))

    def link(starts: Numbers, numbers: Numbers) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), name(numbers))

    def say(words: Iterable[str | None]) -> pa.Array:
        return pa.array(words, pa.string())

    bad = np.array(sorted(reasons), np.int64)
    told = [tell("refused", bad, reason=say(reasons[number] for number in bad.tolist()))]
    sound, known = good[group[row]], events.present[cause]
    lost, sample, times = sample_lost(cause[~known & sound], effect[~known & sound], mark)
    told.append(
        tell(
            "missing",
            home[lost],
            id=name(lost),
            by=name(sample),
            chain=link(np.arange(len(lost) + 1) * 2, np.stack([lost, sample], 1).ravel()),
            reason=say(f"named by {count:,} event{'s' * (count != 1)}" for count in times.tolist()),
        )
    )

    handed = np.flatnonzero(mine & good[group])
    at = times_of(one_array(table["__at"]))
    consumer = number_groups(table, ("__consumer",))
    pair = group * (int(consumer.max(initial=0)) + 1) + consumer
    handed = handed[np.lexsort((at[handed], pair[handed]))]
    tied = find_ties(np.arange(len(handed)), (at[handed], pair[handed]))
    some = handed[tied]
    handed[tied] = some[np.lexsort((mark[node[some]], at[some], pair[some]))]
    copies = count_copies(pair[handed], node[handed], nodes)
    again = handed[copies > 1]
    told.append(
        tell(
            "duplicate",
            group[again],
            consumer=table["__consumer"].take(pa.array(again)),
            id=name(node[again]),
            reason=say(f"handed over {count:,} times" for count in copies[copies > 1].tolist()),
        )
    )
    entries = handed[copies > 0]
    starts = find_starts(pair[entries])
    up, above = list_by(effect[known & sound], cause[known & sound], nodes)
    found = find_late(up, above, mark, np.append(starts, len(entries)), node[entries], at[entries])
    late = entries[found.late]
    told.append(
        tell(
            "violation",
            group[late],
            consumer=table["__consumer"].take(pa.array(late)),
            id=name(node[late]),
            by=name(node[entries[found.first[found.late]]]),
            chain=link(found.starts, found.pool),
        )
    )
    judged = found.first >= 0
    tied = judged.copy()
    tied[judged] = at[entries[found.first[judged]]] == at[entries[judged]]
    counted = {
        "rows": group,
        # A row without an identifier is no event; its partition is refused.
        "events": home[events.present & pc.is_valid(shown).to_numpy(zero_copy_only=False)],
        "causes": group[row],
        "handed": group[mine],
        "judged": group[entries[judged]],
        "violations": group[late],
        "missing": home[lost],
        "duplicates": group[again],
        "ties": group[entries[tied]],
    }
    # What was not judged has no counts of what was found.
    hidden = dict.fromkeys(COUNTS[COUNTS.index("judged") :], ~good)
    counts = {
        count: pa.array(np.bincount(where, minlength=many), mask=hidden.get(count))
        for count, where in counted.items()
    }
    told.append(tell("partition", np.arange(many), reason=say(map(reasons.get, range(many))), **counts))
    columns = ["kind", *names, "consumer", "id", "by", "chain", "reason", *COUNTS]
    return pa.concat_tables(told, promote_options="default").select(columns)


def describe_cycle(ids: list[str]) -> str:
    return f"the causes form a cycle: {' -> '.join(map(str, [*ids, ids[0]]))}"


def explain_groups(
    table: pa.Table, group: Numbers, mine: NDArray[np.bool_], cycles: Mapping[int, list[Any]]
) -> dict[int, str]:
    """Why groups cannot be judged, of those that cannot."""
    unnamed = pc.is_null(table["__id"]).to_numpy()
    unplaced = pc.is_null(table["__at"]).to_numpy() & mine
    reasons: dict[int, list[str]] = {}
    for bad, words in ((unnamed, UNNAMED), (unplaced, UNPLACED)):
        numbers, counts = np.unique(group[bad], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            reasons.setdefault(number, []).append(describe_rows(count, words))
    for number, cycle in cycles.items():
        reasons.setdefault(number, []).append(describe_cycle(cycle))
    return {number: "; ".join(told) for number, told in reasons.items()}


def describe_rows(count: int, words: str) -> str:
    return f"{count:,} row{'s' * (count != 1)} {words}"


def sample_lost(cause: Numbers, effect: Numbers, mark: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Events that are named and are not there: each once, one of those that name it, and how many do."""
    order = np.lexsort((mark[effect], cause))
    cause, effect = cause[order], effect[order]
    distinct = find_starts(cause, effect)
    lost, first, times = np.unique(cause[distinct], return_index=True, return_counts=True)
    return lost, effect[distinct][first], times


@allocating
def count_copies(pair: Any, node: Any, nodes: Any) -> Any:
    """How often each event comes in a pair of group and consumer, told of its first row; rows are sorted by pairs."""
    first, copies = np.full(nodes, -1, np.int64), np.zeros(len(pair), np.int64)
    for row in range(len(pair)):
        if first[node[row]] < 0 or pair[first[node[row]]] != pair[row]:
            first[node[row]] = row
        copies[first[node[row]]] += 1
    return copies


# First effects


class Late(NamedTuple):
    """For each entry of `handed`: its first effect, as an entry, or -1; and the chains of those that are late."""

    first: Numbers
    late: Numbers
    """The entries that are late."""
    starts: Numbers
    """Their chains: events pool[starts[i] : starts[i + 1]], from the cause to the effect; -1 for what is left out."""
    pool: Numbers


def find_late(
    up: Numbers, above: Numbers, mark: Numbers, consumers: Numbers, handed: Numbers, at: Numbers
) -> Late:
    """Find what each consumer was handed late.

    The causes of event e are above[up[e] : up[e + 1]] (`list_by`). Consumer c was handed the events
    handed[consumers[c] : consumers[c + 1]], each once, in the order of their positions `at`. `mark` settles which of
    several shortest chains is told. No event may be its own ancestor.

    >>> from antecede.spark.order.graph import list_by
    >>> up, above = list_by(np.array([1, 2]), np.array([0, 1]), 3)
    >>> mark, consumers = np.arange(3), np.array([0, 2])
    >>> found = find_late(up, above, mark, consumers, np.array([2, 0]), np.array([10, 11]))
    >>> found.late.tolist(), found.first[found.late].tolist(), found.pool.tolist()
    ([1], [0], [0, 1, 2])
    """
    first, starts, pool = walk_back(up, above, mark, consumers, handed, at, CHAIN_MOST)
    late = np.flatnonzero((first >= 0) & (at[first] < at)) if len(first) else first
    return Late(first, late, starts, pool)


@allocating
def walk_back(up: Any, above: Any, mark: Any, consumers: Any, handed: Any, at: Any, most: Any) -> Any:
    """Follow effects to their causes: the first effect of each entry, and the chain of each that is late."""
    nodes = len(up) - 1
    own, best = np.full(nodes, -1, np.int64), np.full(nodes, -1, np.int64)
    hops, through = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    pending, seen = np.zeros(nodes, np.int64), np.zeros(nodes, np.bool_)
    past, ready = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    first = np.full(len(handed), -1, np.int64)
    starts, pool = np.zeros(16, np.int64), np.empty(64, np.int64)
    chains = 0
    for consumer in range(len(consumers) - 1):
        size = 0
        for entry in range(consumers[consumer], consumers[consumer + 1]):
            own[handed[entry]] = entry
            seen[handed[entry]] = True
            past[size] = handed[entry]
            size += 1
        done = 0
        while done < size:
            node = past[done]
            done += 1
            for place in range(up[node], up[node + 1]):
                cause = above[place]
                pending[cause] += 1
                if not seen[cause]:
                    seen[cause] = True
                    past[size] = cause
                    size += 1
        height = 0
        for place in range(size):
            if pending[past[place]] == 0:
                ready[height] = past[place]
                height += 1
        while height:
            height -= 1
            node = ready[height]
            told, far = best[node], hops[node] + 1
            if own[node] >= 0 and (told < 0 or own[node] < told):
                told, far = own[node], 1
            for place in range(up[node], up[node + 1]):
                cause = above[place]
                better = best[cause] < 0 or told < best[cause]
                if told == best[cause]:
                    nearer = far < hops[cause]
                    better = nearer or (far == hops[cause] and mark[node] < mark[through[cause]])
                if better:
                    best[cause], hops[cause], through[cause] = told, far, node
                pending[cause] -= 1
                if pending[cause] == 0:
                    ready[height] = cause
                    height += 1
        for entry in range(consumers[consumer], consumers[consumer + 1]):
            node = handed[entry]
            first[entry] = best[node]
            if best[node] < 0 or at[best[node]] >= at[entry]:
                continue
            starts, pool = make_room(starts, pool, chains, most)
            end = starts[chains]
            whole = hops[node] + 1 <= most
            left = hops[node] if whole else most - 2
            while left > 0:
                pool[end] = node
                end += 1
                left -= 1
                node = through[node]
            if not whole:
                pool[end] = -1
                end += 1
            pool[end] = handed[first[entry]]
            chains += 1
            starts[chains] = end + 1
        for place in range(size):
            node = past[place]
            own[node], best[node], hops[node], seen[node] = -1, -1, 0, False
    return first, starts[: chains + 1], pool[: starts[chains]]
