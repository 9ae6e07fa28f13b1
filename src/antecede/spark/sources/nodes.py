"""Streaming sources: what running nodes record, in files as they appear (`traces`), or from live feeds (`node_feed`).

Spark's own file source reads files: a file of a trace is complete once it is visible, and does not change afterwards
(`antecede.net.observe.recorder`), which is all it asks for. Rules of feeds (`antecede.wire.feed`):

  offset     for each address, the index of the next event to read; the node keeps nothing for its readers
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from antecede.errors import BadParameter, BadTrace, WireError
from antecede.spark.frames import escape_path, files, parse_duration
from antecede.spark.sources.offsets import MOST, RETRY_S, NumberedSource, Reach, Span
from antecede.spark.trace import SPARK_EVENTS, refuse_files
from antecede.storage import absolute, join, local, readable
from antecede.trace import EVENTS
from antecede.wire.feed import LINE_BYTES, Answer, answer, ask

__all__ = ["Client", "NodeFeed", "node_feed", "traces"]

log = logging.getLogger("antecede.spark")

CONNECT_S: Final = 2.0
SILENT_S: Final = 30.0
FILES: Final = 1000
"""Of a micro-batch at most."""
KEYS: Final = ("authority", "certificate", "key")


def traces(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """A streaming DataFrame of the events of the trace in a directory, those that are there and those to come.

    A local directory that is not there yet is made: nodes may start later. Each node's files come in order, unless
    clocks of file systems differ: `verify_stream` needs no order.
    """
    events = join(absolute(path), "events")
    if (here := local(events)) is not None:
        try:
            os.makedirs(here, exist_ok=True)
        except OSError as error:
            reason = f"the directory of event files cannot be made: {error.strerror or error}"
            raise BadTrace(here, reason) from None
    elif not files(spark, events):
        raise BadTrace(events, "there are no Parquet files: the events of a trace are missing")
    if readable(events):
        refuse_files(spark, files(spark, events)[:1], EVENTS)
    reader = spark.readStream.schema(SPARK_EVENTS).option("maxFilesPerTrigger", FILES)
    return reader.parquet(escape_path(events))


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
    wait_s = parse_duration("node_feed", "patience", patience) / 1000
    options = {"addresses": ",".join(addresses), "maxRows": max_rows, "patience_s": wait_s}
    return NodeFeed.open(spark, options | dict(zip(KEYS, map(str, tls or ()), strict=False)))


class NodeFeed(NumberedSource[str]):
    owner = "feed"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        places = [place.strip() for place in self.options.get("addresses", "").split(",")]
        for place in places:
            host, _, port = place.rpartition(":")
            if not host or not port.isdecimal():
                raise BadParameter("feed", f"an address must be host:port, not {place!r}")
        keys = tuple(self.options[name] for name in KEYS if name in self.options)
        if len(keys) not in (0, 3):
            raise BadParameter(
                "feed", f"TLS needs authority, certificate and key, and {len(keys)} of them are given"
            )
        patience_s = float(self.options.get("patience_s", "30"))
        self.clients = {place: Client(place, keys, patience_s) for place in places}

    def schema(self) -> StructType:
        return SPARK_EVENTS

    def reach(self) -> dict[str, Reach]:
        found = {}
        for place, client in self.clients.items():
            try:
                told = client.reach()
            except OSError as error:
                log.warning("feed %s cannot be reached: %s", place, error)
                continue
            # Events before the first that is still there were cleared away by the owner of the trace.
            found[place] = Reach(told.first, told.next)
        return found

    def find_place(self, part: str, at: int, reach: Reach) -> int:
        if reach.first <= at <= reach.end:
            return at
        reason = f"it has events up to {reach.end}, and {at} were read: it has another trace"
        if reach.first > at:
            dropped = "the node has dropped what is between"
            reason = f"its first event is {reach.first}, and {at} was not read yet: {dropped}"
        raise BadTrace(f"feed {part}", reason)

    def read_span(self, span: Span) -> Iterator[pa.RecordBatch]:
        # An address that is named no more is not read.
        if span.part in self.clients:
            for batch in self.clients[span.part].read(span.start, span.end):
                yield batch.select(EVENTS.names)


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
                        indices = batch.column("index").to_pylist()
                        if indices != list(range(at, at + len(batch))):
                            raise self._bad(f"it sent events {indices[:3]}..., not {at}, {at + 1} and so on")
                        yield batch
                        at, until = at + len(batch), time.monotonic() + self.patience_s
            except (OSError, pa.ArrowInvalid) as error:
                log.info("feed %s: %s", self.address, error)
            if at < end:
                if time.monotonic() > until:
                    waited = f"no event {at} came for {self.patience_s:g} s"
                    raise self._bad(f"{waited}, and the node had events up to {end}")
                time.sleep(RETRY_S)

    def _bad(self, reason: str) -> BadTrace:
        return BadTrace(f"feed {self.address}", reason)

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
                    raise self._bad(f"its answer cannot be read: {error.reason}") from None
                if told.error is not None:
                    raise self._bad(f"it refused events {start} to {end}: {told.error}")
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
