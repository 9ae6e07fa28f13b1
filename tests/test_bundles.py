"""Many packets at once: as bytes, and given to a machine."""

from __future__ import annotations

import tracemalloc
from itertools import groupby
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede.errors import PeerError, WireError
from antecede.model import Effect, Message, Packet, View
from antecede.protocols import PROTOCOLS, Machine, create
from antecede.protocols.permit import PermitStamp, Taken
from antecede.protocols.unordered import Plain
from antecede.wire import Limits, encode
from antecede.wire.bundles import (
    MEMORY_BASE,
    MEMORY_FACTOR,
    PACKETS,
    decode_bundle,
    decode_parts,
    encode_bundle,
    encode_whole,
)

VIEW = View.numbered(3)


def traffic(protocol: str, seed: int, senders: int = 3) -> dict[tuple[int, int], list[Packet[Any]]]:
    """What three machines sent each other in a drawn run, by source and destination; some send nothing."""
    random, machines = Random(f"{protocol} {seed}"), [create(protocol, VIEW, me) for me in range(3)]
    sent: dict[tuple[int, int], list[Packet[Any]]] = {}
    flying: list[Packet[Any]] = []

    def follow(machine: Machine, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Packet):
                sent.setdefault((effect.source, effect.dest), []).append(effect)
                flying.append(effect)
            else:
                follow(machine, machine.deliver(effect))

    for step in range(60):
        machine = random.choice(machines[:senders])
        to = (
            (0, 1, 2)
            if protocol == "broadcast"
            else tuple(random.sample(range(3), random.choice([1, 1, 2, 3])))
        )
        label = random.choice(["", "late"]) if machine.labels else ""
        follow(machine, machine.send(to, bytes([step]), label)[1])
        while len(flying) > 4:
            packet = flying.pop(0 if machine.needs_fifo else random.randrange(len(flying)))
            follow(machines[packet.dest], machines[packet.dest].receive(packet))
    return sent


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_bundle_holds_the_packets_of_every_protocol_in_their_order(protocol):
    sent = traffic(protocol, 1)
    assert sent
    for (source, dest), packets in sent.items():
        data = encode_bundle(packets)
        again = decode_bundle(data, source, dest)
        # What a protocol keeps as a set may come back in another order: the bytes of a packet say what it is.
        assert [encode(packet) for packet in again] == [encode(packet) for packet in packets]
        assert [decode_bundle(encode_whole(packet), source, dest) for packet in packets] == [
            [packet] for packet in again
        ]


def test_packets_that_are_alike_share_what_they_say():
    to, far = (1,), (1, 2)
    alike = [Packet(0, 1, PermitStamp(k, False), Message(0, k, to, b"x" * 10)) for k in range(1, 101)]
    assert len(encode_bundle(alike)) < 100 * (10 + 8)
    mixed: list[Packet[Any]] = [
        *alike[:2],
        Packet(0, 1, PermitStamp(3, True), Message(0, 3, far)),
        Packet(0, 1, Taken(9)),
        alike[4],
    ]
    assert decode_bundle(encode_bundle(mixed), 0, 1) == mixed


@given(st.binary(max_size=300))
def test_bytes_are_a_bundle_or_refused(data):
    try:
        packets = decode_bundle(data, 0, 1)
    except PeerError:
        return
    assert all((packet.source, packet.dest) == (0, 1) or packet.source == 0 for packet in packets)


