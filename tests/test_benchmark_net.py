"""The benchmark of nodes runs, and everything in it is delivered. No time is judged."""

import asyncio

import pytest

from benchmarks.net import counts
from benchmarks.net.__main__ import CASES, main, table
from benchmarks.net.counts import count_alone, count_flood
from benchmarks.net.journals import Journals, time_sync
from benchmarks.net.measure import Load, Result
from benchmarks.net.others import nats_server


@pytest.mark.skipif(nats_server() is None, reason="there is no nats-server")
def test_the_result_is_written_where_asked(tmp_path, capsys):
    out = tmp_path / "net.md"
    main(["--quick", "--out", str(out)])
    text = out.read_text(encoding="utf-8")
    assert text == capsys.readouterr().out
    assert [case.name in text for case in CASES] == [True] * len(CASES)
    assert "| nodes | bytes | three syncs |" in text


@pytest.fixture
def few(monkeypatch):
    """Few messages are counted one after the other: each waits until nothing follows from it."""
    monkeypatch.setattr(counts, "ALONE", 4)


def test_what_is_counted_and_sampled_is_written_too(few, capsys):
    for option, row in (("--counts", "| `permit` | 2 nodes, 100 bytes |"), ("--profile", "| machine |")):
        main(["--quick", "--each", "10", option])
        assert row in capsys.readouterr().out


def test_ratios_are_to_the_peer_of_the_same_size():
    results = [
        Result("bare streams", 3, 100, 200.0, 100.0, 7.0, 1.0, 2.0),
        Result("`fifo`", 3, 100, 50.0, 40.0, 7.0, 2.0, 3.0),
    ]
    assert table(results)[-1] == "| `fifo` | 3 | 100 | 50 | 0.25 | 40 | 0.40 | 7 | 2.00 | 3.00 | 1.50 |"


def test_a_longer_way_has_more_of_all_that_is_counted():
    load, cases = Load(2, 100, 40), {case.name: case for case in CASES}
    bare, without, kept = (
        count_flood(cases[name], load) for name in ("bare streams", "`permit`", "`permit`, journal, normal")
    )
    assert kept["bytecodes"] > without["bytecodes"] > 50
    assert bare["writes"] == 1 > without["writes"] > 0
    assert bare["groups"] == without["groups"] == 0
    # Sent and received.
    assert kept["inputs"] > 2 > kept["groups"] > 0


def test_a_message_alone_is_carried_answered_and_acknowledged(few):
    cases = {case.name: case for case in CASES}
    bare, permit = (count_alone(cases[name], 2, 100) for name in ("bare streams", "`permit`"))
    assert (bare["frames"], bare["writes"]) == (0, 1)
    assert 2 <= permit["frames"] < 5


def test_journals_alone_hand_over_everything(tmp_path):
    async def main() -> list[bytes]:
        journals = Journals(3, tmp_path)
        await journals.start()
        for number in range(10):
            await journals.send(number % 2, 2, bytes([number]))
        found = [await journals.receive(2) for _ in range(10)]
        await journals.stop()
        return found

    assert sorted(asyncio.run(main())) == [bytes([number]) for number in range(10)]
    assert time_sync(tmp_path, 3) > 0


def test_a_load_that_there_is_not_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--nodes", "5"])
    assert "nodes are 3, 8 or 32" in capsys.readouterr().err
