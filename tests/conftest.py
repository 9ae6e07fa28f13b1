"""What tests of several files share."""

from __future__ import annotations

import gc
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


def pytest_collection_finish() -> None:
    """Commands and sweeps collect garbage before each run: they need not look through all tests each time."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """`open_page(parts, width=1280, **context)`: the page of these tables, in a window of its own."""
    from antecede.report import render  # Arrow comes with it, which most tests do without.
    from tests import report_samples as samples

    contexts: list[Any] = []
    complaints: list[str] = []

    def open_one(parts: dict[str, Any], width: int = 1280, address: str = "", **context: Any) -> Any:
        file = tmp_path / "report.html"
        file.write_text(render(samples.report(parts)), encoding="utf-8")
        contexts.append(
            browser.new_context(
                viewport={"width": width, "height": 900}, offline=True, reduced_motion="reduce", **context
            )
        )
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda said: complaints.extend([said.text] * (said.type in ("warning", "error"))))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.goto(f"{file.as_uri()}{address}")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    from tests import report_samples as samples

    return samples.compare_protocols(seeds=2)
