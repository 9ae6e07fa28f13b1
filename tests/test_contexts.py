"""Causal contexts as values (Rodrigues & Veríssimo 1995, chapter 6): what a message follows is what it was sent after.

Small programs are run in every schedule: each send names the messages that it follows. The order that must hold is
worked out from these names alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

from antecede.errors import BadParameter, BadStamp, Unsupported
from antecede.model import CausalContext, Message, Obligation, Packet, View
from antecede.net import Memory, Node
from antecede.protocols import Machine, create
from antecede.protocols.contexts import Contexts, ContextStamp
from tests.net_world import QUICK, in_memory

NOTHING = CausalContext()


# Values


def contexts(random: Random) -> CausalContext:
    drawn = [
        (random.randrange(2), random.randrange(2), random.randrange(1, 3)) for _ in range(random.randrange(4))
    ]
    return CausalContext(frozenset(drawn), random.randrange(2))


def test_merging_is_commutative_associative_and_idempotent():
    random = Random("laws of contexts")
    for _ in range(500):
        a, b, c = (contexts(random) for _ in range(3))
        assert a | b == b | a
        assert (a | b) | c == a | (b | c)
        assert a | a == a
        assert CausalContext.decode((a | b).encode()) == a | b
        assert (a.encode() == b.encode()) == (a == b)


def test_bytes_that_are_no_context_are_refused():
    for data in (b"", b"garbage", msgspec.msgpack.encode([1, [[1, 2]]])):
        with pytest.raises(BadParameter, match="what CausalContext"):
            CausalContext.decode(data)


# Every schedule


class Post(NamedTuple):
    """A send: who, to whom, and the messages that it follows; None: everything."""

    sender: int
    to: tuple[int, ...]
    follows: tuple[int, ...] | None


Program = Sequence[Post]


def must_precede(program: Program) -> list[set[int]]:
    """For each message, those that it follows, by the names alone. Only for programs without everything."""
    before: list[set[int]] = []
    for post in program:
        assert post.follows is not None
        before.append({m for f in post.follows for m in (f, *before[f])})
    return before


class Schedule(NamedTuple):
    """A state of a run: it is told apart by what the machines say that they are."""

    machines: tuple[Machine, ...]
    done: int
    """Messages sent, as bits."""
    network: tuple[tuple[int, Packet[Any]], ...]
    delivered: tuple[tuple[int, ...], ...]
    known: tuple[tuple[tuple[int, CausalContext], ...], ...]
    """For each process, the contexts that it has."""

    @property
    def key(self) -> tuple[Any, ...]:
        states = tuple(msgspec.msgpack.encode(machine.snapshot()) for machine in self.machines)
        packets = tuple(sorted(msgspec.msgpack.encode(p) for _, p in self.network))
        return states, self.done, packets, self.delivered, self.known


def overtaken(program: Program, kind: type[Contexts], n: int) -> str | None:
    """Every schedule: the first in which a message comes after one that follows it, or never comes."""
    before = must_precede(program)
    view = View.numbered(n)
    first = Schedule(tuple(kind(view, p) for p in range(n)), 0, (), ((),) * n, ((),) * n)
    todo, seen = [first], {first.key}
    while todo:
        world = todo.pop()
        after = list(steps(program, world))
        if not after and any(
            len(d) < sum(p in post.to for post in program) for p, d in enumerate(world.delivered)
        ):
            return f"stuck: {world.delivered}"
        for one in after:
            for process, order in enumerate(one.delivered):
                for place, late in enumerate(order):
                    if any(late in before[early] for early in order[:place]):
                        return f"p{process + 1} delivered {order}"
            if one.key not in seen:
                seen.add(one.key)
                todo.append(one)
    return None


def steps(program: Program, world: Schedule) -> Iterator[Schedule]:
    for number, post in enumerate(program):
        known = dict(world.known[post.sender])
        mine = [k for k, other in enumerate(program) if other.sender == post.sender]
        earlier = all(world.done >> k & 1 for k in mine if k < number)
        if not world.done >> number & 1 and earlier and all(f in known for f in post.follows or ()):
            machines = copies(world.machines)
            merged = NOTHING
            for f in post.follows or ():
                merged |= known[f]
            message, effects = machines[post.sender].send(post.to, bytes((number,)), after=merged)
            known[number] = machines[post.sender].context_of(message)
            packets = [(number, e) for e in effects if isinstance(e, Packet)]
            yield world._replace(
                machines=machines,
                done=world.done | 1 << number,
                network=(*world.network, *packets),
                known=replace_at(world.known, post.sender, tuple(sorted(known.items(), key=lambda k: k[0]))),
            )
    for place, (_, packet) in enumerate(world.network):
        machines = copies(world.machines)
        machines[packet.dest].receive(packet)
        yield world._replace(machines=machines, network=world.network[:place] + world.network[place + 1 :])
    for process, machine in enumerate(world.machines):
        for message in machine.eligible():
            machines = copies(world.machines)
            machines[process].deliver(message)
            number = message.payload[0]
            known = dict(world.known[process]) | {number: machines[process].context_of(message)}
            yield world._replace(
                machines=machines,
                delivered=replace_at(world.delivered, process, (*world.delivered[process], number)),
                known=replace_at(world.known, process, tuple(sorted(known.items(), key=lambda k: k[0]))),
            )


def copies(machines: Iterable[Machine]) -> tuple[Machine, ...]:
    result = []
    for machine in machines:
        copy = type(machine)(machine.view, machine.me)
        copy.load(machine.dump())
        result.append(copy)
    return tuple(result)


def replace_at(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


def programs(n: int, messages: int) -> Iterator[list[Post]]:
    """All programs of so many messages: each to one process or to all others, after any of those before it."""
    kinds = []
    for number in range(messages):
        follows = [tuple(k for k in range(number) if bits >> k & 1) for bits in range(1 << number)]
        ways = [
            (s, to)
            for s in range(n)
            for to in {(d,) for d in range(n)} | {tuple(d for d in range(n) if d != s)}
        ]
        kinds.append([Post(s, to, f) for (s, to), f in product(sorted(ways), follows)])
    yield from (list(found) for found in product(*kinds))


def can_run(program: Program) -> bool:
    """A sender has the contexts that it needs: of its own messages and of those that come to it."""
    return all(
        program[f].sender == post.sender or post.sender in program[f].to
        for post in program
        for f in post.follows or ()
    )


def test_every_schedule_of_all_small_programs_keeps_the_order_that_was_asked_for():
    """All programs of three messages among two, and a share of those among three."""
    random = Random("small programs of contexts")
    two = [p for p in programs(2, 3) if can_run(p)]
    three = [p for p in programs(3, 3) if can_run(p) and any(post.follows for post in p)]
    for n, found in ((2, random.sample(two, 60)), (3, random.sample(three, 120))):
        for program in found:
            assert overtaken(program, Contexts, n) is None, program


# Each rule is needed


class ForgetsTheContext(Contexts):
    def _send_after(self, message: Message, after: CausalContext) -> list[Any]:
        return super()._send_after(message, NOTHING)


class DoesNotWait(Contexts):
    def _needs(self, packet: Packet[Any]) -> list[Any]:
        return []


class InfersFromCounts(Contexts):
    """Takes a sender's later message for a sign that the earlier ones were delivered."""

    def _needs(self, packet: Packet[Any]) -> list[Any]:
        return [
            need
            for need in super()._needs(packet)
            if need[1] > self._seen[need[0][0]].floor + 1 or need[1] == 1
        ]

    def _find_unmet(self, packet: Packet[Any]) -> Any:
        for (sender, count), _ in super()._needs(packet):
            seen = self._seen[sender]
            if count > max(seen.beyond, default=seen.floor):
                return (sender, count), count
        return None


