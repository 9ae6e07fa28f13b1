"""How a node becomes a member: it asks one, which brings the change about, and gives it the view that it is in.

ask      whoever wants to join dials one member after the other and says so (`session.Join`), until one answers
admit    the member proposes it, again and again, and says that it lives, until the view has changed for all; then it
         tells the view (`session.Welcome`), and the rest goes over links, as with any member
refuse   a name that was used before, another protocol or other parameters, a protocol that cannot run among so many:
         with a sentence, at once
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from antecede.errors import AntecedeError, BadHello, NotMember, PeerError
from antecede.net.driver import Host
from antecede.net.peers.peer import GONE
from antecede.net.peers.session import Beat, Bye, Join, Session, Welcome, pack
from antecede.net.settings import Backoff, Settings
from antecede.net.transports.transport import Connection, Transport
from antecede.process.inputs import Propose
from antecede.process.views.change import parameters_among
from antecede.process.views.members import Joiner, Plan, Roll

__all__ = ["FIXED", "LOOK_S", "admit", "ask", "is_gone"]

log = logging.getLogger("antecede.net")

LOOK_S = 0.05
"""How often one that waits for a change looks whether it has come."""
FIXED = ("separator",)
"""Protocols whose views do not change: a topology goes with them."""


# Who joins


async def ask(
    transport: Transport, members: Sequence[str], join: Join, settings: Settings, random: Random
) -> Roll:
    """Be admitted by one of these. Raises `NotMember` if they refuse."""
    backoff = Backoff(settings, random)
    refusals: dict[str, str] = {}
    while True:
        for member in members:
            try:
                return await _ask(transport, member, join, settings)
            except BadHello as error:
                refusals[member] = error.found
                log.warning("%s: %s", join.name, error)
            except (OSError, TimeoutError, PeerError) as error:
                refusals.pop(member, None)
                log.info("%s cannot ask %s: %s", join.name, member, error)
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
                    raise BadHello(record.reason, "a welcome")
    finally:
        connection.close()


# Who is asked


async def admit(host: Host, connection: Connection, join: Join, settings: Settings) -> None:
    """Let one join that asks for it. Raises `BadHello` if it cannot."""
    _check(host, connection, join)
    membership = host.core.changing.membership
    plan = Plan(join=(Joiner(join.name, join.address, join.groups, host.name),))
    loop = asyncio.get_running_loop()
    said = loop.time() - settings.beat_s
    while not (join.name in membership.roll.shown and membership.firm):
        _check_name(host, join)
        if loop.time() - said >= settings.beat_s:
            said = loop.time()
            host.happen(Propose(plan))
            await connection.write(pack(Beat(False)))
        await asyncio.sleep(LOOK_S)
        if (reason := membership.refused.get(join.name)) is not None:
            raise BadHello(reason, "one that can join")
    _check_name(host, join)
    await host.durable(host.position)
    await connection.write(pack(Welcome(membership.roll)))


def _check(host: Host, connection: Connection, join: Join) -> None:
    core = host.core
    if join.to != host.name:
        raise BadHello(f"{join.name} looking for {join.to}", f"one for {host.name}")
    if connection.proved not in (None, join.name):
        raise BadHello(f"{join.name} with the certificate of {connection.proved}", "its own")
    if join.protocol != core.machine.name:
        raise BadHello(f"protocol {join.protocol}", core.machine.name)
    if core.machine.name in FIXED:
        raise BadHello(f"{join.name} joining", f"no change: views of {core.machine.name} have a topology")
    theirs = parameters_among(join.protocol, join.parameters, core.changing.founders)
    if theirs != core.parameters:
        raise BadHello(f"parameters {theirs}"[:200], f"{core.parameters}"[:200])
    roll = core.changing.roll
    if core.me not in roll.members:
        raise BadHello(f"{host.name}, {GONE}", "a member")
    if join.name not in roll.names and (error := core.changing.accepts((*roll.shown, join.name))) is not None:
        raise BadHello(str(error), "one that can join")
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
        raise BadHello(f"{join.name}, {GONE}", "a name that was never used: it joins anew under another")
    if place not in roll.donors:
        raise BadHello(
            f"{join.name}, which is a member already", "its journal; or to remove it, and another name"
        )


def is_gone(error: AntecedeError) -> bool:
    """Whether a peer refuses us because we are no member any more."""
    return isinstance(error, BadHello) and error.found.startswith("a refusal:") and GONE in error.found
