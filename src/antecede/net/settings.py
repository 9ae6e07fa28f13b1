"""What can be chosen about a node, besides its name, peers and protocol; and how long to wait before dialling again."""

from __future__ import annotations

from random import Random

from msgspec import Struct
from msgspec.structs import asdict

from antecede.errors import BadParameter, WrongType
from antecede.wire import Limits
from antecede.wire.octets import check_count

__all__ = ["MOST_QUEUE", "MOST_QUEUE_BYTES", "Backoff", "Settings"]

MOST_QUEUE = 1 << 16
MOST_QUEUE_BYTES = 64 << 20
"""What every node takes of a peer that obeys, whatever its own queue is: messages, and bytes."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits and times. Counts are of messages or packets, sizes in bytes, times in seconds.

    Settings that contradict each other are refused here, and not when the first large message comes.

    >>> Settings(queue=0)
    Traceback (most recent call last):
    antecede.errors.BadParameter: settings: queue must be 1 or more, not 0
    >>> Settings(limits=Limits(payload_bytes=8 << 20))
    Traceback (most recent call last):
    antecede.errors.BadParameter: limits: packet_bytes must be 8399104 or more for payload_bytes, not 4194304
    """

    queue: int = 1024
    """Messages that one peer has not acknowledged, and messages that the protocol does not let out yet: beyond, `send`
    waits. At most 65,536."""
    queue_bytes: int = MOST_QUEUE_BYTES
    """The same in bytes, for each peer, and for what the protocol does not let out. What one turn of the event loop
    sends may go beyond. If it is more than 64 MiB, peers need as much."""
    held: int = 1024
    """Messages of one sender that have arrived and were not taken: beyond, that sender is asked to pause, and its
    `send` to us waits until half of them are taken. Nothing is dropped. A peer that goes on regardless is cut off at
    four times as many, or four times its own `queue` if that is more, until then."""
    held_bytes: int = 64 << 20
    """The same in bytes."""
    unacknowledged: int = 1024
    """Messages that the application took and did not acknowledge: beyond, it gets no other."""
    unacknowledged_bytes: int = 64 << 20
    """The same in bytes."""
    backlog: int = 4096
    """Inputs that are not durable yet: beyond, nothing more is read from peers."""
    backlog_bytes: int = 64 << 20
    """The same in bytes of what peers sent."""
    strangers: int = 64
    """Connections at a time, from addresses where no peer is, that have not said hello yet: beyond, the oldest of them
    makes way."""
    strangers_each: int = 8
    """The same from one address."""
    snapshot_inputs: int = 20_000
    """Inputs in the journal, after which a snapshot takes their place."""
    beat_s: float = 1.0
    """How often a peer hears from us, at least."""
    dead_s: float = 5.0
    """A peer that completes no record for so long is taken for dead: its connection is closed, and made anew."""
    hello_s: float = 5.0
    """How long a new connection may take to say hello."""
    first_retry_s: float = 0.05
    last_retry_s: float = 5.0
    drain_s: float = 5.0
    """How long `close` waits for peers to acknowledge what was sent."""
    trace_s: float = 5.0
    """How often what a node records becomes visible in its trace, at least."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name.endswith("_s"):
                if type(value) not in (int, float):
                    raise WrongType(f"settings.{name}", "a number of seconds", value)
            elif name != "limits":
                check_count("settings", name, value)
        if self.queue > MOST_QUEUE:
            raise BadParameter("settings", f"queue must be {MOST_QUEUE} or less, not {self.queue}")
        if not isinstance(self.limits, Limits):
            raise WrongType("settings.limits", "Limits", self.limits)
        if not 0 < self.first_retry_s <= self.last_retry_s or not 0 < self.beat_s < self.dead_s:
            found: tuple[float, ...] = (self.first_retry_s, self.last_retry_s, self.beat_s, self.dead_s)
            raise BadParameter(
                "settings",
                f"times must have 0 < first_retry_s <= last_retry_s and 0 < beat_s < dead_s, not {found}",
            )
        if not (self.hello_s > 0 and self.trace_s > 0 and self.drain_s >= 0):
            found = (self.hello_s, self.trace_s, self.drain_s)
            raise BadParameter(
                "settings", f"hello_s and trace_s must be more than 0, and drain_s 0 or more, not {found}"
            )
        self.limits.check()
        if (least := self.limits.payload_bytes // 4) > self.held_bytes:
            # Or one message of the largest size would cut off whoever sends it.
            raise BadParameter(
                "settings",
                f"held_bytes must be {least} or more, a fourth of limits.payload_bytes, not {self.held_bytes}",
            )


class Backoff:
    """How long to wait before the next attempt: twice as long each time, and any part of it.

    Without chance, all who lost the same peer would come back at the same moments.

    >>> backoff = Backoff(Settings(first_retry_s=1, last_retry_s=4), Random(1))
    >>> [round(backoff.next(), 1) for _ in range(5)]
    [0.6, 1.8, 3.5, 2.5, 3.0]
    """

    def __init__(self, settings: Settings, random: Random) -> None:
        self._settings, self._random = settings, random
        self._failures = 0

    def next(self) -> float:
        first, last = self._settings.first_retry_s, self._settings.last_retry_s
        most = min(first * (1 << min(self._failures, 32)), last)
        self._failures += 1
        return most * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        self._failures = 0
