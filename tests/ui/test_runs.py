"""What a run shows, without a browser: words and figures, comparisons that end, stop or fail, and exports."""

import base64
import io
import json
import threading
import time
from dataclasses import replace

import gradio as gr
import pytest
from pages import METHODS, counts, lane_data, request_with, session, slow_stream, tiny_backend, views
from PIL import Image
from tiny import tiny_pair

import coolsd
from coolsd import exports
from coolsd.models.catalog import TargetStatus
from coolsd.models.prompt_domain import PromptDomain
from coolsd.settings import Settings
from coolsd.trace import Round, Run, statistics
from coolsd.ui import controls, lanes, open_file, templates, text
from coolsd.ui.backend import EMBEDDED, Loader
from coolsd.ui.compare import compare
from coolsd.ui.page import Page
from coolsd.ui.run_queue import Full, RunQueue
from coolsd.ui.targets import FOLLOWING

# --- words and figures out --------------------------------------------------------------------------------------------------------


def sample_lane(method="coolsd"):
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
    lane = sample_lane()
    words = lanes.readout(lane, statistics(lane.rounds))
    assert words == {
        "seconds": "0.30 s",
        "calls": "3",
        "length": "2.67",
        "tokens": "8 / 8",
        "drafts": "6",
        "bias": "0.05",
    }


def test_a_lossless_lane_says_so():
    lane = sample_lane("eagle1")
    assert lanes.readout(lane, statistics(lane.rounds))["bias"] == "0"
    assert lanes.view([lane], "tiny")["lanes"][0]["bias"] == {"exact": True, "note": "exact"}


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"method": "lantern"}, "a token, or more"),
        ({"method": "lantern++g"}, "a token"),
        ({"siblings": "every"}, "a token"),
        ({"siblings": "every", "tree": "dynamic"}, "a token, or less"),
    ],
)
def test_a_bound_on_the_bias_says_on_which_side_it_is(settings, note):
    assert lanes.bias_note(Settings(prompt="x", **settings)) == note


def test_the_browser_is_sent_each_round_once_more_and_the_same():
    lane = sample_lane()
    first = lanes.view([replace(lane, rounds=lane.rounds[:2])], "tiny")["lanes"][0]["rounds"]
    now = lanes.view([lane], "tiny")["lanes"][0]
    again = lanes.view([lane], "tiny")["lanes"][0]
    assert now["rounds"][:2] == first
    assert now == again
    assert now["rounds"] is not again["rounds"]  # gradio compares what it sends with what it sent
    assert json.loads(now["rounds"][1])["tokens"] == [1, 2, 3]


def slower(lane, factor):
    times = ("draft_seconds", "target_seconds", "verify_seconds", "other_seconds")
    rounds = [replace(r, **{t: getattr(r, t) * factor for t in times}) for r in lane.rounds]
    return replace(lane, rounds=rounds)


def headline(reference, relaxed, token_seconds=None):
    both = [reference, relaxed]
    return lanes.headline(both, lanes.stats_of(both), token_seconds)


def test_headline_says_what_was_measured_and_what_was_estimated():
    answer = headline(slower(sample_lane("eagle1"), 1.5), sample_lane(), 0.1)
    assert answer["reference"] == "1.50×"
    assert answer["how"] == ", measured just now"
    assert answer["calls"] == "1.00×"
    assert answer["ar"] == "2.67×"  # one prefill of 0.1 s and seven steps of 0.1 s over 0.3 s
    assert "estimated" in answer["ar_how"]


def test_plain_ar_as_reference_is_measured():
    answer = headline(slower(sample_lane("ar"), 3), sample_lane(), 0.1)
    assert answer["ar"] == answer["reference"] == "3.00×"
    assert "measured" in answer["ar_how"]


def test_slower_is_shown_as_slower():
    assert headline(sample_lane("eagle1"), slower(sample_lane(), 2), 0.02)["reference"] == "0.50×"
    assert headline(sample_lane("eagle1"), slower(sample_lane(), 2), 0.02)["ar"] == "0.57×"  # 0.2 s and seven steps over 0.6 s


def test_headline_is_empty_before_anything_ran():
    empty = lanes.Lane(Settings(prompt="x"), (4, 4), "empty")
    assert headline(empty, empty)["reference"] == "–"


