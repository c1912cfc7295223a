"""Schedules compared on the same recorded rows: at equal accept length, at equal bias and at equal KL, with their intervals.

A family is a schedule with one free number, its strength. `matched` finds the strength at which a family reaches a given figure and gives
the others there; a difference between two families cancels the rows they share, and its error counts that the strength was fitted too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ... import schedules
from .estimator import MEASURES, CostTable, Estimate, Rounds, Totals, crossing, evaluate, through

WEAKEST, STRONGEST = 0.02, 200.0
STEP = 1.02  # of a strength, for slopes
REFERENCE = "uniform"
AXES = {"accept_length": (3.3, 3.75, 4.2), "bias": (0.03, 0.06, 0.09, 0.12), "kl": (0.02, 0.05, 0.1)}


@dataclass(frozen=True)
class Family:
    """Schedules of one shape. make: strength, length to ω (length,). grid: strengths of its curve."""

    name: str
    label: str
    paper: bool  # the paper's, else this project's
    make: Callable[[float, int], Tensor]
    grid: tuple[float, ...]
    block: bool = False
    method: str = "coolsd"
    fixed: tuple[tuple[str, Any], ...] = ()  # settings beside the strength, which is δ
    by_hand: bool = False  # there is no δ that makes it

    def settings(self, strength: float, length: int) -> dict[str, Any]:
        """What `method` is run with to follow this schedule."""
        if self.by_hand:
            return {"omega": ",".join(f"{x:.6g}" for x in self.make(strength, length).tolist())}
        return {"delta": strength, **dict(self.fixed)}


def _annealed(nu: float = 0.7, clamp: bool = False) -> Callable[[float, int], Tensor]:
    return lambda delta, length: schedules.annealed(length, delta, nu, clamp=clamp)


def _window(positions: int) -> Callable[[float, int], Tensor]:
    return lambda omega, length: schedules.window(length, omega, positions)


DELTAS = (0.6, 0.8, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0)
CLAMPED = (0.3, 0.5, 0.8, 1.1, 1.5, 2.0, 3.0, 5.0)
LATE = (3.0, 5.0, 8.0, 12.0, 20.0)  # below, a reversed schedule is slower than lossless by far
OMEGAS = (1.0, 1.1, 1.3, 1.6, 2.0, 3.0, 5.0)
BLOCK = {"block": True, "method": "coolsd-block"}
FAMILIES = (
    Family("paper", "the paper's schedule", True, _annealed(), DELTAS),
    Family("uniform", "the same ω everywhere", True, lambda delta, length: schedules.uniform(length, delta), OMEGAS, method="uniform"),
    Family("clamped", "clamped", False, _annealed(clamp=True), CLAMPED, fixed=(("clamp", True),)),
    Family("clamped .3", "clamped, ν .3", False, _annealed(0.3, True), CLAMPED, fixed=(("nu", 0.3), ("clamp", True))),
    Family("clamped 1.5", "clamped, ν 1.5", False, _annealed(1.5, True), CLAMPED, fixed=(("nu", 1.5), ("clamp", True))),
    *(Family(f"window {m}", f"first {m} alike, then exact", False, _window(m), OMEGAS, by_hand=True) for m in (1, 2, 3)),
    Family("reversed", "late: reversed", True, _annealed(-0.7), LATE, fixed=(("nu", -0.7),)),
    Family("reversed clamped", "late: reversed, clamped", False, _annealed(-0.7, True), CLAMPED, fixed=(("nu", -0.7), ("clamp", True))),
    Family("block", "block, paper's schedule", False, _annealed(), DELTAS, **BLOCK),
    Family("block clamped", "block, clamped", False, _annealed(clamp=True), CLAMPED, fixed=(("clamp", True),), **BLOCK),
    Family("block clamped .3", "block, clamped, ν .3", False, _annealed(0.3, True), CLAMPED, fixed=(("nu", 0.3), ("clamp", True)), **BLOCK),
)
BY_NAME = {family.name: family for family in FAMILIES}
# (early, late or even): what is compared at equal accept length to judge annealing
PAIRS = (("paper", "uniform"), ("paper", "reversed"), ("clamped", "uniform"), ("clamped", "reversed clamped"))


class Evaluator:
    """Recorded rounds, and what was evaluated on them so far."""

    def __init__(self, rounds: Rounds):
        self.rounds = rounds
        self.costs = CostTable.of(rounds)
        self._known: dict[tuple, Totals] = {}

    def totals(self, family: Family, strength: float) -> Totals:
        """As `evaluate`, once for each schedule."""
        omega = family.make(strength, self.rounds.length)
        key = (tuple(omega.tolist()), family.block)
        if key not in self._known:
            self._known[key] = evaluate(self.rounds, omega, family.block)
        return self._known[key]

    def near(self, family: Family, strength: float) -> tuple[float, ...]:
        """Its measures, in their order: to search and for slopes. From the table of costs; for blocks, which have none, exact."""
        if family.block:
            return tuple(self.totals(family, strength).estimates[name].value for name in MEASURES)
        return tuple(self.costs.figures(family.make(strength, self.rounds.length)).tolist())

    def strength(self, family: Family, name: str, at: float) -> tuple[float, float] | None:
        """A strength that nearly gives a measure this value, and one beside it; None where none does."""
        index = MEASURES.index(name)
        ends = (WEAKEST, *family.grid, STRONGEST) if family.block else (WEAKEST, STRONGEST)
        for low, high in pairwise(ends):
            if self.near(family, high)[index] >= at:
                steps = 2 if family.block else 40
                nearest = crossing(lambda s: self.near(family, s)[index], at, low, high, steps)
                return None if nearest is None else (nearest, high if family.block else nearest * STEP)
        return None


@dataclass(frozen=True)
class Matched:
    """A family at the strength where it has the axis's figure: the other measures there, their errors with that figure held fixed."""

    family: Family
    strength: float
    omega: Tensor
    estimates: dict[str, Estimate]


