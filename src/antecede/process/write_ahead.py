"""Write-ahead: the inputs of a process that are not durable yet, and what waits for them.

The frames that follow from an input wait until it is durable, and with it all inputs before it. So a peer never hears
of anything that a crash could undo. A message is handed over once its arrival is durable. Whoever drives the process
writes the inputs, group by group: a node to its journal, the simulator to a disk of its own.

>>> from antecede.process.inputs import Turn
>>> ahead: WriteAhead[str] = WriteAhead(position=7)
>>> ahead.write(Turn())
8
>>> ahead.hold_frames(["a frame"]), ahead.take_batch()
(True, [Turn()])
>>> ahead.commit(1), ahead.hold_frames(["another"])
(['a frame'], False)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from antecede.model import Id
from antecede.process.inputs import Input

__all__ = ["WriteAhead"]

T = TypeVar("T")


class WriteAhead(Generic[T]):
    """What one process has done since the last input that is durable. Frames are of type `T`."""

    __slots__ = ("_batch", "_frames", "fresh", "position", "position_durable")

    def __init__(self, position: int) -> None:
        self.position = self.position_durable = position
        """Of the last input, and of the last one that is durable."""
        self.fresh: dict[Id, int] = {}
        """Messages whose arrival is not durable yet, with its position; in the order of positions."""
        self._batch: list[Input] = []
        self._frames: deque[tuple[int, list[T]]] = deque()
        """What may leave once a position is durable."""

    def write(self, given: Input) -> int:
        """An input was applied: its position."""
        self.position += 1
        self._batch.append(given)
        return self.position

    def hold_messages(self, arrived: Iterable[Id]) -> None:
        """These messages, which arrived with the last input, are handed over once that is durable."""
        self.fresh.update(dict.fromkeys(arrived, self.position))

    def hold_frames(self, frames: list[T]) -> bool:
        """Keep frames until the inputs so far are durable; False if they are, and the frames may leave."""
        if self.position == self.position_durable:
            return False
        self._frames.append((self.position, frames))
        return True

    @property
    def idle(self) -> bool:
        """Whether nothing is to be written, and nothing waits to leave."""
        return not self._batch and not self._frames

    def take_batch(self) -> list[Input]:
        """The inputs to write next, in one group."""
        batch, self._batch = self._batch, []
        return batch

    def commit(self, count: int) -> list[T]:
        """So many more inputs are durable: the frames that may leave now."""
        self.position_durable = position = self.position_durable + count
        frames: list[T] = []
        while self._frames and self._frames[0][0] <= position:
            frames += self._frames.popleft()[1]
        if self.fresh:
            fresh, self.fresh = self.fresh, {}
            if next(reversed(fresh.values())) > position:
                self.fresh = {message: at for message, at in fresh.items() if at > position}
        return frames
