"""Any schedule on recorded lossless rounds, with sums in the place of coin tosses.

The rows of a round were drafted from q and looked at by the target, so that what a rule with another ω does on them is known exactly:
it reaches position i with probability r = Π_{j<i} f_j(x_j) (block rule: the weight of the block so far), keeps the mass K there and emits
K + (r - ΣK) G*. From these follow tokens a call, and for each token the bias Σ [K - r p]_+, the divergence KL(emitted, p) and the shift of
log p. Their means over drafts from q are those of the real method after the same prefixes (derived; the tests enumerate it).

What is not in it: the prefixes are those of lossless pictures. A relaxed method wanders off to prefixes of its own; real runs check it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...verification import block_kept
from .recording import Recording
from .statistics import LEVEL, student_quantile

MEASURES = ("accept_length", "bias", "kl", "log_p")
TOLERANCE = 1e-6  # of a figure that is held equal, and of the logarithm of a strength
GRID = torch.cat((torch.ones(1), 1 + torch.logspace(-2, 2, 33)))  # ω of a CostTable
POWER = 2.8  # standard errors at which a difference is seen in 80 of 100 trials at the 5 % level


@dataclass(frozen=True)
class Rounds:
    """Recordings made ready for drafts of L positions, one entry a recording."""

    p: list[Tensor]  # (R, L, M) float32
    q: list[Tensor]
    log_p: list[Tensor]  # 0 where p is 0
    place: list[Tensor]  # (R, L)
    ratio: list[Tensor]  # (R, L) float64, p/q of the drafted tokens
    prompt: Tensor  # (N,) int64: pictures of one prompt are not independent

    @classmethod
    def of(cls, recorded: Sequence[Recording], length: int) -> "Rounds":
        """The first `length` positions of each.

        Raises:
            ValueError: fewer were recorded, or there are fewer than two prompts.
        """
        shortest = min(r.place.shape[1] for r in recorded)
        names = {prompt: i for i, prompt in enumerate(dict.fromkeys(r.prompt for r in recorded))}
        if length > shortest:
            raise ValueError(f"{shortest} positions were recorded, and {length} are asked for. Give a larger --recorded-length.")
        if len(names) < 2:
            raise ValueError("One prompt has no error bar. Give 2 prompts or more.")
        p, q = ([getattr(r, name)[:, :length] for r in recorded] for name in ("p", "q"))
        return cls(
            p,
            q,
            [torch.where(one > 0, one, 1.0).log() for one in p],
            [r.place[:, :length] for r in recorded],
            [r.ratio[:, :length] for r in recorded],
            torch.tensor([names[r.prompt] for r in recorded]),
        )

    @property
    def length(self) -> int:
        """L."""
        return self.ratio[0].shape[1]

    @cached_property
    def prompts(self) -> int:
        """How many prompts: the independent units."""
        return int(self.prompt.max()) + 1


@dataclass(frozen=True)
class Estimate:
    """A ratio of sums over prompts, with what each prompt adds to its error."""

    value: float
    influence: Tensor  # (prompts,) mean 0

    @classmethod
    def ratio(cls, numerator: Tensor, denominator: Tensor) -> "Estimate":
        """Σ numerator / Σ denominator, both (prompts,)."""
        value = float(numerator.sum() / denominator.sum())
        return cls(value, (numerator - value * denominator) / denominator.mean())

    def __sub__(self, other: "Estimate") -> "Estimate":
        """The difference, common prompts cancelling."""
        return Estimate(self.value - other.value, self.influence - other.influence)

    def at_fixed(self, axis: "Estimate", at: float, slope: float) -> "Estimate":
        """The same with another figure, the axis, held at `at`, where this one moves by `slope` for each unit of it (delta method)."""
        return Estimate(self.value - slope * (axis.value - at), self.influence - slope * axis.influence)

    @property
    def error(self) -> float:
        """Standard error."""
        return float(self.influence.std()) / len(self.influence) ** 0.5

    def decides(self) -> int | None:
        """Prompts that would show this difference to be none of chance, in 80 of 100 trials; None for an exact 0."""
        return max(2, math.ceil((POWER * float(self.influence.std()) / self.value) ** 2)) if self.value else None

    def to_dict(self) -> dict[str, float]:
        """Value, standard error and interval."""
        reach = student_quantile(len(self.influence) - 1, LEVEL) * self.error
        return {"value": self.value, "error": self.error, "low": self.value - reach, "high": self.value + reach}


@dataclass(frozen=True)
class Totals:
    """Sums over the rounds of each prompt, (prompts,) float64."""

    calls: Tensor
    tokens: Tensor
    bias: Tensor
    kl: Tensor
    log_p: Tensor

    def first(self, prompts: int) -> "Totals":
        """Of the first prompts alone."""
        return Totals(*(getattr(self, name)[:prompts] for name in self.__dataclass_fields__))

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Tokens a call; bias, KL and shift of log p a token."""
        rest = {name: Estimate.ratio(getattr(self, name), self.tokens) for name in MEASURES[1:]}
        return {"accept_length": Estimate.ratio(self.tokens, self.calls)} | rest


