"""A bucket of receivers, without Spark: any protocol, any cut into micro-batches, restarts between any two."""

import json
from base64 import b64decode
from collections import deque
from collections.abc import Iterable
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from antecede.errors import BadParameter, BadSnapshot
from antecede.model import Message, Packet, View
from antecede.oracle import happened_before
from antecede.protocols.broadcast import VectorStamp
from antecede.spark.stream.api import assign_buckets
from antecede.spark.stream.operator import bucket_keys, keep_bucket, take_bucket
from antecede.spark.stream.packets import ORDERING, Settings, packets_of
from antecede.spark.stream.status import open_state
from tests.driver import VARIANTS, Habits, World, drive
from tests.spark.packet_steps import add_own, advance, open_bucket, step

NATIVE = ["fifo", "matrix", "monitor", "broadcast"]
CAUSAL_IN_ANY_ORDER = {"matrix", "monitor", "broadcast"}
"""Others leave out of a stamp what the receiver was known to have: see tests/test_skip.py."""


def by_receiver(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows that came out, for each receiver in the order of delivery."""
    key = itemgetter("group", "receiver")
    ordered = sorted(rows, key=lambda row: (*key(row), row["position"] is None, row["position"] or 0))
    return {receiver: list(part) for receiver, part in groupby(ordered, key)}


def world(protocol: str, seed: int) -> tuple[World, Settings]:
    random = Random(f"stream {protocol} {seed}")
    run = drive(VARIANTS[protocol].machines(2 + seed % 4), Habits(n=2 + seed % 4, messages=30), random)
    machine = run.machines[0]
    return run, Settings(protocol, machine.view.names, machine.parameters)


def rows_of(run: World, random: Random, repeats: float = 0.2) -> pa.Table:
    """The packets of a run in some order, some of them twice."""
    packets = random.sample(run.packets, len(run.packets))
    for packet in random.sample(packets, int(repeats * len(packets))):
        packets.insert(random.randint(0, len(packets)), packet)
    return packets_of(packets, run.machines[0].view)


def cut(rows: pa.Table, random: Random, parts: int) -> list[pa.Table]:
    ends = sorted(random.randint(0, len(rows)) for _ in range(parts - 1))
    return [rows.slice(a, b - a) for a, b in zip([0, *ends], [*ends, len(rows)], strict=True)]


def run_in(parts, settings, *, kernel=True, now=lambda part: 0):
    """The rows that come out, with the state going through bytes between any two parts."""
    state, out = None, []
    for at, part in enumerate(parts):
        state, rows, _ = step(state, part, now(at), settings, kernel=kernel)
        out += rows.to_pylist()
    return out


def identities(rows, kinds=("delivered", "late")):
    return sorted((r["receiver"], r["sender"], r["number"]) for r in rows if r["kind"] in kinds)


@pytest.mark.parametrize("protocol", ORDERING)
def test_everything_comes_out_once_in_causal_order_however_it_is_cut(protocol):
    for seed in range(4):
        run, settings = world(protocol, seed)
        view, random = run.machines[0].view, Random(seed)
        rows = rows_of(run, random)
        whole = run_in([rows], settings)
        sent = [(view.name(p.dest), view.name(p.source), p.message.number) for p in run.packets if p.message]
        assert identities(whole) == sorted(sent)
        for parts in (2, 5, len(rows)):
            again = run_in(cut(rows, random, parts), settings)
            assert by_receiver(again) == by_receiver(whole)
        order = happened_before(run.events)
        for (_, receiver), delivered in by_receiver(whole).items():
            assert [row["position"] for row in delivered] == list(range(len(delivered)))
            if protocol in CAUSAL_IN_ANY_ORDER and run.machines[0].orders_at(view.id(receiver)):
                ids = [(view.id(row["sender"]), row["number"]) for row in delivered]
                assert not any(order.precedes(b, a) for i, a in enumerate(ids) for b in ids[i:])


@pytest.mark.parametrize("protocol", NATIVE)
def test_the_kernel_does_what_machines_do(protocol):
    for seed in range(15):
        run, settings = world(protocol, seed)
        random = Random(seed)
        parts = cut(rows_of(run, random), random, 4)
        machines = run_in(parts, settings, kernel=False)
        assert by_receiver(run_in(parts, settings)) == by_receiver(machines)
        # And it goes on with what machines left, as 0.1 had them where something was given up.
        half = open_bucket(None, settings, kernel=False)
        first = [row for part in parts[:2] for row in advance(half, part, 0)[0].to_pylist()]
        other = open_bucket(half.dump(), settings)
        second = [row for part in parts[2:] for row in advance(other, part, 0)[0].to_pylist()]
        assert by_receiver(first + second) == by_receiver(machines)


@pytest.mark.parametrize("protocol", NATIVE)
def test_the_kernel_refuses_what_machines_refuse(protocol):
    refused = 0
    for seed in range(15):
        run, settings = world(protocol, seed)
        random = Random(f"damaged {protocol} {seed}")
        rows = rows_of(run, random).to_pylist()
        for row in random.sample(rows, len(rows) // 2):
            stamp, at = bytearray(row["stamp"]), random.randrange(len(row["stamp"]))
            match random.randrange(4):
                case 0:
                    stamp[at] = random.choice([0, 1, 2, 127, 128, 255])
                case 1:
                    stamp.insert(at, random.choice([0, 1, 2, 127, 128, 255]))
                case 2:
                    del stamp[at]
                case 3:
                    stamp[at] ^= 1 << random.randrange(8)
            row |= {
                "stamp": bytes(stamp),
                "number": random.choice([row["number"]] * 9 + [None, 0, -1, 2**40]),
            }
        came = [pa.Table.from_pylist(rows, packets_of([], run.machines[0].view).schema)]
        found, wanted = (
            sorted(str(row) for row in run_in(came, settings, kernel=kernel) if row["kind"] == "refused")
            for kernel in (True, False)
        )
        assert found == wanted, f"{protocol}, seed {seed}"
        refused += len(found)
    assert refused > 100


@pytest.mark.parametrize("protocol", ORDERING)
def test_patience_gives_up_what_is_missing_and_says_so(protocol):
    marked = 0
    for seed in range(5):
        run, settings = world(protocol, seed)
        settings = msgspec.structs.replace(settings, patience_ms=10)
        random = Random(f"patience {seed}")
        rows = rows_of(run, random)
        ids = list(
            zip(
                rows["receiver"].to_pylist(),
                rows["sender"].to_pylist(),
                rows["number"].to_pylist(),
                strict=True,
            )
        )
        lost = set(random.sample(sorted(set(ids), key=str), len(set(ids)) // 5))
        kept = rows.take([at for at, key in enumerate(ids) if key not in lost])
        none = rows.slice(0, 0)
        outs = {}
        for kernel in (True, False):
            outs[kernel] = run_in([kept, none, rows, none], settings, kernel=kernel, now=lambda at: 10 * at)
        assert by_receiver(outs[True]) == by_receiver(outs[False])
        whole = [(view_row) for view_row in ids if view_row[2] is not None]
        assert identities(outs[True]) == sorted(set(whole))
        early = run_in([kept, none], settings, now=lambda at: 10 * at)
        assert identities(early) == sorted(set(whole) - lost)
        marked += sum(row["gave_up"] is not None for row in early)
    assert marked


def test_the_order_of_rows_means_nothing_beside_their_arrival():
    for seed in range(3):
        run, settings = world("matrix", seed)
        random = Random(seed)
        rows = rows_of(run, random)
        whole = by_receiver(run_in([rows], settings))
        for _ in range(3):
            assert (
                by_receiver(run_in([rows.take(random.sample(range(len(rows)), len(rows)))], settings))
                == whole
            )
        without = rows.drop_columns(["arrival"])
        some = by_receiver(run_in([without], settings))
        assert identities(chain(*some.values())) == identities(chain(*whole.values()))
        again = without.take(random.sample(range(len(rows)), len(rows)))
        assert by_receiver(run_in([again], settings)) == some


def test_a_late_cause_is_marked_and_comes_once():
    settings = Settings("fifo", ("p1", "p2"), patience_ms=1000)
    rows = send_packets("fifo", 3)
    state, out, status = step(None, rows.slice(1), 0, settings)
    assert (len(out), status.held) == (0, 2)
    assert [(c.receiver, c.sender, c.first, c.held) for c in status.causes] == [("p2", "p1", 1, 2)]
    state, out, _ = step(state, rows.slice(0, 0), 999, settings)
    assert len(out) == 0
    state, out, _ = step(state, rows.slice(0, 0), 1000, settings)
    [second, third] = out.to_pylist()
    assert second["gave_up"] == [{"sender": "p1", "first": 1, "last": 1, "counted": "channel"}]
    assert (second["number"], third["number"], third["gave_up"]) == (2, 3, None)
    state, out, _ = step(state, pa.concat_tables([rows, rows]), 1001, settings)
    [first] = out.to_pylist()
    assert (first["number"], first["kind"], first["position"]) == (1, "late", 2)


def test_what_waits_is_named_also_when_all_that_was_given_up_has_come():
    settings = Settings("fifo", ("p1", "p2"), patience_ms=10)
    rows = send_packets("fifo", 4)
    state, *_ = step(None, rows.slice(1, 1), 0, settings)
    state, out, _ = step(state, rows.slice(0, 0), 10, settings)
    assert out["number"].to_pylist() == [2]
    _, out, status = step(state, rows.take([0, 3]), 11, settings)
    assert out["kind"].to_pylist() == ["late"]
    assert [(cause.words, cause.held) for cause in status.causes] == [("the 3rd message from p1 to p2", 1)]


def test_stamps_that_contradict_each_other_come_out_when_patience_ends():
    view = View.numbered(3)
    packets = [
        Packet(sender, 2, VectorStamp((1, 1, 0)), Message(sender, 1, (0, 1, 2), b"")) for sender in (0, 1)
    ]
    settings = Settings("broadcast", view.names, patience_ms=5)
    state, out, status = step(None, packets_of(packets, view), 0, settings)
    assert (len(out), status.held) == (0, 2)
    _, out, status = step(state, packets_of([], view), 5, settings)
    assert status.held == 0
    assert [(row["sender"], row["position"], row["gave_up"]) for row in out.to_pylist()] == [
        ("p1", 0, [{"sender": "p2", "first": 1, "last": 1, "counted": "sender"}]),
        ("p2", 1, None),
    ]


def send_packets(protocol: str, messages: int) -> pa.Table:
    from antecede.protocols import create

    view = View.numbered(2)
    p1: Any = create(protocol, view, 0)
    return packets_of([p1.send(1, b"x")[1][0] for _ in range(messages)], view)


@pytest.mark.parametrize("kernel", [True, False])
def test_what_is_no_packet_is_refused_with_a_reason_and_the_rest_goes_on(kernel):
    rows = send_packets("fifo", 6).to_pylist()
    rows[1]["stamp"] = b"\x02\x80\x00"
    rows[2]["receiver"] = "nobody"
    rows[3]["sender"] = "stranger"
    rows[4]["sender"] = "p2"
    rows[5]["stamp"] = b""
    out = run_in(
        [pa.Table.from_pylist(rows, send_packets("fifo", 1).schema)],
        Settings("fifo", ("p1", "p2")),
        kernel=kernel,
    )
    assert identities(out) == [("p2", "p1", 1)]
    reasons = [(row["number"], row["reason"]) for row in out if row["kind"] == "refused"]
    assert sorted(reasons) == [
        (2, "not a packet at byte 1: a number ends in a zero byte: it must have the fewest bytes"),
        (3, "the receiver must be one of p1, p2"),
        (4, "p2 refused a packet: it comes from #-1, which is no peer"),
        (5, "p2 refused a packet: it comes from p2, which is no peer"),
        (6, "the stamp has 0 bytes, and may have 1 to 4194304"),
    ]


@pytest.mark.parametrize("protocol", ["permit", "buffer", "separator", "unordered", "none"])
def test_protocols_that_decide_elsewhere_are_refused(protocol):
    with pytest.raises(
        BadParameter, match="must be one of fifo, matrix, bounded, monitor, history, broadcast, optimal"
    ):
        Settings(protocol, ("p1", "p2"))


def test_a_state_of_another_version_or_stream_is_refused():
    settings = Settings("fifo", ("p1", "p2"))
    state, *_ = step(None, send_packets("fifo", 2), 0, settings)
    later = msgspec.msgpack.encode({**msgspec.msgpack.decode(state), "antecede stream": 9})
    with pytest.raises(
        BadSnapshot, match=r"the stream has a snapshot of version 9; this release reads version 1 or 7"
    ):
        step(later, send_packets("fifo", 2), 0, settings)
    with pytest.raises(BadSnapshot, match="written with processes"):
        step(state, send_packets("fifo", 2), 0, Settings("fifo", ("p1", "p2", "p3")))
    with pytest.raises(BadSnapshot, match="does not have the state of a stream"):
        step(b"garbage", send_packets("fifo", 2), 0, settings)


def test_a_bucket_that_is_kept_is_used_only_for_the_state_that_it_gave():
    settings, rows = Settings("fifo", ("p1", "p2")), send_packets("fifo", 4)
    name = ("a query", 0)
    first = take_bucket(name, None, lambda _: open_bucket(None, settings))
    advance(first, rows.slice(0, 1), 0)
    after = first.dump()
    keep_bucket(name, after, first)
    again = take_bucket(name, after, lambda _: open_bucket(after, settings))
    assert again is first
    # It went on, and then the micro-batch was lost: what is kept is no longer what Spark has.
    advance(again, rows.slice(1, 1), 0)
    keep_bucket(name, again.dump(), again)
    other = take_bucket(name, after, lambda _: open_bucket(after, settings))
    assert other is not first
    assert [row["number"] for row in advance(other, rows.slice(1, 1), 0)[0].to_pylist()] == [2]


STATES = Path(__file__).parent / "states"


@pytest.mark.parametrize("path", sorted(STATES.glob("bucket-*.json")), ids=lambda path: path.stem)
def test_a_state_that_an_older_version_left_is_continued(path):
    kept = json.loads(path.read_text())
    settings = Settings(
        kept["protocol"], tuple(kept["processes"]), kept["parameters"], patience_ms=kept["patience_ms"]
    )
    rows = pa.ipc.open_stream(b64decode(kept["rows"])).read_all()
    _, out, status = step(b64decode(kept["state"]), rows, kept["now"], settings)
    found = [
        {name: row[name] for name in ("receiver", "position", "sender", "number", "kind")}
        for row in out.to_pylist()
    ]
    assert sorted(found, key=str) == sorted(kept["expected"], key=str)
    assert found
    assert status.held == 0


def test_what_is_missing_is_named_at_its_root():
    for seed in range(6):
        for protocol in ("matrix", "broadcast", "history"):
            run, settings = world(protocol, seed)
            packets = [packet for packet in run.packets if packet.message is not None]
            random = Random(f"{protocol} {seed}")
            lost = random.choice(packets[: len(packets) // 2])
            rows = packets_of([packet for packet in run.packets if packet is not lost], run.machines[0].view)
            _, _, status = step(None, rows, 0, settings)
            names = settings.processes
            if status.held:
                assert {(cause.receiver, cause.sender) for cause in status.causes} == {
                    (names[lost.dest], names[lost.source])
                }, f"{protocol}, seed {seed}"
                if protocol != "history":
                    assert [cause.held for cause in status.causes] == [status.held]


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("protocol", ["fifo", "matrix", "broadcast", "history"])
def test_what_each_message_waits_for_is_named_at_its_root(protocol, kernel):
    """A message that is here and waits itself is never what another one waits for."""
    waited = 0
    for seed in range(6):
        run, settings = world(protocol, seed)
        packets = [packet for packet in run.packets if packet.message is not None]
        lost = Random(f"waiting {protocol} {seed}").choice(packets[: len(packets) // 2])
        rows = packets_of([packet for packet in run.packets if packet is not lost], run.machines[0].view)
        state, _, status = step(None, rows, 0, settings, kernel=kernel)
        held, names = open_state(state).list_held(), settings.processes
        assert len(held) == status.held, f"{protocol}, seed {seed}"
        for row in held:
            assert row["receiver"] == names[lost.dest], f"{protocol}, seed {seed}"
            assert {one["sender"] for one in row["awaits"]} == {names[lost.source]}, (
                f"{protocol}, seed {seed}"
            )
        ranges = {(one["first"], one["last"]) for row in held for one in row["awaits"]}
        assert len(ranges) == bool(held), f"{protocol}, seed {seed}: one message is lost"
        waited += len(held)
    assert waited


def test_rows_without_a_group_go_where_they_go_without_the_column():
    rows = send_packets("fifo", 3).rename_columns({"receiver": "__receiver"})
    without = rows.append_column("__group", pa.nulls(3, pa.string()))
    assert assign_buckets(rows, 16)[1].tolist() == assign_buckets(without, 16)[1].tolist()
    assert len(set(bucket_keys(16))) == 16


@pytest.mark.parametrize("protocol", ORDERING)
def test_the_state_does_not_grow_with_what_was_delivered(protocol):
    view = View.numbered(4)
    machines = VARIANTS[protocol].machines(4)
    settings = Settings(protocol, view.names, machines[0].parameters)
    random, state, sizes = Random(7), None, []
    under_way: deque = deque()
    for batch in range(30):
        packets = []
        for _ in range(60):
            sender = machines[random.randrange(4)]
            to = tuple(range(4)) if protocol == "broadcast" else (random.randrange(4),)
            effects = sender.send(to, b"payload")[1]
            while effects:
                effect = effects.pop()
                if isinstance(effect, Message):
                    effects += sender.deliver(effect)
                else:
                    under_way.append(effect)
            while len(under_way) > 20:
                packet = under_way.popleft()
                packets.append(packet)
                receiver = machines[packet.dest]
                todo = receiver.receive(packet)
                while todo:
                    effect = todo.pop(0)
                    if isinstance(effect, Message):
                        todo += receiver.deliver(effect)
                    else:
                        under_way.append(effect)
        rows = packets_of(packets, view)
        state, _, status = step(state, rows, batch, settings)
        assert status.held == 0
        sizes.append(len(state))
    grown = 256 * 3 * 4 * 4 if getattr(machines[0], "sparse", False) else 0
    assert max(sizes[15:]) <= sizes[10] + 200 + grown


def as_stream(rows):
    """Packets with one more column, and the columns of our own that Spark adds."""
    rows = rows.append_column("note", pa.array([{"at": at} for at in range(len(rows))]))
    return add_own(rows)


def show_rows(table):
    """Rows that came out, under the names that a user gave them."""
    return [{name.removeprefix("user "): value for name, value in row.items()} for row in table.to_pylist()]


@pytest.mark.parametrize("protocol", ["matrix", "optimal"])
def test_packets_come_out_as_the_rows_that_they_came_as(protocol):
    for seed in range(4):
        run, settings = world(protocol, seed)
        random = Random(f"rows {protocol} {seed}")
        rows = rows_of(run, random)
        came = as_stream(rows)
        bucket = settings.open(None)
        out: list[dict[str, Any]] = []
        size = max(1, len(rows) // 3)
        for at in range(0, len(rows), size):
            found, _ = bucket.advance(came.slice(at, size), at)
            out += [] if found is None else show_rows(found)
            bucket = settings.open(bucket.dump())
        messages = [row for row in show_rows(came) if row["number"] is not None]
        assert sorted(row["note"]["at"] for row in out) == sorted(row["note"]["at"] for row in messages)
        _, plain, _ = step(None, rows, 0, settings)
        kept = ("receiver", "position", "sender", "number")
        placed = [{name: row[name] for name in kept} for row in out if row["kind"] != "repeated"]
        assert sorted(placed, key=str) == sorted(
            ({name: row[name] for name in kept} for row in plain.to_pylist()), key=str
        ), f"{protocol}, seed {seed}"


@pytest.mark.parametrize("path", sorted(STATES.glob("bucket-1-*-plain.json")), ids=lambda path: path.stem)
def test_rows_that_the_last_version_held_come_out_with_the_columns_of_a_packet(path):
    kept = json.loads(path.read_text())
    settings = Settings(
        kept["protocol"], tuple(kept["processes"]), kept["parameters"], patience_ms=kept["patience_ms"]
    )
    came = as_stream(pa.ipc.open_stream(b64decode(kept["rows"])).read_all())
    bucket = settings.open(b64decode(kept["state"]))
    assert bucket.table is not None
    out: list[dict[str, Any]] = []
    # In two halves: some of what was held is still held between them.
    half = len(came) // 2
    for part in (came.slice(0, half), came.slice(half)):
        bucket = settings.open(bucket.dump())
        found, status = bucket.advance(part, kept["now"])
        out += [row for row in ([] if found is None else show_rows(found)) if row["kind"] != "repeated"]
    kinds = {"released": "delivered"}
    told = [
        {**{name: row[name] for name in ("receiver", "position", "sender", "number")},
         "kind": kinds.get(row["kind"], row["kind"])}
        for row in out
    ]  # fmt: skip
    assert sorted(told, key=str) == sorted(kept["expected"], key=str)
    assert status.held == 0
    assert any(row["note"] is None for row in out)
    assert all(row["payload"] is not None for row in out if row["note"] is None)
