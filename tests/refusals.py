"""How a machine refuses a packet: with a typed error, and without a change."""

from __future__ import annotations

from typing import Any

import pytest

from antecede.errors import AntecedeError
from antecede.model import Packet
from antecede.protocols import Machine


def check_refusal(machine: Machine, packet: Packet[Any], error: type[AntecedeError]) -> None:
    """A packet is refused with this error, and changes nothing."""
    before = machine.dump()
    with pytest.raises(error):
        machine.receive(packet)
    assert machine.dump() == before
