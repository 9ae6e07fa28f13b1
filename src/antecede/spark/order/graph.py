"""The order of events that name their causes: what one task computes, in memory.

An *event* is an identifier, and the rows that have it: copies of one event stand together, and have the causes of all
of them. Rows without an identifier are events that nobody can name. Rules
  1. the key of an event is the greatest of its own time and of its causes' keys; without times all keys are equal;
  2. its level is one more than the greatest level of its causes that have the same key, or 0;
  3. events are sorted by key, level, own time and identifier. A cause has a smaller key, or the same and a smaller
     level, so this never puts an event before one of its causes.
So what decides the place of an event among those of its key are events of that key alone (blocks.py).

An event waits for the causes of it, and of theirs, that are not there. An identifier that is its own ancestor has no
order: its group is refused, with the cycle.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from antecede.jit import allocating, native
from antecede.spark.run_tasks import Numbers, find_starts, number_groups, one_array, times_of

__all__ = ["Outside", "Sorted", "follow_causes", "list_by", "make_room", "order_table", "sort_events"]

INHERITED: Final = 32
"""Missing events that a row takes over from its causes, at most. Those that it names itself are all kept."""


class Sorted(NamedTuple):
    """Rows in their order."""

    rows: Numbers
    """Which row comes first, second, ..."""
    position: pa.Array
    """For each of them the number of rows before it in its group; null in a group that is refused."""
    waits_for: pa.Array
    """For each of them the missing identifiers, or the cycle if its group is refused."""


def sort_events(
    group: Numbers,
    ids: pa.Array,
    causes: pa.Array,
    effect: Numbers,
    time: Numbers | None = None,
    text: bool = True,
    known_outside: bool = False,
) -> Sorted:
    """Sort the rows of some groups.

    `group` numbers each row's group: groups come out in that order. `ids` has each row's identifier; `causes` are
    identifiers, none of them null, and `effect` the rows that name them. With `text` false the identifiers are
    integers, even if they are written as text. With `known_outside` causes that are not among the rows are elsewhere,
    and before all of them: they decide nothing.

    >>> ids = pa.array(["c", "b", "a"])
    >>> found = sort_events(np.zeros(3, np.int64), ids, pa.array(["a", "b", "z"]), np.array([1, 0, 1]))
    >>> found.rows.tolist(), found.waits_for.to_pylist()
    ([2, 1, 0], [[], ['z'], ['z']])
    """
    events = follow_causes(group, ids, causes, effect, time, known_outside)
    node, cycles = events.node, events.cycles
    own = time if time is not None else np.zeros(len(group), np.int64)
    keys = (events.first[node], events.level[node], events.key[node])
    rows = sort_rows(group, node, events.names, keys, own, text)
    position = count_from_starts(group[rows])
    refused = np.isin(group[rows], list(cycles)) if cycles else np.zeros(len(rows), np.bool_)
    waits_for = events.list_waits(node[rows])
    if cycles:
        own_cycle = [cycles.get(int(number)) for number in group[rows]]
        lists = waits_for.to_pylist()
        told = [lists[row] if cycle is None else cycle for row, cycle in enumerate(own_cycle)]
        waits_for = pa.array(told, waits_for.type)
    return Sorted(rows, pa.array(position, pa.int64(), mask=refused), waits_for)


class Events(NamedTuple):
    """The events of some groups, by number, and what follows from their causes."""

    names: pa.Array
    node: Numbers
    """The event of each row."""
    present: NDArray[np.bool_]
    """Which of them have a row: others are only named."""
    cause: Numbers
    effect: Numbers
    """For each cause that is named, that event and the one that names it."""
    first: Numbers
    key: Numbers
    level: Numbers
    held: Numbers
    starts: Numbers
    pool: Numbers
    """What each waits for, as `walk` has it."""
    cycles: dict[int, list[Any]]
    """For each group in which an identifier is its own ancestor, a cycle: each is a cause of the next."""

    def list_waits(self, events: Numbers) -> pa.Array:
        """What these events wait for, as lists of names."""
        if len(self.starts) < 3:
            return pa.ListArray.from_arrays(pa.array(np.zeros(len(events) + 1, np.int32)), self.names[:0])
        starts, missing = pa.array(self.starts.astype(np.int32)), self.names.take(pa.array(self.pool))
        return pa.ListArray.from_arrays(starts, missing).take(pa.array(self.held[events]))


def follow_causes(
    group: Numbers,
    ids: pa.Array,
    causes: pa.Array,
    row: Numbers,
    time: Numbers | None = None,
    known_outside: bool = False,
    most: int = INHERITED,
) -> Events:
    """Number the events of rows, and follow them from causes to effects; the parameters are those of `sort_events`."""
    names, node, cause = number_events(group, ids, causes, row)
    effect = node[row]
    present = np.zeros(len(names), np.bool_)
    present[node] = True
    known = present[cause] if known_outside else slice(None)
    first = np.zeros(len(names), np.int64)
    if time is not None:
        first[:] = np.iinfo(np.int64).max
        np.minimum.at(first, node, time)
    key, level, reached, held, starts, pool = walk(present, cause[known], effect[known], first, most)
    stuck = ~reached & present
    cycles = find_cycles(stuck, cause, effect, group, node, names) if stuck.any() else {}
    return Events(names, node, present, cause, effect, first, key, level, held, starts, pool, cycles)


def order_table(
    table: pa.Table,
    columns: list[str],
    names: tuple[str, ...] = (),
    *,
    text: bool = True,
    outside: Outside | None = None,
) -> pa.Table:
    """Order a table that holds partitions from end to end; or a block of one, which knows others by `outside`.

    `names` tell partitions apart, `columns` are those of the result; `__id`, `__causes` and `__time` are read.
    """
    ids = one_array(table["__id"])
    causes, effect = flatten_causes(table["__causes"])
    if outside is not None and len(outside.causes):
        causes, effect = outside.replace_causes(ids, causes, effect)
    time = times_of(one_array(table["__time"])) if "__time" in table.column_names else None
    known_outside = outside is not None and not len(outside.causes)
    found = sort_events(number_groups(table, names), ids, causes, effect, time, text, known_outside)
    ordered = table.select(columns).take(pa.array(found.rows))
    return ordered.append_column("position", found.position).append_column("waits_for", found.waits_for)


class Outside(Struct, frozen=True):
    """What a block of a partition knows of the others: causes that wait, or are missing themselves."""

    causes: pa.Array
    names: pa.Array
    """For each of them the missing identifiers, as lists."""

    @classmethod
    def none(cls) -> Outside:
        return cls(pa.nulls(0, pa.string()), pa.nulls(0, pa.list_(pa.string())))

    def replace_causes(self, ids: pa.Array, causes: pa.Array, effect: Numbers) -> tuple[pa.Array, Numbers]:
        """Keep the causes that are in the block; what waits outside becomes what it waits for; the others go."""
        here = pc.is_in(causes, ids.drop_null())
        kept = effect[here.to_numpy(zero_copy_only=False)]
        if not len(self.causes):
            return causes.filter(here), kept
        at = pc.index_in(causes, self.causes)
        far = pc.and_(pc.invert(here), pc.is_valid(at))
        lists = self.names.take(at.filter(far))
        whose = effect[far.to_numpy(zero_copy_only=False)][pc.list_parent_indices(lists).to_numpy()]
        both = pa.concat_arrays([causes.filter(here), lists.flatten().cast(causes.type)])
        return both, np.concatenate([kept, whose])


def flatten_causes(column: pa.ChunkedArray) -> tuple[pa.Array, Numbers]:
    """All causes, and the rows that name them."""
    array = one_array(column)
    return array.flatten(), pc.list_parent_indices(array).to_numpy().astype(np.int64)


def number_events(
    group: Numbers, ids: pa.Array, causes: pa.Array, effect: Numbers
) -> tuple[pa.Array, Numbers, Numbers]:
    """Number the events of all groups: their names, the event of each row, and that of each cause."""
    both = pa.chunked_array([ids, causes.cast(ids.type)]).dictionary_encode()
    encoded = [chunk.indices.fill_null(-1).to_numpy().astype(np.int64) for chunk in both.chunks]
    code = np.concatenate([group[:0], *encoded])
    names = both.chunk(0).dictionary if both.num_chunks else ids[:0]
    whose = np.concatenate([group, group[effect]])
    unnamed = code < 0
    home = np.zeros(len(names) + 1, np.int64)
    home[code] = whose
    if (unnamed | (home[code] == whose)).all():
        node, known = code.copy(), np.arange(len(names))
    else:
        # An identifier means another event in another group.
        keys = pa.array(whose * (len(names) + 1) + code).dictionary_encode()
        node = keys.indices.to_numpy().astype(np.int64)
        known = keys.dictionary.to_numpy() % (len(names) + 1)
    if unnamed.any():
        node[unnamed] = len(known) + np.arange(int(unnamed.sum()))
        known = np.concatenate([known, np.full(int(unnamed.sum()), len(names))])
    taken = pa.array(np.where(known < len(names), known, 0), mask=known >= len(names))
    return names.take(taken), node[: len(group)], node[len(group) :]


@allocating
def walk(present: Any, cause: Any, effect: Any, first: Any, most: Any) -> Any:
    """Follow causes to their effects: key, level and whether each event is reached, and the set of what it waits for.

    Sets are numbered: set s is pool[starts[s] : starts[s + 1]], and set 0 is empty.
    """
    nodes = len(present)
    there = present[cause]
    out, effects = list_by(cause[there], effect[there], nodes)
    lack, lacking = list_by(effect[~there], cause[~there], nodes)
    needs = np.zeros(nodes, np.int64)
    for target in effects:
        needs[target] += 1
    key, level = first.copy(), np.zeros(nodes, np.int64)
    reached, held = np.zeros(nodes, np.bool_), np.zeros(nodes, np.int64)
    starts, pool = np.zeros(16, np.int64), np.empty(64, np.int64)
    sets = 1  # set 0 is empty
    ready = np.empty(nodes, np.int64)
    height = 0
    for node in range(nodes):
        if present[node] and needs[node] == 0:
            ready[height] = node
            height += 1
    while height:
        height -= 1
        node = ready[height]
        reached[node] = True
        if lack[node + 1] > lack[node]:
            direct = np.unique(lacking[lack[node] : lack[node + 1]])
            old = pool[starts[held[node]] : starts[held[node] + 1]] if held[node] else pool[:0]
            starts, pool, sets = add_set(starts, pool, sets, direct, old, len(direct) + most)
            held[node] = sets - 1
        for place in range(out[node], out[node + 1]):
            target = effects[place]
            if key[node] > key[target]:
                key[target], level[target] = key[node], level[node] + 1
            elif key[node] == key[target]:
                level[target] = max(level[target], level[node] + 1)
            mine, other = held[target], held[node]
            if mine == 0:
                held[target] = other
            elif other != 0 and mine != other:
                old, new = pool[starts[mine] : starts[mine + 1]], pool[starts[other] : starts[other + 1]]
                if len(old) < most and not covers(old, new):
                    starts, pool, sets = add_set(starts, pool, sets, old, new, most)
                    held[target] = sets - 1
            needs[target] -= 1
            if needs[target] == 0:
                ready[height] = target
                height += 1
    return key, level, reached, held, starts[: sets + 1], pool[: starts[sets]]


@allocating
def list_by(keys: Any, values: Any, many: Any) -> Any:
    """Values side by side, by keys below `many`: those of key k are listed[starts[k] : starts[k + 1]]."""
    starts = np.zeros(many + 1, np.int64)
    for key in keys:
        starts[key + 1] += 1
    starts = np.cumsum(starts)
    put, listed = starts[:-1].copy(), np.empty(len(values), np.int64)
    for at in range(len(keys)):
        listed[put[keys[at]]] = values[at]
        put[keys[at]] += 1
    return starts, listed


@allocating
def make_room(starts: Any, pool: Any, lists: Any, size: Any) -> Any:
    """The same lists, with room for one more of this size."""
    if lists + 2 > len(starts):
        longer = np.zeros(2 * len(starts), np.int64)
        longer[: len(starts)] = starts
        starts = longer
    end = starts[lists]
    if end + size > len(pool):
        larger = np.empty(2 * (end + size), np.int64)
        larger[:end] = pool[:end]
        pool = larger
    return starts, pool


@native
def covers(large: Any, small: Any) -> Any:
    """Whether every number of one sorted list is in another."""
    at = 0
    for number in small:
        while at < len(large) and large[at] < number:
            at += 1
        if at == len(large) or large[at] != number:
            return False
    return True


@allocating
def add_set(starts: Any, pool: Any, sets: Any, kept: Any, more: Any, most: Any) -> Any:
    """Add the set of all that is kept and, while there is room, of what there is more."""
    made = np.empty(len(kept) + len(more), np.int64)
    made[: len(kept)] = kept
    size = len(kept)
    for number in more:
        if size >= most:
            break
        known = False
        for other in kept:
            known = known or other == number
        if not known:
            made[size] = number
            size += 1
    made = np.sort(made[:size])
    starts, pool = make_room(starts, pool, sets, size)
    begin = starts[sets]
    pool[begin : begin + size] = made
    starts[sets + 1] = begin + size
    return starts, pool, sets + 1


def sort_rows(
    group: Numbers, node: Numbers, names: pa.Array, keys: tuple[Numbers, ...], own: Numbers, text: bool
) -> Numbers:
    """The rows by group, key, level, time and identifier. What comes later is looked at between equals only."""
    first, level, key = keys
    order: Numbers = np.lexsort((key, group))
    tied = find_ties(order, (key, group))
    if tied.any():
        some = order[tied]
        order[tied] = some[np.lexsort((first[some], level[some], key[some], group[some]))]
        tied = find_ties(order, (first, level, key, group))
    if tied.any():
        some = order[tied]
        ranked = np.zeros(len(names), np.bool_)
        ranked[node[some]] = True
        rank = rank_names(np.flatnonzero(ranked), names, text)
        columns = (own, node, rank[node], first, level, key, group)
        order[tied] = some[np.lexsort(tuple(column[some] for column in columns))]
    return order


def find_ties(order: Numbers, columns: tuple[Numbers, ...]) -> NDArray[np.bool_]:
    """Which of the sorted rows are equal to a neighbour."""
    equal = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in columns:
        equal &= column[order[1:]] == column[order[:-1]]
    tied = np.zeros(len(order), np.bool_)
    tied[1:] |= equal
    tied[:-1] |= equal
    return tied


def rank_names(events: Numbers, names: pa.Array, text: bool) -> Numbers:
    """For these events the rank of their identifiers, those without one last."""
    shown = names.take(pa.array(events))
    if not text and (pa.types.is_string(shown.type) or pa.types.is_large_string(shown.type)):
        shown = pc.if_else(pc.match_substring_regex(shown, r"^-?\d+$"), shown, None).cast(pa.int64())
    rank = np.zeros(len(names), np.int64)
    rank[events[pc.sort_indices(shown).to_numpy()]] = np.arange(len(events))
    return rank


def count_from_starts(group: Numbers) -> Numbers:
    """For sorted rows, how many of the same group are before each.

    >>> count_from_starts(np.array([0, 0, 3, 3, 3]))
    array([0, 1, 0, 1, 2])
    """
    starts = find_starts(group)
    counts: Numbers = np.arange(len(group)) - np.repeat(starts, np.diff(np.append(starts, len(group))))
    return counts


def find_cycles(
    stuck: NDArray[np.bool_], cause: Numbers, effect: Numbers, group: Numbers, node: Numbers, names: pa.Array
) -> dict[int, list[Any]]:
    """For each group with events that were never reached, a cycle of identifiers: each is a cause of the next."""
    inside = stuck[cause] & stuck[effect]
    before = np.full(len(stuck), -1, np.int64)
    before[effect[inside]] = cause[inside]
    rows = np.flatnonzero(stuck[node])
    found: dict[int, list[Any]] = {}
    _, firsts = np.unique(group[rows], return_index=True)
    for row in rows[firsts]:
        seen: dict[int, int] = {}
        at = int(node[row])
        while at not in seen:
            seen[at] = len(seen)
            at = int(before[at])
        cycle = names.take(pa.array(list(seen)[seen[at] :][::-1])).to_pylist()
        least = cycle.index(min(cycle))
        found[int(group[row])] = cycle[least:] + cycle[:least]
    return found
