"""Nodes record what happens, as a trace that the oracle can judge."""

from __future__ import annotations

import asyncio
from random import Random

import pyarrow.parquet as pq
import pytest

from antecede.errors import CannotWrite
from antecede.model import View
from antecede.net import Settings
from antecede.net.observe.recorder import Recorder
from antecede.oracle import check
from antecede.process.events import Entry
from antecede.trace import events_of, read_runs
from tests.net_world import PATIENCE_S, Conversation, in_memory

OFTEN = Settings(trace_s=0.02, first_retry_s=0.01, last_retry_s=0.05)


def test_nodes_that_share_a_directory_write_one_run(tmp_path):
    async def main():
        async with in_memory(
            3, protocol="matrix", trace=tmp_path / "t", run="monday", settings=OFTEN
        ) as nodes:
            conversation = Conversation(nodes, Random(3))
            await conversation.hold(each=40)
        return conversation.events

    seen = asyncio.run(main())
    [run] = read_runs(tmp_path / "t")
    assert (run.run, run.protocol, run.processes) == ("monday", "matrix", ("p1", "p2", "p3"))
    recorded = events_of(tmp_path / "t", "monday")
    for process in range(3):
        mine = [event for event in recorded if event.process == process and event.kind != "receive"]
        assert mine == [event for event in seen if event.process == process]
    assert check(recorded, 3).ok
    rows = pq.read_table(tmp_path / "t" / "events").to_pylist()
    for name in run.processes:
        placed = sorted((row["index"], row["time_ns"]) for row in rows if row["process"] == name)
        assert [index for index, _ in placed] == list(range(len(placed)))
        times = [time for _, time in placed]
        assert times == sorted(times)
        assert times[0] > 1_600_000_000 * 10**9


def test_a_file_that_someone_may_have_read_does_not_change(tmp_path):
    recorder = Recorder(tmp_path, "r/1", "fifo", View.of("a", "b"), "a")
    events = [Entry(7 + k, "send", 0, k + 1, (1,), "", 5) for k in range(3)]
    first = recorder.write(events[:2])
    before = first.read_bytes()
    assert recorder.write(events[:2]) == first
    # Killed before it could forget them, it writes them again.
    rest = recorder.write(events)
    assert (first.name, rest.name) == ("000000000007-r%2F1@a.parquet", "000000000009-r%2F1@a.parquet")
    assert first.read_bytes() == before
    assert len(events_of(tmp_path, "r/1")) == 3


def test_a_trace_stays_where_it_was_begun(tmp_path, monkeypatch):
    """Also if the program goes elsewhere."""
    monkeypatch.chdir(tmp_path)
    recorder = Recorder("t", "r", "fifo", View.of("a", "b"), "a")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    recorder.write([Entry(0, "send", 0, 1, (1,), "", 5)])
    assert len(events_of(tmp_path / "t", "r")) == 1


def test_a_trace_that_cannot_be_written_stops_the_node(tmp_path):
    (tmp_path / "file").write_text("in the way")

    async def main():
        async with (
            in_memory(1, trace=tmp_path / "file", settings=OFTEN) as (p1,),
            asyncio.timeout(PATIENCE_S),
        ):
            await p1.send("p1", b"")
            await p1.receive()
            with pytest.raises(CannotWrite, match=r"trace .*file"):
                await p1.receive()

    asyncio.run(main())
