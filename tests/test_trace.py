"""Statistics of a hand-made run of three rounds after the prefill, and JSON there and back."""

import json

import pytest

from coolsd import Run, Settings, statistics
from coolsd.trace import Round


def a_round(index, start, tokens, kinds, drafted, accept_prob, cost, draft_calls=0, seconds=(0.0, 0.0, 0.0, 0.0)):
    relaxed = (False,) * len(tokens)
    return Round(index, start, tokens, kinds, relaxed, drafted, accept_prob, cost, draft_calls, *seconds)


ROUNDS = [
    a_round(0, 0, (7,), ("sampled",), 0, (), (), 0, (0.0, 0.10, 0.0, 0.0)),
    a_round(1, 1, (1, 2, 3), ("accepted", "accepted", "recovered"), 3, (1.0, 0.5, 0.25), (0.25, 0.125, 0.0), 3, (0.03, 0.10, 0.02, 0.01)),
    a_round(2, 4, (4, 5, 6, 7), ("accepted",) * 3 + ("bonus",), 3, (0.5, 1.0, 0.75), (0.25, 0.0, 0.0), 3, (0.03, 0.10, 0.02, 0.01)),
    a_round(3, 8, (8,), ("recovered",), 2, (0.0,), (0.125,), 2, (0.02, 0.10, 0.02, 0.01)),
]


def test_statistics_of_three_rounds():
    s = statistics(ROUNDS)
    assert (s.tokens, s.target_calls, s.draft_calls) == (9, 4, 8)
    assert s.accept_length == pytest.approx(9 / 4)
    assert s.offered == (3, 3, 2)
    assert s.examined == (3, 2, 2)
    assert s.accept_prob == pytest.approx((0.5, 0.75, 0.5))
    assert s.accepted_share == pytest.approx((2 / 3, 2 / 3, 1 / 2))
    assert s.conditional_share == pytest.approx((2 / 3, 1.0, 1 / 2))
    assert s.bias_spent == pytest.approx(0.75)
    assert s.bias_per_token == pytest.approx(0.75 / 9)
    assert s.seconds == pytest.approx(0.57)
    assert (s.draft_seconds, s.target_seconds, s.verify_seconds, s.other_seconds) == pytest.approx((0.08, 0.40, 0.06, 0.03))
    assert s.tokens_per_second == pytest.approx(9 / 0.57)


def test_statistics_of_nothing():
    s = statistics([])
    assert (s.tokens, s.accept_length, s.tokens_per_second, s.bias_per_token, s.accept_prob) == (0, 0.0, 0.0, 0.0, ())


def test_plain_ar_has_accept_length_one():
    assert statistics([a_round(i, i, (i,), ("sampled",), 0, (), ()) for i in range(5)]).accept_length == 1.0


def test_json_round_trip(tmp_path):
    run = Run(Settings(prompt="a “rose” 🌹", mu=None), "toy", (3, 3), (2.0, 1.0, 0.5), ROUNDS, {"dtype": "float32"})
    path = tmp_path / "run.json"
    again = Run.from_json(run.to_json(path))
    assert again == Run.from_json(path) == Run.from_dict(run.to_dict()) == run
    assert again.tokens == [7, 1, 2, 3, 4, 5, 6, 7, 8]
    assert again.complete
    assert json.loads(path.read_text(encoding="utf-8"))["stats"]["accept_length"] == 2.25


def test_another_schema_is_refused():
    with pytest.raises(ValueError, match="schema"):
        Run.from_json('{"schema": 99}')
    with pytest.raises(ValueError, match="schema"):
        Run.from_dict(3)
