"""The page without a browser: settings and links in, the API, and the page's events as a program sees them."""

import base64
import errno
import io
import json
import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import gradio as gr
import httpx
import numpy as np
import pytest
from gradio_client import Client
from pages import METHODS, request_with, served, session, slow_stream, tiny_backend
from PIL import Image
from tiny import tiny_pair

import coolsd
from coolsd import exports
from coolsd.settings import SETTINGS, Settings, SettingsError
from coolsd.trace import Run
from coolsd.ui import controls
from coolsd.ui.api import documentation, endpoint
from coolsd.ui.backend import Loader
from coolsd.ui.compare import View
from coolsd.ui.laboratory import tab
from coolsd.ui.page import Page, build, shows
from coolsd.ui.run_queue import PLACES
from coolsd.ui.text import CHANGE, FAILED, FULL

# --- settings in ----------------------------------------------------------------------------------------------------------------


def test_defaults_are_the_projects():
    request = request_with()
    assert request.relaxed == Settings(prompt=controls.DEFAULTS["prompt"], top_k=controls.DEFAULTS["top_k"])
    assert request.reference == replace(request.relaxed, method="eagle1")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prompt": "  "}, "prompt"),
        ({"prompt": "x" * 1001}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"delta": float("nan")}, "delta"),
        ({"delta": None}, "delta"),
        ({"delta": True}, "delta"),
        ({"nu": "0.7"}, "nu"),
        ({"draft_length": 3.5}, "draft_length"),
        ({"mu_auto": False, "mu": None}, "mu"),
        ({"mu_auto": 1}, "mu"),
        ({"clamp": "yes"}, "clamp"),
        ({"method": "magic"}, "method"),
        ({"reference": ["eagle1"]}, "method"),
        ({"target": "lumina-768"}, "target"),
        ({"target": {}}, "target"),
        ({"seed": -1}, "seed"),
        ({"seed": 10**400}, "seed"),
        ({"tree": "oak"}, "tree"),
        ({"siblings": ["every"]}, "siblings"),
        ({"weight": 1.2}, "weight"),
        ({"neighbours": -1}, "neighbours"),
        ({"distance": None}, "distance"),
        ({"budget": "much"}, "budget"),
        ({"cap": 1.0}, "cap"),
    ],
)
def test_bad_control_values_are_refused_by_name(change, field):
    with pytest.raises(SettingsError) as caught:
        request_with(**change)
    assert caught.value.field == field


def test_the_methods_own_number_of_neighbours_is_asked_for_by_nothing_or_by_0():
    for value in (0, None):
        assert request_with(neighbours=value).relaxed.neighbours is None
        assert controls.from_query({"neighbours": str(value)}, METHODS) == ({"neighbours": None}, [])
    assert request_with(neighbours=7).relaxed.neighbours == 7


def test_mu_is_a_value_only_when_auto_is_off():
    assert request_with(mu=1.5).relaxed.mu is None
    assert request_with(mu=1.5, mu_auto=False).relaxed.mu == 1.5


def test_link_sets_what_it_can_and_says_what_it_cannot():
    query = {"prompt": "blue lake", "delta": "3.1", "nu": "nan", "clamp": "maybe", "method": "uniform", "seed": "7", "draft_length": "2.5"}
    values, notices = controls.from_query({**query, "unknown": "1", "target": "lumina-768"}, METHODS)
    assert values == {"prompt": "blue lake", "delta": 3.1, "method": "uniform", "seed": 7}
    assert [n.split("=")[0] for n in notices[1:]] == ["nu", "clamp", "draft_length"]
    assert notices[0] == "there is no target called 'lumina-768', only meadow"
    assert notices[3] == "draft_length=2.5: 2.5 is not a whole number. Give the draft length as a whole number from 1 to 16"
    assert not any(n.endswith(".") for n in controls.from_query({"tree": "oak", "siblings": "no"}, METHODS)[1])


SLIDERS = {name: setting.slider for name, setting in SETTINGS.items() if setting.slider}


