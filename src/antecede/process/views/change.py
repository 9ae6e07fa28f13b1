"""What a change of the view does to a process (`core`): the body of its `membership`.

Parts
  ready     messages that the machine delivered because the view changes, and between them the changes, in the order in
            which the application is to have them: all of one view before any of the next
  untold    changes that the application came to, and was not told of yet
  removal   what was given up because a process was removed (`removal`)

One file: it is the one body that the rules of `membership` act on, as `round.Body` lists it; what only one kind of
change needs stands in `removal`, `routes` and `pieces`.

The machine of a view lives as long as the view. When a change settles, the machine delivers everything, and the
application takes it from `ready` whenever it likes: so a change does not wait for an application, nor an application
that waits for a change for itself. The new view begins with a new machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from antecede.errors import BadFrame, BadParameter, CallerError, UnknownProcess
from antecede.link import Link
from antecede.model import Awaited, Id, Message, Packet, View, Waiting
from antecede.process.upgrade import could_run_alone
from antecede.process.views.members import Change, Lost, Plan, Roll
from antecede.process.views.membership import Membership
from antecede.process.views.notes import AnyNote, Handed, State, decode_note, encode_note, is_note
from antecede.process.views.pieces import Pieces, cut_up
from antecede.process.views.removal import Removal
from antecede.process.views.round import Counts
from antecede.process.views.routes import Routes
from antecede.protocols import PROTOCOLS, create
from antecede.protocols.machine import plain, typed
from antecede.protocols.receiver import Receiver
from antecede.wire.bundles import decode_bundle
from antecede.wire.octets import OWN

if TYPE_CHECKING:
    from antecede.process.core import Core, Out

__all__ = ["Changing", "parameters_among"]


def parameters_among(protocol: str, parameters: Mapping[str, Any], founders: Sequence[str]) -> dict[str, Any]:
    """A protocol's parameters as all views understand them: a position is one among the founders."""
    kind = PROTOCOLS.get(protocol)
    return dict(parameters) if kind is None else kind.name_members(parameters, founders)


