"""Makes ``docs/report.png``, the README's picture of a report, where there is a Chromium.

``python -m tools.report_picture``: the page of a capture of the trained digits, photographed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import hookscope

REPO = Path(__file__).resolve().parent.parent
PICTURE = REPO / "docs" / "report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def main() -> int:
    """Make the picture, or say why not; return the exit status, which is 0 either way."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        found = None
    if found is None:
        print(f"{PICTURE.name} stays as it is: there is no Chromium, or no playwright.")
        return 0
    page_of = hookscope.report(REPO / "sample_models" / "five.safetensors")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        page_of.save(file)
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.goto(file.as_uri())
        page.click(".tree [data-name=conv2]")
        page.locator(".graph").evaluate("e => e.scrollIntoView()")
        page.screenshot(path=PICTURE)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
