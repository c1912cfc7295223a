"""What the laboratory computes: one token, one round, and simulated rounds against the target row.

Knows nothing of models, pages or HTML. Laws, costs and acceptance come from `theory` and the rules; here they are asked for side by
side. p is the target row, q the draft row; rows are (V,) or (L, V) float64.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .. import schedules, theory
from ..methods import neighbours
from ..rules import Lantern, Lossless, Relaxed, Rule
from ..sampling import draw, uniforms
from .mistakes import MISTAKES

TOKENS = "ABCDEF"
VOCABULARY = len(TOKENS)
PRESETS = {  # name: p, q
    "peaked": ((0.72, 0.12, 0.07, 0.04, 0.03, 0.02), (0.55, 0.08, 0.20, 0.07, 0.06, 0.04)),
    "flat": ((1 / 6,) * 6, (0.20, 0.14, 0.18, 0.15, 0.17, 0.16)),
    "ambiguous": ((0.24, 0.20, 0.18, 0.16, 0.12, 0.10), (0.10, 0.28, 0.07, 0.26, 0.05, 0.24)),
    "disjoint": ((0.50, 0.30, 0.20, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.20, 0.30, 0.50)),
}
# Where the six codes lie, as a codebook of two channels; LANTERN's neighbours follow from it.
CODEBOOK = ((0.08, 0.68), (0.22, 0.20), (0.42, 0.80), (0.52, 0.30), (0.90, 0.38), (0.80, 0.72))
NEAREST = neighbours(torch.tensor(CODEBOOK))

MAX_LENGTH = 6  # draft positions whose joint law is enumerated
ROUND_TARGET = (0.30, 0.25, 0.20, 0.15, 0.10)
ROUND_DRIFT = (0.02, 0.06, 0.12, 0.28, 0.52)  # where the draft row drifts to
FARTHEST = float(theory.total_variation(*(torch.tensor(row, dtype=torch.float64) for row in (ROUND_TARGET, ROUND_DRIFT))))
SHAPES = {"annealed": "Annealed", "uniform": "Uniform", "reversed": "Reversed"}  # of schedules
REJECT_BELOW = 1e-5  # a correct sampler is called biased in one run of 100 000

CORRECT = {"lossless": "Lossless", "relaxed": "Relaxed", "lantern": "LANTERN", "lantern++": "LANTERN++"}
CHOICES = {**CORRECT, **{name: mistake.title for name, mistake in MISTAKES.items()}}
LANTERNS = {"lantern", "lantern++"}
CAPS = (1.1, 10.0)  # least and most λ of LANTERN++
USES_OMEGA = {"relaxed", *(name for name, mistake in MISTAKES.items() if mistake.below_one)}


class LaboratoryError(ValueError):
    """A value the laboratory cannot use, with a message that says what to do."""


@dataclass(frozen=True)
class Knobs:
    """A rule and its parameters. omega: relaxed rules. k, optimal: LANTERN's (see `rules.Lantern`), budget or cap (λ) its limit."""

    choice: str = "lossless"
    omega: float = 1.5
    k: int = 2
    budget: float = 0.15
    cap: float = 2.5
    optimal: bool = False

    @property
    def limit(self) -> float:
        """What `rules.Lantern` takes: LANTERN's absolute budget, or the factor λ of LANTERN++."""
        return self.cap if self.choice == "lantern++" else self.budget

    @property
    def active(self) -> dict[str, Any]:
        """The parameters that the rule uses."""
        active: dict[str, Any] = {"choice": self.choice}
        if self.choice in USES_OMEGA:
            active |= {"omega": self.omega}
        if self.choice in LANTERNS:
            active |= {"k": self.k, "limit": self.limit, "optimal": self.optimal}
        return active


# ---- input


