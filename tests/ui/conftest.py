"""A browser for the page's tests; they are skipped where there is none."""

import os
import shutil
import threading

import pytest
from pages import served, slow_stream, tiny_backend, visit

import coolsd
from coolsd import exports

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
QUIET = ("background-networking", "component-update", "sync")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]


@pytest.fixture(scope="module")
def browser():
    """Chromium, without what it would ask the network for by itself."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM:
        pytest.skip("no Chromium: set CHROMIUM to its path")
    sync_api.expect.set_options(timeout=30_000)  # as long as the waits of Playwright itself
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=180_000)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def gate():
    return threading.Event()


@pytest.fixture
def brake(gate):
    """Until it is cleared no run gets far, however long the browser takes."""
    gate.set()
    yield gate
    gate.clear()


@pytest.fixture(scope="module")
def address(tmp_path_factory, gate):
    """A page whose rounds take long enough to be seen, with a recorded comparison."""
    folder = tmp_path_factory.mktemp("runs")
    backend = tiny_backend(slow_stream(0.05, gate))
    runs = [coolsd.generate(backend.load("meadow"), "a lake", method) for method in ("eagle1", "coolsd")]
    exports.save(exports.Comparison(*runs, 0.01), folder, "lake")
    with served(backend, folder) as demo:
        yield demo.local_url


@pytest.fixture
def page(browser, address):
    """A fresh visitor; fails on requests to other hosts and on script errors."""
    opened = visit(browser, address)
    yield opened
    opened.context.close()
    assert not opened.faults


@pytest.fixture(scope="module")
def still(browser, address):
    """One visitor for all the tests that start no run."""
    opened = visit(browser, address)
    yield opened
    opened.context.close()
    assert not opened.faults