def test_slider_ranges_lie_within_what_is_accepted():
    for name, (low, high, _) in SLIDERS.items():
        for value in (low, high):
            change = {name: value} if name != "mu" else {"mu": value, "mu_auto": False}
            assert getattr(request_with(**change).relaxed, name) == value
        assert controls.DEFAULTS[name] is None or low <= controls.DEFAULTS[name] <= high


def test_a_link_may_ask_for_all_that_the_command_line_takes():
    for name, limits in {name: SETTINGS[name].limits for name in SLIDERS}.items():
        for value in limits if name != "top_p" else limits[1:]:
            assert controls.from_query({name: f"{value:.10g}"}, METHODS) == ({name: value}, []), name
            low, high, _ = SLIDERS[name]
            update = shows(name, value)
            assert update.get("minimum", low) <= update["value"] <= update.get("maximum", high)
        refused = controls.from_query({name: f"{limits[1] + 1:.10g}"}, METHODS)
        assert refused[0] == {}
        assert SETTINGS[name].range in refused[1][0]
        assert f"{limits[1]:.10g}" in SETTINGS[name].range
    assert "above 0 and up to 1" in controls.from_query({"top_p": "0"}, METHODS)[1][0]
    assert shows("delta", 15.0) == gr.update(value=15.0, minimum=0.0, maximum=15.0)
    assert shows("delta", 3.0) == gr.update(value=3.0)
    assert shows("neighbours", None) == gr.update(value=None)


def test_the_endpoints_words_give_the_limits_that_hold():
    assert documentation(SETTINGS["nu"]) == "ν, the annealing rate: how fast ω falls along the draft; a number from -3 to 3"
    assert all(f" {name}" in documentation(SETTINGS["method"]) for name in METHODS)
    assert documentation(SETTINGS["max_tokens"]).endswith("a whole number from 1 to 65536; null: the whole picture")


TREES_OF_PEOPLE = [
    ("[[0], [1], [0, 0]]", None),
    (json.dumps([[0] * n for n in range(1, 17)]), None),
    (json.dumps([[0], *([0, n] for n in range(9)), *([0, 0, n] for n in range(9))]), None),
    (json.dumps([[n] for n in range(65)]), "The tree has 65 nodes"),
    (json.dumps([[0] * n for n in range(1, 18)]), "17 levels"),
    ("[[1]]", "not a tree"),
    ("[]", "The tree has 0 nodes"),
    ("oak", "Choose one of auto, dynamic"),
    (None, "not a tree"),
]


@pytest.mark.parametrize(("tree", "advice"), TREES_OF_PEOPLE)
def test_a_tree_of_ones_own_is_drafted_or_refused_with_advice(tree, advice):
    if advice:
        with pytest.raises(SettingsError, match=advice):
            request_with(tree=tree)
        assert controls.from_query({"tree": str(tree)}, METHODS)[1]
        return
    assert controls.from_query({"tree": tree}, METHODS) == ({"tree": tree}, [])
    run = coolsd.generate(tiny_pair(), **request_with(tree=tree).relaxed.to_dict())
    assert run.complete
    assert run.rounds[1].drafted == max(len(node) for node in json.loads(tree)) or run.rounds[1].drafted == 14


@pytest.mark.parametrize(
    ("change", "active"),
    [
        ({}, {"delta", "nu", "mu_auto", "clamp", "omega", "draft_length", "tree"}),
        ({"mu_auto": False}, {"delta", "nu", "mu_auto", "mu", "clamp", "omega", "draft_length", "tree"}),
        ({"tree": "mc_sim_7b_63"}, {"delta", "nu", "mu_auto", "clamp", "omega", "tree", "siblings"}),
        ({"reference": "ar", "method": "diverse"}, {"weight", "draft_length"}),
        ({"reference": "ar", "method": "lantern"}, {"tree", "neighbours", "distance", "budget"}),
        ({"reference": "lantern++", "method": "block"}, {"tree", "neighbours", "distance", "cap", "draft_length"}),
        ({"reference": "ar", "method": "ar"}, set()),
        ({"reference": "magic", "method": None}, set()),
    ],
)
def test_only_settings_that_a_lane_listens_to_are_shown(change, active):
    assert controls.listening({**controls.DEFAULTS, **change}, METHODS) == active


