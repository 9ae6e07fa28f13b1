"""What happens on a new connection, from its first byte until a peer is served or the connection ends.

Rules
  prove     where the transport proves names, the name is compared before anything that the peer says is acted upon
  hello     both say who they are, whom they mean and on which terms (`session`, `terms`); a stranger has `hello_s` for
            it and `HELLO_BYTES`, and makes way for others (`strangers`)
  refuse    another name, view or system; other terms; bytes that are no records; links that contradict each other.
            Each is counted, told to the peer, and shown in the status; it is logged once for each reason
  join      whoever is no member, and asks to become one, is handed to `joining`
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from antecede.errors import AntecedeError, BadHello, BadParameter, NotMember, PeerError
from antecede.net.driver import Host
from antecede.net.peers.handshake import (
    Knock,
    check_incarnation,
    check_member,
    check_proof,
    find_peer,
    hear_hello,
)
from antecede.net.peers.joining import Joins
from antecede.net.peers.peer import Peer, name_refusal
from antecede.net.peers.session import (
    Bye,
    Code,
    Gone,
    Hello,
    Join,
    Record,
    Rejected,
    Session,
    check_hello,
    pack,
)
from antecede.net.peers.strangers import Door, Seldom
from antecede.net.settings import Settings
from antecede.net.transports.transport import Connection, Learns, Transport

__all__ = ["Reception"]

log = logging.getLogger(__name__)


class Reception:
    """Where all connections of a node are met."""

    def __init__(
        self,
        host: Host,
        transport: Transport,
        settings: Settings,
        counts: Counter[str],
        peers: Mapping[int, Peer],
        joins: Joins,
    ) -> None:
        self.host, self.transport, self.settings = host, transport, settings
        self.counts, self.peers, self.joins = counts, peers, joins
        self._door: Door[Connection] = Door(settings.strangers, settings.strangers_each)
        self._seldom = Seldom(log, asyncio.get_running_loop().time)
        self._origins: dict[int, str] = {}
        """Where each peer was last."""

    def forget(self, peer: int) -> None:
        """This is no peer any more."""
        self._origins.pop(peer, None)

    def let_in(self, connection: Connection) -> None:
        """Let a connection wait for its hello; one that waits longer makes way, if one has to."""
        names = [peer.name for peer in self.peers.values()]
        known = self.transport.origins(names).union(self._origins.values())
        longest = self._door.enter(connection, known, len(names))
        if longest is not None:
            self.counts["refused_busy"] += 1
            self._seldom.warn(
                "busy",
                longest.origin,
                "%s closes a connection from %s that has not said hello: others wait, and there may be only so many "
                "(settings.strangers, strangers_each)",
                self.host.name,
                longest.origin,
            )
            longest.close()

    async def meet(self, connection: Connection, peer: Peer | None) -> bool:
        """Greet, and carry on until the connection ends; whether it carried something, and nobody refused."""
        dialled = peer is not None
        try:
            session = Session(self.host.core.epoch, self.host.core.limits)
            try:
                async with asyncio.timeout(self.settings.hello_s):
                    said, rest = await self._open(connection, session, peer)
                    if isinstance(said, Hello):
                        peer = peer or find_peer(self.host.core, self.peers, said.name)
                        check_hello(said, peer.hello())
                        check_incarnation(self.host.core, said, peer)
                        if peer.number in self.host.core.refused:
                            raise self.host.core.refused[peer.number]
                        if not dialled:
                            await self._say_hello(connection, peer)
            except TimeoutError:
                self._note_slow(connection, peer)
                return False
            finally:
                self._door.leave(connection)
            if isinstance(said, Join):
                await self._let_join(connection, session, said)
                return False
            assert peer is not None
            # It may have been removed while our hello became durable.
            check_member(self.host.core, peer)
            self._origins[peer.number] = connection.origin
            return await peer.serve(connection, session, said, rest)
        except PeerError as error:
            await self._refuse(connection, peer, error)
            if isinstance(error, Rejected) and error.code is Code.GONE and dialled:
                self._go()
        except AntecedeError:
            # The node has stopped, and says so to all who ask it; or it stops for this.
            if self.host.failure is None:
                raise
        except OSError as error:
            if dialled and peer is not None and not peer.connected:
                self.counts["unanswered"] += 1
                log.info("%s dialled %s, and lost the connection: %s", self.host.name, peer.name, error)
        finally:
            connection.close()
        return False

    def _go(self) -> None:
        """A peer that we dialled, and that proved its name if it can, says that we are no member."""
        core = self.host.core
        if core.me in core.changing.roll.members:
            self.host.fail(NotMember(self.host.name, "is no member any more: it left, or was removed"))

    async def _let_join(self, connection: Connection, session: Session, join: Join) -> None:
        if isinstance(self.transport, Learns):
            try:
                self.transport.check(join.address)
            except BadParameter as error:
                # Nobody could dial it.
                raise BadHello(f"members cannot dial {join.name[:100]}: {error}"[:500]) from None
        await self.joins.let_join(connection, join)

    def _note_slow(self, connection: Connection, peer: Peer | None) -> None:
        self.counts["refused_slow"] += 1
        who = f"a connection from {connection.origin}" if peer is None else peer.name
        self._seldom.warn(
            "slow",
            connection.origin,
            "%s closes a connection: %s has not said hello within %g s (settings.hello_s)",
            self.host.name,
            who,
            self.settings.hello_s,
        )

    async def _refuse(self, connection: Connection, peer: Peer | None, error: PeerError) -> None:
        """Count it, log it, and tell the other end."""
        name = self.host.name
        if isinstance(error, Knock):
            log.info("%s was asked by %s whether it is a member still, and says so", name, connection.origin)
        else:
            self.counts[name_refusal(error)] += 1
            told = (
                f"{peer.name if peer else 'a peer'} refuses {name}: {error.reason}"
                if isinstance(error, Rejected)
                else f"{name} refuses {peer.name if peer else connection.origin}: {error}"
            )
            if peer is None:
                self._seldom.warn(type(error).__name__, connection.origin, "%s", told)
            elif peer.refuse(told):
                log.warning("%s (it is tried again, and logged when that changes)", told)
        if isinstance(error, Rejected):
            return
        code = (
            Code.GONE
            if isinstance(error, Gone)
            else Code.MEMBER
            if isinstance(error, Knock)
            else Code.REFUSED
        )
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self.settings.beat_s):
                await connection.write(pack(Bye(code, str(error))))

    # Hello

    async def _open(
        self, connection: Connection, session: Session, peer: Peer | None
    ) -> tuple[Hello | Join, list[Record]]:
        """Let names be proved, and hear who it is; who dials speaks first."""
        await connection.open()
        if peer is not None:
            check_proof(connection, peer.name)
            await self._say_hello(connection, peer)
        said, rest = await hear_hello(connection, session)
        check_proof(connection, said.name)
        if isinstance(said, Join) and peer is not None:
            raise BadHello(
                f"{said.name[:100]} asks to join where {peer.name} was dialled: check the address of {peer.name}"
            )
        return said, rest

    async def _say_hello(self, connection: Connection, peer: Peer) -> None:
        hello = peer.hello()
        await self.host.commits.wait(self.host.commits.position)
        await connection.write(pack(hello))