PIECES = st.recursive(
    st.one_of(st.integers(-(1 << 63), (1 << 64) - 1), st.binary(max_size=9), st.booleans(), st.text(max_size=3)),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=30,
)  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 18), PIECES, PIECES).map(list), max_size=4))
def test_what_looks_like_a_bundle_is_one_or_refused(runs):
    try:
        packets = decode_bundle(msgspec.msgpack.encode(runs), 0, 1)
    except PeerError:
        return
    assert decode_bundle(encode_bundle(packets), 0, 1) == packets


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\xdd\xff\xff\xff\xff", "of length <= 65536"),
        (b"\xdd\x00\x00\xff\xff", "truncated"),
        (b"\x91" * 100_000, "no bundle"),
        # In a field that nobody knows: of a run, and of a row of a matrix.
        (b"\x91\x94\x02\x91\x01\x90" + b"\x91" * 100_000 + b"\x90", "no bundle"),
        (b"\x91\x93\x03\x91\x01\x91\x93\x01\x91\x94\x01\x01\x90" + b"\x91" * 100_000 + b"\x90", "no bundle"),
        (msgspec.msgpack.encode([[99, [], []]]), "no bundle"),
        (msgspec.msgpack.encode([[1, [1], [[-1, 1, b""]]]]), "no bundle"),
        (msgspec.msgpack.encode([[1, [1], [[1 << 63, 1, b""]]]]), "no bundle"),
        (msgspec.msgpack.encode([[3, [1], [[1, [[0, 1, [-1, 0]]], b""]]]]), "no bundle"),
        (msgspec.msgpack.encode([[1, [1], [[1, 1, bytes(101)]]]]), "a payload has 101 bytes: at most 100 are allowed"),
        (msgspec.msgpack.encode([[0, [b"garbage"]]]), "version 103"),
    ],
    ids=lambda one: one if isinstance(one, str) else f"{len(one)} bytes",
)  # fmt: skip
def test_a_bundle_that_cannot_be_is_refused_without_more_ado(data, told):
    with pytest.raises(WireError, match=told):
        decode_bundle(data, 0, 1, Limits(payload_bytes=100))


def test_a_packet_of_another_process_is_refused():
    data = encode_whole(Packet(2, 1, Plain(1), Message(2, 1, (1,))))
    with pytest.raises(PeerError, match="it comes from #2 over the link of #0"):
        decode_bundle(data, 0, 1)


# Machines


def thin_effects(effects: list[Effect]) -> tuple[list[Message], dict[Any, Packet[Any]], list[Packet[Any]]]:
    """Offers; the last of each kind of control that is cumulative, by destination; all other packets."""
    offers = [effect for effect in effects if isinstance(effect, Message)]
    packets = [effect for effect in effects if isinstance(effect, Packet)]
    last = {(p.dest, type(p.stamp)): p for p in packets if p.message is None and p.stamp.cumulative}
    rest = [p for p in packets if p.message is not None or not p.stamp.cumulative]
    return offers, last, rest


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(5))
def test_packets_received_together_do_what_they_do_one_by_one(protocol, seed):
    random = Random(seed)
    arriving = [
        packet
        for (_, dest), packets in traffic(protocol, seed, senders=2).items()
        if dest == 2
        for packet in packets
    ]
    single, together, in_rows = (create(protocol, VIEW, 2) for _ in range(3))
    arriving = [packet for packet in arriving if packet.message is not None]
    if not single.needs_fifo:
        random.shuffle(arriving)
    while arriving:
        size = random.randint(1, 9)
        portion, arriving = arriving[:size], arriving[size:]
        one_by_one: list[Effect] = []
        for packet in portion:
            one_by_one += single.receive(packet)
        at_once: list[Effect] = []
        together.receive_all(portion, at_once)
        assert thin_effects(at_once) == thin_effects(one_by_one)
        assert thin_effects(receive_bundles(in_rows, portion)) == thin_effects(one_by_one)
        assert in_rows.snapshot() == together.snapshot() == single.snapshot()
        while single.eligible() and random.random() < 0.7:
            message = single.eligible()[0]
            effects = thin_effects(single.deliver(message))
            assert thin_effects(together.deliver(message)) == effects
            assert thin_effects(in_rows.deliver(message)) == effects


