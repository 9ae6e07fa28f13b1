"""Stamps that no process of the protocol sends are refused, or ignored where they say nothing.

Each packet goes from p2 to p1 of three; p1 has sent nothing.
"""

from __future__ import annotations

import pytest

from antecede.errors import (
    BadStamp,
)
from antecede.model import Message, Packet, Stamp
from antecede.protocols.bounded import BoundedStamp, Extra
from antecede.protocols.broadcast import VectorStamp
from antecede.protocols.buffer import Acknowledge, Release
from antecede.protocols.contexts import ContextStamp
from antecede.protocols.fifo import Sequence
from antecede.protocols.histories import Entry
from antecede.protocols.history import HistoryStamp
from antecede.protocols.matrix import MatrixStamp, Row
from antecede.protocols.monitor import MonitorStamp
from antecede.protocols.optimal import LogStamp, make_rows
from antecede.protocols.permit import Grant, PermitStamp, Taken
from antecede.protocols.sparing import SparingExtra, SparingStamp
from antecede.protocols.underway import Receipt, Settled, UnderwayStamp
from antecede.protocols.unordered import Plain
from tests.driver import NAMES, VARIANTS
from tests.refusals import check_refusal

HUGE = 1 << 62

BAD_STAMPS: dict[str, list[Stamp]] = {
    "unordered": [Plain(0), Plain(-1)],
    "fifo": [Sequence(0), Sequence(-1)],
    "matrix": [
        MatrixStamp(()),
        MatrixStamp((Row(2, 1, (1, 0, 0)),)),  # not the sender's
        MatrixStamp((Row(1, 1, (1, 0)),)),
        MatrixStamp((Row(1, 1, (1, 0, 0, 0)),)),
        MatrixStamp((Row(3, 1, (0, 0, 0)), Row(1, 1, (1, 0, 0)))),
        MatrixStamp((Row(-1, 1, (0, 0, 0)), Row(1, 1, (1, 0, 0)))),
        MatrixStamp((Row(2, 1, (0,)), Row(1, 1, (1, 0, 0)))),
        MatrixStamp((Row(2, 1, (-1, 0, 0)), Row(1, 1, (1, 0, 0)))),
        MatrixStamp((Row(1, 1, (0, 1, 0)),)),  # does not count this message
        MatrixStamp((Row(1, 2, (1, 0, 0)),)),  # another message's
        MatrixStamp((Row(0, 1, (0, 1, 0)), Row(1, 1, (1, 0, 0)))),  # what p1 never sent
    ],
    "bounded": [
        BoundedStamp(0, ()),
        BoundedStamp(-1, ()),
        BoundedStamp(2, ()),  # the second of its channel, and no first
        BoundedStamp(1, ((1, 0, 1),)),
        BoundedStamp(1, ((3, 0, 1),)),
        BoundedStamp(1, ((2, 3, 1),)),
        BoundedStamp(1, ((-1, 2, 1),)),
        BoundedStamp(1, ((2, 1, 0),)),
        BoundedStamp(1, ((2, 1, -4),)),
        BoundedStamp(1, ((0, 2, 1),)),  # what p1 never sent
    ],
    "monitor": [
        MonitorStamp(1, (0, 0)),
        MonitorStamp(1, (0, 0, 0, 0)),
        MonitorStamp(0, (0, 0, 0)),
        MonitorStamp(2, (0, 0, 0)),
        MonitorStamp(1, (0, 0, -1)),
        MonitorStamp(1, (1, 0, 0)),  # what p1 never sent
    ],
    "buffer": [],
    "history": [
        HistoryStamp((Entry(3, 1, 0b001),)),
        HistoryStamp((Entry(-1, 1, 0b001),)),
        HistoryStamp((Entry(2, 0, 0b001),)),
        HistoryStamp((Entry(2, 1, 0b000),)),
        HistoryStamp((Entry(2, 1, 0b1001),)),
        HistoryStamp((Entry(2, 1, -1),)),
        HistoryStamp((Entry(2, 1, 0b001, 0b1001),)),
        HistoryStamp((Entry(2, 1, 0b001, -1),)),
        HistoryStamp((Entry(1, 1, 0b100),)),  # the message itself
        HistoryStamp((Entry(1, 2, 0b100),)),  # one that came after it
        HistoryStamp((Entry(0, 1, 0b100),)),  # what p1 never sent
    ],
    "broadcast": [
        VectorStamp((0, 1)),
        VectorStamp((0, 1, 0, 0)),
        VectorStamp((0, 2, 0)),
        VectorStamp((0, 0, 0)),
        VectorStamp((0, 1, -1)),
        VectorStamp((1, 1, 0)),  # what p1 never sent
    ],
    "optimal": [
        LogStamp(frozenset(make_rows([(3, 1, 1)]))),
        LogStamp(frozenset(make_rows([(-1, 1, 1)]))),
        LogStamp(frozenset(make_rows([(2, 0, 1)]))),
        LogStamp(frozenset(make_rows([(2, 1, 0b1000)]))),
        LogStamp(frozenset(make_rows([(2, 1, -1)]))),
        LogStamp(frozenset(make_rows([(1, 1, 0b100)]))),
        LogStamp(frozenset(make_rows([(0, 1, 0b100)]))),  # what p1 never sent
    ],
    "permit": [PermitStamp(0, False), PermitStamp(-1, True)],
    "contexts": [
        ContextStamp((), frozenset(), True),
        ContextStamp((1, 1), frozenset(), True),
        ContextStamp((1, 0, 1), frozenset(), False),
        ContextStamp((1, 1, 1), frozenset({(3, 0, 1)}), True),
        ContextStamp((1, 1, 1), frozenset({(2, -1, 1)}), True),
        ContextStamp((1, 1, 1), frozenset({(2, 0, 0)}), True),
        ContextStamp((1, 1, 1), frozenset({(1, 0, 1)}), True),  # the message itself
        ContextStamp((1, 1, 1), frozenset({(0, 2, 1)}), True),  # what p1 never sent
    ],
    "sparing": [
        SparingStamp((), 0, 1, 0, (), ()),
        SparingStamp((1, 1), 0, 1, 0, (), ()),
        SparingStamp((1, 0, 1), 0, 1, 0, (), ()),
        SparingStamp((1, 1, 1), 1, 1, 0, (), ()),  # took what p1 never sent
        SparingStamp((1, 1, 1), 0, 0, 0, (), ()),
        SparingStamp((1, 1, 1), 0, 1, 1, (), ()),  # heard of what p1 never sent
        SparingStamp((1, 1, 1), 0, 1, -1, (), ()),
        SparingStamp((1, 1, 1), 0, 1, 0, ((3, 1),), ()),
        SparingStamp((1, 1, 1), 0, 1, 0, ((2, 0),), ()),
        SparingStamp((1, 1, 1), 0, 1, 0, ((0, 1),), ()),  # knows of what p1 never sent
        SparingStamp((1, 1, 1), 0, 1, 0, ((1, 1),), ()),  # the message itself
        SparingStamp((1, 1, 1), 0, 1, 0, (), ((3, 0, 1, 1),)),
        SparingStamp((1, 1, 1), 0, 1, 0, (), ((2, 3, 1, 1),)),
        SparingStamp((1, 1, 1), 0, 1, 0, (), ((2, 0, 0, 1),)),
        SparingStamp((1, 1, 1), 0, 1, 0, (), ((2, 0, 1, 0),)),
        SparingStamp((1, 1, 1), 0, 1, 0, (), ((1, 0, 1, 1),)),  # the message itself
        SparingStamp((2, 1, 1), 0, 2, 0, (), ((1, 0, 1, 2),)),  # its own number
        SparingStamp((1, 1, 1), 0, 1, 0, (), ((2, 1, 1, 1),)),  # what another destination waits for
        SparingStamp((1, 1, 1), 0, 1, 0, (), ((0, 0, 1, 1),)),  # what p1 never sent
    ],
    "underway": [
        UnderwayStamp(((3, 1, 1),)),
        UnderwayStamp(((-1, 1, 1),)),
        UnderwayStamp(((2, 0, 1),)),
        UnderwayStamp(((2, 1, 0),)),
        UnderwayStamp(((2, 1, 0b1000),)),
        UnderwayStamp(((1, 1, 1),)),  # the message itself
        UnderwayStamp(((0, 1, 0b100),)),  # what p1 never sent
    ],
}

