"""The benchmark of nodes runs, and everything in it is delivered. No time is judged."""

from benchmarks.net import CASES, Result, main, table


def test_the_result_is_written_where_asked(tmp_path, capsys):
    out = tmp_path / "net.md"
    main(["--quick", "--out", str(out)])
    text = out.read_text(encoding="utf-8")
    assert text == capsys.readouterr().out
    assert [case.name in text for case in CASES] == [True] * len(CASES)


def test_ratios_are_to_the_peer_of_the_same_size():
    results = [Result("bare streams", 3, 100, 200.0), Result("`fifo`", 3, 100, 50.0)]
    assert table(results)[-1] == "| `fifo` | 3 | 100 | 50 | 0.25 |"
