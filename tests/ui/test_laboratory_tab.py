"""What the laboratory's tab says and draws, without a browser; and how soon."""

import statistics
import time

import gradio as gr
import pytest

import coolsd
from coolsd.laboratory import exact
from coolsd.laboratory.exact import CHOICES, PRESETS, Knobs, LaboratoryError
from coolsd.laboratory.mistakes import MISTAKES
from coolsd.ui.backend import Backend
from coolsd.ui.laboratory import tab
from coolsd.ui.page import build

P, Q = (exact.read_row(row, name) for row, name in zip(PRESETS["ambiguous"], "pq", strict=True))

AT_MOST = 0.3  # seconds of processor time; the page promises 0.15 on two idle cores
KNOBS = {"choice": "lossless", "omega": 1.5, "k": 2, "budget": 0.15, "cap": 2.5, "optimal": False}
LOOK = {**KNOBS, "code": "F"}


def look(rows=None, **changes):
    return tab.look(rows or tab.preset("ambiguous"), *{**LOOK, **changes}.values())


def roll(rows, choice, before=None, **changes):
    return tab.roll(rows, before, *{**KNOBS, "choice": choice, **changes}.values())


def test_reading_follows_preset_and_rule():
    message = {name: look(tab.preset(name))[0] for name in PRESETS}
    assert all(reading["verdict"].startswith("Lossless") and reading["tv"] == "0" for reading in message.values())
    assert message["disjoint"]["accept"] == "0"
    assert message["ambiguous"]["accept"] == "0.68"
    relaxed = look(choice="relaxed")[0]
    assert (relaxed["tone"], relaxed["verdict"]) == ("spent", "Relaxed: 0.21 away from p.")
    assert look(choice="forgotten")[0]["tone"] == "bad"
    assert "not drawn from q" in look(choice="greedy")[0]["why_accept"]
    assert "do not show" in look(tab.preset("disjoint"), choice="greedy")[0]["verdict"]
    assert "unused" in look(choice="relaxed", omega=0.5)[0]["why_accept"]


def test_drawn_parts_fill_the_bars():
    view = look(choice="relaxed")[0]["parts"]
    result = exact.one_token(P, Q, Knobs("relaxed", 1.5))
    for i, token in enumerate(view["tokens"]):
        assert sum(token["p"]) == pytest.approx(float(result.law[i]))
        assert sum(token["q"]) == pytest.approx(float(Q[i]))
        assert token["f"] == f"f {float(result.accept_prob[i]):.2f}"
    assert view["scale"] >= float(Q.max())


def test_lantern_has_a_picture_and_the_others_do_not():
    assert look()[1] == ""
    picture = look(choice="lantern")[1]
    assert "F may borrow 0.12 from E" in picture
    assert "borrows nothing" in look(choice="lantern", code="A", budget=0.0)[1]
    reading, picture = look(choice="lantern++")
    assert "F may borrow 0.12 from E" in picture
    assert "2.5-fold (λ)" in picture
    assert "LANTERN's own residual" in reading["why_reject"]
    assert "has more mass than (λ − 1) p(F)" in look(choice="lantern++", cap=1.5)[1]
    assert "the residual G*" in look(choice="lantern++", optimal=True)[0]["why_reject"]


@pytest.mark.parametrize(
    "change", [{"rows": {"p": [1] * 6}}, {"rows": {"p": [0] * 6, "q": [1] * 6}}, {"choice": 3}, {"code": "Z"}, {"k": 99}, {"cap": 0.5}]
)
def test_refusals_reach_the_person(change):
    rows = change.pop("rows", tab.preset("flat"))
    with pytest.raises(gr.Error, match=r"preset|one of|number"):
        tab.speaking(tab.look)(rows, *{**LOOK, **change}.values())


@pytest.mark.parametrize(
    "change",
    [{"shape": "zigzag"}, {"length": 7}, {"length": 2.5}, {"delta": float("inf")}, {"first": -0.1}, {"mu_auto": False, "mu": None}],
)
def test_bad_rounds_are_refused(change):
    with pytest.raises(gr.Error, match="must be"):
        tab.speaking(tab.unroll)(*{**tab.ROUND, **change}.values())


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 0.0},
        {"length": 1},
        {"first": 0.0, "last": 0.0},
        {"delta": 8.0, "nu": 3.0, "length": 6},
        {"shape": "uniform", "clamp": True},
    ],
)
def test_every_corner_of_a_round_is_shown(change):
    profile, contest = tab.unroll(*{**tab.ROUND, **change}.values())
    assert "tokens a call" in profile
    assert "nan" not in profile + contest


