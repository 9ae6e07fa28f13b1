"""How fast the simulator is: python -m benchmarks.sim [--quick] [--long] [--out benchmarks/results/sim.md]

Peer: the same workload with `fifo` written in SimPy, in the same run, in turns with ours, best of several. Twice:
    store      a process for each message under way, that waits and puts it into the receiver's Store: how SimPy's own
               example of messages with latency is written (Event Latency, in its documentation)
    callbacks  a timeout for each message and a callback on it, no process and no Store: the least that SimPy can do
Limit: the same by hand, with a heap, lists and dicts in one function of plain Python that knows it is `fifo` and sums
up the delays: an event loop in Python that leaves all decisions to others can only be slower. Also the machines of
`fifo` alone, without a network: what is left for the loop is the difference.

Beside the times, how many bytecodes Python runs for a delivery: these are the same on a busy machine. What runs in C
(the heap, the making of tuples and Structs) is not in them.

The workload: n processes, each sends to any other at exponential times, ten a second; delays are exponential, 50 ms.

With `--long`, also 10 million messages by `antecede simulate`, without and with a trace, and the most memory that took.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from heapq import heappop, heappush
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any, cast

import simpy
from msgspec import Struct

from antecede.model import Message, Packet, View
from antecede.protocols import create
from antecede.sim.run import RunSpec

GAP, DELAY = 0.1, 0.05
"""Seconds between two sends of a process, and under way, in the mean."""

COUNTED = 8
"""Cases of which the bytecodes are counted: from the first to `permit`."""


class Case(Struct, frozen=True):
    """Something that takes `messages` through a run, and how many it delivers."""

    name: str
    processes: int
    messages: int
    run: Callable[[int, int], int]


# Ours


def ours(protocol: str) -> Callable[[int, int], int]:
    def run(n: int, messages: int) -> int:
        return RunSpec(protocol=protocol, processes=n, messages=messages, seed=1).run().delivered

    return run


# The peer


class Receiver:
    """What is the same in both: sequence numbers, and what came before its turn."""

    def __init__(self, env: simpy.Environment, n: int) -> None:
        self.env = env
        self.sequences = [0] * n
        self.expected = [1] * n
        self.held: list[dict[int, float]] = [{} for _ in range(n)]
        self.delivered = 0
        self.delay = 0.0

    def arrive(self, packet: tuple[int, int, float]) -> None:
        sender, sequence, sent = packet
        held = self.held[sender]
        held[sequence] = sent
        while self.expected[sender] in held:
            self.delay += self.env.now - held.pop(self.expected[sender])
            self.expected[sender] += 1
            self.delivered += 1


class Load:
    """The senders: `send` says how a packet gets to its destination."""

    def __init__(self, n: int, messages: int) -> None:
        self.env = simpy.Environment()
        self.rng = random.Random(1)
        self.left = messages
        self.nodes = [Receiver(self.env, n) for _ in range(n)]
        for me in range(n):
            self.env.process(self.sender(me))

    def sender(self, me: int) -> Generator[simpy.Event, Any, None]:
        rng, env, node, n = self.rng, self.env, self.nodes[me], len(self.nodes)
        yield env.timeout(rng.random() * GAP)
        while self.left:
            self.left -= 1
            dest = int(rng.random() * (n - 1))
            dest += dest >= me
            node.sequences[dest] += 1
            self.send(dest, (me, node.sequences[dest], env.now))
            yield env.timeout(rng.expovariate(1 / GAP))

    def send(self, dest: int, packet: tuple[int, int, float]) -> None:
        raise NotImplementedError

    def finish(self) -> int:
        self.env.run()
        return sum(node.delivered for node in self.nodes)


class Stores(Load):
    def __init__(self, n: int, messages: int) -> None:
        super().__init__(n, messages)
        self.stores = [simpy.Store(self.env) for _ in range(n)]
        for me in range(n):
            self.env.process(self.receiver(me))

    def receiver(self, me: int) -> Generator[simpy.Event, Any, None]:
        node, store = self.nodes[me], self.stores[me]
        while True:
            packet = yield store.get()
            node.arrive(packet)

    def send(self, dest: int, packet: tuple[int, int, float]) -> None:
        self.env.process(self.under_way(dest, packet))

    def under_way(self, dest: int, packet: tuple[int, int, float]) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(self.rng.expovariate(1 / DELAY))
        self.stores[dest].put(packet)


class Callbacks(Load):
    def __init__(self, n: int, messages: int) -> None:
        super().__init__(n, messages)
        self.calls = [self.call(node) for node in self.nodes]

    @staticmethod
    def call(node: Receiver) -> Callable[[simpy.Event], None]:
        return lambda event: node.arrive(cast(Any, event.value))

    def send(self, dest: int, packet: tuple[int, int, float]) -> None:
        timeout = self.env.timeout(self.rng.expovariate(1 / DELAY), packet)
        timeout.callbacks.append(self.calls[dest])


# The limit


def by_hand(n: int, messages: int) -> int:
    """`fifo` and nothing else. Things are (time, sequence, destination or -1, sender, number, when sent)."""
    rng = random.Random(1)
    chance, spread = rng.random, rng.expovariate
    heap: list[tuple[float, int, int, int, int, float]] = []
    sequences, expected = [[0] * n for _ in range(n)], [[1] * n for _ in range(n)]
    held: list[dict[int, float]] = [{} for _ in range(n * n)]
    turn = delivered = 0
    delay = 0.0
    for me in range(n):
        heappush(heap, (chance() * GAP, me - n, -1, me, 0, 0.0))
    while heap:
        now, _, dest, sender, number, sent = heappop(heap)
        turn += 1
        if dest >= 0:
            mine = expected[dest]
            if mine[sender] == number:
                delay += now - sent
                mine[sender] += 1
                delivered += 1
            else:
                held[dest * n + sender][number] = sent
            early = held[dest * n + sender]
            while early and mine[sender] in early:
                delay += now - early.pop(mine[sender])
                mine[sender] += 1
                delivered += 1
        elif messages:
            messages -= 1
            dest = int(chance() * (n - 1))
            dest += dest >= sender
            sequences[sender][dest] += 1
            heappush(heap, (now + spread(1 / DELAY), turn, dest, sender, sequences[sender][dest], now))
            turn += 1
            heappush(heap, (now + spread(1 / GAP), turn, -1, sender, 0, 0.0))
    return delivered


def machines_alone(n: int, messages: int) -> int:
    """The machines of `fifo`: each packet arrives and is delivered as it is sent."""
    view = View.numbered(n)
    machines = [create("fifo", view, process) for process in range(n)]
    chance = random.Random(1).random
    singles = [(process,) for process in range(n)]
    delivered = 0
    for _ in range(messages):
        me, dest = int(chance() * n), int(chance() * (n - 1))
        dest += dest >= me
        _, effects = machines[me].send(singles[dest])
        for message in machines[dest].receive(cast(Packet[Any], effects[0])):
            machines[dest].deliver(cast(Message, message))
            delivered += 1
    return delivered


# Measuring


def cases(quick: bool) -> list[Case]:
    base = 2_000 if quick else 100_000
    return [
        Case("SimPy, store", 64, base, lambda n, m: Stores(n, m).finish()),
        Case("SimPy, callbacks", 64, base, lambda n, m: Callbacks(n, m).finish()),
        Case("by hand", 64, base, by_hand),
        Case("machines of `fifo` alone", 64, base, machines_alone),
        Case("`unordered`", 64, base, ours("unordered")),
        Case("`fifo`", 64, base, ours("fifo")),
        Case("`fifo`", 8, base, ours("fifo")),
        Case("`permit`", 64, base, ours("permit")),
        Case("`matrix`", 64, base // 4, ours("matrix")),
        Case("`history`", 8, base // 4, ours("history")),
        Case("`history`", 64, base // 50, ours("history")),
    ]


def measure(quick: bool) -> list[tuple[Case, float]]:
    """Each with its seconds a delivery: the best of several rounds, in which the cases take turns."""
    found = cases(quick)
    best = [float("inf")] * len(found)
    for case in found:
        case.run(case.processes, 10)  # Tables that are made once are not what is measured.
    for _ in range(1 if quick else 3):
        for i, case in enumerate(found):
            gc.collect()
            gc.disable()
            began = time.process_time()
            delivered = case.run(case.processes, case.messages)
            spent = time.process_time() - began
            gc.enable()
            assert delivered == case.messages, f"{case.name}: {delivered} of {case.messages} delivered"
            best[i] = min(best[i], spent / delivered)
            print(f"{case.name} n={case.processes}: {1e6 * spent / delivered:.2f} µs", file=sys.stderr)
    return list(zip(found, best, strict=True))


def bytecodes(case: Case, messages: int) -> float:
    """How many a delivery takes: the difference of two runs, so that neither set-up nor first times count."""

    def run(messages: int) -> int:
        counted = 0

        def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
            nonlocal counted
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            counted += event == "opcode"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            case.run(case.processes, messages)
        finally:
            sys.settrace(before)
        return counted

    return (run(3 * messages) - run(2 * messages)) / messages


def speed_table(found: list[tuple[Case, float]], counts: Sequence[float] = ()) -> list[str]:
    store, callbacks, hand = (seconds for _, seconds in found[:3])
    lines = [
        "| what | n | messages | deliveries a second | µs a delivery | bytecodes | × SimPy, store "
        "| × SimPy, callbacks | × by hand |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for (case, seconds), counted in zip_longest(found, counts):
        lines.append(
            f"| {case.name} | {case.processes} | {case.messages:,} | {1 / seconds:,.0f} | {1e6 * seconds:.2f} "
            f"| {'' if counted is None else f'{counted:,.0f}'} "
            f"| {store / seconds:.2f} | {callbacks / seconds:.2f} | {hand / seconds:.2f} |"
        )
    return lines


def read_table(found: list[tuple[Case, float]], counts: Sequence[float]) -> list[str]:
    """What the table says of the aim, five times SimPy, and of the limit."""
    place = next(i for i, (case, _) in enumerate(found) if (case.name, case.processes) == ("`fifo`", 64))
    store, fifo = 1e6 * found[0][1], 1e6 * found[place][1]
    machines, whole = counts[3], counts[place]
    allowed = whole * store / 5 / fifo
    return [
        f"Five times SimPy with a store would be {store / 5:.1f} µs a delivery; `fifo` takes {fifo:.1f}, which is "
        f"{store / fifo:.1f} times.",
        f"At its {1e3 * fifo / whole:.1f} ns a bytecode, five times would leave {allowed:.0f} bytecodes for a delivery "
        f"of {whole:.0f}. The machines alone, with a loop that only",
        f"draws who sends to whom, take {machines:.0f} (they check every packet, as they do on a real network), and "
        f"`fifo` by hand {counts[2]:.0f}.",
    ]


# Ten million messages


class Long(Struct, frozen=True):
    command: str
    delivered: int
    seconds: float
    peak_mb: float
    trace_mb: float | None


def long_run(protocol: str, n: int, messages: int, trace: bool) -> Long:
    """`antecede simulate` in a process of its own, so that its peak is its own."""
    arguments = ["simulate", "--protocol", protocol, "--processes", str(n), "--messages", str(messages)]
    shown = "antecede " + " ".join(arguments) + (" --out DIR" if trace else "")
    with tempfile.TemporaryDirectory() as folder:
        out, result = Path(folder, "trace"), Path(folder, "result.json")
        extra = ["--out", str(out)] if trace else []
        code = "import sys; from antecede.cli import main; sys.exit(main())"
        words = [sys.executable, "-c", code, *arguments, *extra, "--json"]
        actions = [(os.POSIX_SPAWN_OPEN, 1, str(result), os.O_WRONLY | os.O_CREAT, 0o600)]
        child = os.posix_spawn(sys.executable, words, os.environ, file_actions=actions)
        _, status, usage = os.wait4(child, 0)
        if status:
            raise SystemExit(f"{shown}: exit code {os.waitstatus_to_exitcode(status)}")
        summary = json.loads(result.read_text())
        size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) if trace else None
    # Kilobytes, but bytes on macOS.
    peak = usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    return Long(shown, summary["delivered"], usage.ru_utime + usage.ru_stime, peak, size and size / 1e6)


def long_table(runs: list[Long]) -> list[str]:
    lines = [
        "| command | deliveries | CPU seconds | deliveries a second | peak memory, MB | trace, MB |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for run in runs:
        trace = "" if run.trace_mb is None else f"{run.trace_mb:,.0f}"
        lines.append(
            f"| `{run.command}` | {run.delivered:,} | {run.seconds:.0f} | {run.delivered / run.seconds:,.0f} "
            f"| {run.peak_mb:,.0f} | {trace} |"
        )
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny: to see that it works")
    parser.add_argument("--long", action="store_true", help="ten million messages too")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    flags = " --quick" * options.quick + " --long" * options.long
    found = measure(options.quick)
    # Of the quick ones only: counting takes some thirty times as long as running.
    counts = [bytecodes(case, case.messages // 20) for case, _ in found[:COUNTED]]
    lines = [
        "# The speed of the simulator",
        "",
        f"`python -m benchmarks.sim{flags}`, Python {sys.version.split()[0]}, SimPy {simpy.__version__}, one core.",
        "Columns with × say how many times as many deliveries a second a row has as that system.",
        "",
        *speed_table(found, counts),
        "",
        *read_table(found, counts),
    ]
    if options.long:
        messages = 5_000 if options.quick else 10_000_000
        plan = [("fifo", False), ("fifo", True)]
        lines += ["", *long_table([long_run(p, 64, messages, trace) for p, trace in plan])]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
