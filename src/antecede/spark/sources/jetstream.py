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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from antecede.errors import AntecedeError, BadParameter, BadTrace
from antecede.spark.errors import errors_marked
from antecede.spark.frames import ALL_PACKETS, parse_duration
from antecede.spark.sources.offsets import (
    MOST,
    RETRY_S,
    LostRecords,
    NumberedSource,
    Reach,
    Span,
    load_client,
)
from antecede.spark.trace import SPARK_EVENTS
from antecede.trace import EVENTS, KINDS

__all__ = ["ANSWER_S", "Broker", "JetStream", "encode", "jetstream", "load_nats"]

LEAST: Final = 1000
"""Messages for which a task of their own is worth while."""
FETCH: Final = 20_000
"""Messages asked for at a time: what a task holds of a stream at once."""
FETCH_BYTES: Final = 1 << 26
"""The largest that a server takes: one message always fits."""
CONNECT_S: Final = 2
ANSWER_S: Final = 5.0
INACTIVE_S: Final = 10.0
"""The server forgets a consumer after so long: one serves for a single question."""

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


class JetStream(NumberedSource[str]):
    owner = "jetstream"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        load_nats()
        self.rows = self.read_choice("rows", "packets", "events", "raw")
        subject, credentials = self.options.get("subject"), self.options.get("credentials")
        patience_s = float(self.options.get("patience_s", "30"))
        url, stream = self.read_option("url"), self.read_option("stream")
        self.broker = Broker(url, stream, subject, credentials, patience_s)
        self.start = self.options.get("start", "earliest")
        if self.start not in ("earliest", "latest") and not self.start.isdecimal():
            raise BadParameter(
                "jetstream", f"start must be earliest, latest or a message's number, not {self.start!r}"
            )
        self.parts = self.read_count("partitions", 2)
        self.lost = self.read_choice("lost", "fail", "skip")

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
            raise LostRecords(f"stream {self.broker.stream}", f"{last}: the stream was made anew")
        if at < reach.first and self.lost == "fail":
            first = f"its first message is {reach.first}, and {at} was not read yet"
            raise LostRecords(f"stream {self.broker.stream}", f"{first}: set lost to skip to go on without")
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
    for, `patience_s`.

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
        while start < end and (part := self.run(partial(self._fetch, start=start, end=end))):
            start = part[-1].sequence + 1
            if within := [message for message in part if message.sequence < end]:
                yield within

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
                if time.monotonic() > until:
                    reason = f"the server that should have {self.where} does not answer: {error}"
                    raise BadParameter("jetstream", reason) from None
            time.sleep(RETRY_S)

    async def _fetch(self, client: Any, js: Any, start: int, end: int) -> list[Stored]:
        """The first messages from `start` on; none if there are none.

        By one question: the client's own way makes two tasks for each message, and is five times slower.
        """
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

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
        # Numbers may be missing between, so there are no more messages than numbers.
        many, came, done = min(FETCH, consumer.num_pending, end - start), list[Stored](), asyncio.Event()
        if not many:
            return []

        async def take(message: Any) -> None:
            if message.reply.startswith("$JS.ACK."):
                sequence, counted, time_ns = read_place(message.reply)
                if counted == len(came) + 1:
                    came.append(Stored(sequence, message.subject, time_ns, message.data))
                    if counted < many:
                        return
            # The last one, one after others that were lost, or a status: no more is there, or would fit.
            done.set()

        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=take, pending_bytes_limit=0)
        question = msgspec.json.encode({"batch": many, "max_bytes": FETCH_BYTES, "no_wait": True})
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{consumer.name}"
        await client.publish(subject, question, reply=inbox)
        heard, silent_s = 0, 0.0
        # What came before the server was lost need not be asked for again.
        while not done.is_set() and client.is_connected and silent_s < ANSWER_S:
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), RETRY_S)
            heard, silent_s = len(came), silent_s + RETRY_S if len(came) == heard else 0.0
        if not came:
            raise Away("the server sent none of the messages that it counts")
        return came

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Any, Any]]:
        """A client and its JetStream, while the block runs. Whatever says that the server is away is `Away`."""
        from nats import errors
        from nats.js.errors import NoStreamResponseError, NotFoundError, ServiceUnavailableError

        away = (OSError, TimeoutError, asyncio.CancelledError, errors.Error)
        client = load_nats().Client()
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


def read_place(reply: str) -> tuple[int, int, int]:
    """From where an acknowledgement would go: a message's number in the stream and among deliveries, and its time.

    >>> read_place("$JS.ACK.orders.c1.1.17.3.1700000000000000000.5")
    (17, 3, 1700000000000000000)
    """
    words = reply.split(".")
    # A server with domains has two more words in front.
    first = 5 if len(words) == 9 else 7
    sequence, counted, time_ns = map(int, words[first : first + 3])
    return sequence, counted, time_ns


async def _quietly(error: Exception) -> None:
    """What the client reports it also raises."""


def load_nats() -> Any:
    return load_client("jetstream", "nats.aio.client", "nats-py", "nats")
