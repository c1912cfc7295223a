"""The page without a browser: settings in, words and figures out, runs, exports, and the API as a program sees it."""

import base64
import io
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import gradio as gr
import httpx
import pytest
from gradio_client import Client
from PIL import Image
from tiny import tiny_pair

import coolsd
from coolsd import exports
from coolsd.models.targets import Offer
from coolsd.models.world import World
from coolsd.settings import Settings, SettingsError
from coolsd.trace import Round, Run, statistics
from coolsd.ui import controls, figures, lanes, templates, text
from coolsd.ui.api import PARAMETERS
from coolsd.ui.compare import View, compare
from coolsd.ui.engine import EMBEDDED, Engine, Full, Loader, Turns
from coolsd.ui.page import SUITED, Page, build, launch_options

METHODS = coolsd.METHODS


def slow_stream(delay, held=None):
    """A stream whose rounds take a while; the few plain AR steps timed beforehand do not.

    While `held` is set rounds take longer, and stand still from the fourth on.
    """

    def stream(*args, **settings):
        timed = settings["max_tokens"] is not None
        for event in coolsd.stream(*args, **settings):
            time.sleep(0 if timed else delay)
            while held and held.is_set() and not timed:
                time.sleep(0.2)
                if event.index < 3:
                    break
            yield event

    return stream


def engine(stream=coolsd.stream, load=None):
    return Engine(load or (lambda name: tiny_pair()), stream, METHODS)


def asked(**changes):
    return controls.read({**controls.DEFAULTS, **changes}, METHODS)


def views(made, **changes):
    return list(compare(made, Loader(made.load), asked(**changes)))


# --- settings in ----------------------------------------------------------------------------------------------------------------


def test_defaults_are_the_projects():
    ask = asked()
    assert ask.relaxed == Settings(prompt=controls.DEFAULTS["prompt"], top_k=controls.DEFAULTS["top_k"])
    assert ask.reference == replace(ask.relaxed, method="eagle1")


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
        asked(**change)
    assert caught.value.field == field


def test_the_methods_own_number_of_neighbours_is_asked_for_by_nothing_or_by_0():
    for value in (0, None):
        assert asked(neighbours=value).relaxed.neighbours is None
        assert controls.from_query({"neighbours": str(value)}, METHODS) == ({"neighbours": None}, [])
    assert asked(neighbours=7).relaxed.neighbours == 7


def test_mu_is_a_value_only_when_auto_is_off():
    assert asked(mu=1.5).relaxed.mu is None
    assert asked(mu=1.5, mu_auto=False).relaxed.mu == 1.5


def test_link_sets_what_it_can_and_says_what_it_cannot():
    query = {"prompt": "blue lake", "delta": "3.1", "nu": "nan", "clamp": "maybe", "method": "uniform", "seed": "7", "draft_length": "2.5"}
    values, notices = controls.from_query({**query, "unknown": "1", "target": "lumina-768"}, METHODS)
    assert values == {"prompt": "blue lake", "delta": 3.1, "method": "uniform", "seed": 7}
    assert [n.split("=")[0] for n in notices] == ["target", "nu", "clamp", "draft_length"]
    assert not any(n.endswith(".") for n in controls.from_query({"tree": "oak", "siblings": "no"}, METHODS)[1])


def test_slider_ranges_lie_within_what_is_accepted():
    for name, (low, high, _) in controls.RANGES.items():
        for value in (low, high):
            change = {name: value} if name != "mu" else {"mu": value, "mu_auto": False}
            assert getattr(asked(**change).relaxed, name) == value
        assert controls.DEFAULTS[name] is None or low <= controls.DEFAULTS[name] <= high


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


