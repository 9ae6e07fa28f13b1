"""What bounds a protocol in plain Python: its rules as one function on dictionaries and tuples, over a recorded run.

`Tape` records what the machines of a run were asked to do. A function of `BARE` does it again on plain data and writes
the same stamps, entry by entry (tests/test_benchmark_protocols.py). It has no interface, no options and no labels; it
holds nothing, wakes nothing and can neither be stored nor say why it refuses a stamp. What it leaves out is what `fifo`
does for every packet; `benchmarks.protocols` adds that price.

A stamp that arrives is read once, to check each entry and to find what its receiver must wait for, and once more when
the message is delivered. A send reads what its sender knows once.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from antecede.model import Effect, Message, Packet, members, set_of
from antecede.protocols import Machine
from antecede.protocols.bounded import Extra
from antecede.protocols.forwarder import Forwarder
from antecede.protocols.optimal import LogRow

__all__ = ["BARE", "Tape", "time_bare", "write_again"]

SEND, RECEIVE, DELIVER, DROP = range(4)

Asked: TypeAlias = tuple[int, int, int, int, int, int]
"""(kind, me, sender, number, destinations as bits, position of the stamp, or -1). What is sent is the next stamp."""

Omits: TypeAlias = Callable[[int, int, int, int, int, dict[int, int]], bool]
"""Of me, A_m, A_n, C(n), since when n is in H, and the last send to each: whether n stays out of the stamp of m."""


class Tape:
    """What the machines of one run are asked, in its order, and the stamps that they write."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = machines
        self.asked: list[Asked] = []
        self.stamps: list[Any] = []
        self._position: dict[int, int] = {}
        """id of a stamp -> its position; all are kept, so no id is used twice"""
        for machine in machines:
            # What stands in an instance is found before what stands in its class.
            if isinstance(machine, Forwarder):
                vars(machine).update(_hop=self._note_hops(machine), _learn=self._note_learned(machine))
            else:
                vars(machine).update(_send=self._note_sends(machine), deliver=self._note_deliveries(machine))
            vars(machine).update(_check=self._note_arrivals(machine))

    def _note_sends(self, machine: Machine) -> Callable[[Message], list[Effect]]:
        send = machine._send

        def note(message: Message) -> list[Effect]:
            self._note(SEND, machine.me, message.sender, message.number, set_of(message.to))
            return self._keep(send(message))

        return note

    def _note_hops(self, machine: Forwarder) -> Callable[[Message, int, int], list[Effect]]:
        hop = machine._hop

        def note(message: Message, to: int, targets: int) -> list[Effect]:
            self._note(SEND, machine.me, machine.me, machine.hops + 1, to)
            return self._keep(hop(message, to, targets))

        return note

    def _note_arrivals(self, machine: Machine) -> Callable[[Packet[Any]], None]:
        check = machine._check

        def note(packet: Packet[Any]) -> None:
            stamp, message = packet.stamp, packet.message
            if id(stamp) in self._position:
                # Others are acknowledgements, which have no entries.
                number = stamp.number if isinstance(machine, Forwarder) else message.number if message else 0
                self._note(RECEIVE, machine.me, packet.source, number, 0, stamp)
            check(packet)

        return note

    def _note_deliveries(self, machine: Machine) -> Callable[[Message], list[Effect]]:
        deliver = machine.deliver

        def note(message: Message) -> list[Effect]:
            packet = machine._ready[message.id]  # type: ignore[attr-defined]
            self._note(DELIVER, machine.me, *message.id, set_of(message.to), packet.stamp)
            return self._keep(deliver(message))

        return note

    def _note_learned(self, machine: Forwarder) -> Callable[[Packet[Any]], None]:
        learn = machine._learn

        def note(packet: Packet[Any]) -> None:
            stamp = packet.stamp
            self._note(DELIVER, machine.me, packet.source, stamp.number, stamp.to, stamp)
            learn(packet)

        return note

    def _note(self, kind: int, me: int, sender: int, number: int, to: int, stamp: Any = None) -> None:
        self.asked.append((kind, me, sender, number, to, self._position.get(id(stamp), -1)))

    def _keep(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Packet) and id(effect.stamp) not in self._position:
                self._position[id(effect.stamp)] = len(self.stamps)
                self.stamps.append(effect.stamp)
        return effects


