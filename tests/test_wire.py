"""Packets to bytes and back: of real runs, made up, cut short, changed, too large."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antecede.errors import BadParameter, WireError
from antecede.model import Effect, Message, Packet, Stamp, View, mask
from antecede.protocols import PROTOCOLS, create
from antecede.protocols.bounded import BoundedStamp, Extra
from antecede.protocols.broadcast import VectorStamp
from antecede.protocols.buffer import Acknowledge, Posted, Release
from antecede.protocols.contexts import ContextStamp
from antecede.protocols.fifo import Sequence
from antecede.protocols.histories import Entry
from antecede.protocols.history import HistoryStamp
from antecede.protocols.matrix import MatrixStamp, Row
from antecede.protocols.monitor import MonitorStamp
from antecede.protocols.optimal import LogStamp, make_rows
from antecede.protocols.permit import Grant, PermitStamp, Taken
from antecede.protocols.relay import Got, Relayed, Stable
from antecede.protocols.separator import HopStamp, Resumed
from antecede.protocols.sparing import SparingExtra, SparingStamp
from antecede.protocols.underway import Receipt, Settled, UnderwayStamp
from antecede.protocols.unordered import Plain
from antecede.wire import Limits, decode, encode, stamp_size
from antecede.wire.octets import MAX_UINT, Reader, Writer
from antecede.wire.stamps import BY_STAMP

NAMES = [name for name in PROTOCOLS if name != "separator"]  # It needs a topology.
RUNS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES),
    ("history", {"r6_1": True}),
    ("history", {"r7": False, "r8": False}),
    ("buffer", {"pipelined": True}),
]


def run(protocol: str, n: int, messages: int, seed: int, **parameters: Any) -> list[Packet[Any]]:
    """All packets of a random run in which every packet crosses the network as bytes."""
    print(f"run({protocol!r}, {n}, {messages}, {seed}, **{parameters})")
    random = Random(seed)
    machines = [create(protocol, View.numbered(n), process, **parameters) for process in range(n)]
    fifo, labels = machines[0].needs_fifo, machines[0].labels
    packets: list[Packet[Any]] = []
    network: list[tuple[int, int, bytes]] = []

    def follow(process: int, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Packet):
                packets.append(effect)
                network.append((effect.source, effect.dest, encode(effect)))
            else:
                follow(process, machines[process].deliver(effect))

    while messages or network:
        if messages and (not network or random.random() < 0.4):
            messages -= 1
            process = random.randrange(n)
            to = random.sample(range(n), random.choice([1, 1, 1, 2, n // 2, n]))
            if machines[process].accepts(process, tuple(sorted(to))):
                to = list(range(n))
            label = random.choice(["", "a", "émile"]) if labels else ""
            if labels and random.random() < 0.1:
                machines[process].merge("a", "")
            follow(process, machines[process].send(to, random.randbytes(random.randrange(9)), label)[1])
        else:
            source, dest, _ = random.choice(network)
            channel = [item for item in network if item[:2] == (source, dest)]
            chosen = channel[0] if fifo else random.choice(channel)
            network.remove(chosen)
            follow(dest, machines[dest].receive(decode(chosen[2])))
    return packets


@pytest.mark.parametrize(("protocol", "parameters"), RUNS)
def test_packets_of_a_run_come_back_as_they_were(protocol, parameters):
    for seed, (n, messages) in enumerate([(2, 100), (3, 100), (5, 100), (8, 100), (20, 60), (70, 15)]):
        for packet in run(protocol, n, messages, seed, **parameters):
            data = encode(packet)
            assert decode(data) == packet
            assert encode(decode(data)) == data
            assert 0 <= stamp_size(packet) <= len(data) - 4


def test_every_stamp_of_every_protocol_has_a_code():
    assert {stamp for machine in PROTOCOLS.values() for stamp in machine.stamps} == set(BY_STAMP)


# Packets that no run gave

N = 20
numbers = st.one_of(st.integers(0, 300), st.integers(0, MAX_UINT))
counts = st.one_of(st.integers(1, 9), st.integers(1, 300), st.integers(1, MAX_UINT))
processes = st.integers(0, N - 1)
sets = st.one_of(st.integers(0, (1 << N) - 1), processes.map(lambda p: 1 << p))
labels = st.sampled_from(["", "a", "b", "été", "x" * 200])
vectors = st.lists(st.one_of(st.just(0), counts), min_size=N, max_size=N).map(tuple)


@st.composite
def matrices(draw: st.DrawFn, source: int, number: int) -> MatrixStamp:
    others = sorted(draw(st.sets(processes, max_size=4)) - {source})
    rows = [Row(process, draw(numbers), draw(vectors)) for process in others]
    return MatrixStamp((*rows, Row(source, number, draw(vectors))))


def histories(identifier: st.SearchStrategy[Entry]) -> st.SearchStrategy[tuple[Entry, ...]]:
    entries = st.lists(identifier, max_size=6, unique_by=lambda e: (e.sender, e.number))
    return entries.map(lambda history: tuple(sorted(history, key=lambda e: (e.sender, e.number))))


def columns(most: int) -> st.SearchStrategy[dict[int, int]]:
    return st.dictionaries(processes, counts, max_size=most)


@st.composite
def packets(draw: st.DrawFn) -> Packet[Any]:
    source, dest, number = draw(processes), draw(processes), draw(numbers)
    to = draw(st.one_of(st.just({dest}), st.sets(processes, min_size=1)))
    sender = draw(st.one_of(st.just(source), processes))
    payload, label, context = draw(st.binary(max_size=5)), draw(labels), draw(labels)
    message = Message(sender, number, tuple(sorted(to)), payload, label, context)
    kind = draw(st.sampled_from(sorted(BY_STAMP, key=lambda stamp: stamp.__name__)))
    stamp = draw(stamps(kind, source, dest, message))
    return Packet(source, dest, stamp, None if kind.control else message)


def stamps(kind: type[Stamp], source: int, dest: int, message: Message) -> st.SearchStrategy[Any]:
    if kind is Posted:
        return st.just(Posted())
    if kind in (Plain, Sequence, Acknowledge, Release, Taken, Grant, Got, Stable, Receipt):
        return numbers.map(kind)
    if kind is PermitStamp:
        return st.builds(PermitStamp, st.integers(0, MAX_UINT >> 1), st.booleans())
    if kind is MonitorStamp:
        return st.builds(MonitorStamp, numbers, vectors)
    if kind is VectorStamp:
        own = message.number
        return vectors.map(lambda vector: VectorStamp((*vector[:source], own, *vector[source + 1 :])))
    if kind is MatrixStamp:
        return matrices(source, message.number)
    if kind is Extra:
        return columns(N).map(lambda c: Extra(c.get(source, 0) + 1, tuple(sorted(c.items()))))
    if kind is BoundedStamp:
        return st.dictionaries(processes, columns(4), max_size=4).map(
            lambda m: _make_bounded(m, source, dest)
        )
    if kind is Resumed:
        return st.builds(Resumed, sets, numbers, numbers, numbers, numbers)
    if kind in (HistoryStamp, HopStamp, Relayed):
        entries = st.one_of(
            st.builds(Entry, processes, numbers, sets, st.just(0), st.just(message.label)),
            st.builds(Entry, processes, numbers, sets, st.one_of(st.just(0), sets), labels),
        )
        if kind is HopStamp:
            return st.builds(HopStamp, numbers, sets, sets, numbers, numbers, histories(entries))
        if kind is Relayed:
            return st.builds(Relayed, numbers, sets, sets, numbers, numbers, histories(entries), processes)
        return histories(entries).map(HistoryStamp)
    if kind in (LogStamp, UnderwayStamp):
        logs = histories(st.builds(Entry, processes, numbers, sets)).map(
            lambda h: [(e.sender, e.number, e.to) for e in h]
        )
        if kind is LogStamp:
            return logs.map(lambda log: LogStamp(frozenset(make_rows(log))))
        return logs.map(lambda log: UnderwayStamp(tuple(log)))
    if kind is SparingExtra:
        return st.builds(SparingExtra, numbers, numbers, columns(N).map(lambda c: tuple(sorted(c.items()))))
    if kind is Settled:
        return st.builds(Settled, processes, numbers)
    if kind is SparingStamp:
        size = len(message.to)
        own_counts = st.lists(counts, min_size=size, max_size=size).map(tuple)
        values = st.dictionaries(processes, st.tuples(counts, counts), min_size=1, max_size=4)
        sparse = st.dictionaries(processes, values, max_size=4).map(
            lambda m: tuple((i, j, *m[j][i]) for j in sorted(m) for i in sorted(m[j]))
        )
        known = columns(N).map(lambda c: tuple(sorted(c.items())))
        return st.builds(SparingStamp, own_counts, numbers, numbers, numbers, known, sparse)
    if kind is ContextStamp:
        size = len(message.to)
        listed = st.lists(counts, min_size=size, max_size=size).map(tuple)
        after = st.frozensets(st.tuples(processes, processes, numbers), max_size=6)
        return st.builds(ContextStamp, listed, after.map(frozenset), st.booleans())
    raise NotImplementedError(f"packets with {kind.__name__}")


def _make_bounded(matrix: dict[int, dict[int, int]], source: int, dest: int) -> BoundedStamp:
    triples = [(i, j, count) for j in sorted(matrix) for i, count in sorted(matrix[j].items())]
    return BoundedStamp(matrix.get(dest, {}).get(source, 0) + 1, tuple(triples))


@settings(max_examples=500, deadline=None)
@given(packets())
def test_any_packet_comes_back_as_it_was(packet):
    data = encode(packet)
    assert decode(data) == packet


@given(sets, st.lists(counts), st.lists(st.one_of(st.just(0), counts), max_size=N))
def test_parts_come_back_as_they_were(members, values, vector):
    writer = Writer(Limits(processes=N))
    writer.members(members)
    writer.counts(values)
    writer.vector(vector)
    reader = Reader(bytes(writer.out), Limits(processes=N))
    assert reader.members() == members
    assert list(reader.counts(len(values))) == values
    assert reader.vector(len(vector)) == tuple(vector)
    assert reader.at == len(reader.data)


def test_histories_and_sparse_matrices_are_sets():
    message = Message(0, 9, (1,))
    entries = Entry(2, 1, 2), Entry(1, 7, 2), Entry(1, 3, 6)
    shuffled = Packet(0, 1, HistoryStamp(entries), message)
    assert decode(encode(shuffled)).stamp.history == (entries[2], entries[1], entries[0])


# Bytes that are no packet


def refusal(data: bytes, limits: Limits = Limits()) -> str:  # noqa: B008  (a frozen value)
    with pytest.raises(WireError) as caught:
        decode(data, limits)
    place = caught.value.at
    assert place is None or 0 <= place <= len(data)
    return str(caught.value)


def survives(data: bytes) -> None:
    """Either it is refused by the one error, or it is the one encoding of a packet."""
    try:
        packet = decode(data)
    except WireError:
        return
    assert encode(packet) == data


heads = st.sampled_from([bytes((1, kind.code)) for kind in BY_STAMP.values()])


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.binary(), st.builds(bytes.__add__, heads, st.binary())))
def test_random_bytes_are_refused_or_are_a_packet(data):
    survives(data)


@settings(max_examples=150, deadline=None)
@given(packets())
def test_every_truncation_is_refused(packet):
    data = encode(packet)
    for size in range(len(data)):
        refusal(data[:size])
    assert "1 bytes follow the stamp" in refusal(data + b"\0")


@settings(max_examples=150, deadline=None)
@given(packets(), st.data())
def test_a_changed_byte_is_refused_or_makes_another_packet(packet, choice):
    data = encode(packet)
    for place in range(len(data)):
        byte = choice.draw(st.integers(0, 255)) if len(data) < 60 else (data[place] + 1) % 256
        survives(data[:place] + bytes((byte,)) + data[place + 1 :])


@pytest.mark.parametrize("protocol", NAMES)
def test_every_mutation_of_a_real_packet_is_refused_or_makes_another(protocol):
    largest = max(run(protocol, 6, 30, seed=1), key=lambda packet: len(encode(packet)))
    data = encode(largest)
    for place in range(len(data)):
        for byte in range(256):
            survives(data[:place] + bytes((byte,)) + data[place + 1 :])


FIFO = "01 02 00 01"  # version, Sequence, from 0 to 1
PLAIN_MESSAGE = "00 01 00"  # no flags, number 1, no payload
HUGE = "ff ff ff ff ff ff ff ff 7f"  # 2**63 - 1


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("", "at byte 0: it has 0 bytes, and needs 2"),
        ("02 02 00 01", "at byte 0: it has version 2, and this program reads 1"),
        ("01 00 00 01", "at byte 1: no stamp has code 0: codes are 1"),
        ("01 ff 00 01", "at byte 1: no stamp has code 255: codes are 1"),
        ("01 0f 00", "at byte 3: it ends where a number begins"),
        ("01 0f 00 80 80 04 00", "at byte 3: there is no process 65536: numbers are below 65536"),
        ("01 0f 00 01 80 00", "at byte 4: a number ends in a zero byte"),
        ("01 0f 00 01 ff ff", "at byte 6: it ends within a number"),
        ("01 0f 00 01" + "80" * 9 + "01", "at byte 4: a number has more than 9 bytes: it must be below 2**63"),
        ("01 0f 00 01 05 00", "at byte 5: 1 bytes follow the stamp"),
        (f"{FIFO} 10", "at byte 4: flags are 16, and at most 15"),
        (f"{FIFO} 01 00 01 00 01", "at byte 4: flags 1 state what goes without saying"),
        (f"{FIFO} 02 01 05 00 01", "at byte 4: flags 2 state what goes without saying"),
        (f"{FIFO} 04 01 00 00 01", "at byte 4: flags 4 state what goes without saying"),
        (f"{FIFO} 08 01 00 00 01", "at byte 4: flags 8 state what goes without saying"),
        (f"{FIFO} 02 01 00 00 01", "at byte 4: a message has no destination"),
        (f"{FIFO} 02 01 0a 03 00", "at byte 6: a set of 2 is in form 2, and form 0 is shorter"),
        (f"{FIFO} 02 01 0b 00 00", "at byte 6: a set of 2 is in form 3, and form 0 is shorter"),
        (f"{FIFO} 02 01 {HUGE}", "at byte 6: a set has 2305843009213693951 members: at most 65536 are allowed"),
        (f"{FIFO} 02 01 0b 00 {HUGE}", "at byte 8: there is no process 9223372036854775808: numbers are"),
        (f"{FIFO} 04 01 02 c3 28 00 01", "at byte 7: a text is no UTF-8: invalid cont"),
        (f"{FIFO} 04 01 {HUGE}", "at byte 6: a label has 9223372036854775807 bytes: at most 1024 are allowed"),
        (f"{FIFO} 00 01 {HUGE}", "at byte 6: a payload has 9223372036854775807 bytes: at most"),
        (f"{FIFO} 00 01 05 00", "at byte 7: it ends 1 bytes later, and 5 are needed"),
        (f"01 03 00 01 {PLAIN_MESSAGE} {HUGE}", "at byte 7: vectors have 9223372036854775807 entries: at most"),
        (f"01 03 00 01 {PLAIN_MESSAGE} 02 08", "at byte 8: the row of 0 comes twice: the source's own"),
        (f"01 03 00 01 {PLAIN_MESSAGE} 02 00 0d 01", "at byte 9: a vector of 2 has an entry of process 3"),
        (f"01 03 00 01 {PLAIN_MESSAGE} 02 00 08 01 00", "at byte 11: a count is 0, and must be 1 or more"),
        (f"01 04 00 01 {PLAIN_MESSAGE} 05 00", "at byte 8: column 1 is empty"),
        (f"01 0a 00 01 {PLAIN_MESSAGE} 04", "at byte 7: flags are 4, and at most 3"),
        (f"01 0a 00 01 {PLAIN_MESSAGE} 01 00", "at byte 7: flags 1 state what no entry has"),
        (f"01 0a 00 01 {PLAIN_MESSAGE} 02 00", "at byte 7: flags 2 state what no entry has"),
        (f"01 0a 00 01 {PLAIN_MESSAGE} 00 04 {HUGE}", "at byte 9: a stamp has 9223372036854775808 entries"),
        (f"01 0a 00 01 {PLAIN_MESSAGE} 02 04 00 05 04 02", "at byte 12: label 2 is unknown: labels are 0..1"),
        (f"01 0a 00 01 {PLAIN_MESSAGE} 02 04 00 05 04 01 00", "at byte 7: a label is new twice"),
        (f"01 0b 02 01 {PLAIN_MESSAGE} 02 00", "at byte 7: a vector of 2 has no entry of its source, 2"),
        (f"01 0c 00 01 {PLAIN_MESSAGE} 04 01 {HUGE} 00 00", "a message has number 9223372036854775808, and"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(data, told):
    assert told in refusal(bytes.fromhex(data))


def test_limits_hold_for_the_reader_and_the_writer():
    rows = tuple(Row(process, 1, (1,) * 8) for process in (1, 2, 0))
    message = Message(0, 1, (1, 7), b"payload", "label")
    packet = Packet(0, 1, MatrixStamp(rows), message)
    data = encode(packet)
    exact = Limits(len(data), payload_bytes=7, processes=8, entries=24, label_bytes=5)
    assert decode(encode(packet, exact), exact) == packet
    for limits, read, written in (
        (Limits(packet_bytes=len(data) - 1), f"at most {len(data) - 1}", f"may have {len(data) - 1}"),
        (Limits(payload_bytes=6), "at most 6", "may have 6"),
        (Limits(processes=7), "below 7", "below 7"),
        (Limits(entries=23), "at most 23", "may have 23"),
        (Limits(label_bytes=4), "at most 4", "may have 4"),
    ):
        assert read in refusal(data, limits)
        with pytest.raises(BadParameter, match=written):
            encode(packet, limits)


def test_a_process_beyond_a_thousand_passes_and_a_user_sets_the_limit():
    packet = Packet(4096, 5000, Sequence(1), Message(4096, 1, (4500, 5000)))
    assert decode(encode(packet)) == packet
    with pytest.raises(BadParameter, match="a process must be 0 or more and below 5000, not 5000"):
        encode(packet, Limits(processes=5000))


def test_large_sets_are_bounded_in_memory_before_they_are_made():
    limits = Limits(packet_bytes=200)
    far = [Entry(1, k + 1, 1 << 65_535) for k in range(2)]
    small = Packet(0, 1, HistoryStamp((Entry(1, 1, 1 << 1000),)), ONE)
    assert decode(encode(small, limits), limits) == small
    with pytest.raises(
        BadParameter, match="large sets in its stamp take more memory than is allowed: at most 6400 bytes"
    ):
        encode(Packet(0, 1, HistoryStamp(tuple(far)), ONE), limits)
    wide = Limits(packet_bytes=1 << 20)
    told = refusal(encode(Packet(0, 1, HistoryStamp(tuple(far)), ONE), wide), limits)
    assert "large sets take too much memory: at most 6400 bytes" in told
    first = encode(Packet(0, 1, HistoryStamp((Entry(1, 1, (1 << 65_536) - 1),)), ONE), wide)
    assert "large sets take too much memory" in refusal(first, limits)


ONE = Message(0, 1, (1,))


@pytest.mark.parametrize(
    "packet",
    [
        Packet(0, 1, Sequence(-1), ONE),
        Packet(0, 1, Sequence(MAX_UINT + 1), ONE),
        Packet(-1, 1, Sequence(1), ONE),
        Packet(0, 1, Sequence(1)),
        Packet(0, 1, Grant(1), ONE),
        Packet(0, 1, Stamp(), ONE),
        Packet(0, 1, Sequence(1), Message(0, 1, ())),
        Packet(0, 1, Sequence(1), Message(0, 1, (2, 1))),
        Packet(0, 1, Sequence(1), Message(0, 1, (1, 1))),
        Packet(0, 1, Sequence(1), Message(0, 1, (-1, 1))),
        Packet(0, 1, Sequence(1), Message(0, 1, (1,), b"", "\ud800")),
        Packet(0, 1, MonitorStamp(1, (1, -1)), ONE),
        Packet(0, 1, VectorStamp((2, 0)), ONE),
        Packet(0, 1, VectorStamp(()), ONE),
        Packet(0, 1, MatrixStamp(()), ONE),
        Packet(0, 1, MatrixStamp((Row(0, 2, (0, 1)),)), ONE),
        Packet(0, 1, MatrixStamp((Row(1, 2, (0,)), Row(0, 1, (0, 1)))), ONE),
        Packet(0, 1, MatrixStamp((Row(0, 1, (0, 1)), Row(0, 1, (0, 1)))), ONE),
        Packet(0, 1, BoundedStamp(1, ((0, 1, 1),)), ONE),
        Packet(0, 1, BoundedStamp(1, ((1, 1, 1), (1, 1, 1))), ONE),
        Packet(0, 1, BoundedStamp(1, ((1, 1, 0),)), ONE),
        Packet(0, 1, Extra(1, ((0, 1),))),
        Packet(0, 1, Extra(1, ((1, 1), (1, 1)))),
        Packet(0, 1, LogStamp(frozenset(make_rows([(1, 1, 1), (1, 1, 2)]))), ONE),
        Packet(0, 1, LogStamp(frozenset(make_rows([(1, 1, -1)]))), ONE),
        Packet(0, 1, HistoryStamp((Entry(1, 1, 1), Entry(1, 1, 1))), ONE),
        Packet(0, 1, HistoryStamp((Entry(1, -1, 1),)), ONE),
    ],
)
def test_a_packet_that_cannot_be_written_is_the_callers_mistake(packet):
    with pytest.raises(BadParameter):
        encode(packet)


# Sizes


def test_a_unicast_names_its_destination_once():
    assert len(encode(Packet(0, 1, Sequence(1), ONE))) == 8
    assert len(encode(Packet(0, 1, Sequence(1), Message(0, 1, tuple(range(64)))))) == 10


@pytest.mark.parametrize(
    ("members", "size"),
    [
        ((), 1),
        ((0,), 1),
        ((31,), 1),
        ((32,), 2),
        (range(31), 1),
        (range(1000), 2),
        ((3, 5), 2),
        ((3, 900), 4),
    ],
)
def test_sets_take_the_shorter_form(members, size):
    writer = Writer(Limits())
    writer.members(mask(members))
    assert len(writer.out) == size


def test_a_matrix_stamp_with_few_changed_rows_is_far_smaller_than_the_matrix():
    n = 64
    sizes = [stamp_size(packet) for packet in run("matrix", n, 150, seed=3) if len(packet.stamp.rows) <= 4]
    assert len(sizes) > 50
    assert max(sizes) < n * n / 16


def test_the_last_packets_of_a_channel_tell_only_what_is_new():
    n = 64
    p1, p2, *_ = (create("matrix", View.numbered(n), process) for process in range(n))
    for _ in range(200):
        message, [packet] = p1.send(1)
        assert isinstance(packet, Packet)
        assert stamp_size(packet) <= 5
        assert p2.receive(decode(encode(packet))) == [message]
        p2.deliver(message)


@pytest.mark.parametrize("protocol", ["unordered", "fifo", "buffer", "permit"])
def test_constant_stamps_stay_constant(protocol):
    for n in (4, 40):
        assert max(stamp_size(packet) for packet in run(protocol, n, 100, seed=n)) <= 2


def test_derived_numbers_do_not_travel():
    vector = Packet(2, 0, VectorStamp((1, 1, MAX_UINT, 1)), Message(2, MAX_UINT, (0,)))
    assert stamp_size(vector) == 1 + 1 + 3
    bounded = Packet(2, 0, BoundedStamp(MAX_UINT, ()), ONE)
    with pytest.raises(BadParameter, match="must be 1, the next of its column"):
        stamp_size(bounded)