class ContextWithoutThePast(Contexts):
    def _of(self, message: Message, stamp: ContextStamp) -> CausalContext:
        whole = super()._of(message, stamp)
        return CausalContext(whole.obligations - stamp.after)


class ContextWithoutTheMessage(Contexts):
    def _of(self, message: Message, stamp: ContextStamp) -> CausalContext:
        return CausalContext(stamp.after)


class ContextWithoutOtherCopies(Contexts):
    def _of(self, message: Message, stamp: ContextStamp) -> CausalContext:
        whole, first = super()._of(message, stamp), message.to[0]
        own = {(message.sender, d, c) for d, c in zip(message.to, stamp.counts, strict=True) if d == first}
        return CausalContext(whole.obligations - own)


class SettlesWhatItHasNotDelivered(Contexts):
    def _find_unsettled(self, obligations: Iterable[Obligation]) -> list[Obligation]:
        return [one for one in obligations if one[1] != self.me]


TRIANGLE = [Post(0, (2,), ()), Post(0, (1,), (0,)), Post(1, (2,), (1,))]
TWICE = [Post(0, (1,), ()), Post(0, (1,), (0,))]
THREE = [Post(0, (1,), ()), Post(0, (1,), ()), Post(0, (1,), (0,))]
COPIES = [Post(0, (1, 2), ()), Post(1, (2,), (0,)), Post(2, (1,), (0,))]
ONESELF = [Post(0, (0,), ()), Post(0, (0,), (0,))]


