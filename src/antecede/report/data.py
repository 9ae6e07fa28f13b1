"""What a page is made of: runs with their verdicts, findings, prices, and the events that it carries.

A page is bounded, a trace is not. So a run carries all of its events only if they are few; else those of some windows,
and a density that says where the others are. `whole` tells which. Names are text from foreign logs: nothing here or
later takes them for anything else.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = [
    "Alias", "Channels", "Density", "EVENT_KINDS", "Event", "Failed", "Finding", "Histogram", "KINDS", "Message",
    "Price", "ProcessPrice", "Report", "Run", "Window",
]  # fmt: skip

Kind = Literal["violation", "fifo_break", "duplicate", "unsent", "unaddressed", "undelivered"]
KINDS: tuple[Kind, ...] = ("violation", "fifo_break", "duplicate", "unsent", "unaddressed", "undelivered")
"""What verification finds; the definitions are the oracle's."""

EventKind = Literal["send", "receive", "deliver"]
EVENT_KINDS: tuple[EventKind, ...] = ("send", "receive", "deliver")


class Message(Struct, frozen=True, order=True):
    """A message's identity."""

    sender: str
    number: int


class Alias(Struct, frozen=True, kw_only=True):
    """What the user calls a message: the span that sent it."""

    sender: str
    number: int
    id: str
    """TRACE:SPAN."""
    name: str | None = None
    """The operation."""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that verification found at one process."""

    kind: Kind
    process: str
    sender: str
    number: int
    by_sender: str | None = None
    by_number: int | None = None
    index: int | None = None
    """Of the delivery at `process`; an undelivered message has none."""
    chain: tuple[Message, ...] | None = None
    """From the message to the one that overtook it."""
    spans: tuple[str, ...] | None = None
    """The ids of all spans of that chain, if spans told it."""
    span_names: tuple[str | None, ...] | None = None
    """Their operations, and whose they are."""

    @property
    def message(self) -> Message:
        return Message(self.sender, self.number)

    @property
    def by(self) -> Message | None:
        if self.by_sender is None or self.by_number is None:
            return None
        return Message(self.by_sender, self.by_number)

    @property
    def path(self) -> tuple[Message, ...]:
        """The messages that tell it: the chain if it is known, else the two that met."""
        if self.chain:
            return self.chain
        return (self.message,) if self.by is None else (self.message, self.by)


class Event(Struct, frozen=True, kw_only=True):
    """A row of a trace. docs/trace.md tells what the columns mean."""

    process: str
    index: int
    kind: EventKind
    sender: str
    number: int
    to: tuple[str, ...] | None = None
    control: bool = False
    time_ns: int
    clock: int | None = None
    stamp_entries: int | None = None
    stamp_bytes: int | None = None
    label: str | None = None


class Price(Struct, frozen=True, kw_only=True):
    """What a run cost, with the names that `measure` gives. Whatever was not measured is absent."""

    sends: int | None = None
    copies: int | None = None
    control_packets: int | None = None
    control_per_message: float | None = None
    stamp_entries_mean: float | None = None
    stamp_entries_p99: float | None = None
    stamp_entries_max: float | None = None
    stamp_bytes_mean: float | None = None
    stamp_bytes_p50: float | None = None
    stamp_bytes_p99: float | None = None
    stamp_bytes_max: float | None = None
    delay_ns_mean: float | None = None
    delay_ns_p50: float | None = None
    delay_ns_p99: float | None = None
    delay_ns_max: float | None = None
    wait_ns_mean: float | None = None
    wait_ns_p50: float | None = None
    wait_ns_p99: float | None = None
    wait_ns_max: float | None = None
    wait_share: float | None = None
    concurrency: float | None = None
    longest_chain: int | None = None
    duration_ns: int | None = None


class ProcessPrice(Struct, frozen=True, kw_only=True):
    """What one process of a run did."""

    process: str
    sends: int | None = None
    deliveries: int | None = None
    control_packets: int | None = None
    delay_ns_p50: float | None = None
    delay_ns_p99: float | None = None
    wait_ns_mean: float | None = None
    wait_ns_p99: float | None = None


class Channels(Struct, frozen=True):
    """Messages between bands of processes. A band is one process while there are few."""

    bands: int
    messages: tuple[int, ...]
    """Row by row: `messages[sender * bands + receiver]`."""
    delay_ns_mean: tuple[float | None, ...]


class Density(Struct, frozen=True):
    """How many events there were, by band of processes and bucket of time."""

    start_ns: int
    stop_ns: int
    buckets: int
    bands: int
    counts: tuple[int, ...]
    """Band by band: `counts[band * buckets + bucket]`."""


class Histogram(Struct, frozen=True, kw_only=True):
    """A distribution over all runs of one protocol on one network."""

    protocol: str
    network: str | None
    quantity: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    count: tuple[int, ...]


class Window(Struct, frozen=True):
    """A stretch of a run that the page carries, by clock or by time."""

    title: str
    axis: Literal["clock", "time"]
    low: int
    high: int


class Run(Struct, frozen=True, kw_only=True):
    """One run: what it was, what was found in it, what it cost, and the events to show."""

    run: str
    protocol: str
    processes: tuple[str, ...]
    network: str | None = None
    workload: str | None = None
    topology: str | None = None
    seed: int | None = None
    parameters: str = "{}"
    promise: str | None = None
    """What its protocol promises, if that is less than causal order everywhere."""
    verdict: Literal["yes", "no", "unknown"] = "unknown"
    """Of `verify`: whether anything was found."""
    outcome: Literal["kept", "unpromised", "broke", "faulty", "unknown"] = "unknown"
    """The verdict by what the protocol promises (`antecede.report.promises`)."""
    reason: str | None = None
    deliveries: int = 0
    found: dict[str, int] = {}
    """Kind -> how many there are; `findings` may hold fewer."""
    findings: tuple[Finding, ...] = ()
    price: Price | None = None
    process_prices: tuple[ProcessPrice, ...] = ()
    channels: Channels | None = None
    size: int = 0
    """Events in the run."""
    start_ns: int = 0
    """Of its first event: times on the page count from it."""
    causality: str | None = None
    """Which causality a verdict about spans speaks of; None of any other run, where it is the potential one."""
    aliases: tuple[Alias, ...] = ()
    """What the user calls the messages that the page has."""
    whole: bool = True
    """Whether `events` are all of them."""
    events: tuple[Event, ...] = ()
    """In an order that puts no event before one that happened before it."""
    windows: tuple[Window, ...] = ()
    density: Density | None = None


class Failed(Struct, frozen=True):
    """A run that was to be made and was not: it has no trace, and no verdict."""

    run: str
    reason: str = ""
    command: str | None = None
    """Repeats it."""


class Report(Struct, frozen=True, kw_only=True):
    """All that one page shows."""

    title: str
    source: str
    """Where it came from, as the user named it."""
    command: tuple[str, ...]
    """The words of the command that makes this page: `--window` is added to it to ask for more."""
    runs: tuple[Run, ...]
    omitted_runs: int = 0
    """Runs that are counted, and kept the promised order, but are not listed."""
    failed: tuple[Failed, ...] = ()
    histograms: tuple[Histogram, ...] = ()
    made: str = ""
    """When, as the caller writes it."""
    version: str = ""
