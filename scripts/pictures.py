"""Take the pictures of the README from a report, light and dark: python scripts/pictures.py demo/report.html"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from playwright.sync_api import FloatRect, sync_playwright

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"


def main(report: Path) -> None:
    chromium = subprocess.check_output([ROOT / "scripts" / "chromium", "--find"], text=True).strip()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1060, "height": 900}, color_scheme=scheme)
            page.goto(report.absolute().as_uri())
            # Down to the end of a row: the fifth is the first that broke causal order.
            row = page.locator(".matrix tbody tr").nth(4).bounding_box()
            assert row is not None
            clip = FloatRect(x=0, y=0, width=1060, height=row["y"] + row["height"])
            page.screenshot(path=PICTURES / f"report-{scheme}.png", clip=clip)
            page.locator("#diagram").screenshot(path=PICTURES / f"diagram-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
