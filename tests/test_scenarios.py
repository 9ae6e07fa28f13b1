"""The papers' own scenarios, as transcripts: see tests/transcript.py for their language.

`python -m tests.transcript` writes down what the commands print now.
"""

import pytest

from tests.transcript import SCENARIOS, run

FILES = sorted(SCENARIOS.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_transcript_prints_what_it_says(path):
    told = path.read_text(encoding="utf-8")
    assert run(told) == told


def test_prose_stands_as_it_is_and_output_is_replaced():
    text = "A title\n\nnew fifo p1 p2\n----\nold\n\nProse,\nin two lines.\n\nsend p1 x to p2\n----\n"
    assert run(text) == (
        "A title\n\nnew fifo p1 p2\n----\nfifo: p1, p2\n\nProse,\nin two lines.\n\n"
        "send p1 x to p2\n----\ntransmit x to p2\n"
    )


def test_a_refusal_is_printed_and_changes_nothing():
    printed = run("new fifo p1 p2\n----\n\nsend p1 x to p9\n----\n\ncheck\n----\n")
    assert "refused: process 'p9' is not in the view of 2 (p1, p2)" in printed
    assert printed.endswith("0 deliveries, nothing wrong\n")
