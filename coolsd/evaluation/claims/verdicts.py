"""Verdicts on the paper's claims: differences between curves, with their error bars, put into words.

Parts: (a) lossless methods agree with plain AR; (b) accept length against quality; (c) annealed, uniform and reversed schedules; (d) G* in
LANTERN++. A claim that the paper does not make is marked as this project's. `Premise` says whether what (c)'s theorem assumes holds.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from .names import BETTER, FAMILIES, MEASURES
from .statistics import Effect, Gap, Point, gap

REJECTED = 0.01  # p-value below which pictures are said not to come from AR's law
UNDERSTATED = "lantern++"  # its meter shows what G* would have spent, so that its curve can only prove others to be ahead
AT_LEAST = " (LANTERN++ spends at least what is metered)"
POWER = 2.8 / 1.96  # half intervals at which a difference is seen in 80 of 100 trials


@dataclass(frozen=True)
class Verdict:
    """One comparison. paper: whether the paper claims it, else it is a claim of this project.

    outcome: agrees | disagrees | undecided | mixed. Mixed: ahead at one place and behind at another, both beyond their errors.
    prompts: that were swept, 0 where nobody says.
    """

    part: str
    claim: str
    comparison: str
    measure: str
    paper: bool
    outcome: str
    effect: Effect | None
    places: tuple[tuple[float, Effect], ...] = ()
    prompts: int = 0

    @property
    def decides(self) -> str:
        """Of an undecided comparison: how many prompts would decide it."""
        if self.outcome != "undecided" or self.effect is None or not self.prompts or self.part == "a":
            return ""
        if self.effect.side():
            return ", and more pictures would not decide it"
        if not self.effect.value:
            return ""
        half = (self.effect.high - self.effect.low) / 2
        return f", about {ceil(self.prompts * (POWER * half / self.effect.value) ** 2):,} prompts would decide a difference of this size"

    @property
    def words(self) -> str:
        """The verdict in one line."""
        whose = "the paper" if self.paper else "this project's claim"
        outcome = {"agrees": f"agrees with {whose}", "disagrees": f"DISAGREES with {whose}"}
        outcome |= {"undecided": f"undecided{self.decides}", "mixed": f"agrees with {whose} at some places and DISAGREES at others"}
        if self.effect is None:
            return f"({self.part}) {self.comparison}: {self.measure}: the curves share no range. Undecided."
        figures = f"{self.effect.value:+.4f} [{self.effect.low:+.4f}, {self.effect.high:+.4f}]"
        places = "; ".join(f"{at:.3g}: {e.value:+.4f} [{e.low:+.4f}, {e.high:+.4f}]" for at, e in self.places)
        return f"({self.part}) {self.comparison}: {self.measure} {figures}: {outcome[self.outcome]}." + (f" At {places}." if places else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"words": self.words, "decides": self.decides.removeprefix(", ").removeprefix("and ")}


@dataclass(frozen=True)
class Premise:
    """Whether the paper's theorem about annealing applies: it assumes a TV(p, q) of at most `limit` at every prefix.

    rows: of the first draft position, on which share and mean were measured. share: of them, those within the limit.
    """

    limit: float
    rows: int
    share: Effect
    mean: Effect

    @classmethod
    def of(cls, distances: Sequence[Sequence[float]], weights: Tensor, limit: float) -> "Premise":
        """From the TVs of each prompt's rows, as many for each. weights (R, prompts): how often a replicate holds each prompt."""
        table = torch.tensor(distances, dtype=torch.float64)
        prompts, rows = table.shape
        share, mean = (weights @ of_prompt.mean(1) / weights.sum(1) for of_prompt in ((table <= limit).double(), table))
        effects = (Effect.of(figures, prompts).within(0.0, 1.0) for figures in (share, mean))
        return cls(limit, prompts * rows, *effects)

    @property
    def words(self) -> str:
        """The premise in one line."""
        s, m = self.share, self.mean
        conclusion = "All of them keep it; prefixes further into a draft were not looked at."
        if s.value < 1:
            conclusion = "So the premise fails on this pair, and where (c) disagrees the theorem is not contradicted."
        return (
            f"The paper's theorem on annealing assumes TV(p, q) ≤ {self.limit:g} at every prefix. Of {self.rows} rows at the first draft "
            f"position {s.value:.0%} [{s.low:.0%}, {s.high:.0%}] keep it; mean TV {m.value:.3f} [{m.low:.3f}, {m.high:.3f}]. {conclusion}"
        ).replace("%", " %")

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"words": self.words}


def _outcome(effect: Effect, claimed: int, places: Sequence[tuple[float, Effect]] = ()) -> str:
    if {place.side() for _, place in places} >= {-1, 1}:
        return "mixed"
    side = effect.side()
    return "undecided" if side == 0 else "agrees" if side == claimed else "disagrees"