# ---- one round


def _spent(p: Tensor, log_p: Tensor, kept: Tensor, weight: Tensor) -> Tensor:
    """Bias, KL and shift of log p at positions reached with `weight` (…), where mass `kept` (…, M) is accepted; (…, 3) float64."""
    scaled = weight[..., None] * p
    over = kept - scaled
    excess = (-over).clamp(min=0)
    mass = excess.sum(-1)
    rejected = (weight - kept.sum(-1)).clamp(min=0)
    emitted = kept + (rejected / torch.where(mass > 0, mass, 1.0))[..., None] * excess
    gain = (emitted.log() - log_p - weight.log()[..., None]).masked_fill(emitted <= 0, 0.0)
    parts = (over.clamp(min=0), emitted * gain, (emitted - scaled) * log_p)
    return torch.stack([part.sum(-1, dtype=torch.float64) for part in parts], -1)


def token_costs(rounds: Rounds, i: int, omega: Tensor) -> Tensor:
    """Bias, KL and shift of log p at every position of recording i, given that it is reached; (R, L, 3) float64, 0 where ω <= 1."""
    costs = torch.zeros(*rounds.ratio[i].shape, 3, dtype=torch.float64)
    relaxed = omega > 1  # the others are exact, whatever their ω
    p, q, log_p = (rows[i][:, relaxed] for rows in (rounds.p, rounds.q, rounds.log_p))
    kept = torch.minimum(q, omega[relaxed, None].float() * p)
    costs[:, relaxed] = _spent(p, log_p, kept, torch.ones(p.shape[:-1]))
    return costs


