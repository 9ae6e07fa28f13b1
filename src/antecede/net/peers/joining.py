"""How a node becomes a member: it asks one, which brings the change about, and gives it the view that it is in.

ask      whoever wants to join dials one member after the other and says so (`session.Join`), until one answers
decide   the member that is asked lets its operator decide (`Admit`). Without a rule, whoever is on the same machine may
         join; whoever is not may not, though it has a certificate of the authority
admit    the member proposes it, again and again, and says that it lives, until the view has changed for all; then it
         tells the view (`session.Welcome`), and the rest goes over links, as with any member
refuse   a name that was used before, another protocol or other parameters, a protocol that cannot run among so many:
         with a sentence, at once
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from antecede.errors import BadHello, CallerError, NotMember, PeerError
from antecede.net.driver import Host
from antecede.net.peers.session import Beat, Bye, Gone, Join, Rejected, Session, Welcome, pack
from antecede.net.peers.terms import state_parameters
from antecede.net.settings import Backoff, Settings
from antecede.net.transports.transport import Connection, Transport
from antecede.process.inputs import Propose
from antecede.process.views.members import Joiner, Plan, Roll

__all__ = ["FIXED", "Admit", "Newcomer", "anyone", "ask_to_join", "let_join"]

log = logging.getLogger("antecede.net")

FIXED = ("separator",)
"""Protocols whose views do not change: a topology goes with them."""


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
                refusals[member] = error.reason if isinstance(error, Rejected) else str(error)
                reason = f"{member} refuses it: {refusals[member]}"
            except (OSError, PeerError) as error:
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
            if connection.proved not in (None, member):
                raise BadHello(f"{member} with the certificate of {connection.proved}", "its own")
            await connection.write(pack(replace(join, to=member)))
        session = Session(1, settings.limits)
        session.greeted = True
        while True:
            async with asyncio.timeout(settings.dead_s):
                data = await connection.read()
            if not data:
                raise ConnectionResetError("it closed the connection")
            for record in session.feed(data):
                if isinstance(record, Welcome):
                    if join.name not in record.roll.shown:
                        raise BadHello(f"a view without {join.name}", "one that it is in")
                    return record.roll
                if isinstance(record, Bye):
                    raise Rejected(record.code, record.reason)
    finally:
        connection.close()


# Who is asked


async def let_join(
    host: Host, connection: Connection, join: Join, settings: Settings, rule: Admit | None
) -> None:
    """Let one join that asks for it. Raises `BadHello` if it cannot, `OSError` if it has gone."""
    _check(host, join)
    await _decide(host, connection, join, settings, rule)
    membership = host.core.changing.membership
    plan = Plan(join=(Joiner(join.name, join.address, join.groups, host.name),))

    def done() -> bool:
        _check_name(host, join)
        if (reason := membership.refused.get(join.name)) is not None:
            raise BadHello(reason, "one that can join")
        return join.name in membership.roll.shown and membership.firm

    while not done():
        host.happen(Propose(plan))
        await connection.write(pack(Beat(False)))
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.beat_s):
                while not done():
                    await host.room.wait()
                    host.check()
    await host.durable(host.position)
    await connection.write(pack(Welcome(membership.roll)))


async def _decide(
    host: Host, connection: Connection, join: Join, settings: Settings, rule: Admit | None
) -> None:
    """Ask the operator's rule. Raises `BadHello` if it says no, or fails."""
    if rule is None:
        if not connection.local:
            raise BadHello(
                f"{join.name[:100]} asking to join from {connection.origin}, which is another machine",
                f"a rule at {host.name} that admits it: Node(admit=...), or admit = [names] in its configuration",
            )
        return
    newcomer = Newcomer(join.name, join.address, join.groups, connection.origin, connection.certificate)
    try:
        async with asyncio.timeout(settings.hello_s):
            answer = rule(newcomer)
            allowed = answer if isinstance(answer, bool) else await answer
    except Exception:
        # What the application's rule raises is its own: the node goes on, and nobody is admitted by a failure.
        log.exception("%s: the rule that admits nodes failed for %s", host.name, join.name)
        allowed = False
    if allowed is not True:
        raise BadHello(
            f"{join.name[:100]} asking to join from {connection.origin}",
            f"one that the rule of {host.name} (admit) lets in",
        )


def _check(host: Host, join: Join) -> None:
    core = host.core
    if join.to != host.name:
        raise BadHello(f"{join.name} looking for {join.to}"[:200], f"one for {host.name}, which listens here")
    if join.protocol != core.machine.name:
        raise BadHello(f"{join.name} with protocol {join.protocol}"[:200], f"{core.machine.name}")
    if core.machine.name in FIXED:
        raise BadHello(f"{join.name} joining", f"no change: views of {core.machine.name} have a topology")
    founders = core.changing.founders
    ours = state_parameters(join.protocol, core.parameters, founders)
    try:
        theirs = state_parameters(join.protocol, join.parameters, founders)
    except CallerError as error:
        raise BadHello(f"parameters {join.parameters}: {error}"[:300], f"{ours}"[:200]) from None
    if theirs != ours:
        raise BadHello(f"parameters {theirs}"[:200], f"{ours}"[:200])
    roll = core.changing.roll
    if core.me not in roll.members:
        raise BadHello(f"{host.name}, which is no member any more", "a member to ask")
    if join.name not in roll.names and (why := core.changing.accepts((*roll.shown, join.name))) is not None:
        raise BadHello(str(why), "one that can join")
    _check_name(host, join)


def _check_name(host: Host, join: Join) -> None:
    """A name is used once. One that was just admitted, and has not begun to live, may ask again."""
    roll = host.core.changing.roll
    if join.name in roll.groups or join.name in join.groups:
        raise BadHello(f"{join.name}, the name of a group", "another name")
    if clash := set(join.groups) & set(roll.names):
        raise BadHello(f"a group {min(clash)}, the name of a process", "another name")
    if join.name not in roll.names:
        return
    place = roll.place(join.name)
    if place not in roll.members:
        raise Gone(
            f"{join.name}, which is no member any more",
            "a name that was never used: it joins anew under another",
        )
    if place not in roll.donors:
        raise BadHello(
            f"{join.name}, which is a member already", "its journal; or to remove it, and another name"
        )
