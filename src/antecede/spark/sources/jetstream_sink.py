"""A sink: rows back to a broker, in order, each once.

Each receiver has a subject of its own, `SUBJECT.RECEIVER` or, where a column tells several systems apart,
`SUBJECT.GROUP.RECEIVER`, in a stream of NATS JetStream that keeps them. Positions count by group and receiver, so a
subject has the positions 0, 1, 2, ... once. The rows of a subject are published in this order, and never again,
whatever is killed in between:

  resume   the last message of a subject says which position it has (`Antecede-Position`): a batch that is done again
           begins after it
  refuse   rows that cannot be a continuation or a repeat of what a subject has stop the query: two rows with one
           position, another message at the last position, or rows that end before it
  chain    a message is taken only if the last one of its subject is the one before it (the server checks it): if one is
           not taken, none after it is, so there are no gaps to fill later, and of two tasks that do the same work each
           row is taken from one
  batch    a stream that allows it (`allow_atomic`, NATS 2.12) takes many rows of a receiver at once, or none of them.
           Others take one after the other, which is many times slower: each waits for the server's answer

The ids that the server drops duplicates by (`Nats-Msg-Id`: the sink's name, the subject, the position) are given too,
where messages go one by one. By themselves they would not do: the server forgets them after two minutes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from antecede.errors import BadParameter, CannotWrite
from antecede.spark.errors import errors_marked
from antecede.spark.frames import GROUP_MARK, parse_duration
from antecede.spark.sources.jetstream import ANSWER_S, Broker, encode, load_nats

__all__ = ["jetstream_sink"]

WINDOW: Final = 512
"""Rows that a task holds at a time."""
AT_A_TIME: Final = 32
"""Subjects whose rows are under way: a stream has 50 batches at a time."""
WRONG_SEQUENCE: Final = 10071
"""The server's word for a message whose predecessor is not the last one."""
POSITION: Final = "Antecede-Position"
FOLLOWS: Final = "Nats-Expected-Last-Subject-Sequence"


def jetstream_sink(
    url: str,
    stream: str,
    subject: str,
    *,
    name: str = "antecede",
    group: str | None = None,
    partitions: int = 1,
    credentials: str | os.PathLike[str] | None = None,
    patience: str = "30 seconds",
) -> Callable[[DataFrame, int], None]:
    """What `foreachBatch` takes, to publish rows that have a `receiver` and a `position`.

    The stream must be there, and keep `SUBJECT.>`. Rows without a position are not published: they are not in order
    (refused, or repeated). A row is a JSON object, bytes in base64, without the columns that are null.
    `group` is the column that tells several systems of the same processes apart; rows of `order` say it by
    themselves. `partitions` tasks publish at a time.
    """
    load_nats()
    wait_s = parse_duration("jetstream_sink", "patience", patience) / 1000
    broker = Broker(url, stream, None, None if credentials is None else os.fspath(credentials), wait_s)
    if not subject or any(letter in subject for letter in " *>\t\r\n"):
        raise BadParameter("sink", f"subject must have no wildcards, and is {subject!r}")

    def write(batch: DataFrame, _: int) -> None:
        column = group or group_column(batch.schema)
        keys = ["receiver"] if column is None else [column, "receiver"]
        rows = batch.where(F.col("position").isNotNull())
        ordered = rows.repartition(partitions, *keys).sortWithinPartitions(*keys, "position")
        ordered.foreachPartition(Sink(broker, subject, name, column).publish)

    return write


@dataclass(frozen=True)
class Sink:
    """Where rows go."""

    broker: Broker
    subject: str
    name: str
    group: str | None = None

    @errors_marked()
    def publish(self, rows: Iterable[Row]) -> None:
        """Publish rows, sorted by group, receiver and position."""
        ahead: dict[str, int] = {}
        left = iter(rows)
        while window := list(islice(left, WINDOW)):

            async def work(client: Any, js: Any, window: Sequence[Row] = window) -> None:
                config = (await js.stream_info(self.broker.stream)).config
                await Publisher(self, client, js, bool(config.allow_atomic), ahead).publish(window)

            self.broker.run(work)
        for subject, position in ahead.items():
            self.refuse(subject, f"it is at position {position}, and the rows end before")

    def subject_of(self, row: Row) -> str:
        """The subject of a row: names become one token each."""
        group = row[self.group] if self.group is not None else None
        return ".".join([self.subject, *(token(name) for name in (group, row["receiver"]) if name)])

    def refuse(self, subject: str, found: str) -> None:
        advice = "if several groups have the same receivers, name their column: group="
        raise CannotWrite(f"stream {self.broker.stream}, subject {subject}", found, advice)


def token(name: str) -> str:
    """
    >>> token("a.b c")
    'a%2Eb%20c'
    """
    return quote(name, safe="").replace(".", "%2E")


