"""How many bytes of one peer a node holds: messages that have arrived and that the application has not taken.

The process counts messages. Bytes are counted here by frames, since one count for each frame costs next to nothing:
messages of one sender are taken in about the order of their arrival, so a frame is let go once as many messages were
taken as came with it and before it. Frames that came early are counted until those before them have come, or, at a
router, the topology that they were sent in.

>>> holding = Holding()
>>> holding.arrive(messages=2, size=5000)
>>> holding.arrive(messages=1, size=300)
>>> holding.count(held=3), holding.count(held=2), holding.count(held=1), holding.count(held=0)
(5300, 5300, 300, 0)
"""

from __future__ import annotations

from collections import deque

__all__ = ["Holding"]


class Holding:
    """What is held of one peer."""

    def __init__(self) -> None:
        self._frames: deque[tuple[int, int]] = deque()
        """(messages, bytes) of each frame, the oldest first."""
        self._messages = self._bytes = 0
        self._early = 0
        """Bytes of frames that wait for an earlier one."""

    def arrive(self, messages: int, size: int) -> None:
        """A frame of so many bytes has brought so many messages."""
        if messages:
            self._frames.append((messages, size))
            self._messages += messages
            self._bytes += size

    def come_early(self, size: int) -> None:
        """A frame of so many bytes waits for an earlier one."""
        self._early += size

    def close_gap(self) -> None:
        """No frame waits for an earlier one."""
        self._early = 0

    def count(self, held: int) -> int:
        """Bytes, where so many messages were not taken yet."""
        frames = self._frames
        while frames and self._messages - frames[0][0] >= held:
            messages, size = frames.popleft()
            self._messages -= messages
            self._bytes -= size
        return self._bytes + self._early
