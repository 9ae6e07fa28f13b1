r"""Logs that ShiViz and GoVector write: text, read by a regular expression of the user's.

The expression has the named groups `host`, `clock` (a JSON object) and `event`; other named groups are fields. A record
may span lines. Groups are named as in JavaScript, `(?<host>...)`, or as in Python. It is searched with `^` and `$` at
each line. A *delimiter*, another expression, stands between executions, and its group `trace` names the one that
follows. Each execution is a run. A file may open with the two expressions on its first two lines, either of them blank;
what the caller says wins. (DistributedClocks/shiviz, its wiki and `parser.js`.)

A line is read if a part of it is in a record. Any other line that is not blank is rejected, and so are the lines of a
record whose clock is none.

A file is read in windows. A record that would end in the last mebibyte of a window waits for the next one, which begins
there: so a record, and what its expression looks at before it decides, may be a mebibyte long.
"""

from __future__ import annotations

import codecs
import re
import warnings
from collections.abc import Iterator
from typing import IO, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from antecede.errors import BadParameter
from antecede.trace.foreign.log import Rows, clock_of, refusal_of_clock

__all__ = ["DEFAULT", "Expressions", "expressions", "read"]

DEFAULT: Final = r"(?<event>.*)\n(?<host>\S*) (?<clock>{.*})"
"""What ShiViz takes where nothing is said."""

NEEDED: Final = ("host", "clock", "event")
WINDOW: Final = 8 << 20
LOOK: Final = 1 << 20
ROWS: Final = 1 << 14

NAMED: Final = re.compile(
    r"\\k<(?P<back>\w+)>|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<open>\(\?<(?=[A-Za-z_$]))", re.S
)


class Expressions(Struct, frozen=True):
    """How to read a log. What is None is for the file to say, or else as ShiViz has it."""

    pattern: str | None = None
    delimiter: str | None = None


def expressions(pattern: str | None, delimiter: str | None) -> Expressions:
    """Check what the caller says, before anything is read.

    >>> expressions("(?<host>.*)", None)
    Traceback (most recent call last):
    antecede.errors.BadParameter: shiviz: pattern must have the named groups host, clock and event, and is \
(?<host>.*)
    """
    if pattern is not None:
        refuse_groups(pattern, compile_expression(pattern, "pattern"))
    if delimiter is not None:
        compile_expression(delimiter, "delimiter")
    return Expressions(pattern, delimiter)


