"""What bounds a protocol in plain Python: its rules as one function on dictionaries and tuples, over a recorded run.

`Tape` records what the machines of a run were asked to do. A function of `BARE` does it again on plain data and writes
the same stamps, entry by entry, and for `separator` the same packets (tests/test_benchmark_protocols.py). It has no
interface, no options and no labels; it holds nothing, wakes nothing and can neither be stored nor say why it refuses a
stamp; no vertex fails or joins. What it leaves out is what `fifo` does for every packet; `benchmarks.protocols` adds
that price.

A stamp that arrives is read once, to check each entry and to find what its receiver must wait for, and once more when
the message is delivered. A send reads what its sender knows once.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, TypeAlias, cast

from antecede.model import Effect, Id, Message, Packet, members, set_of
from antecede.protocols import Machine
from antecede.protocols.bounded import Extra
from antecede.protocols.forwarder import Forwarder
from antecede.protocols.optimal import LogRow
from antecede.protocols.relay import EVERY, Got, Stable
from antecede.topology import Plan

__all__ = ["BARE", "Tape", "time_bare", "write_again"]

SEND, RECEIVE, DELIVER, DROP, GOT, STABLE = range(6)

Asked: TypeAlias = tuple[int, int, int, int, int, int]
"""(kind, me, sender, number, destinations as bits, position of the stamp, or -1). What is sent is the next stamp."""

Omits: TypeAlias = Callable[[int, int, int, int, int, dict[int, int]], bool]
"""Of me, A_m, A_n, C(n), since when n is in H, and the last send to each: whether n stays out of the stamp of m."""


class Tape:
    """What the machines of one run are asked, in its order, and what they send: one packet for each stamp."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = machines
        self.asked: list[Asked] = []
        self.packets: list[Packet[Any]] = []
        self._position: dict[int, int] = {}
        """id of a stamp -> its position; all are kept, so no id is used twice"""
        for machine in machines:
            # What stands in an instance is found before what stands in its class.
            vars(machine).update(_send=self._note_sends(machine))
            if isinstance(machine, Forwarder):
                vars(machine).update(
                    _receive=self._note_hop_arrivals(machine), _learn=self._note_learned(machine)
                )
            else:
                vars(machine).update(
                    _check=self._note_arrivals(machine), deliver=self._note_deliveries(machine)
                )

    def _note_sends(self, machine: Machine) -> Callable[[Message], list[Effect]]:
        send = machine._send

        def note(message: Message) -> list[Effect]:
            self._note(SEND, machine.me, message.sender, message.number, set_of(message.to))
            return self._keep(send(message))

        return note

    def _note_arrivals(self, machine: Machine) -> Callable[[Packet[Any]], None]:
        check = machine._check

        def note(packet: Packet[Any]) -> None:
            stamp, message = packet.stamp, packet.message
            number = message.number if message else 0
            self._note(RECEIVE, machine.me, packet.source, number, 0, stamp)
            check(packet)

        return note

    def _note_hop_arrivals(self, machine: Forwarder) -> Callable[[Packet[Any]], list[Effect]]:
        receive = machine._receive
        kinds = {Got: GOT, Stable: STABLE}

        def note(packet: Packet[Any]) -> list[Effect]:
            stamp = packet.stamp
            self._note(kinds.get(type(stamp), RECEIVE), machine.me, packet.source, stamp.number, 0, stamp)
            return self._keep(receive(packet))

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
                self._position[id(effect.stamp)] = len(self.packets)
                self.packets.append(effect)
        return effects


def write_again(protocol: str, tape: Tape) -> list[Any]:
    """What was sent on this tape, as plain data."""
    sent: list[Any] = []
    BARE[protocol].write(tape, tape.asked, sent)
    return sent


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


class Known(NamedTuple):
    """H, C and D of one process."""

    me: int
    records: dict[tuple[int, int], list[Any]]
    """(sender, number) -> [entry, copies, since], as `Histories` has them."""
    lanes: defaultdict[int, dict[int, list[Any]]]
    last: dict[int, int]
    delivered: list[int]


