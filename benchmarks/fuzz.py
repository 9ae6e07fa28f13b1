"""Bytes from a stranger: python -m benchmarks.fuzz [--seconds 600] [--inputs 10000000] [--seed 1]

Whatever reads what came over a network is given bytes that are almost right: real ones, of every protocol, with bits
changed, parts cut out, repeated, exchanged and made up; and some that are not right at all.

Targets
  packet     `wire.decode`. What it takes, `encode` gives back.
  bundle     `decode_bundle`
  frame      `decode_frame`. What it takes, `encode_frame` gives back.
  session    a connection from its first byte, in pieces of any size: hello or join, frames, beats and byes
  feed       what a reader asks of a node's feed, and what it is answered
  note       what members tell each other about changes of the view. Only whether it is one: what it says is believed
  process    a whole process (`Core`) of every protocol, whose peer sends it frames with such bundles; in its first
             view, and in a later one

Each may raise `PeerError`, which ends a connection, and nothing else. No input may take longer than `PATIENCE_S` (a
timer ends a hang) or more memory than `MEMORY` (a limit of the process, so that an attempt fails). An input that breaks
a rule is printed as hex with its target and the command that runs it again.
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
from typing import Any

from msgspec import Struct

from antecede.errors import BadParameter, PeerError
from antecede.link import Frame, Link
from antecede.model import Packet, View
from antecede.net.core import Core
from antecede.net.roll import (
    Ahead,
    Ask,
    Go,
    Install,
    Installed,
    Joiner,
    Later,
    Note,
    Plan,
    Report,
    Roll,
    Settle,
    State,
    Stop,
    Stopped,
    decode_note,
    encode_note,
)
from antecede.net.session import Beat, Bye, Hello, Join, Session, Welcome, pack
from antecede.protocols import PROTOCOLS, create
from antecede.wire import decode, encode
from antecede.wire.bundles import decode_bundle, encode_bundle
from antecede.wire.feed import Answer, answer, ask, question, tell
from antecede.wire.frames import decode_frame, encode_frame

__all__ = ["TARGETS", "Broken", "Corpus", "fuzz", "main", "mutated"]

PATIENCE_S = 2.0
MEMORY = 1 << 30
"""Bytes of address space, beyond what the process has when it begins."""
STATM = Path("/proc/self/statm")
"""How large this process is, where there is such a file: without it memory is not limited."""
N = 4
NAMES = View.numbered(N).names
EPOCHS = (7, 9)
LARGE = (0x7F, 0x80, 0xFF, 0xC4, 0xC6, 0xCF, 0xDC, 0xDD, 0xDF)
"""Bytes that announce much, or end nothing."""


class Broken(Exception):
    """An input that broke a rule."""


# Bytes that are right


class Corpus(Struct, frozen=True):
    """For each target, what a sound peer sends."""

    packets: list[bytes]
    bundles: list[bytes]
    sent: dict[str, list[bytes]]
    """Protocol -> bundles of process 0 to process 1."""
    frames: list[bytes]
    sessions: list[bytes]
    feeds: list[bytes]
    notes: list[bytes]


def packets_of(protocol: str, random: Random, messages: int = 30) -> list[Packet[Any]]:
    """Packets of a run in which they arrive in any order that the protocol takes."""
    machines = [create(protocol, View.numbered(N), me) for me in range(N)]
    network: list[Packet[Any]] = []
    seen: list[Packet[Any]] = []

    def follow(effects: Sequence[Any]) -> None:
        new = [effect for effect in effects if isinstance(effect, Packet)]
        network.extend(new)
        seen.extend(new)

    for k in range(messages):
        size = N if protocol == "broadcast" else random.choice([1, 2, N])
        _, effects = machines[k % N].send(tuple(sorted(random.sample(range(N), size))), bytes(k % 7))
        follow(effects)
        for _ in range(random.randrange(4)):
            if network:
                packet = network.pop(0 if machines[0].needs_fifo else random.randrange(len(network)))
                follow(machines[packet.dest].receive(packet))
        for machine in machines:
            for message in machine.eligible()[:1]:
                follow(machine.deliver(message))
    return seen


def corpus(protocols: Sequence[str], random: Random) -> Corpus:
    packets = {protocol: packets_of(protocol, random) for protocol in protocols}
    every = [packet for sent in packets.values() for packet in sent]
    bundles = bundled(every, 5)
    sent = {protocol: bundled(mine, 2) for protocol, mine in packets.items()}
    link = Link(epoch=EPOCHS[0], peer=EPOCHS[1])
    frames = [frame for payload in bundles[:50] for frame in link.send(payload, now=0)]
    frames += [link.hail(), Frame(7, 9, 3, 2, 6, b"early"), Frame(8, 9, 3, 2, 0, None, True, True)]
    hello = pack(Hello.of(NAMES[0], NAMES[1], "permit", NAMES, link.hail()))
    rest = [pack(frame, EPOCHS) for frame in frames] + [pack(Beat(True)), pack(Bye("it stops"))]
    sessions = [hello + b"".join(random.sample(rest, 3)) for _ in range(50)]
    join = Join("new", NAMES[1], "permit", {"k": 5}, "127.0.0.1:7000", ("all",))
    sessions += [pack(join), hello + pack(Welcome(Roll.first(NAMES, {"all": NAMES})))]
    known = [encode_frame(frame, EPOCHS) for frame in frames]
    feeds = [ask(3, 9), ask(), tell(Answer("ann", "nodes", 0, 12)), tell(Answer(error="no"))]
    return Corpus([encode(one) for one in every], bundles, sent, known, sessions, feeds, notes())


def notes() -> list[bytes]:
    """What members tell each other when the view changes."""
    roll = Roll.first(NAMES, {"all": NAMES})
    plan = Plan((Joiner("new", "127.0.0.1:7000", ("all",), NAMES[0]),), (NAMES[2],), (NAMES[3],))
    later = roll.follow(2, plan, {0: 3, 1: 4})
    counts = {0: 3, 1: 4, 2: 0, 3: 1}
    every: list[Note] = [Ask(plan), Stop(2, roll, plan), Stopped(2, (NAMES[3],)), Settle(2)]
    every += [Report(2, counts, counts, 5), Install(later), Installed(2), Go(2), Ahead(later), Later(3)]
    return [encode_note(note) for note in (*every, State(b"piece", True), State(None, True))]


def bundled(packets: Sequence[Packet[Any]], size: int) -> list[bytes]:
    """The packets from process 0 to process 1, in bundles of so many."""
    mine = [packet for packet in packets if (packet.source, packet.dest) == (0, 1)]
    return [encode_bundle(mine[k : k + size]) for k in range(0, len(mine), size)]


def mutated(random: Random, known: Sequence[bytes]) -> bytes:
    """Bytes that are almost right; now and then, not at all."""
    data = bytearray(random.choice(known))
    if random.random() < 0.02:
        return random.randbytes(random.randrange(80))
    for _ in range(random.choice((0, 1, 1, 1, 2, 3, 8))):
        at = random.randrange(len(data) + 1)
        match random.randrange(8):
            case 0 if data:
                data[at - 1] ^= 1 << random.randrange(8)
            case 1 if data:
                data[at - 1] = random.choice(LARGE)
            case 2 if data:
                data[at - 1] = random.randrange(256)
            case 3:
                del data[at : at + random.randrange(1, 9)]
            case 4:
                data[at:at] = random.randbytes(random.randrange(1, 9))
            case 5:
                data[at:at] = data[at : at + random.randrange(1, 33)] * random.randrange(1, 9)
            case 6:
                other = random.choice(known)
                data[at:] = other[random.randrange(len(other) + 1) :]
            case _:
                del data[at:]
    return bytes(data[: 1 << 16])


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
    """A process of each protocol in turn, each new after a while."""

    LIFE = 200

    def __init__(self, sent: dict[str, list[bytes]]) -> None:
        self._sent, self._protocols, self._k = sent, list(sent), 0

    @property
    def known(self) -> list[bytes]:
        """What a sound peer sends to the process of this moment."""
        return self._sent[self._protocols[self._k // self.LIFE % len(self._protocols)]]

    def _roll(self) -> Roll | None:
        """None for the first view; or one that two have left, so that fewer seats are there than in what arrives."""
        first = Roll.first(NAMES, {})
        return first.follow(2, Plan(leave=NAMES[2:]), {}) if self._k // self.LIFE % 3 == 2 else None

    def __call__(self, data: bytes) -> None:
        if self._k % self.LIFE == 0:
            protocol = self._protocols[self._k // self.LIFE % len(self._protocols)]
            self._core = Core.new(protocol, View.numbered(N), 1, epoch=EPOCHS[1], roll=self._roll())
            self._number = 0
            self._core.arrive(0, Frame(EPOCHS[0], EPOCHS[1], 0, 0, 0, None, True, True), now=0)
        self._k += 1
        self._number += 1
        self._core.arrive(0, Frame(EPOCHS[0], EPOCHS[1], self._number, 0, 0, data), now=0)
        if self._k % 10 == 0:
            Core.restore(self._core.snapshot())
        if (error := self._core.refused.pop(0, None)) is not None:
            raise error


Target = Callable[[bytes], None]


def targets(known: Corpus) -> dict[str, tuple[Target, Callable[[], list[bytes]]]]:
    """Target -> what is tried, and what a sound peer sends to it."""
    processes = Processes(known.sent)
    return {
        "packet": (try_packet, lambda: known.packets),
        "bundle": (try_bundle, lambda: known.bundles),
        "frame": (try_frame, lambda: known.frames),
        "session": (try_session, lambda: known.sessions),
        "feed": (try_feed, lambda: known.feeds),
        "note": (try_note, lambda: known.notes),
        "process": (processes, lambda: processes.known),
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
    every = targets(corpus(PROTOCOLS_TRIED, random))
    tried = {name: every[name] for name in names}
    given, refused, broken = Counter[str](), Counter[str](), list[str]()
    before, start, slowest = _peak(), time.monotonic(), 0.0
    with _limits():
        for name in _turns(list(tried), inputs, start + seconds):
            target, known = tried[name]
            data = mutated(random, known())
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
        targets(Corpus([], [], {protocol: []}, [], [], [], []))[name][0](bytes.fromhex(data))


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
