"""A real NATS server, as a process, for tests: it can be killed, and started again at the same port."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import pytest

PATIENCE_S = 10.0


def program() -> str:
    """Where the server is: on the path, or beside the Python that runs the tests."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        pytest.skip("there is no nats-server")
    return found


class Server:
    """`nats-server` on loopback. What it keeps is in `store`, so that it survives a kill."""

    def __init__(self, store: Path, options: tuple[str, ...] = ()) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one:
            self.port = one.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._command = [
            program(),
            "-a",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-js",
            "-sd",
            str(store),
            *options,
        ]

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE_S
        while not self._listens():
            assert self._process.poll() is None, "the server ended"
            assert time.monotonic() < until, "the server does not listen"
            time.sleep(0.01)

    def _listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as one:
                return one.recv(4) == b"INFO"
        except OSError:
            return False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


@contextmanager
def serve_nats(store: Path, *options: str) -> Iterator[Server]:
    with Server(store, options) as server:
        yield server
