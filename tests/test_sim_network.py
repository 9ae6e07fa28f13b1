"""When packets arrive: by distance, by bandwidth, in order or not, or never."""

from __future__ import annotations

import pytest

from antecede.errors import AntecedeError
from antecede.model import View
from antecede.protocols import PROTOCOLS
from antecede.sim import RunSpec
from antecede.sim.chance import stream
from antecede.sim.network import Network
from antecede.sim.sizes import Sizes
from antecede.topology import shapes
from antecede.wire import encode, stamp_size

MS = 10**6


def network(text: str, n: int = 4, **more: object) -> Network:
    return Network.parse(text, n, stream(1, "network"), **more)  # type: ignore[arg-type]


def test_a_plain_network_reorders() -> None:
    net = network("exponential:50ms")
    times = [net.transmit(i, 0, 1, 0)[0] for i in range(100)]
    assert times != sorted(times)


def test_a_fifo_network_does_not() -> None:
    net = network("exponential:50ms,fifo=true")
    times = [net.transmit(i, 0, 1, 0)[0] for i in range(100)]
    assert times == sorted(set(times))
    assert net.transmit(100, 0, 2, 0)[0] < times[-1], "another channel does not wait"


def test_bytes_wait_for_those_before_them() -> None:
    net = network("constant:1ms,bandwidth=8Mbit/s")  # a byte takes a microsecond
    assert net.transmit(0, 0, 1, 1000) == (2 * MS,)
    assert net.transmit(0, 0, 2, 1000) == (3 * MS,), "one interface for all destinations"
    assert net.transmit(0, 1, 2, 1000) == (2 * MS,), "every process has its own"
    assert net.transmit(10 * MS, 0, 1, 1000) == (12 * MS,)


@pytest.mark.parametrize(("option", "arrivals"), [("loss", 0), ("duplicate", 2)])
def test_loss_and_duplication_happen_as_often_as_asked(option: str, arrivals: int) -> None:
    net = network(f"exponential:50ms,{option}=10%")
    found = [len(net.transmit(i, 0, 1, 0)) for i in range(5000)]
    assert set(found) == {1, arrivals}
    assert 400 < found.count(arrivals) < 600
    assert not net.reliable


def test_a_cut_network_passes_nothing_between_the_parts() -> None:
    net = network("constant:1ms", n=4)
    net.cut([(0, 1)])
    assert net.transmit(0, 0, 1, 0) == net.transmit(0, 2, 3, 0) == (MS,)
    assert net.transmit(0, 0, 2, 0) == net.transmit(0, 3, 1, 0) == ()
    net.heal()
    assert net.transmit(0, 0, 2, 0) == (MS,)


