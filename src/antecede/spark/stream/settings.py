"""What decides how a stream is ordered: the protocol, its processes, and how long to wait for what is missing.

It goes into the state, so that a query which is started again with other settings is refused and not continued wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from antecede.errors import BadParameter
from antecede.model import View
from antecede.protocols import PROTOCOLS, Listener, listen
from antecede.spark.duration import parse_duration

__all__ = ["ORDERING", "Settings"]

ORDERING: Final = ("fifo", "matrix", "bounded", "monitor", "history", "broadcast", "optimal")
"""The protocols whose delivery is decided at the receiver, from the stamp."""

ELSEWHERE: Final = {
    "unordered": "it orders nothing",
    "buffer": "its order is made by senders that wait, and acknowledgements that a stream does not see",
    "permit": "its order is made by senders that wait for permits, which a stream does not see",
    "separator": "its routers hold what passes them, which a stream does not see",
    "contexts": "a stream of events that name their causes takes them as they are: order(id=..., causes=...)",
    "underway": "its stamps leave out what was acknowledged, and a stream may not have that yet",
    "sparing": "streams take the stamps of `bounded`, whose rule is the paper's",
}
"""Why the others cannot order a stream."""


class Settings(Struct, frozen=True):
    """Checked when made: a protocol that cannot order a stream, or not these processes, is a `BadParameter`.

    >>> Settings("permit", ("p1", "p2"))
    Traceback (most recent call last):
    antecede.errors.BadParameter: stream: protocol must be one of fifo, matrix, bounded, monitor, history, \
broadcast, optimal, not 'permit' (its order is made by senders that wait for permits, which a stream does not see)
    """

    protocol: str
    processes: tuple[str, ...]
    parameters: dict[str, Any] = {}
    patience_ms: int | None = None
    """How long a message waits for causes that are not here, before they are given up. None: for ever."""
    buckets: int = 1
    """How many the receivers are spread over."""

    def __post_init__(self) -> None:
        if self.protocol not in ORDERING:
            why = ELSEWHERE.get(self.protocol)
            found = f"{self.protocol!r} ({why})" if why else repr(self.protocol)
            raise BadParameter("stream", f"protocol must be one of {', '.join(ORDERING)}, not {found}")
        if self.patience_ms is not None and self.patience_ms < 0:
            raise BadParameter("stream", f"patience must be 0 or more, not {self.patience_ms} ms")
        if not self.processes:
            raise BadParameter("stream", "processes must name all that take part, and names nobody")
        self.machine(0)

    @classmethod
    def of(
        cls,
        protocol: str,
        processes: Sequence[str],
        parameters: Mapping[str, Any] | None = None,
        patience: str | None = None,
        buckets: int = 1,
    ) -> Settings:
        """With the patience in words: "30 seconds"."""
        milliseconds = None if patience is None else parse_duration("stream", "patience", patience)
        return cls(protocol, tuple(processes), dict(parameters or {}), milliseconds, buckets)

    @property
    def view(self) -> View:
        return View(self.processes)

    @property
    def everyone(self) -> bool:
        """Whether every message goes to all."""
        return PROTOCOLS[self.protocol].to_all

    def machine(self, process: int, delivered: Sequence[int] | None = None) -> Listener:
        """The machine that stands for a process, which sends elsewhere."""
        return listen(self.protocol, self.view, process, delivered, **self.parameters)

    def decided(self) -> dict[str, Any]:
        """What a state must agree with. Patience may change from one start to the next."""
        return {
            "protocol": self.protocol,
            "processes": list(self.processes),
            "parameters": self.machine(0).parameters,
            "buckets": self.buckets,
        }
