"""Lanes on one clock: the order of the rounds, tokens as of separate runs, and a ratio that a busy machine hardly moves."""

from itertools import pairwise

import numpy as np
import pytest
from tiny import tiny_pair

import coolsd
from coolsd import METHODS
from coolsd.models.catalog import TargetStatus
from coolsd.race import interleave, one_by_one, speedup
from coolsd.trace import Round

ALL = list(METHODS)


def a_round(index, tokens, seconds):
    return Round(index, 0, (0,) * tokens, ("sampled",) * tokens, (False,) * tokens, 0, (), (), 0, 0.0, seconds, 0.0, 0.0)


def lane(*seconds):
    yield from (a_round(i, 1, s) for i, s in enumerate(seconds))


def order(rounds):
    return [(lane, None if event is None else event.index) for lane, event in rounds]


def test_the_lane_furthest_behind_goes_on():
    raced = order(interleave([lane(2.0, 2.0, 2.0), lane(1.0, 1.0, 3.0)]))
    assert raced == [(0, 0), (1, 0), (1, 1), (0, 1), (1, 2), (0, 2), (1, None), (0, None)]
    assert order(one_by_one([lane(1.0), lane(1.0)])) == [(0, 0), (0, None), (1, 0), (1, None)]


@pytest.mark.parametrize("runs", [interleave, one_by_one])
def test_closing_a_race_closes_every_lane(runs):
    streams = [lane(1.0, 1.0), lane(1.0, 1.0)]
    race = runs(streams)
    next(race)
    race.close()
    assert all(stream.gi_frame is None for stream in streams)


def test_tokens_are_those_of_separate_runs():
    """Every method at once, with a lane of its own: no lane reads or writes what another one keeps."""
    pair, settings = tiny_pair(), {"prompt": "a red rose", "seed": 3, "delta": 3.0}
    alone = {method: coolsd.generate(pair, method=method, **settings).tokens for method in ALL}
    tokens = {method: [] for method in ALL}
    for at, event in interleave([coolsd.stream(pair, method=method, **settings) for method in ALL]):
        tokens[ALL[at]] += event.tokens if event else []
    assert tokens == alone
    assert len({tuple(row) for row in alone.values()}) > 3  # else the test could not tell lanes apart


# --- the ratio


def busy_race(rng, cost=(0.03, 0.03, 0.012), tokens=(3, 4, 1), load=1.0):
    """Rounds of three lanes on a machine whose speed changes by chance; each cell of a picture of 256 tokens is emitted once."""
    clock, speed, until = 0.0, 1.0, 0.0

    def stream(own):
        nonlocal clock, speed, until
        for i in range(256 // tokens[own]):
            if clock >= until:
                speed, until = float(np.exp(load * rng.uniform(0, 1.6))), clock + rng.uniform(0.1, 1.5)
            seconds = cost[own] * speed * np.exp(rng.normal(0, 0.1))
            clock += seconds
            yield a_round(i, tokens[own], seconds)

    return [stream(own) for own in range(3)]


def rounds_of(race):
    lanes = [[], [], []]
    for at, event in race:
        if event:
            lanes[at].append(event)
    return lanes


def ratios(runs, count=24, load=1.0):
    """The speedup of lane 1 over lane 0, and plainly seconds ÷ seconds, of so many races."""
    rng = np.random.default_rng(1)
    races = [rounds_of(runs(busy_race(rng, load=load))) for _ in range(count)]
    robust = np.array([speedup(a, b).value for a, b, _ in races])
    plain = np.array([sum(r.seconds for r in a) / sum(r.seconds for r in b) * (len(b) * 4) / (len(a) * 3) for a, b, _ in races])
    return robust, plain


def spread(values):
    return np.abs(values / np.median(values) - 1).max()


def test_a_busy_machine_hardly_moves_the_ratio():
    robust, plain = ratios(interleave)
    in_turn = ratios(one_by_one)[1]
    assert abs(np.median(robust) - 4 / 3) < 0.03
    assert spread(robust) < 0.1
    assert spread(in_turn) > 0.3  # what such a machine does to lanes that are decoded one after the other
    assert spread(plain) > 1.5 * spread(robust)


def test_on_a_quiet_machine_the_ratio_is_that_of_the_seconds():
    robust, plain = ratios(interleave, count=10, load=0.0)
    np.testing.assert_allclose(robust, plain, rtol=0.04)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(2)
    races = [speedup(*rounds_of(interleave(busy_race(rng, load=0.3)))[:2]) for _ in range(160)]
    inside = np.mean([r.low <= 4 / 3 <= r.high for r in races])
    assert 0.86 <= inside <= 1.0
    assert not any(r.low <= 4 / 3 * 1.3 <= r.high for r in races)  # and is not merely wide


def test_a_wide_interval_says_that_the_computer_is_busy():
    restless = np.random.default_rng(3).choice([1.0, 9.0], 40)
    quiet, noisy = ([a_round(i, 3, float(s)) for i, s in enumerate(row)] for row in ([1.0] * 40, restless))
    assert not speedup(quiet, quiet).busy
    assert speedup(noisy, quiet).busy


def test_too_few_rounds_have_no_ratio():
    assert speedup([], []) is None
    assert speedup([a_round(0, 1, 1.0)], [a_round(0, 1, 1.0)]) is None


# --- memory


def test_the_plan_counts_the_lanes():
    offer = TargetStatus("big", "Big", plan="18.2 in all.", cache=2.9)
    assert "3 lanes at once take 5.8 GB more" in offer.plan_for(3)
    assert offer.plan_for(1) == offer.plan
    assert TargetStatus("meadow", "meadow").plan_for(3) == ""


def test_lanes_that_do_not_fit_run_one_after_the_other_and_say_so(monkeypatch):
    from pages import tiny_backend, views

    pair = tiny_pair()
    assert pair.holds(3, 4.0)
    monkeypatch.setattr(type(pair), "holds", lambda self, pictures, scale: pictures < 3)
    order = []

    def stream(*args, **settings):
        for event in coolsd.stream(*args, **settings):
            if not settings["max_tokens"]:
                order.append(settings["method"])
            yield event

    sequence = views(tiny_backend(stream))
    assert any("one lane after the other" in view.status for view in sequence)
    assert [m for i, m in enumerate(order) if order[i - 1 : i] != [m]] == ["eagle1", "coolsd", "ar"]
    order.clear()
    assert not any("one lane after the other" in view.status for view in views(tiny_backend(stream), plain=False))
    assert sum(a != b for a, b in pairwise(order)) > 2
