"""The page in Chromium, on a toy pair: what a person does, and that no request leaves the host."""

import json
import re
import threading
from pathlib import Path

import pytest
from pages import backend, served, slow_stream

import coolsd
from coolsd import exports
from coolsd.settings import Settings
from coolsd.trace import Run
from coolsd.ui import controls, figures

CLIPBOARD = ["clipboard-read", "clipboard-write"]
MARKUP = "<img src=x onerror=alert(1)> lake"
STATE = "el => el.dataset.is"


@pytest.fixture(scope="module")
def gate():
    return threading.Event()


@pytest.fixture
def held(gate):
    """Until it is cleared no run gets far, however long the browser takes."""
    gate.set()
    yield gate
    gate.clear()


@pytest.fixture(scope="module")
def address(tmp_path_factory, gate):
    """A page whose rounds take long enough to be seen, with a recorded comparison."""
    folder = tmp_path_factory.mktemp("runs")
    made = backend(slow_stream(0.05, gate))
    runs = [coolsd.generate(made.load("meadow"), "a lake", method) for method in ("eagle1", "coolsd")]
    exports.save(exports.Comparison(*runs, 0.01), folder, "lake")
    with served(made, folder) as demo:
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


def visit(browser, address, query="", **context):
    page = browser.new_context(**{"viewport": {"width": 1280, "height": 720}, **context}).new_page()
    page.faults = []
    page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else page.faults.append(r.url))
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.set_default_timeout(120_000)  # a busy machine is no fault of the page
    page.goto(address + query)
    page.wait_for_selector(".plot .main-svg")
    page.wait_for_function("document.querySelector('.omega-row').textContent")
    return page


def button(page, name):
    return page.get_by_role("button", name=name, exact=True)


def prompt(page):
    return page.get_by_role("textbox", name="Prompt", exact=True)


def wait_for_lane(page, lane, state):
    page.wait_for_selector(f'.lane.{lane}[data-is="{state}"]')


def status(page, words):
    page.wait_for_function("words => document.querySelector('#status').innerText.includes(words)", arg=words)


def test_alive_before_anything_is_pressed(still):
    assert [badge.inner_text() for badge in still.locator(".lane:visible .badge").all()] == ["recorded", "recorded"]
    assert all(image.is_visible() for image in still.locator(".lane:visible .picture img").all())
    assert still.locator(".answer .big").first.inner_text().endswith("×")


def test_from_generate_to_downloads_on_one_plotly_node(page, held):
    page.evaluate("document.querySelector('.plot').mine = true")
    prompt(page).fill(MARKUP)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent.trim()") == "Generate"
    page.keyboard.press("Enter")
    wait_for_lane(page, "a", "running")
    zoomed = drag_zoom(page)
    assert not button(page, "Generate").is_enabled()
    held.clear()
    wait_for_lane(page, "b", "done")
    page.wait_for_selector("a[data-json]:visible")
    assert button(page, "Generate").is_enabled()
    assert page.evaluate("document.querySelector('.plot').mine")
    assert y_range(page) == zoomed

    with page.expect_download() as download:
        page.locator("a[data-json]").click()
    bundle = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    run = Run.from_json(json.dumps(bundle["relaxed"]))
    assert run.settings == Settings(prompt=MARKUP, top_k=controls.DEFAULTS["top_k"])
    with page.expect_download() as download:
        page.locator(".lane.b a[data-png]").click()
    from PIL import Image

    assert Image.open(download.value.path()).text["prompt"] == MARKUP
    assert page.locator(".lane img").count() == 3
    assert page.locator(".lane.b img").get_attribute("alt").startswith(MARKUP)