def test_a_link_spells_every_setting():
    query = {"tree": "dynamic", "siblings": "every", "weight": "0.3", "neighbours": "null", "distance": "normalised", "budget": "0.2"}
    values, notices = controls.from_query({**query, "cap": "3"}, METHODS)
    assert not notices
    assert values == {**query, "weight": 0.3, "neighbours": None, "budget": 0.2, "cap": 3.0}
    assert controls.from_query({"siblings": "some", "neighbours": "0.5"}, METHODS)[0] == {}


# --- the page as a program sees it --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with served(tiny_backend(slow_stream(0.005)), tmp_path_factory.mktemp("runs")) as demo:
        yield Client(demo.local_url, verbose=False)


def test_only_generate_is_public(api):
    described = api.view_api(return_format="dict")
    assert list(described["named_endpoints"]) == ["/generate"]
    assert not described["unnamed_endpoints"]
    parameters = {p["parameter_name"]: p for p in described["named_endpoints"]["/generate"]["parameters"]}
    assert set(parameters) == set(Settings().to_dict())
    assert parameters["delta"]["parameter_default"] == 2.0
    assert all(p["type"] for p in parameters.values())
    assert {name: p["label"] for name, p in parameters.items()} == {name: documentation(setting) for name, setting in SETTINGS.items()}


def test_generate_returns_the_run_of_the_library(api):
    picture, about, file = api.predict("a lake", seed=4, api_name="/generate")
    assert about["settings"] == Settings(prompt="a lake", seed=4).to_dict()
    run = coolsd.generate(tiny_pair(), "a lake", seed=4)
    assert Run.from_json(Path(file)).tokens == run.tokens
    assert about["statistics"]["target_calls"] == run.stats.target_calls
    with Image.open(picture) as opened:
        assert (opened.format, opened.text["seed"]) == ("PNG", "4")
        assert np.array_equal(opened, run.image.convert("RGB"))


def test_a_full_disk_loses_nothing_of_an_answer(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("coolsd.ui.api.save_bytes_to_cache", full)
    backend = tiny_backend()
    *_, (picture, about, file) = endpoint(backend, Loader(backend.load))("a lake", seed=4)
    assert picture is file is None
    assert "No space left on device" in about["notice"]
    assert Run.from_json(json.dumps(about["run"])).tokens == coolsd.generate(tiny_pair(), "a lake", seed=4).tokens
    kind, content = about["picture"].split(",", 1)
    assert kind == "data:image/png;base64"
    assert Image.open(io.BytesIO(base64.b64decode(content))).text["seed"] == "4"


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": None}, "prompt is empty"),
        ({"delta": 99}, "out of range"),
        ({"delta": None}, "is empty"),
        ({"delta": "2"}, "not a number"),
        ({"seed": 1.5}, "whole number"),
        ({"method": "magic"}, "Choose one of"),
        ({"clamp": 1}, "yes or no"),
    ],
)
def test_generate_refuses_bad_input_with_advice(api, change, advice):
    with pytest.raises(Exception, match=advice):
        api.predict(**{"prompt": "a lake", **change}, api_name="/generate")


