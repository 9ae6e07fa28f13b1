"""A node's feed: what it recorded, by index, to whoever asks; and to nobody more than it can bear."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from antecede.errors import BadConfig, BadParameter
from antecede.model import View
from antecede.net.config import Config
from antecede.net.observe.recorder import Recorder
from antecede.net.serve.feed import Feed, Shelf
from antecede.net.serve.listener import AT_A_TIME
from antecede.process.events import Entry
from antecede.wire.feed import Answer, answer, ask

PATIENCE_S = 20.0


def record(directory: Any, first: int, many: int, node: str = "a") -> None:
    """A file of a node's events, which are sends."""
    recorder = Recorder(directory, "r", "fifo", View.of("a", "b"), node)
    recorder.write([Entry(first + k, "send", 0, first + k + 1, (1,), "", 5) for k in range(many)])


async def ask_feed(feed: Feed, data: bytes) -> tuple[Answer, list[int]]:
    """The answer, and the indices of the events that come with it."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(*feed.address.split(":"))
        writer.write(data)
        told = answer(await reader.readline())
        rest = await reader.read()
        writer.close()
    indices = pa.ipc.open_stream(rest).read_all()["index"].to_pylist() if rest else []
    return told, indices


def test_events_are_given_by_their_indices_again_and_again(tmp_path):
    async def main() -> None:
        async with Feed("127.0.0.1:0", tmp_path, "r", "a") as feed:
            assert await ask_feed(feed, ask()) == (Answer("a", "r", 0, 0), [])
            record(tmp_path, 0, 5)
            record(tmp_path, 5, 3)
            record(tmp_path, 0, 9, node="b")
            assert await ask_feed(feed, ask()) == (Answer("a", "r", 0, 8), [])
            record(tmp_path, 8, 10_000)
            for start, end in ((0, 10_008), (3, 7), (5, 8), (6, 9), (9000, 9001), (4103, 4105), (0, 1)):
                assert await ask_feed(feed, ask(start, end)) == (
                    Answer("a", "r", 0, 10_008),
                    list(range(start, end)),
                )

    asyncio.run(main())


def test_what_was_cleared_away_is_told(tmp_path):
    record(tmp_path, 0, 5)
    Recorder(tmp_path, "other-r", "fifo", View.of("a", "b"), "a").write([Entry(0, "send", 0, 1, (1,), "", 5)])
    record(tmp_path, 5, 5)
    next(iter((tmp_path / "events").glob("000000000000-r@*"))).unlink()
    shelf = Shelf(tmp_path, "r", "a")
    shelf.look()
    assert (shelf.first, shelf.next) == (5, 10)


def test_many_who_ask_at_once_get_the_same(tmp_path):
    async def main() -> None:
        async with Feed("127.0.0.1:0", tmp_path, "r", "a") as feed:
            for first in range(0, 60, 3):
                record(tmp_path, first, 3)
            told = await asyncio.gather(*(ask_feed(feed, ask()) for _ in range(10)))
            assert told == [(Answer("a", "r", 0, 60), [])] * 10
            assert await ask_feed(feed, ask(0, 60)) == (Answer("a", "r", 0, 60), list(range(60)))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"GET / HTTP/1.1\r\n", "malformed"),
        (ask(3, 6), "feed: a has events 0 to 5, not 3 to 6"),
        (b'{"feed":2}\n', "version 2, and this release reads 1"),
        (b'{"start":-1}\n', "events -1 to 0"),
    ],
)
def test_a_question_that_cannot_be_answered_is_told_so(tmp_path, data, told):
    record(tmp_path, 0, 5)

    async def main() -> None:
        async with Feed("127.0.0.1:0", tmp_path, "r", "a") as feed:
            error = (await ask_feed(feed, data))[0].error
            assert error is not None
            assert told in error

    asyncio.run(main())


def test_a_crowd_and_endless_lines_are_cut_off(tmp_path):
    record(tmp_path, 0, 5)

    async def main() -> None:
        async with Feed("127.0.0.1:0", tmp_path, "r", "a") as feed, asyncio.timeout(PATIENCE_S):
            place = feed.address.split(":")
            idle = [await asyncio.open_connection(*place) for _ in range(AT_A_TIME)]
            while feed._busy < AT_A_TIME:
                await asyncio.sleep(0.01)
            reader, writer = await asyncio.open_connection(*place)
            writer.write(ask())
            with suppress(ConnectionResetError):
                assert await reader.read() == b"", "one more is too many"
            writer.close()
            for reader, writer in idle:
                writer.write(b"x" * 100_000)
                with suppress(ConnectionResetError):
                    assert await reader.read() == b"", "no line has an end so late"
                writer.transport.abort()
            while feed._busy:
                await asyncio.sleep(0.01)
            assert (await ask_feed(feed, ask()))[0].next == 5

    asyncio.run(main())


def test_beyond_loopback_there_is_no_feed_without_tls(tmp_path):
    with pytest.raises(BadParameter, match="loopback"):
        Feed("0.0.0.0:7000", tmp_path, "r", "a")


def test_a_feed_without_a_trace_is_refused(tmp_path):
    with pytest.raises(BadConfig, match="it serves what the trace records"):
        Config("a", ["a", "b"], feed="127.0.0.1:7000").make_feed(tmp_path)