def write_again(protocol: str, tape: Tape) -> list[Any]:
    """The stamps of this tape, as plain data."""
    stamps: list[Any] = []
    BARE[protocol].write(tape, tape.asked, stamps)
    return stamps


def time_bare(protocol: str, tape: Tape) -> float:
    """Seconds that the barest Python takes to write the stamps of this tape."""
    asked = _release(tape.asked)
    gc.collect()
    gc.disable()
    began = time.process_time()
    BARE[protocol].write(tape, asked, [])
    seconds = time.process_time() - began
    gc.enable()
    return seconds


def _release(asked: Sequence[Asked]) -> list[Asked]:
    """The same, and a stamp is dropped after its last use, as packets are: it is not the cache that is timed."""
    last = {each[5]: position for position, each in enumerate(asked) if each[0] != SEND}
    dropped = defaultdict(list)
    for at, position in last.items():
        dropped[position].append(at)
    result: list[Asked] = []
    for position, each in enumerate(asked):
        result.append(each)
        result += [(DROP, 0, 0, 0, 0, at) for at in dropped[position] if at >= 0]
    return result


# history, and the hops of separator


def write_histories(tape: Tape, asked: Sequence[Asked], stamps: list[Any]) -> None:
    """R2 to R8, and R9 where the machines are members of separators."""
    n, omits = len(tape.machines), _make_omission(tape.machines)
    beyond = 1 << n
    knows: list[dict[tuple[int, int], list[Any]]] = [{} for _ in range(n)]
    lanes: list[defaultdict[int, dict[int, list[Any]]]] = [defaultdict(dict) for _ in range(n)]
    lasts: list[dict[int, int]] = [{} for _ in range(n)]
    counts, delivered = [0] * n, [[0] * n for _ in range(n)]
    for kind, me, sender, number, to, at in asked:
        mine = 1 << me
        if kind == DROP:
            stamps[at] = None
        elif kind == RECEIVE:
            unmet = delivered[me]
            for s, k, a in stamps[at]:
                if s < 0 or s >= n or k < 1 or a < 1 or a >= beyond or (s == sender and k >= number):
                    raise AssertionError(s, k, a)
                if a & mine and unmet[s] < k:
                    continue
        elif kind == SEND:
            known, last = knows[me], lasts[me]
            told = sorted([(last.get(q, 0), 1 << q) for q in members(to)])
            latest, left, stamp, touched = told[-1][0], to, [], []
            for record in reversed(known.values()):
                entry, copies, since = record
                if since < latest:
                    while told and since < told[-1][0]:
                        left ^= told.pop()[1]
                    if not told:
                        break
                    latest = told[-1][0]
                missing = left & ~copies
                if (
                    missing
                    and (missing != mine or (entry[0] == me and entry[2] & mine))
                    and (omits is None or not omits(me, to, entry[2], copies, since, last))
                ):
                    stamp.append(entry)
                if entry[2] & to:
                    touched.append(record)
            stamp.sort()
            if to != mine:
                stamps.append(stamp)
            for record in touched:
                s, k, a = record[0]
                record[1] |= to
                if not a & ~record[1]:
                    del known[s, k], lanes[me][s][k]
            counts[me] = count = counts[me] + 1
            for q in members(to):
                last[q] = count
            known[me, number] = lanes[me][me][number] = [(me, number, to), 0, count]
        elif sender != me:
            known, mylanes, count = knows[me], lanes[me], counts[me]
            delivered[me][sender] = number
            reported, source = to | 1 << sender, 1 << sender
            for entry in [*stamps[at], (sender, number, to)]:
                s, k, a = entry
                lane = mylanes[s]
                had = lane.get(k)
                copies = to if s == sender and a & source else reported
                if had is None:
                    if k == number and s == sender:
                        copies = mine if a & source else mine | source
                    for other in [*lane.values()]:
                        _, j, b = other[0]
                        if j > k:
                            copies |= b
                        else:
                            other[1] |= a
                            if not b & ~other[1]:
                                del known[s, j], lane[j]
                    if a & ~copies:
                        known[s, k] = lane[k] = [entry, copies, count]
                else:
                    had[1] |= copies
                    if not a & ~had[1]:
                        del known[s, k], lane[k]