class Changing:
    """The changes of one process's view."""

    def __init__(self, core: Core, roll: Roll) -> None:
        self._core = core
        self.membership = Membership(roll, core.me, self)
        self.routes = Routes(core)
        self.ready: deque[Message | Change] = deque()
        self.untold: list[Change] = []
        self.removal = Removal(core)
        self.donor: int | None = None
        """Whose state we wait for, having joined."""
        self.turnover = 0
        """Counts the changes of who our peers are."""
        self._pieces = Pieces()
        """Of the state that we wait for."""
        self._told: dict[int, int] = {}
        self._heard: dict[int, int] = {}
        """Notes that went to, and came from, each peer: payloads of a link that carry no packets."""
        self._over: dict[int, int] = {}
        """The last payload of each link that was sent in an earlier view: all of them have arrived."""

    @property
    def roll(self) -> Roll:
        return self.membership.roll

    @property
    def founders(self) -> tuple[str, ...]:
        """Who was in the first view: what tells this system from others."""
        return self.roll.names[: self.roll.founders]

    @property
    def orphaned(self) -> bool:
        """Whoever was to give us our state is gone, or not heard any more, and did not."""
        donor = self.donor
        return donor is not None and (donor not in self.roll.members or donor in self._core.refused)

    @property
    def owed(self) -> tuple[int, ...]:
        """Who joined, and gets its state from our application, which has not come to that point yet."""
        return tuple(place for change in self.ready if isinstance(change, Change) for place in change.owed)

    def list_owing(self) -> list[int]:
        """The changes with which our application owes a state, and to which it has not come yet, by number."""
        return [change.number for change in self.ready if isinstance(change, Change) and change.owed]

    @property
    def may_leave(self) -> bool:
        """Whether we wait for no state, and whoever joined by us has its own: nobody hears one that has left."""
        return (
            self.donor is None and not self.owed and not any(isinstance(one, State) for one in self._notes())
        )

    def _notes(self) -> Iterator[AnyNote]:
        """Notes of ours that are not known to have arrived."""
        yield from (note for _, note in self.membership.notes)
        for link in self._core.links.values():
            yield from (decode_note(one) for _, one in link.snapshot()["unacknowledged"] if is_note(one))

    def targets(self, to: Iterable[str], echo: bool = True) -> tuple[int, ...]:
        """The members that these names and groups mean; groups without ourselves, if there is no `echo`.

        Then they are without those too that begin with a state of ours that is still to be given: our application
        knows what it says, and so will the state.
        """
        roll = self.roll
        targets: set[int] = set()
        grouped: set[int] = set()
        for name in to:
            if name in roll.groups and name not in roll.names:
                # Two that join at once could take each other's names, for itself and for a group.
                grouped.update(roll.groups[name])
                continue
            place = self._core.view.id(name)
            if place not in roll.members:
                raise UnknownProcess(name, roll.shown)
            targets.add(place)
        if not echo:
            heirs = [place for change in self.ready if isinstance(change, Change) for place in change.heirs]
            grouped.difference_update((self._core.me, *self.owed, *heirs))
        return tuple(sorted(targets | grouped))

    def parameters_in(self, core: Core) -> dict[str, Any]:
        """Our parameters, as those of another process's system; but for the topology, which changes."""
        ours = {name: one for name, one in self._core.parameters.items() if name != "topology"}
        return parameters_among(core.machine.name, ours, core.changing.founders)

    def seats(self, peer: int) -> tuple[int, int]:
        """Ours, and that of a peer."""
        if self._core.me not in self.roll.members or peer not in self.roll.members:
            return 0, 0
        numbering = self._core.numbering
        return numbering.seat(self._core.me), numbering.seat(peer)

    def waiting(self) -> list[Waiting]:
        """What the machine holds, and for what."""
        core = self._core
        return [core.numbering.waiting(held) for held in core.machine.waiting()]

    def roots(self) -> list[Awaited]:
        """What held messages wait for and has not come. Other protocols than those of receivers name it with each."""
        core = self._core
        if not isinstance(core.machine, Receiver):
            return []
        return [core.numbering.awaited(root) for root in core.machine.roots()]

    def unacknowledged(self, peer: int, link: Link) -> Iterator[tuple[int, list[Packet[Any]]]]:
        """Payloads with packets of this view that a peer is not known to have, by number."""
        seats, over = self.seats(peer), self._over.get(peer, 0)
        for number, payload in link.snapshot()["unacknowledged"]:
            if number > over and not is_note(payload):
                yield number, decode_bundle(payload, *seats, OWN)

    # What happens

    def propose(self, plan: Plan) -> None:
        """Someone wants the view to change."""
        self.membership.ask(plan)
        self.watch()

    def withdraw(self, names: tuple[str, ...]) -> None:
        """Whoever wanted these to join does not any more."""
        self.membership.withdraw(names)
        self.watch()

    def offer(self, sender: int | None = None) -> Message | Change | None:
        """What the application is to have next, of this sender if one is given: its state, having joined, before all
        else, and all of one view before the change to the next."""
        if self.donor is not None:
            return None
        if not self.ready:
            return self._core.next_message(sender)
        first = self.ready[0]
        return first if isinstance(first, Change) or sender in (None, first.sender) else None

    def take_ready(self) -> None:
        """The application takes what is first. The machine has delivered it long ago: nothing follows from it."""
        self.ready.popleft()
        self._stir()

    def pass_on(self, number: int, state: bytes | None, told: bool) -> None:
        """The application has come to a change; with the state that it gives to those who joined, if it owes one."""
        change = self.ready.popleft()
        assert isinstance(change, Change)
        assert change.number == number
        if not told:
            self.untold.append(change)
        for place in change.owed:
            pieces = [State(None, True, 0)] if state is None else [State(*piece) for piece in cut_up(state)]
            self.membership.notes += [(place, piece) for piece in pieces]
        self._stir()

    def waive(self, number: int) -> None:
        """The application has no state to give with this change: who joined need not wait for it."""
        for at, change in enumerate(self.ready):
            if isinstance(change, Change) and change.number == number:
                self.ready[at] = replace(change, owed=(), heirs=())
                self.membership.notes += [(place, State(None, True, 0)) for place in change.owed]
        self._stir()

    def watch(self) -> None:
        """Something has happened: go on with the change."""
        if self.membership.settled:
            self.ready.extend(self.removal.deliver())
            self.membership.watch()
        self._stir()

    def _stir(self) -> None:
        """See that notes leave with the next turn, and that the process knows whether its view changes."""
        core, membership = self._core, self.membership
        if membership.notes:
            core.gathered = True
        core.steady = membership.going and not self.ready and self.donor is None

    def await_state(self, donor: int | None) -> None:
        """Having joined, hand over nothing before the state of this process."""
        self.donor = donor
        self._stir()

    def turn(self, now: int) -> list[Out]:
        """Let the notes out."""
        if self._core.steady and not self.membership.notes:
            return []
        self.watch()
        out: list[Out] = []
        notes, self.membership.notes = self.membership.notes, []
        for dest, note in notes:
            link = self._core.links.get(dest)
            if link is not None:
                self._told[dest] = self._told.get(dest, 0) + 1
                frames = link.send(encode_note(note), now)
                if dest not in self._core.refused:
                    out += [(dest, frame) for frame in frames]
        return out

    def hear(self, source: int, payload: bytes) -> None:
        """A note has arrived."""
        self._heard[source] = self._heard.get(source, 0) + 1
        note = decode_note(payload)
        if isinstance(note, State):
            self._receive_state(source, note)
        elif isinstance(note, Handed):
            self.routes.hear(source, note)
        else:
            self.membership.hear(source, note)
        self._stir()
        if source in self._core.refused:
            # For what it had sent before, which could be judged only now.
            raise self._core.refused[source]

    def _receive_state(self, source: int, note: State) -> None:
        if source != self.donor:
            return
        try:
            whole = b"" if note.piece is None else self._pieces.add(note.piece, note.last, note.at)
        except BadFrame:
            # Whoever was to give it is not heard any more: whoever drives this process has to see that.
            self._pieces, self.turnover = Pieces(), self.turnover + 1
            raise
        if whole is None:
            # A piece before it is still on its way.
            return
        if note.piece is not None:
            state = Message(source, 0, (self._core.me,), whole)
            self.ready.appendleft(state)
            self._core.arrived.append(state.id)
        self._pieces, self.donor = Pieces(), None

    # The body of a membership

    def cut(self, place: int) -> None:
        core, seat = self._core, self.seats(place)[1]
        core.steady = False
        rest = core.unlink(place)
        self.turnover += 1
        if self.routes.on:
            self.routes.cut(place)
            return
        if rest is None:
            return
        link, waiting = rest
        sent = [packet for _, packets in self.unacknowledged(place, link) for packet in packets]
        for packet in (*sent, *waiting.packets()):
            self.removal.give_up(packet.message, place)
        core.follow(core.machine.cut(seat))

    def settle(self, removed: tuple[int, ...]) -> None:
        self.removal.removed = () if self.routes.on else tuple(p for p in removed if p in self.roll.members)
        self.ready.extend(self.removal.deliver())

    def counts(self) -> Counts | None:
        core = self._core
        if core.inbox or any(core.out.values()) or self.routes.waits:
            return None
        return Counts(
            {peer: link.last - self._told.get(peer, 0) for peer, link in core.links.items()},
            {peer: link.received - self._heard.get(peer, 0) for peer, link in core.links.items()},
            core.sent,
        )

    def install(self, roll: Roll) -> None:
        core = self._core
        removal, unordered = self.removal, list[Id]()
        if removal.removed and removal.gives_up_last:
            unordered = removal.list_unordered()
            self.ready.extend(removal.deliver_last())
        if not self.routes.on:
            removal.give_up_held()
        self._note_heirs(roll)
        self.ready.append(self._change(roll, unordered))
        removal.lost, removal.removed = [], ()
        self.turnover += 1
        core.steady = False
        core.name_all(roll.names)
        core.held += [0] * (len(roll.names) - len(core.held))
        self._over = {peer: link.last for peer, link in core.links.items()}
        for place in roll.donors:
            core.link(place)
        if core.me not in roll.members:
            return
        if self.routes.on:
            self.membership.notes += self.routes.install(roll)
            return
        core.unsent.clear()
        core.unsent_bytes = 0
        core.adopt(create(core.machine.name, View(roll.shown), roll.names[core.me], **core.parameters), roll)

    def _note_heirs(self, roll: Roll) -> None:
        """Whoever joins by one that waits for our state will be given it in turn."""
        for at, change in enumerate(self.ready):
            if isinstance(change, Change) and change.owed:
                waiting = {*change.owed, *change.heirs}
                heirs = tuple(sorted(place for place, donor in roll.donors.items() if donor in waiting))
                self.ready[at] = replace(change, heirs=change.heirs + heirs)

    def _change(self, roll: Roll, unordered: Iterable[Id] = ()) -> Change:
        def named(places: Iterable[int]) -> tuple[str, ...]:
            return tuple(roll.names[place] for place in places)

        me, routes = self._core.me, self.routes
        owed = tuple(
            sorted(p for p, donor in roll.donors.items() if donor == me and routes.has_state(p, roll))
        )
        joined = named(sorted(roll.donors))
        return Change(
            roll.number,
            roll.shown,
            joined,
            named(roll.left),
            named(roll.removed),
            tuple(self.removal.lost),
            owed,
            unordered=tuple((roll.names[sender], number) for sender, number in unordered),
        )

    def part(self, roll: Roll) -> None:
        core = self._core
        if core.me in roll.members:
            for place in [place for place in core.links if place not in roll.members]:
                core.unlink(place)
                self.turnover += 1

    def rules(self) -> int:
        return self._core.rules

    def strangers(self) -> tuple[int, ...]:
        links, founders = self._core.links, self.roll.founders
        return tuple(place for place, link in sorted(links.items()) if place >= founders and not link.peer)

    def meet(self) -> None:
        """A peer has told us its incarnation, perhaps the first."""
        self.membership.meet()
        self._stir()

    def accepts(self, names: tuple[str, ...]) -> CallerError | None:
        core = self._core
        if not names:
            return BadParameter("view", "a view needs one member at least: the last one closes")
        if self.routes.on:
            return None
        if len(names) == 1 and not could_run_alone(core.machine.name, core.rules):
            return BadParameter("view", "one process alone could not run it when this was decided")
        try:
            create(core.machine.name, View(names), names[0], **core.parameters)
        except CallerError as error:
            return error
        return None

    # Snapshots

    def snapshot(self) -> dict[str, Any]:
        return {
            "membership": self.membership.snapshot(),
            "ready": [[int(isinstance(one, Change)), plain(one)] for one in self.ready],
            "untold": plain(self.untold),
            "notes": [[dest, encode_note(note)] for dest, note in self.membership.notes],
            "lost": plain(self.removal.lost),
            "donor": self.donor,
            "pieces": self._pieces.snapshot(),
            "removed": list(self.removal.removed),
            "told": plain(self._told),
            "heard": plain(self._heard),
            "over": plain(self._over),
            "handed": self.routes.snapshot(),
        }

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self.membership.load(snapshot["membership"])
        kinds: tuple[Any, Any] = (Message, Change)
        self.ready = deque(typed(one, kinds[kind]) for kind, one in snapshot["ready"])
        self.untold = typed(snapshot["untold"], list[Change])
        self.membership.notes = [(int(dest), decode_note(note)) for dest, note in snapshot["notes"]]
        self.removal.lost = typed(snapshot["lost"], list[Lost])
        self.donor = typed(snapshot["donor"], int | None)
        self._pieces = Pieces.restore(snapshot["pieces"])
        self.removal.removed = typed(snapshot["removed"], tuple[int, ...])
        self._told = typed(snapshot["told"], dict[int, int])
        self._heard = typed(snapshot["heard"], dict[int, int])
        self._over = typed(snapshot["over"], dict[int, int])
        self.routes.load(snapshot.get("handed", []))
        self._stir()