def test_zones_near_and_far() -> None:
    net = network("zones:shape=constant,lan=1ms,man=5ms,wan=50ms,zones=4,regions=2", n=8)
    assert [net.transmit(0, 0, dest, 0)[0] // MS for dest in range(1, 8)] == [1, 5, 5, 50, 50, 50, 50]


def test_zones_of_a_topology() -> None:
    wan = shapes.wan_of_lans(zones=2, size=2, gateways=1)
    net = network("zones:shape=constant,lan=1ms,wan=50ms", len(wan.names), topology=wan)
    assert net.transmit(0, 0, 1, 0)[0] == MS
    # p1 - 1.g1 - 2.g1 - p3: two local links and one wide one.
    assert net.transmit(0, 0, 2, 0)[0] == 52 * MS


def test_links_of_a_hierarchy() -> None:
    constant = "zones:shape=constant,lan=1ms,man=5ms,wan=50ms"
    spec = RunSpec(protocol="fifo", processes=64, topology="hierarchy:inside=2/2/2/4", network=constant)
    simulation = spec.build()
    net = simulation.place
    ends = [("p1", "n1"), ("n1", "d1.g2"), ("d1.g1", "d1.g2"), ("d1.g1", "o1.g1"), ("o1.g1", "o1.g2")]
    ends += [
        ("o1.g1", "c1.g1"),
        ("c1.g1", "c1.g2"),
        ("c1.g1", "c2.g1"),
        ("p1", "p3"),
        ("p1", "p5"),
        ("p1", "p9"),
    ]
    found = [net.link(net.names.index(a), net.names.index(b)) for a, b in ends]
    assert found == ["lan", "lan", "lan", "man", "man", "wan", "man", "wan", "lan", "man", "wan"]
    # Up and down again: 4 local links, 2 of organisations, 2 of countries, and 1 between countries.
    assert simulation.engine.network.transmit(0, 0, 63, 0)[0] == (4 + 2 * 5 + 3 * 50) * MS


def test_a_packet_passes_every_link_of_its_route() -> None:
    line = shapes.line(4)
    assert network("constant:10ms", 4, topology=line).transmit(0, 0, 3, 0) == (30 * MS,)
    assert network("constant:10ms", 4, topology=line, direct=False).transmit(0, 0, 3, 0) == (10 * MS,)


def test_large_stamps_cost_time_where_bandwidth_is_small() -> None:
    delays = {}
    for protocol in ("matrix", "permit"):
        for bandwidth in ("", ",bandwidth=100kbit/s"):
            spec = RunSpec(protocol=protocol, processes=16, messages=500, network=f"constant:10ms{bandwidth}")
            delays[protocol, bandwidth] = spec.run().delay_ns.mean
    extra = {p: delays[p, ",bandwidth=100kbit/s"] - delays[p, ""] for p in ("matrix", "permit")}
    # The whole packet of `fifo` or `permit` has about 45 bytes: 4 ms. A matrix of 16 x 16 has hundreds.
    assert extra["matrix"] > 5 * MS + extra["permit"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sizes_are_those_of_the_wire(protocol: str) -> None:
    packets = []
    workload = "broadcast" if protocol == "broadcast" else "groups:size=3"
    spec = RunSpec(protocol=protocol, processes=5, messages=200, workload=workload)
    spec.run(observe=lambda now, packet, entries, size: packets.append((packet, entries, size)))
    sizes = Sizes()
    for packet, entries, size in packets:
        assert size == sizes.stamp(packet) == stamp_size(packet)
        assert sizes.packet(packet) == len(encode(packet))
        assert entries == packet.stamp.entries(5)


def test_what_is_remembered_of_rows_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antecede.sim.sizes.ROWS_MOST", 50)
    simulation = RunSpec(protocol="matrix", processes=4, messages=400).build()
    simulation.finish()
    assert len(simulation.engine.sizes._rows) <= 50 + 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "slow",
            "network: the name must be one of constant, uniform, exponential, lognormal, empirical, zones",
        ),
        ("constant:1ms,bandwidth=10", "network: bandwidth must be a bandwidth such as 10Mbit/s, not '10'"),
        ("constant:1ms,loss=95%", "network: loss must be at most 90%, not 95%"),
        ("constant:1ms,loss=two", "network: loss must be a share such as 0.2 or 20%, not 'two'"),
        ("constant:1ms,fifo=yes", "network: fifo must be one of true, false, not 'yes'"),
        ("zones:zones=0", "network: zones must be 1 or more, not 0"),
        ("zones:shape=cube", "network: the distribution must be one of"),
        (
            "constant:1ms,speed=9",
            "network: constant does not take 'speed=9'; it takes delay, bandwidth, fifo, loss, duplicate",
        ),
    ],
)
def test_a_wrong_network_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(AntecedeError) as caught:
        network(text)
    assert str(caught.value).startswith(sentence)


def test_views_and_networks_have_the_same_size() -> None:
    star = RunSpec(protocol="separator", topology="star", processes=3).build()
    assert star.view == View.numbered(3)
    assert star.engine.network.n == len(star.engine.machines) == 4