def _make_omission(machines: Sequence[Machine]) -> Omits | None:
    """R9: whether an entry to A_n, known to `copies`, stays out of a stamp of `me` to A_m."""
    if not isinstance(machines[0], Forwarder):
        return None
    plan = machines[0].plan
    station = [plan.place[v] if plan.separator[plan.place[v]] else None for v in range(len(machines))]
    sides: dict[tuple[int, int], int] = {}

    def omits(me: int, to: int, listed: int, copies: int, since: int, last: dict[int, int]) -> bool:
        place = station[me]
        if place is None:
            return False
        b = sides.get((place, to))
        if b is None:
            b = sides[place, to] = sum([side for side in plan.sides(place) if not side & to])
        if listed & ~b:
            return False
        others = plan.live[place] & ~(copies | 1 << me)
        return not others or all(last.get(q, 0) > since for q in members(others))

    return omits


# optimal


def write_logs(tape: Tape, asked: Sequence[Asked], stamps: list[Any]) -> None:
    n = len(tape.machines)
    beyond = 1 << n
    logs: list[set[LogRow]] = [set() for _ in range(n)]
    rows_of: list[dict[int, LogRow]] = [{} for _ in range(n)]
    news: list[tuple[int, Any]] = [(-1, ())] * n
    """The last stamp that each has read, and the rows that were new in it."""
    for kind, me, sender, number, to, at in asked:
        log, row_of, mine = logs[me], rows_of[me], 1 << me
        if kind == DROP:
            stamps[at] = None
            continue
        if kind == RECEIVE:
            new = stamps[at] - log
            news[me] = at, new
            for s, listed, entries in new:
                if s < 0 or s >= n or listed < 0 or listed >= beyond or entries[0][0] < 1:
                    raise AssertionError(s, listed, entries)
                if s == sender and entries[-1][0] >= number:
                    raise AssertionError(s, listed, entries)
                if listed & mine:
                    for _, dests in entries:
                        if dests & mine:
                            continue
            continue
        put = []
        if kind == SEND:
            listing = [row for row in log if row[1] & to]
            put = [_keep(row, ~to) for row in listing]
            rest = log.difference(listing)
            for dest in members(to & ~mine):
                kept, bit = ~to | 1 << dest, 1 << dest
                less = [
                    _keep(row, kept) if row[1] & bit else empty
                    for row, empty in zip(listing, put, strict=True)
                ]
                stamps.append(rest.union(less))
            own = row_of.get(me)
            if own is not None and own[1] & to:
                own = put.pop(listing.index(own))
            put.append(_append(own, me, number, to))
        elif sender == me:
            own = row_of.get(me)
            if own is not None:
                put = [_keep((me, 0, tuple([(c, d & ~mine if c == number else d) for c, d in own[2]])), -1)]
        else:
            read, new = news[me]
            theirs = {row[0]: row for row in (new if read == at else stamps[at] - log)}
            own = theirs.get(sender)
            if own is None and row_of.get(sender) in stamps[at]:
                own = row_of[sender]
            theirs[sender] = _append(own, sender, number, to)
            for s, row in theirs.items():
                row = _keep(row, ~mine) if row[1] & mine else row
                known = row_of.get(s)
                row = row if known is None else _merge(known, row)
                if row is not known:
                    put.append(row)
        for row in put:
            sender = row[0]
            if sender in row_of:
                log.remove(row_of[sender])
            row_of[sender] = row
        log.update(put)
        news[me] = -1, ()


def _append(row: LogRow | None, sender: int, clock: int, dests: int) -> LogRow:
    if row is None:
        return sender, dests, ((clock, dests),)
    entries = row[2] if row[2][-1][1] else row[2][:-1]
    return sender, row[1] | dests, (*entries, (clock, dests))


