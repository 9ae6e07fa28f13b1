"""What tests of several files share."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

SCRIPT = Path(__file__).parent.parent / "scripts" / "chromium"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
"""No test fails because the machine is busy."""


def pytest_configure() -> None:
    """Take Ctrl-C: a shell that starts tests in the background ignores it, and their programs would, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium, or the test is skipped and says what is missing."""
    playwright = pytest.importorskip("playwright.sync_api")
    looked = subprocess.run([SCRIPT, "--find"], capture_output=True, text=True, check=False)
    if looked.returncode:
        pytest.skip(looked.stderr.strip())
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=looked.stdout.strip(), args=FLAGS)
        yield chromium
        chromium.close()
