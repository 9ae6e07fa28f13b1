"""How a node becomes a member: it asks one, which brings the change about, and gives it the view that it is in.

ask      whoever wants to join dials one member after the other and says so (`session.Join`), until one answers
decide   the member that is asked lets its operator decide (`Admit`). Without a rule, whoever is on the same machine may
         join; whoever is not may not, though it has a certificate of the authority
wait     a change needs all members: while one of them cannot be reached, the join waits before anything stops, and
         says for whom (`stalls`): in the status, in `waiting()`, in the metrics, and once in the log
admit    the member proposes it, again and again, and says that it lives, until the view has changed for all; then it
         tells the view (`session.Welcome`), and the rest goes over links, as with any member
withdraw a node that gives up, or dies, before it is in a view does not become a member: the proposal is withdrawn
vouch    a node that is in a view, and never says a word, is removed after `VOUCH` times `dead_s` by the member that it
         asked, also if that one was killed and came back; if that one is removed, it is removed with it (`membership`)
refuse   a name that was used before, another protocol or other parameters, a protocol that cannot run among so many:
         with a sentence, at once
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from antecede.errors import BadHello, CallerError, NotMember, PeerError
from antecede.net.driver import Host
from antecede.net.peers.handshake import check_proof
from antecede.net.peers.session import Beat, Bye, Gone, Join, Rejected, Session, Welcome, pack
from antecede.net.peers.stalls import Stalls
from antecede.net.peers.terms import state_parameters
from antecede.net.settings import Backoff, Settings
from antecede.net.signal import is_asked_to_end
from antecede.net.transports.transport import Connection, Transport
from antecede.process.inputs import Propose, Withdraw
from antecede.process.views.members import Joiner, Plan, Roll
from antecede.process.views.validation import check_joiner

__all__ = ["Admit", "Joins", "Newcomer", "admit_listed", "anyone", "ask_to_join"]

log = logging.getLogger(__name__)

VOUCH = 4
"""How often `dead_s` passes before one that joined, and was never heard, is removed by the member that it asked."""


class Newcomer(Struct, frozen=True):
    """A node that asks to become a member, as the rule of an operator sees it."""

    name: str
    """Its own word, or proved by its certificate if it has one."""
    address: str
    """Where it says that members find it."""
    groups: tuple[str, ...]
    """The groups that it wants to be in."""
    origin: str
    """Where its connection comes from."""
    certificate: Mapping[str, Any] | None
    """What it proved its name with, as `ssl.SSLSocket.getpeercert` gives it."""


Admit: TypeAlias = Callable[[Newcomer], bool | Awaitable[bool]]
"""The rule of an operator: whether this node may become a member."""


def anyone(newcomer: Newcomer) -> bool:
    """The rule that admits whoever can connect: with TLS, every certificate of the authority."""
    return True


def admit_listed(listed: Mapping[str, Collection[str]]) -> Admit:
    """The rule that admits these names, each into these groups at most.

    >>> rule = admit_listed({"dave": ["all"]})
    >>> asking = [("dave", ("all",)), ("dave", ("ops",)), ("eve", ())]
    >>> [rule(Newcomer(name, "", groups, "", None)) for name, groups in asking]
    [True, False, False]
    """

    def rule(newcomer: Newcomer) -> bool:
        return newcomer.name in listed and set(newcomer.groups) <= set(listed[newcomer.name])

    return rule


# Who joins


async def ask_to_join(
    transport: Transport, members: Sequence[str], join: Join, settings: Settings, random: Random
) -> Roll:
    """Be admitted by one of these. Raises `NotMember` if they refuse."""
    backoff = Backoff(settings, random)
    refusals: dict[str, str] = {}
    told: dict[str, str] = {}
    while True:
        for member in members:
            try:
                return await _ask(transport, member, join, settings)
            except BadHello as error:
                refusals[member] = error.reason
                reason = f"{member} refuses it: {refusals[member]}"
            except (OSError, ValueError, PeerError) as error:
                refusals.pop(member, None)
                reason = f"{member} does not answer: {error}"
            if told.get(member) != reason:
                told[member] = reason
                log.warning("%s cannot join yet: %s", join.name, reason)
        if len(refusals) == len(members):
            raise NotMember(join.name, f"cannot join: {refusals[members[0]]}")
        await asyncio.sleep(backoff.next())


async def _ask(transport: Transport, member: str, join: Join, settings: Settings) -> Roll:
    async with asyncio.timeout(settings.hello_s):
        connection = await transport.connect(member)
    try:
        async with asyncio.timeout(settings.hello_s):
            await connection.open()
            check_proof(connection, member)
            await connection.write(pack(replace(join, to=member)))
        session = Session(1, settings.limits)
        session.greeted = True
        # The member says that it lives from the moment on at which its rule has decided.
        patience_s = settings.hello_s + settings.dead_s
        while True:
            async with asyncio.timeout(patience_s):
                data = await connection.read()
            patience_s = settings.dead_s
            if not data:
                raise ConnectionResetError("it closed the connection")
            for record in session.feed(data):
                if isinstance(record, Welcome):
                    if join.name not in record.roll.shown:
                        raise BadHello(f"{member} welcomes {join.name} to a view without {join.name}")
                    return record.roll
                if isinstance(record, Bye):
                    raise Rejected(record.code, record.reason)
    finally:
        connection.close()


# Who is asked


class Joins:
    """The nodes that a member lets join."""

    def __init__(self, host: Host, settings: Settings, rule: Admit | None, stalls: Stalls) -> None:
        self._host, self._settings, self._rule, self._stalls = host, settings, rule, stalls
        self._asking: dict[str, tuple[Connection, asyncio.Event]] = {}
        """Who wants to join -> over which connection; the event is set when that is over."""
        self._unheard: dict[str, float] = {}
        """Who joined by us, and has not been heard -> since when."""

    def vouch(self, now: float) -> None:
        """Have those removed that joined by us and never came."""
        host = self._host
        mine = [name for name in host.core.changing.membership.list_vouched() if name not in self._asking]
        since = {name: self._unheard.get(name, now) for name in mine}
        for name in since:
            if name not in self._unheard:
                log.info("%s: %s joined, and has not connected yet", host.name, name)
            elif now - since[name] >= VOUCH * self._settings.dead_s:
                log.warning("%s removes %s, which joined and never connected", host.name, name)
                since[name] = now
                host.happen(Propose(Plan(remove=(name,))))
        self._unheard = since

    async def let_join(self, connection: Connection, join: Join) -> None:
        """Let one join that asks for it. Raises `BadHello` if it cannot, `OSError` if it has gone."""
        host = self._host
        _check(host, join)
        await _decide(host, connection, join, self._settings, self._rule)
        while (before := self._asking.get(join.name)) is not None:
            # It has lost its connection, or it would not ask again.
            before[0].close()
            await before[1].wait()
        over = asyncio.Event()
        self._asking[join.name], self._stalls.joiners[join.name] = (connection, over), None
        gone = asyncio.ensure_future(_until_gone(connection))
        try:
            await self._bring_about(connection, join, gone)
        except BaseException:
            # Cancelled too: the node stops, and the one that asked will ask another.
            if host.failure is None and join.name not in host.core.changing.roll.names:
                log.warning("%s withdraws the join of %s", host.name, join.name)
                host.happen(Withdraw((join.name,)))
            raise
        finally:
            gone.cancel()
            over.set()
            del self._asking[join.name], self._stalls.joiners[join.name]
        await host.commits.wait(host.commits.position)
        await connection.write(pack(Welcome(host.core.changing.membership.roll)))

    async def _bring_about(self, connection: Connection, join: Join, gone: asyncio.Future[None]) -> None:
        """Have the view changed, unless the one that asked goes first."""
        host, beat_s = self._host, self._settings.beat_s
        plan = Plan(join=(_joiner(host, join),))
        while not self._is_in(join):
            if self._stalls.may_propose(join.name):
                host.happen(Propose(plan))
            await connection.write(pack(Beat(False)))
            with suppress(TimeoutError):
                async with asyncio.timeout(beat_s):
                    while not self._is_in(join) and not gone.done():
                        await _either(host.room.wait(), gone)
                        host.check()
            if gone.done():
                await gone

    def _is_in(self, join: Join) -> bool:
        membership = self._host.core.changing.membership
        _check_name(self._host, join)
        if (reason := membership.refused.get(join.name)) is not None:
            raise BadHello(reason)
        if not (joined := membership.has_joined(join.name)):
            _check_member(self._host)
        return joined


def _joiner(host: Host, join: Join) -> Joiner:
    return Joiner(join.name, join.address, join.groups, host.name, join.where)


async def _until_gone(connection: Connection) -> None:
    """Wait until the one that asked says something, or goes: it has nothing more to say."""
    if await connection.read():
        raise BadHello("a node that asked to join went on before it was welcomed")
    raise ConnectionResetError("it closed the connection")


async def _either(first: Coroutine[Any, Any, None], second: asyncio.Future[None]) -> None:
    """Wait for one of the two."""
    waiting = asyncio.ensure_future(first)
    try:
        await asyncio.wait({waiting, second}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _decide(
    host: Host, connection: Connection, join: Join, settings: Settings, rule: Admit | None
) -> None:
    """Ask the operator's rule. Raises `BadHello` if it says no, or fails."""
    if rule is None:
        if not connection.local:
            raise BadHello(
                f"{join.name[:100]} asks to join from {connection.origin}, another machine, and {host.name} has no "
                "rule that admits it: give it Node(admit=...), or [admit] in its configuration"
            )
        return
    newcomer = Newcomer(join.name, join.address, join.groups, connection.origin, connection.certificate)
    try:
        async with asyncio.timeout(settings.hello_s):
            answer = rule(newcomer)
            allowed = answer if isinstance(answer, bool) else await answer
    except (Exception, asyncio.CancelledError) as error:
        if is_asked_to_end(error):
            raise
        # What the application's rule raises is its own: the node goes on, and nobody is admitted by a failure.
        log.exception("%s: the rule that admits nodes failed for %s", host.name, join.name)
        allowed = False
    if allowed is not True:
        raise BadHello(
            f"{join.name[:100]} asks to join from {connection.origin}, and the rule of {host.name} (admit) refuses it"
        )


