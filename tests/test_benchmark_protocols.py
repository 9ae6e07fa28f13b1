"""The bounds of benchmarks/protocols: rules written a second time, on plain data, which write the same stamps."""

import pytest

from benchmarks.protocols import LOADS, Run, machines
from benchmarks.protocols_bare import BARE, Tape, write_again


@pytest.mark.parametrize("load", ["groups", "uniform"])
@pytest.mark.parametrize("protocol", BARE)
def test_bare_rules_write_the_stamps_of_the_machines(protocol, load):
    tape = Tape(recorded := machines(protocol, 8))
    Run(recorded).drive(LOADS[load](8, 150))
    assert len(tape.packets) > 100
    assert write_again(protocol, tape) == [BARE[protocol].read(packet) for packet in tape.packets]