@pytest.mark.parametrize(("reference", "relaxed", "expected"), [(8, 8, "1.00×"), (7, 8, "–"), (8, 7, "–")])
def test_a_speedup_so_far_waits_for_some_rounds_of_both_lanes(reference, relaxed, expected):
    lane = sample_lane()
    begun = [replace(lane, rounds=lane.rounds[1:2] * count, state="running") for count in (reference, relaxed)]
    answer = headline(*begun, 0.1)
    if expected == "–":
        assert answer == {"keep": True, "state": "old"}  # the last run's stay, dimmed
    else:
        assert (answer["reference"], answer["how"], answer["state"]) == (expected, ", so far", "now")
        assert answer["ar"].endswith("×")
    assert headline(begun[0], replace(begun[1], state="done"))["reference"] != "–"


def test_a_third_lane_measures_plain_ar():
    plain = slower(sample_lane("ar"), 0.5)
    longer = replace(plain, rounds=[plain.rounds[0]] + plain.rounds[1:] * 4, state="done")
    race = [slower(sample_lane("eagle1"), 1.5), sample_lane(), longer]
    answer = lanes.headline(race, lanes.stats_of(race), 0.1)
    assert (answer["reference"], answer["ar"], answer["ar_interval"]) == ("1.50×", "0.41×", "0.41–0.41")  # 8 tokens in 3 calls, 29 in 9
    assert "measured" in answer["ar_how"]
    rows = lanes.view(race, "tiny")["lanes"]
    assert [(lane["key"], lane["thin"]) for lane in rows] == [("reference", False), ("relaxed", False), ("ar", True)]
    assert (rows[2]["title"], rows[2]["state"], len(rows[2]["rounds"])) == ("Plain AR", "done", 9)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.001, "< 0.01"), (0.0912, "0.09"), (2.456, "2.46"), (12.34, "12.3"), (104.4, "104")]
)
def test_numbers_have_two_digits_that_matter(value, text):
    assert lanes.number(value) == text


def test_templates_hold_no_values_and_every_number_is_explained():
    markup = templates.answer() + templates.mount() + templates.exports() + templates.line()
    assert "${" not in markup
    assert "{{" not in markup
    assert set(templates.READOUT) <= set(text.DEFINITIONS)
    words = text.about(METHODS)
    for meaning in (*(meaning for _, meaning in text.DEFINITIONS.values()), *(method.about for method in METHODS.values())):
        assert meaning in words


# --- runs -------------------------------------------------------------------------------------------------------------------------


def test_a_comparison_ends_with_both_pictures_and_all_figures():
    sequence = views(tiny_backend(), delta=3.0, seed=5)
    last = sequence[-1]
    assert last.ended
    assert last.tone == "good"
    assert counts(last) == [16, 16, 16]
    assert last.headline["reference"].endswith("×")
    bundle = json.loads(last.export["text"])
    run = Run.from_json(json.dumps(bundle["relaxed"]))
    again = coolsd.generate(tiny_pair(), **run.settings.to_dict())
    assert run.tokens == again.tokens
    assert bundle["reference"]["settings"]["method"] == "eagle1"
    assert bundle["ar_token_seconds"] > 0


def test_a_slow_run_shows_partial_pictures():
    sequence = views(tiny_backend(slow_stream(0.06)), draft_length=1)
    partial = [v for v in sequence if v.lanes and lane_data(v, 0)["state"] == "running" and lane_data(v, 0)["picture"]]
    assert partial
    assert lane_data(partial[0], 0)["picture"].startswith("data:image/webp;base64,")
    assert lane_data(partial[0], 1)["state"] == lane_data(partial[0], 2)["state"] == "running"
    assert lane_data(partial[0], 1)["picture"].startswith("data:image/webp;base64,")


def test_closing_a_comparison_closes_the_stream():
    closed = threading.Event()

    def stream(*args, **settings):
        try:
            yield from slow_stream(0.1)(*args, **settings)
        finally:
            if settings["max_tokens"] is None:
                closed.set()

    backend = tiny_backend(stream)
    running = compare(backend, Loader(backend.load), request_with())
    next(v for v in running if v.lanes and lane_data(v, 0)["state"] == "running")
    running.close()
    assert closed.is_set()


STOPS = ["loading", "timing", "decoding"]