def drag_zoom(page):
    box = page.locator(".plot .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 15)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 70, steps=4)
    page.mouse.up()
    page.wait_for_function("document.querySelector('.plot')._fullLayout.yaxis.range[1] < 1")
    return y_range(page)


def y_range(page):
    return page.evaluate("document.querySelector('.plot')._fullLayout.yaxis.range")


def test_stop_is_the_last_word_and_keeps_what_was_decoded(page, held):
    button(page, "Generate").click()
    wait_for_lane(page, "a", "running")
    button(page, "Stop").click()
    held.clear()
    status(page, "Stopped")
    page.wait_for_timeout(1000)  # nothing may come after it
    status(page, "Stopped")
    assert page.locator(".lane.a").evaluate(STATE) == "stopped"
    assert button(page, "Generate").is_enabled()
    assert not button(page, "Stop").is_enabled()
    with page.expect_download() as download:
        page.locator("a[data-json]").click()
    assert json.loads(Path(download.value.path()).read_text(encoding="utf-8"))["reference"]["complete"] is False
    with page.expect_download() as download:
        page.locator(".lane.a a[data-png]").click()
    assert "-stopped-" in download.value.suggested_filename


def test_stop_at_any_moment_ends_in_stopped(page, held):
    for wait in (0, 150, 400):  # before the run has begun, while it is prepared, while it decodes
        held.set()
        button(page, "Generate").click()
        page.wait_for_selector("button:not([disabled]):text-is('Stop')")
        page.wait_for_timeout(wait)
        button(page, "Stop").click()
        held.clear()
        status(page, "Stopped")
        page.wait_for_selector("button:not([disabled]):text-is('Generate')")


def test_empty_prompt_gets_advice(still):
    prompt(still).fill("  ")
    button(still, "Generate").click()
    status(still, "Type a few words")
    assert button(still, "Generate").is_enabled()


def test_methods_whose_settings_were_hidden_run_as_they_are_offered(page):
    page.get_by_text("Methods and their settings").click()
    for method in ("Diverse", "LANTERN"):
        page.get_by_label("Relaxed lane (right)").first.click()
        page.get_by_role("option", name=method, exact=True).click()
        page.wait_for_selector({"Diverse": "text=Target's weight", "LANTERN": "text=Nearest codes"}[method] + " >> visible=true")
        button(page, "Generate").click()
        page.wait_for_function("title => document.querySelector('.lane.b h2').textContent.startsWith(title)", arg=method)
        status(page, "Done on")


def test_second_person_waits_visibly_and_gets_their_own_picture(browser, address, held):
    first, second = visit(browser, address), visit(browser, address)
    for page, words, seen in ((first, "first lake", "Decoding"), (second, "second lake", "Waiting for your turn")):
        prompt(page).fill(words)
        prompt(page).press("Enter")
        status(page, seen)
    assert second.locator(".lane.a").evaluate(STATE) == "recorded"
    held.clear()
    for page, words in ((first, "first lake"), (second, "second lake")):
        wait_for_lane(page, "b", "done")
        assert page.locator(".lane.b img").get_attribute("alt").startswith(words)
        page.context.close()


TREE, NODES = {"tree": "mc_sim_7b_63"}, {"tree": "[[0], [1], [0, 0]]"}
SCHEDULES = [
    {},
    {"delta": 3.0, "nu": -0.5},
    {"mu": 0.5},
    {"clamp": True},
    {"method": "uniform"},
    {"draft_length": 8},
    {"method": "eagle1"},
    TREE,
    {**TREE, "siblings": "every"},
    {**TREE, "method": "uniform", "delta": 0.5},
    {**TREE, "method": "eagle1", "draft_length": 9},
    {**TREE, "method": "block"},
    {"tree": "naive_extend_57", "mu": 0.3},
    {"tree": "dynamic", "siblings": "every"},
    {**NODES, "draft_length": 7},
    {"tree": "[[0], [0, 0]]"},
    {"method": "ar"},
    {"method": "lantern"},
    {"method": "diverse"},
    {"method": "coolsd-fitted"},
    {"method": "coolsd-fitted", "bias": 0.11, "draft_length": 8},
    {"method": "coolsd-fitted", "bias": 0.0, "draft_length": 14},
]


@pytest.mark.parametrize("changes", SCHEDULES)
def test_omega_in_the_browser_is_the_projects_own(still, changes):
    values = {**Settings(prompt="x").to_dict(), **changes}
    asked = {**values, "mu_auto": values["mu"] is None}
    drawn = still.evaluate("([shapes, s]) => coolsd.schedule(shapes, s)", [figures.shapes(coolsd.METHODS), asked])
    assert drawn == pytest.approx(coolsd.omega(Settings(**values)).tolist(), rel=1e-6)


def test_moving_a_slider_redraws_omega_at_once(still):
    waited = still.evaluate(
        """() => new Promise((done) => {
            const began = performance.now();
            new MutationObserver(() => done(performance.now() - began))
                .observe(document.querySelector('.omega-row'), { childList: true, characterData: true, subtree: true });
            const slider = document.querySelector('#schedule input[type=range]');
            slider.value = 4;
            slider.dispatchEvent(new Event('input', { bubbles: true }));
        })"""
    )
    assert waited < 1000  # a fraction of this on an idle machine, and no word to the server
    assert still.locator(".omega-row").inner_text().split()[0] == "10.4"
    curve = still.evaluate("document.querySelector('.plot').data.at(-1).y")
    assert curve == pytest.approx(coolsd.omega(Settings(prompt="x", delta=4.0)).tolist(), rel=1e-6)


def test_links_set_the_controls_and_report_what_they_cannot(browser, address):
    page = visit(browser, address, "?prompt=green+hills&delta=3.1&nu=nan&seed=7&method=uniform", permissions=CLIPBOARD)
    status(page, "nu=nan")
    assert prompt(page).input_value() == "green hills"
    page.wait_for_function("document.querySelector('.omega-row').textContent.startsWith('3.10  3.10')")
    prompt(page).fill("a & b? ü")
    button(page, "Copy link").click()
    status(page, "Link copied")
    page.goto(page.evaluate("navigator.clipboard.readText()"))
    page.wait_for_function("[...document.querySelectorAll('#ask textarea')].some((n) => n.value === 'a & b? ü')")
    page.wait_for_function("document.querySelector('.omega-row').textContent.startsWith('3.10  3.10')")
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(400, 800), (768, 1024), (1280, 720), (1920, 1080)])
def test_nothing_sticks_out_and_the_answer_is_in_sight(still, width, height, scheme):
    still.set_viewport_size({"width": width, "height": height})
    still.emulate_media(color_scheme=scheme)
    still.wait_for_timeout(200)
    assert still.evaluate("document.documentElement.scrollWidth") <= width
    if width >= 1280:
        for seen in (".answer .big", ".lane.b .picture img", ".lane.b .numbers", ".plot", ".omega-row", "#schedule input[type=range]"):
            box = still.locator(seen).last.bounding_box()
            assert box["y"] + box["height"] <= height, seen


def test_every_control_has_a_name(still):
    unnamed = still.evaluate(
        """() => [...document.querySelectorAll('button, input, textarea, a[href], summary')]
            .filter((n) => n.offsetParent && !n.closest('footer'))
            .filter((n) => !(n.getAttribute('aria-label') || n.labels?.length || n.textContent.trim() || n.title || n.placeholder))
            .map((n) => n.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []


def test_terms_explain_themselves_on_focus(still):
    term = still.locator(".lane.a .term").first
    term.focus()
    assert still.evaluate("getComputedStyle(document.activeElement, '::after').visibility") == "visible"
    assert re.search(r"^seconds: .+", term.get_attribute("aria-label"))