@pytest.mark.parametrize(("tree", "told"), TREES_OF_PEOPLE)
def test_a_tree_of_ones_own_is_drafted_or_refused_with_advice(tree, told):
    if told:
        with pytest.raises(SettingsError, match=told):
            asked(tree=tree)
        assert controls.from_query({"tree": str(tree)}, METHODS)[1]
        return
    assert controls.from_query({"tree": tree}, METHODS) == ({"tree": tree}, [])
    run = coolsd.generate(tiny_pair(), **asked(tree=tree).relaxed.to_dict())
    assert run.complete
    assert run.rounds[1].drafted == max(len(node) for node in json.loads(tree)) or run.rounds[1].drafted == 14


@pytest.mark.parametrize(
    ("change", "heard"),
    [
        ({}, {"delta", "nu", "mu_auto", "clamp", "draft_length", "tree"}),
        ({"mu_auto": False}, {"delta", "nu", "mu_auto", "mu", "clamp", "draft_length", "tree"}),
        ({"tree": "mc_sim_7b_63"}, {"delta", "nu", "mu_auto", "clamp", "tree", "siblings"}),
        ({"reference": "ar", "method": "diverse"}, {"weight", "draft_length"}),
        ({"reference": "ar", "method": "lantern"}, {"tree", "neighbours", "distance", "budget"}),
        ({"reference": "lantern++", "method": "block"}, {"tree", "neighbours", "distance", "cap", "draft_length"}),
        ({"reference": "ar", "method": "ar"}, set()),
        ({"reference": "magic", "method": None}, set()),
    ],
)
def test_only_settings_that_a_lane_listens_to_are_shown(change, heard):
    assert controls.listening({**controls.DEFAULTS, **change}, METHODS) == heard


def test_a_link_spells_every_setting():
    query = {"tree": "dynamic", "siblings": "every", "weight": "0.3", "neighbours": "null", "distance": "normalised", "budget": "0.2"}
    values, notices = controls.from_query({**query, "cap": "3"}, METHODS)
    assert not notices
    assert values == {**query, "weight": 0.3, "neighbours": None, "budget": 0.2, "cap": 3.0}
    assert controls.from_query({"siblings": "some", "neighbours": "0.5"}, METHODS)[0] == {}


# --- words and figures out --------------------------------------------------------------------------------------------------------


def hand_made(method="coolsd"):
    """Three rounds: a first token; two of three accepted, one only because relaxed, then recovered; all three accepted, then bonus."""
    share = ("accepted", "accepted")
    seconds = {"draft_seconds": 0.02, "target_seconds": 0.07, "verify_seconds": 0.005, "other_seconds": 0.005}
    rounds = [
        Round(0, 0, (1,), ("sampled",), (False,), 0, (), (), 0, **seconds),
        Round(1, 1, (1, 2, 3), (*share, "recovered"), (False, True, False), 3, (1.0, 0.5, 0.2), (0.1, 0.2, 0.0), 3, **seconds),
        Round(2, 4, (1, 2, 3, 4), ("accepted",) * 3 + ("bonus",), (False,) * 4, 3, (1.0, 0.7, 0.4), (0.0, 0.1, 0.0), 3, **seconds),
    ]
    return lanes.Lane(Settings(prompt="a <b>lake</b>", method=method, delta=2.0, draft_length=3), (2, 4), "done", rounds)


def test_readout_of_a_hand_made_run():
    lane = hand_made()
    shown = lanes.words(lane, statistics(lane.rounds))
    assert shown == {
        "seconds": "0.30 s",
        "calls": "3",
        "length": "2.67",
        "tokens": "8 / 8",
        "rate": "27",
        "drafts": "6",
        "bias": "0.05",
        "picture_bias": "a token; 0.40 in the picture",
    }
    assert lanes.fates(lane) == {"accepted": 4, "relaxed": 1, "recovered": 1, "bonus": 2}


def test_a_lossless_lane_says_so():
    lane = hand_made("eagle1")
    shown = lanes.words(lane, statistics(lane.rounds))
    assert (shown["bias"], shown["picture_bias"]) == ("0", "exactly the target's distribution")