def receive_bundles(machine: Machine, packets: list[Packet[Any]]) -> list[Effect]:
    """Let a machine receive packets as a process does: in a bundle for each source, rows where it takes them."""
    effects: list[Effect] = []
    for source, several in groupby(packets, lambda packet: packet.source):
        bundle = encode_bundle(list(several))
        for part in decode_parts(bundle, source, machine.me, numbers=machine.stamps_as_numbers):
            if isinstance(part, list):
                machine.receive_all(part, effects)
            else:
                machine.receive_rows(source, part.to, part.rows, effects)
    return effects


@pytest.mark.parametrize(
    ("to", "number", "stamp"), [((0,), 3, 6), ((2, 1), 3, 6), ((1,), 0, 6), ((1,), 3, 0)]
)
def test_a_row_that_no_peer_sends_is_refused_and_those_before_it_have_been_received(to, number, stamp):
    p2 = create("permit", VIEW, 1)
    effects: list[Effect] = []
    p2.receive_rows(0, (1,), [(1, 3, b""), (2, 4, b"")], effects)
    with pytest.raises(PeerError):
        p2.receive_rows(0, to, [(number, stamp, b"")], effects)
    assert effects[-1] == Packet(1, 0, Taken(2))
    assert [message.number for message in p2.eligible()] == [1]
    assert p2.snapshot()["state"]["_flagged"] == [[1], [], []]


def test_what_comes_before_a_packet_that_is_refused_has_been_received():
    p1, p2 = (create("permit", VIEW, me) for me in (0, 1))
    packets: list[Any] = [p1.send(1, b"")[1][0] for _ in range(3)]
    bad: Any = Packet(0, 1, PermitStamp(3, False), Message(2, 3, (1,)))
    effects: list[Effect] = []
    with pytest.raises(PeerError):
        p2.receive_all([packets[0], packets[1], bad, packets[2]], effects)
    assert effects[-1] == Packet(1, 0, Taken(2))
    assert [message.number for message in p2.eligible()] == [1]


# Memory


DENSE = {
    "empty runs of control": lambda size: [[8, []]] * (size // 3),
    "empty runs of messages": lambda size: [[1, [], []]] * (size // 4),
    "control of one byte": lambda size: [[15, [1] * size]],
    "control of three bytes": lambda size: [[15, [1000] * (size // 3)]],
    "rows without payload": lambda size: [[2, [1], [[1, 1, b""]] * (size // 5)]],
    "rows with large numbers": lambda size: [[2, [1], [[1000, 1000, b"x"]] * (size // 10)]],
    "rows of a matrix": lambda size: [[3, [1], [[1, [[0, 0, []]] * (size // 4), b""]]]],
    "counts of a matrix": lambda size: [[3, [1], [[1, [[0, 0, [1000] * (size // 3)]], b""]]]],
    "matrices without rows": lambda size: [[3, [1], [[1, [], b""]] * (size // 5)]],
    "destinations": lambda size: [[1, [1000] * (size // 3), []]],
    "packets without bytes": lambda size: [[0, [b""] * (size // 2)]],
    "packets of control": lambda size: [[0, [bytes.fromhex("010f000105")] * min(size // 7, PACKETS)]],
    "as many packets as may be": lambda size: [[13, [1], [[1, 2, b"x" * 8]] * PACKETS]],
}  # fmt: skip


@pytest.mark.parametrize("dense", DENSE)
def test_a_bundle_becomes_no_more_memory_than_is_stated(dense):
    data = msgspec.msgpack.encode(DENSE[dense](4 << 20))
    tracemalloc.start()
    try:
        decode_bundle(data, 0, 1, Limits(packet_bytes=4 << 20))
    except PeerError:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most <= MEMORY_FACTOR * len(data) + MEMORY_BASE, f"{most / len(data):.1f} times its bytes"


def test_a_bundle_of_too_many_packets_is_refused():
    most = decode_bundle(msgspec.msgpack.encode([[15, [1] * PACKETS]]), 0, 1)
    assert len(most) == PACKETS
    with pytest.raises(WireError, match=f"a bundle has {PACKETS + 1} packets"):
        decode_bundle(msgspec.msgpack.encode([[15, [1] * (PACKETS + 1)]]), 0, 1)
