"""Nodes in processes of their own, for tests that talk to them, kill them and start them again."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["Worker", "free_addresses", "run_node"]

ROOT = Path(__file__).parent.parent
PATIENCE_S = 120.0


def free_addresses(count: int) -> list[str]:
    """Addresses that are free, and that the system gives to nobody else while a node is down.

    The ports that it gives out by itself start at 32768 or later: a program that asks for any port may get one of
    those, or one that dials, the peers of the node that is down among them.
    """
    random, free = Random(), list[str]()
    while len(free) < count:
        port = random.randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            free.append(f"127.0.0.1:{port}")
    return free


def run_node(config: Path) -> subprocess.Popen[str]:
    """`antecede node`, with pipes to talk to it."""
    command = [sys.executable, "-m", "antecede", "node", "--config", str(config)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Worker:
    """A program of these tests with one node, in all its lives, and all that it said, a line of JSON each."""

    def __init__(self, module: str, config: dict[str, Any], heard: threading.Condition) -> None:
        self.module, self.config, self.heard = module, config, heard
        self.lives: list[list[dict[str, Any]]] = []
        self.start()

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def said(self) -> list[dict[str, Any]]:
        """What it said in this life."""
        return self.lives[-1]

    def start(self) -> None:
        command = [sys.executable, "-m", self.module, json.dumps(self.config)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ended = False
        self.lives.append([])
        self.listener = threading.Thread(target=self._listen, args=(self.process, self.said))
        self.listener.start()

    def _listen(self, process: subprocess.Popen[str], said: list[dict[str, Any]]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self.heard:
                said.append(json.loads(line))
                self.heard.notify_all()
        process.stdout.close()
        with self.heard:
            self.ended = self.ended or process is self.process
            self.heard.notify_all()

    def ask(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.stop()

    def stop(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        self.listener.join()
        return code
