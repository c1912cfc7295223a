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


def _annealed(nu: float = 0.7, clamp: bool = False) -> Callable[[float, int], Tensor]:
    return lambda delta, length: schedules.annealed(length, delta, nu, clamp=clamp)


def _window(positions: int) -> Callable[[float, int], Tensor]:
    return lambda omega, length: schedules.window(length, omega, positions)


DELTAS = (0.6, 0.8, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0)
CLAMPED = (0.3, 0.5, 0.8, 1.1, 1.5, 2.0, 3.0, 5.0)
OMEGAS = (1.0, 1.1, 1.3, 1.6, 2.0, 3.0, 5.0)
FAMILIES = (
    Family("paper", "paper's schedule (ν .7)", True, _annealed(), DELTAS),
    Family("uniform", "uniform", True, lambda delta, length: schedules.uniform(length, delta), OMEGAS),
    Family("clamped", "clamped (ν .7)", False, _annealed(clamp=True), CLAMPED),
    Family("clamped .3", "clamped, ν .3", False, _annealed(0.3, True), CLAMPED),
    Family("clamped 1.5", "clamped, ν 1.5", False, _annealed(1.5, True), CLAMPED),
    *(Family(f"window {m}", f"window: first {m} relaxed alike, then 1", False, _window(m), OMEGAS) for m in (1, 2, 3)),
    Family("reversed", "reversed (ν -.7)", True, _annealed(-0.7), DELTAS),
    Family("reversed clamped", "reversed, clamped", False, _annealed(-0.7, True), CLAMPED),
    Family("block", "block rule, paper's schedule", False, _annealed(), DELTAS, block=True),
    Family("block clamped", "block rule, clamped (ν .7)", False, _annealed(clamp=True), CLAMPED, block=True),
    Family("block clamped .3", "block rule, clamped, ν .3", False, _annealed(0.3, True), CLAMPED, block=True),
)


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


def curve(on: Evaluator, family: Family) -> dict[str, Any]:
    """A family over its grid; from the table of costs where it has one."""
    points = []
    for strength in family.grid:
        totals = on.totals(family, strength) if family.block else on.costs.totals(family.make(strength, on.rounds.length))
        estimates = totals.estimates
        points.append({"strength": strength} | {name: estimate.to_dict() for name, estimate in estimates.items()})
    return {"family": family.name, "label": family.label, "paper": family.paper, "points": points}


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