@pytest.mark.parametrize("when", STOPS)
def test_stop_ends_a_run_with_what_was_decoded(when):
    backend = tiny_backend(slow_stream(0.02), load=(lambda name: time.sleep(1) or tiny_pair()) if when == "loading" else None)
    stop = threading.Event()
    sequence = []
    for view in compare(backend, Loader(backend.load), request_with(), stop):
        sequence.append(view)
        reached = {
            "loading": "Loading" in view.status,
            "timing": "timing" in view.status,
            "decoding": bool(view.lanes) and lane_data(view, 0)["state"] == "running",
        }
        if reached[when]:
            stop.set()
    last = sequence[-1]
    assert last.ended
    assert last.status.startswith("Stopped")
    if STOPS.index(when) < 2:
        assert not last.export
        return
    bundle = json.loads(last.export["text"])
    for place, name in enumerate(("reference", "relaxed", "plain")):
        run = Run.from_json(json.dumps(bundle[name]))
        assert 0 < len(run.tokens) < 16
        assert bundle[name]["complete"] is False
        assert f"-stopped-{len(run.tokens)}-of-16" in lane_data(last, place)["file"]
        assert lane_data(last, place)["badge"] == "stopped"
        picture = Image.open(io.BytesIO(base64.b64decode(lane_data(last, place)["picture"].split(",")[1])))
        assert picture.text["stopped"] == f"{len(run.tokens)} of 16"
        assert picture.getextrema()[3] == (0, 255)
        assert run.tokens == coolsd.generate(tiny_pair(), **run.settings.to_dict()).tokens[: len(run.tokens)]


def test_turns_are_taken_in_order_and_the_queue_has_an_end():
    run_queue = RunQueue(most=1)
    with run_queue.place() as first:
        second = run_queue.place()
        ahead = second.__enter__()
        assert (first(), ahead()) == (0, 1)
        with pytest.raises(Full, match="in a minute"), run_queue.place():
            pass
    assert ahead() == 0
    second.__exit__(None, None, None)
    with run_queue.place() as third:
        assert third() == 0


def test_stop_while_waiting_gives_up_the_place():
    backend, stop = tiny_backend(), threading.Event()
    with backend.run_queue.place():
        waiting = compare(backend, Loader(backend.load), request_with(), stop)
        assert next(waiting).status.startswith("Waiting for your turn")
        stop.set()
        assert list(waiting)[-1].status.startswith("Stopped")
    with backend.run_queue.place() as ahead:
        assert ahead() == 0


LACKING = TargetStatus(
    "big", "Big, 512 px", "Slow.", ("Big needs a GPU with 9.0 GB; none was found.", "Fetch it with `hf download big`."), "9 GB"
)
PLAIN = TargetStatus("plain", "Plain, 768 px", plan="GPU memory in GB: 3 in all.", settings={"cfg_scale": 3.0, "top_k": 9}, drafts=False)


def offering(load=None):
    return replace(tiny_backend(load=load), target_statuses=lambda: {**EMBEDDED, "big": LACKING, "plain": PLAIN})


def test_a_target_that_cannot_run_says_what_it_lacks(tmp_path):
    page = Page(offering(), Loader(lambda name: tiny_pair()))
    with gr.Blocks():
        page.draw(tmp_path)
    values = [{**controls.DEFAULTS, "target": "big"}[name] for name in controls.CONTROLS]
    with pytest.raises(gr.Error, match=r"Big, 512 px cannot run here yet.*Choose meadow"):
        page.prepare(session("a"), *values)
    assert page.targets.list_targets()["choices"][1] == ("target: Big, 512 px (not here yet)", "big")
    advice = page.targets.explain("big")
    assert advice["visible"]
    assert all(line in advice["value"] for line in (*LACKING.missing, LACKING.note, LACKING.plan))
    assert not page.targets.explain("meadow")["visible"]
    assert not page.targets.explain({})["visible"]
    assert "train drafter" in page.targets.explain("plain")["value"]
    assert [update["value"] for update in page.targets.defaults("plain")] == ["sjd-coupled", "coolsd-jacobi", False, 9, 3.0]
    assert [update["value"] for update in page.targets.defaults("meadow")] == [controls.DEFAULTS[name] for name in FOLLOWING]
    notes = controls.from_query({"target": "big"}, METHODS, page.backend.target_statuses())[1]
    lacks = "Big needs a GPU with 9.0 GB; none was found; Fetch it with `hf download big`"
    assert notes == [f"target=big cannot run here yet: {lacks} (choose it at the top for how to get it)"]
    assert controls.from_query({"target": "plain"}, METHODS, page.backend.target_statuses())[0] == {"target": "plain"}


def test_loading_shows_the_memory_plan():
    backend = offering(load=lambda name: time.sleep(0.5) or tiny_pair())
    request = controls.read({**controls.DEFAULTS, "target": "plain"}, METHODS, backend.target_statuses())
    assert "3 in all" in next(compare(backend, Loader(backend.load), request)).status


