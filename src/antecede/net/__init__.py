"""The runtime: nodes that talk over real networks.

A thin asyncio shell round `antecede.process`, which makes every decision.

  node, lifecycle, views, delivery   what an application sees
  driver, storage/                   drives the process, and keeps its journal
  peers/                             the connections: `mesh` (who dials, who is let in), `peer` (one of them), `session`
                                     (what passes), `terms` (what must agree), `strangers`, `holding`, `joining`
  transports/                        bytes over memory, TCP, TLS and a broker
  serve/, observe/                   what other programs use, and what is recorded
"""

from antecede.net.delivery import Delivery, Held, Missing
from antecede.net.node import Node
from antecede.net.peers.joining import Newcomer, anyone
from antecede.net.settings import Settings
from antecede.net.status import Status
from antecede.net.transports.nats import Nats
from antecede.net.transports.tcp import Tcp
from antecede.net.transports.tls import Tls
from antecede.net.transports.transport import Connection, Memory, Transport
from antecede.process.views.members import Change

__all__ = [
    "Change",
    "Connection",
    "Delivery",
    "Held",
    "Memory",
    "Missing",
    "Nats",
    "Newcomer",
    "Node",
    "Settings",
    "Status",
    "Tcp",
    "Tls",
    "Transport",
    "anyone",
]
