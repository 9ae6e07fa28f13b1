"""Two ends of a link and every network between them, explored exhaustively.

The network is the worst one: a frame that was ever transmitted may arrive at any later time, any number of times, or
never. So loss, repetition and reordering are no steps of their own. An end may tick at any time, whatever the clock
says, and crash and restart at any time, from its state as it is (durable before anything left) or from an older one.

What an end did is memoised: its states and the frames are numbered, and a global state is four integers.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import Any, NamedTuple

from antecede.errors import BadFrame
from antecede.link import Frame, Link


class End(NamedTuple):
    """One end and its application, all of it durable."""

    link: Link
    sent: tuple[Any, ...] = ()
    got: tuple[Any, ...] = ()
    crashes: int = 0
    failed: bool = False
    """A `BadFrame` was raised here."""
    saved: Any = None
    """An older state to restart from: (link snapshot, sent, got)."""


class Wrong(AssertionError):
    """A state that must not be, and the steps that lead to it."""


def clone(link: Link) -> Link:
    twin = copy(link)
    for name, value in link.__dict__.items():
        if isinstance(value, dict | list):
            setattr(twin, name, copy(value))
    return twin


def later(link: Link) -> int:
    """A time at which everything is due."""
    return max([0, *(due for due, _ in link._due), link._ack_due or 0, link._greeting_due or 0]) + 1


class Model:
    """Every run of two ends, the first with `payloads[0]` to send, the second with `payloads[1]`."""

    def __init__(
        self,
        payloads: tuple[int, int] = (2, 1),
        crashes: tuple[int, int] = (0, 0),
        stale: bool = False,
        kind: type[Link] = Link,
        **options: Any,
    ) -> None:
        self.payloads, self.crashes, self.stale = payloads, crashes, stale
        self.ordered = bool(options.get("ordered"))
        self.ends: list[End] = []
        self.numbers: dict[Any, int] = {}
        self.frames: list[Frame] = []
        self.frame_numbers: dict[Frame, int] = {}
        self.steps: dict[tuple[int, int, Any], tuple[int, int]] = {}
        self.completed: set[tuple[int, int]] = set()
        start = End(kind(**options))
        if stale:
            start = start._replace(saved=(start.link.snapshot(), (), ()))
        self.start = self.number(start)

    def number(self, end: End) -> int:
        snapshot = end.link.snapshot()
        key = (
            *(
                repr(snapshot[name])
                for name in ("epoch", "peer", "met", "last", "resumed", "acked", "received")
            ),
            repr((snapshot["early"], snapshot["unacknowledged"], snapshot["kept"], end.link._flown)),
            tuple(sorted(end.link._flights)),
            end.link._ack_due is not None,
            *end[1:5],
            repr(end.saved),
        )
        found = self.numbers.setdefault(key, len(self.ends))
        if found == len(self.ends):
            self.ends.append(end)
        return found

    def step(self, side: int, number: int, action: Any) -> tuple[int, int]:
        """The state of an end after an action, and the frames that it transmits, as bits."""
        key = (side, number, action)
        found = self.steps.get(key)
        if found is None:
            end, frames = self._step(side, self.ends[number], action)
            bits = 0
            for frame in frames:
                known = self.frame_numbers.setdefault(frame, len(self.frames))
                if known == len(self.frames):
                    self.frames.append(frame)
                bits |= 1 << known
            found = self.steps[key] = self.number(end), bits
        return found

    def _step(self, side: int, end: End, action: Any) -> tuple[End, list[Frame]]:
        link = clone(end.link)
        end = end._replace(link=link)
        if action == "send":
            payload = (side, len(end.sent) + 1, end.crashes)
            return end._replace(sent=(*end.sent, payload)), link.send(payload, 0)
        if action == "tick":
            return end, link.tick(later(link))
        if action == "crash":
            link = type(link).restore(link.snapshot())
            link.restart()
            return end._replace(link=link, crashes=end.crashes + 1), []
        if action == "lose":
            snapshot, sent, got = end.saved
            link = type(link).restore({**snapshot, "epoch": end.link.epoch})
            link.restart()
            return End(link, sent, got, end.crashes + 1, end.failed, end.saved), []
        if action == "save":
            return end._replace(saved=(link.snapshot(), end.sent, end.got)), []
        before = link.snapshot()
        try:
            payloads, frames = link.receive(self.frames[action], 0)
        except BadFrame:
            assert link.snapshot() == before, "a refused frame changed the state"
            return end._replace(failed=True), []
        return end._replace(got=(*end.got, *payloads)), frames

    def actions(self, side: int, end: End, network: int) -> list[Any]:
        actions: list[Any] = [number for number in range(network.bit_length()) if network >> number & 1]
        if len(end.sent) < self.payloads[side]:
            actions.append("send")
        if end.link.deadline() is not None:
            actions.append("tick")
        if end.crashes < self.crashes[side]:
            actions.append("lose" if self.stale else "crash")
            if self.stale and end.saved[1:] == ((), ()) and (end.sent or end.got):
                actions.append("save")
        return actions

    def explore(self) -> int:
        """Walk all states; how many there are. Raises `Wrong` with a shortest way to the first that must not be."""
        start = (self.start, self.start, 0, 0)
        came: dict[tuple[int, int, int, int], Any] = {start: None}
        todo = deque([start])
        while todo:
            state = todo.popleft()
            try:
                self.check(state)
            except AssertionError as error:
                raise Wrong(f"{error}\n" + "\n".join(self.path(came, state))) from error
            ends, networks = state[:2], state[2:]
            for side in (0, 1):
                for action in self.actions(side, self.ends[ends[side]], networks[1 - side]):
                    after, bits = self.step(side, ends[side], action)
                    if side == 0:
                        following = (after, ends[1], networks[0] | bits, networks[1])
                    else:
                        following = (ends[0], after, networks[0], networks[1] | bits)
                    if following not in came:
                        came[following] = state, side, action
                        todo.append(following)
        return len(came)

    def path(self, came: Any, state: Any) -> list[str]:
        steps = []
        while came[state] is not None:
            state, side, action = came[state]
            what = self.frames[action] if isinstance(action, int) else action
            steps.append(f"  end {side}: {what}")
        return steps[::-1]

    # What must hold

    def check(self, state: tuple[int, int, int, int]) -> None:
        ends = self.ends[state[0]], self.ends[state[1]]
        if not self.stale:
            assert not ends[0].failed, "an honest end is refused"
            assert not ends[1].failed, "an honest end is refused"
            for sender, receiver in (ends, ends[::-1]):
                self.check_got(sender.sent, receiver.got)
        if state[:2] not in self.completed:
            self.completed.add((state[0], state[1]))
            self.check_end(*state[:2])

    def check_got(self, sent: tuple[Any, ...], got: tuple[Any, ...]) -> None:
        assert len(set(got)) == len(got), f"handed over twice: {got}"
        assert set(got) <= set(sent), f"handed over {got}, sent {sent}"
        if self.ordered:
            assert got == sent[: len(got)], f"handed over {got}, sent {sent}"

    def check_end(self, first: int, second: int) -> None:
        """From here, if everything arrives: all that was sent is handed over, or an end has found that it cannot be."""
        pair, flying = [first, second], [0, 0]
        for _ in range(12):
            for side in (0, 1):
                for action in self.bits(flying[1 - side]):
                    pair[side], bits = self.step(side, pair[side], action)
                    flying[side] |= bits
                flying[1 - side] = 0
                pair[side], bits = self.step(side, pair[side], "tick")
                flying[side] |= bits
        ends = self.ends[pair[0]], self.ends[pair[1]]
        if self.stale and (ends[0].failed or ends[1].failed):
            return
        for sender, receiver in (ends, ends[::-1]):
            self.check_got(sender.sent, receiver.got)
            assert set(sender.sent) == set(receiver.got), f"lost: sent {sender.sent}, got {receiver.got}"
            assert sender.link.unacknowledged == 0

    @staticmethod
    def bits(mask: int) -> list[int]:
        return [number for number in range(mask.bit_length()) if mask >> number & 1]