def _keep(row: LogRow, kept: int) -> LogRow:
    sender, listed, entries = row
    if len(entries) == 1:
        clock, dests = entries[0]
        return sender, dests & kept, ((clock, dests & kept),)
    left = [(clock, dests & kept) for clock, dests in entries if dests & kept]
    if not left or left[-1][0] != entries[-1][0]:
        left.append((entries[-1][0], 0))
    listed = 0
    for _, dests in left:
        listed |= dests
    return sender, listed, tuple(left)


def _merge(mine: LogRow, theirs: LogRow) -> LogRow:
    ours, others = mine[2], theirs[2]
    last, newest = ours[-1][0], others[-1][0]
    if others[0][0] > last:
        return theirs
    if newest < ours[0][0]:
        return mine
    told = dict(others)
    both = [
        (clock, dests & told.get(clock, dests)) for clock, dests in ours if clock in told or clock > newest
    ]
    return _keep((mine[0], 0, (*both, *[entry for entry in others if entry[0] > last])), -1)


# bounded


def write_matrices(tape: Tape, asked: Sequence[Asked], stamps: list[Any]) -> None:
    n = len(tape.machines)
    bounds = [machine.parameters["k"] for machine in tape.machines]
    matrices: list[list[dict[int, int]]] = [[{} for _ in range(n)] for _ in range(n)]
    delivered = [[0] * n for _ in range(n)]
    for kind, me, sender, _, to, at in asked:
        columns = matrices[me]
        if kind == DROP:
            stamps[at] = None
            continue
        if kind == RECEIVE:
            counts, before = delivered[me], 0
            entries = (
                stamps[at][1] if len(stamps[at]) == 2 else [(i, me, count) for i, count in stamps[at][2]]
            )
            for i, j, count in entries:
                if (
                    i < 0
                    or j < 0
                    or i >= n
                    or j >= n
                    or count < 1
                    or (i == me and count > columns[j].get(me, 0))
                ):
                    raise AssertionError(i, j, count)
                if j == me:
                    if i == sender:
                        before = count
                    if counts[i] < count:
                        continue
            if stamps[at][0] != before + 1:
                raise AssertionError(before)
            continue
        if kind == SEND:
            matrix: list[tuple[int, int, int]] = []
            for j, column in enumerate(columns):
                if column:
                    matrix += [(i, j, column[i]) for i in sorted(column)]
            for dest in members(to):
                sequence = columns[dest].get(me, 0) + 1
                columns[dest] = {me: sequence}
                if dest != me:
                    stamps.append((sequence, matrix))
        elif sender != me:
            delivered[me][sender] += 1
            before_of = dict.fromkeys(members(to), 0)
            for i, j, count in stamps[at][1]:
                column = columns[j]
                if column.get(i, 0) < count and j != me:
                    column[i] = count
                if i == sender and j in before_of:
                    before_of[j] = count
            for dest, count in before_of.items():
                if dest != me and columns[dest].get(sender, 0) <= count:
                    columns[dest][sender] = count + 1
        sizes = list(map(len, columns))
        total = sum(sizes)
        if total >= bounds[me]:
            for j in sorted(range(n), key=sizes.__getitem__, reverse=True):
                sequence = columns[j].get(me, 0) + 1
                stamps.append((sequence, None, sorted(columns[j].items())))
                columns[j] = {me: sequence}
                total -= sizes[j] - 1
                if total < bounds[me]:
                    break


def _read_history(stamp: Any) -> list[tuple[int, int, int]]:
    return [(entry.sender, entry.number, entry.to) for entry in stamp.history]


def _read_matrix(stamp: Any) -> tuple[Any, ...]:
    if isinstance(stamp, Extra):
        return stamp.sequence, None, list(stamp.column)
    return stamp.sequence, list(stamp.matrix)


class Bare(NamedTuple):
    """The rules of a protocol on plain data."""

    write: Callable[[Tape, Sequence[Asked], list[Any]], None]
    """Do what was asked, and append the stamps."""
    read: Callable[[Any], Any]
    """A stamp of the machine, as `write` writes it."""


BARE = {
    "history": Bare(write_histories, _read_history),
    "separator": Bare(write_histories, _read_history),
    "optimal": Bare(write_logs, lambda stamp: stamp.log),
    "bounded": Bare(write_matrices, _read_matrix),
}
