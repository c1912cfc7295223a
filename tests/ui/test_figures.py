"""Headline, readout and inks of runs in which no two figures are equal, so that one in another's place is seen."""

import re

from coolsd.settings import Settings
from coolsd.trace import Round, statistics
from coolsd.ui import lanes, templates


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


def test_hues_mean_token_kinds_and_rows_only_and_lanes_are_told_apart_by_ink():
    hues = ("accepted", "relaxed", "recovered", "bonus", "sampled", "target", "draft")
    styles = (templates.ASSETS / "curves.css").read_text(encoding="utf-8")
    assert not [hue for hue in hues if f"var(--{hue})" in styles]
    stage = (templates.ASSETS / "stage.css").read_text(encoding="utf-8")
    colours = [re.search(rf"--{hue}: (#\w+)", stage)[1] for hue in hues]
    assert len(set(colours)) == len(hues)
    rules = re.findall(r"([^{}]*\blane\b[^{}]*)\{([^}]*)\}", stage)
    assert rules
    assert not [hue for _, rule in rules for hue in hues if f"var(--{hue})" in rule]


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
    words = [lanes.readout(one, statistics(one.rounds)) for one in (REFERENCE, RELAXED)]
    for name, values in {
        "seconds": ("0.80 s", "0.50 s"),
        "calls": ("4", "5"),
        "length": ("1.75", "2.20"),
        "tokens": ("7 / 16", "11 / 16"),
        "drafts": ("8", "12"),
    }.items():
        assert tuple(one[name] for one in words) == values, name
