"""The laboratory in Chromium: bars that can be pulled, answers that follow, wrong rules that are caught."""

import pytest
from pages import served
from test_browser import browser, pytestmark  # noqa: F401  (a fixture, and the skip without a Chromium)

import coolsd
from coolsd.ui.engine import Engine


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):  # noqa: F811
    """A visitor in the Laboratory of a page that has no model; fails on requests to other hosts and on script errors."""

    def load(name):
        raise FileNotFoundError(name)

    with served(Engine(load, coolsd.stream, coolsd.METHODS), tmp_path_factory.mktemp("runs")) as demo:
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
    assert handle.get_attribute("aria-valuenow") == str(before + 12)


def test_lantern_shows_its_neighbours(lab):
    part(lab, "One token")
    lab.get_by_role("button", name="Ambiguous").first.click()
    lab.get_by_label("LANTERN", exact=True).check()
    lab.wait_for_function("document.querySelector('.lab-codes')?.innerText.includes('F may borrow 0.12 from E')")
    lab.get_by_label("Lossless", exact=True).check()
    verdict(lab, "Lossless: what comes out follows p exactly.")


def test_one_round_answers_which_schedule_costs_least(lab):
    part(lab, "One round")
    lab.wait_for_selector(".lab-contest:visible")
    length = lab.locator(".lab-round .lab-verdict").inner_text()
    lab.get_by_label("Uniform", exact=True).check()
    lab.wait_for_function("before => document.querySelector('.lab-round .lab-verdict').innerText !== before", arg=length)
    assert lab.locator(".lab-cost.least").count() == 2


def test_a_wrong_rule_is_caught_and_the_right_one_is_not(lab):
    part(lab, "Is it lossless?")
    verdict(lab, "Lossless: the counts fit p.")
    lab.get_by_role("button", name="Forgotten residual").click()
    verdict(lab, "Not lossless: the counts do not fit p.")
    lab.wait_for_function("document.querySelector('.lab-histogram').parentElement.innerText.includes('10,000 rounds')")
    lab.get_by_role("button", name="10,000 rounds more").click()
    lab.wait_for_function("document.querySelector('.lab-histogram').parentElement.innerText.includes('20,000 rounds')")
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
