"""A node in a file: what `antecede node --config` reads. Paths in it are relative to the file.

name = "ann"
protocol = "permit"             # the default
journal = "ann.db"              # without one, a node lives once
sync = "full"
metrics = "127.0.0.1:9100"      # where an operator looks (health)
socket = "ann.sock"             # where programs talk to it, instead of standard input and output (local)

transport = "nats://127.0.0.1:4222"    # a broker to meet at; then `peers` is a list of names, without addresses

[peers]                         # the same for all nodes
ann = "127.0.0.1:7001"
bob = "127.0.0.1:7002"

[groups]
all = ["ann", "bob"]

[tls]                           # needed beyond loopback
authority = "keys/authority.pem"
certificate = "keys/ann.pem"
key = "keys/ann.key"

[settings]                      # see antecede.net.Settings
held = 100

[parameters]                    # of the protocol
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antecede.errors import BadConfig
from antecede.net.nats import Nats
from antecede.net.node import Node
from antecede.net.security import Tls
from antecede.net.settings import Settings

__all__ = ["Config", "load"]


class Keys(Struct, frozen=True, forbid_unknown_fields=True):
    authority: str
    certificate: str
    key: str


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """What a file says."""

    name: str
    peers: dict[str, str] | list[str]
    protocol: str = "permit"
    parameters: dict[str, Any] = {}
    groups: dict[str, list[str]] = {}
    listen: str | None = None
    transport: str | None = None
    journal: str | None = None
    sync: Literal["full", "normal"] = "full"
    metrics: str | None = None
    socket: str | None = None
    trace: str | None = None
    run: str = "nodes"
    tls: Keys | None = None
    settings: Settings = Settings()

    def node(self, root: Path) -> Node:
        """The node that it describes; paths are relative to `root`."""
        keys = self.tls
        tls = None if keys is None else Tls(root / keys.authority, root / keys.certificate, root / keys.key)
        return Node(
            self.name,
            self.peers,
            protocol=self.protocol,
            parameters=self.parameters,
            groups=self.groups,
            listen=self.listen,
            journal=None if self.journal is None else root / self.journal,
            sync=self.sync,
            trace=None if self.trace is None else root / self.trace,
            run=self.run,
            tls=tls,
            transport=None if self.transport is None else Nats(self.transport, self.name, tls=tls),
            settings=self.settings,
        )


def load(path: Path) -> Config:
    """Read such a file."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise BadConfig(str(path), error.strerror or str(error), "a file that can be read") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadConfig(str(path), str(error), "the configuration of a node") from None
