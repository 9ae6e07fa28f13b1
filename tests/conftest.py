"""What tests of several files share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "chromium"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


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