def slower(lane, factor):
    times = ("draft_seconds", "target_seconds", "verify_seconds", "other_seconds")
    rounds = [replace(r, **{t: getattr(r, t) * factor for t in times}) for r in lane.rounds]
    return replace(lane, rounds=rounds)


def headline(reference, relaxed, token_seconds=None):
    both = [reference, relaxed]
    return lanes.headline(both, lanes.stats_of(both), token_seconds)


def test_headline_says_what_was_measured_and_what_was_estimated():
    shown = headline(slower(hand_made("eagle1"), 1.5), hand_made(), 0.1)
    assert shown["reference"] == "1.50×"
    assert shown["how"] == ", measured just now"
    assert shown["calls"] == "1.00×"
    assert shown["ar"] == "2.67×"  # one prefill of 0.1 s and seven steps of 0.1 s over 0.3 s
    assert "estimated" in shown["ar_how"]


def test_plain_ar_as_reference_is_measured():
    shown = headline(slower(hand_made("ar"), 3), hand_made(), 0.1)
    assert shown["ar"] == shown["reference"] == "3.00×"
    assert "measured" in shown["ar_how"]


def test_slower_is_shown_as_slower():
    assert headline(hand_made("eagle1"), slower(hand_made(), 2), 0.02)["reference"] == "0.50×"
    assert headline(hand_made("eagle1"), slower(hand_made(), 2), 0.02)["ar"] == "0.57×"  # 0.2 s and seven steps over 0.6 s


def test_headline_is_empty_before_anything_ran():
    empty = lanes.Lane(Settings(prompt="x"), (4, 4), "empty")
    assert headline(empty, empty)["reference"] == "–"


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (0.001, "< 0.01"), (0.0912, "0.09"), (2.456, "2.46"), (12.34, "12.3"), (104.4, "104")]
)
def test_numbers_have_two_digits_that_matter(value, shown):
    assert lanes.number(value) == shown


def test_curve_holds_the_statistics_and_only_old_plotly_keys():
    both = [(lane.title, statistics(lane.rounds)) for lane in (hand_made("eagle1"), hand_made())]
    figure = figures.curve(both, 3)
    json.dumps(figure, allow_nan=False)
    assert [t["type"] for t in figure["data"]] == ["bar", "bar", "scatter", "scatter"]
    assert figure["data"][3]["y"] == [1.0, 0.6, 0.3]
    assert figure["data"][1]["y"] == [1.0, 1.0, 0.5]
    assert figure["layout"]["yaxis"]["range"] == [0, 1.04]
    assert figure["layout"]["uirevision"]
    known = {"type", "name", "meta", "x", "y", "marker", "hovertemplate", "mode", "line"}
    assert all(set(t) <= known for t in figure["data"])
    import plotly.graph_objects as go

    go.Figure(data=figure["data"], layout=figure["layout"])  # refuses keys that Plotly does not know


def test_curve_as_a_table():
    both = [(lane.title, statistics(lane.rounds)) for lane in (hand_made("ar"), hand_made())]
    rows = figures.table([(both[0][0], statistics([])), both[1]])
    assert rows[0] == ["position", "Plain AR: f", "Plain AR: accepted share", "COOL-SD δ=2: f", "COOL-SD δ=2: accepted share"]
    assert rows[2] == ["2", "–", "–", "0.60", "1.00"]


def test_templates_hold_no_values_and_every_number_is_explained():
    markup = templates.lanes() + templates.answer() + templates.curve() + templates.exports() + templates.line()
    assert "${" not in markup
    assert "{{" not in markup
    for label, meaning in text.DEFINITIONS.values():
        assert label in markup
        assert meaning in text.about()


# --- runs -------------------------------------------------------------------------------------------------------------------------