def group_column(schema: StructType) -> str | None:
    """The column that tells groups apart: the one that `order` marked, or `group`."""
    marked = [field.name for field in schema if (field.metadata or {}).get(GROUP_MARK)]
    return next(iter([*marked, *({"group"} & set(schema.names))]), None)


class Publisher:
    """Publishes one window of rows: those of a subject in a line, all subjects at once."""

    def __init__(self, sink: Sink, client: Any, js: Any, batches: bool, ahead: dict[str, int]) -> None:
        self._sink, self._client, self._js, self._batches = sink, client, js, batches
        self._turns = asyncio.Semaphore(AT_A_TIME)
        self._ahead = ahead
        """Subject -> its last position, where the rows that came so far end before it: they must reach it."""

    async def publish(self, rows: Sequence[Row]) -> None:
        lines: dict[str, list[Row]] = {}
        for row in rows:
            lines.setdefault(self._sink.subject_of(row), []).append(row)
        await asyncio.gather(*(self._line(subject, line) for subject, line in lines.items()))

    async def _line(self, subject: str, rows: Sequence[Row]) -> None:
        """Publish what is not there yet. Someone else who does the same work may come between, and gets on, too."""
        for one, other in pairwise(rows):
            if one["position"] == other["position"]:
                self._sink.refuse(subject, f"two rows have position {one['position']}")
        before = None
        async with self._turns:
            while (last := await self._last(subject)) != before:
                self._compare(subject, rows, last)
                left = [row for row in rows if row["position"] > last.position]
                publish = self._together if self._batches and len(left) > 1 else self._one_by_one
                if not left or await publish(subject, left, last.sequence):
                    return
                before = last
        where = f"stream {self._sink.broker.stream}"
        raise CannotWrite(
            where, f"it does not follow message {last.sequence}", f"{subject} is at {last.position}"
        )

    def _compare(self, subject: str, rows: Sequence[Row], last: Last) -> None:
        """Rows of an earlier micro-batch are a repeat only if they reach what the subject has, and are the same."""
        self._ahead.pop(subject, None)
        if rows[-1]["position"] < last.position:
            self._ahead[subject] = last.position
        for row in rows:
            if row["position"] == last.position and identity(encode_row(row)) != identity(last.data):
                self._sink.refuse(subject, f"another message is at position {last.position}")

    async def _last(self, subject: str) -> Last:
        """The last message of a subject."""
        from nats.js.errors import NotFoundError

        try:
            last = await self._js.get_last_msg(self._sink.broker.stream, subject)
        except NotFoundError:
            return Last(0, -1, b"")
        found = (last.headers or {}).get(POSITION, "")
        if not found.isdecimal():
            place = f"stream {self._sink.broker.stream}, subject {subject}"
            raise CannotWrite(place, "its last message is not ours", "another subject would be")
        return Last(last.seq, int(found), last.data or b"")

    async def _one_by_one(self, subject: str, rows: Sequence[Row], after: int) -> bool:
        """Publish rows after the message of that number; whether all were taken."""
        taken: int | None = after
        for row in rows:
            headers = {"Nats-Msg-Id": f"{self._sink.name}/{subject}/{row['position']}", FOLLOWS: str(taken)}
            taken = await self._put(subject, row, headers)
            if taken is None:
                return False
        return True

    async def _together(self, subject: str, rows: Sequence[Row], after: int) -> bool:
        """The same, all of them or none: the server keeps them apart until the last one has come."""
        batch = secrets.token_hex(16)
        for number, row in enumerate(rows, 1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            if number == 1:
                headers[FOLLOWS] = str(after)
            if number == len(rows):
                return await self._put(subject, row, headers | {"Nats-Batch-Commit": "1"}) is not None
            headers[POSITION] = str(row["position"])
            await self._client.publish(subject, encode_row(row), headers=headers)
        return True

    async def _put(self, subject: str, row: Row, headers: dict[str, str]) -> int | None:
        """Publish a row. Its number in the stream, or None if what it was to follow is not the last there."""
        from nats.js.errors import APIError

        stream, position = self._sink.broker.stream, row["position"]
        named = {**headers, POSITION: str(position)}
        try:
            ack = await self._js.publish(
                subject, encode_row(row), timeout=ANSWER_S, stream=stream, headers=named
            )
        except APIError as error:
            if error.err_code == WRONG_SEQUENCE:
                return None
            lost = f"position {position} of {row['receiver']} is not there"
            raise CannotWrite(f"stream {stream}", str(error.description or error), lost) from None
        return int(ack.seq)


class Last(NamedTuple):
    """The last message of a subject: its number in the stream, and its position."""

    sequence: int
    position: int
    data: bytes


def identity(data: bytes) -> tuple[Any, Any]:
    """The message that a row is about, if its columns say so."""
    try:
        row = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None, None
    return row.get("sender"), row.get("number")


def encode_row(row: Row) -> bytes:
    return encode(row.asDict(recursive=True))
