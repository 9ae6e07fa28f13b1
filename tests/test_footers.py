"""What footers tell, and what is said of files that do not tell it."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antecede.errors import BadTrace
from antecede.trace import footers
from antecede.trace.footers import read_footer, read_local_trace, span
from antecede.trace.layout import Layout
from antecede.verification import verify
from tests.spark import planted


def statistics(**told):
    """What a Parquet reader gives of a column chunk."""
    return SimpleNamespace(
        **{"has_min_max": True, "min": 3, "max": 9, "has_null_count": True, "null_count": 0} | told
    )


@pytest.mark.parametrize(
    ("told", "required", "expected"),
    [
        (statistics(), False, (3, 9)),
        (statistics(null_count=1), False, None),
        # Some writers leave the count out: there may be nulls, and a clock that is null is no clock.
        (statistics(has_null_count=False, null_count=None), False, None),
        (statistics(has_null_count=False, null_count=None), True, (3, 9)),
        (statistics(has_min_max=False), True, None),
        (None, True, None),
    ],
)
def test_a_span_is_only_told_where_no_value_can_be_null(told, required, expected):
    assert span(told, required) == expected


def test_clocks_that_are_null_in_part_and_not_counted_do_not_refuse_a_trace(tmp_path, monkeypatch):
    run = planted.run_of(3, events=40)
    root = planted.write(tmp_path / "trace", [run])
    [path] = Layout(root).files(run[0])
    planted.write_file(
        path, [{**row, "clock": None if at % 3 else row["clock"]} for at, row in enumerate(run[2])]
    )

    def drop_null_count(told, required):
        """As if the writer had not counted nulls."""
        return span(statistics(min=told.min, max=told.max, has_null_count=False, null_count=None), required)

    monkeypatch.setattr(footers, "span", drop_null_count)
    found = verify(root)
    assert list(planted.differences(run, found.runs.to_pylist()[0], found.findings.to_pylist())) == []


def test_a_storage_that_refuses_is_not_said_to_hold_a_broken_file(monkeypatch):
    class Forbidding(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD  # noqa: N815

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Forbidding) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, value in (
            ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}"),
            ("AWS_ACCESS_KEY_ID", "nobody"),
            ("AWS_SECRET_ACCESS_KEY", "nothing"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        with pytest.raises(BadTrace) as caught:
            read_footer("s3://lake/trace/events/00000-r.parquet")
        server.shutdown()
    assert "the file cannot be opened: " in str(caught.value)
    assert "ACCESS_DENIED" in str(caught.value)
    assert "no whole Parquet file" not in str(caught.value)


def test_a_file_that_is_cut_off_is_said_to_be(tmp_path):
    run = planted.run_of(3, events=40)
    root = planted.write(tmp_path / "trace", [run])
    [path] = Layout(root).files(run[0])
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(BadTrace, match=r"00000-r3\.parquet: the file is not a complete Parquet file: ."):
        read_local_trace(root)


def test_many_files_are_read_in_the_order_of_their_names(tmp_path):
    runs = [planted.run_of(seed, events=30) for seed in range(40)]
    trace = read_local_trace(planted.write(tmp_path / "trace", runs))
    assert [file.run for file in trace.files] == sorted((name for name, _, _ in runs), key=str.encode)
    assert trace.rows == sum(len(rows) for _, _, rows in runs)


def test_a_table_of_runs_may_be_a_directory_and_names_are_unique(tmp_path):
    run = planted.run_of(3, events=40)
    root = planted.write(tmp_path / "trace", [run])
    table = pq.read_table(root / "runs.parquet")
    (root / "runs.parquet").unlink()
    (root / "runs.parquet").mkdir()
    pq.write_table(table, root / "runs.parquet" / "part-0.parquet")
    assert read_local_trace(root).runs["run"].to_pylist() == ["r3"]
    pq.write_table(pa.concat_tables([table, table]), root / "runs.parquet" / "part-0.parquet")
    with pytest.raises(BadTrace, match="2 runs are called r3; each needs a name of its own"):
        read_local_trace(root)