def test_a_comparison_ends_with_both_pictures_and_all_figures():
    shown = views(engine(), delta=3.0, seed=5)
    last = shown[-1]
    assert last.ended
    assert last.tone == "good"
    assert last.lanes["a.tokens"] == last.lanes["b.tokens"] == "16 / 16"
    assert [image.size for image in last.images] == [(16, 16)] * 2
    assert last.headline["reference"].endswith("×")
    bundle = json.loads(last.export["text"])
    run = Run.from_json(json.dumps(bundle["relaxed"]))
    again = coolsd.generate(tiny_pair(), **run.settings.to_dict())
    assert run.tokens == again.tokens
    assert bundle["reference"]["settings"]["method"] == "eagle1"
    assert bundle["ar_token_seconds"] > 0


def test_a_slow_run_shows_partial_pictures():
    shown = views(engine(slow_stream(0.06)), draft_length=1)
    partial = [v for v in shown if v.lanes and v.lanes["a.state"] == "running" and v.lanes["a.picture"]]
    assert partial
    assert partial[0].lanes["a.picture"].startswith("data:image/webp;base64,")
    assert partial[0].lanes["b.state"] == "waiting"


def test_closing_a_comparison_closes_the_stream():
    closed = threading.Event()

    def stream(*args, **settings):
        try:
            yield from slow_stream(0.1)(*args, **settings)
        finally:
            if settings["max_tokens"] is None:
                closed.set()

    made = engine(stream)
    running = compare(made, Loader(made.load), asked())
    next(v for v in running if v.lanes and v.lanes["a.state"] == "running")
    running.close()
    assert closed.is_set()


STOPS = ["loading", "timing", "first lane", "second lane"]


@pytest.mark.parametrize("when", STOPS)
def test_stop_ends_a_run_with_what_was_decoded(when):
    made = engine(slow_stream(0.02), load=(lambda name: time.sleep(1) or tiny_pair()) if when == "loading" else None)
    stop = threading.Event()
    shown = []
    for view in compare(made, Loader(made.load), asked(), stop):
        shown.append(view)
        reached = {
            "loading": "Loading" in view.status,
            "timing": "Timing" in view.status,
            "first lane": bool(view.lanes) and view.lanes["a.state"] == "running",
            "second lane": bool(view.lanes) and view.lanes["b.state"] == "running",
        }
        if reached[when]:
            stop.set()
    last = shown[-1]
    assert last.ended
    assert last.status.startswith("Stopped")
    if STOPS.index(when) < 2:
        assert not last.export
        return
    bundle = json.loads(last.export["text"])
    lane, state = ("reference", "a") if when == "first lane" else ("relaxed", "b")
    run = Run.from_json(json.dumps(bundle[lane]))
    assert 0 < len(run.tokens) < 16
    assert bundle[lane]["complete"] is False
    assert f"-stopped-{len(run.tokens)}-of-16" in last.lanes[f"{state}.file"]
    assert last.lanes[f"{state}.badge"] == "stopped"
    picture = Image.open(io.BytesIO(base64.b64decode(last.lanes[f"{state}.picture"].split(",")[1])))
    assert picture.text["stopped"] == f"{len(run.tokens)} of 16"
    assert picture.getextrema()[3] == (0, 255)
    assert run.tokens == coolsd.generate(tiny_pair(), **run.settings.to_dict()).tokens[: len(run.tokens)]


def test_turns_are_taken_in_order_and_the_queue_has_an_end():
    turns = Turns(most=1)
    with turns.place() as first:
        second = turns.place()
        ahead = second.__enter__()
        assert (first(), ahead()) == (0, 1)
        with pytest.raises(Full, match="in a minute"), turns.place():
            pass
    assert ahead() == 0
    second.__exit__(None, None, None)
    with turns.place() as third:
        assert third() == 0


def test_stop_while_waiting_gives_up_the_place():
    made, stop = engine(), threading.Event()
    with made.turns.place():
        waiting = compare(made, Loader(made.load), asked(), stop)
        assert next(waiting).status.startswith("Waiting for your turn")
        stop.set()
        assert list(waiting)[-1].status.startswith("Stopped")
    with made.turns.place() as ahead:
        assert ahead() == 0


