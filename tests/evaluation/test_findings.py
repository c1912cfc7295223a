"""Findings: planted results and what must be said of them."""

import pytest

from coolsd.evaluation.claims import findings


def gap(value, error=0.01, decides=40):
    return {"value": value, "low": value - 2 * error, "high": value + 2 * error, "decides": decides}


def report(*pairs, drift=0.0, control=-0.2):
    """A result of `eval schedules` with these pairs: (first, second, bias at each place)."""
    places = [
        {"first": a, "second": b, "places": [{"at": 3 + i, "bias": gap(v), "kl": gap(-v), "log_p": gap(v)} for i, v in enumerate(values)]}
        for a, b, values in pairs
    ]
    check = {"method": "coolsd", "drift": gap(control, decides=123)}
    return {"pairs": places, "martingale": gap(drift) | {"error": 0.01, "tokens": 7000}, "checks": [check]}


def test_exactness_needs_a_control_that_departs():
    for drift, control, verdict in ((0.0, -0.2, "holds"), (0.1, -0.2, "fails"), (0.0, -0.01, "undecided")):
        finding = findings.exact(report(drift=drift, control=control))
        assert finding.verdict == verdict
        assert ("about 120 pictures" in finding.words) == (verdict == "undecided")
        assert finding.sentence.split(":")[0] == {"holds": "Yes", "fails": "No", "undecided": "Not known yet"}[verdict]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((-0.1, -0.2), "holds"), ((0.1, 0.2), "fails"), ((0.1, -0.2), "depends"), ((-0.01, 0.01), "undecided"), ((-0.1, 0.01), "holds")],
)
def test_annealing_is_judged_by_what_was_decided(values, verdict):
    early, evenly = findings.sentences(report(("paper", "reversed", values), ("paper", "uniform", values)))[1:]
    assert early.verdict == evenly.verdict == verdict
    undecided = sum(abs(v) < 0.02 for v in values)
    assert early.words.count("undecided: about 40 pictures") == undecided
    if verdict == "depends":
        assert evenly.sentence.endswith("at 3 tokens a call, and less at 4.")
        assert "+.100 at 3 tokens a call and −.200 at 4" in evenly.words


def test_claims_of_the_sweep_keep_their_rows_and_undecided_ones_say_what_would_decide_them():
    def row(comparison, value, outcome, prompts=30):
        effect = {"value": value, "low": value - 0.02, "high": value + 0.02}
        return {"comparison": comparison, "measure": "KID", "effect": effect, "outcome": outcome, "paper": True, "prompts": prompts}

    rows = [
        row("coolsd - lantern++ at equal accept length", -0.01, "undecided"),
        row("G* - own residual, k = 10", -0.1, "agrees"),
        row("G* - own residual, k = 100", 0.1, "disagrees"),
        {**row("the gap at k = 100", 0.1, "undecided"), "effect": None},
    ]
    better, residual, more = findings.of_sweep({"verdicts": rows})
    assert (better.verdict, residual.verdict, more.verdict) == ("undecided", "depends", "undecided")
    assert "about 240 pictures a setting" in better.words
    assert "k = 10 −0.1000" in residual.words
    assert "share no range" in more.words
    assert findings.all_findings(None, None) == []


def test_numbers_of_pictures_are_round_and_hopeless_ones_are_said_to_be_so():
    assert findings.decides(2233776) == "about 2,200,000 pictures a setting would decide it: too small to matter"
    assert findings.decides(61) == "about 61 pictures a setting would decide it"
    assert "no number" in findings.decides(None)
