"""The page's events in order, without a browser: what a run takes away and brings, and that it ends whatever becomes of its visitor."""

import base64
import io
import json
import threading
from contextlib import ExitStack

import gradio as gr
import pytest
from pages import session, tiny_backend
from PIL import Image
from tiny import tiny_pair

import coolsd
from coolsd import exports
from coolsd.trace import Run
from coolsd.ui import controls
from coolsd.ui.backend import Loader
from coolsd.ui.page import Page, build
from coolsd.ui.run_queue import PLACES
from coolsd.ui.zerogpu import Door

VALUES = tuple({**controls.DEFAULTS, "delta": 8.0, "seed": 3}[name] for name in controls.CONTROLS)


@pytest.fixture(scope="module")
def first_run(tmp_path_factory) -> tuple[Page, dict]:
    """A page with a recorded comparison, drawn once, and what it showed of it."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [coolsd.generate(tiny_pair(), "lake", method) for method in ("eagle1", "coolsd")]
    exports.save(exports.Comparison(*runs, 0.01), folder, "lake")
    page = Page(tiny_backend(), Loader(lambda name: tiny_pair()))
    with gr.Blocks():
        page.draw(folder)
    return page, {"lanes": page.lanes.value, "export": page.export.value}


@pytest.fixture
def page(first_run) -> Page:
    return placed(first_run[0], tiny_backend())


def placed(page: Page, backend) -> Page:
    """The page on another engine."""
    page.backend, page.loader = backend, Loader(backend.load)
    page.door = Door(backend, page.loader)
    return page


def run(page: Page, name: str = "a") -> list[dict]:
    page.prepare(session(name), *VALUES)
    return list(page.run(session(name), *VALUES))


def test_a_new_run_takes_the_last_ones_pictures_and_files_away_and_brings_its_own(page, first_run):
    before = first_run[1]
    assert before["lanes"]["lanes"][0]["picture"]
    assert before["export"]["text"]
    sequence = run(page)
    components = (page.lanes, page.answer, page.export)
    first = next(i for i, changes in enumerate(sequence) if page.lanes in changes)
    assert all(not changes.keys() & set(components) for changes in sequence[:first])
    assert set(sequence[first][page.export].values()) == {""}
    for lane in sequence[first][page.lanes]["lanes"]:
        assert lane["picture"] == lane["file"] == ""
        assert not lane["rounds"]
    for changes in sequence[first + 1 : -1]:
        assert page.export not in changes
    last = sequence[-1]
    assert last.keys() >= {*components, page.status, page.generate, page.stop}
    bundle = json.loads(last[page.export]["text"])
    for lane, name in zip(last[page.lanes]["lanes"], ("reference", "relaxed"), strict=False):
        run_of = Run.from_json(json.dumps(bundle[name]))
        assert [token for text in lane["rounds"] for token in json.loads(text)["tokens"]] == run_of.tokens
        assert decoded(lane["picture"]) == tiny_pair().picture(run_of.tokens).tobytes()
    assert last[page.export]["name"].endswith(".json")
    assert last[page.answer]["reference"].endswith("×")


def decoded(uri: str) -> bytes:
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))).convert("RGB").tobytes()


def overloaded(page: Page) -> None:
    with ExitStack() as line:
        for _ in range(PLACES + 1):
            line.enter_context(page.backend.run_queue.place())
        assert "Too many people" in run(page)[-1][page.status]["status"]


def broken(page: Page) -> None:
    page.loader = Loader(lambda name: 1 / 0)
    assert "ZeroDivisionError" in run(page)[-1][page.status]["status"]
    page.loader = Loader(page.backend.load)


def lost(page: Page) -> None:
    page.prepare(session("a"), *VALUES)
    page.unlock(session("a"))


def abandoned(page: Page) -> None:
    page.prepare(session("a"), *VALUES)
    events = page.run(session("a"), *VALUES)
    next(changes for changes in events if page.lanes in changes)
    events.close()


@pytest.mark.parametrize("ending", [overloaded, broken, lost, abandoned])
def test_whatever_ends_a_run_its_visitor_can_start_another(page, ending):
    ending(page)
    page.prepare(session("a"), *VALUES)
    assert not page.stops[session("a").session_hash].is_set()
    page.leave(session("a"))


def test_a_run_ends_when_its_page_is_closed(page):
    rounds, ended = [], threading.Event()

    def stream(*args, **settings):
        timed = settings["max_tokens"] is not None
        try:
            for event in coolsd.stream(*args, **settings):
                rounds.append(timed)
                if event.index == 1 and not timed:
                    page.leave(session("a"))
                yield event
        finally:
            if not timed:
                ended.set()

    placed(page, tiny_backend(stream))
    last = run(page)[-1]
    assert last[page.status]["status"].startswith("Stopped")
    assert ended.is_set()
    assert rounds.count(False) <= 4  # a round a lane at most is on its way
    assert not page.stops


def test_whoever_leaves_before_the_run_begins_decodes_nothing(page):
    page.prepare(session("a"), *VALUES)
    stop = page.stops[session("a").session_hash]
    page.leave(session("a"))
    assert stop.is_set()


def test_what_decides_which_settings_are_shown_is_listened_to(tmp_path):
    """By name in the built page: these controls' changes reach the function that shows and hides the others, with all values."""
    demo = build(tiny_backend(), tmp_path)
    fits = [function for function in demo.fns.values() if function.name == "fit"]
    assert len(fits) == 1
    names = {block.label: name for name, block in zip(controls.CONTROLS, fits[0].inputs, strict=True)}
    assert len(names) == len(controls.CONTROLS)
    labels = {demo.blocks[block].label for block, event in fits[0].targets if event == "change"}
    assert {names[label] for label in labels} == {"reference", "method", "tree", "mu_auto"}
    fields = dict(zip(controls.CONTROLS, fits[0].inputs, strict=True))
    assert [names[block.label] for block in fits[0].outputs] == [name for name in controls.CONTROLS if fields[name] in fits[0].outputs]
    tree = fits[0].fn(*({**controls.DEFAULTS, "tree": "mc_sim_7b_63"}[name] for name in controls.CONTROLS))
    visible = {names[block.label] for block, update in zip(fits[0].outputs, tree, strict=True) if update["visible"]}
    assert "siblings" in visible
    assert "draft_length" not in visible
