"""A streaming source: the live feeds of running nodes (`antecede.wire.feed`), as the events of a trace.

Rules
  offset     for each address, the index of the next event to read. A node's events keep their indices and never change,
             so a batch that is read again is the same; the node keeps nothing for its readers
  order      each node's events come in order; nothing is said about two nodes. `verify_stream` wants no more
  admission  `maxRows` events a batch at most, from all nodes together
  away       a node that cannot be reached gives no new events until it can; one that goes away with events that a batch
             needs is waited for, `patience`. Under `Trigger.AvailableNow`, what is there to be read is what the nodes
             that can be reached have at the start
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from antecede.errors import BadParameter, BadTrace, WireError
from antecede.spark.duration import parse_duration
from antecede.spark.errors import mark_errors
from antecede.spark.sources.offsets import MOST, NumberedReader, Reach, read_count
from antecede.spark.trace.api import SPARK_EVENTS
from antecede.trace import EVENTS
from antecede.wire.feed import LINE_BYTES, Answer, answer, ask

__all__ = ["NodeFeed", "node_feed"]

log = logging.getLogger("antecede.spark")

CONNECT_S: Final = 2.0
SILENT_S: Final = 30.0
RETRY_S: Final = 0.2
KEYS: Final = ("authority", "certificate", "key")

Offset = dict[str, int]


def node_feed(
    spark: SparkSession,
    addresses: Sequence[str],
    *,
    max_rows: int = MOST,
    tls: tuple[str | os.PathLike[str], str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    patience: str = "30 seconds",
) -> DataFrame:
    """A streaming DataFrame of what nodes record, from their feeds at "host:port".

    `tls` are the files of an authority, a certificate and its key, as the nodes themselves have them.
    """
    spark.dataSource.register(NodeFeed)
    options: dict[str, Any] = {
        "addresses": ",".join(addresses),
        "maxRows": max_rows,
        "patience_s": parse_duration("node_feed", "patience", patience) / 1000,
    }
    if tls is not None:
        options |= {name: os.fspath(file) for name, file in zip(KEYS, tls, strict=True)}
    given = {name: str(value) for name, value in options.items()}
    NodeFeed(given)
    return spark.readStream.format(NodeFeed.name()).options(**given).load()


class NodeFeed(DataSource):
    """The source, as Spark knows it."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        places = [place.strip() for place in options.get("addresses", "").split(",")]
        for place in places:
            host, _, port = place.rpartition(":")
            if not host or not port.isdecimal():
                raise BadParameter("feed", f"an address must be host:port, not {place!r}")
        keys = tuple(options[name] for name in KEYS if name in options)
        if len(keys) not in (0, 3):
            raise BadParameter(
                "feed", f"TLS needs authority, certificate and key, and {len(keys)} of them are given"
            )
        patience_s = float(options.get("patience_s", "30"))
        self.clients = {place: Client(place, keys, patience_s) for place in places}
        self.max_rows = read_count("feed", options, "maxRows", MOST)

    @classmethod
    def name(cls) -> str:
        return "antecede_feed"

    def schema(self) -> StructType:
        return SPARK_EVENTS

    def streamReader(self, schema: StructType) -> FeedReader:
        return FeedReader(self.clients, self.max_rows)


@dataclass(frozen=True)
class Client:
    """Asks one feed."""

    address: str
    keys: tuple[str, ...] = ()
    patience_s: float = 30.0

    def reach(self) -> Answer:
        """How far it is. Raises `OSError` if it cannot be reached."""
        with self._asked(0, 0) as (told, _):
            return told

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The events from `start` to before `end`. A connection that breaks is made again, and they go on."""
        at, until = start, time.monotonic() + self.patience_s
        while at < end:
            try:
                with self._asked(at, end) as (_, stream):
                    for batch in pa.ipc.open_stream(stream):
                        self._check(batch, at)
                        yield batch
                        at, until = at + len(batch), time.monotonic() + self.patience_s
            except (OSError, pa.ArrowInvalid) as error:
                log.info("feed %s: %s", self.address, error)
            if at < end:
                if time.monotonic() > until:
                    raise BadTrace(
                        f"feed {self.address}",
                        f"no event {at} came for {self.patience_s:g} s, and the node had events up to {end}",
                    )
                time.sleep(RETRY_S)

    def _check(self, batch: pa.RecordBatch, at: int) -> None:
        indices = batch.column("index").to_pylist()
        if indices != list(range(at, at + len(batch))):
            raise BadTrace(
                f"feed {self.address}", f"it sent events {indices[:3]}..., not {at}, {at + 1} and so on"
            )

    @contextmanager
    def _asked(self, start: int, end: int) -> Iterator[tuple[Answer, BinaryIO]]:
        host, _, port = self.address.rpartition(":")
        raw = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
        with raw if not self.keys else self._context().wrap_socket(raw) as connection:
            connection.settimeout(SILENT_S)
            connection.sendall(ask(start, end))
            with connection.makefile("rb") as stream:
                line = stream.readline(LINE_BYTES)
                if not line:
                    raise ConnectionResetError("it closed the connection")
                try:
                    told = answer(line)
                except WireError as error:
                    raise BadTrace(
                        f"feed {self.address}", f"its answer cannot be read: {error.reason}"
                    ) from None
                if told.error is not None:
                    raise BadTrace(
                        f"feed {self.address}", f"it refused events {start} to {end}: {told.error}"
                    )
                yield told, stream

    def _context(self) -> ssl.SSLContext:
        authority, certificate, key = self.keys
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Certificates name processes, not hosts.
        context.check_hostname = False
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
        return context


class Span(InputPartition):
    """Events of one node."""

    def __init__(self, address: str, start: int, end: int) -> None:
        super().__init__((address, start, end))
        self.address, self.start, self.end = address, start, end


class FeedReader(NumberedReader[str]):
    """Plans batches in the driver; `read` runs in tasks."""

    def __init__(self, clients: dict[str, Client], max_rows: int) -> None:
        super().__init__(max_rows)
        self._clients = clients

    def reach(self) -> dict[str, Reach]:
        found = {}
        for place, client in self._clients.items():
            try:
                told = client.reach()
            except OSError as error:
                log.warning("feed %s cannot be reached: %s", place, error)
                continue
            # Events before the first that is still there were cleared away by the owner of the trace.
            found[place] = Reach(told.first, told.next)
        return found

    def find_place(self, part: str, at: int, reach: Reach) -> int:
        if reach.end < at:
            raise BadTrace(
                f"feed {part}",
                f"it has events up to {reach.end}, and {at} were read: it has another trace",
            )
        if reach.first > at:
            raise BadTrace(
                f"feed {part}",
                f"its first event is {reach.first}, and {at} was not read yet: the node has dropped what is between",
            )
        return at

    def partitions(self, start: Offset, end: Offset) -> Sequence[Span]:
        return [
            Span(place, start.get(place, 0), end[place])
            for place in end
            if place in self._clients and start.get(place, 0) < end[place]
        ]

    @mark_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        for batch in self._clients[partition.address].read(partition.start, partition.end):
            yield batch.select(EVENTS.names)
