"""Bytes from a stranger: python -m benchmarks.fuzz [--seconds 600] [--inputs 10000000] [--seed 1]

Whatever reads what came over a network is given bytes that are almost right: real ones, of every protocol, with bits
changed, parts cut out, repeated, exchanged and made up; and some that are not right at all.

Targets
  packet     `wire.decode`. What it takes, `encode` gives back.
  bundle     `decode_bundle`
  frame      `decode_frame`. What it takes, `encode_frame` gives back.
  session    a connection from its first byte, in pieces of any size: hello or join, frames, beats and byes
  feed       what a reader asks of a node's feed, and what it is answered
  note       what members tell each other about changes of the view: only whether it is one
  process    a whole process (`Core`) of every protocol, whose peer sends it frames with such bundles and notes, whole
             ones too that say what cannot be; in its first view and in later ones, leading and led

Each may raise `PeerError`, which ends a connection, and nothing else. No input may take longer than `PATIENCE_S` (a
timer ends a hang) or more memory than `MEMORY` (a limit of the process, so that an attempt fails). An input that breaks
a rule is printed as hex with its target, and `--again` runs it once more; what breaks a process may need all that came
before it, and comes again with the seed.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import FrameType

from msgspec import Struct

from antecede.errors import BadParameter, PeerError
from antecede.link import Frame
from antecede.model import View
from antecede.net.peers.session import Session
from antecede.process.core import Core
from antecede.process.inputs import Pass, Propose, Send
from antecede.process.views.members import Change, Plan, Roll
from antecede.process.views.notes import decode_note
from antecede.protocols import PROTOCOLS
from antecede.wire import decode, encode
from antecede.wire.bundles import decode_bundle
from antecede.wire.feed import answer, question
from antecede.wire.frames import decode_frame, encode_frame
from benchmarks.corpus import EPOCHS, NAMES, Corpus, N, corpus, mutate_bytes, notes_to, some_plan

__all__ = ["TARGETS", "Broken", "fuzz", "main"]

PATIENCE_S = 2.0
MEMORY = 1 << 30
"""Bytes of address space, beyond what the process has when it begins."""
STATM = Path("/proc/self/statm")
"""How large this process is, where there is such a file: without it memory is not limited."""


class Broken(Exception):
    """An input that broke a rule."""


# Targets


def try_packet(data: bytes) -> None:
    if encode(decode(data)) != data:
        raise Broken("another encoding of it")


def try_bundle(data: bytes) -> None:
    decode_bundle(data, 0, 1)


def try_frame(data: bytes) -> None:
    if encode_frame(decode_frame(data, EPOCHS), EPOCHS) != data:
        raise Broken("another encoding of it")


def try_session(data: bytes) -> None:
    session = Session(epoch=EPOCHS[1])
    size = 1 + sum(data[:2]) % 40
    for at in range(0, len(data), size):
        session.feed(data[at : at + size])


def try_feed(data: bytes) -> None:
    (question if b"start" in data else answer)(data)


def try_note(data: bytes) -> None:
    decode_note(data)


class Processes:
    """A process of each protocol in turn, each new after a while: in its first view or a later one, and led by its
    peer or leading it. It is told bundles, and notes about changes; in between it does something itself."""

    LIFE = 200

    def __init__(self, sent: dict[str, list[bytes]], random: Random) -> None:
        self._sent, self._protocols, self._k, self._random = sent, list(sent), 0, random

    def draw(self) -> bytes:
        """What a peer sends to the process of this moment: bytes that are almost right, or a note that may be wrong."""
        self._begin()
        if not self._noted or self._random.random() < 0.5:
            bundles = self._sent[self._core.machine.name] or [b""]
            return mutate_bytes(self._random, bundles) if self._lies else self._random.choice(bundles)
        notes = notes_to(self._random, self._core.changing.membership, self._core.sent)
        return (
            mutate_bytes(self._random, notes) if self._random.random() < 0.1 else self._random.choice(notes)
        )

    def _begin(self) -> None:
        """Have a new process, if the life of the old one is over: in the first view, or in one that two have left, so
        that fewer seats are there than in what arrives; and of the two, the first leads."""
        life, age = divmod(self._k, self.LIFE)
        if age == 0:
            kind, protocol = divmod(life, len(self._protocols))
            roll = Roll.first(NAMES, {"all": NAMES})
            if kind & 1:
                roll = roll.follow(2, Plan(leave=NAMES[2:]), {})
            self._peer, self._number = kind >> 1 & 1, 0
            # Lies are told in stamps, in notes, or in both.
            self._lies, self._noted = kind % 3 != 0, kind % 3 != 1
            name, me = self._protocols[protocol], 1 - self._peer
            self._core = Core.new(name, View.numbered(N), me, epoch=EPOCHS[1], roll=roll)
            self._core.arrive(self._peer, Frame(EPOCHS[0], EPOCHS[1], 0, 0, 0, None, True, True), now=0)

    def __call__(self, data: bytes) -> None:
        self._begin()
        self._k += 1
        if self._peer not in self._core.links:
            # It has been cut off, and can do no harm until the next life.
            self._k += -self._k % self.LIFE
            return
        self._number += 1
        self._core.arrive(self._peer, Frame(EPOCHS[0], EPOCHS[1], self._number, 0, 0, data), now=0)
        self._act()
        if self._k % 10 == 0 and not (self._lies and self._noted):
            # Stamps that contradict each other can make a state that no sound run has, once messages are delivered.
            Core.restore(self._core.snapshot())
        if (error := self._core.refused.pop(self._peer, None)) is not None:
            raise error

    def _act(self) -> None:
        """What its application, its operator and its clock do."""
        core, changing = self._core, self._core.changing
        change = changing.ready[0] if changing.ready else None
        if isinstance(change, Change):
            core.apply(Pass(change.number, b"state"), now=0)
        elif self._random.random() < 0.05 and core.me in changing.roll.members:
            core.apply(Propose(some_plan(self._random, changing.roll)), now=0)
        elif self._random.random() < 0.1 and changing.membership.going and core.me in changing.roll.members:
            core.apply(Send(changing.roll.members, b"sent"), now=0)
        core.turn(now=0)


Target = Callable[[bytes], None]


def targets(known: Corpus, random: Random) -> dict[str, tuple[Target, Callable[[], bytes]]]:
    """Target -> what is tried, and what it is given."""
    processes = Processes(known.sent, random)

    def like(some: list[bytes]) -> Callable[[], bytes]:
        return lambda: mutate_bytes(random, some)

    return {
        "packet": (try_packet, like(known.packets)),
        "bundle": (try_bundle, like(known.bundles)),
        "frame": (try_frame, like(known.frames)),
        "session": (try_session, like(known.sessions)),
        "feed": (try_feed, like(known.feeds)),
        "note": (try_note, like(known.notes)),
        "process": (processes, processes.draw),
    }


TARGETS = ("packet", "bundle", "frame", "session", "feed", "note", "process")
PROTOCOLS_TRIED = [name for name in PROTOCOLS if name != "separator"]
"""A separator needs a topology; its packets are those of `history`."""


# The loop


class Found(Struct, frozen=True):
    """What a run of the fuzzer came to."""

    inputs: dict[str, int]
    refused: dict[str, int]
    broken: list[str]
    seconds: float
    slowest_s: float
    grown: int
    """Bytes by which the largest size of the process has grown."""


def fuzz(seed: str, inputs: int, seconds: float, names: Sequence[str] = TARGETS) -> Found:
    """Give the targets inputs in turn, until there were so many or it took so long."""
    random = Random(seed)
    every = targets(corpus(PROTOCOLS_TRIED, random), random)
    tried = {name: every[name] for name in names}
    given, refused, broken = Counter[str](), Counter[str](), list[str]()
    before, start, slowest = _peak(), time.monotonic(), 0.0
    with _limits():
        for name in _turns(list(tried), inputs, start + seconds):
            target, draw = tried[name]
            data = draw()
            at = time.perf_counter()
            given[name] += 1
            signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
            try:
                target(data)
            except PeerError:
                refused[name] += 1
            except (Exception, MemoryError) as error:
                broken.append(f"{name} {data.hex()}: {type(error).__name__}: {error}"[:2000])
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            slowest = max(slowest, time.perf_counter() - at)
            if len(broken) >= 10:
                break
    spent = time.monotonic() - start
    return Found(dict(given), dict(refused), broken, spent, slowest, _peak() - before)


def _turns(names: list[str], inputs: int, end: float) -> Iterator[str]:
    for k in range(inputs):
        if k % 1000 == 0 and time.monotonic() > end:
            return
        yield names[k % len(names)]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _limits:  # noqa: N801 (used as a word)
    """No hang, and no more memory than so much, while in it."""

    def __enter__(self) -> None:
        def late(_number: int, _frame: FrameType | None) -> None:
            raise Broken(f"it takes longer than {PATIENCE_S:g} s")

        self._handler = signal.signal(signal.SIGALRM, late)
        self._memory = resource.getrlimit(resource.RLIMIT_AS)
        if STATM.exists():
            size = int(STATM.read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, self._memory[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self._memory)
        signal.signal(signal.SIGALRM, self._handler)


def again(text: str) -> None:
    """Run one input again: TARGET HEX."""
    name, _, data = text.partition(" ")
    for protocol in PROTOCOLS_TRIED if name == "process" else PROTOCOLS_TRIED[:1]:
        targets(Corpus([], [], {protocol: []}, [], [], [], []), Random(1))[name][0](bytes.fromhex(data))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description="Bytes from a stranger.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--again", help="one input: 'TARGET HEX'")
    options = parser.parse_args(arguments)
    if options.again is not None:
        try:
            again(options.again)
        except (PeerError, BadParameter) as error:
            print(f"refused: {error}")
        return 0
    found = fuzz(options.seed, options.inputs, options.seconds, options.target or TARGETS)
    for name, count in found.inputs.items():
        print(f"{name:8} {count:12,} inputs, {found.refused.get(name, 0):12,} refused")
    print(
        f"{sum(found.inputs.values()):,} inputs in {found.seconds:.0f} s, the slowest {found.slowest_s * 1000:.0f} ms, "
        f"{found.grown / 1e6:.0f} MB more memory, seed {options.seed}"
    )
    for line in found.broken:
        print(line)
    print(f"{len(found.broken)} broke a rule" if found.broken else "none broke a rule")
    return int(bool(found.broken))


if __name__ == "__main__":
    sys.exit(main())
