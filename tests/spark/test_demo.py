"""antecede demo: the whole pipeline, on small runs."""

import json
import re

import pytest

from antecede.cli import run
from antecede.protocols import PROTOCOLS


@pytest.mark.usefixtures("spark")
def test_the_demo_says_who_kept_causal_order_and_at_what_price(capsys, tmp_path):
    out = tmp_path / "demo"
    assert run(["demo", "--messages", "150", "--out", str(out), "--json"]) == 0, capsys.readouterr().err
    printed, err = capsys.readouterr()
    told = json.loads(printed)
    assert told["verdict"] == "yes"
    assert [line["protocol"] for line in told["protocols"]] == list(PROTOCOLS)
    lines = {line["protocol"]: line for line in told["protocols"]}
    assert {name for name, line in lines.items() if not line["kept"]} == {"unordered", "fifo"}
    assert lines["matrix"]["violations"] == {"even": 0, "wild": 0, "far": 0}
    assert lines["unordered"]["violations"]["wild"] > 0
    assert lines["matrix"]["stamp_bytes"] > 10 > lines["permit"]["stamp_bytes"]
    assert lines["permit"]["control_per_message"] > 0 == lines["matrix"]["control_per_message"]
    assert "which do not promise it" in err
    assert sorted(path.name for path in out.iterdir()) == [
        "findings",
        "measures",
        "report.html",
        "results.jsonl",
        "trace",
        "verdicts",
    ]
    page = (out / "report.html").read_text()
    assert "</html>" in page
    # The page has the verdicts of the table.
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    outcomes: dict[str, set[str]] = {}
    for one in json.loads(data)["runs"]:
        outcomes.setdefault(one["protocol"], set()).add(one["outcome"])
    assert {name for name, found in outcomes.items() if found != {"kept"}} == {"unordered", "fifo"}
    assert outcomes["unordered"] <= {"kept", "unpromised"}


def test_a_demo_of_nothing_is_refused(capsys):
    assert run(["demo", "--messages", "0"]) == 2
    assert capsys.readouterr().err == "antecede: demo: --messages must be 1 or more, not 0\n"


def test_a_demo_writes_into_nothing_that_is_there(capsys, tmp_path):
    (tmp_path / "runs.parquet").write_text("mine")
    assert run(["demo", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"antecede: output: {tmp_path} is there already: write to a new place, or remove it first\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["runs.parquet"]