LACKING = Offer("big", "Big, 512 px", "Slow.", ("Big needs a GPU with 9.0 GB; none was found.", "Fetch it with `hf download big`."), "9 GB")
PLAIN = Offer("plain", "Plain, 768 px", plan="GPU memory in GB: 3 in all.", settings={"cfg_scale": 3.0, "top_k": 9}, drafts=False)


def offering(load=None):
    return replace(engine(load=load), offers=lambda: {**EMBEDDED, "big": LACKING, "plain": PLAIN})


def test_a_target_that_cannot_run_says_what_it_lacks(tmp_path):
    page = Page(offering(), Loader(lambda name: tiny_pair()), "")
    with gr.Blocks():
        page.draw(tmp_path)
    values = [{**controls.DEFAULTS, "target": "big"}[name] for name in controls.CONTROLS]
    with pytest.raises(gr.Error, match=r"Big, 512 px cannot run here yet.*Choose meadow"):
        page.prepare(session("a"), *values)
    assert page.offer()["choices"][1] == ("target: Big, 512 px (not here yet)", "big")
    told = page.explain("big")
    assert told["visible"]
    assert all(line in told["value"] for line in (*LACKING.missing, LACKING.note, LACKING.plan))
    assert not page.explain("meadow")["visible"]
    assert not page.explain({})["visible"]
    assert "train drafter" in page.explain("plain")["value"]
    assert [update["value"] for update in page.suit("plain")] == ["ar", "ar", 9, 3.0]
    assert [update["value"] for update in page.suit("meadow")] == [controls.DEFAULTS[name] for name in SUITED]
    assert controls.from_query({"target": "big"}, METHODS, page.engine.offers())[1]
    assert controls.from_query({"target": "plain"}, METHODS, page.engine.offers())[0] == {"target": "plain"}


def test_loading_shows_the_memory_plan():
    made = offering(load=lambda name: time.sleep(0.5) or tiny_pair())
    ask = controls.read({**controls.DEFAULTS, "target": "plain"}, METHODS, made.offers())
    assert "3 in all" in next(compare(made, Loader(made.load), ask)).status


def test_a_prompt_from_outside_the_pairs_world_is_drawn_with_a_notice(monkeypatch):
    monkeypatch.setattr(tiny_pair().text, "world", World("flowers", frozenset({"rose"}), ("a red rose",)))
    monkeypatch.setattr("coolsd.models.world.NEAR", 1.1)
    last = views(engine(), prompt="a car")[-1]
    assert "tiny paints flowers" in last.status
    assert last.tone == "good"
    assert "paints" not in views(engine(), prompt="a rose")[-1].status


def test_a_broken_run_says_what_happened_and_keeps_what_there_is():
    def stream(*args, **settings):
        for event in coolsd.stream(*args, **settings):
            if settings["method"] == "coolsd" and event.index == 2:
                raise MemoryError("out of memory")
            yield event

    last = views(engine(stream))[-1]
    assert last.ended
    assert last.tone == "bad"
    assert "MemoryError: out of memory" in last.status
    assert last.lanes["a.state"] == "done"
    assert last.lanes["b.state"] == "failed"


def test_a_pair_that_cannot_load_is_reported_and_tried_again():
    attempts = []

    def load(name):
        attempts.append(name)
        if len(attempts) == 1:
            raise FileNotFoundError("no weights")
        return tiny_pair()

    made = engine(load=load)
    loader = Loader(load)
    first = list(compare(made, loader, asked()))[-1]
    assert first.ended
    assert "no weights" in first.status
    assert list(compare(made, loader, asked()))[-1].tone == "good"


def test_pair_loads_once():
    loads = []
    loader = Loader(lambda name: loads.append(name) or tiny_pair())
    both = [loader.start("meadow"), loader.start("meadow")]
    assert all(loading.done.wait(5) for loading in both)
    assert loads == ["meadow"]