@pytest.mark.parametrize(
    ("mutant", "program"),
    [
        (ForgetsTheContext, TWICE),
        (DoesNotWait, TWICE),
        (InfersFromCounts, THREE),
        (ContextWithoutThePast, TRIANGLE),
        (ContextWithoutTheMessage, TWICE),
        (ContextWithoutOtherCopies, [Post(0, (1, 2), ()), Post(2, (1,), (0,))]),
        (SettlesWhatItHasNotDelivered, ONESELF),
    ],
)
def test_every_rule_is_needed(mutant: type[Contexts], program: list[Post]):
    assert overtaken(program, Contexts, 3) is None
    assert overtaken(program, mutant, 3) is not None


# What an application does with them


def test_a_message_of_high_priority_is_not_delayed_by_one_of_low_priority():
    """Rodrigues & Veríssimo 1995, chapter 6: alarms follow alarms; the rest follows everything."""
    view = View.of("a", "b", "screen")
    a, b, screen = (create("contexts", view, name) for name in view.names)
    for line in (b"log line 1", b"log line 2"):
        a.send(["b", "screen"], line)
    alarm, packets = a.send(["b", "screen"], b"fire", after=NOTHING)
    to_b, to_screen = (next(p for p in packets if isinstance(p, Packet) and p.dest == d) for d in (1, 2))
    assert screen.receive(to_screen) == [alarm], "at once, before both lines"
    screen.deliver(alarm)
    b.receive(to_b)
    b.deliver(alarm)
    out, [answer] = b.send("screen", b"fire is out", after=b.context_of(alarm))
    assert isinstance(answer, Packet)
    assert screen.receive(answer) == [out], "alarms are in causal order among themselves"


def test_a_message_sent_after_a_context_delays_nothing_that_is_sent_after_everything():
    view = View.of("a", "b", "screen")
    a, b, screen = (create("contexts", view, name) for name in view.names)
    upload, packets = a.send(["b", "screen"], b"a large file", after=NOTHING)
    [to_b] = [packet for packet in packets if isinstance(packet, Packet) and packet.dest == 1]
    b.receive(to_b)
    b.deliver(upload)
    line, [packet] = b.send("screen", b"log line")
    assert isinstance(packet, Packet)
    assert screen.receive(packet) == [line], "at once: the file is in no history"


