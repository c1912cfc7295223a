"""A browser for the page's tests; they are skipped where there is none."""

import os
import shutil

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
QUIET = ("background-networking", "component-update", "sync")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]


@pytest.fixture(scope="module")
def browser():
    """Chromium, without what it would ask the network for by itself."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM:
        pytest.skip("no Chromium: set CHROMIUM to its path")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=180_000)
        yield opened
        opened.close()