def test_a_prompt_from_outside_the_pairs_world_is_drawn_with_a_notice(monkeypatch):
    monkeypatch.setattr(tiny_pair().text, "domain", PromptDomain("flowers", frozenset({"rose"}), ("a red rose",)))
    monkeypatch.setattr("coolsd.models.prompt_domain.NEAR", 1.1)
    last = views(tiny_backend(), prompt="a car")[-1]
    assert "tiny paints flowers" in last.status
    assert last.tone == "good"
    assert "paints" not in views(tiny_backend(), prompt="a rose")[-1].status


def test_a_broken_run_says_what_happened_and_keeps_what_there_is():
    def stream(*args, **settings):
        for event in coolsd.stream(*args, **settings):
            if settings["method"] == "coolsd" and event.index == 2 and not settings["max_tokens"]:
                raise MemoryError("out of memory")
            yield event

    last = views(tiny_backend(stream))[-1]
    assert last.ended
    assert last.tone == "bad"
    assert "MemoryError: out of memory" in last.status
    assert lane_data(last, 1)["state"] == "failed"
    assert len(lane_data(last, 1)["rounds"]) == 2


def test_a_pair_that_cannot_load_is_reported_and_tried_again():
    attempts = []

    def load(name):
        attempts.append(name)
        if len(attempts) == 1:
            raise FileNotFoundError("no weights")
        return tiny_pair()

    backend = tiny_backend(load=load)
    loader = Loader(load)
    first = list(compare(backend, loader, request_with()))[-1]
    assert first.ended
    assert "no weights" in first.status
    assert list(compare(backend, loader, request_with()))[-1].tone == "good"


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


# --- runs from a file --------------------------------------------------------------------------------------------------------------


def opened_views(backend, text, name="rose.json"):
    loader = Loader(backend.load)
    loader.start("meadow").done.wait(60)
    return list(open_file.opened({"name": name, "text": text}, backend, loader, lambda pair: pair.picture))


def test_a_dropped_bundle_is_shown_with_its_pictures():
    bundle = json.loads(views(tiny_backend(), prompt="a lake", plain=False)[-1].export["text"])
    for lane in ("reference", "relaxed"):
        bundle[lane]["target"] = "meadow"
    (view,) = opened_views(tiny_backend(), json.dumps(bundle))
    assert view.ended
    assert view.status.startswith("“a lake”, from rose.json, recorded on cpu")
    assert [lane["state"] for lane in view.lanes["lanes"]] == ["recorded", "recorded"]
    for lane, key in zip(view.lanes["lanes"], ("reference", "relaxed"), strict=True):
        assert [token for text in lane["rounds"] for token in json.loads(text)["tokens"]] == Run.from_dict(bundle[key]).tokens
        assert lane["picture"].startswith("data:image/png")
    assert view.headline["state"] == "now"


def test_a_single_dropped_run_is_one_lane():
    run = coolsd.generate(tiny_pair(), "a lake", "eagle1", seed=2, inspect=3)
    (view,) = opened_views(tiny_backend(), run.to_json())
    assert len(view.lanes["lanes"]) == 1
    assert view.status.endswith(open_file.UNPAINTED)  # its target is not the one that is loaded
    assert view.headline == lanes.BLANK
    assert Run.from_json(view.export["text"]).tokens == run.tokens
    assert json.loads(view.lanes["lanes"][0]["rounds"][1])["top"]


def test_a_dropped_file_that_is_no_run_says_why():
    for content, words in (
        (None, "larger than 16 MB"),
        ("a rose", "not JSON"),
        ('{"rounds": []}', "schema None"),
        ("{}", "This is no run"),
    ):
        (view,) = opened_views(tiny_backend(), content)
        assert view.tone == "bad"
        assert view.lanes is None
        assert words in view.status
    (view,) = list(open_file.opened("nonsense", tiny_backend(), Loader(tiny_backend().load), lambda pair: None))
    assert view.tone == "bad"


def test_recorded_patches_reach_the_browser():
    run = coolsd.generate(tiny_pair(), "a lake", seed=2)
    lane = lanes.from_run(run, {"3": {"7": "data:image/webp;base64,AAAA"}})
    assert lanes.view([lane], "tiny")["lanes"][0]["patches"] == {"3": {"7": "data:image/webp;base64,AAAA"}}
