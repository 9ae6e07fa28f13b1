"""underway: what a stamp forgets, and when a message waits for it. The explorer drops its conditions elsewhere."""

from typing import Any

from antecede.model import Packet, View
from antecede.protocols import create, underway
from antecede.protocols.underway import Receipt, Settled


def three(k: int | None = None) -> list[Any]:
    return [create("underway", View.numbered(3), p, k=k) for p in range(3)]


def test_a_stamp_names_what_is_under_way_until_it_is_acknowledged():
    p1, p2, _ = three()
    first, [to_p2] = p1.send(1)
    _, [told] = p1.send(2)
    assert told.stamp.log == ((0, 1, 0b010),)
    p2.receive(to_p2)
    assert p2.deliver(first) == [Packet(1, 0, Receipt(1))]
    assert p1.receive(Packet(1, 0, Receipt(1))) == [Packet(0, 2, Settled(0, 1))]
    _, [later] = p1.send(1)
    assert later.stamp.log == ((0, 2, 0b100),)


def test_news_of_what_settled_does_not_wait_for_what_was_sent_since():
    p1, _, _ = three()
    for dest in (1, 2, 1, 2):
        p1.send(dest)
    assert p1.receive(Packet(1, 0, Receipt(1))) == [Packet(0, 2, Settled(0, 1))]
    assert p1.receive(Packet(2, 0, Receipt(4))) == [Packet(0, dest, Settled(0, 2)) for dest in (1, 2)]
    assert p1.receive(Packet(1, 0, Receipt(3))) == [Packet(0, 2, Settled(0, 4))]


def test_a_message_that_would_name_more_than_k_waits_and_says_for_what():
    p1, _, _ = three(k=0)
    p1.send(1)
    second, effects = p1.send(2)
    assert effects == []
    [waiting] = p1.waiting()
    assert (waiting.message, waiting.where, [one.last for one in waiting.awaits]) == (second, "unsent", [1])
    [posted] = p1.receive(Packet(1, 0, Receipt(1)))
    assert (posted.message, posted.stamp.log) == (second, ())


def test_what_is_known_of_others_does_not_grow_with_what_they_send():
    p1, _, p3 = three()
    p1.send(1)
    for _ in range(20):
        p1.send(1)
        message, [packet] = p1.send(2)
        p3.receive(packet)
        p3.deliver(message)
        p1.receive(Packet(2, 0, Receipt(message.number)))
    assert len(p3.dump()["_rows"][0]) == 1


def test_a_send_looks_at_the_last_message_to_each_however_many_are_not_acknowledged(monkeypatch):
    p1, looked_at, latest = create("underway", View.numbered(3), 0), list[int](), underway._latest

    def look(row: dict[int, int]) -> dict[int, int]:
        looked_at.append(len(row))
        return latest(row)

    monkeypatch.setattr(underway, "_latest", look)
    for number in range(20):
        p1.send(1 + number % 2)
    assert max(looked_at) <= 3
