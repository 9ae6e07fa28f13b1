"""What a node's feed says: its recorded events, by their indices, to whoever asks.

A connection carries one question and its answer. The question is a line of JSON; the answer is a line of JSON and,
where events were asked for, they follow as an Arrow IPC stream in the columns of a trace.

  {"feed": 1}                          how far is it?
  {"feed": 1, "start": 5, "end": 9}    the events from 5 to before 9
  {"feed": 1, "node": "ann", "run": "nodes", "first": 0, "next": 12}
  {"feed": 1, "error": "..."}

Events are numbered by their process, from 0 on without gaps, and never change: so an index is an offset to which a
reader can always return. `first` is the first event that is still there, `next` the first that is not there yet.

>>> ask(5, 9)
b'{"feed":1,"start":5,"end":9}\\n'
>>> question(ask(5, 9))
Question(start=5, end=9, feed=1)
>>> question(b'{"start": 3, "end": 2}')
Traceback (most recent call last):
antecede.errors.WireError: the line is no question: events 3 to 2
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from antecede.errors import WireError

__all__ = ["LINE_BYTES", "Answer", "Question", "answer", "ask", "question", "tell"]

VERSION = 1
LINE_BYTES = 4096
"""Of a question or of the line of an answer."""


class Question(Struct, frozen=True):
    start: int = 0
    end: int = 0
    """Of the events that are asked for; none if they are equal."""
    feed: int = VERSION

    def __post_init__(self) -> None:
        if self.feed != VERSION:
            raise ValueError(f"it has version {self.feed}, and this release reads {VERSION}")
        if not 0 <= self.start <= self.end < 1 << 63:
            raise ValueError(f"events {self.start} to {self.end}")


class Answer(Struct, frozen=True):
    node: str = ""
    run: str = ""
    first: int = 0
    next: int = 0
    error: str | None = None
    feed: int = VERSION


def ask(start: int = 0, end: int = 0) -> bytes:
    return b'{"feed":%d,"start":%d,"end":%d}\n' % (VERSION, start, end)


def question(line: bytes) -> Question:
    try:
        return msgspec.json.decode(line, type=Question)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the line is no question: {error}") from None


def tell(answer: Answer) -> bytes:
    """
    >>> tell(Answer("ann", "nodes", 0, 12))
    b'{"node":"ann","run":"nodes","first":0,"next":12,"error":null,"feed":1}\\n'
    """
    return msgspec.json.encode(answer) + b"\n"


def answer(line: bytes) -> Answer:
    """
    >>> answer(tell(Answer("ann", "nodes", 0, 12))).next
    12
    """
    try:
        return msgspec.json.decode(line, type=Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the line is no answer of a feed: {error}") from None