def test_what_is_delivered_is_one_number_a_sender_whatever_was_sent_after_what():
    a, b = (create("contexts", View.of("a", "b"), name) for name in ("a", "b"))
    for k in range(200):
        message, [packet] = a.send("b", after=NOTHING if k % 3 else None)
        assert isinstance(packet, Packet)
        b.receive(packet)
        b.deliver(message)
    assert b.dump()["_seen"] == [{"floor": 200, "beyond": []}, {"floor": 0, "beyond": []}]
    assert len(a.dump()["_history"]) == 1
    assert not b.dump()["_history"]


def test_a_context_of_messages_that_were_never_sent_is_refused():
    a, b = (create("contexts", View.of("a", "b"), name) for name in ("a", "b"))
    for wrong in ((0, 1, 1), (0, 1, 0), (7, 1, 1), (1, -1, 1)):
        with pytest.raises(BadParameter, match="after names message"):
            a.send("b", after=CausalContext(frozenset({wrong})))
    assert a.sent == 0
    _, [packet] = a.send("b")
    assert isinstance(packet, Packet)
    with pytest.raises(BadStamp, match="counts 1 of our messages, and we sent 0"):
        b.receive(msgspec.structs.replace(packet, stamp=ContextStamp((1,), frozenset({(1, 0, 1)}), True)))
    with pytest.raises(BadStamp, match="which was sent later"):
        b.receive(msgspec.structs.replace(packet, stamp=ContextStamp((1,), frozenset({(0, 1, 1)}), True)))


def test_other_protocols_say_which_one_has_contexts():
    with pytest.raises(Unsupported, match="use the protocol contexts"):
        create("matrix", View.of("a", "b"), "a").send("b", after=NOTHING)


# Nodes


def test_nodes_send_after_contexts_that_were_stored_and_sent():
    async def main():
        async with in_memory(3, protocol="contexts") as (a, b, c):
            first = await a.send([b.name, c.name], b"first", after=NOTHING)
            told = await b.receive()
            assert told.causal_context is not None
            assert first.causal_context is not None
            # b passes the context on in a payload, and c sends after it.
            await b.send(c.name, told.causal_context.encode(), after=NOTHING)
            got = {(await c.receive()).payload for _ in range(2)}
            passed = CausalContext.decode(next(one for one in got if one != b"first"))
            reply = await c.send(a.name, b"reply", after=passed | first.causal_context)
            assert (await a.receive()).payload == b"reply"
            assert reply.causal_context
            with pytest.raises(BadParameter, match="after is of view 9"):
                await a.send(b.name, b"", after=CausalContext(frozenset(), 9))

    asyncio.run(main())


def test_a_context_outlives_a_node_that_died_before_it_acknowledged_the_message(tmp_path):
    async def main():
        network = Memory()
        options: dict[str, Any] = {"peers": ["a", "b"], "protocol": "contexts", "settings": QUICK}
        async with Node("a", transport=network.at("a"), **options) as a:
            journal = tmp_path / "b.db"
            async with Node("b", transport=network.at("b"), journal=journal, **options) as b:
                await a.send("b", b"first", after=NOTHING)
                await a.send("a", b"to itself", after=NOTHING)
                context = (await b.receive()).causal_context
                assert context is not None
            async with Node("b", transport=network.at("b"), journal=journal, **options) as b:
                again = await b.receive()
                assert again.again
                assert again.causal_context == context

    asyncio.run(main())


def test_a_node_joins_two_labels():
    async def main():
        async with in_memory(2, protocol="history") as (a, b):
            await a.send(b.name, b"upload", label="bulk")
            a.merge("bulk", into="urgent")
            await a.send(b.name, b"upload done", label="urgent")
            assert [(await b.receive()).label for _ in range(2)] == ["bulk", "urgent"]
        async with in_memory(2, protocol="matrix") as (a, b):
            with pytest.raises(Unsupported, match="only history has labels"):
                a.merge("bulk", into="urgent")

    asyncio.run(main())
