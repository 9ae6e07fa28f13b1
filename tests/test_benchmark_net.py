"""The benchmark of nodes runs, and everything in it is delivered. No time is judged."""

import pytest

from benchmarks.net.__main__ import CASES, main, table
from benchmarks.net.budget import count_bytecodes
from benchmarks.net.measure import Load, Result
from benchmarks.net.others import nats_server


@pytest.mark.skipif(nats_server() is None, reason="there is no nats-server")
def test_the_result_is_written_where_asked(tmp_path, capsys):
    out = tmp_path / "net.md"
    main(["--quick", "--profile", "--out", str(out)])
    text = out.read_text(encoding="utf-8")
    assert text == capsys.readouterr().out
    assert [case.name in text for case in CASES] == [True] * len(CASES)
    assert "| machine |" in text


def test_ratios_are_to_the_peer_of_the_same_size():
    results = [
        Result("bare streams", 3, 100, 200.0, 100.0, 7.0, 1.0, 2.0),
        Result("`fifo`", 3, 100, 50.0, 40.0, 7.0, 2.0, 3.0),
    ]
    assert table(results)[-1] == "| `fifo` | 3 | 100 | 50 | 0.25 | 40 | 0.40 | 7 | 2.00 | 3.00 | 1.50 |"


def test_bytecodes_are_counted_and_a_longer_way_has_more():
    load = Load(2, 100, 40)
    without, kept = (count_bytecodes("permit", load, sync) for sync in (None, "normal"))
    assert kept > without > 50


def test_a_load_that_there_is_not_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--nodes", "5"])
    assert "nodes are 3, 8 or 32" in capsys.readouterr().err
