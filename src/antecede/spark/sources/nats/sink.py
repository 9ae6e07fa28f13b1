"""A sink: rows back to a broker, in order, each once.

Each receiver has a subject of its own (`SUBJECT.RECEIVER`), in a stream of NATS JetStream that keeps them. The rows of
a receiver are published in the order of `position`, and never again, whatever is killed in between:

  resume   the last message of a subject says which position it has (`Antecede-Position`): a batch that is done again
           begins after it
  chain    a message is taken only if the last one of its subject is the one before it (the server checks it): if one is
           not taken, none after it is, so there are no gaps to fill later, and of two tasks that do the same work each
           row is taken from one
  batch    a stream that allows it (`allow_atomic`, NATS 2.12) takes many rows of a receiver at once, or none of them.
           Others take one after the other, which is many times slower: each waits for the server's answer

The ids that the server drops duplicates by (`Nats-Msg-Id`: the sink's name, the receiver, the position) are given too,
where messages go one by one. By themselves they would not do: the server forgets them after two minutes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from antecede.errors import BadParameter, CannotWrite
from antecede.spark.sources.nats.broker import ANSWER_S, Broker, client_class
from antecede.spark.sources.nats.records import encode

__all__ = ["jetstream_sink"]

WINDOW: Final = 512
"""Rows that a task holds at a time."""
AT_A_TIME: Final = 32
"""Receivers whose rows are under way: a stream has 50 batches at a time."""
WRONG_SEQUENCE: Final = 10071
"""The server's word for a message whose predecessor is not the last one."""
POSITION: Final = "Antecede-Position"


def jetstream_sink(
    url: str,
    stream: str,
    subject: str,
    *,
    name: str = "antecede",
    partitions: int = 1,
    credentials: str | os.PathLike[str] | None = None,
    patience_s: float = 30.0,
) -> Callable[[DataFrame, int], None]:
    """What `foreachBatch` takes, to publish rows that have a `receiver` and a `position`.

    The stream must be there, and keep `SUBJECT.*`. Rows without a position are not published: they are not in order
    (`deliver_stream` refused them). A row is a JSON object, bytes in base64, without the columns that are null.
    `partitions` tasks publish at a time.
    """
    client_class()
    broker = Broker(url, stream, None, None if credentials is None else os.fspath(credentials), patience_s)
    if not subject or any(letter in subject for letter in " *>\t\r\n"):
        raise BadParameter("sink", "subject", repr(subject), "a subject without wildcards")
    sink = Sink(broker, subject, name)

    def write(batch: DataFrame, _: int) -> None:
        rows = batch.where(F.col("position").isNotNull())
        ordered = rows.repartition(partitions, "receiver").sortWithinPartitions("receiver", "position")
        ordered.foreachPartition(sink.publish)

    return write


@dataclass(frozen=True)
class Sink:
    """Where rows go."""

    broker: Broker
    subject: str
    name: str

    def publish(self, rows: Iterable[Row]) -> None:
        """Publish rows, sorted by receiver and position."""
        for window in windows(rows, WINDOW):

            async def work(js: Any, window: Sequence[Row] = window) -> None:
                config = (await js.stream_info(self.broker.stream)).config
                await Publisher(self, js, bool(config.allow_atomic)).publish(window)

            self.broker.run(work)

    def to(self, receiver: str) -> str:
        return f"{self.subject}.{quote(receiver, safe='').replace('.', '%2E')}"

    def id(self, receiver: str, position: int) -> str:
        return f"{self.name}/{quote(receiver, safe='')}/{position}"


def windows(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """
    >>> list(windows(range(5), 2))
    [[0, 1], [2, 3], [4]]
    """
    window: list[Row] = []
    for row in rows:
        window.append(row)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window


class Publisher:
    """Publishes one window of rows: each receiver's in a line, all receivers' at once."""

    def __init__(self, sink: Sink, js: Any, batches: bool) -> None:
        self._sink, self._js, self._batches = sink, js, batches
        self._turns = asyncio.Semaphore(AT_A_TIME)

    async def publish(self, rows: Sequence[Row]) -> None:
        lines: dict[str, list[Row]] = {}
        for row in rows:
            lines.setdefault(row["receiver"], []).append(row)
        await asyncio.gather(*(self._line(receiver, line) for receiver, line in lines.items()))

    async def _line(self, receiver: str, rows: Sequence[Row]) -> None:
        """Publish what is not there yet. Someone else who does the same work may come between, and gets on, too."""
        before = None
        async with self._turns:
            while (place := await self._place(receiver)) != before:
                left = [row for row in rows if row["position"] > place[1]]
                publish = self._together if self._batches and len(left) > 1 else self._one_by_one
                if not left or await publish(receiver, left, place[0]):
                    return
                before = place
        where = f"stream {self._sink.broker.stream}"
        raise CannotWrite(where, f"it does not follow message {place[0]}", f"{receiver} is at {place[1]}")

    async def _place(self, receiver: str) -> tuple[int, int]:
        """The number of a receiver's last message in the stream, and its position."""
        from nats.js.errors import NotFoundError

        try:
            last = await self._js.get_last_msg(self._sink.broker.stream, self._sink.to(receiver))
        except NotFoundError:
            return 0, -1
        found = (last.headers or {}).get(POSITION, "")
        if not found.isdecimal():
            place = f"stream {self._sink.broker.stream}, subject {self._sink.to(receiver)}"
            raise CannotWrite(place, "its last message is not ours", "another subject would be")
        return last.seq, int(found)

    async def _one_by_one(self, receiver: str, rows: Sequence[Row], after: int) -> bool:
        """Publish rows after the message of that number; whether all were taken."""
        for row in rows:
            headers = {
                "Nats-Msg-Id": self._sink.id(receiver, row["position"]),
                "Nats-Expected-Last-Subject-Sequence": str(after),
            }
            taken = await self._put(row, headers)
            if taken is None:
                return False
            after = taken
        return True

    async def _together(self, receiver: str, rows: Sequence[Row], after: int) -> bool:
        """The same, all of them or none: the server keeps them apart until the last one has come."""
        batch = secrets.token_hex(16)
        client = self._js._nc
        for number, row in enumerate(rows[:-1], 1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            if number == 1:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(after)
            headers[POSITION] = str(row["position"])
            await client.publish(self._sink.to(receiver), encode(_plain(row)), headers=headers)
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(len(rows)), "Nats-Batch-Commit": "1"}
        if len(rows) == 1:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(after)
        return await self._put(rows[-1], headers) is not None

    async def _put(self, row: Row, headers: dict[str, str]) -> int | None:
        """Publish a row. Its number in the stream, or None if what it was to follow is not the last there."""
        from nats.js.errors import APIError

        sink, receiver, position = self._sink, row["receiver"], row["position"]
        try:
            ack = await self._js.publish(
                sink.to(receiver),
                encode(_plain(row)),
                timeout=ANSWER_S,
                stream=sink.broker.stream,
                headers={**headers, POSITION: str(position)},
            )
        except APIError as error:
            if error.err_code == WRONG_SEQUENCE:
                return None
            reason = str(error.description or error)
            place = f"stream {sink.broker.stream}"
            raise CannotWrite(place, reason, f"position {position} of {receiver} is not there") from None
        return int(ack.seq)


def _plain(row: Row) -> Mapping[str, Any]:
    values: dict[str, Any] = row.asDict(recursive=True)
    return {name: bytes(value) if isinstance(value, bytearray) else value for name, value in values.items()}
