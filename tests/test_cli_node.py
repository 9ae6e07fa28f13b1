"""`antecede node`: real processes that talk by lines of JSON, and stop gently."""

from __future__ import annotations

import json
import logging
import signal
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from antecede.cli import run
from antecede.cli.node import JsonLines
from tests.processes import free_addresses, run_node

PATIENCE_S = 20.0


class Process:
    """`antecede node`, running."""

    def __init__(
        self, directory: Path, name: str, peers: dict[str, str], extra: str = "", join: bool = False
    ) -> None:
        self.config = directory / f"{name}.toml"
        addresses = "\n".join(f'{peer} = "{address}"' for peer, address in peers.items())
        system = f"[peers]\n{addresses}\n[groups]\nall = {sorted(peers)}\n"
        if join:
            system = f'[join]\ngroups = ["all"]\n[join.members]\n{addresses}\n'
        self.config.write_text(f'name = "{name}"\n{extra}\n{system}')
        self.start()

    def start(self) -> None:
        self.process = run_node(self.config)

    def ask(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def hear(self, event: str) -> dict[str, Any]:
        """The next event of a kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found: dict[str, Any] = json.loads(line)
            if found["event"] == event:
                return found
        raise AssertionError(f"{self.config.name} ended before it said {event}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        return code


@pytest.fixture
def pair(tmp_path):
    peers = dict(zip(["ann", "bob"], free_addresses(2), strict=True))
    pair = [Process(tmp_path, name, peers, f'journal = "{name}.db"') for name in peers]
    for one in pair:
        assert one.hear("ready") == {
            "event": "ready",
            "name": one.config.stem,
            "address": peers[one.config.stem],
            "sent": 0,
        }
    yield pair
    for one in pair:
        if one.process.poll() is None:
            one.process.kill()
            one.stop()


def test_two_processes_talk_and_one_comes_back_where_it_was(pair):
    ann, bob = pair
    ann.ask(do="send", to="bob", text="häuser", ref=1)
    assert ann.hear("sent") == {"event": "sent", "number": 1, "ref": 1}
    ann.ask(do="send", to=["all"], base64="/w==", ref="two")
    first, second = bob.hear("message"), bob.hear("message")
    assert (first["sender"], first["text"], first["again"]) == ("ann", "häuser", False)
    assert (second["base64"], second["to"]) == ("/w==", ["ann", "bob"])
    bob.ask(do="ack", sender="ann", number=1)
    bob.ask(do="status")
    assert bob.hear("status")["connected"] == {"ann": True}
    assert bob.stop() == 0
    bob.start()
    assert bob.hear("ready")["sent"] == 0
    again = bob.hear("message")
    assert (again["number"], again["again"]) == (2, True)
    bob.ask(do="waiting")
    assert bob.hear("waiting") == {"event": "waiting", "held": [], "missing": []}
    assert ann.stop() == 0


def test_a_request_that_cannot_be_is_refused(pair):
    ann, _ = pair
    cases: list[tuple[dict[str, Any], str]] = [
        ({"do": "send", "to": "carol", "text": "x"}, "process 'carol' is not in the view"),
        ({"do": "send", "to": "bob"}, "text or base64"),
        ({"do": "send", "to": [], "text": "x"}, "nobody"),
        ({"do": "dance"}, "dance"),
        ({"do": "ack", "sender": "bob", "number": 9}, "message 9 of bob waits for no acknowledgement"),
    ]
    for request, reason in cases:
        ann.ask(**request)
        assert reason in ann.hear("refused")["reason"]
    assert ann.stop(signal.SIGINT) == 130, "Ctrl-C is told by the exit code"


@pytest.mark.parametrize("way", ["standard output", "socket"])
def test_a_node_that_fails_says_so_and_exits_with_an_error(tmp_path, way):
    """Removed by another, it stops: programs hear why, and so does whoever started it."""
    peers = dict(zip(["ann", "bob", "eve"], free_addresses(3), strict=True))
    # Nobody dials it any more, so it asks, after a while.
    extra = "settings = {beat_s = 0.2, dead_s = 0.5}\n" + ('socket = "bob.sock"' if way == "socket" else "")
    nodes = [Process(tmp_path, name, peers, extra if name == "bob" else "") for name in peers]
    ann, bob, eve = nodes
    try:
        for one in nodes:
            one.hear("ready")
        reason = "node bob is no member any more: it left, or was removed"
        with socket.socket(socket.AF_UNIX) if way == "socket" else nullcontext() as client:
            if client is not None:
                client.connect(str(tmp_path / "bob.sock"))
                client.sendall(b'{"do": "receive"}\n')
            ann.ask(do="remove", name="bob")
            ann.hear("removed")
            if client is not None:
                with client.makefile() as heard:
                    assert [json.loads(line) for line in heard][-1] == {"event": "failed", "reason": reason}
        assert bob.hear("failed") == {"event": "failed", "reason": reason}
        assert bob.process.wait(PATIENCE_S) == 2
        eve.ask(do="status")
        assert eve.hear("status")["members"] == ["ann", "eve"]
    finally:
        for one in nodes:
            one.process.kill()
            one.stop(signal.SIGKILL)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be read"),
        ("name = 3", "Expected `str`, got `int`"),
        ('name = "a"\n[peers]\nb = "10.0.0.1:1"', "is on another machine, or reached from one: give TLS"),
        ('name = "a"\ncolour = "red"\n[peers]\nb = "127.0.0.1:1"', "colour"),
        ('name = "a"\n[peers]\nb = "127.0.0.1:1"\n[settings]\nqueue = 0', "queue must be 1 or more, not 0"),
        ('name = "a"\n[peers]\nb = "127.0.0.1:1"\n[settings]\nspeed = 9', "speed"),
    ],
)
def test_a_configuration_that_describes_no_node_is_refused(tmp_path, capsys, text, told):
    path = tmp_path / "node.toml"
    if text is not None:
        path.write_text(text)
    assert run(["node", "--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


TOPOLOGY = """
[topology]
links = [["ann", "hub"], ["bob", "hub"]]
processes = ["ann", "bob"]
"""


WITNESSED = """
[topology]
links = [["ann", "hub"], ["bob", "hub"], ["ann", "wit"], ["bob", "wit"], ["hub", "wit"]]
processes = ["ann", "bob"]
separators = [["hub", "wit"]]
witnesses = ["wit"]
"""


def write_router(directory: Path, name: str, peers: dict[str, str], topology: str = TOPOLOGY) -> Path:
    addresses = "\n".join(f'{peer} = "{address}"' for peer, address in peers.items())
    config = directory / f"{name}.toml"
    config.write_text(f'name = "{name}"\nprotocol = "separator"\n[peers]\n{addresses}\n{topology}')
    return config


def test_a_router_forwards_and_needs_no_program(tmp_path):
    peers = dict(zip(["ann", "bob", "hub"], free_addresses(3), strict=True))
    # Each has a wrong address of the other: the only way is over the hub.
    [nowhere] = free_addresses(1)
    ann = run_node(write_router(tmp_path, "ann", {**peers, "bob": nowhere}))
    bob = run_node(write_router(tmp_path, "bob", {**peers, "ann": nowhere}))
    hub = run_node(write_router(tmp_path, "hub", peers), "--role", "router", "--log", "json", "--verbose")
    try:
        assert ann.stdin is not None
        assert bob.stdout is not None
        ann.stdin.write('{"do": "send", "to": "bob", "text": "over the hub"}\n')
        ann.stdin.flush()
        heard = (json.loads(line) for line in bob.stdout)
        message = next(event for event in heard if event["event"] == "message")
        assert (message["sender"], message["text"]) == ("ann", "over the hub")
    finally:
        for process in (ann, bob, hub):
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
    assert hub.returncode == 0


def test_a_witness_stores_what_passes_and_needs_no_program(tmp_path):
    names = ["ann", "bob", "hub", "wit"]
    peers = dict(zip(names, free_addresses(4), strict=True))
    configs = {name: write_router(tmp_path, name, peers, WITNESSED) for name in names}
    roles = {"hub": ("--role", "router"), "wit": ("--role", "witness")}
    nodes = {name: run_node(configs[name], *roles.get(name, ())) for name in names}
    try:
        ann, bob = nodes["ann"].stdin, nodes["bob"].stdout
        assert ann is not None
        assert bob is not None
        ann.write('{"do": "send", "to": "bob", "text": "over the hub"}\n')
        ann.flush()
        heard = (json.loads(line) for line in bob)
        message = next(event for event in heard if event["event"] == "message")
        assert (message["sender"], message["text"]) == ("ann", "over the hub")
    finally:
        for process in nodes.values():
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
    assert nodes["wit"].returncode == 0


def test_who_is_no_witness_is_refused_as_one(tmp_path, capsys):
    peers = dict(zip(["ann", "bob", "hub", "wit"], free_addresses(4), strict=True))
    config = write_router(tmp_path, "hub", peers, WITNESSED)
    assert run(["node", "--config", str(config), "--role", "witness"]) == 2
    assert "hub is no witness of the topology, which has wit" in capsys.readouterr().err


def test_who_is_no_router_is_refused_as_one(tmp_path, capsys):
    peers = dict(zip(["ann", "bob", "hub"], free_addresses(3), strict=True))
    assert run(["node", "--config", str(write_router(tmp_path, "ann", peers)), "--role", "router"]) == 2
    assert "role router: ann is no router of the topology, which has hub" in capsys.readouterr().err


def test_a_log_for_programs_is_a_line_of_json_each():
    record = logging.LogRecord("antecede.net", logging.WARNING, "", 0, "%s: refused\n%d", ("bob", 7), None)
    told = json.loads(JsonLines("ann").format(record))
    assert told.pop("time").endswith("Z")
    assert told == {"level": "warning", "node": "ann", "logger": "antecede.net", "message": "bob: refused\n7"}