def test_no_pop_up_is_called_error():
    backend = tiny_backend(lambda *_, **__: (_ for _ in ()).throw(MemoryError("full")))
    generate = endpoint(backend, Loader(backend.load))
    page = Page(backend, Loader(backend.load))
    values = [{**controls.DEFAULTS, "delta": None}[name] for name in controls.CONTROLS]
    titles = {}
    for what, call in {
        "bad": lambda: list(generate("")),
        "broken": lambda: list(generate("lake")),
        "page": lambda: page.prepare(session("a"), *values),
        "laboratory": lambda: tab.speaking(tab.look)({"p": "x"}, None),
    }.items():
        with pytest.raises(gr.Error) as caught:
            call()
        titles[what] = caught.value.title
    with ExitStack() as line:
        for _ in range(PLACES + 1):
            line.enter_context(backend.run_queue.place())
        with pytest.raises(gr.Error) as caught:
            list(generate("lake"))
    titles["full"] = caught.value.title
    assert titles == {"bad": CHANGE, "broken": FAILED, "page": CHANGE, "laboratory": CHANGE, "full": FULL}


def test_private_events_refuse_bad_values_with_advice(api, tmp_path):
    """By fn_index anyone can send anything to any event of the page."""
    config = httpx.get(f"{api.src}config").json()
    fitting = [d for d in config["dependencies"] if len(d["inputs"]) == len(controls.CONTROLS) and d["targets"] and d["backend_fn"]]
    prepare = next(d["id"] for d in fitting if {"click", "submit"} == {event for _, event in d["targets"]})
    bad = [("delta", None, "δ, the total relaxation, is empty"), ("delta", "two", "not a number"), ("nu", [1], "not a number")]
    bad += [
        ("method", {}, "no method called"),
        ("tree", 7, "not a tree"),
        ("clamp", None, "not a yes or no"),
        ("prompt", 5, "prompt is of type int"),
    ]
    for name, value, advice in bad:
        values = [value if control == name else controls.DEFAULTS[control] for control in controls.CONTROLS]
        body = {"data": values, "fn_index": prepare, "session_hash": f"bad{name}{value}", "event_data": None}
        httpx.post(f"{api.src}gradio_api/queue/join", json=body)
        answer = ""
        with httpx.stream("GET", f"{api.src}gradio_api/queue/data", params={"session_hash": body["session_hash"]}, timeout=20) as stream:
            for line in stream.iter_lines():
                answer = line
                if "process_completed" in line:
                    break
        error = json.loads(answer.removeprefix("data:"))["output"]["error"]
        assert advice in error, (name, value, error)


def test_not_a_number_over_http_gets_advice(api):
    values = json.dumps([{"prompt": "lake", "delta": math.nan}.get(s.name, s.default) for s in SETTINGS.values()])
    address = f"{api.src}gradio_api/call/generate"
    joined = httpx.post(address, content=f'{{"data":{values}}}', headers={"content-type": "application/json"})
    answer = httpx.get(f"{address}/{joined.json()['event_id']}", timeout=20).text
    assert "event: error" in answer
    assert "nan is out of range" in answer


def test_files_of_the_host_are_not_served(api):
    for path in ("/etc/passwd", "app.py", "../README.md"):
        assert httpx.get(f"{api.src}gradio_api/file={path}").status_code in (403, 404)


def test_two_people_get_their_own_results(api):
    clients = [api, Client(api.src, verbose=False)]  # two places each
    jobs = [clients[seed % 2].submit(f"lake {seed}", seed=seed, api_name="/generate") for seed in range(4)]
    for seed, job in enumerate(jobs):
        run = Run.from_json(Path(job.result(timeout=60)[2]))
        assert run.settings.prompt == f"lake {seed}"
        assert run.tokens == coolsd.generate(tiny_pair(), f"lake {seed}", seed=seed).tokens


def test_events_are_private(tmp_path):
    demo = build(tiny_backend(), tmp_path)
    functions = list(demo.fns.values())
    public = [f for f in functions if f.api_visibility == "public"]
    assert [f.api_name for f in public] == ["generate"]
    assert all(f.show_progress == "hidden" for f in functions if f not in public and f.outputs)


def test_every_control_has_a_name(tmp_path):
    demo = build(tiny_backend(), tmp_path)
    kinds = gr.Slider | gr.Textbox | gr.Dropdown | gr.Checkbox | gr.Number
    named = [block for block in demo.blocks.values() if isinstance(block, kinds)]
    assert len(named) >= len(controls.CONTROLS)
    assert all(block.label for block in named)


