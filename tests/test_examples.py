"""The examples run, and show what they say."""

import asyncio

import pytest

from examples.chat import chat

QUESTION, ANSWER = "ann: shall we meet at six?", "bob: yes, let us"


@pytest.mark.parametrize(
    ("protocol", "read"), [("unordered", [ANSWER, QUESTION]), ("permit", [QUESTION, ANSWER])]
)
def test_in_the_chat_no_answer_is_seen_before_its_question(protocol, read):
    # The time is for a machine that is busy: without order, the answer ends the cut when it arrives.
    assert asyncio.run(chat(protocol, cut_s=2.0)) == read