# --- exports ----------------------------------------------------------------------------------------------------------------------


def test_png_carries_every_setting():
    run = coolsd.generate(tiny_pair(), "naïve “lake” 湖", seed=3, delta=1.5)
    image = Image.open(io.BytesIO(exports.png(run.image, run)))
    assert set(run.settings.to_dict()) <= set(image.text)
    assert image.text["prompt"] == run.settings.prompt
    assert Settings(**json.loads(image.text["coolsd"])["settings"]) == run.settings


def test_recorded_comparison_round_trip(tmp_path):
    runs = [coolsd.generate(tiny_pair(), "lake", method) for method in ("eagle1", "coolsd")]
    exports.save(exports.Comparison(*runs, 0.01), tmp_path, "b-lake")
    (tmp_path / "a-broken.json").write_text("{}")
    read = exports.recorded(tmp_path)
    assert read.relaxed.tokens == runs[1].tokens
    assert read.relaxed.image.tobytes() == runs[1].image.tobytes()
    assert read.ar_token_seconds == 0.01
    assert exports.recorded(tmp_path / "nowhere") is None


# --- the page as a program sees it --------------------------------------------------------------------------------------------------


@contextmanager
def served(made, recorded):
    demo = build(made, recorded)
    options = launch_options()
    demo.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **options)
    try:
        yield demo
    finally:
        demo.close()


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with served(engine(slow_stream(0.005)), tmp_path_factory.mktemp("runs")) as demo:
        yield Client(demo.local_url, verbose=False)


def test_only_generate_is_public(api):
    described = api.view_api(return_format="dict")
    assert list(described["named_endpoints"]) == ["/generate"]
    assert not described["unnamed_endpoints"]
    parameters = {p["parameter_name"]: p for p in described["named_endpoints"]["/generate"]["parameters"]}
    assert set(parameters) == set(Settings().to_dict())
    assert parameters["delta"]["parameter_default"] == 2.0
    assert all(p["type"] for p in parameters.values())
    assert {name: p["label"] for name, p in parameters.items()} == PARAMETERS


def test_generate_returns_the_run_of_the_library(api):
    result = api.predict("a lake", seed=4, api_name="/generate")
    assert result["run"]["settings"] == Settings(prompt="a lake", seed=4).to_dict()
    assert Run.from_json(json.dumps(result["run"])).tokens == coolsd.generate(tiny_pair(), "a lake", seed=4).tokens
    kind, content = result["image"].split(",", 1)
    assert kind == "data:image/png;base64"
    assert Image.open(io.BytesIO(base64.b64decode(content))).text["seed"] == "4"


