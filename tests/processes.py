"""Nodes in processes of their own, for tests that talk to them, kill them and start them again."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.chaos.fleet import free_addresses

__all__ = ["Worker", "free_addresses", "run_node"]

ROOT = Path(__file__).parent.parent
PATIENCE_S = 120.0


def run_node(config: Path, *options: str) -> subprocess.Popen[str]:
    """`antecede node`, with pipes to talk to it."""
    command = [sys.executable, "-m", "antecede", "node", "--config", str(config), *options]
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