def test_pickers_offer_every_method(tmp_path):
    demo = build(tiny_backend(), tmp_path)
    pickers = [b for b in demo.blocks.values() if isinstance(b, gr.Dropdown) and b.label.endswith(("(left)", "(right)"))]
    assert len(pickers) == 2
    assert all([value for _, value in b.choices] == list(METHODS) for b in pickers)


def test_recorded_run_is_there_before_anything_is_pressed(tmp_path):
    runs = [coolsd.generate(tiny_pair(), "lake", method) for method in ("eagle1", "coolsd")]
    exports.save(exports.Comparison(*runs, 0.01), tmp_path, "lake")
    demo = build(tiny_backend(load=lambda name: pytest.fail("nothing may load")), tmp_path)
    views = [b.value for b in demo.blocks.values() if isinstance(b, gr.HTML) and isinstance(b.value, dict) and "lanes" in b.value]
    lanes = {lane["key"]: lane for lane in views[0]["lanes"]}
    assert lanes["reference"]["badge"] == lanes["relaxed"]["badge"] == "recorded"
    assert lanes["relaxed"]["picture"].startswith("data:image/png;base64,")
    values = [b.value for b in demo.blocks.values() if isinstance(b, gr.HTML) and isinstance(b.value, dict)]
    statuses = [value["status"] for value in values if "status" in value]
    assert any(words.startswith("“lake”, recorded on ") for words in statuses)  # the prompt above it may be another


def test_a_view_touches_only_what_changed(tmp_path):
    page = Page(tiny_backend(), Loader(lambda name: tiny_pair()))
    with gr.Blocks():
        page.draw(tmp_path)
    assert set(page.changes(View("waiting"))) == {page.status}
    ended = page.changes(View("done", tone="good", ended=True))
    assert ended[page.generate]["interactive"] is True


def test_stop_is_heard_whenever_it_comes(tmp_path):
    page = Page(backend := tiny_backend(), Loader(lambda name: tiny_pair()))
    with gr.Blocks():
        page.draw(tmp_path)
    values = tuple(controls.DEFAULTS[name] for name in controls.CONTROLS)
    status = lambda changes: changes[page.status]["status"]  # noqa: E731

    page.prepare(session("a"), *values)
    with pytest.raises(gr.Error, match="on its way"):
        page.prepare(session("a"), *values)
    page.prepare(session("b"), *values)
    page.stop_run(session("a"))  # before the run has begun
    assert status(list(page.run(session("a"), *values))[-1]).startswith("Stopped")
    assert status(list(page.run(session("b"), *values))[-1]).startswith("Done")
    assert not page.stops

    page.prepare(session("a"), *values)
    for changes in page.run(session("a"), *values):
        states = [lane["state"] for lane in changes.get(page.lanes, {"lanes": []})["lanes"]]
        if backend.run_queue.length and states == ["done"] * 3:  # after the last token, before the last view
            page.stop_run(session("a"))
    assert status(changes).startswith("Stopped. All pictures")
    assert page.stop_run(session("a"))[-1]["status"].startswith("Stopped")  # nothing runs any more

    page.prepare(session("a"), *values)
    page.leave(session("a"))
    assert not page.stops


def test_a_run_begun_at_the_last_view_keeps_its_stop(tmp_path):
    page = Page(tiny_backend(), Loader(lambda name: tiny_pair()))
    with gr.Blocks():
        page.draw(tmp_path)
    values = tuple(controls.DEFAULTS[name] for name in controls.CONTROLS)
    page.prepare(session("a"), *values)
    for _ in page.run(session("a"), *values):
        if not page.stops:
            page.prepare(session("a"), *values)
    assert list(page.stops) == ["a"]


def test_app_builds_the_page_and_loads_nothing():
    import app

    assert [f.api_name for f in app.demo.fns.values() if f.api_visibility == "public"] == ["generate"]
    assert not app.demo.loader.pairs