@pytest.mark.parametrize(
    ("change", "told"),
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
def test_generate_refuses_bad_input_with_advice(api, change, told):
    with pytest.raises(Exception, match=told):
        api.predict(**{"prompt": "a lake", **change}, api_name="/generate")


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
    for name, value, told in bad:
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
        assert told in error, (name, value, error)


def test_not_a_number_over_http_gets_advice(api):
    values = '"lake","coolsd",NaN,0.7,null,false,5,"auto","salvage",0.8,null,"raw",0.1,2.0,1.0,0,1.0,4.0,0,null'
    address = f"{api.src}gradio_api/call/generate"
    joined = httpx.post(address, content=f'{{"data":[{values}]}}', headers={"content-type": "application/json"})
    answer = httpx.get(f"{address}/{joined.json()['event_id']}", timeout=20).text
    assert "event: error" in answer
    assert "nan is out of range" in answer


def test_files_of_the_host_are_not_served(api):
    for path in ("/etc/passwd", "app.py", "../README.md"):
        assert httpx.get(f"{api.src}gradio_api/file={path}").status_code in (403, 404)


def test_two_people_get_their_own_results(api):
    jobs = [api.submit(f"lake {seed}", seed=seed, api_name="/generate") for seed in range(4)]
    for seed, job in enumerate(jobs):
        run = Run.from_json(json.dumps(job.result(timeout=60)["run"]))
        assert run.settings.prompt == f"lake {seed}"
        assert run.tokens == coolsd.generate(tiny_pair(), f"lake {seed}", seed=seed).tokens


def test_events_are_private(tmp_path):
    demo = build(engine(), tmp_path)
    functions = list(demo.fns.values())
    public = [f for f in functions if f.api_visibility == "public"]
    assert [f.api_name for f in public] == ["generate"]
    assert all(f.show_progress == "hidden" for f in functions if f not in public and f.outputs)


def test_every_control_has_a_name(tmp_path):
    demo = build(engine(), tmp_path)
    kinds = gr.Slider | gr.Textbox | gr.Dropdown | gr.Checkbox | gr.Number
    named = [block for block in demo.blocks.values() if isinstance(block, kinds)]
    assert len(named) >= len(controls.CONTROLS)
    assert all(block.label for block in named)


def test_pickers_offer_every_method(tmp_path):
    demo = build(engine(), tmp_path)
    pickers = [b for b in demo.blocks.values() if isinstance(b, gr.Dropdown) and b.label.endswith(("(left)", "(right)"))]
    assert len(pickers) == 2
    assert all([value for _, value in b.choices] == list(METHODS) for b in pickers)


def test_recorded_run_is_there_before_anything_is_pressed(tmp_path):
    runs = [coolsd.generate(tiny_pair(), "lake", method) for method in ("eagle1", "coolsd")]
    exports.save(exports.Comparison(*runs, 0.01), tmp_path, "lake")
    demo = build(engine(load=lambda name: pytest.fail("nothing may load")), tmp_path)
    shown = [b.value for b in demo.blocks.values() if isinstance(b, gr.HTML) and isinstance(b.value, dict) and "a.badge" in b.value]
    assert shown[0]["a.badge"] == shown[0]["b.badge"] == "recorded"
    assert shown[0]["b.picture"].startswith("data:image/png;base64,")


def test_a_view_touches_only_what_changed(tmp_path):
    page = Page(engine(), Loader(lambda name: tiny_pair()), "")
    with gr.Blocks():
        page.draw(tmp_path)
    assert set(page.changes(View("waiting"))) == {page.status}
    ended = page.changes(View("done", tone="good", ended=True))
    assert ended[page.generate]["interactive"] is True


def session(name):
    return SimpleNamespace(session_hash=name)


def test_stop_is_heard_whenever_it_comes(tmp_path):
    page = Page(made := engine(), Loader(lambda name: tiny_pair()), "")
    with gr.Blocks():
        page.draw(tmp_path)
    values = tuple(controls.DEFAULTS[name] for name in controls.CONTROLS)
    said = lambda shown: shown[page.status]["status"]  # noqa: E731

    page.prepare(session("a"), *values)
    with pytest.raises(gr.Error, match="on its way"):
        page.prepare(session("a"), *values)
    page.prepare(session("b"), *values)
    page.stop_run(session("a"))  # before the run has begun
    assert said(list(page.run(session("a"), *values))[-1]).startswith("Stopped")
    assert said(list(page.run(session("b"), *values))[-1]).startswith("Done")
    assert not page.stops

    page.prepare(session("a"), *values)
    for shown in page.run(session("a"), *values):
        if made.turns._line and "done" in str(shown.get(page.lanes, {}).get("b.state")):  # after the last token, before the last view
            page.stop_run(session("a"))
    assert said(shown).startswith("Stopped. Both pictures")
    assert page.stop_run(session("a"))[-1]["status"].startswith("Stopped")  # nothing runs any more

    page.prepare(session("a"), *values)
    page.left(session("a"))
    assert not page.stops


def test_app_builds_the_page_and_loads_nothing():
    import app

    assert [f.api_name for f in app.demo.fns.values() if f.api_visibility == "public"] == ["generate"]
    assert not app.demo.loader._pairs
