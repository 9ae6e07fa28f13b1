"""The runtime: nodes that talk over real networks.

A thin asyncio shell round the machines. `core` is the process as one pure state machine, `host` drives it and its
`journal`, `mesh` and `peers` keep the connections, `session` says what passes over one, `transport`, `tcp` and
`nats` carry bytes, and `node` is what an application sees. Views change by `membership`, a pure state machine too, and
`changing`, what that does to a process; `roll` has the values, `joining` the way in.
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
