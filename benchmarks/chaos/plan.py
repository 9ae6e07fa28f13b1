"""What each node sends, as a function of a seed: nothing needs to be remembered over a crash, or told to the judge."""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct

__all__ = ["Plan", "node_names"]

BODY = bytes(range(256)) * 64


def node_names(n: int) -> tuple[str, ...]:
    return tuple(f"p{k + 1:02d}" for k in range(n))


class Plan(Struct, frozen=True):
    """`each` messages of every node, to sets that the seed draws, with payloads that tell whose they are.

    >>> plan = Plan("tea", 3, 10)
    >>> [plan.to(0, number) for number in (1, 2, 3, 4)]
    [(2,), (0,), (0, 2), (0,)]
    >>> plan.payload(0, 1)[:6]
    b'0/1 \\x00\\x01'
    """

    seed: str
    n: int
    each: int

    def _draw(self, sender: int, number: int) -> int:
        text = f"{self.seed} {sender} {number}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")

    def to(self, sender: int, number: int) -> tuple[int, ...]:
        """To one other or itself, half of the time; to two, or to all."""
        drawn = self._draw(sender, number)
        size, drawn = (1, 1, 2, self.n)[drawn & 3], drawn >> 2
        first, second = drawn % self.n, (drawn >> 16) % self.n
        if size == 1:
            return (first,)
        if size == 2 and first != second:
            return tuple(sorted((first, second)))
        return tuple(range(self.n))

    def payload(self, sender: int, number: int) -> bytes:
        """Mostly small, now and then some kilobytes."""
        drawn = self._draw(sender, number) >> 40
        size = drawn % 100 if drawn & 127 else drawn % 8000
        return f"{sender}/{number} ".encode() + BODY[:size]

    def list_owed(self) -> list[list[list[int]]]:
        """Receiver -> sender -> the numbers of all messages that it is owed."""
        owed: list[list[list[int]]] = [[[] for _ in range(self.n)] for _ in range(self.n)]
        for sender in range(self.n):
            for number in range(1, self.each + 1):
                for receiver in self.to(sender, number):
                    owed[receiver][sender].append(number)
        return owed
