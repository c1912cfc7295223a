"""The stage in Chromium: rounds, token map, inspector and curves by key, pointer and touch; what it costs; and who can use it."""

import os
import re
from pathlib import Path

import pytest
from pages import visit
from playwright.sync_api import expect

from coolsd.ui import controls, lanes

SIZES = [(400, 800), (1280, 720), (1920, 1080)]
AXE = Path(os.environ.get("AXE", Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"))


def progress(page, lane="relaxed"):
    """Rounds and tokens that a lane shows."""
    return [int(page.locator(f"[data-key={lane}]").get_attribute(f"data-{what}")) for what in ("rounds", "tokens")]


def settle(page):
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def press(page, key):
    page.keyboard.press(key)
    settle(page)


@pytest.fixture
def plain(still):
    """The still visitor on a laptop, nothing chosen, at the end; without the three steps of a round, which take their time."""
    still.emulate_media(reduced_motion="reduce")
    still.set_viewport_size({"width": 1280, "height": 720})
    still.evaluate("document.activeElement.blur()")
    still.keyboard.press("Escape")
    press(still, "End")
    yield still
    still.keyboard.press("Escape")


def test_rounds_are_stepped_and_scrubbed_by_keys_also_with_the_server_gone(plain):
    whole = progress(plain)
    assert whole[1] == 16
    plain.context.set_offline(True)
    press(plain, "Home")
    assert progress(plain) == [0, 0]
    assert plain.locator("[data-key=relaxed] .numbers .calls dd").inner_text() == "–"
    press(plain, "ArrowRight")
    assert progress(plain) == [1, 1]
    assert plain.locator("[data-key=relaxed] .numbers .calls dd").inner_text() == "1"
    expect(plain.locator("[data-key=relaxed] .masked")).to_be_visible()
    plain.locator(".scrubber").fill("2")
    settle(plain)
    assert progress(plain)[0] == 2
    plain.get_by_role("button", name="seconds", exact=True).click()
    assert plain.locator(".where").inner_text().endswith(" s")
    plain.get_by_role("button", name="calls", exact=True).click()
    press(plain, "End")
    assert progress(plain) == whole
    plain.context.set_offline(False)


def test_a_map_is_looked_at_three_ways_and_letters_stand_beside_colours(plain):
    chosen = "[...document.querySelectorAll('.key [aria-pressed=true]')].map((node) => node.textContent)"
    modes = []
    for _ in range(3):
        press(plain, "m")
        modes += plain.evaluate(chosen)
    assert sorted(modes) == ["both", "picture", "tokens"]
    letters = plain.locator(".key .kind").all_inner_texts()
    assert letters == ["A", "~", "R", "B", "S"]
    bar = plain.locator("[data-key=relaxed] .kinds").get_attribute("aria-label")
    assert bar.endswith(" sampled without a draft")


def test_the_inspector_explains_a_cell_that_is_clicked_and_the_next_by_arrow_key(plain):
    plain.locator("[data-key=relaxed] .map").click(position={"x": 5, "y": 5})
    panel = plain.locator(".inspector")
    assert "token 1, row 1, column 1" in panel.locator("h3").inner_text()
    assert "round 1: sampled without a draft" in panel.inner_text()
    press(plain, "ArrowRight")
    assert "token 2, row 1, column 2" in panel.locator("h3").inner_text()
    assert re.search(r"round 2, draft position 1: (accepted|recovered)", panel.inner_text())
    assert "token 2, row 1" in plain.locator(".stage [role=status]").inner_text()
    press(plain, "Escape")
    expect(panel).to_be_hidden()


def test_scrubbing_is_quick_on_a_slow_computer(plain):
    session = plain.context.new_cdp_session(plain)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # of the page's own thread: others on the machine do not count
    session.send("Emulation.setCPUThrottlingRate", {"rate": 4})

    def spent():
        return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}

    script = """async (times) => {
        const bar = document.querySelector(".scrubber");
        for (let i = 0; i < times; i++) {
            bar.value = i % (Number(bar.max) + 1);
            bar.dispatchEvent(new Event("input", { bubbles: true }));
            await new Promise(requestAnimationFrame);
            await new Promise((done) => setTimeout(done));
        }
    }"""
    plain.evaluate(script, 2)
    rounds = []
    for _ in range(4):
        before = spent()
        plain.evaluate(script, 5)
        after = spent()
        rounds.append({name: (after[name] - before[name]) / 5 for name in ("TaskDuration", "LayoutCount", "RecalcStyleCount")})
    session.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    least = {name: min(one[name] for one in rounds) for name in rounds[0]}
    assert least["LayoutCount"] <= 3, least  # as many on any machine
    assert least["RecalcStyleCount"] <= 4, least
    assert least["TaskDuration"] <= 0.2, least  # some .03 on two quiet cores


def test_the_answer_has_room_for_its_longest_words_at_any_width(plain):
    """What follows the answer stays where it is, whatever the answer says: a slow machine changes it often."""
    words = {
        "busy": lanes.BUSY,
        "ar": "0.07×",
        "reference": "0.92×",
        "interval": "0.31–1.20",
        "ar_interval": "0.05–0.10",
        "ar_how": ", measured just now",
    }
    script = """([words, stale]) => {
        for (const [name, text] of Object.entries(words)) document.querySelector(`.answer [data-text=${name}]`).textContent = text;
        document.querySelector("[data-stale]").hidden = !stale;
        return [...document.querySelectorAll(".curve, #schedule, .stage")].map((node) => node.getBoundingClientRect().top);
    }"""
    before = {name: plain.locator(f".answer [data-text={name}]").inner_text() for name in words}
    for width, height in SIZES:
        plain.set_viewport_size({"width": width, "height": height})
        places = [
            plain.evaluate(script, [filling, stale])
            for filling in (before, words, words | {"ar_how": ", estimated (1085 ms a token)", "ar_interval": ""}, dict.fromkeys(words, ""))
            for stale in (False, True)
        ]
        assert len({tuple(place) for place in places}) == 1, (width, places)
    plain.evaluate(script, [before, False])


def test_the_status_line_has_room_for_two_lines_at_any_width(plain):
    """A long remark moves nothing; only an error is shown in full."""
    script = """(words) => {
        const line = document.querySelector("#status span");
        if (words) line.textContent = words;
        return [line.textContent, document.querySelector(".stage").getBoundingClientRect().top];
    }"""
    first, _ = plain.evaluate(script, None)
    for width, height in SIZES:
        plain.set_viewport_size({"width": width, "height": height})
        places = {
            plain.evaluate(script, words)[1] for words in ("Stopping.", first, "Decoding, all lanes on one clock. " + 30 * "a remark ")
        }
        assert len(places) == 1, (width, places)
    plain.evaluate(script, first)


def test_the_first_load_is_small(browser, address):
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    received = []
    session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    page.goto(address)
    page.wait_for_selector(".chart.acceptance .dot")
    page.wait_for_timeout(1000)
    page.close()
    assert 100_000 < sum(received) <= 1_200_000


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: npm install --no-save axe-core@4, or set AXE to its axe.min.js")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_tab(browser, address, scheme):
    page = visit(browser, address, color_scheme=scheme, reduced_motion="reduce")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    page.locator("[data-key=relaxed] .map").click(position={"x": 5, "y": 5})
    script = "async () => (await axe.run()).violations.map((v) => [v.id, ...v.nodes.map((n) => n.html.slice(0, 120))])"
    for tab in ("Generate", "Laboratory", "One round", "Is it lossless?", "Evidence", "About"):
        page.get_by_role("tab", name=tab, exact=True).click()
        page.wait_for_timeout(500)
        assert page.evaluate(script) == [], tab
    page.context.close()


def test_number_boxes_show_what_they_hold(plain):
    boxes = plain.locator("#schedule input[type=number]")
    for width, height in SIZES:
        plain.set_viewport_size({"width": width, "height": height})
        for i, value in enumerate(("1.25", "-0.15")):
            boxes.nth(i).fill(value)
            assert boxes.nth(i).evaluate("(node) => node.scrollWidth <= node.clientWidth"), (width, value)
    for i, value in enumerate((controls.DEFAULTS["delta"], controls.DEFAULTS["nu"])):
        boxes.nth(i).fill(str(value))
        boxes.nth(i).blur()


def test_focus_is_seen_everywhere_and_tabs_move_by_arrow_keys(plain):
    for _ in range(40):
        plain.keyboard.press("Tab")
        style = plain.evaluate(
            "(({ tagName, className }, { outlineStyle, outlineWidth }) => [tagName, className, outlineStyle, outlineWidth])"
            "(document.activeElement, getComputedStyle(document.activeElement))"
        )
        assert style[0] == "BODY" or (style[2] != "none" and style[3] >= "2px"), style
    plain.get_by_role("tab", name="Generate").focus()
    press(plain, "ArrowRight")
    assert plain.evaluate("document.activeElement.textContent.trim()") == "Laboratory"
    press(plain, "ArrowLeft")
    expect(plain.locator(".lane").first).to_be_visible()


def test_the_theme_is_remembered_and_a_phone_has_its_bar(browser, address):
    page = visit(browser, address, viewport={"width": 400, "height": 800}, has_touch=True, is_mobile=True)
    expect(page.locator(".sticky")).to_be_visible()
    page.locator("[data-key=relaxed] .map").tap(position={"x": 5, "y": 5})
    page.wait_for_selector(".inspector:not([hidden])")
    page.get_by_label("Close the inspector (Esc)").tap()
    page.locator(".sticky input").fill("4")
    page.wait_for_function("document.querySelector('.omega-row').textContent.startsWith('10.4')")
    page.get_by_role("button", name="Light / dark").tap()
    page.reload()
    page.wait_for_selector(".chart.acceptance .dot")
    page.wait_for_function("document.body.classList.contains('dark')")
    page.context.close()
