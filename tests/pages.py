"""The page under test: engines that are slow or held, views of a run, and the page served to a program or a browser."""

import json
import time
from contextlib import contextmanager
from types import SimpleNamespace

from tiny import tiny_pair

import coolsd
from coolsd.ui import controls
from coolsd.ui.backend import Backend, Loader
from coolsd.ui.compare import compare
from coolsd.ui.page import build, launch_options

METHODS = coolsd.METHODS


def slow_stream(delay, brake=None):
    """A stream whose rounds take a while; the few plain AR steps timed beforehand do not.

    While `held` is set rounds take longer, and stand still from the fourth on.
    """

    def stream(*args, **settings):
        timed = settings["max_tokens"] is not None
        for event in coolsd.stream(*args, **settings):
            time.sleep(0 if timed else delay)
            while brake and brake.is_set() and not timed:
                time.sleep(0.2)
                if event.index < 3:
                    break
            yield event

    return stream


def tiny_backend(stream=coolsd.stream, load=None):
    return Backend(load or (lambda name: tiny_pair()), stream, METHODS)


def request_with(**changes):
    return controls.read({**controls.DEFAULTS, **changes}, METHODS)


def views(backend, **changes):
    return list(compare(backend, Loader(backend.load), request_with(**changes)))


def lane_data(view, number):
    """What the browser is sent of a lane."""
    return view.lanes["lanes"][number]


def counts(view):
    """Tokens of each lane that the browser was sent."""
    return [sum(len(json.loads(text)["tokens"]) for text in lane["rounds"]) for lane in view.lanes["lanes"]]


@contextmanager
def served(backend, recorded, **more):
    demo = build(backend, recorded)
    options = launch_options(demo) | more
    demo.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **options)
    try:
        yield demo
    finally:
        demo.close()


def session(name):
    return SimpleNamespace(session_hash=name)


def visit(browser, address, query="", **context):
    """A page of a visitor, which notes requests to other hosts and script errors as faults."""
    page = browser.new_context(**{"viewport": {"width": 1280, "height": 720}, **context}).new_page()
    page.faults = []
    page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else page.faults.append(r.url))
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.set_default_timeout(120_000)  # a busy machine is no fault of the page
    page.goto(address + query)
    page.wait_for_selector(".chart.acceptance .dot")
    page.wait_for_function("document.querySelector('.omega-row').textContent")
    return page
