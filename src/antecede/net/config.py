"""A node in a file: what `antecede node --config` reads. Paths in it are relative to the file.

name = "ann"
protocol = "permit"             # the default
journal = "ann.db"              # without one, a node lives once
sync = "full"
trace = "trace"                 # where to record events, of the run `run`
feed = "127.0.0.1:7101"         # where to serve them
metrics = "127.0.0.1:9100"      # where an operator looks (health)
metrics_open_to_others = false  # true: beyond loopback too, where everyone can read them
socket = "ann.sock"             # where programs talk to it, instead of standard input and output (local)

state = true                    # programs that talk to it give a state to nodes that join (lines)
transport = "nats://127.0.0.1:4222"    # a broker to meet at; then `peers` is a list of names, without addresses

[peers]                         # the same for all nodes
ann = "127.0.0.1:7001"
bob = "127.0.0.1:7002"

[groups]
all = ["ann", "bob"]

[join]                          # become a member of a system that runs, instead of `peers` and `groups`
groups = ["all"]                # those that it will be in
[join.members]                  # some to ask, and itself if it is to listen there; or a list of names
bob = "127.0.0.1:7002"

[admit]                         # who may join when this node is asked, and into which groups; without it, nodes on this
dave = ["all"]                  # machine alone. admit = "anyone", above all tables: every certificate of the authority

[tls]                           # needed beyond loopback
authority = "keys/authority.pem"
certificate = "keys/ann.pem"
key = "keys/ann.key"

[settings]                      # see antecede.net.Settings
held = 100

[parameters]                    # of the protocol

[topology]                      # for protocol = "separator": the same for all nodes. Who is no process is a router
links = [["ann", "hub"], ["bob", "hub"]]
processes = ["ann", "bob"]
separators = [["hub"]]          # without it, they are found
witnesses = []                  # members of separators that only store
islands = false                 # true: parts that nobody connects yet

A node that joins a system with a topology says where, in [join]: `links`, whom it is linked with; `member_of`,
a member of the separator that it joins as a router or a witness; and `memory`, the journal of the last member of that
separator, if all have failed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from antecede.errors import BadConfig
from antecede.net.arguments import NodeOptions
from antecede.net.node import Node
from antecede.net.peers.joining import Admit, admit_listed, anyone
from antecede.net.settings import Settings
from antecede.net.transports.nats import Nats
from antecede.net.transports.tls import Tls
from antecede.process.views.members import Where
from antecede.topology import Topology

if TYPE_CHECKING:
    from antecede.net.serve.feed import Feed

__all__ = ["Config", "load"]


Role: TypeAlias = Literal["node", "router", "witness"]


class Keys(Struct, frozen=True, forbid_unknown_fields=True):
    authority: str
    certificate: str
    key: str


class Graph(Struct, frozen=True, forbid_unknown_fields=True):
    links: list[tuple[str, str]]
    processes: list[str]
    separators: list[list[str]] | None = None
    witnesses: list[str] = []
    islands: bool = False

    def topology(self) -> Topology:
        if self.separators is None and not self.witnesses:
            return Topology.from_links(self.links, self.processes)
        separators = self.separators or []
        return Topology.of(
            self.links, self.processes, separators=separators, witnesses=self.witnesses, islands=self.islands
        )


class Joining(Struct, frozen=True, forbid_unknown_fields=True):
    members: dict[str, str] | list[str]
    groups: list[str] = []
    links: list[str] | None = None
    member_of: str | None = None
    memory: str | None = None


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """What a file says."""

    name: str
    peers: dict[str, str] | list[str] | None = None
    protocol: str = "permit"
    parameters: dict[str, Any] = {}
    topology: Graph | None = None
    groups: dict[str, list[str]] = {}
    join: Joining | None = None
    admit: dict[str, list[str]] | Literal["anyone"] | None = None
    state: bool = False
    listen: str | None = None
    transport: str | None = None
    journal: str | None = None
    sync: Literal["full", "normal"] = "full"
    metrics: str | None = None
    metrics_open_to_others: bool = False
    socket: str | None = None
    trace: str | None = None
    run: str = "nodes"
    feed: str | None = None
    tls: Keys | None = None
    settings: Settings = Settings()

    def __post_init__(self) -> None:
        if (self.peers is None) is (self.join is None):
            raise ValueError("a node has `peers`, if it is a founder, or `join`, and not both")
        if self.join is not None and self.groups:
            raise ValueError("`groups` are for founders: `join.groups` names those that it will be in")

    def node(self, root: Path, role: Role = "node") -> Node:
        """The node that it describes, in this role; paths are relative to `root`."""
        tls = self._keys(root)
        routed = {} if self.topology is None else {"topology": self.topology.topology()}
        options = NodeOptions(
            protocol=self.protocol,
            parameters={**self.parameters, **routed},
            state=_nobody if self.state else None,
            admit=self._rule(),
            listen=self.listen,
            journal=None if self.journal is None else root / self.journal,
            sync=self.sync,
            trace=None if self.trace is None else root / self.trace,
            run=self.run,
            tls=tls,
            transport=None if self.transport is None else Nats(self.transport, self.name, tls=tls),
            settings=self.settings,
        )
        if self.join is not None:
            join = self.join
            kind: Literal["process", "router", "witness"] = "process" if role == "node" else role
            where = None if join.links is None else Where(tuple(join.links), join.member_of, kind)
            memory = None if join.memory is None else root / join.memory
            return Node.join(
                self.name, join.members, groups=join.groups, where=where, memory=memory, **options
            )
        return Node(self.name, self.peers or {}, groups=self.groups, **options)

    def _rule(self) -> Admit | None:
        match self.admit:
            case None:
                return None
            case "anyone":
                return anyone
            case listed:
                return admit_listed(listed)

    def check_role(self, role: Role) -> None:
        """Raise `BadConfig` unless the topology has this node in this role."""
        if self.join is not None:
            if self.join.links is None:
                raise BadConfig(
                    f"role {role}", f"{self.name} has no `links` in [join]: say whom it is linked with"
                )
            return
        graph = None if self.topology is None else self.topology.topology()
        watching = () if self.topology is None else tuple(self.topology.witnesses)
        routers = () if graph is None else tuple(name for name in graph.routers if name not in watching)
        names = routers if role == "router" else watching
        if self.name not in names:
            found = f"{self.name} is no {role} of the topology, which has {', '.join(names) or 'none'}"
            raise BadConfig(f"role {role}", found)

    def make_feed(self, root: Path) -> Feed | None:
        """The feed of what the node records, if it has one."""
        if self.feed is None:
            return None
        if self.trace is None:
            raise BadConfig("feed", "it serves what the trace records: give the node a `trace`, too")
        # PyArrow takes longer to load than all the rest.
        from antecede.net.serve.feed import Feed

        return Feed(self.feed, root / self.trace, self.run, self.name, self._keys(root))

    def _keys(self, root: Path) -> Tls | None:
        keys = self.tls
        return None if keys is None else Tls(root / keys.authority, root / keys.certificate, root / keys.key)


async def _nobody() -> bytes:
    """The state, while no program talks to the node that could give it."""
    await asyncio.Event().wait()
    return b""


def load(path: Path) -> Config:
    """Read such a file."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadConfig(str(path), f"is no configuration of a node: {error}") from None