def read_row(values: object, name: str) -> Tensor:
    """A law from outside values: (VOCABULARY,) float64, normalised.

    Raises:
        LaboratoryError: not that many finite numbers, a negative one, or nothing but zeros.
    """
    expectation = f"The row {name} needs {VOCABULARY} numbers that are not negative"
    if not isinstance(values, list | tuple) or len(values) != VOCABULARY:
        raise LaboratoryError(f"{expectation}. Choose a preset to start again.")
    if any(isinstance(v, bool) or not isinstance(v, int | float) or not 0 <= v < math.inf for v in values):
        raise LaboratoryError(f"{expectation}; got {str(list(values))[:80]}. Choose a preset to start again.")
    row = torch.tensor(values, dtype=torch.float64)
    if not 0 < float(row.sum()) < math.inf:
        raise LaboratoryError(f"The row {name} has no mass. Pull one of its bars up, or choose a preset.")
    return row / row.sum()


def read_number(value: object, low: float, high: float, label: str, whole: bool = False) -> float:
    """A number within limits, or a LaboratoryError that names it."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high
    if not fits or (whole and value != int(value)):
        raise LaboratoryError(f"{label} must be a {'whole ' if whole else ''}number from {low:g} to {high:g}; got {str(value)[:40]}.")
    return int(value) if whole else float(value)


def read_choice(value: object, choices: Collection[str], label: str) -> str:
    """One of the choices, or a LaboratoryError that lists them."""
    if not isinstance(value, str) or value not in choices:
        raise LaboratoryError(f"{label} must be one of {', '.join(choices)}; got {str(value)[:40]}.")
    return value


def read_knobs(choice: object, omega: object, k: object, budget: object, cap: object, optimal: object) -> Knobs:
    """Checked knobs of a rule."""
    return Knobs(
        read_choice(choice, CHOICES, "The rule"),
        read_number(omega, 0, 8, "ω"),
        read_number(k, 1, VOCABULARY - 2, "k", whole=True),
        read_number(budget, 0, 1, "The budget"),
        read_number(cap, *CAPS, "λ"),
        optimal is True,
    )


# ---- the rule


@dataclass(frozen=True)
class Case:
    """A rule together with the row its drafts are drawn from; the two belong together unless the rule is a mistake."""

    rule: Rule
    draft_row: Tensor


def case(knobs: Knobs, q: Tensor) -> Case:
    """The rule that the knobs stand for, at draft position 0. q (V,)."""
    if knobs.choice == "lossless":
        return Case(Lossless(), q)
    if knobs.choice in LANTERNS:
        return Case(Lantern(NEAREST, knobs.k, knobs.limit, knobs.optimal), q)
    schedule = schedules.uniform(1, knobs.omega if knobs.choice in USES_OMEGA else 1.0).double()
    if knobs.choice == "relaxed":
        return Case(Relaxed(schedule), q)
    mistake = MISTAKES[knobs.choice]
    return Case(mistake.rule(schedule, q), mistake.draft_row(q))


# ---- one token


@dataclass(frozen=True)
class OneToken:
    """What a rule does with one drafted token. Rows (V,) float64; the masses of a draft add up to `draft_row`, of an output to `law`."""

    draft_row: Tensor  # the row the draft is drawn from
    overlap: Tensor  # min(p, draft_row): what lossless decoding keeps
    kept: Tensor  # K
    recovered: Tensor  # what the residual adds
    law: Tensor  # kept + recovered: the law of the token that comes out
    accept_prob: Tensor  # f
    accepted: float
    variation: float  # exact total variation of the law against p
    least: float  # the same with the best residual, G*

    @property
    def extra(self) -> Tensor:
        """Mass kept beyond the overlap: only because the rule is not lossless."""
        return (self.kept - self.overlap).clamp(min=0)


def one_token(p: Tensor, q: Tensor, knobs: Knobs) -> OneToken:
    """The exact account of one draft position. p, q (V,)."""
    rule_case = case(knobs, q)
    kept = rule_case.rule.kept_mass(p, rule_case.draft_row, 0)
    law = theory.step_law(p, rule_case.draft_row, rule_case.rule, 0)
    return OneToken(
        draft_row=rule_case.draft_row,
        overlap=Lossless().kept_mass(p, rule_case.draft_row, 0),
        kept=kept,
        recovered=law - kept,
        law=law,
        accept_prob=_each_token(rule_case, p)[0],
        accepted=float(kept.sum()),
        variation=float(theory.total_variation(law, p)),
        least=float(theory.step_cost(p, rule_case.draft_row, rule_case.rule, 0)),
    )


def _each_token(rule_case: Case, p: Tensor) -> tuple[Tensor, Tensor]:
    """For every drafted token: f (V,), and the law of what follows its rejection (V, V)."""
    size = (len(p), len(p))
    token = torch.arange(len(p))
    rows = p.expand(size), rule_case.draft_row.expand(size), torch.zeros(len(p), dtype=torch.long), token
    return rule_case.rule.accept_prob(*rows), rule_case.rule.residual(*rows)


def borrowed(p: Tensor, token: int, knobs: Knobs) -> list[tuple[int, float]]:
    """The k nearest codes of a token and the mass each lends it under LANTERN, nearest first; 0 where the limit ends."""
    alone = torch.zeros_like(p).index_fill_(0, torch.tensor(token), 1.0)  # a draft that needs all it can get
    masses = [float(p[token])]
    for k in range(1, knobs.k + 1):
        masses.append(float(Lantern(NEAREST, k, knobs.limit).kept_mass(p, alone, 0)[token]))
    return [(int(code), after - before) for code, (before, after) in zip(NEAREST[token, : knobs.k], pairwise(masses), strict=True)]


# ---- one round


def round_rows(length: int, first: float, last: float) -> tuple[Tensor, Tensor]:
    """A target row at every position, and draft rows whose distance from it grows evenly with depth: p, q (L, V) float64.

    Args:
        length: draft positions.
        first, last: TV(p, q) at the first and at the last position; at most FARTHEST.
    """
    p, drift = (torch.tensor(row, dtype=torch.float64) for row in (ROUND_TARGET, ROUND_DRIFT))
    share = torch.linspace(first, last, length, dtype=torch.float64) / FARTHEST
    return p.expand(length, -1), p + share[:, None] * (drift - p)


def schedule(kind: str, length: int, delta: float, nu: float, mu: float | None = None, clamp: bool = False) -> Tensor:
    """ω of a kind of SHAPES, (length,). `reversed` is the annealed one read backwards."""
    if kind == "uniform":
        flat = schedules.uniform(length, delta)
        return flat.clamp(min=1.0) if clamp else flat
    row = schedules.annealed(length, delta, nu, mu, clamp)
    return row.flip(0) if kind == "reversed" else row


@dataclass(frozen=True)
class OneRound:
    """The exact account of a round. Lists have an entry a position; `reached` adds up to `accepted`, `spent` to `bound`."""

    omega: list[float]
    distance: list[float]  # TV(p, q)
    reached: list[float]  # probability that all drafts up to here are accepted
    spent: list[float]  # this position's part of the bound
    accepted: float  # E[N]
    bound: float
    variation: float  # true total variation, by enumeration

    @property
    def accept_length(self) -> float:
        """Tokens a target call, the recovered or bonus token counted."""
        return self.accepted + 1


def one_round(p: Tensor, q: Tensor, omega: Tensor) -> OneRound:
    """Everything exact about a round with the schedule omega (L,). p, q (L, V); V ** L sequences are enumerated."""
    rule = Relaxed(omega.double())
    first = [(p[:i], q[:i], rule) for i in range(1, len(q) + 1)]
    accepted = [float(theory.expected_accepted(*part)) for part in first]
    bound = [float(theory.tv_bound(*part)) for part in first]
    return OneRound(
        omega=omega.tolist(),
        distance=theory.total_variation(p, q).tolist(),
        reached=[after - before for before, after in pairwise([0.0, *accepted])],
        spent=[after - before for before, after in pairwise([0.0, *bound])],
        accepted=accepted[-1],
        bound=bound[-1],
        variation=float(theory.joint_variation(p, theory.round_law(p, q, rule))),
    )


CONTESTANTS = {  # name: title, kind, clamp
    "annealed": ("Annealed", "annealed", False),
    "clamped": ("Annealed, clamped", "annealed", True),
    "uniform": ("Uniform", "uniform", False),
    "reversed": ("Reversed", "reversed", False),
}
LOWEST, HIGHEST = 1e-5, 1e8  # δ that accept next to nothing, and whatever can be accepted
HALVINGS = 32  # of log δ: from thirteen decades down to below the step of float32


@dataclass(frozen=True)
class Contestant:
    """A schedule that reaches a given E[N]; `round` is None where no δ does (a clamped one never accepts less than lossless)."""

    title: str
    delta: float
    round: OneRound | None


def solve_delta(make: Callable[[float], Tensor], p: Tensor, q: Tensor, accepted: float) -> float:
    """The least δ in [LOWEST, HIGHEST] whose schedule `make(δ)` has E[N] >= accepted, by bisection: E[N] never falls as δ grows."""

    def enough(delta: float) -> bool:
        return float(theory.expected_accepted(p, q, Relaxed(make(delta).double()))) >= accepted - 1e-7

    low, high = math.log(LOWEST), math.log(HIGHEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(math.exp(middle)) else (middle, high)
    return math.exp(high)


def same_accept_length(p: Tensor, q: Tensor, accepted: float, nu: float) -> dict[str, Contestant]:
    """The contestants brought to the same E[N], each by its own δ, with what that costs. p, q (L, V)."""
    out = {}
    for name, (title, kind, clamp) in CONTESTANTS.items():

        def make(delta: float, kind: str = kind, clamp: bool = clamp) -> Tensor:
            return schedule(kind, len(q), delta, nu, clamp=clamp)

        delta = solve_delta(make, p, q, accepted)
        result = one_round(p, q, make(delta))
        out[name] = Contestant(title, delta, result if abs(result.accepted - accepted) < 1e-4 else None)
    return out


# ---- is it lossless?


def simulate(p: Tensor, rule_case: Case, rounds: int, generator: torch.Generator) -> Tensor:
    """Counts (V,) int64 of the first token of `rounds` rounds: draft, test, and the recovered token after a rejection.

    Rounds of one draft position, in one sweep: the same f and residual that `verification.verify` asks the rule for, one uniform number
    a test. p (V,).
    """
    accept_prob, residual = _each_token(rule_case, p)
    draft = draw(rule_case.draft_row.expand(rounds, -1), generator)
    accepted = uniforms((rounds,), generator, p.device) < accept_prob[draft]
    recovered = draw(residual[draft], generator)
    return torch.where(accepted, draft, recovered).bincount(minlength=len(p))


@dataclass(frozen=True)
class ChiSquare:
    """Pearson's test of counts against a law. `chance`: how often a correct sampler is at least this far off."""

    statistic: float
    freedom: int
    chance: float
    impossible: int | None = None  # a token that was counted although the law gives it no mass


def chi_square(counts: Tensor, law: Tensor) -> ChiSquare:
    """Are the counts (V,) draws from the law (V,)? Cells that expect fewer than 5 are taken together with the smallest larger one."""
    never = (law <= 0) & (counts > 0)
    if bool(never.any()):
        return ChiSquare(math.inf, 0, 0.0, int(never.nonzero()[0]))
    expected = counts.sum() * law
    large = expected >= 5
    if int(large.sum()) < 2:
        return ChiSquare(0.0, 0, 1.0)
    smallest = expected.masked_fill(~large, math.inf).argmin()
    group = torch.where(large, torch.arange(len(law)), smallest)
    observed, expectation = (torch.zeros_like(law).index_add_(0, group, cells.to(law))[large] for cells in (counts, expected))
    statistic = ((observed - expectation) ** 2 / expectation).sum()
    freedom = len(observed) - 1
    chance = torch.special.gammaincc(torch.tensor(freedom / 2, dtype=torch.float64), statistic / 2)
    return ChiSquare(float(statistic), freedom, float(chance))