def _make_known(n: int) -> list[Known]:
    return [Known(me, {}, defaultdict(dict), {}, [0] * n) for me in range(n)]


def write_histories(tape: Tape, asked: Sequence[Asked], stamps: list[Any]) -> None:
    """R2 to R8."""
    n = len(tape.machines)
    all_known, counts = _make_known(n), [0] * n
    for kind, me, sender, number, to, at in asked:
        known = all_known[me]
        if kind == DROP:
            stamps[at] = None
        elif kind == RECEIVE:
            _check_history(known, stamps[at], sender, number, n)
        elif kind == SEND:
            counts[me] = number
            stamp = _send_history(known, number, to)
            if to != 1 << me:
                stamps.append(stamp)
        elif sender != me:
            _learn_history(known, stamps[at], sender, number, to, counts[me])


def _check_history(known: Known, history: Any, sender: int, number: int, n: int) -> None:
    """Each entry is one, and R3."""
    mine, beyond, unmet = 1 << known.me, 1 << n, known.delivered
    for s, k, a in history:
        if s < 0 or s >= n or k < 1 or a < 1 or a >= beyond or (s == sender and k >= number):
            raise AssertionError(s, k, a)
        if a & mine and unmet[s] < k:
            continue


def _send_history(known: Known, number: int, to: int, omits: Omits | None = None) -> list[Any]:
    """R2, R7, R9, R6.2."""
    me, records, lanes, last, _ = known
    mine = 1 << me
    told = sorted([(last.get(q, 0), 1 << q) for q in members(to)])
    latest, left, stamp, touched = told[-1][0], to, [], []
    for record in reversed(records.values()):
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
    for record in touched:
        s, k, a = record[0]
        record[1] |= to
        if not a & ~record[1]:
            del records[s, k], lanes[s][k]
    for q in members(to):
        last[q] = number
    records[me, number] = lanes[me][number] = [(me, number, to), 0, number]
    return stamp


def _learn_history(known: Known, history: Any, sender: int, number: int, to: int, count: int) -> None:
    """R4, R6.3, R6.4, R8, after so many sends of ours."""
    me, records, lanes, _, delivered = known
    delivered[sender] = number
    mine, source = 1 << me, 1 << sender
    reported = to | source
    for entry in [*history, (sender, number, to)]:
        s, k, a = entry
        lane = lanes[s]
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
                        del records[s, j], lane[j]
            if a & ~copies:
                records[s, k] = lane[k] = [entry, copies, count]
        else:
            had[1] |= copies
            if not a & ~had[1]:
                del records[s, k], lane[k]


