"""Statistics of a hand-made run of three rounds after the prefill, and JSON there and back."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest

from coolsd import METHODS, Run, Settings, statistics
from coolsd.trace import Drafts, Last, Round, plain


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


def test_a_share_given_that_earlier_drafts_were_accepted_is_so_for_blocks_too():
    """A block examines all positions: of two that accepted 0 and 2 of 3, one reaches the second, which it accepts."""
    kinds = (("recovered",), ("accepted", "accepted", "recovered"))
    block = [a_round(i, i, (1,) * len(k), k, 3, (0.5, 0.4, 0.3), (0.0,) * 3) for i, k in enumerate(kinds)]
    assert statistics(block).conditional_share == (0.5, 1.0, 0.0)


def test_the_drift_is_the_mean_of_log_p_and_entropy_with_its_error():
    one = replace(ROUNDS[1], log_p=(-1.0, None, -3.0), entropy=(1.5, 9.0, 2.0))
    two = replace(ROUNDS[3], log_p=(-2.0,), entropy=(2.2,))
    s = statistics([ROUNDS[0], one, two])
    terms = [0.5, -1.0, 0.2]
    assert s.drift == pytest.approx(sum(terms) / 3)
    assert s.drift_error == pytest.approx((sum((x - s.drift) ** 2 for x in terms) / 2 / 3) ** 0.5)
    assert s.outside == 1
    old = statistics(ROUNDS)
    assert (old.drift, old.drift_error, old.outside) == (None, None, 0)


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
    text = path.read_text(encoding="utf-8")
    assert Run.from_json(f"\n {text}") == run
    assert "a “rose” 🌹" in text
    assert json.loads(text)["complete"] is True
    assert json.loads(text)["stats"]["accept_length"] == 2.25


def test_another_schema_is_refused():
    for bad in ('{"schema": 99}', '{"schema": true}', "3", "[]"):
        with pytest.raises(ValueError, match=r"this version reads 1 and 2\. Export it again"):
            Run.from_json(bad)


def a_run() -> Run:
    """Two rounds with all that schema 2 holds."""
    drafts = Drafts((5, 6), (-1, 0), (0.25, 0.1), (0.5, 0.2), (0.5, 0.5), (0.3, 0.75), ("accepted", "rejected"))
    more = {"last": Last(0.25, 0.5, 0.25), "log_p": (-1.25,), "entropy": (1.5,)}
    first = Round(0, 0, (7,), ("sampled",), (False,), 0, (), (), 0, 0.0, 0.1, 0.0, 0.0, **more)
    more |= {"drafts": drafts, "log_p": (-1.5, None), "entropy": (1.5, 0.5), "top": ({"p": [[5, 0.25]], "q": [[5, 0.5]]},) * 2}
    second = Round(1, 1, (5, 9), ("accepted", "recovered"), (False, False), 2, (0.5, 0.5), (0.0, 0.0), 2, 0.1, 0.1, 0.0, 0.0, (), (0,))
    return Run(Settings(prompt="a rose"), "toy", (2, 2), (2.0, 1.0), [first, Round(**{**vars(second), **more})], {"device": "cpu"})


def test_a_run_of_schema_2_comes_back():
    run = a_run()
    assert Run.from_json(run.to_json()).to_dict() == run.to_dict()
    again = Run.from_json(run.to_json()).rounds[1]
    assert (again.drafts, again.last, again.log_p) == (run.rounds[1].drafts, run.rounds[1].last, run.rounds[1].log_p)


def test_a_run_of_schema_1_is_read():
    data = a_run().to_dict() | {"schema": 1}
    for event in data["rounds"]:
        for name in ("drafts", "last", "log_p", "entropy"):
            del event[name]
    run = Run.from_dict(data)
    assert run.tokens == [7, 5, 9]
    assert all((r.drafts, r.last, r.log_p, r.entropy) == (None,) * 4 for r in run.rounds)
    assert run.to_dict()["schema"] == 2
    assert Run.from_json(run.to_json()) == run


def test_numbers_are_short_and_never_nan():
    assert plain((0.123456789, 1 / 3e9, 2.0, float("nan"), float("inf"), 7, True)) == [0.123457, 3.33333e-10, 2, None, None, 7, True]
    run = a_run()
    run.environment["broken"] = float("nan")
    assert "NaN" not in run.to_json()
    assert json.loads(run.to_json())["environment"]["broken"] is None


def changed(path: str, value) -> dict:
    """The run's JSON with one value replaced, or removed where it is `...`."""
    data = deepcopy(a_run().to_dict())
    *above, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    inner = data
    for key in above:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return data