def _verdict(
    part: str, claim: str, comparison: str, measure: str, paper: bool, difference: Gap | None, claimed: int, understated: bool = False
) -> Verdict:
    """understated: of b, so that a may be further ahead than it seems."""
    if difference is None:
        return Verdict(part, claim, comparison, measure, paper, "undecided", None)
    outcome = _outcome(difference.mean, claimed, difference.places)
    if understated and outcome != "agrees":
        outcome = "undecided"
    return Verdict(part, claim, comparison, measure, paper, outcome, difference.mean, difference.places)


def lossless_verdicts(
    points: dict[str, Point], same_law: dict[str, float], lossless: Sequence[str], control: str, prompts: int
) -> list[Verdict]:
    """(a): log-probability, bias and law of the lossless methods against plain AR.

    Args:
        control: a relaxed method that should differ. Where it is not seen to, pictures are too few for agreement to mean anything.
    """
    claim, out = "lossless methods agree with plain AR", []
    control_moved = Effect.of(points[control]["log_prob_difference"], prompts)
    control_differs = control_moved.side() != 0 or same_law[control] < REJECTED
    for label in lossless:
        moved = Effect.of(points[label]["log_prob_difference"], prompts)
        differs = same_law[label] < REJECTED or float(points[label]["bias"][0]) > 1e-6
        outcome = "disagrees" if differs else "agrees" if control_differs and not moved.side() else "undecided"
        measure = f"one law with AR: p = {same_law[label]:.3f}; bias {float(points[label]['bias'][0]):.1e}; log-probability"
        out.append(Verdict("a", claim, f"{label} - ar", measure, True, outcome, moved))
    measure = f"one law with AR: p = {same_law[control]:.3f}; log-probability"
    claim = "the test sees a relaxed method differ (control)"
    return [*out, Verdict("a", claim, f"{control} - ar", measure, False, "agrees" if control_differs else "undecided", control_moved)]


# (part, a, b, whether the paper says that a is ahead of b)
PAIRS = (
    ("b", "coolsd", "lantern++", True),
    ("b", "coolsd", "lantern++g", False),
    ("b", "clamped", "lantern++", False),
    ("b", "clamped", "lantern++g", False),
    ("b", "uniform", "lantern++", False),
    ("b", "uniform", "lantern++g", False),
    ("b", "clamped", "coolsd", False),
    ("b", "block", "coolsd", False),
    ("b", "block", "clamped", False),
    ("c", "coolsd", "uniform", True),
    ("c", "clamped", "uniform", False),
    ("c", "coolsd", "reversed", True),
    ("c", "uniform", "reversed", False),
    ("c", "clamped", "reversed clamped", False),
)


def curve_verdicts(curves: dict[str, list[Point]], measures: Sequence[str], prompts: int) -> list[Verdict]:
    """(b) and (c): each pair at equal accept length by every measure, and at equal bias by accept length."""
    out = []
    for part, a, b, paper in PAIRS:
        claim, bound = f"{FAMILIES[a]} is ahead of {FAMILIES[b]}", b == UNDERSTATED
        note = AT_LEAST if bound else ""
        for name in measures:
            difference, by_bias = gap(curves[a], curves[b], "accept_length", name, prompts), name == "bias"
            measure, way = MEASURES[name] + (note if by_bias else ""), BETTER[name]
            out.append(_verdict(part, claim, f"{a} - {b} at equal accept length", measure, paper, difference, way, bound and by_bias))
        difference = gap(curves[a], curves[b], "bias", "accept_length", prompts)
        out.append(_verdict(part, claim, f"{a} - {b} at equal bias a token", "accept length" + note, paper, difference, 1, bound))
    return out


def residual_verdicts(
    stepwise: dict[int, tuple[Tensor, Tensor]], points: dict[tuple[str, int, float], Point], measures: Sequence[str], prompts: int
) -> list[Verdict]:
    """(d): G* less LANTERN's own residual for each k, and whether the gap grows with k.

    Args:
        stepwise: by k, exact one-step total variation on the same rows with G* and with its own residual, (R,) each.
        points: by (method, k, λ).
    """
    out, gains = [], {k: best - own for k, (best, own) in stepwise.items()}
    exact, claim = "exact one-step total variation", "G* improves LANTERN++"
    for k, gain in gains.items():
        effect = Effect.of(gain, prompts)
        out.append(Verdict("d", claim, f"G* - own residual, k = {k}", exact, True, _outcome(effect, -1), effect))
    few, many = min(gains), max(gains)
    effect = Effect.of(gains[many] - gains[few], prompts)
    out.append(
        Verdict(
            "d", "G* improves more at larger k", f"the gap at k = {many} less that at k = {few}", exact, True, _outcome(effect, -1), effect
        )
    )
    for k in gains:
        caps = [cap for method, n, cap in points if method == "lantern++" and n == k]
        for name in (m for m in measures if m != "bias"):
            both = [points["lantern++g", k, cap][name] - points["lantern++", k, cap][name] for cap in caps]
            effect = Effect.of(torch.stack(both).mean(0), prompts)
            out.append(
                Verdict(
                    "d", claim, f"lantern++g - lantern++ over all λ, k = {k}", MEASURES[name], True, _outcome(effect, BETTER[name]), effect
                )
            )
    return out