BAD_CONTROL: dict[str, list[Stamp]] = {
    "bounded": [
        Extra(0, ()),
        Extra(2, ()),
        Extra(1, ((3, 1),)),
        Extra(1, ((2, 0),)),
        Extra(1, ((2, -1),)),
        Extra(1, ((0, 1),)),
    ],
    "buffer": [Acknowledge(1), Acknowledge(HUGE)],
    "permit": [Taken(1), Taken(HUGE)],
    "underway": [Receipt(1), Receipt(HUGE), Settled(3, 1), Settled(-1, 1), Settled(0, 1)],
    "sparing": [
        SparingExtra(0, 0, ()),
        SparingExtra(1, 1, ()),
        SparingExtra(1, 0, ((3, 1),)),
        SparingExtra(1, 0, ((2, 0),)),
        SparingExtra(1, 0, ((1, 1),)),
        SparingExtra(1, 0, ((0, 1),)),
    ],
}

IGNORED_CONTROL: dict[str, list[Stamp]] = {
    "buffer": [Acknowledge(0), Acknowledge(-1), Release(1), Release(0), Release(-1), Release(HUGE)],
    "permit": [Taken(0), Taken(-1), Grant(0), Grant(-1)],
    "underway": [Receipt(0), Receipt(-1), Settled(2, 0), Settled(1, -1)],
}
"""What says nothing: of messages that never were, or that say what is known."""


