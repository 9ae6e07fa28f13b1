"""What a run is given: a spec is a command line and a table, and a wrong one is refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from antecede.errors import AntecedeError
from antecede.sim import RunSpec


def test_a_spec_is_a_command_line_and_a_table() -> None:
    one = RunSpec(
        protocol="history",
        parameters={"r8": False},
        processes=6,
        seed=3,
        network="exponential:5ms,loss=1%",
        workload="groups:size=3,rate=5/s",
        faults="pause:p1@1s-2s",
    )
    assert one.command() == (
        "antecede simulate --protocol history --set r8=false --processes 6 --messages 1000 --seed 3"
        " --network exponential:5ms,loss=1% --workload groups:size=3,rate=5/s --faults pause:p1@1s-2s"
    )
    assert RunSpec.load({"protocol": "history", "parameters": {"r8": False}, "seed": 3}).parameters == {
        "r8": False
    }


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"protocol": "magic"}, "run: protocol must be one of unordered, fifo,"),
        ({"processes": 100_000}, "simulate: processes must be 0 to 65536, not 100000"),
        ({"messages": 0}, "simulate: messages must be 1 to"),
        ({"seed": -1}, "simulate: seed must be 0 to"),
        ({"parameters": {"k": 3}}, "fifo: it has no parameter k; it has none"),
        ({"workload": "gossip"}, "workload: the name must be one of uniform,"),
        (
            {"workload": "uniform:size=9"},
            "workload: size must be 1 to 4, the number of other processes, not 9",
        ),
        ({"workload": "hot:at=p9"}, "process 'p9' is not in the view of 5"),
        ({"workload": "chain:length=1"}, "workload: length must be 2 to 1000"),
        ({"workload": "mix"}, "workload: mix has no parts: write parts with weights"),
        ({"workload": "mix:tea=1"}, "workload: a part of the mix must be one of uniform,"),
        ({"workload": "uniform:rate=0/s"}, "workload: rate must be from"),
        ({"workload": "ring", "processes": 1}, "workload: it needs 2 processes or more, not 1"),
        (
            {"workload": "script:nowhere.txt"},
            "nowhere.txt: cannot be read: No such file or directory",
        ),
        ({"topology": "torus"}, "topology: the name must be one of mesh,"),
        ({"topology": "figure-7.1"}, "simulate: processes must be 6, as figure-7.1 has, not 5"),
        ({"topology": "wan-of-lans:zones=2"}, "topology: zones must be a divisor of 5"),
        ({"topology": "hierarchy:inside=5/1/1"}, "topology: processes must be two or more times 5"),
        ({"topology": "hierarchy:inside=0/1/1"}, "topology: processes must be two or more times 0"),
        ({"workload": "local:blocks=2"}, "workload: blocks must each be a part of the next, and of 5"),
        ({"workload": "local:size=6"}, "workload: size must be 2 to 5"),
        (
            {"protocol": "broadcast", "workload": "uniform"},
            "simulate: broadcast cannot run the workload uniform: ",
        ),
        ({"faults": "fire"}, "faults: a kind must be one of"),
        (
            {"protocol": "history", "parameters": {"delta": 5}, "faults": "loss:1%"},
            "simulate: history with delta trusts that every message is delivered in time, and with faults",
        ),
    ],
)
def test_a_wrong_spec_is_refused_in_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AntecedeError) as caught:
        RunSpec(**{"protocol": "fifo", "processes": 5, **fields}).build()
    assert str(caught.value).startswith(sentence)


def test_a_wrong_table_is_refused_with_its_place() -> None:
    with pytest.raises(AntecedeError, match=r"file\.toml: .*unknown field `speed`"):
        RunSpec.load({"protocol": "fifo", "speed": 3}, "file.toml")
