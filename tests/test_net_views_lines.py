"""`antecede node`: processes that join with a state, leave and remove, by lines of JSON."""

from __future__ import annotations

import signal

from tests.processes import free_addresses
from tests.test_cli_node import PATIENCE_S, Process

GIVES = "state = true"


def test_programs_join_with_a_state_leave_and_remove(tmp_path):
    addresses = dict(zip(["ann", "bob", "eve"], free_addresses(3), strict=True))
    founders = {name: addresses[name] for name in ("ann", "bob")}
    ann, bob = (Process(tmp_path, name, founders, GIVES) for name in founders)
    running = [ann, bob]
    try:
        for one in running:
            one.hear("ready")
        ann.ask(do="send", to="all", text="Tea?")
        assert bob.hear("message")["text"] == "Tea?"
        eve = Process(tmp_path, "eve", addresses, join=True)
        running.append(eve)
        assert ann.hear("wanted") == {"event": "wanted", "for": ["eve"]}
        ann.ask(do="state", text="Tea? was asked")
        view = ann.hear("view")
        assert (view["members"], view["joined"], view["lost"]) == (["ann", "bob", "eve"], ["eve"], [])
        ann.ask(do="state", text="again")
        assert ann.hear("refused")["reason"] == "no node waits for a state now"
        assert eve.hear("ready")["address"] == addresses["eve"]
        state = eve.hear("state")
        assert (state["sender"], state["number"], state["text"]) == ("ann", 0, "Tea? was asked")
        bob.ask(do="send", to="all", text="Yes!")
        assert eve.hear("message")["text"] == "Yes!"

        eve.process.send_signal(signal.SIGKILL)
        eve.process.wait(PATIENCE_S)
        ann.ask(do="remove", name="eve")
        assert ann.hear("removed") == {"event": "removed", "name": "eve"}
        ann.ask(do="remove", name="nobody")
        assert "'nobody' is not in the view" in ann.hear("refused")["reason"]
        bob.ask(do="leave")
        assert bob.hear("left") == {"event": "left"}
        bob.hear("closed")
        assert bob.process.wait(PATIENCE_S) == 0
        ann.ask(do="status")
        status = ann.hear("status")
        assert (status["members"], status["view"]) == (["ann"], 4)
        assert ann.stop() == 0
    finally:
        for one in running:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait(PATIENCE_S)
            for pipe in (one.process.stdin, one.process.stdout):
                assert pipe is not None
                pipe.close()
