"""The page in Chromium, on a toy pair: what a person does, and that no request leaves the host."""

import json
import re
from pathlib import Path

import pytest
from pages import visit
from playwright.sync_api import expect

from coolsd.settings import Settings
from coolsd.trace import Run
from coolsd.ui import controls

CLIPBOARD = ["clipboard-read", "clipboard-write"]
MARKUP = "<img src=x onerror=alert(1)> lake"
STATE = "el => el.dataset.is"
SHIFTS = """() => {
    window.shifted = 0;
    const watching = new PerformanceObserver((list) => list.getEntries().forEach((entry) => { window.shifted += entry.value; }));
    watching.observe({ type: "layout-shift" });
}"""


def button(page, name):
    return page.get_by_role("button", name=name, exact=True)


def prompt(page):
    return page.get_by_role("textbox", name="Prompt", exact=True)


def wait_for_lane(page, lane, state):
    page.wait_for_selector(f'[data-key={lane}][data-is="{state}"]')


def status(page, words):
    page.wait_for_function("words => document.querySelector('#status').innerText.includes(words)", arg=words)


def test_alive_before_anything_is_pressed(still):
    assert [badge.inner_text() for badge in still.locator(".lane .badge").all()] == ["recorded", "recorded", ""]
    still.wait_for_selector("[data-key=reference] .picture img:visible")
    still.wait_for_selector("[data-key=relaxed] .picture img:visible")
    assert still.locator(".answer .big").first.inner_text().endswith("×")


def test_from_generate_to_downloads_on_one_chart(page, brake):
    page.evaluate("document.querySelector('.chart').mine = true")
    page.evaluate(SHIFTS)
    prompt(page).fill(MARKUP)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent.trim()") == "Generate"
    page.keyboard.press("Enter")
    wait_for_lane(page, "reference", "running")
    expect(button(page, "Generate")).to_be_disabled()
    brake.clear()
    wait_for_lane(page, "relaxed", "done")
    page.wait_for_selector("a[data-json]:visible")
    expect(button(page, "Generate")).to_be_enabled()
    assert page.evaluate("document.querySelector('.chart').mine")
    assert page.evaluate("window.shifted") <= 0.01

    with page.expect_download() as download:
        page.locator("a[data-json]").click()
    bundle = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    run = Run.from_json(json.dumps(bundle["relaxed"]))
    with page.expect_download() as download:
        page.locator("a[data-csv]").click()
    _, *lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("relaxed,") for line in lines) == len(run.rounds)
    assert run.settings == Settings(prompt=MARKUP, top_k=controls.DEFAULTS["top_k"])
    with page.expect_download() as download:
        page.locator("[data-key=relaxed] header a").click()
    from PIL import Image

    assert Image.open(download.value.path()).text["prompt"] == MARKUP
    expect(page.locator(".lane img")).to_have_count(3)
    assert page.locator("[data-key=relaxed] img").get_attribute("alt").startswith(MARKUP)


def test_stop_is_the_last_word_and_keeps_what_was_decoded(page, brake):
    button(page, "Generate").click()
    wait_for_lane(page, "reference", "running")
    button(page, "Stop").click()
    brake.clear()
    status(page, "Stopped")
    page.wait_for_timeout(1000)  # nothing may come after it
    status(page, "Stopped")
    assert page.locator("[data-key=reference]").evaluate(STATE) == "stopped"
    expect(button(page, "Generate")).to_be_enabled()
    expect(button(page, "Stop")).to_be_disabled()
    with page.expect_download() as download:
        page.locator("a[data-json]").click()
    assert json.loads(Path(download.value.path()).read_text(encoding="utf-8"))["reference"]["complete"] is False
    with page.expect_download() as download:
        page.locator("[data-key=reference] header a").click()
    assert "-stopped-" in download.value.suggested_filename


def test_stop_at_any_moment_ends_in_stopped(page, brake):
    for wait in (0, 150, 400):  # before the run has begun, while it is prepared, while it decodes
        brake.set()
        button(page, "Generate").click()
        page.wait_for_selector("button:not([disabled]):text-is('Stop')")
        page.wait_for_timeout(wait)
        button(page, "Stop").click()
        brake.clear()
        status(page, "Stopped")
        page.wait_for_selector("button:not([disabled]):text-is('Generate')")


def test_empty_prompt_gets_advice(still):
    prompt(still).fill("  ")
    button(still, "Generate").click()
    status(still, "Type a few words")
    expect(button(still, "Generate")).to_be_enabled()


def test_methods_whose_settings_were_hidden_run_as_they_are_offered(page):
    page.get_by_text("Methods and their settings").click()
    for method in ("Diverse", "LANTERN"):
        page.get_by_label("Relaxed lane (right)").first.click()
        page.get_by_role("option", name=method, exact=True).click()
        page.wait_for_selector({"Diverse": "text=Target's weight", "LANTERN": "text=Nearest codes"}[method] + " >> visible=true")
        button(page, "Generate").click()
        page.wait_for_function("title => document.querySelector('[data-key=relaxed] h2').textContent.startsWith(title)", arg=method)
        status(page, "Done on")


def test_second_person_waits_visibly_and_gets_their_own_picture(browser, address, brake):
    first, second = visit(browser, address), visit(browser, address)
    for page, words, state in ((first, "first lake", "Decoding"), (second, "second lake", "Waiting for your turn")):
        prompt(page).fill(words)
        prompt(page).press("Enter")
        status(page, state)
    assert second.locator("[data-key=reference]").evaluate(STATE) == "recorded"
    brake.clear()
    for page, words in ((first, "first lake"), (second, "second lake")):
        wait_for_lane(page, "relaxed", "done")
        assert page.locator("[data-key=relaxed] img").get_attribute("alt").startswith(words)
        page.context.close()


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
    heights = still.evaluate("[...document.querySelectorAll('.chart.schedule .dot')].map((dot) => dot.getBoundingClientRect().y)")
    assert heights == sorted(heights)  # ω falls
    assert len(heights) == 5


def test_links_set_the_controls_and_report_what_they_cannot(browser, address):
    page = visit(browser, address, "?prompt=green+hills&delta=3.1&nu=nan&seed=7&method=uniform", permissions=CLIPBOARD)
    status(page, "nu=nan")
    expect(prompt(page)).to_have_value("green hills")
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
        lane = "[data-key=relaxed]"
        charts = (".chart.acceptance", ".chart.schedule", ".omega-row", "#schedule input[type=range]")
        for selector in (".answer .big", f"{lane} .picture img", f"{lane} .numbers", ".rounds", *charts):
            box = still.locator(selector).last.bounding_box()
            assert box["y"] + box["height"] <= height, selector


def test_every_control_has_a_name(still):
    unnamed = still.evaluate(
        """() => [...document.querySelectorAll('button, input, textarea, a[href], summary')]
            .filter((n) => n.offsetParent && !n.closest('footer'))
            .filter((n) => !(n.getAttribute('aria-label') || n.labels?.length || n.textContent.trim() || n.title || n.placeholder))
            .map((n) => n.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []


def test_terms_explain_themselves_on_focus(still):
    term = still.locator("[data-key=reference] .numbers .term").first
    term.focus()
    assert still.evaluate("getComputedStyle(document.activeElement, '::after').visibility") == "visible"
    assert re.search(r"^target calls: .+", term.get_attribute("aria-label"))
