"""What an application does with a node: it takes, acknowledges and sends, and keeps what all in the group have said.

Its memory is a part of the node's: what it did after the last input that is durable, a crash undoes. What it keeps of
the group `all`, every message that it heard or said, is what one that joins is given as its state: so all members must
have the same in the end.
"""

from __future__ import annotations

from collections import deque

import msgspec

from antecede.model import Id, Message

__all__ = ["GROUP", "Application"]

GROUP = b"a"
"""What a payload to the group begins with."""


class Application:
    """The memory of one application."""

    def __init__(self) -> None:
        self.known: set[Id] = set()
        """What was said in the group."""
        self._fresh: deque[tuple[int, frozenset[Id]]] = deque()
        """What came to be known with inputs that are not durable, by position."""

    def hear(self, message: Message, position: int) -> str | None:
        """Take a message; what is wrong with it, if something is."""
        if message.number == 0:
            state = frozenset(
                (sender, number) for sender, number in msgspec.msgpack.decode(message.payload)[0]
            )
            self._learn(state - self.known, position)
        elif message.payload[:1] == GROUP:
            if message.id in self.known:
                return f"has message {message.id} in its state, and gets it for the first time"
            self._learn(frozenset((message.id,)), position)
        return None

    def say(self, identity: Id, position: int) -> None:
        """It has sent a message to the group without a copy to itself."""
        self._learn(frozenset((identity,)), position)

    def _learn(self, news: frozenset[Id], position: int) -> None:
        self.known |= news
        self._fresh.append((position, news))

    def state(self, padding: int) -> bytes:
        """What one that joins is given."""
        return msgspec.msgpack.encode((sorted(self.known), bytes(padding)))

    def commit(self, position: int) -> None:
        """All inputs up to this position are durable."""
        while self._fresh and self._fresh[0][0] <= position:
            self._fresh.popleft()

    def crash(self, position: int) -> None:
        """Nothing after this position has happened."""
        self.commit(position)
        for _, news in self._fresh:
            self.known -= news
        self._fresh.clear()
