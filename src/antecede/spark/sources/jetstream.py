"""A streaming source: the messages of a NATS JetStream stream.

Each message of a stream has a number (its *sequence*), which grows and is never given twice. Messages may be deleted.

Rules
  offset     the number of the next message to read (`{"next": 17}`): the server need not know what was read
  admission  `maxRows` messages a batch at most; numbers are counted, so deleted messages make a batch smaller
  parallel   a batch is cut into `partitions` ranges of numbers
  lost       messages that the stream's limits have dropped before they were read stop the query, or are skipped with
             `lost=skip`. What was deleted one by one is simply not there.

A message is a row: one JSON object, the columns by name, bytes in base64; or `raw`, to be taken apart by its owner
(docs/sources.md).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from antecede.errors import AntecedeError, BadParameter, BadTrace, InputError
from antecede.spark.errors import errors_marked
from antecede.spark.frames import ALL_PACKETS, parse_duration
from antecede.spark.sources.offsets import MOST, NumberedSource, Reach, Span, read_choice, read_count
from antecede.spark.trace import SPARK_EVENTS
from antecede.trace import EVENTS, KINDS

__all__ = ["ANSWER_S", "Broker", "JetStream", "Lost", "encode", "jetstream", "load_client"]

LEAST: Final = 1000
"""Messages for which a task of their own is worth while."""
FETCH: Final = 1000
"""Messages asked for at a time: what a task holds of a stream at once."""
FETCH_BYTES: Final = 1 << 26
"""The largest that a server takes: one message always fits."""
CONNECT_S: Final = 2
ANSWER_S: Final = 5.0
RETRY_S: Final = 0.2
INACTIVE_S: Final = 60.0
"""The server forgets the consumer of a reader that was killed after so long."""

T = TypeVar("T")


def jetstream(
    spark: SparkSession,
    url: str,
    stream: str,
    *,
    rows: Literal["packets", "events", "raw"] = "packets",
    subject: str | None = None,
    start: Literal["earliest", "latest"] | int = "earliest",
    max_rows: int = MOST,
    partitions: int = 2,
    lost: Literal["fail", "skip"] = "fail",
    credentials: str | os.PathLike[str] | None = None,
    patience: str = "30 seconds",
) -> DataFrame:
    """A streaming DataFrame of a stream's messages, as `rows` says.

    `subject` reads only the messages whose subjects fit it. `start` says where a query without a checkpoint begins.
    """
    options = {
        "url": url,
        "stream": stream,
        "rows": rows,
        "subject": subject,
        "start": start,
        "maxRows": max_rows,
        "partitions": partitions,
        "lost": lost,
        "credentials": None if credentials is None else os.fspath(credentials),
        "patience_s": parse_duration("jetstream", "patience", patience) / 1000,
    }
    return JetStream.open(spark, options)


class Lost(InputError):
    """Messages that were to be read are not in the stream any more."""

    def __init__(self, stream: str, reason: str) -> None:
        self.stream, self.reason = stream, reason
        super().__init__(f"stream {stream}: {reason}")


class JetStream(NumberedSource[str]):
    called = "antecede_jetstream"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        load_client()
        self.rows = read_choice("jetstream", options, "rows", ("packets", "events", "raw"))
        for needed in ("url", "stream"):
            if needed not in options:
                raise BadParameter("jetstream", f"the option {needed} is missing")
        patience_s = float(options.get("patience_s", "30"))
        subject, credentials = options.get("subject"), options.get("credentials")
        self.broker = Broker(options["url"], options["stream"], subject, credentials, patience_s)
        self.start = options.get("start", "earliest")
        if self.start not in ("earliest", "latest") and not self.start.isdecimal():
            raise BadParameter(
                "jetstream", f"start must be earliest, latest or a message's number, not {self.start!r}"
            )
        self.max_rows = read_count("jetstream", options, "maxRows")
        self.parts = read_count("jetstream", options, "partitions", 2)
        self.lost = read_choice("jetstream", options, "lost", ("fail", "skip"))

    def schema(self) -> StructType:
        return SPARK_EVENTS if self.rows == "events" else from_arrow_schema(ROWS[self.rows])

    def reach(self) -> dict[str, Reach]:
        return {"next": self.broker.reach()}

    def find_start(self, reach: Reach) -> int:
        if self.start.isdecimal():
            return int(self.start)
        return reach.first if self.start == "earliest" else reach.end

    def find_place(self, part: str, at: int, reach: Reach) -> int:
        if at > reach.end:
            last = f"its last message is {reach.end - 1}, and {at - 1} was read before"
            raise Lost(self.broker.stream, f"{last}: the stream was made anew")
        if at < reach.first and self.lost == "fail":
            first = f"its first message is {reach.first}, and {at} was not read yet"
            raise Lost(self.broker.stream, f"{first}: set lost to skip to go on without")
        return max(at, reach.first)

    @errors_marked()
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Span]:
        at, until = self.find_place("next", start["next"], self.broker.reach()), end["next"]
        many = max(1, min(self.parts, (until - at) // LEAST))
        edges = [at + (until - at) * part // many for part in range(many + 1)]
        return [Span("next", a, b) for a, b in pairwise(edges) if a < b]

    def read_span(self, span: Span) -> Iterator[pa.RecordBatch]:
        due, missing = span.start, span.end
        for messages in self.broker.read(span.start, span.end):
            for message in messages:
                if message.sequence > due:
                    missing = min(missing, due)
                due = message.sequence + 1
            yield pa.RecordBatch.from_pylist([self.make_row(one) for one in messages], ROWS[self.rows])
        missing = min(missing, due)
        if missing < span.end:
            # Deleted long ago, or dropped while we read: who drops does so from the front.
            self.find_place("next", missing, self.broker.reach())

    def make_row(self, message: Stored) -> dict[str, Any]:
        """A message as a row. One that is no such row is told with its place."""
        if self.rows == "raw":
            return message._asdict()
        record = PacketRecord if self.rows == "packets" else EventRecord
        try:
            row = msgspec.structs.asdict(msgspec.json.decode(message.data, type=record))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            place = f"stream {self.broker.stream}, message {message.sequence}"
            reason = f"it is not a JSON object with the columns of {self.rows}: {error}"
            raise BadTrace(place, reason) from None
        return row | {"arrival": message.sequence} if self.rows == "packets" else row


# Messages and rows


class Stored(NamedTuple):
    """A message of a stream."""

    sequence: int
    subject: str
    time_ns: int
    data: bytes


class PacketRecord(Struct, frozen=True):
    receiver: str
    sender: str
    stamp: bytes
    number: int | None = None
    payload: bytes | None = None
    label: str | None = None
    group: str | None = None


class EventRecord(Struct, frozen=True):
    run: str
    process: str
    index: int
    kind: str
    sender: str
    number: int
    to: list[str] | None = None
    control: bool = False
    time_ns: int = 0
    clock: int | None = None
    stamp_entries: int | None = None
    stamp_bytes: int | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")


RAW: Final = pa.schema(
    {"sequence": pa.int64(), "subject": pa.string(), "time_ns": pa.int64(), "data": pa.binary()}
)
ROWS: Final = {"packets": ALL_PACKETS, "events": EVENTS, "raw": RAW}


def encode(row: Mapping[str, Any]) -> bytes:
    """A row as a message.

    >>> encode({"receiver": "ann", "number": 1, "payload": b"hello", "reason": None})
    b'{"receiver":"ann","number":1,"payload":"aGVsbG8="}'
    """
    return msgspec.json.encode({name: value for name, value in row.items() if value is not None})


# The server


class Away(Exception):
    """The server does not answer now."""


@dataclass(frozen=True)
class Broker:
    """One stream at a server, as a source and a sink need it.

    Spark calls Python functions that wait, so each call runs an event loop of its own, with a connection of its own: a
    client whose loop stands still between calls would be taken for dead by its server. A server that is away is waited
    for, `patience_s`, and what was read meanwhile is not read again.

    >>> Broker("localhost", "orders")
    Traceback (most recent call last):
    antecede.errors.BadParameter: jetstream: url must be nats://host:port, and has the scheme ''
    """

    url: str
    stream: str
    subject: str | None = None
    """Only messages of subjects that fit it are read."""
    credentials: str | None = None
    patience_s: float = 30.0

    def __post_init__(self) -> None:
        for url in self.url.split(","):
            parts = urlsplit(url.strip())
            if parts.scheme not in ("nats", "tls") or not parts.hostname:
                # Not the address itself, which may have a password in it.
                raise BadParameter(
                    "jetstream", f"url must be nats://host:port, and has the scheme {parts.scheme!r}"
                )

    @property
    def where(self) -> str:
        hosts = [urlsplit(url.strip()).hostname or "" for url in self.url.split(",")]
        return f"stream {self.stream} at {', '.join(hosts)}"

    def reach(self) -> Reach:
        """The number of the first message, and of the next one that will come."""

        async def ask(_: Any, js: Any) -> Reach:
            state = (await js.stream_info(self.stream)).state
            return Reach(max(1, state.first_seq), state.last_seq + 1)

        return self.run(ask)

    def read(self, start: int, end: int) -> Iterator[list[Stored]]:
        """The messages from `start` to before `end`, in order, some at a time."""
        at, until = start, time.monotonic() + self.patience_s
        while at < end:
            try:
                with asyncio.Runner() as runner:
                    parts = self._parts(at, end)
                    try:
                        while (part := runner.run(_next(parts))) is not None:
                            yield part
                            at, until = part[-1].sequence + 1, time.monotonic() + self.patience_s
                    finally:
                        runner.run(parts.aclose())
                return
            except Away as error:
                self._wait(until, error)

    def run(self, work: Callable[[Any, Any], Awaitable[T]]) -> T:
        """Do some work with a client and its JetStream; from its beginning, if the server goes away meanwhile."""

        async def once() -> T:
            async with self.opened() as (client, js):
                return await work(client, js)

        until = time.monotonic() + self.patience_s
        while True:
            try:
                return asyncio.run(once())
            except Away as error:
                self._wait(until, error)

    def _wait(self, until: float, error: Away) -> None:
        if time.monotonic() > until:
            raise BadParameter(
                "jetstream", f"the server that should have {self.where} does not answer: {error}"
            ) from None
        time.sleep(RETRY_S)

    async def _parts(self, start: int, end: int) -> AsyncGenerator[list[Stored], None]:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        async with self.opened() as (client, js):
            config = ConsumerConfig(
                name=secrets.token_hex(8),
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=start,
                filter_subject=self.subject,
                # Spark keeps the offsets: the server need not.
                ack_policy=AckPolicy.NONE,
                inactive_threshold=INACTIVE_S,
                mem_storage=True,
                num_replicas=1,
            )
            consumer = await js.add_consumer(self.stream, config)
            pull = Pull(client, f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{consumer.name}")
            await client.subscribe(f"{pull.inbox}.*", cb=pull.take, pending_bytes_limit=0)
            left, count, at = consumer.num_pending, 0, start
            while left and at < end:
                part = []
                # Numbers may be missing between, so there are no more messages than numbers.
                for message in await pull.next(min(FETCH, left, end - at)):
                    sequence, counted, time_ns, left = _place(message.reply)
                    count += 1
                    if counted != count:
                        raise Away(f"the server sent delivery {counted}, and {count} was next")
                    if sequence < end:
                        part.append(Stored(sequence, message.subject, time_ns, message.data))
                    at = sequence + 1
                if part:
                    yield part

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Any, Any]]:
        """A client and its JetStream, while the block runs. Whatever says that the server is away is `Away`."""
        from nats import errors
        from nats.js.errors import NoStreamResponseError, NotFoundError, ServiceUnavailableError

        away = (OSError, TimeoutError, asyncio.CancelledError, errors.Error)
        client = load_client()()
        more = {} if self.credentials is None else {"user_credentials": self.credentials}
        try:
            await client.connect(
                self.url.split(","),
                name="antecede on Spark",
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_S,
                error_cb=_quietly,
                **more,
            )
            yield client, client.jetstream(timeout=ANSWER_S)
        except NotFoundError:
            raise BadParameter(
                "jetstream", f"the server has no {self.where}: create it, or name another"
            ) from None
        except AntecedeError:
            raise  # What is ours is told as it is, though it may be an OSError, too.
        except (*away, NoStreamResponseError, ServiceUnavailableError) as error:
            raise Away(str(error) or type(error).__name__) from None
        finally:
            # It may have something left to write to a server that is gone.
            with suppress(OSError):
                await client.close()


class Pull:
    """Asks a consumer for messages. The client's own way makes two tasks for each message, and is five times slower."""

    def __init__(self, client: Any, subject: str) -> None:
        self._client, self._subject = client, subject
        self.inbox = client.new_inbox()
        self._came: list[Any] = []
        self._wanted = self._asked = 0
        self._done = asyncio.Event()

    async def next(self, many: int) -> list[Any]:
        """Messages that are there, so many at most; at least one, or else the server is away."""
        self._came, self._wanted, self._asked = [], many, self._asked + 1
        self._done.clear()
        question = msgspec.json.encode({"batch": many, "max_bytes": FETCH_BYTES, "no_wait": True})
        await self._client.publish(self._subject, question, reply=f"{self.inbox}.{self._asked}")
        async with asyncio.timeout(ANSWER_S):
            while not self._done.is_set():
                if not self._client.is_connected:
                    raise Away("the server is lost")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._done.wait(), RETRY_S)
        if not self._came:
            raise Away("the server sent none of the messages that it counts")
        return self._came

    async def take(self, message: Any) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._came.append(message)
            if len(self._came) == self._wanted:
                self._done.set()
        elif message.subject == f"{self.inbox}.{self._asked}":
            # A status ends what was asked for last: there is no more, or more would be too large.
            self._done.set()


async def _next(parts: AsyncGenerator[list[Stored], None]) -> list[Stored] | None:
    return await anext(parts, None)


def _place(reply: str) -> tuple[int, int, int, int]:
    """From where an acknowledgement would go: its number in the stream and among deliveries, its time, what is left.

    >>> _place("$JS.ACK.orders.c1.1.17.3.1700000000000000000.5")
    (17, 3, 1700000000000000000, 5)
    """
    words = reply.split(".")
    # A server with domains has two more words in front.
    first = 5 if len(words) == 9 else 7
    sequence, counted, time_ns, left = map(int, words[first : first + 4])
    return sequence, counted, time_ns, left


async def _quietly(error: Exception) -> None:
    """What the client reports it also raises."""


def load_client() -> Any:
    try:
        from nats.aio.client import Client
    except ImportError:
        raise BadParameter("jetstream", "nats-py is not installed: pip install 'antecede[nats]'") from None
    return Client
