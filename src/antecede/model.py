"""The words of Antecede as frozen values.

process   a member of a `View`; a name outside, a dense integer inside
message   what the application sends; identity is (sender, number)
packet    what crosses the network: a message or control, with a stamp
stamp     the ordering information that a packet carries
effect    what a machine asks of its driver: transmit this packet, or offer this message for delivery
event     what a trace records: a send, a receive or a deliver at one process

Nothing here reads a clock, draws a number or opens a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from msgspec import Meta, MsgspecError, Struct, msgpack

from antecede.errors import BadParameter, UnknownProcess

__all__ = [
    "Awaited",
    "CausalContext",
    "Control",
    "Effect",
    "Event",
    "Id",
    "Message",
    "Obligation",
    "Packet",
    "Stamp",
    "Uint",
    "View",
    "Waiting",
    "bits",
    "mask",
    "members",
    "set_of",
]

Id: TypeAlias = tuple[int, int]
"""A message's identity: (sender, number)."""

Obligation: TypeAlias = tuple[int, int, int]
"""(sender, destination, count): a message, by the channel's count, that must be delivered at this destination."""

Uint: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""A count or a position, as a packet may say it: a trace holds numbers as signed 64-bit integers."""


class View(Struct, frozen=True):
    """The processes that take part, in a fixed order: names outside, positions inside.

    >>> view = View.of("p1", "p2", "p3")
    >>> view.id("p2"), view.name(2), len(view)
    (1, 'p3', 3)
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            repeated = sorted({name for name in self.names if self.names.count(name) > 1})
            raise BadParameter(
                "view", f"each process needs a name of its own, and {', '.join(repeated)} is there twice"
            )

    @classmethod
    def of(cls, *names: str) -> View:
        """The view of these processes, in this order."""
        return cls(names)

    @classmethod
    def numbered(cls, n: int) -> View:
        """p1 ... pn, as the papers write them."""
        return cls(tuple(f"p{i + 1}" for i in range(n)))

    def __len__(self) -> int:
        return len(self.names)

    def id(self, process: str | int) -> int:
        """The position of a process, given by name or by position."""
        if isinstance(process, str):
            if process in self.names:
                return self.names.index(process)
        elif 0 <= process < len(self.names):
            return process
        raise UnknownProcess(process, self.names)

    def name(self, process: int) -> str:
        """The name of the process at a position."""
        return self.names[process] if 0 <= process < len(self.names) else f"#{process}"


class Message(Struct, frozen=True, gc=False):
    """What an application sends: from one process to a set of processes, which may contain itself."""

    sender: int
    number: int
    """1, 2, ...: the sender's own count of everything that it sent, to whomever."""
    to: tuple[int, ...]
    """Destinations, in increasing order."""
    payload: bytes = b""
    label: str = ""
    """Messages with different labels do not delay each other (Rodrigues & Veríssimo 1995, chapter 6)."""
    context: str = ""
    """What tools of the application pass along with it, such as the trace that it belongs to. No protocol reads it."""

    @property
    def id(self) -> Id:
        """Sender and number, which no other message has."""
        return (self.sender, self.number)


class CausalContext(Struct, frozen=True):
    """What a message is sent after: a value that is merged, stored, and sent (`protocols.contexts`).

    >>> one, two = CausalContext(frozenset({(0, 1, 1)})), CausalContext(frozenset({(2, 1, 7)}))
    >>> one | two == two | one | one, CausalContext.decode((one | two).encode()) == one | two
    (True, True)
    """

    obligations: frozenset[Obligation] = frozenset()
    view: int = 0
    """The number of the view that it speaks of: when a view ends, all of its messages are delivered."""

    def __or__(self, other: CausalContext) -> CausalContext:
        """Merge: what is sent after the result is sent after both."""
        if self.view != other.view:
            return max(self, other, key=lambda one: one.view)
        return CausalContext(self.obligations | other.obligations, self.view)

    def __bool__(self) -> bool:
        return bool(self.obligations)

    def encode(self) -> bytes:
        """Equal contexts give equal bytes."""
        return msgpack.encode((self.view, sorted(self.obligations)))

    @classmethod
    def decode(cls, data: bytes) -> CausalContext:
        try:
            view, obligations = msgpack.decode(data, type=tuple[int, list[Obligation]])
        except MsgspecError as error:
            raise BadParameter(
                "context", f"the bytes are not what CausalContext.encode returned: {error}"
            ) from error
        return cls(frozenset(obligations), view)


class Stamp(Struct, frozen=True, gc=False, tag=True, tag_field="stamp"):
    """What a protocol adds to a packet. Each protocol has its own subclasses, defined in its own file."""

    control: ClassVar[bool] = False

    def entries(self, n: int) -> int:
        """The size as the protocol's paper counts it, among n processes."""
        raise NotImplementedError


class Control(Stamp, frozen=True, gc=False):
    """The stamp of a packet that carries no message: acknowledgement, permit, release, extra message."""

    control: ClassVar[bool] = True
    cumulative: ClassVar[bool] = False
    """A later one to the same process says all that an earlier one says: a driver may leave out the earlier one."""

    def entries(self, n: int) -> int:
        return 0


S = TypeVar("S", bound=Stamp)


class Packet(Struct, Generic[S], frozen=True, gc=False):
    """What crosses the network, from one process to one other."""

    source: int
    dest: int
    stamp: S
    message: Message | None = None
    """None on a control packet."""


Effect: TypeAlias = Packet[Any] | Message
"""A `Packet` asks to be transmitted; a `Message` has become eligible: `Machine.deliver` may take it."""


class Awaited(Struct, frozen=True, order=True):
    """Messages first..last of one sender that something waits for.

    `counted` says by whose count: "sender" numbers all of the sender's messages (so first..last are identities),
    "channel" numbers only those that it addressed to the process that waits, which is all that some stamps tell.
    """

    sender: int
    first: int
    last: int
    counted: Literal["sender", "channel"] = "sender"


class Waiting(Struct, frozen=True):
    """A message that is stuck here, and exactly what it waits for."""

    message: Message
    awaits: tuple[Awaited, ...]
    where: Literal["held", "unsent"] = "held"
    """held: received, not yet deliverable. unsent: sent by our application, not yet transmitted."""
    reason: str = ""


class Event(Struct, frozen=True):
    """One event of a run. A run is a sequence of events; its order within each process is that process's order."""

    process: int
    kind: Literal["send", "receive", "deliver"]
    sender: int
    number: int
    to: tuple[int, ...] = ()
    """Destinations, on a send."""
    control: bool = False

    @property
    def id(self) -> Id:
        return (self.sender, self.number)


def mask(processes: Iterable[int]) -> int:
    """A set of processes as the bits of an integer: unions and subset tests at native speed."""
    result = 0
    for process in processes:
        result |= 1 << process
    return result


def bits(mask: int) -> Iterator[int]:
    """The members of such a set, in increasing order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@lru_cache(maxsize=4096)
def members(mask: int) -> tuple[int, ...]:
    """The same, of sets that are met again and again."""
    return tuple(bits(mask))


@lru_cache(maxsize=4096)
def set_of(processes: tuple[int, ...]) -> int:
    """As `mask`, for destinations that are met again and again."""
    return mask(processes)
