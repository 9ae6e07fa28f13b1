"""What an application does with a node: it takes, acknowledges and sends, and keeps what all in the group have said.

Its memory is a part of the node's: what it did after the last input that is durable, a crash undoes. What it keeps of
the group `all`, every message that it heard or said, is what one that joins is given as its state: so all members must
have the same in the end.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from antecede.errors import CallerError
from antecede.model import Id, Message
from antecede.process.inputs import Acknowledge, Pass, Recorded, Send, Take, Time, Told
from antecede.process.views.members import Change

if TYPE_CHECKING:
    from antecede.sim.nodes.node import SimNode

__all__ = ["GROUP", "Application"]

GROUP = b"a"
"""What a payload to the group begins with."""
PIECE = 1 << 18
"""A state of more bytes than this travels in several notes."""


class Application:
    """The application of one node, and its memory."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.runs = True
        """Not at a router."""
        self.known: set[Id] = set()
        """What was said in the group."""
        self._fresh: deque[tuple[int, frozenset[Id]]] = deque()
        """What came to be known with inputs that are not durable, by position."""

    # What it does

    def has_work(self) -> bool:
        """Whether there is something to do."""
        core = self._node.core
        if core.inbox or core.taken or core.again or not core.steady or core.untold:
            return True
        return bool((self._node.system.left and self.runs) or core.record.events)

    def act(self) -> None:
        """Look at the inbox, and perhaps say something."""
        node, system, random = self._node, self._node.system, self._node.random
        scenario = system.scenario
        if scenario.recording:
            self._record()
        lazy, silent = system.now < node.lazy_until, system.now < node.silent_until
        if not lazy:
            for _ in range(4 * scenario.burst + 4):
                if not self._take(silent):
                    break
        # What it was not handed in this life, an application cannot acknowledge.
        able = not silent and not node.core.again
        if able and node.core.taken and (system.calm or random.random() < 0.5):
            for identity in list(node.core.taken):
                if system.calm or random.random() < 0.7:
                    self._acknowledge(identity)
        if self.runs:
            for _ in range(random.randint(0, scenario.burst)):
                if not system.left or not self._send():
                    break

    def _record(self) -> None:
        node, random = self._node, self._node.random
        if random.random() < 0.2:
            node.wall += random.choice((1, 1000, -(10**9), 3600 * 10**9))
            node.happen(Time(node.wall))
        if node.core.record.events and node.written == node.durable:
            events = list(node.core.record.events)
            node.system.record(node.name, events)
            node.happen(Recorded(events[-1].index + 1))

    def _take(self, silent: bool) -> bool:
        """Take what is next; whether there was something."""
        node, core, judge = self._node, self._node.core, self._node.system.judge
        if core.untold:
            node.happen(Told(core.untold[0].number))
            return True
        if not core.again and len(core.taken) >= node.system.scenario.unacknowledged:
            return False
        wanted, changing = None, core.changing
        free = not core.again and not changing.ready and changing.donor is None
        if free and core.machine.selective and node.random.random() < 0.1:
            wanted = node.random.choice(changing.roll.members)
        match core.offer(node.ahead.fresh, wanted):
            case None:
                return False
            case Change() as change:
                self._come_to(change)
            case Message() as message if core.again:
                core.again.popleft()
                judge.hand_again(node.place, message.id)
            case Message() as message:
                self._hand_over(message, silent)
        return True

    def _hand_over(self, message: Message, silent: bool) -> None:
        node, identity = self._node, message.id
        again = identity in node.core.repeats
        node.happen(Take(*identity))
        node.system.judge.take(node.place, identity, again, node.written)
        self._hear(message)
        if not silent and node.random.random() < 0.8:
            self._acknowledge(identity)

    def _acknowledge(self, identity: Id) -> None:
        node = self._node
        node.happen(Acknowledge(*identity))
        node.system.judge.acknowledge(node.place, identity, node.written)

    def _come_to(self, change: Change) -> None:
        node = self._node
        padding = 2 * PIECE if node.random.random() < 0.1 else 0
        stateful = change.owed and node.system.scenario.stateful
        state = msgspec.msgpack.encode((sorted(self.known), bytes(padding))) if stateful else None
        node.happen(Pass(change.number, state, told=node.random.random() < 0.5))
        node.system.judge.pass_on(node.place, change, node.core.view, node.written)

    def _send(self) -> bool:
        """Say something, if there is room; whether it was said."""
        node, core, random, system = self._node, self._node.core, self._node.random, self._node.system
        changing = core.changing
        if not node.is_member or node.leaving or not changing.membership.going:
            return False
        if core.machine.to_all or random.random() < 0.6:
            echo = core.machine.to_all or random.random() < 0.5
            to, kind = changing.targets(["all"], echo) or changing.targets(["all"]), GROUP
        else:
            members = system.destinations(core)
            to, kind = tuple(sorted(random.sample(members, random.randint(1, len(members))))), b"s"
        if not node.room.has_room(to):
            return False
        large = system.scenario.large and random.random() < system.scenario.large
        payload = kind + bytes(random.randrange(15_000, 60_000) if large else random.randrange(30))
        try:
            node.happen(Send(to, payload))
        except CallerError:
            # Its limits are smaller than they were.
            if len(payload) <= core.sending.payload_bytes:
                raise
            return False
        system.left -= 1
        system.judge.send(node.place, core.sent, to, node.written)
        if kind == GROUP and node.place not in to:
            self._learn(frozenset(((node.place, core.sent),)))
        return True

    # What it knows

    def _hear(self, message: Message) -> None:
        if message.number == 0:
            said = msgspec.msgpack.decode(message.payload)[0]
            self._learn(frozenset((sender, number) for sender, number in said) - self.known)
        elif message.payload[:1] == GROUP:
            if message.id in self.known:
                words = (
                    f"{self._node.name} has message {message.id} in its state, and gets it for the first time"
                )
                self._node.system.judge.find("states", words)
            self._learn(frozenset((message.id,)))

    def _learn(self, news: frozenset[Id]) -> None:
        self.known |= news
        self._fresh.append((self._node.written, news))

    def commit(self, position: int) -> None:
        """All inputs up to this position are durable."""
        while self._fresh and self._fresh[0][0] <= position:
            self._fresh.popleft()

    def crash(self, position: int) -> None:
        """Nothing after this position has happened."""
        self.commit(position)
        for _, news in self._fresh:
            self.known -= news
        self._fresh.clear()
