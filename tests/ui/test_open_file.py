"""A run of the visitor's own, opened on the page in Chromium: chosen by the button, and dropped."""

import json

import pytest
from playwright.sync_api import expect
from tiny import tiny_pair

import coolsd

DROP = """({ name, text }) => {
    const files = new DataTransfer();
    files.items.add(new File([text], name, { type: "application/json" }));
    const event = (type) => document.body.dispatchEvent(new DragEvent(type, { dataTransfer: files, bubbles: true, cancelable: true }));
    event("dragover");
    const seen = document.body.classList.contains("dropping");
    event("drop");
    return seen && !document.body.classList.contains("dropping");
}"""
INPUT = "input[type=file][accept^='.json']"


@pytest.fixture(scope="module")
def run():
    """Of the pair that the page has under this name."""
    recorded = coolsd.generate(tiny_pair(), "a red rose", "coolsd", seed=9, inspect=4)
    recorded.target = "meadow"
    return recorded


def wait_for_status(page, words):
    page.wait_for_function("words => document.querySelector('#status').innerText.includes(words)", arg=words)


def test_a_chosen_file_is_shown_and_a_broken_one_is_refused(page, run):
    content = {"name": "rose.json", "mimeType": "application/json", "buffer": run.to_json().encode()}
    page.wait_for_selector(INPUT, state="attached")
    page.set_input_files(INPUT, files=content)
    wait_for_status(page, "“a red rose”, from rose.json")
    page.wait_for_function("document.querySelectorAll('#stage [data-key]').length === 1")
    assert page.locator("#stage").inner_text().count("COOL-SD") >= 1
    broken = json.loads(run.to_json())
    broken["rounds"][1]["tokens"] = "all"
    page.set_input_files(INPUT, files=content | {"name": "bad.json", "buffer": json.dumps(broken).encode()})
    wait_for_status(page, "bad.json was not opened: rounds[1].tokens is 'all'")
    expect(page.locator("#stage [data-key]")).to_have_count(1)  # what was there stays


def test_a_file_can_be_dropped_anywhere(page, run):
    page.wait_for_selector(INPUT, state="attached")
    assert page.evaluate(DROP, {"name": "dropped.json", "text": run.to_json()})
    wait_for_status(page, "from dropped.json")
