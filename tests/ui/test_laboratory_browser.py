"""The tabs that need no model in Chromium: bars that can be pulled, answers that follow, wrong rules that are caught; evidence."""

import pytest
from pages import served
from playwright.sync_api import expect

import coolsd
from coolsd.ui import evidence_tab
from coolsd.ui.backend import Backend


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """A visitor in the Laboratory of a page that has no model; fails on requests to other hosts and on script errors."""

    def load(name):
        raise FileNotFoundError(name)

    with served(Backend(load, coolsd.stream, coolsd.METHODS), tmp_path_factory.mktemp("runs")) as demo:
        page = browser.new_context(viewport={"width": 1280, "height": 720}).new_page()
        faults = []
        page.on("request", lambda r: None if r.url.startswith((demo.local_url, "data:", "blob:")) else faults.append(r.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(demo.local_url)
        page.get_by_role("tab", name="Laboratory").click()
        page.wait_for_selector(".lab-verdict:visible")
        yield page
        page.context.close()
    assert not faults


def part(lab, name):
    lab.get_by_role("tab", name=name, exact=True).click()


def verdict(lab, words):
    lab.wait_for_function(
        "w => [...document.querySelectorAll('.lab-verdict')].some((n) => n.offsetParent && n.innerText.includes(w))", arg=words
    )


def row(lab, name):
    return [int(n.inner_text()) for n in lab.locator(f'.lab-bar[data-row="{name}"] em').all()]


def test_one_token_follows_preset_rule_and_bar(lab):
    part(lab, "One token")
    verdict(lab, "Lossless: what comes out follows p exactly.")
    lab.get_by_label("Relaxed", exact=True).check()
    verdict(lab, "Relaxed: 0.21 away from p.")
    lab.get_by_role("button", name="Disjoint").first.click()
    verdict(lab, "Lossless")
    assert row(lab, "p") == [50, 30, 20, 0, 0, 0]
    lab.get_by_role("button", name="Flat").first.click()
    verdict(lab, "Relaxed: 0.05 away from p.")

    bar = lab.locator('.lab-bar[data-row="q"]').nth(3)
    box = bar.bounding_box()
    x = box["x"] + box["width"] / 2
    lab.mouse.move(x, box["y"] + box["height"] / 2)
    lab.mouse.down()
    lab.mouse.move(x, box["y"], steps=5)
    lab.mouse.up()
    pulled = row(lab, "q")
    assert pulled[3] == pytest.approx(30, abs=1)
    assert sum(pulled) == pytest.approx(100, abs=3)
    verdict(lab, "Relaxed: 0.08 away from p.")

    handle = lab.get_by_role("slider", name="target p of token A")
    handle.focus()
    before = row(lab, "p")[0]
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "PageUp", "ArrowDown"):
        lab.keyboard.press(key)
    assert row(lab, "p")[0] == before + 12
    expect(handle).to_have_attribute("aria-valuenow", str(before + 12))


def test_lantern_shows_its_neighbours(lab):
    part(lab, "One token")
    lab.get_by_role("button", name="Ambiguous").first.click()
    lab.get_by_label("LANTERN", exact=True).check()
    lab.wait_for_function("document.querySelector('.lab-codes')?.innerText.includes('F may borrow 0.12 from E')")
    lab.get_by_label("LANTERN++", exact=True).check()
    lab.wait_for_function("document.querySelector('.lab-codes')?.innerText.includes('2.5-fold')")
    verdict(lab, "Relaxed: 0.31 away from p.")
    panel = lab.get_by_role("tabpanel").filter(visible=True)
    expect(panel.get_by_label("budget").first).to_be_hidden()
    cap = panel.get_by_role("spinbutton", name="λ cap")
    cap.fill("1.1")
    cap.press("Tab")
    verdict(lab, "Lossless: what comes out follows p exactly.")
    cap.fill("2.5")
    cap.press("Tab")
    lab.get_by_label("Lossless", exact=True).check()
    lab.wait_for_function("!document.querySelector('.lab-codes')?.offsetParent")
    verdict(lab, "Lossless: what comes out follows p exactly.")


def test_on_a_phone_the_rule_comes_before_what_it_does(lab):
    part(lab, "One token")
    lab.set_viewport_size({"width": 400, "height": 800})
    lab.wait_for_timeout(200)
    picker, answer = (lab.locator(f"{place}:visible").first.bounding_box() for place in (".lab-rules", ".lab-answer"))
    assert picker["y"] + picker["height"] <= answer["y"]
    lab.set_viewport_size({"width": 1280, "height": 720})


def test_one_round_answers_which_schedule_costs_least(lab):
    part(lab, "One round")
    lab.wait_for_selector(".lab-contest:visible")
    length = lab.locator(".lab-round .lab-verdict").inner_text()
    lab.get_by_label("Uniform", exact=True).check()
    lab.wait_for_function("before => document.querySelector('.lab-round .lab-verdict').innerText !== before", arg=length)
    expect(lab.locator(".lab-cost.least")).to_have_count(2)


def test_a_wrong_rule_is_caught_and_the_right_one_is_not(lab):
    part(lab, "Is it lossless?")
    verdict(lab, "Lossless: the counts fit p.")
    lab.get_by_role("button", name="Forgotten residual").click()
    verdict(lab, "Not lossless: the counts do not fit p.")
    lab.wait_for_function("document.querySelector('.lab-histogram').parentElement.innerText.includes('10,000 rounds')")
    lab.get_by_role("button", name="10,000 rounds more").click()
    lab.wait_for_function("document.querySelector('.lab-histogram').parentElement.innerText.includes('20,000 rounds')")
    lab.get_by_role("button", name="LANTERN++", exact=True).click()
    lab.wait_for_function("document.querySelector('.lab-histogram').parentElement.innerText.includes('LANTERN++ with k = 2, λ = 2.5')")
    verdict(lab, "Not lossless: the counts do not fit p.")
    lab.get_by_role("checkbox", name="residual G*").locator("visible=true").check()
    lab.wait_for_function("document.querySelector('.lab-histogram').parentElement.innerText.includes('the residual G*, 10,000 rounds')")
    lab.get_by_role("button", name="Lossless", exact=True).click()
    verdict(lab, "Lossless: the counts fit p.")


@pytest.mark.parametrize("name", ["One token", "One round", "Is it lossless?"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_sticks_out(lab, width, name):
    lab.set_viewport_size({"width": width, "height": 800})
    part(lab, name)
    lab.wait_for_timeout(200)
    assert lab.evaluate("document.documentElement.scrollWidth") <= width
    unnamed = lab.evaluate(
        """() => [...document.querySelectorAll('button, input, [role=slider]')]
            .filter((n) => n.offsetParent && !(n.getAttribute('aria-label') || n.labels?.length || n.textContent.trim()))
            .map((n) => n.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_evidence_is_one_chart_with_its_pictures_that_fits_every_screen(lab, scheme):
    lab.emulate_media(color_scheme=scheme)
    lab.set_viewport_size({"width": 1280, "height": 720})
    lab.get_by_role("tab", name="Evidence", exact=True).click()
    chart = lab.locator(".pareto")
    lab.wait_for_selector(".pareto .line")
    assert lab.evaluate("document.documentElement.scrollHeight") <= 1400
    assert lab.locator(".sentences li").count() == 3
    assert lab.locator(".claims-rows tbody tr").count() >= 6
    chart.focus()
    before = lab.locator(".point-card h3").inner_text()
    lab.keyboard.press("ArrowRight")
    after = lab.locator(".point-card h3").inner_text()
    assert after != before
    assert after in lab.locator(".pareto-box [role=status]").inner_text().replace(", δ", ": δ")
    covered = """() => [...document.querySelectorAll('.pareto .point .touch')].filter((n) => {
        const box = n.getBoundingClientRect();
        const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
        return top?.closest('.pareto') && !top.closest('.point');
    }).length"""
    assert lab.evaluate(covered) == 0, "a curve lies between the pointer and another one's point"
    pictured = any(row.thumbnails for row in evidence_tab.shipped().evidence.rows)
    assert lab.locator(".point-pictures img").count() == (3 if pictured else 0)
    assert pictured or "No pictures are stored" in lab.locator(".point-card").inner_text()
    for width in (1280, 400):
        lab.set_viewport_size({"width": width, "height": 800})
        lab.wait_for_timeout(300)
        assert lab.evaluate("Math.max(document.body.scrollWidth, document.documentElement.scrollWidth)") <= width
    assert chart.bounding_box()["width"] > 300
    table = lab.locator(".evidence-table").first
    assert table.evaluate("n => n.scrollWidth <= n.clientWidth"), "the verdicts are in sight"


def test_a_point_of_the_evidence_is_loaded_into_generate(lab):
    lab.set_viewport_size({"width": 1280, "height": 720})
    lab.get_by_role("tab", name="Evidence", exact=True).click()
    lab.get_by_role("button", name="first 2 alike, then exact").click()
    name = lab.locator(".point-card h3").inner_text()
    lab.get_by_role("button", name="Load into Generate").click()
    lab.wait_for_selector("#row-omega :is(input, textarea):visible")
    lab.wait_for_function("document.querySelector('#status').textContent.includes('Press Generate')")
    row = lab.locator("#row-omega :is(input, textarea)").input_value()
    assert name == f"first 2 alike, then exact: ω {row}"