def test_every_protocol_has_its_bad_stamps():
    assert BAD_STAMPS.keys() == set(NAMES)


@pytest.mark.parametrize(
    ("name", "stamp"), [(name, stamp) for name in BAD_STAMPS for stamp in BAD_STAMPS[name]]
)
def test_a_stamp_that_cannot_be_is_refused(name, stamp):
    machine = VARIANTS[name].machines(3)[0]
    check_refusal(machine, Packet(1, 0, stamp, Message(1, 1, (0, 1, 2))), BadStamp)


@pytest.mark.parametrize(
    ("name", "stamp"), [(name, stamp) for name in BAD_CONTROL for stamp in BAD_CONTROL[name]]
)
def test_control_that_cannot_be_is_refused(name, stamp):
    check_refusal(VARIANTS[name].machines(3)[0], Packet(1, 0, stamp), BadStamp)


@pytest.mark.parametrize(
    ("name", "stamp"), [(name, stamp) for name in IGNORED_CONTROL for stamp in IGNORED_CONTROL[name]]
)
def test_control_that_says_nothing_is_ignored(name, stamp):
    machine = VARIANTS[name].machines(3)[0]
    before = machine.dump()
    assert machine.receive(Packet(1, 0, stamp)) == []
    assert machine.dump() == before


def test_an_acknowledgement_by_someone_who_was_not_sent_anything_changes_nothing():
    p1 = VARIANTS["buffer"].machines(3)[0]
    p1.send(1)
    before = p1.dump()
    assert p1.receive(Packet(2, 0, Acknowledge(1))) == []
    assert p1.dump() == before
    p1 = VARIANTS["permit"].machines(3)[0]
    p1.send(1)
    check_refusal(p1, Packet(2, 0, Taken(1)), BadStamp)
