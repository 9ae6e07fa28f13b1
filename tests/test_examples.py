"""The examples run, and show what they say."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from examples.allocator import serve_requests
from examples.chat import chat
from examples.crdt import shop
from examples.replica import document

ROOT = Path(__file__).parent.parent
PATIENT_S = 2.0
"""The time is for a machine that is busy: without order, what arrives too early ends the cut."""

QUESTION, ANSWER = "ann: shall we meet at six?", "bob: yes, let us"


@pytest.mark.parametrize(
    ("protocol", "read"), [("unordered", [ANSWER, QUESTION]), ("permit", [QUESTION, ANSWER])]
)
def test_in_the_chat_no_answer_is_seen_before_its_question(protocol, read):
    assert asyncio.run(chat(protocol, cut_s=PATIENT_S)) == read


def test_who_gets_the_token_has_what_was_written_before():
    right = ["1. by ann", "2. by bob", "3. by eve"]
    assert asyncio.run(document("permit", cut_s=0.2)) == dict.fromkeys(["ann", "bob", "eve"], right)
    wrong = asyncio.run(document("unordered", cut_s=PATIENT_S))
    assert wrong["eve"] == ["2. by bob", "2. by eve", "1. by ann"]


@pytest.mark.parametrize(
    ("protocol", "order", "cut_s"),
    [("unordered", ["bob", "ann"], PATIENT_S), ("matrix", ["ann", "bob"], 0.2)],
)
def test_who_asked_first_is_served_first(protocol, order, cut_s):
    assert asyncio.run(serve_requests(protocol, cut_s)) == order


def test_replicas_converge_if_operations_come_in_causal_order():
    assert asyncio.run(shop("permit", cut_s=0.2)) == dict.fromkeys(["ann", "bob", "eve"], (2, {"tea"}))
    wrong = asyncio.run(shop("unordered", cut_s=PATIENT_S))
    assert wrong["bob"] == (2, {"tea"})
    assert wrong["eve"] == (2, {"milk", "tea"})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("chat", "eve reads, with permit:\n  ann: shall"),
        ("replica", "3. by eve"),
        ("crdt", "has tea"),
        ("priorities", "pump: ALARM pumping"),
    ],
)
def test_an_example_is_a_command(name, told):
    command = [sys.executable, "-m", f"examples.{name}", "permit"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert told in done.stdout
    assert done.stderr == ""
