"""A stream of NATS JetStream, as a source and a sink need it: how far it reaches, what is between two numbers, publish.

Spark calls Python functions that wait, so each call here runs an event loop of its own, with a connection of its own: a
client whose loop stands still between calls would be taken for dead by its server. A server that is away is waited for,
`patience_s`, and what was read meanwhile is not read again.

Each message of a stream has a number (its *sequence*), which grows and is never given twice. Messages may be deleted.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from antecede.errors import AntecedeError, BadParameter, InputError

__all__ = ["Broker", "Lost", "Stored", "client_class"]

FETCH: Final = 1000
"""Messages asked for at a time: what a task holds of a stream at once."""
CONNECT_S: Final = 2
ANSWER_S: Final = 5.0
RETRY_S: Final = 0.2
FETCH_BYTES: Final = 1 << 26
"""The largest that a server takes: one message always fits."""
INACTIVE_S: Final = 60.0
"""The server forgets the consumer of a reader that was killed after so long."""

T = TypeVar("T")


class Stored(NamedTuple):
    """A message of a stream."""

    sequence: int
    subject: str
    time_ns: int
    data: bytes


class Lost(InputError):
    """Messages that were to be read are not in the stream any more."""

    def __init__(self, stream: str, reason: str) -> None:
        self.stream, self.reason = stream, reason
        super().__init__(f"stream {stream}: {reason}")


class Away(Exception):
    """The server does not answer now."""


@dataclass(frozen=True)
class Broker:
    """One stream at a server.

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

    def reach(self) -> tuple[int, int]:
        """The number of the first message, and of the next one that will come."""

        async def ask(_: Any, js: Any) -> tuple[int, int]:
            state = (await js.stream_info(self.stream)).state
            return max(1, state.first_seq), state.last_seq + 1

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
            await pull.begin()
            left, count, at = consumer.num_pending, 0, start
            while left and at < end:
                part = []
                # Numbers may be missing between, so there are no more messages than numbers.
                for message in await pull.next(min(FETCH, left, end - at)):
                    sequence, counted, time_ns, left = _place(message.reply)
                    count += 1
                    if counted != count:
                        raise Away(f"delivery {counted} came where {count} was due")
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

        client = client_class()()
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
            raise BadParameter("jetstream", f"the server has no {self.where}") from None
        except AntecedeError:
            raise  # What is ours is told as it is, though it may be an OSError, too.
        except (
            OSError,
            TimeoutError,
            asyncio.CancelledError,
            errors.Error,
            NoStreamResponseError,
            ServiceUnavailableError,
        ) as error:
            raise Away(str(error) or type(error).__name__) from None
        finally:
            # It may have something left to write to a server that is gone.
            with suppress(OSError):
                await client.close()


class Pull:
    """Asks a consumer for messages. The client's own way makes two tasks for each message, and is five times slower."""

    def __init__(self, client: Any, subject: str) -> None:
        self._client, self._subject = client, subject
        self._inbox = client.new_inbox()
        self._came: list[Any] = []
        self._wanted = self._asked = 0
        self._done = asyncio.Event()

    async def begin(self) -> None:
        await self._client.subscribe(f"{self._inbox}.*", cb=self._take, pending_bytes_limit=0)

    async def next(self, many: int) -> list[Any]:
        """Messages that are there, so many at most; at least one, or else the server is away."""
        self._came, self._wanted, self._asked = [], many, self._asked + 1
        self._done.clear()
        question = msgspec.json.encode({"batch": many, "max_bytes": FETCH_BYTES, "no_wait": True})
        await self._client.publish(self._subject, question, reply=f"{self._inbox}.{self._asked}")
        async with asyncio.timeout(ANSWER_S):
            while not self._done.is_set():
                if not self._client.is_connected:
                    raise Away("the server is lost")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._done.wait(), RETRY_S)
        if not self._came:
            raise Away("there is no message, where some were left")
        return self._came

    async def _take(self, message: Any) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._came.append(message)
            if len(self._came) == self._wanted:
                self._done.set()
        elif message.subject == f"{self._inbox}.{self._asked}":
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


def client_class() -> Any:
    try:
        from nats.aio.client import Client
    except ImportError:
        raise BadParameter("jetstream", "nats-py is not installed: pip install 'antecede[nats]'") from None
    return Client