def test_rolls_add_up_and_go_on():
    rows = tab.preset("ambiguous")
    views = list(roll(rows, "lossless"))
    assert [sum(counted["counts"]) for _, counted in views] == [1000 * i for i in range(1, 11)]
    assert "Lossless: the counts fit p." in views[-1][0]
    *_, (_, further) = roll(rows, "lossless", before=views[-1][1])
    assert sum(further["counts"]) == 20_000
    *_, (_, anew) = roll(rows, "relaxed", before=views[-1][1])
    assert sum(anew["counts"]) == 10_000
    assert list(roll(rows, "lossless")) == views
    *_, (_, unheard) = roll(rows, "lossless", before=views[-1][1], omega=3.0, cap=5.0, k=1)
    assert sum(unheard["counts"]) == 20_000, "lossless listens to none of these"


def test_rolls_end_somewhere():
    rows = tab.preset("flat")
    *_, (_, counted) = roll(rows, "lossless")
    with pytest.raises(LaboratoryError, match="start again"):
        next(roll(rows, "lossless", before={**counted, "counts": [tab.MOST] * 6}))


@pytest.mark.parametrize("name", MISTAKES)
def test_ten_thousand_rounds_expose_every_mistake(name):
    *_, (view, _) = roll(tab.preset("ambiguous"), name, omega=tab.omega_for(name, 1.5))
    assert "Not lossless: the counts do not fit p." in view
    assert CHOICES[name] in view


@pytest.mark.parametrize(
    ("choice", "changes", "message"),
    [
        ("lantern", {}, "LANTERN with k = 2, budget 0.15 and LANTERN's own residual"),
        ("lantern++", {"optimal": True}, "LANTERN++ with k = 2, λ = 2.5 and the residual G*"),
    ],
)
def test_lanterns_bias_is_caught_and_goes_with_its_budget(choice, changes, message):
    rows = tab.preset("ambiguous")
    *_, (view, counted) = roll(rows, choice, **changes)
    assert "Not lossless: the counts do not fit p." in view
    assert message in view
    *_, (view, anew) = roll(rows, choice, before=counted, budget=0.0, cap=1.1, **changes)
    assert sum(anew["counts"]) == 10_000
    assert "Lossless: the counts fit p." in view


@pytest.mark.parametrize(("choice", "view"), [("lossless", (0, 1, 0)), ("lantern", (1, 1, 0)), ("lantern++", (1, 0, 1))])
def test_a_lantern_has_the_knob_of_its_limit(choice, view):
    assert tuple(update["visible"] for update in tab.LanternKnobs.fit(choice)) == view


def test_the_vanilla_residual_is_shown_where_it_is_wrong():
    assert tab.omega_for("vanilla", 1.5) == tab.BELOW_ONE < 1
    assert tab.omega_for("vanilla", 0.3) == 0.3
    assert tab.omega_for("relaxed", 1.5) == 1.5
    *_, (view, _) = roll(tab.preset("flat"), "vanilla", omega=1.0)
    assert "this residual is the right one" in view


def test_a_mistake_that_does_no_harm_is_said_to_do_none():
    *_, (view, _) = roll(tab.preset("disjoint"), "greedy", omega=1.0)
    assert "does no harm" in view


# --- in the page ----------------------------------------------------------------------------------------------------------------------


def test_the_tab_needs_no_model_and_stays_private(tmp_path):
    def load(name):
        raise AssertionError("the laboratory loaded a model")

    demo = build(Backend(load, coolsd.stream, coolsd.METHODS), tmp_path)
    ours = [f for f in demo.fns.values() if f.fn and f.fn.__module__ == tab.__name__]
    assert len(ours) > 15
    assert all(f.api_visibility == "private" and f.concurrency_id != "model" for f in ours)
    demo.close()


@pytest.mark.parametrize(
    "act",
    [
        lambda: look(choice="lantern"),
        lambda: look(choice="lantern++", k=4),
        lambda: tab.unroll(*{**tab.ROUND, "length": exact.MAX_LENGTH}.values()),
        lambda: next(roll(tab.preset("flat"), "forgotten")),
        lambda: list(roll(tab.preset("flat"), "forgotten")),
        lambda: list(roll(tab.preset("ambiguous"), "lantern++", k=4)),
    ],
    ids=["one token", "one token, LANTERN++", "one round", "a thousand rounds", "ten thousand rounds", "ten thousand of LANTERN++"],
)
def test_answers_are_quick(act):
    act()
    times = []
    for _ in range(5):
        began = time.process_time()
        act()
        times.append(time.process_time() - began)
    assert statistics.median(times) < AT_MOST