def write_hops(tape: Tape, asked: Sequence[Asked], packets: list[Any]) -> None:
    """The same of hops, with R9, and all that a vertex does about a hop while nobody fails.

    It finds the way, through one exit, and sends copies to those that stand by, which retain what is not forwarded
    yet (`protocols.forwarder`); it keeps hops until all have them, and says what it got (`protocols.relay`).
    """
    n, plan = len(tape.machines), cast(Forwarder, tape.machines[0]).plan
    place, inside = [plan.place[v] for v in range(n)], [plan.members[plan.place[v]] for v in range(n)]
    exits = [plan.active[at] == v for v, at in enumerate(place)]
    ways = [[(plan.members[other], there) for other, there in plan.behind(at).items()] for at in place]
    near = [reduce(or_, [hosts for hosts, _ in ways[v]], inside[v]) & ~(1 << v) for v in range(n)]
    all_known, omits = _make_known(n), _make_omission(plan)
    hops, clocks = [0] * n, [0] * n
    seen: list[dict[int, int]] = [{} for _ in range(n)]
    retained: list[dict[Id, int]] = [{} for _ in range(n)]
    unconfirmed: list[dict[int, list[Any]]] = [{} for _ in range(n)]
    kept: list[defaultdict[int, dict[int, Any]]] = [defaultdict(dict) for _ in range(n)]
    ungot: list[defaultdict[int, int]] = [defaultdict(int) for _ in range(n)]

    def forward(me: int, message: Id, targets: int) -> None:
        to = 0
        if exits[me]:
            for hosts, there in ways[me]:
                if targets & there:
                    to |= hosts
        elif targets & ~inside[me]:
            retained[me][message] = targets & ~inside[me]
        to |= inside[me] & ~(1 << me)
        hops[me] = number = hops[me] + 1
        clocks[me] = clock = clocks[me] + 1
        hop = (me, number, to, targets, clock, _send_history(all_known[me], number, to, omits), message)
        unconfirmed[me][number] = [to, hop]
        packets.append(hop)

    for kind, me, sender, number, to, at in asked:
        mine = 1 << me
        if kind == DROP:
            packets[at] = None
        elif kind == SEND:
            seen[me][me] = number
            if to != mine:
                forward(me, (me, number), to & ~mine)
        elif kind == RECEIVE:
            _, number, to, targets, clock, history, _ = hop = packets[at]
            if not near[me] >> sender & 1 or number < 1 or clock < 1 or not targets:
                raise AssertionError(hop)
            if to < 0 or to >> n or to >> sender & 1 or not to & mine:
                raise AssertionError(hop)
            _check_history(all_known[me], history, sender, number, n)
            if to & (to - 1):
                kept[me][sender][number] = hop
        elif kind == DELIVER:
            _, number, to, targets, clock, history, message = packets[at]
            if clocks[me] < clock:
                clocks[me] = clock
            _learn_history(all_known[me], history, sender, number, to, hops[me])
            origin, count = message
            if place[sender] != place[me]:
                targets &= plan.behind(place[sender])[place[me]]
            elif to & ~inside[me]:
                targets &= mine
                retained[me].pop(message, None)
            if seen[me].get(origin, 0) < count:
                seen[me][origin] = count
                if targets & ~inside[me]:
                    if exits[me]:
                        forward(me, message, targets & ~inside[me])
                    else:
                        retained[me][message] = targets & ~inside[me]
            ungot[me][sender] += 1
            if ungot[me][sender] == EVERY:
                ungot[me][sender] = 0
                packets.append(("got", me, sender, number))
        elif kind == GOT:
            sent = unconfirmed[me]
            before = next(iter(sent), hops[me] + 1)
            for hop in list(sent):
                if hop > number:
                    break
                sent[hop][0] &= ~(1 << sender)
                if not sent[hop][0]:
                    del sent[hop]
            after = next(iter(sent), hops[me] + 1)
            if after != before:
                packets += [("stable", me, dest, after - 1) for dest in members(near[me])]
        elif kind == STABLE:
            theirs = kept[me][sender]
            for hop in [hop for hop in theirs if hop <= number]:
                del theirs[hop]


def _make_omission(plan: Plan) -> Omits:
    """R9: whether an entry to A_n, known to `copies`, stays out of a stamp of `me` to A_m."""
    station = [plan.place[v] if plan.separator[plan.place[v]] else None for v in range(len(plan.place))]
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


def _read_history(packet: Packet[Any]) -> list[tuple[int, int, int]]:
    return [(entry.sender, entry.number, entry.to) for entry in packet.stamp.history]


def _read_hop(packet: Packet[Any]) -> tuple[Any, ...]:
    stamp, message = packet.stamp, packet.message
    if message is None:
        return type(stamp).__name__.lower(), packet.source, packet.dest, stamp.number
    head = packet.source, stamp.number, stamp.to, stamp.targets, stamp.clock
    return *head, _read_history(packet), message.id


def _read_matrix(packet: Packet[Any]) -> tuple[Any, ...]:
    stamp = packet.stamp
    if isinstance(stamp, Extra):
        return stamp.sequence, None, list(stamp.column)
    return stamp.sequence, list(stamp.matrix)


class Bare(NamedTuple):
    """The rules of a protocol on plain data."""

    write: Callable[[Tape, Sequence[Asked], list[Any]], None]
    """Do what was asked, and append what is sent."""
    read: Callable[[Packet[Any]], Any]
    """What a machine sent, as `write` writes it."""


BARE = {
    "history": Bare(write_histories, _read_history),
    "separator": Bare(write_hops, _read_hop),
    "optimal": Bare(write_logs, lambda packet: packet.stamp.log),
    "bounded": Bare(write_matrices, _read_matrix),
}
