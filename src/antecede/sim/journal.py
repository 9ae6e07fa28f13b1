"""What a process has on disk: a snapshot of its state machines now and then, and every input since.

A process is made of pure state machines, a protocol's and a link's end for each peer. A machine replayed from the same
inputs is in the same state, so a journal of inputs is as good as the state itself, and much cheaper to write.

The rule (write-ahead): an input is durable before anything that follows from it leaves the process, a frame to a peer
or a message to the application.
    write    note an input, before it is given to its machine
    commit   what is written is durable from now on: what followed from it may leave
    recover  after a crash: the machines as the committed inputs left them; what was not committed never happened
    compact  put snapshots in place of the inputs

>>> from antecede.model import View
>>> from antecede.protocols import create, restore
>>> machine = create("fifo", View.numbered(2), 0)
>>> journal = Journal()
>>> journal.add("machine", machine, restore)
>>> for payload in (b"durable", b"lost"):
...     journal.write("machine", "send", 1, payload)
...     _ = machine.send(1, payload)
...     if payload == b"durable":
...         journal.commit()
>>> journal.recover()["machine"].sent
1
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

from antecede.errors import BadParameter
from antecede.protocols import Machine

__all__ = ["Durable", "Journal", "Journaled"]


class Durable(Protocol):
    """A pure state machine: `Machine` and `Link` are."""

    def snapshot(self) -> dict[str, Any]: ...


Restore = Callable[[Mapping[str, Any]], Any]


class Journal:
    """The journal of one process. After so many inputs, snapshots of its machines take their place."""

    def __init__(self, every: int = 1000) -> None:
        if every < 1:
            raise BadParameter("journal", "inputs a snapshot", every, "1 or more")
        self.every = every
        self.machines: dict[Hashable, Durable] = {}
        self._restore: dict[Hashable, Restore] = {}
        self._snapshots: dict[Hashable, dict[str, Any]] = {}
        self._inputs: list[tuple[Hashable, str, tuple[Any, ...]]] = []
        self._committed = 0

    def add(self, key: Hashable, machine: Durable, restore: Restore) -> None:
        """A machine of this process, in the state that it is in; it can always be had again by this function."""
        self.machines[key] = machine
        self._restore[key] = restore
        self._snapshots[key] = machine.snapshot()

    def write(self, key: Hashable, method: str, *arguments: Any) -> None:
        """Note an input: this machine's method will be called with these arguments."""
        self._inputs.append((key, method, arguments))

    def commit(self) -> None:
        """Make all inputs durable, which the machines have been given by now."""
        self._committed = len(self._inputs)
        if self._committed >= self.every:
            self.compact()

    def compact(self) -> None:
        """Put snapshots in place of all inputs: they are durable at once, as are changes that no input made."""
        self._snapshots = {key: machine.snapshot() for key, machine in self.machines.items()}
        self._inputs.clear()
        self._committed = 0

    def recover(self) -> dict[Hashable, Any]:
        """The machines of the process that comes back."""
        del self._inputs[self._committed :]
        machines = {key: self._restore[key](snapshot) for key, snapshot in self._snapshots.items()}
        for key, method, arguments in self._inputs:
            getattr(machines[key], method)(*arguments)
        self.machines = dict(machines)
        return machines


class Journaled:
    """A protocol's machine whose inputs are written down before they are given to it. All else is the machine's."""

    def __init__(self, machine: Machine, journal: Journal, key: Hashable = "machine") -> None:
        self.machine, self._journal, self._key = machine, journal, key

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    # To commit after each input is to commit before its effects leave: nothing happens between the two here.

    def send(self, to: Any, payload: bytes = b"", label: str = "") -> Any:
        self._journal.write(self._key, "send", to, payload, label)
        effects = self.machine.send(to, payload, label)
        self._journal.commit()
        return effects

    def receive(self, packet: Any) -> Any:
        self._journal.write(self._key, "receive", packet)
        effects = self.machine.receive(packet)
        self._journal.commit()
        return effects

    def deliver(self, message: Any) -> Any:
        self._journal.write(self._key, "deliver", message)
        effects = self.machine.deliver(message)
        self._journal.commit()
        return effects