BROKEN = [
    ("target", 3, "target is 3, not text"),
    ("grid", [2], "grid is"),
    ("grid", [0, 2], r"grid\[0\] is 0, not a whole number from 1 to 256"),
    ("grid", [1, 2], "rounds have 3 tokens for a grid of 1 × 2"),
    ("omega.0", -1.0, r"omega\[0\] is -1.0"),
    ("rounds", ..., "lacks 'rounds'"),
    ("rounds.1", 5, r"rounds\[1\] is 5, not an object"),
    ("rounds.1.index", 2, r"rounds\[1\] has index 2 and start 1, not 1 and 1"),
    ("rounds.1.start", 0, r"rounds\[1\] has index 1 and start 0"),
    ("rounds.1.tokens", [5], "an entry a token"),
    ("rounds.1.tokens.0", 1.5, r"rounds\[1\].tokens\[0\] is 1.5, not a whole number"),
    ("rounds.1.kinds.1", "accepted", "all tokens but the last are accepted"),
    ("rounds.1.kinds.1", "drawn", "not one of accepted, recovered, bonus, sampled"),
    ("rounds.1.relaxed.0", 0, r"relaxed\[0\] is 0, not true or false"),
    ("rounds.1.accept_prob.0", 1.5, r"accept_prob\[0\] is 1.5, not a number from 0 to 1"),
    ("rounds.1.cost", [0.0], "an entry an examined position"),
    ("rounds.1.verify_seconds", "fast", "verify_seconds is 'fast'"),
    ("rounds.1.drafts", ..., r"rounds\[1\] lacks 'drafts'"),
    ("rounds.1.drafts.p", [0.5], "drafts hold what was drafted"),
    ("rounds.1.drafts.p.1", True, r"drafts.p\[1\] is True, not a number"),
    ("rounds.1.drafts.parents.1", 1, "drafts hold what was drafted"),
    ("rounds.1.drafts.u.1", None, "drafts hold what was drafted"),
    ("rounds.1.drafts.outcome.1", "accepted", "drafts hold what was drafted"),
    ("rounds.1.last.law", -0.1, "last.law is -0.1"),
    ("rounds.1.log_p.0", 0.5, r"log_p\[0\] is 0.5"),
    ("rounds.1.top.0.q", 3, r"top\[0\].q is 3, not a list"),
    ("rounds.1.colour", "red", "has 'colour', which no run has"),
    ("settings.delta", 99.0, "settings.delta: 99.0 is out of range"),
    ("settings.colour", 1, "There is no setting called 'colour'"),
    ("settings.method", "guess", "There is no method called 'guess'"),
    ("settings.method", 3, "settings.method is 3, not text"),
    ("settings", [], r"settings is \[\], not an object"),
    ("environment", "cpu", "environment is 'cpu'"),
]


@pytest.mark.parametrize(("path", "value", "message"), BROKEN, ids=[f"{path}={value!r}" for path, value, _ in BROKEN])
def test_a_broken_run_is_refused_in_one_line(path, value, message):
    with pytest.raises(ValueError, match=message) as refusal:
        Run.from_dict(changed(path, value), METHODS)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_without_names_any_method_is_read():
    assert Run.from_dict(changed("settings.method", "guess")).settings.method == "guess"


def test_what_is_no_json_is_refused():
    for bad in ("", "a rose", '{"schema": 2', "[" * 100_000, b"\xff\xfe\x00", '{"schema": NaN}', "1" * 5000):
        with pytest.raises(ValueError, match="the file"):
            Run.from_json(bad)


def test_text_is_never_a_path(tmp_path):
    path = tmp_path / "run.json"
    run = a_run()
    run.to_json(path)
    assert Run.from_json(path).tokens == run.tokens
    with pytest.raises(ValueError, match="not JSON"):
        Run.from_json(str(path))
    (tmp_path / "{}").write_text(run.to_json())
    assert Run.from_json(tmp_path / "{}").tokens == run.tokens
