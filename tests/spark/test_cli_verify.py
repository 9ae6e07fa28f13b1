"""antecede verify on Spark says what it says in this process."""

import pyarrow.parquet as pq

from tests.test_cli_verify import home, told

__all__ = ["home", "told"]


def test_spark_says_the_same(warm, told, home, tmp_path):
    explained = warm("verify", home / "bad", "--explain", "--master", "local[2]")
    here = told(home / "bad", "--explain")
    assert explained.stderr.startswith("on Spark: --master is given\nsequence: 2 runs")
    # Only the first line, which says who does it, is another.
    assert (explained.returncode, explained.stderr.splitlines()[1:]) == (1, here[2].splitlines()[1:])
    done = warm("verify", home / "bad", "--json", "--master", "local[2]", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == told(home / "bad", "--json", "--out", tmp_path / "here")[:2]
    for table in ("findings", "verdicts"):
        assert (
            pq.read_table(tmp_path / "out" / table).to_pylist()
            == pq.read_table(tmp_path / "here" / table).to_pylist()
        )
    nothing = warm("verify", home / "nothing", "--master", "local[2]")
    assert nothing.returncode == 2
    assert "there is no trace here" in nothing.stderr
