"""One process as one pure state machine: what the shell round it drives, and what its journal replays.

Parts
  machine    the protocol's, which makes every decision about order
  links      an end for each peer, which see to it that each payload arrives, once
  out        what gathers for each peer, until a `Turn` makes one payload of it (`outbox`, `antecede.wire.bundles`)
  inbox      messages that the machine has offered, in the order of the offers: the application may take them
  taken      messages that the application took and has not acknowledged, in the order in which it took them
  again      those of them that it took before a restart, and is to be handed first
  repeats    messages that it may have taken before a restart: that it took them was not durable yet
  record     the events of this process that are in no trace yet, if it records
  changing   how its view changes (`views`)

Processes are named by their positions on the roll of the system (`views.members`), which never change; the machine of a
view has a numbering of its own (`views.numbering`), in the first view the same.

One file: an input touches several of these parts at once, all of it or nothing. What could be told apart stands beside
it: what arrives (`arrivals`), what may be sent (`sizes`), what comes back (`restarts`, `snapshots`), `views`.

Inputs are values (`inputs`), given to `apply`; what leaves are frames for peers' links. What is in the inbox follows
from the inputs alone, its order too: a process replayed from its journal offers the same messages in the same order.
Time is passed in, and changes no state that a restart needs. So `tick`, `resume`, and the arrival of a bare frame that
does not greet (`arrive`) are no inputs of the journal: what they teach can be had again.

What decides how packets become payloads, and so the numbers of the links, is state: `sending`, the limits under which
this process sends, are in the snapshot, and change by the input `Restart` (`restarts`). `limits` are the widest that
were ever in force here: what was sent under them still arrives, and is still accepted.

Errors
  refusal    a `CallerError` of `send`, `take` or `propose`, a `BadFrame` of `arrive`: nothing has changed
  Refused    a peer sent what no sound process sends. It is in `refused` from then on, in the snapshot too: what it says
             is not heard, and nothing is acknowledged to it. Only the peer's removal from the view ends it.
  the rest   is a bug, here or in a part. The process is left in no defined state: `failure` says why, every later call
             raises, so that nothing that was not done is ever acknowledged. A restart from the journal comes back to
             the state before the input: it was never written.

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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeAlias, assert_never

from msgspec.structs import replace

from antecede import wire
from antecede.errors import BadFrame, BadParameter, CallerError, NotEligible, PeerError, Refused
from antecede.link import Frame, Link
from antecede.model import CausalContext, Effect, Id, Message, Packet, View
from antecede.process import restarts, snapshots
from antecede.process.arrivals import receive_payload
from antecede.process.events import Record
from antecede.process.inputs import (
    Acknowledge,
    Adopt,
    Arrive,
    Close,
    Input,
    Merge,
    Pass,
    Propose,
    Recorded,
    Restart,
    Send,
    Take,
    Time,
    Told,
    Turn,
    Waive,
    Withdraw,
)
from antecede.process.outbox import Outgoing
from antecede.process.sizes import check_after, check_message, check_packets, free_bytes
from antecede.process.views.change import Changing, parameters_among
from antecede.process.views.members import Change, Roll
from antecede.process.views.numbering import Numbering
from antecede.process.views.routes import topology_of
from antecede.protocols import Machine, create

__all__ = ["Core", "Out"]

MILLISECOND = 1_000_000

TIMES = {
    # TCP loses nothing while a connection lives: to send again is for what a peer could not take.
    "timeout_ns": 1000 * MILLISECOND,
    "least_timeout_ns": 500 * MILLISECOND,
    "most_timeout_ns": 10_000 * MILLISECOND,
    # Long enough for most acknowledgements to ride on an answer.
    "ack_delay_ns": 10 * MILLISECOND,
}

Out: TypeAlias = tuple[int, Frame]
"""A frame, and the peer that it is for."""


class Core:
    """The process. `epoch` tells its incarnations apart: each must be greater than those before it."""

    # What each message needs. CPython finds a slot at once, and other attributes only while there are at most 30.
    __slots__ = (
        "__dict__", "__weakref__", "_room", "arrived", "changing", "closed", "contexts", "failure", "gathered",
        "held", "inbox", "latest", "machine", "me", "numbering", "out", "record", "repeats", "roll_number", "sending",
        "steady", "taken", "taken_bytes", "touched", "unsent", "unsent_bytes", "view", "weight",
    )  # fmt: skip

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
        self.sending = self.limits = limits
        """What `send` takes; and what may arrive, or be on its way since it was sent."""
        self.rules = restarts.RULES
        self.epoch, self.window = epoch, window
        """The incarnation of all links, and the window of new ones."""
        self.parameters = dict(parameters)
        self.links = dict(links)
        self.name_all(roll.names)
        self.me = roll.place(machine.view.name(machine.me))
        self.steady = True
        """The view is not changing, and the application has come to it."""
        self.adopt(machine, roll)
        self.changing = Changing(self, roll)
        self.inbox: dict[Id, Message] = {}
        """As the machine has them, under the names that they have outside (`Numbering.outward`)."""
        for message in machine.eligible():
            self.inbox[self.numbering.identify(message)] = message
        self.taken: dict[Id, Message] = {}
        self.taken_bytes = 0
        """Of their payloads."""
        self.contexts: dict[Id, CausalContext] = {}
        """Of messages in `taken`, where the protocol has contexts."""
        self.latest: tuple[Id, CausalContext] = ((0, 0), CausalContext())
        """Of the message that was taken, and kept, last. What a change of the view delivers has none: that is over."""
        self.again: deque[Message] = deque()
        self.repeats: dict[Id, None] = {}
        """In the order in which they were taken, if they were."""
        self.closed = False
        """All that was handed over is known: `Close` was the last input."""
        self.unsent: dict[int, int] = {}
        """Messages of ours of which no packet has left the machine yet: number, as the machine counts, -> bytes."""
        self.unsent_bytes = 0
        self.held = [0] * len(self.view)
        """How many messages of each sender have arrived and were not taken yet."""
        self.record = Record()
        self.arrived: list[Id] = []
        """The messages that arrived with the last input."""
        self.refused: dict[int, Refused] = {}
        self.failure: BaseException | None = None
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
        limits = limits or wire.Limits()
        limits.check()
        name = view.name(view.id(me))
        chosen = parameters_among(protocol, parameters or {}, roll.names[: roll.founders])
        if roll.topology is None:
            machine = create(protocol, View(roll.shown), name, **chosen)
            if (topology := topology_of(machine)) is not None:
                roll = replace(roll, topology=topology, founding=topology)
        else:
            machine = create(protocol, View(roll.names), name, **{**chosen, "topology": roll.topology})
        peers = [place for place in roll.members if roll.names[place] != name]
        core = cls(machine, {}, limits, roll, epoch, chosen, window)
        for peer in peers:
            core.link(peer)
        if core.changing.routes.has_state(core.me, roll):
            core.changing.await_state(roll.donors.get(core.me))
        return core

    def name_all(self, names: tuple[str, ...]) -> None:
        """Know all that are or were members by these names."""
        self.view, self.outside = View(names), Numbering(Roll.first(names, {}))
        """`outside` numbers messages as the application knows them, whatever the view."""

    def adopt(self, machine: Machine, roll: Roll) -> None:
        """Go on with this machine, which is for this view."""
        self.machine, self.numbering, self.roll_number = machine, Numbering(roll), roll.number
        self._room = free_bytes(machine, self.sending)
        """Payloads up to this size are allowed, and fit into a packet with any stamp."""

    def send_under(self, limits: wire.Limits, rules: int) -> None:
        """From now on, send what these limits allow, by these rules. What was allowed before is still accepted."""
        self.sending, self.limits, self.rules = limits, self.limits.widen(limits), rules
        self._room = free_bytes(self.machine, limits)

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
        self.refused.pop(peer, None)
        return self.links.pop(peer), self.out.pop(peer)

    # What a driver asks

    @property
    def sent(self) -> int:
        """How many messages this process has sent, ever."""
        roll = self.changing.roll
        if self.me not in roll.members:
            return roll.sent[self.me]
        return self.machine.sent + self.numbering.base(self.me)

    @property
    def untold(self) -> list[Change]:
        """Changes that the application came to, and that it is to be told of: again after a crash, until `Told`."""
        return self.changing.untold

    def hail(self, peer: int) -> Frame:
        """What to say first over a new connection. Raises `Refused` if this peer is not heard any more."""
        self.check()
        if peer in self.refused:
            raise self.refused[peer]
        return self.links[peer].hail()

    def next_message(self, sender: int | None = None) -> Message | None:
        """The message of the inbox to take next: what may have been taken before a restart comes first."""
        inbox, numbering = self.inbox, self.numbering
        for identity in chain(self.repeats, inbox) if self.repeats else inbox:
            if (sender is None or sender == identity[0]) and identity in inbox:
                return inbox[identity] if numbering.same else numbering.outward(inbox[identity])
        return None

    def offer(self, fresh: Collection[Id], sender: int | None = None) -> Message | Change | None:
        """What the application is to have next, of this sender if one is given: what it took before a restart comes
        first. What is `fresh`, so that its arrival is not durable, is not offered yet."""
        if self.again:
            return self.again[0] if sender in (None, self.again[0].sender) else None
        offered = self.next_message(sender) if self.steady else self.changing.offer(sender)
        return None if fresh and isinstance(offered, Message) and offered.id in fresh else offered

    def is_drained(self, peers: Iterable[int]) -> bool:
        """Whether nothing waits to leave, and these peers have acknowledged all that did."""
        return not (self.unsent or self.gathered or any(self.links[peer].unacknowledged for peer in peers))

    # Inputs

    def apply(self, given: Input, now: int) -> list[Out]:
        """Let something happen: all of it, or nothing if a refusal is raised. Any other error ends the process."""
        self.check()
        self.arrived.clear()
        match given:
            case Merge(source, into):
                self.machine.merge(source, into)
            case Send():
                after = None if given.after is None else CausalContext.decode(given.after)
                self.send(given.to, given.payload, given.label, given.context, after)
            case Arrive():
                return self.arrive(given.source, given.frame, now)
            case Take():
                self.take((given.sender, given.number))
            case Acknowledge():
                self.acknowledge((given.sender, given.number))
            case Turn():
                return self.turn(now)
            case _:
                if isinstance(given, Restart) and given.limits is not None:
                    given.limits.check()
                with self._whole():
                    return self._apply(given, now)
        return []

    def _apply(
        self,
        given: Propose | Pass | Waive | Told | Withdraw | Restart | Close | Adopt | Time | Recorded,
        now: int,
    ) -> list[Out]:
        match given:
            case Propose(plan):
                self.changing.propose(plan)
            case Withdraw(names):
                self.changing.withdraw(names)
            case Pass():
                self.closed = False
                self.changing.pass_on(given.number, given.state, given.told)
            case Waive(number):
                self.changing.waive(number)
            case Told(number):
                self.changing.untold = [change for change in self.untold if change.number != number]
            case Restart():
                return restarts.come_back(self, given, now)
            case Close():
                self.closed = True
            case Adopt(state):
                self.changing.routes.adopt([state])
            case Time() | Recorded():
                self.record.note(given)
            case _:
                assert_never(given)
        return []

    def check(self) -> None:
        """Raise if the process has failed: it is in no state to go on from."""
        if self.failure is not None:
            raise AssertionError(f"the process has failed: {self.failure!r}") from self.failure

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What happens here happens as a whole; or the process has failed."""
        try:
            yield
        except BaseException as error:
            self.failure = error
            raise

    def send(
        self,
        to: tuple[int, ...],
        payload: bytes,
        label: str = "",
        context: str = "",
        after: CausalContext | None = None,
    ) -> Message:
        """The application sends a message, here as the machine has it (`Numbering.outward`).

        A `CallerError` changes nothing: the message has used up no number.
        """
        if self.failure is not None:
            self.check()
        numbering, size = self.numbering, len(payload)
        try:
            seats = numbering.known.get(to) or numbering.seats(to)
            if after is not None:
                after = self._in_view(after)
            if size > self._room or label != "" or context:
                check_message(self.sending, payload, label, context)
                if size > self._room:
                    check_packets(self.machine, self.sending, seats, payload, label, context, after)
            message, effects = self.machine.send(seats, payload, label, context, after)
        except CallerError:
            raise
        except BaseException as error:
            self.failure = error
            raise
        try:
            if self.record.on:
                self.record.event("send", numbering.outward(message))
            if (
                len(effects) == len(seats) == 1
                and type(one := effects[0]) is Packet
                and one.message is message
                and (waiting := self.out.get(dest := numbering.places[one.dest])) is not None
            ):
                # As below, for what has one copy and leaves at once: most messages.
                if not waiting.gathered:
                    self.gathered, self.touched[dest] = True, None
                waiting.gathered.append(one)
                waiting.pending += 1
                self.weight += size
                return message
            me = self.me
            if me in to:
                self.held[me] += 1
                self.arrived.append(numbering.identify(message))
            if to != (me,):
                self.unsent[message.number] = size
                self.unsent_bytes += size
            if effects:
                self.follow(effects)
        except BaseException as error:
            self.failure = error
            raise
        return message

    def _in_view(self, after: CausalContext) -> CausalContext:
        """The context as the machine has it. Of an older view, nothing is left to wait for."""
        check_after(after)
        if after.view > self.roll_number:
            raise BadParameter(
                "message",
                f"after is of view {after.view}, and this node is in view {self.roll_number}: wait for that view",
            )
        return after if after.view == self.roll_number else CausalContext()

    def context_of(self, message: Message) -> CausalContext:
        """The causal context of a message of the machine that was just sent or taken, if the protocol has contexts."""
        return CausalContext(self.machine.context_of(message).obligations, self.roll_number)

    def arrive(self, source: int, frame: Frame, now: int) -> list[Out]:
        """A frame arrives. Raises `BadFrame` if the two ends contradict each other: one has lost its state."""
        if self.failure is not None:
            self.check()
        self.arrived.clear()
        link = self.links.get(source)
        if link is None or (self.refused and source in self.refused and self.rules > 3):
            # It was removed, and may not know; or it is not heard any more.
            return []
        try:
            payloads, frames = link.receive(frame, now)
        except BadFrame:
            raise
        except BaseException as error:
            self.failure = error
            raise
        try:
            self.out[source].acknowledge(link.acked)
            if link.owes:
                self.owing.add(source)
            for payload in payloads:
                try:
                    receive_payload(self, source, payload)
                except PeerError as error:
                    self.refuse(source, error)
                    if self.rules > 3:
                        frames = []
                        break
            if frame.greets and self.changing.membership.wanted:
                self.changing.meet()
            if payloads and not self.steady:
                # Not for a bare frame, which is no input of the journal.
                self.changing.watch()
        except BaseException as error:
            self.failure = error
            raise
        return [(source, frame) for frame in frames]

    def refuse(self, peer: int, error: PeerError) -> None:
        """Hear this peer no more. Its link has counted what was refused: so it tells the peer nothing any more."""
        if not isinstance(error, Refused):
            self.refused[peer] = Refused(self.view.name(peer), type(error).__name__, str(error))
        self.owing.discard(peer)

    def take(self, identity: Id, keep: bool = True) -> None:
        """The application takes a message that was offered; `keep` it until it is acknowledged, with a journal."""
        if self.failure is not None:
            self.check()
        if not self.steady and self.changing.ready:
            self._take_ready(identity, keep)
            return
        inbox = self.inbox
        message = inbox.pop(identity, None)
        if message is None:
            raise self._deny_take(identity)
        try:
            effects, numbering, held = self.machine.deliver(message), self.numbering, self.held
            sender = identity[0]
            if held[sender]:
                held[sender] -= 1
            if keep or self.record.on:
                shown = message if numbering.same else numbering.outward(message)
                self._remember(identity, shown, keep)
                if keep and self.machine.explicit:
                    self.latest = identity, self.context_of(message)
                    self.contexts[identity] = self.latest[1]
            if len(effects) == 1 and type(effect := effects[0]) is Message:
                # As `follow` does it, for the next of a channel or a queue: most messages.
                seat = effect.sender
                inbox[numbering.places[seat], effect.number + numbering.bases[seat]] = effect
            elif effects:
                self.follow(effects)
        except BaseException as error:
            self.failure = error
            raise

    def _take_ready(self, identity: Id, keep: bool) -> None:
        """Take what the machine delivered because the view changes: it comes before all that is in the inbox."""
        message = self.changing.ready[0]
        if not isinstance(message, Message) or message.id != identity:
            raise self._deny_take(identity)
        with self._whole():
            self.changing.take_ready()
            # Number 0 is the state that one that joined was given: no message, and no event.
            if message.number and self.held[message.sender]:
                self.held[message.sender] -= 1
            self._remember(identity, message, keep)

    def _remember(self, identity: Id, message: Message, keep: bool) -> None:
        if self.record.on and message.number:
            self.record.event("deliver", message)
        if keep:
            self.taken[identity] = message
            self.taken_bytes += len(message.payload)
        if self.repeats:
            self.repeats.pop(identity, None)
        self.closed = False

    def acknowledge(self, identity: Id) -> None:
        """The application has processed a message that it took."""
        message = self.taken.pop(identity, None)
        if message is not None:
            self.taken_bytes -= len(message.payload)
        if self.contexts:
            self.contexts.pop(identity, None)

    def _deny_take(self, identity: Id) -> NotEligible:
        return NotEligible(self.view.name(self.me), identity, "it was not offered")

    def follow(self, effects: Sequence[Effect]) -> None:
        """Do what the machine wants: offer messages, and gather packets."""
        out, inbox, unsent = self.out, self.inbox, self.unsent
        places, bases, weight = self.numbering.places, self.numbering.bases, 0
        for effect in effects:
            if type(effect) is Message:
                seat = effect.sender
                inbox[places[seat], effect.number + bases[seat]] = effect
                continue
            assert isinstance(effect, Packet)
            dest, message = places[effect.dest], effect.message
            if message is not None and unsent and message.sender == self.machine.me:
                self.unsent_bytes -= unsent.pop(message.number, 0)
            waiting = out.get(dest)
            if waiting is None:
                self.changing.removal.give_up(message, dest)
                continue
            self.gathered, self.touched[dest] = True, None
            if message is None:
                waiting.control(effect)
            else:
                waiting.gathered.append(effect)
                waiting.pending += 1
                weight += len(message.payload)
        self.weight += weight

    def drain(self, silently: bool = False) -> Iterator[Message]:
        """All that the machine offers, delivered one after the other; `silently`, packets that follow are dropped."""
        while self.inbox:
            message = self.inbox.pop(next(iter(self.inbox)))
            yield self.numbering.outward(message)
            effects = self.machine.deliver(message)
            self.follow([one for one in effects if isinstance(one, Message)] if silently else effects)

    def turn(self, now: int) -> list[Out]:
        """Make a payload for each peer of what has gathered for it."""
        if self.failure is not None:
            self.check()
        out: list[Out] = []
        try:
            gathered, self.gathered, self.weight = self.gathered, False, 0
            for peer in self.touched:
                link, waiting = self.links[peer], self.out[peer]
                most = self.sending.packet_bytes
                frames = waiting.leave_over(link, most, self.rules, now) if waiting else link.acknowledge()
                self.heard[peer] = 0
                if not self.refused or peer not in self.refused:
                    out += [(peer, frame) for frame in frames]
            self.touched.clear()
            if gathered:
                # If nothing had gathered, this turn is no input of the journal.
                out += self.changing.turn(now)
        except BaseException as error:
            self.failure = error
            raise
        return out

    # No inputs

    def tick(self, peer: int, now: int) -> list[Out]:
        """What time makes necessary on one link."""
        self.check()
        link = self.links.get(peer)
        if link is None or peer in self.refused:
            return []
        try:
            # Asked of every peer, many times a second: as `_whole` does it, without its cost.
            due = link.deadline()
            return [] if due is None or due > now else [(peer, frame) for frame in link.tick(now)]
        except BaseException as error:
            self.failure = error
            raise

    def resume(self, peer: int, now: int) -> list[Out]:
        """There is a new connection with this peer, and what it has received is known."""
        self.check()
        link = self.links.get(peer)
        if link is None or peer in self.refused:
            return []
        with self._whole():
            return [(peer, frame) for frame in link.resume(now)]

    # Snapshots

    def snapshot(self) -> dict[str, Any]:
        """The whole process as plain data."""
        self.check()
        return snapshots.take(self)

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any], limits: wire.Limits | None = None) -> Core:
        """The process whose snapshot this was. `limits` are for those of a time when a snapshot did not have them."""
        return snapshots.restore(cls, snapshot, limits or wire.Limits())