def through(ratio: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    """Chances that each position is reached and that its draft is accepted too, from p/q (R, L) and ω (L,); (R, L) float64 each."""
    accepted = (omega.double() * ratio).clamp(max=1).cumprod(1)
    return torch.cat((torch.ones_like(accepted[:, :1]), accepted[:, :-1]), 1), accepted


def _token_rule(rounds: Rounds, i: int, omega: Tensor) -> Tensor:
    """Recording i under f = min(1, ω p/q): Σ over its rounds of expected accepted drafts, bias, KL and shift; (4,) float64."""
    reach, accepted = through(rounds.ratio[i], omega)
    return torch.cat((accepted.sum()[None], (reach[..., None] * token_costs(rounds, i, omega)).sum((0, 1))))


def _block_rule(rounds: Rounds, i: int, omega: Tensor) -> Tensor:
    """Recording i under the relaxed block rule, as `_token_rule`."""
    weight = torch.ones(len(rounds.place[i]), dtype=torch.float64)
    total = torch.zeros(4, dtype=torch.float64)
    for position, relaxation in enumerate(omega.double()):
        p, q, log_p = (rows[i][:, position].double() for rows in (rounds.p, rounds.q, rounds.log_p))
        place = rounds.place[i][:, position, None]
        kept = torch.minimum(q, relaxation * weight[:, None] * p)
        capped = (kept.sum(-1) > weight) & (relaxation > 1)  # the cap sorts rows: only those it may lower
        kept[capped] = block_kept(p[capped], q[capped], weight[capped], relaxation)
        total[1:] += _spent(p, log_p, kept, weight).sum(0)
        weight = (kept.gather(-1, place) / q.gather(-1, place))[:, 0]
        total[0] += weight.sum()
    return total


def evaluate(rounds: Rounds, omega: Tensor, block: bool = False) -> Totals:
    """What a schedule (L,) would do on the recorded rounds, token by token or as a block."""
    rule = _block_rule if block else _token_rule
    sums = torch.stack([rule(rounds, i, omega) for i in range(len(rounds.p))])
    return _totals(rounds, sums)


def _totals(rounds: Rounds, sums: Tensor) -> Totals:
    """From Σ accepted, bias, KL and shift of each recording (N, 4)."""
    calls = torch.tensor([len(one) for one in rounds.ratio], dtype=torch.float64)
    pictures = torch.cat((calls[:, None], (calls + sums[:, 0])[:, None], sums[:, 1:]), 1)
    grouped = torch.zeros(rounds.prompts, pictures.shape[1], dtype=torch.float64).index_add_(0, rounds.prompt, pictures)
    return Totals(*grouped.unbind(1))


# ---- costs in a table, to search and to fit with


@dataclass(frozen=True)
class CostTable:
    """`token_costs` at the ω of GRID: between them they are interpolated, which is enough to find a schedule that is then evaluated."""

    costs: Tensor  # (G, L, R, 3) float32, the rounds of all recordings one behind the other
    ratio: Tensor  # (R, L) float64
    prompt: Tensor  # (R,) int64

    @classmethod
    def of(cls, rounds: Rounds) -> "CostTable":
        """G passes over the rows."""
        every = torch.zeros(len(GRID), rounds.length, sum(map(len, rounds.ratio)), 3)
        for omega, costs in zip(GRID, every, strict=True):
            rows = [token_costs(rounds, i, omega.expand(rounds.length)) for i in range(len(rounds.p))]
            costs.copy_(torch.cat(rows).transpose(0, 1))
        return cls(every, torch.cat(rounds.ratio), rounds.prompt.repeat_interleave(torch.tensor([len(one) for one in rounds.ratio])))

    def shortened(self, length: int) -> "CostTable":
        """For shorter drafts."""
        return CostTable(self.costs[:, :length], self.ratio[:, :length], self.prompt)

    def _rounds(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        """Expected accepted drafts (R,) and costs (R, 3) of each round."""
        reach, accepted = through(self.ratio, omega)
        right = torch.searchsorted(GRID, omega.detach().clamp(GRID[0], GRID[-1])).clamp(min=1)
        share = ((omega - GRID[right - 1]) / (GRID[right] - GRID[right - 1])).clamp(0, 1)
        position = torch.arange(len(omega))
        low, high = (self.costs[at, position] for at in (right - 1, right))
        costs = torch.lerp(low, high, share[:, None, None].float())
        return accepted.sum(1), (reach.float().T[..., None] * costs).sum(0)

    def figures(self, omega: Tensor) -> Tensor:
        """Tokens a call, and bias, KL and shift a token, of a schedule (L,): (4,), differentiable."""
        accepted, costs = self._rounds(omega)
        tokens = len(accepted) + accepted.sum()
        return torch.cat(((tokens / len(accepted))[None], costs.sum(0) / tokens))

    def totals(self, omega: Tensor) -> Totals:
        """As `evaluate`, nearly."""
        accepted, costs = self._rounds(omega)
        rounds = torch.cat((torch.ones_like(accepted)[:, None], (1 + accepted)[:, None], costs.double()), 1)
        grouped = torch.zeros(int(self.prompt.max()) + 1, 5, dtype=torch.float64).index_add_(0, self.prompt, rounds)
        return Totals(*grouped.unbind(1))


# ---- at an equal figure


def crossing(figure: Callable[[float], float], at: float, low: float, high: float, steps: int = 40) -> float | None:
    """Where a continuous figure reaches `at` between two strengths, by false position in log strength; None where it does not."""
    a, b = math.log(low), math.log(high)
    fa, fb = figure(low) - at, figure(high) - at
    if fa > 0 or fb < 0:
        return None
    x, moved = a, 0
    for _ in range(steps):
        x = (a * fb - b * fa) / (fb - fa) if fb > fa else (a + b) / 2
        fx = figure(math.exp(x)) - at
        if abs(fx) < TOLERANCE or b - a < TOLERANCE:
            break
        side = 1 if fx > 0 else -1
        # Illinois: an end that stays put twice counts half, so that both ends move.
        if side > 0:
            b, fb, fa = x, fx, fa / 2 if moved == side else fa
        else:
            a, fa, fb = x, fx, fb / 2 if moved == side else fb
        moved = side
    return math.exp(x)
