"""The network: when a packet arrives, if it does.

    constant, uniform, exponential, lognormal, empirical   the delay of every link: see `antecede.sim.delays`
    zones:lan=200us,man=5ms,wan=50ms                        by where the two ends are: in the same zone, the same
                                                            region, or further apart
Arguments of all of them
    bandwidth=10Mbit/s    what a process can put on its links: bytes wait for those before them, so stamps cost time
    fifo=true             channels do not reorder
    loss=1%, duplicate=1% of the packets: the reliable links of `antecede.link` then carry the machines' packets
Arguments of zones
    zones=4, regions=2    processes are dealt out in blocks, zones among regions too; a topology with zones has its own,
                          and in a hierarchy they are the departments and organisations
    shape=exponential     the distribution, of which lan, man and wan are the means

On a topology, a packet passes every link of its route and its delay is their sum; under the protocol `separator`, whose
routers are machines, a packet crosses one link.

>>> from antecede.sim.chance import stream
>>> network = Network.parse("constant:50ms,bandwidth=8kbit/s", 2, stream(0, "network"))
>>> network.transmit(0, 0, 1, 100), network.transmit(0, 0, 1, 100)        # 100 bytes take 100 ms
((150000000,), (250000000,))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from antecede.errors import BadParameter
from antecede.sim.chance import Words
from antecede.sim.delays import DISTRIBUTIONS, Delay
from antecede.sim.specs import Options, Spec, bits_per_second, boolean, count, share, word
from antecede.topology import Topology

__all__ = ["NETWORKS", "Network"]

NETWORKS = (*DISTRIBUTIONS, "zones")

Path: TypeAlias = tuple[Delay, ...]
"""The delays of the links on the way from one process to another."""

Kind: TypeAlias = Callable[[int, int], str]
"""What kind of link joins two vertices: lan, man or wan."""


class Network:
    """Links between n vertices. Partitions cut it for a while."""

    def __init__(self, n: int, words: Words, path: Path | Callable[[int, int], Path]) -> None:
        self.n = n
        self.words = words
        self.bandwidth = 0
        """Bits a second that a vertex can put on its links; 0: any number."""
        self.fifo = False
        self.loss = self.duplicate = 0
        """Shares of 2**32."""
        self.groups: Sequence[int] | None = None
        """While the network is cut: vertex -> the part that it is in."""
        self._route = None if isinstance(path, tuple) else path
        self._path: Path = path if isinstance(path, tuple) else ()
        self._paths: dict[int, Path] = {}
        self._free = [0] * n
        """When each vertex has put on its links all that it was given."""
        self._last: dict[int, int] = {}
        """Channel -> the latest arrival on it, if it is FIFO."""

    @classmethod
    def parse(
        cls,
        text: str,
        n: int,
        words: Words,
        topology: Topology | None = None,
        direct: bool = True,
        kind: Kind | None = None,
    ) -> Network:
        """The network that a text describes. `direct`: a packet goes all the way; else one link at a time."""
        options = Options("network", Spec.parse("network", text))
        network = cls(n, words, _paths(options, n, topology, direct, kind))
        network.bandwidth = options.option("bandwidth", bits_per_second, 0)
        network.fifo = options.option("fifo", boolean, False)
        network.loss = options.option("loss", share, 0)
        network.duplicate = options.option("duplicate", share, 0)
        options.end()
        if network.loss > share("network", "loss", "90%"):
            raise BadParameter("network", f"loss must be at most 90%, not {options.spec.options['loss']}")
        return network

    @property
    def reliable(self) -> bool:
        """Whether every packet arrives once, if nobody cuts the network."""
        return not self.loss and not self.duplicate

    @property
    def uniform(self) -> Delay | None:
        """The one delay that is all there is to this network, if so: a driver can then draw from it directly."""
        special = self._route or len(self._path) != 1 or self.bandwidth or self.fifo or not self.reliable
        return None if special else self._path[0]

    def transmit(self, now: int, source: int, dest: int, size: int) -> tuple[int, ...]:
        """When a packet of so many bytes that leaves now arrives: never, once or twice."""
        if self.bandwidth:
            start = self._free[source]
            if start < now:
                start = now
            self._free[source] = now = start + size * 8_000_000_000 // self.bandwidth
        arrival = self._arrival(now, source, dest)
        if self.groups is not None and self.groups[source] != self.groups[dest]:
            return ()
        if self.loss and next(self.words) < self.loss:
            return ()
        if self.duplicate and next(self.words) < self.duplicate:
            return arrival, self._arrival(now, source, dest)
        return (arrival,)

    def _arrival(self, now: int, source: int, dest: int) -> int:
        words, channel = self.words, source * self.n + dest
        if self._route is None:
            path = self._path
        else:
            found = self._paths.get(channel)
            path = self._paths[channel] = self._route(source, dest) if found is None else found
        for delay in path:
            now += delay.values[next(words) >> delay.shift]
        if self.fifo:
            last = self._last.get(channel, -1)
            self._last[channel] = now = now if now > last else last + 1
        return now

    def cut(self, groups: Sequence[Sequence[int]]) -> None:
        """Until `heal`, nothing passes between these groups; whoever is in none is in one with the other such."""
        parts = [len(groups)] * self.n
        for part, members in enumerate(groups):
            for vertex in members:
                parts[vertex] = part
        self.groups = parts

    def heal(self) -> None:
        self.groups = None


def _paths(
    options: Options, n: int, topology: Topology | None, direct: bool, kind: Kind | None
) -> Path | Callable[[int, int], Path]:
    name = options.spec.name
    if name == "zones":
        link = _zones(options, n, topology, kind)
    elif name in DISTRIBUTIONS:
        delay = Delay.take(options)
        if topology is None or not direct:
            return (delay,)
        return lambda source, dest: (
            (delay,) * (len(topology.route(topology.names[source], topology.names[dest])) - 1)
        )
    else:
        raise BadParameter.choice("network", "the name", name, NETWORKS)
    if topology is None or not direct:
        return lambda source, dest: (link(source, dest),)

    def route(source: int, dest: int) -> Path:
        way = [topology.id(name) for name in topology.route(topology.names[source], topology.names[dest])]
        return tuple(link(a, b) for a, b in pairwise(way))

    return route


def _zones(
    options: Options, n: int, topology: Topology | None, kind: Kind | None
) -> Callable[[int, int], Delay]:
    """A link's delay, by the zones of its ends."""
    shape = options.option("shape", word, "exponential")
    lan, man, wan = (
        Delay.parse(f"{shape}:{options.option(key, word, default)}", "network")
        for key, default in (("lan", "200us"), ("man", "5ms"), ("wan", "50ms"))
    )
    if kind is not None:
        delays = {"lan": lan, "man": man, "wan": wan}
        return lambda a, b: delays[kind(a, b)]
    total = options.option("zones", count, 4)
    if not total:
        raise BadParameter("network", "zones must be 1 or more, not 0")
    zone = [v * total // n for v in range(n)]
    if topology is not None and len(topology.zones) > 1:
        zone, total = _zones_of(topology), len(topology.zones)
    regions = options.option("regions", count, 2)
    region = [z * regions // total for z in zone]

    def link(a: int, b: int) -> Delay:
        if zone[a] == zone[b]:
            return lan
        return man if region[a] == region[b] else wan

    return link


def _zones_of(topology: Topology) -> list[int]:
    """Vertex -> its zone; a member of a separator is where its lowest-numbered neighbour with a zone is."""
    zone = {topology.id(name): z for z, names in enumerate(topology.zones) for name in names}
    near: dict[int, list[int]] = {}
    for a, b in topology.links:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    result = []
    for v in range(len(topology.names)):
        known = [zone[b] for b in sorted(near.get(v, ())) if b in zone]
        result.append(zone.get(v, known[0] if known else 0))
    return result
