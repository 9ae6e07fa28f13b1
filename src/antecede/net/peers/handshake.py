"""The first words over a connection: who is there, and whether it may be.

Names are proved by the transport where it can, and compared before anything else that the other end says is acted upon.
A peer that comes back in an older incarnation than its last, one that was removed, and one that is no member are told
so. `session` has the records, `terms` what both must agree on.
"""

from __future__ import annotations

from collections.abc import Mapping

from antecede.errors import BadHello
from antecede.net.peers.peer import Peer
from antecede.net.peers.session import Bye, Code, Gone, Hello, Join, Record, Rejected, Session
from antecede.net.peers.terms import Terms, state_parameters
from antecede.net.transports.transport import Connection
from antecede.process.core import Core

__all__ = [
    "Knock",
    "check_incarnation",
    "check_member",
    "check_proof",
    "find_peer",
    "hear_hello",
    "state_terms",
]

NO_MEMBER = "no member any more: it can join again under another name"


class Knock(BadHello):
    """A member that we dial has dialled us: it hears from nobody, and wants to know whether it is a member."""


def find_peer(core: Core, peers: Mapping[int, Peer], name: str) -> Peer:
    """The peer of this name, which has dialled."""
    me = core.view.name(core.me)
    for peer in peers.values():
        if peer.name == name:
            if peer.number < core.me:
                return peer
            raise Knock(f"{me} dials {name}, which has to wait for that")
    names, roll = core.view.names, core.changing.roll
    if name in names and names.index(name) not in roll.members:
        raise Gone(f"{name} is {NO_MEMBER}")
    members = ", ".join(roll.shown)[:200]
    raise BadHello(f"{name[:100]!r} is no member: members are {members}. A new node has to join")


def check_member(core: Core, peer: Peer) -> None:
    """Refuse a peer that was removed since it was found: there is no link with it."""
    if peer.number not in core.links:
        raise Gone(f"{peer.name} is {NO_MEMBER}")


def check_incarnation(core: Core, hello: Hello, peer: Peer) -> None:
    """A link ignores what an earlier incarnation says: so nothing would pass, and nobody would know why."""
    check_member(core, peer)
    last = core.links[peer.number].peer
    if hello.hail.epoch < last:
        raise BadHello(
            f"{peer.name} is in incarnation {hello.hail.epoch}, and was in {last} before: set its clock, which went "
            "back, or give it its newest journal"
        )


async def hear_hello(connection: Connection, session: Session) -> tuple[Hello | Join, list[Record]]:
    """Who speaks at the other end, and what it said after that."""
    while data := await connection.read():
        records = session.feed(data)
        if not records:
            continue
        match records[0]:
            case Hello() | Join() as said:
                return said, records[1:]
            case Bye(code=Code.MEMBER):
                raise ConnectionResetError("it will dial")
            case Bye(code=code, reason=reason):
                raise Rejected(code, reason)
    # One that refuses our certificate does no more than this.
    raise ConnectionResetError("it closed the connection before it said hello")


def check_proof(connection: Connection, name: str) -> None:
    """Raise `BadHello` if the other end has proved another name than this."""
    if connection.proved not in (None, name):
        raise BadHello(
            f"{name[:100]} has the certificate of {connection.proved}: check addresses and certificates"
        )


def state_terms(core: Core) -> Terms:
    """What we state to every peer."""
    founders = core.changing.founders
    given = dict(core.parameters)
    if core.changing.roll.founding is not None:
        # The first: whoever joined since has seen no other that all have.
        given["topology"] = core.changing.roll.founding
    # Not those of the settings: what was sent under larger ones may still be on its way.
    limits = core.limits
    return Terms(
        core.machine.name,
        state_parameters(core.machine.name, given, founders),
        limits.packet_bytes,
        limits.payload_bytes,
        core.window,
    )