def matched(on: Evaluator, family: Family, axis: str, at: float) -> Matched | None:
    """None where the family does not reach the figure."""
    strengths = on.strength(family, axis, at)
    if strengths is None:
        return None
    index = MEASURES.index(axis)
    first, second = (on.near(family, s) for s in strengths)
    run = second[index] - first[index]
    if run <= 0:
        return None
    strength, slopes = strengths[0], [(b - a) / run for a, b in zip(first, second, strict=True)]
    exact = on.totals(family, strength).estimates
    estimates = {name: exact[name].at_fixed(exact[axis], at, slope) for name, slope in zip(MEASURES, slopes, strict=True) if name != axis}
    return Matched(family, strength, family.make(strength, on.rounds.length), estimates)


def table(on: Evaluator, axis: str, at: float, families: Sequence[Family] = FAMILIES, reference: str = REFERENCE) -> dict[str, Any]:
    """Every family at one figure of an axis, and less the reference. JSON values; families that do not reach it are named."""
    rows, missing = [], []
    every = {family.name: matched(on, family, axis, at) for family in families}
    base = every[reference]
    for family in families:
        one = every[family.name]
        if one is None:
            missing.append(family.name)
            continue
        row = {"family": family.name, "strength": one.strength, "omega": one.omega.tolist()}
        row |= {name: estimate.to_dict() for name, estimate in one.estimates.items()}
        if base is not None and family.name != reference:
            gaps = {name: estimate - base.estimates[name] for name, estimate in one.estimates.items()}
            row["against"] = {name: gap.to_dict() | {"decides": gap.decides()} for name, gap in gaps.items()}
        rows.append(row)
    return {"axis": axis, "at": at, "against": reference, "rows": rows, "not reached": missing}


def pairs(on: Evaluator) -> list[dict[str, Any]]:
    """The families of PAIRS at equal accept length: each less the other. JSON values; places that one does not reach are left out."""
    out = []
    for first, second in PAIRS:
        places = []
        for at in AXES["accept_length"]:
            one, other = (matched(on, BY_NAME[name], "accept_length", at) for name in (first, second))
            if one and other:
                gaps = {name: one.estimates[name] - other.estimates[name] for name in one.estimates}
                places.append({"at": at} | {name: gap.to_dict() | {"decides": gap.decides()} for name, gap in gaps.items()})
        out.append({"first": first, "second": second, "places": places})
    return out


def curve(on: Evaluator, family: Family) -> dict[str, Any]:
    """A family over its grid; from the table of costs where it has one."""
    points = []
    for strength in family.grid:
        totals = on.totals(family, strength) if family.block else on.costs.totals(family.make(strength, on.rounds.length))
        estimates = totals.estimates
        settings = family.settings(strength, on.rounds.length)
        points.append({"strength": strength, "settings": settings} | {name: estimate.to_dict() for name, estimate in estimates.items()})
    about = {"family": family.name, "label": family.label, "paper": family.paper, "method": family.method}
    return about | {"points": points}


def by_position(rounds: Rounds) -> dict[str, list[float]]:
    """Of lossless rounds: mean TV(p, q) on drafted prefixes, and acceptance given that the position is reached, by draft position."""
    reach, accepted = through(torch.cat(rounds.ratio), torch.ones(rounds.length))
    apart = torch.cat([1 - torch.minimum(p, q).sum(-1, dtype=torch.float64) for p, q in zip(rounds.p, rounds.q, strict=True)])
    return {"tv": apart.mean(0).tolist(), "accepted": (accepted.sum(0) / reach.sum(0)).tolist()}


def lines(tables: Sequence[dict[str, Any]]) -> list[str]:
    """Tables in words, for a terminal; in brackets less the reference."""
    out = []
    for one in tables:
        names = [name for name in MEASURES if name != one["axis"]]
        title = f"at {one['axis'].replace('_', ' ')} {one['at']:g}, against {one['against']}"
        out.append(f"{title:<26}" + "".join(f"{name.replace('_', ' '):>28}" for name in names))
        for row in one["rows"]:
            cells = []
            for name in names:
                gap = row.get("against", {}).get(name)
                beside = f" ({gap['value']:+.4f} ± {gap['error']:.4f})" if gap else ""
                cells.append(f"{row[name]['value']:.4f}{beside}")
            out.append(f"  {row['family']:<17}{row['strength']:>7.3f}" + "".join(f"{cell:>28}" for cell in cells))
        if one["not reached"]:
            out.append(f"  not reached by {', '.join(one['not reached'])}")
    return out
