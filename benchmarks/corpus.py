"""What sound processes send, as bytes, and how to spoil it: what `benchmarks.fuzz` begins with.

Packets, bundles and frames are those of real runs of every protocol. Notes about a change are such as a process in a
given moment could be told (`notes_to`), with values in them that are then exchanged, repeated, left out or made up
(`garble_note`): mere bytes would hardly ever be a note that is wrong only in what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from antecede.link import Frame, Link
from antecede.model import Packet, View
from antecede.net.peers.session import Beat, Bye, Code, Hello, Join, Welcome, pack
from antecede.net.peers.terms import Terms
from antecede.process.views.members import Joiner, Plan, Roll
from antecede.process.views.membership import Membership
from antecede.process.views.notes import (
    MARK,
    Ahead,
    Ask,
    Go,
    Install,
    Installed,
    Later,
    Note,
    Report,
    Settle,
    State,
    Stop,
    Stopped,
    encode_note,
)
from antecede.protocols import create
from antecede.wire import encode
from antecede.wire.bundles import encode_bundle
from antecede.wire.feed import Answer, ask, tell
from antecede.wire.frames import encode_frame

__all__ = ["EPOCHS", "NAMES", "Corpus", "N", "corpus", "garble_note", "mutate_bytes", "notes_to", "some_plan"]

N = 4
NAMES = View.numbered(N).names
EPOCHS = (7, 9)
LARGE = (0x7F, 0x80, 0xFF, 0xC4, 0xC6, 0xCF, 0xDC, 0xDD, 0xDF)
"""Bytes that announce much, or end nothing."""
ODD = (-1, 0, 1, 2, 3, 4, 5, 99, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
"""Numbers that count nothing, or name nobody."""


class Corpus(Struct, frozen=True):
    """For each target, what a sound peer sends."""

    packets: list[bytes]
    bundles: list[bytes]
    sent: dict[str, list[bytes]]
    """Protocol -> bundles of process 0 to process 1."""
    frames: list[bytes]
    sessions: list[bytes]
    feeds: list[bytes]
    notes: list[bytes]


def packets_of(protocol: str, random: Random, messages: int = 30) -> list[Packet[Any]]:
    """Packets of a run in which they arrive in any order that the protocol takes."""
    machines = [create(protocol, View.numbered(N), me) for me in range(N)]
    network: list[Packet[Any]] = []
    seen: list[Packet[Any]] = []

    def follow(effects: Sequence[Any]) -> None:
        new = [effect for effect in effects if isinstance(effect, Packet)]
        network.extend(new)
        seen.extend(new)

    for k in range(messages):
        size = N if protocol == "broadcast" else random.choice([1, 2, N])
        _, effects = machines[k % N].send(tuple(sorted(random.sample(range(N), size))), bytes(k % 7))
        follow(effects)
        for _ in range(random.randrange(4)):
            if network:
                packet = network.pop(0 if machines[0].needs_fifo else random.randrange(len(network)))
                follow(machines[packet.dest].receive(packet))
        for machine in machines:
            for message in machine.eligible()[:1]:
                follow(machine.deliver(message))
    return seen


def corpus(protocols: Sequence[str], random: Random) -> Corpus:
    packets = {protocol: packets_of(protocol, random) for protocol in protocols}
    every = [packet for sent in packets.values() for packet in sent]
    bundles = bundle_packets(every, 5)
    sent = {protocol: bundle_packets(mine, 2) for protocol, mine in packets.items()}
    link = Link(epoch=EPOCHS[0], peer=EPOCHS[1])
    frames = [frame for payload in bundles[:50] for frame in link.send(payload, now=0)]
    frames += [link.hail(), Frame(7, 9, 3, 2, 6, b"early"), Frame(8, 9, 3, 2, 0, None, True, True)]
    terms = Terms("permit", {"k": 5}, 4096, 1024, 64)
    hello = pack(Hello.of(NAMES[0], NAMES[1], NAMES, terms, link.hail()))
    rest = [pack(frame, EPOCHS) for frame in frames] + [pack(Beat(True)), pack(Bye(Code.STOPS, "it stops"))]
    sessions = [hello + b"".join(random.sample(rest, 3)) for _ in range(50)]
    join = Join("new", NAMES[1], "permit", {"k": 5}, "127.0.0.1:7000", ("all",))
    first = Roll.first(NAMES, {"all": NAMES})
    sessions += [pack(join), hello + pack(Welcome(first))]
    known = [encode_frame(frame, EPOCHS) for frame in frames]
    feeds = [ask(3, 9), ask(), tell(Answer("ann", "nodes", 0, 12)), tell(Answer(error="no"))]
    plan = Plan((Joiner("new", "127.0.0.1:7000", ("all",), NAMES[0]),), (NAMES[2],), (NAMES[3],))
    notes = [encode_note(note) for note in every_note(first, 2, plan, 5)]
    return Corpus([encode(one) for one in every], bundles, sent, known, sessions, feeds, notes)


def bundle_packets(packets: Sequence[Packet[Any]], size: int) -> list[bytes]:
    """The packets from process 0 to process 1, in bundles of so many."""
    mine = [packet for packet in packets if (packet.source, packet.dest) == (0, 1)]
    return [encode_bundle(mine[k : k + size]) for k in range(0, len(mine), size)]


# Notes


def every_note(roll: Roll, round: int, plan: Plan, sent: int) -> list[Note]:
    """What members tell each other when a view changes by a plan."""
    later = roll.follow(round, plan, dict.fromkeys(roll.without(plan.remove), sent))
    counts = dict.fromkeys(roll.members, 0)
    return [
        Ask(plan), Stop(round, roll, plan), Stop(round + 1, later, Plan()), Stopped(round, plan.remove),
        Settle(round), Report(round, counts, counts, sent), Install(later), Installed(round), Go(round),
        Go(roll.number), Ahead(later), Later(round), State(b"piece", True), State(None, True),
    ]  # fmt: skip


def some_plan(random: Random, roll: Roll) -> Plan:
    names = random.sample(roll.shown, min(2, len(roll.shown)))
    joiner = Joiner(f"n{len(roll.names)}", random.choice(["127.0.0.1:7000", ""]), ("all",), names[0])
    return random.choice([Plan(join=(joiner,)), Plan(leave=(names[-1],)), Plan(remove=(names[-1],)), Plan()])


def notes_to(random: Random, membership: Membership, sent: int) -> list[bytes]:
    """What a process in this state may be told, and how it may be garbled."""
    roll, led = membership.roll, membership.led
    if not roll.members:
        return [MARK]
    round = led.round if led is not None else membership.promised + random.choice([0, 0, 1])
    plan = random.choice([some_plan(random, roll), membership.plan, Plan() if led is None else led.plan])
    if {joiner.name for joiner in plan.join} & set(roll.names):
        plan = Plan()
    notes = [encode_note(note) for note in every_note(roll, round, plan, max(sent, 0))]
    return notes + [garble_note(random, note) for note in notes]


def garble_note(random: Random, note: bytes) -> bytes:
    """A note with one to three of its values changed."""
    value = msgspec.msgpack.decode(note[1:])
    for _ in range(random.randint(1, 3)):
        value = _change_value(random, value)
    return MARK + msgspec.msgpack.encode(value)


def _change_value(random: Random, value: Any) -> Any:
    """Plain data with one value in it changed."""
    if isinstance(value, (list, dict)) and value and random.random() < 0.8:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        at = random.choice(list(keys))
        changed = dict(value) if isinstance(value, dict) else list(value)
        match random.randrange(6):
            case 0:
                del changed[at]
            case 1 if isinstance(changed, list):
                changed.insert(at, changed[random.randrange(len(changed))])
            case 2 if isinstance(changed, dict):
                changed[random.choice([*ODD, *NAMES]) if isinstance(at, int) else "odd"] = changed.pop(at)
            case _:
                changed[at] = _change_value(random, changed[at])
        return changed
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return random.choice([min(value + 1, ODD[-1]), max(value - 1, -1), *ODD])
    if isinstance(value, str):
        return random.choice([*NAMES, "", "odd", "all", "x" * 300])
    return random.choice([[], {}, 0, "", b"odd", [0], [NAMES[0]], [99, -1]])


# Bytes


def mutate_bytes(random: Random, known: Sequence[bytes]) -> bytes:
    """Bytes that are almost right; now and then, not at all."""
    data = bytearray(random.choice(known))
    if random.random() < 0.02:
        return random.randbytes(random.randrange(80))
    for _ in range(random.choice((0, 1, 1, 1, 2, 3, 8))):
        at = random.randrange(len(data) + 1)
        match random.randrange(8):
            case 0 if data:
                data[at - 1] ^= 1 << random.randrange(8)
            case 1 if data:
                data[at - 1] = random.choice(LARGE)
            case 2 if data:
                data[at - 1] = random.randrange(256)
            case 3:
                del data[at : at + random.randrange(1, 9)]
            case 4:
                data[at:at] = random.randbytes(random.randrange(1, 9))
            case 5:
                data[at:at] = data[at : at + random.randrange(1, 33)] * random.randrange(1, 9)
            case 6:
                other = random.choice(known)
                data[at:] = other[random.randrange(len(other) + 1) :]
            case _:
                del data[at:]
    return bytes(data[: 1 << 16])