def compile_expression(text: str, which: str) -> re.Pattern[str]:
    """An expression of JavaScript or Python, as Python's."""
    python = NAMED.sub(lambda m: "(?P<" if m["open"] else f"(?P={m['back']})" if m["back"] else m[0], text)
    try:
        with warnings.catch_warnings():
            # Python warns of what may mean something else one day: today it means what it says.
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(python, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadParameter(
            "shiviz", f"{which} must be a regular expression, and {text} is none: {error}"
        ) from None


def refuse_groups(text: str, pattern: re.Pattern[str]) -> None:
    if not all(name in pattern.groupindex for name in NEEDED):
        raise BadParameter(
            "shiviz", f"pattern must have the named groups host, clock and event, and is {text}"
        )


def read(
    file: IO[bytes], name: str, run: str, asked: Expressions, window: int = WINDOW, look: int = LOOK
) -> Iterator[pa.RecordBatch]:
    """What a file says, some rows at a time. `name` is the file's in the rows; runs are called `run`, or `run#trace`.

    >>> import io
    >>> file = io.BytesIO(b'Hello, bob!\\nann {"ann": 1}\\n')
    >>> [batch] = read(file, "a.log", "a", Expressions())
    >>> batch.select(["process", "index", "text", "line"]).to_pylist()
    [{'process': 'ann', 'index': 0, 'text': 'Hello, bob!', 'line': 1}]
    """
    return Reader(file, name, run, asked, window, look).batches()


class Reader:
    """One file, from its beginning to its end."""

    def __init__(
        self, file: IO[bytes], name: str, run: str, asked: Expressions, window: int, look: int
    ) -> None:
        self._file, self._window, self._look = file, window, look
        self._rows = Rows(name)
        self._base = self._run = run
        self._labels: dict[str, int] = {}
        self._executions = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._text = ""
        self._at = 0
        """Where we are in the text."""
        self._line = 1
        """The line in which that is."""
        self._ended = False
        self._more()
        self._pattern, self._delimiter = self._read_opening(asked)
        self._others = [name for name in self._pattern.groupindex if name not in NEEDED]
        self._groups = (*NEEDED, *self._others)

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._read_window()
        while not self._ended:
            # Down to the beginning of the line, so that `^` goes on to mean what it says.
            start = self._text.rfind("\n", 0, self._at) + 1
            self._text, self._at = self._text[start:], self._at - start
            self._more()
            yield from self._read_window()
        if len(self._rows):
            yield self._batch()

    def _batch(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, Rows(self._rows.file)
        return rows.batch()

    # The text

    def _more(self) -> None:
        """Read on. A carriage return before a newline is part of it."""
        data = b""
        # Some files give less than they are asked for before they end.
        while len(data) < self._window and (some := self._file.read(self._window - len(data))):
            data += some
        self._ended = len(data) < self._window
        text = self._decoder.decode(data, self._ended)
        if self._text.endswith("\r") and text.startswith("\n"):
            self._text = self._text[:-1]
        self._text += text.replace("\r\n", "\n")

    def _read_opening(self, asked: Expressions) -> tuple[re.Pattern[str], re.Pattern[str] | None]:
        """The expressions. Those that the file itself gives are no part of the log."""
        own = ["", ""]
        lines = self._text.split("\n", 2)
        if len(lines) > 1 and ("(?<clock>" in lines[0] or (not lines[0].strip() and "(?<trace>" in lines[1])):
            own = [line.strip() for line in lines[:2]]
            self._go(min(len(lines[0]) + len(lines[1]) + 2, len(self._text)))
        for line, text in enumerate(own):
            # What the file says wrongly is its fault, and said of it; the caller's was refused before.
            try:
                expressions(*((text or None, None) if line == 0 else (None, text or None)))
            except BadParameter as error:
                self._rows.reject(self._run, line + 1, plain(text), str(error))
                own[line] = ""
        delimiter = asked.delimiter or own[1]
        return (
            compile_expression(asked.pattern or own[0] or DEFAULT, "pattern"),
            compile_expression(delimiter, "delimiter") if delimiter else None,
        )

    def _go(self, to: int) -> None:
        self._line += self._text.count("\n", self._at, to)
        self._at = to

    def _pass(self, to: int) -> None:
        """Go there, past text that is in no record. Its lines are kept, if they lie in it as a whole."""
        start, end = self._at, to
        if start and self._text[start - 1] != "\n":
            start = (self._text.find("\n", start, end) + 1) or end
        if not (end == len(self._text) and self._ended):
            end = self._text.rfind("\n", start, end) + 1
        self._go(start)
        if start < end:
            for number, line in enumerate(self._text[start:end].split("\n"), self._line):
                if line and not line.isspace():
                    self._rows.reject(self._run, number, plain(line), "it is no part of a record")
        self._go(to)

    # The records

    def _read_window(self) -> Iterator[pa.RecordBatch]:
        """Read the text, up to where the next window could change what is found."""
        text = self._text
        limit = len(text) if self._ended else max(len(text) - self._look, self._at)
        for mark in self._delimiter.finditer(text, self._at) if self._delimiter else ():
            if mark.start() > limit:
                yield from self._read_execution(mark.start(), limit)
                return
            if mark.end() > mark.start():
                yield from self._read_execution(mark.start(), mark.start())
                self._go(mark.end())
                self._begin(mark)
        yield from self._read_execution(len(text), limit)

    def _begin(self, mark: re.Match[str]) -> None:
        """The next execution. Two of one name are told apart."""
        self._executions += 1
        label = mark.groupdict().get("trace") or str(self._executions)
        times = self._labels[label] = self._labels.get(label, 0) + 1
        self._run = f"{self._base}#{label}" + (f" ({times})" if times > 1 else "")

    def _read_execution(self, end: int, limit: int) -> Iterator[pa.RecordBatch]:
        """Read from here what belongs to one execution, whose text ends at `end`: the records that end by `limit`."""
        text = self._text
        to = end if limit >= end else text.rfind("\n", 0, limit) + 1
        for match in self._pattern.finditer(text, self._at, end):
            start, over = match.span()
            if over > limit:
                to = min(to, text.rfind("\n", 0, start) + 1)
                break
            if start < over:
                self._pass(start)
                self._record(match)
                self._go(over)
            if len(self._rows) >= ROWS:
                yield self._batch()
        if to > self._at:
            self._pass(to)

    def _record(self, match: re.Match[str]) -> None:
        host, clock, event, *others = match.group(*self._groups)
        vector = clock_of(clock or "")
        if isinstance(vector, str):
            reason: str | None = vector
        elif not host:
            reason = "it names no host"
        elif not match[0].isascii() and any("\udc80" <= sign <= "\udcff" for sign in match[0]):
            reason = "it is not UTF-8"
        else:
            reason = refusal_of_clock(host, vector)
        if reason is None:
            assert isinstance(vector, dict)
            told = (
                msgspec.json.encode(dict(zip(self._others, others, strict=True))).decode() if others else None
            )
            self._rows.add(self._run, self._line, host, vector, event or "", fields=told)
            return
        for number, line in enumerate(match[0].split("\n"), self._line):
            self._rows.reject(self._run, number, plain(line), reason)


def plain(line: str) -> str:
    """A line that can be written down, whatever bytes it was."""
    return line.encode(errors="surrogateescape").decode(errors="replace")
