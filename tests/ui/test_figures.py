"""Curve, headline and readout of runs in which no two figures are equal, so that one in another's place is seen."""

import re

import pytest

from coolsd.settings import Settings
from coolsd.trace import Round, statistics
from coolsd.ui import figures, lanes, templates


def decoded(index: int, seconds: float, accepted: int, f: tuple[float, ...], drafted: int = 3) -> Round:
    """A round that accepted so many of those examined; what follows is recovered, or bonus, or sampled where nothing was drafted."""
    last = "sampled" if not drafted else "bonus" if accepted == drafted else "recovered"
    kinds = ("accepted",) * accepted + (last,)
    parts = {"draft_seconds": 0.1, "target_seconds": 0.6, "verify_seconds": 0.1, "other_seconds": 0.2}
    booked = {name: share * seconds for name, share in parts.items()}
    return Round(index, 0, (0,) * len(kinds), kinds, (False,) * len(kinds), drafted, f, (0.0,) * len(f), drafted, **booked)


def lane(method: str, seconds: float, drafts: list[tuple], state: str = "done") -> lanes.Lane:
    rounds = [decoded(0, seconds, 0, (), 0), *(decoded(i, seconds, *draft) for i, draft in enumerate(drafts, 1))]
    return lanes.Lane(Settings(prompt="lake", method=method, draft_length=3), (4, 4), state, rounds)


REFERENCE = lane("eagle1", 0.2, [(1, (0.9, 0.3)), (0, (0.25,)), (2, (0.8, 0.6), 2)])  # 7 tokens, 4 calls, 0.8 s
RELAXED = lane("coolsd", 0.1, [(3, (1.0, 0.9, 0.8)), (2, (0.7, 0.95, 0.1)), (0, (0.4,)), (1, (0.95, 0.2))])  # 11 tokens, 5 calls, 0.5 s


def headline(reference: lanes.Lane, relaxed: lanes.Lane, token_seconds: float | None = 0.03) -> dict[str, str]:
    both = [reference, relaxed]
    return lanes.headline(both, lanes.stats_of(both), token_seconds)


def drawn() -> list[dict]:
    return figures.curve([(one.title, statistics(one.rounds)) for one in (REFERENCE, RELAXED)], 3)["data"]


def test_bars_are_accepted_of_drafted_and_lines_the_mean_f_of_examined_from_position_1_on():
    shares, f = ([trace["y"] for trace in drawn() if trace["type"] == kind] for kind in ("bar", "scatter"))
    assert shares == [[0.6667, 0.3333, 0.0], [0.75, 0.5, 0.25]]
    assert f == [[0.65, 0.45, None], pytest.approx([0.7625, 0.6833, 0.45], abs=1e-4)]
    assert [statistics(one.rounds).conditional_share for one in (REFERENCE, RELAXED)] != shares
    assert all(trace["x"] == [1, 2, 3] for trace in drawn())
    assert figures.layout(3)["xaxis"]["tickvals"] == [1, 2, 3]


def test_a_lane_has_one_colour_on_the_curve_and_around_its_picture():
    styles = templates.asset("page.css")
    names = dict(re.findall(r"--(\w+): (#\w+)", styles))
    for key, title, traces in (("a", REFERENCE.title, drawn()[::2]), ("b", RELAXED.title, drawn()[1::2])):
        border = re.search(rf"\.lane\.{key} {{ border-color: var\(--(\w+)\)", styles)[1]
        assert {trace["marker"]["color"] for trace in traces} | {traces[1]["line"]["color"]} == {names[border]}
        assert [trace["name"].startswith(title) for trace in traces] == [True, True]


def test_the_table_has_the_columns_of_the_curve():
    rows = figures.table([(one.title, statistics(one.rounds)) for one in (REFERENCE, RELAXED)])
    assert rows[1:] == [["1", "0.65", "0.67", "0.76", "0.75"], ["2", "0.45", "0.33", "0.68", "0.50"], ["3", "–", "0.00", "0.45", "0.25"]]


def test_every_number_of_the_headline():
    display = headline(REFERENCE, RELAXED)
    assert display["reference"] == "2.51×"  # 11 tokens in 0.5 s against 7 in 0.8 s
    assert display["calls"] == "1.26×"  # 2.2 tokens a call against 1.75
    assert display["ar"] == "0.80×"  # its own prefill of 0.1 s and ten steps of 0.03 s over 0.5 s
    assert display["ar_calls"] == "2.20×"  # against plain AR's one token a call
    assert (display["subject"], display["against"]) == (RELAXED.title, REFERENCE.title)
    plain = headline(lane("ar", 0.2, [(0, (), 0)] * 6), RELAXED)
    assert (plain["reference"], plain["calls"], plain["ar"], plain["ar_calls"]) == ("4.40×", "2.20×", "4.40×", "2.20×")


def test_the_headline_of_a_run_on_its_way_has_calls_too():
    pace = {"eagle1": (0.2, (1, (0.9, 0.3))), "coolsd": (0.1, (2, (0.9, 0.8, 0.1)))}
    so_far = [lane(method, seconds, [draft] * 12, "running") for method, (seconds, draft) in pace.items()]
    display = headline(*so_far)
    assert (display["calls"], display["ar_calls"]) == ("1.48×", "2.85×")  # 37 against 25 tokens in 13 calls each
    assert (display["reference"], display["how"]) == ("2.96×", ", so far")


def test_the_readout_of_each_lane_is_its_own():
    both = [REFERENCE, RELAXED]
    view = lanes.view(both, lanes.stats_of(both))
    for name, values in {
        "seconds": ("0.80 s", "0.50 s"),
        "calls": ("4", "5"),
        "length": ("1.75", "2.20"),
        "tokens": ("7 / 16", "11 / 16"),
        "rate": ("8.75", "22"),
        "drafts": ("8", "12"),
        "accepted": (3, 6),
        "recovered": (2, 3),
        "bonus": (2, 2),
    }.items():
        assert (view[f"a.{name}"], view[f"b.{name}"]) == values, name
