"""A reliable link over a network that loses, repeats and reorders: one end, as a pure state machine.

Inputs                        Outputs
  send(payload, now)            frames to transmit to the other end, each of which may be lost
  receive(frame, now)           payloads handed over (each once), and frames
  tick(now), at deadline()      frames
  hail(), then resume(now)      a frame, then frames: over a connection that takes the place of a lost one
Time is an integer of nanoseconds that the driver passes in. Payloads are opaque.

Rules
  number   payloads are numbered 1, 2, 3, ... for ever, across restarts
  ack      every frame says what has arrived: all up to `ack`, and of the next `EARLY_BITS` those that `early` marks;
           it rides on frames that go back anyway, or goes alone in a `bare` frame, at once or `ack_delay_ns` later
  resend   a frame that is not acknowledged in time is sent again, each time after twice as long; the time follows
           the round trips that are seen (Jacobson 1988), never of a frame sent twice (Karn & Partridge 1987)
  window   no more than `window` numbers beyond the acknowledged ones are in flight; what is sent beyond waits here
  once     a number that arrived before is not handed over again; with `ordered`, numbers are handed over in sequence
  epoch    a restarted end is a new incarnation. Until the other end is seen to know it, it only greets: a bare frame
           that says what it has received and the last number that it had sent. Frames of or for an older incarnation
           are refused; the greeting makes the other end resend at once whatever is not acknowledged.

One file: each frame says something of numbers, windows, times and incarnations at once, so each rule needs the state of
the others.

What the driver owes: whatever frames or payloads leave this end must be durable before they leave (in a snapshot, or in
a journal of the inputs since one). Then a crash neither loses nor repeats anything. If an end restarts from a state
older than what it let out, its greeting contradicts what the other knows, which raises `BadFrame`: no loss is silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any

from msgspec import Struct

from antecede.errors import BadFrame, BadParameter, BadSnapshot

__all__ = ["Frame", "Link", "EARLY_BITS"]

SNAPSHOT_VERSION = 1

EARLY_BITS = 64
"""How far beyond the first gap a frame says what has arrived."""
LOST = (
    "the peer came back without its journal, or from an older copy. Start the peer with the newest; if that is lost, "
    "remove the peer, and let it join under another name"
)

MILLISECOND = 1_000_000

OPTIONS = (
    "window", "ordered", "timeout_ns", "least_timeout_ns", "most_timeout_ns", "ack_delay_ns", "epoch", "peer",
)  # fmt: skip
"""What an end is made with, as a snapshot keeps it."""


class Frame(Struct, frozen=True, gc=False):
    """What crosses the network between the two ends of a link."""

    epoch: int
    """The incarnation of the end that sent it."""
    peer: int
    """The incarnation of the end that it is meant for, as far as its sender knows; 0: it knows none."""
    number: int
    """Of the payload; on a bare frame, the last number that was sent."""
    ack: int = 0
    early: int = 0
    """Bit i: number ack + 1 + i has arrived as well."""
    payload: Any = None
    bare: bool = False
    greets: bool = False
    """A bare frame of an incarnation that does not yet know whether the other end knows it: it asks for an answer."""


class Link:
    """One end of a link.

    >>> a, b = Link(), Link()
    >>> [frame] = a.send("hello", now=0)
    >>> payloads, [ack] = b.receive(frame, now=5)
    >>> payloads, b.receive(frame, now=6)[0]        # A duplicate is not handed over again.
    (['hello'], [])
    >>> a.receive(ack, now=10), a.unacknowledged
    (([], []), 0)
    """

    def __init__(
        self,
        *,
        window: int = 256,
        ordered: bool = False,
        timeout_ns: int = 200 * MILLISECOND,
        least_timeout_ns: int = 10 * MILLISECOND,
        most_timeout_ns: int = 60_000 * MILLISECOND,
        ack_delay_ns: int = 0,
        epoch: int = 1,
        peer: int = 1,
    ) -> None:
        """`timeout_ns` is for the first frame, before any round trip is known.

        `peer` is the incarnation of the other end, 0 if it must be found out: both ends of a new link know each other.
        """
        if window < 1:
            raise BadParameter("link", f"window must be 1 or more, not {window}")
        if not 1 <= least_timeout_ns <= most_timeout_ns or timeout_ns < 1 or ack_delay_ns < 0:
            found = (least_timeout_ns, timeout_ns, most_timeout_ns, ack_delay_ns)
            raise BadParameter(
                "link", f"times must have 1 <= least <= most and an ack delay of 0 or more, not {found}"
            )
        if epoch < 1 or peer < 0:
            raise BadParameter("link", f"epoch must be 1 or more and peer 0 or more, not {epoch} and {peer}")
        self.window, self.ordered = window, ordered
        self.timeout_ns, self.ack_delay_ns = timeout_ns, ack_delay_ns
        self.least_timeout_ns, self.most_timeout_ns = least_timeout_ns, most_timeout_ns
        self.epoch, self.peer = epoch, peer
        self._most_flying = window
        self.met = peer > 0
        """Whether the other end knows our incarnation."""
        self.resent = self.refused = 0
        self.last = self.acked = self._flown = self._resumed = 0
        """What we send: all up to `acked` has arrived, all up to `_flown` was transmitted, `last` is the newest."""
        self._payloads: dict[int, Any] = {}
        """Whatever has not been acknowledged, by number, in order."""
        self.received = self._early = 0
        """What we have: all up to `received`, and number `received` + 1 + i where bit i of `_early` is set."""
        self._kept: dict[int, Any] = {}
        """Payloads that wait for an earlier number, if ordered."""
        self._forget_times()

    def _forget_times(self) -> None:
        self._round_trip: tuple[int, int] | None = None
        """Mean and deviation, scaled by 8 and 4 as usual so that integers do."""
        self._patience = 0
        """How often frames had to be sent again since the last round trip that could be measured."""
        self._flights: dict[int, tuple[int, int, int]] = {}
        """Number in flight -> when it was sent last, how often it was sent again, when it is due."""
        self._due: list[tuple[int, int]] = []
        """(due, number) as a heap; entries that no flight confirms are old."""
        self._ack_due: int | None = None
        self._greeting_due: int | None = None if self.met else 0
        self._greetings = 0

    def limit(self, window: int | None) -> None:
        """Have no more payloads in flight than the other end takes. It is asked again with each connection."""
        self._most_flying = self.window if window is None else max(1, min(self.window, window))

    # What a driver asks

    @property
    def owes(self) -> bool:
        """Whether an acknowledgement waits for something to ride on."""
        return self._ack_due is not None

    @property
    def gapped(self) -> bool:
        """Whether something of the other end came early, and something before it has not come yet."""
        return self._early != 0

    @property
    def unacknowledged(self) -> int:
        """How many payloads were sent and are not known to have arrived, in flight or waiting."""
        return len(self._payloads)

    def deadline(self) -> int | None:
        """When `tick` has something to do, if nothing happens before: perhaps a time that is past."""
        due, flights = self._due, self._flights
        while due and ((flight := flights.get(due[0][1])) is None or flight[2] != due[0][0]):
            heappop(due)
        if self._flown != self.last and self.met and self._may_fly():
            return 0
        earliest = due[0][0] if due else None
        if self._ack_due is not None and (earliest is None or self._ack_due < earliest):
            earliest = self._ack_due
        if self._greeting_due is not None and (earliest is None or self._greeting_due < earliest):
            earliest = self._greeting_due
        return earliest

    def send(self, payload: Any, now: int) -> list[Frame]:
        """Hand over a payload for the other end. Beyond the window it waits here."""
        self.last += 1
        self._payloads[self.last] = payload
        return self._fly(now)

    def receive(self, frame: Frame, now: int) -> tuple[list[Any], list[Frame]]:
        """Take a frame from the network. Raises `BadFrame`, and changes nothing, if no sound end can have sent it."""
        self._check(frame)
        if frame.epoch < self.peer or (frame.epoch > self.peer and not frame.greets):
            self.refused += 1
            return [], []
        news = frame.epoch > self.peer
        if news:
            self._check_greeting(frame)
            self._meet(frame.epoch)
        elif frame.peer == self.epoch:
            self._check_acks(frame)
        if frame.peer != self.epoch:
            # It speaks to one that we no longer are: tell it who we are now.
            self.refused += 1
            return [], [self._make_bare(greets=True)]
        if not self.met:
            self.met, self._greeting_due = True, None
        self._take_acks(frame, now)
        payloads = [] if frame.bare else self._take_payload(frame, now)
        frames = self._fly(now)
        if not frames and (frame.greets or self._ack_due == now):
            frames.append(self._make_bare())
        return payloads, frames

    def tick(self, now: int) -> list[Frame]:
        """What time makes necessary."""
        frames = self._resend(now) + self._fly(now)
        if self._greeting_due is not None and self._greeting_due <= now:
            frames.append(self._make_bare())
            self._greeting_due = now + self._wait(self._greetings)
            self._greetings += 1
        if self._ack_due is not None and self._ack_due <= now:
            frames.append(self._make_bare())
        return frames

    def acknowledge(self) -> list[Frame]:
        """The acknowledgement that is owed, if one is, before its time: nothing will go back to carry it."""
        return [] if self._ack_due is None else [self._make_bare()]

    def hail(self) -> Frame:
        """What this end has received: the first frame over a new connection, so that the other resumes from there."""
        return self._make_bare()

    def resume(self, now: int) -> list[Frame]:
        """Transmit again, at once, what was in flight over a connection that is lost: after the other end's hail."""
        self.resent += sum(number in self._payloads for number in self._flights)
        self._flights, self._due = {}, []
        self._flown = self.acked
        return self._fly(now)

    def restart(self, epoch: int = 0) -> None:
        """Become the next incarnation, or this later one: after a crash, once the snapshot is restored and the journal
        replayed. One that any copy of this end was in before would not be noticed as new.

        The new state must be durable before `tick` lets the greeting out.
        """
        self.epoch = max(self.epoch + 1, epoch)
        self.met = False
        self._resumed, self._flown = self.last, self.acked
        self._forget_times()

    def snapshot(self) -> dict[str, Any]:
        """All that a restart needs, as plain data if the payloads are. Times are no part of it."""
        return {
            "version": SNAPSHOT_VERSION,
            **{name: getattr(self, name) for name in OPTIONS},
            "met": self.met,
            "last": self.last,
            "resumed": self._resumed,
            "acked": self.acked,
            "unacknowledged": [list(item) for item in self._payloads.items()],
            "received": self.received,
            "early": self._early,
            "kept": [list(item) for item in sorted(self._kept.items())],
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> Link:
        """The end whose snapshot this was, in the same incarnation; it sends again what is not acknowledged."""
        if snapshot.get("version") != SNAPSHOT_VERSION:
            raise BadSnapshot.version("the link", snapshot.get("version"), SNAPSHOT_VERSION)
        try:
            link = cls(**{name: snapshot[name] for name in OPTIONS})
            link._load(snapshot)
        except (LookupError, TypeError, ValueError, BadParameter) as error:
            raise BadSnapshot(
                f"the snapshot does not restore a link: {type(error).__name__}: {error}"
            ) from error
        return link

    def _load(self, snapshot: Mapping[str, Any]) -> None:
        self.met = bool(snapshot["met"])
        self.last, self.acked = int(snapshot["last"]), int(snapshot["acked"])
        self._resumed, self._flown = int(snapshot["resumed"]), self.acked
        self._payloads = {int(number): payload for number, payload in snapshot["unacknowledged"]}
        self.received, self._early = int(snapshot["received"]), int(snapshot["early"])
        self._kept = {int(number): payload for number, payload in snapshot["kept"]}
        if not 0 <= self.acked <= self.last or any(
            not self.acked < number <= self.last for number in self._payloads
        ):
            raise ValueError(f"unacknowledged numbers beyond {self.acked}..{self.last}")
        self._forget_times()

    # What arrives

    def _check(self, frame: Frame) -> None:
        negative = frame.epoch < 1 or frame.peer < 0 or frame.number < (not frame.bare) or frame.ack < 0
        if negative or frame.early & 1 or not 0 <= frame.early < 1 << EARLY_BITS:
            raise BadFrame(f"no link sends these numbers: {frame!r}"[:200])
        if frame.epoch >= self.peer and frame.peer > self.epoch:
            raise BadFrame(
                f"this node is in incarnation {self.epoch}, and the peer has met it in {frame.peer}: this node came "
                "back from an older copy of its journal. Start this node with the newest"
            )

    def _check_acks(self, frame: Frame) -> None:
        highest = frame.ack + frame.early.bit_length()
        if highest > self.last:
            raise BadFrame(
                f"the peer acknowledges payload {highest}, and this node knows of {self.last} that it sent: this "
                "node came back without its journal, or from an older copy. Start this node with the newest"
            )

    def _check_greeting(self, frame: Frame) -> None:
        """An end that restarted knows all that it ever acknowledged or sent, or it has lost something for good."""
        self._check_acks(frame)
        known = self.received + self._early.bit_length()
        if frame.number < known:
            raise BadFrame(
                f"the peer knows of {frame.number} payloads that it sent, and {known} have arrived here: {LOST}"
            )
        for number in range(min(frame.ack, self.acked) + 1, self.last + 1):
            held = number <= frame.ack or frame.early >> (number - frame.ack - 1) & 1
            if not held and number not in self._payloads:
                raise BadFrame(
                    f"the peer has not received payload {number}, which it had acknowledged: {LOST}"
                )

    def _meet(self, epoch: int) -> None:
        """The other end has restarted: whatever was in flight to it is due now, as if never sent."""
        self.peer = epoch
        self._flights, self._due = {}, []
        self._round_trip, self._patience = None, 0
        self._flown = self.acked

    def _take_acks(self, frame: Frame, now: int) -> None:
        if frame.ack > self.acked:
            for number in range(self.acked + 1, frame.ack + 1):
                if self._payloads.pop(number, self) is not self:
                    self._sample(number, now)
            self.acked = frame.ack
            self._flown = max(self._flown, frame.ack)
        early = frame.early
        while early:
            low = early & -early
            number = frame.ack + low.bit_length()
            if self._payloads.pop(number, self) is not self:
                self._sample(number, now)
            early ^= low

    def _take_payload(self, frame: Frame, now: int) -> list[Any]:
        ahead = frame.number - self.received - 1
        if ahead < 0 or ahead >= self.window or self._early >> ahead & 1:
            # The acknowledgement was lost, or is on its way.
            self._ack_due = now
            return []
        self._early |= 1 << ahead
        if self._ack_due is None or self._early & 1 == 0:
            # A gap is news that saves the other end from sending the rest again.
            self._ack_due = now + (self.ack_delay_ns if self._early & 1 else 0)
        if self.ordered:
            self._kept[frame.number] = frame.payload
        while self._early & 1:
            self._early >>= 1
            self.received += 1
        if not self.ordered:
            return [frame.payload]
        ready = [number for number in self._kept if number <= self.received]
        return [self._kept.pop(number) for number in sorted(ready)]

    # What leaves

    def _may_fly(self) -> bool:
        return self._flown < self.last and self._flown < self.acked + self._most_flying

    def _fly(self, now: int) -> list[Frame]:
        """Transmit what the window has room for."""
        frames: list[Frame] = []
        if self._flown == self.last or not self.met:
            return frames
        while self._may_fly():
            self._flown += 1
            if self._flown in self._payloads:
                frames.append(self._make_frame(self._flown, now, 0))
        return frames

    def _resend(self, now: int) -> list[Frame]:
        """Transmit again what is due."""
        frames = []
        while self._due and self._due[0][0] <= now:
            due, number = heappop(self._due)
            flight = self._flights.get(number)
            if flight is not None and flight[2] == due:
                again = flight[1] + 1
                # Where round trips exceed the timeout none could ever be measured: so new frames wait longer too.
                self._patience = max(self._patience, again)
                frames.append(self._make_frame(number, now, again))
                self.resent += 1
        return frames

    def _make_frame(self, number: int, now: int, again: int) -> Frame:
        due = now + self._wait(max(again, self._patience))
        self._flights[number] = now, again, due
        heappush(self._due, (due, number))
        self._ack_due = None
        early = self._early & ((1 << EARLY_BITS) - 1)
        return Frame(self.epoch, self.peer, number, self.received, early, self._payloads[number])

    def _make_bare(self, greets: bool = False) -> Frame:
        self._ack_due = None
        greets = greets or not self.met
        early = self._early & ((1 << EARLY_BITS) - 1)
        # What was sent since the restart says nothing about what was forgotten by it.
        number = self._resumed if greets else self.last
        return Frame(self.epoch, self.peer, number, self.received, early, None, True, greets)

    # How long to wait

    def _wait(self, again: int) -> int:
        """Twice as long each time."""
        if self._round_trip is None:
            timeout = self.timeout_ns
        else:
            mean, deviation = self._round_trip
            timeout = max(self.least_timeout_ns, (mean >> 3) + deviation)
        return min(timeout << min(again, 32), self.most_timeout_ns)

    def _sample(self, number: int, now: int) -> None:
        flight = self._flights.pop(number, None)
        if flight is None or flight[1]:
            return
        trip, self._patience = now - flight[0], 0
        if self._round_trip is None:
            self._round_trip = trip << 3, trip << 1
            return
        mean, deviation = self._round_trip
        error = trip - (mean >> 3)
        self._round_trip = mean + error, deviation + abs(error) - (deviation >> 2)
