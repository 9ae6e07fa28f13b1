"""One process as one pure state machine: what the shell round it drives, and what its journal replays.

Parts
  machine    the protocol's, which makes every decision about order
  links      an end for each peer, which see to it that each payload arrives, once
  out        what gathers for each peer, until a `Turn` makes one payload of it (`outgoing`, `antecede.wire.bundles`)
  inbox      messages that the machine has offered, in the order of the offers: the application may take them
  taken      messages that the application took and has not acknowledged, in the order in which it took them
  again      those of them that it took before a restart, and is to be handed first
  record     the events of this process that are in no trace yet, if it records
  changing   how its view changes, and all that is different afterwards (`changing`, `membership`)

Processes are named by their positions on the roll of the system (`roll`), which never change. While the view is the
first, the machine names them the same, and `first` is true: what is below knows no other case.

Inputs are values (`inputs`), given to `apply`; what leaves are frames for peers' links. What is in the inbox follows
from the inputs alone, its order too: a process replayed from its journal offers the same messages in the same order.
Time is passed in, and changes no state that a restart needs. So `tick`, `resume`, and the arrival of a bare frame that
does not greet (`arrive`) are no inputs of the journal: what they teach can be had again.

>>> from antecede.model import View
>>> from antecede.process.inputs import Acknowledge, Send, Take
>>> core = Core.new("matrix", View.of("a", "b"), "a", epoch=1)
>>> core.apply(Send((0,), b"note to self"), now=0)
[]
>>> [message] = core.inbox.values()
>>> _ = core.apply(Take(*message.id), now=0)
>>> copy = Core.restore(core.snapshot())
>>> copy.apply(Restart(), now=0), [message.payload for message in copy.again]
([], [b'note to self'])
>>> _ = copy.apply(Acknowledge(*message.id), now=0)
>>> copy.taken
{}
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, assert_never

from antecede import wire
from antecede.errors import BadParameter, BadSnapshot, CallerError, NotEligible, PeerError
from antecede.link import Frame, Link
from antecede.model import Effect, Id, Message, Packet, View
from antecede.process.events import Record
from antecede.process.inputs import (
    Acknowledge,
    Arrive,
    Input,
    Pass,
    Propose,
    Recorded,
    Restart,
    Send,
    Take,
    Time,
    Turn,
    Waive,
)
from antecede.process.outbox import Outgoing
from antecede.process.views.change import Changing, parameters_among
from antecede.process.views.members import MARK, Roll
from antecede.protocols import Machine, create, restore
from antecede.protocols.machine import plain, portable, typed
from antecede.wire.bundles import decode_bundle, encode_bundle, encode_whole

__all__ = ["Core", "Out"]

SNAPSHOT_VERSION = 3

MILLISECOND = 1_000_000

TIMES = {
    # TCP loses nothing while a connection lives: to send again is for what a peer could not take.
    "timeout_ns": 1000 * MILLISECOND,
    "least_timeout_ns": 500 * MILLISECOND,
    "most_timeout_ns": 10_000 * MILLISECOND,
    # Long enough for most acknowledgements to ride on an answer.
    "ack_delay_ns": 10 * MILLISECOND,
}

ACK_EVERY = 128
"""Packets of a peer, after which it hears at once that they have arrived, though nothing goes back to carry it."""

Out: TypeAlias = tuple[int, Frame]
"""A frame, and the peer that it is for."""


class Core:
    """The process. `epoch` tells its incarnations apart: each must be greater than those before it."""

    def __init__(
        self,
        machine: Machine,
        links: Mapping[int, Link],
        limits: wire.Limits,
        roll: Roll,
        epoch: int,
        parameters: Mapping[str, Any],
        window: int,
    ) -> None:
        self.machine, self.limits = machine, limits
        self.epoch, self.window = epoch, window
        """The incarnation of all links, and the window of new ones."""
        self.parameters = dict(parameters)
        self.links = dict(links)
        self.view = View(roll.names)
        """All that are or were members."""
        self.me = roll.place(machine.view.name(machine.me))
        self.first = roll.number == 1
        """It is in its first view, and that is not changing."""
        self.steady = True
        """The view is not changing, and the application has come to it."""
        self.changing = Changing(self, roll)
        eligible = map(self.changing.outward, machine.eligible())
        self.inbox: dict[Id, Message] = {message.id: message for message in eligible}
        self.taken: dict[Id, Message] = {}
        self.again: deque[Message] = deque()
        self.unsent: set[int] = set()
        """Numbers of messages of ours of which no packet has left the machine yet."""
        self.held = [0] * len(self.view)
        """How many messages of each sender have arrived and were not taken yet."""
        self.record = Record()
        self.arrived: list[Id] = []
        """The messages that arrived with the last input."""
        self.refused: dict[int, PeerError] = {}
        """Peers that sent what no sound process sends, with the reason."""
        self.out = {peer: Outgoing(merge=not machine.needs_fifo) for peer in self.links}
        self.gathered, self.weight = False, 0
        """Whether anything has gathered, and how many bytes of payload."""
        self.touched: dict[int, None] = {}
        """Peers for which something has gathered, or that are to hear at once what has arrived."""
        self.owing: set[int] = set()
        """Peers of which something has arrived that they may not know: their links have an acknowledgement to send."""
        self.heard = dict.fromkeys(self.links, 0)
        """Packets of each peer since the last acknowledgement that went alone."""

    @classmethod
    def new(
        cls,
        protocol: str,
        view: View,
        me: str | int,
        epoch: int,
        parameters: Mapping[str, Any] | None = None,
        window: int = 1024,
        limits: wire.Limits | None = None,
        roll: Roll | None = None,
    ) -> Core:
        """A process that has never run. Its links do not know each other yet, and will greet.

        A founder is in the first view, of all in `view`. One that joins is given the roll that it is on.
        """
        roll = roll or Roll.first(view.names, {})
        name = view.name(view.id(me))
        chosen = parameters_among(protocol, parameters or {}, roll.names[: roll.founders])
        machine = create(protocol, View(roll.shown), name, **chosen)
        peers = [place for place in roll.members if roll.names[place] != name]
        core = cls(machine, {}, limits or wire.Limits(), roll, epoch, chosen, window)
        for peer in peers:
            core.link(peer)
        core.changing.await_state(roll.donors.get(core.me))
        return core

    def link(self, peer: int) -> None:
        """Have a link with one more peer, which is as new as we are to it."""
        ordered = self.machine.needs_fifo
        self.links[peer] = Link(window=self.window, ordered=ordered, epoch=self.epoch, peer=0, **TIMES)
        self.out[peer] = Outgoing(merge=not ordered)
        self.heard[peer] = 0

    def unlink(self, peer: int) -> tuple[Link, Outgoing] | None:
        """Have no link with a peer any more; what was left on it."""
        if peer not in self.links:
            return None
        self.heard.pop(peer)
        self.owing.discard(peer)
        self.touched.pop(peer, None)
        return self.links.pop(peer), self.out.pop(peer)

    @property
    def sent(self) -> int:
        """How many messages this process has sent, ever."""
        return self.machine.sent if self.first else self.changing.sent

    # Inputs

    def apply(self, given: Input, now: int) -> list[Out]:
        """Let something happen. A raised error changes nothing, unless it is no `AntecedeError`."""
        self.arrived.clear()
        match given:
            case Send():
                self.send(given.to, given.payload, given.label, given.context)
                return []
            case Arrive():
                return self.arrive(given.source, given.frame, now)
            case Take():
                self._take((given.sender, given.number))
                return []
            case Acknowledge():
                self.taken.pop((given.sender, given.number), None)
                return []
            case Turn():
                return self.turn(now)
            case Propose(plan):
                self.changing.propose(plan)
                return []
            case Pass(number, state):
                self.changing.pass_on(number, state)
                return []
            case Waive(number):
                self.changing.waive(number)
                return []
            case Restart():
                return self._restart(given.recording, now)
            case Time() | Recorded():
                self.record.note(given)
                return []
        assert_never(given)

    def send(self, to: tuple[int, ...], payload: bytes, label: str = "", context: str = "") -> Message:
        """The application sends a message."""
        if label or context or len(payload) > self.limits.payload_bytes:
            self._check_size(payload, label, context)
        if not self.first:
            return self.changing.send(to, payload, label, context)
        message, effects = self.machine.send(to, payload, label, context)
        if self.record.on:
            self.record.event("send", message)
        one = effects[0] if len(effects) == len(message.to) == 1 else None
        if type(one) is Packet and one.message is message:
            # As below, for what has one copy and leaves at once: most messages.
            waiting = self.out[one.dest]
            waiting.gathered.append(one)
            waiting.pending += 1
            self.gathered, self.touched[one.dest] = True, None
            self.weight += len(payload)
            return message
        me = self.me
        if me in message.to:
            self.held[me] += 1
            self.arrived.append((me, message.number))
        if message.to != (me,):
            self.unsent.add(message.number)
        if effects:
            self._follow(effects)
        return message

    def _check_size(self, payload: bytes, label: str, context: str) -> None:
        """Refuse, before the machine counts it, what the wire would not carry."""
        size, most = len(payload), self.limits.payload_bytes
        if size > most:
            raise BadParameter("message", "payload", f"{size} bytes", f"at most {most}")
        for name, text in (("label", label), ("context", context)):
            size, most = len(text.encode(errors="replace")), self.limits.label_bytes
            if size > most or any("\ud800" <= one <= "\udfff" for one in text):
                raise BadParameter("message", name, f"{size} bytes", f"Unicode text of at most {most}")

    def arrive(self, source: int, frame: Frame, now: int) -> list[Out]:
        """A frame arrives. Raises `BadFrame` if the two ends contradict each other: one has lost its state."""
        self.arrived.clear()
        link = self.links.get(source)
        if link is None:
            # It was removed, and may not know.
            return []
        payloads, frames = link.receive(frame, now)
        self.out[source].acknowledged(link.acked)
        if link.owes:
            self.owing.add(source)
        for payload in payloads:
            try:
                self._receive(source, payload)
            except PeerError as error:
                # The link has handed it over for good. Replayed, it is refused again, so this is no broken invariant.
                self.refused[source] = error
        if payloads and not self.steady:
            # Not for a bare frame, which is no input of the journal.
            self.changing.watch()
        return [(source, frame) for frame in frames]

    def _receive(self, source: int, payload: bytes) -> None:
        """Give the machine what a payload of the link holds."""
        if not self.first or payload[:1] == MARK:
            self.changing.receive(source, payload)
            return
        me = self.me
        packets = decode_bundle(payload, source, me, self.limits)
        self.hear(source, len(packets))
        arrived, recording, mine = self.arrived, self.record.on, 0
        for packet in packets:
            message = packet.message
            if message is not None and me in message.to:
                arrived.append((message.sender, message.number))
                mine += message.sender == source
                if recording:
                    self.record.event("receive", message)
        self.held[source] += mine
        effects: list[Effect] = []
        try:
            self.machine.receive_all(packets, effects)
        finally:
            self._follow(effects)

    def hear(self, peer: int, packets: int) -> None:
        """So many packets of a peer have arrived."""
        self.heard[peer] += packets
        if self.heard[peer] >= ACK_EVERY:
            self.touched[peer] = None

    def _take(self, identity: Id) -> None:
        if not self.first:
            self.changing.take(identity)
            return
        message = self.inbox.get(identity)
        if message is None:
            raise NotEligible(self.view.name(self.me), identity, "it was not offered")
        self.take(identity, message)

    def take(self, identity: Id, message: Message, keep: bool = True) -> None:
        """The application takes a message that is in the inbox; `keep` it until it is acknowledged."""
        if not self.first:
            self.changing.take(identity, keep)
            return
        effects = self.machine.deliver(message)
        if self.record.on:
            self.record.event("deliver", message)
        inbox, held, sender = self.inbox, self.held, identity[0]
        del inbox[identity]
        if keep:
            self.taken[identity] = message
        if held[sender]:
            held[sender] -= 1
        for effect in effects:
            if type(effect) is Message:
                inbox[effect.sender, effect.number] = effect
            else:
                self._follow((effect,))

    def _follow(self, effects: Sequence[Effect]) -> None:
        if not self.first:
            self.changing.follow(effects)
            return
        out, unsent, weight = self.out, self.unsent, 0
        for effect in effects:
            if type(effect) is Message:
                self.inbox[effect.sender, effect.number] = effect
                continue
            assert isinstance(effect, Packet)
            message, waiting = effect.message, out[effect.dest]
            self.gathered, self.touched[effect.dest] = True, None
            if message is None:
                waiting.control(effect)
                continue
            # As `Outgoing` would do it: the only thing that is done for each copy of each message.
            waiting.gathered.append(effect)
            waiting.pending += 1
            weight += len(message.payload)
            if unsent and message.sender == self.machine.me:
                unsent.discard(message.number)
        if weight:
            self.weight += weight

    def turn(self, now: int) -> list[Out]:
        """Make a payload for each peer of what has gathered for it."""
        out: list[Out] = []
        gathered, self.gathered, self.weight = self.gathered, False, 0
        for peer in self.touched:
            link, waiting = self.links[peer], self.out[peer]
            frames = self._leave(link, waiting, waiting.take(), now) if waiting else link.acknowledge()
            out += [(peer, frame) for frame in frames]
            self.heard[peer] = 0
        self.touched.clear()
        if gathered and (not self.first or self.changing.membership.notes):
            # If nothing had gathered, this turn is no input of the journal.
            out += self.changing.turn(now)
        return out

    def _leave(self, link: Link, waiting: Outgoing, packets: list[Packet[Any]], now: int) -> list[Frame]:
        data = encode_bundle(packets, self.limits)
        if len(data) > self.limits.packet_bytes:
            if len(packets) > 1:
                half = len(packets) // 2
                frames = self._leave(link, waiting, packets[:half], now)
                return frames + self._leave(link, waiting, packets[half:], now)
            data = encode_whole(packets[0], self.limits)
        frames = link.send(data, now)
        waiting.leave(link.last, len([None for packet in packets if packet.message is not None]))
        return frames

    def _restart(self, recording: bool, now: int) -> list[Out]:
        self.record.on = recording
        self.again = deque(self.taken.values())
        self.epoch += 1
        for link in self.links.values():
            link.restart()
        return self.turn(now)

    # No inputs

    def tick(self, peer: int, now: int) -> list[Out]:
        """What time makes necessary on one link."""
        link = self.links.get(peer)
        due = None if link is None else link.deadline()
        if link is None or due is None or due > now:
            return []
        return [(peer, frame) for frame in link.tick(now)]

    def resume(self, peer: int, now: int) -> list[Out]:
        """There is a new connection with this peer, and what it has received is known."""
        link = self.links.get(peer)
        return [] if link is None else [(peer, frame) for frame in link.resume(now)]

    # Snapshots

    def snapshot(self) -> dict[str, Any]:
        """The whole process as plain data."""
        return {
            "antecede": SNAPSHOT_VERSION,
            "machine": self.machine.snapshot(),
            "links": [[peer, portable(link.snapshot())] for peer, link in sorted(self.links.items())],
            "inbox": [list(identity) for identity in self.inbox],
            "taken": plain(list(self.taken.values())),
            "unsent": sorted(self.unsent),
            "held": list(self.held),
            "record": self.record.snapshot(),
            "epoch": self.epoch,
            "window": self.window,
            # Where there is a topology, the view does not change, and the machine keeps it.
            "parameters": {name: one for name, one in self.parameters.items() if name != "topology"},
            "first": self.first,
            "changing": self.changing.snapshot(),
            "out": [
                [peer, encode_bundle(waiting.packets(), self.limits)]
                for peer, waiting in sorted(self.out.items())
                if waiting
            ],
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any], limits: wire.Limits | None = None) -> Core:
        """The process whose snapshot this was."""
        if snapshot.get("antecede") != SNAPSHOT_VERSION:
            raise BadSnapshot("process version", snapshot.get("antecede"), SNAPSHOT_VERSION)
        try:
            machine = restore(snapshot["machine"])
            links = {int(peer): Link.restore(link) for peer, link in snapshot["links"]}
            core = cls(
                machine,
                links,
                limits or wire.Limits(),
                typed(snapshot["changing"]["membership"]["roll"], Roll),
                typed(snapshot["epoch"], int),
                typed(snapshot["parameters"], dict[str, Any]),
                typed(snapshot["window"], int),
            )
            core.first = typed(snapshot["first"], bool)
            core.changing.load(snapshot["changing"])
            offered = core.inbox
            core.inbox = {
                (sender, number): offered.pop((sender, number)) for sender, number in snapshot["inbox"]
            }
            if offered:
                raise ValueError(f"{len(offered)} eligible messages are missing from the inbox")
            taken = typed(snapshot["taken"], list[Message])
            core.taken = {message.id: message for message in taken}
            core.unsent = set(typed(snapshot["unsent"], list[int]))
            core.held = typed(snapshot["held"], list[int])
            core.record = Record.restore(snapshot["record"])
            core._gather(snapshot["out"])
        except (LookupError, TypeError, ValueError, CallerError, PeerError) as error:
            raise BadSnapshot("process", f"{type(error).__name__}: {error}", "the state of one") from error
        return core

    def _gather(self, out: Sequence[tuple[int, bytes]]) -> None:
        """Take over what has gathered, and count what is on its way."""
        for peer, link in self.links.items():
            for number, packets in self.changing.unacknowledged(peer, link):
                messages = sum(packet.message is not None for packet in packets)
                self.out[peer].pending += messages
                self.out[peer].leave(number, messages)
        for peer, data in out:
            self._follow(decode_bundle(data, *self.changing.seats(peer), self.limits))