def _check(host: Host, join: Join) -> None:
    core = host.core
    if join.to != host.name:
        raise BadHello(
            f"{join.name} looks for {join.to}"[:200]
            + f", and {host.name} listens here: check the addresses of both"
        )
    if join.protocol != core.machine.name:
        raise BadHello(
            f"{join.name} runs protocol {join.protocol}"[:200]
            + f", and the system runs {core.machine.name}: give all nodes the same"
        )
    if core.machine.routed is (join.where is None):
        raise BadHello(
            f"{join.name} names no links, and the system has a topology: say where it is linked"
            if join.where is None
            else f"{join.name} names links, and the system has no topology: everyone is linked with everyone"
        )
    founders = core.changing.founders
    given = {name: one for name, one in core.parameters.items() if name != "topology"}
    ours = state_parameters(join.protocol, given, founders)
    try:
        theirs = state_parameters(join.protocol, join.parameters, founders)
    except CallerError as error:
        raise BadHello(
            f"{join.name} has parameters {join.parameters}, which cannot be: {error}"[:400]
        ) from None
    if theirs != ours:
        raise BadHello(
            f"{join.name} has parameters {theirs}"[:300]
            + f", and the system has {ours}"[:300]
            + ": give all nodes the same"
        )
    if (odd := check_joiner(_joiner(host, join))) is not None:
        raise BadHello(f"{join.name[:100]} cannot join: {odd}")
    _check_member(host)
    if join.name not in core.changing.roll.names:
        why = core.changing.membership.judge(Plan(join=(_joiner(host, join),)))
        if why is not None:
            raise BadHello(str(why))
    _check_name(host, join)


def _check_member(host: Host) -> None:
    """Who has left, perhaps after it was asked, can let nobody join."""
    if host.core.me not in host.core.changing.roll.members:
        raise BadHello(f"{host.name} is no member any more: ask another node")


def _check_name(host: Host, join: Join) -> None:
    """A name is used once. One that was just admitted, and has not begun to live, may ask again."""
    roll = host.core.changing.roll
    if join.name in roll.groups or join.name in join.groups:
        raise BadHello(f"{join.name} is the name of a group: choose another name for the node")
    if clash := set(join.groups) & set(roll.names):
        raise BadHello(f"{min(clash)} is the name of a node: choose another name for the group")
    if join.name not in roll.names:
        return
    place = roll.place(join.name)
    if place not in roll.members:
        raise Gone(f"{join.name} is no member any more: it can join again under a name that was never used")
    if place not in roll.donors:
        raise BadHello(
            f"{join.name} is a member already: start it with its journal. If that is lost, remove it, and choose "
            "another name"
        )
