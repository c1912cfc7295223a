"""Curves of a method over its sweep, and differences between two of them, with error bars from a bootstrap over prompts.

Every figure is a tensor (R,): the estimate first, then one value a replicate. A replicate draws prompts with replacement, the same ones
for all methods, so that differences keep the pairing. Knows nothing of models.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import torch
from torch import Tensor

from ...data.metrics import kernel
from ..samples import Sample

REPLICATES = 1000
LEVEL = 0.95
PLACES = (1 / 6, 1 / 2, 5 / 6)  # of the range that two curves share: where they are compared

Point = dict[str, Tensor]  # measures (R,) of one setting


def student_quantile(freedom: int, level: float) -> float:
    """t with P(|T| <= t) = level, by bisection over the finite series of Student's law (Abramowitz and Stegun 26.7.3, 26.7.4)."""

    def inside(t: float) -> float:
        angle = math.atan(t / math.sqrt(freedom))
        odd = freedom % 2
        term, total = math.cos(angle) if odd else 1.0, 0.0
        for j in range(1 + odd, freedom, 2):
            total += term
            term *= math.cos(angle) ** 2 * j / (j + 1)
        return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total

    low, high = 0.0, 1e6
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < level else (low, middle)
    return high


@lru_cache
def widening(prompts: int) -> float:
    """How much too narrow percentiles of a bootstrap over so few prompts are.

    The bootstrap's variance is (n - 1)/n of the unbiased one, and its ends are the normal law's where Student's with n - 1 degrees of
    freedom belongs. With it the interval of a mean is the t interval.
    """
    if prompts < 2:
        raise ValueError("One prompt has no error bar. Sweep over 2 prompts or more.")
    normal = NormalDist().inv_cdf((1 + LEVEL) / 2)
    return math.sqrt(prompts / (prompts - 1)) * student_quantile(prompts - 1, LEVEL) / normal


@dataclass(frozen=True)
class Effect:
    """A figure with its bootstrap interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Tensor, prompts: int) -> "Effect":
        """From (R,): the estimate, and the central LEVEL of the replicates widened about their median for this number of prompts."""
        replicates = figures[1:][figures[1:].isfinite()].double()  # of one picture alone there is no KID
        ends = torch.tensor([(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2], dtype=torch.float64)
        low, middle, high = replicates.quantile(ends).tolist()
        wider = widening(prompts)
        return cls(float(figures[0]), middle + wider * (low - middle), middle + wider * (high - middle))

    def within(self, least: float, most: float) -> "Effect":
        """The same with an interval that ends where the figure can."""
        return replace(self, low=max(self.low, least), high=min(self.high, most))

    def side(self) -> int:
        """-1 or 1 where the interval lies on one side of 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def resampled(prompts: int, replicates: int = REPLICATES, seed: int = 0) -> Tensor:
    """How often each prompt is in each replicate, (1 + replicates, prompts) float64; the first row is the sample itself."""
    picks = torch.randint(prompts, (replicates, prompts), generator=torch.Generator().manual_seed(seed))
    counts = torch.zeros(replicates, prompts, dtype=torch.float64).scatter_add_(1, picks, torch.ones_like(picks, dtype=torch.float64))
    return torch.cat((torch.ones(1, prompts, dtype=torch.float64), counts))


def kid_replicates(features: Tensor, photos: Tensor, weights: Tensor) -> Tensor:
    """KID against photos (M, D) in each replicate, (R,). features (N, D), weights (R, N): how often each picture counts.

    Copies of a picture are no pair, so that a replicate stays unbiased; the photos are the same in all.
    """
    own, cross = kernel(features, features).fill_diagonal_(0.0), kernel(features, photos).mean(1)
    within_photos = kernel(photos, photos)
    total = weights.sum(1)
    pairs = total.square() - weights.square().sum(1)
    constant = (within_photos.sum() - within_photos.trace()) / (len(photos) * (len(photos) - 1))
    return (weights @ own * weights).sum(1) / pairs + constant - 2 * (weights @ cross) / total


def point(samples: Sequence[Sample], reference: Sequence[Sample], weights: Tensor) -> Point:
    """Accept length, bias a token, log-probability less plain AR's, of one setting. weights (R, N)."""

    def sums(values: Sequence[float]) -> Tensor:
        return weights @ torch.tensor(values, dtype=torch.float64)

    tokens = sums([len(s.tokens) for s in samples])
    moved = sums([s.log_prob - r.log_prob for s, r in zip(samples, reference, strict=True)]) / weights.sum(1)
    return {
        "accept_length": tokens / sums([s.target_calls for s in samples]),
        "bias": sums([s.bias_spent for s in samples]) / tokens,
        "log_prob_difference": moved,
    }


def interpolate(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """y at `at` on the lines between points, flat beyond the ends: x, y (S, R), at (R,) -> (R,)."""
    order = x.argsort(0)
    x, y = (t.gather(0, order).T.contiguous() for t in (x, y))
    right = torch.searchsorted(x, at[:, None].contiguous()).clamp(1, x.shape[1] - 1) if x.shape[1] > 1 else torch.zeros(len(at), 1).long()
    before = (right - 1).clamp(min=0)
    x0, x1, y0, y1 = (t.gather(1, i)[:, 0] for t, i in ((x, before), (x, right), (y, before), (y, right)))
    share = torch.where(x1 > x0, (at - x0) / (x1 - x0), 0.0).clamp(0, 1)
    return y0 + share * (y1 - y0)


def shared_range(a: Sequence[Point], b: Sequence[Point], axis: str) -> tuple[float, float] | None:
    """Where both curves have points on an axis; None where they have no stretch in common."""
    spans = [[float(p[axis][0]) for p in curve] for curve in (a, b)]
    low, high = max(map(min, spans)), min(map(max, spans))
    return (low, high) if high > low else None


@dataclass(frozen=True)
class Gap:
    """How far curve a lies above curve b at equal `axis`: at PLACES of the shared range, and the mean of these."""

    mean: Effect
    places: tuple[tuple[float, Effect], ...]


def gap(a: Sequence[Point], b: Sequence[Point], axis: str, measure: str, prompts: int) -> Gap | None:
    """Measure of a less that of b at equal `axis`, by interpolation in every replicate; None without a shared range."""
    span = shared_range(a, b, axis)
    if span is None:
        return None
    (ax, ay), (bx, by) = (tuple(torch.stack([p[name] for p in curve]) for name in (axis, measure)) for curve in (a, b))
    places = [span[0] + share * (span[1] - span[0]) for share in PLACES]
    differences = []
    for place in places:
        at = torch.full((ax.shape[1],), place, dtype=torch.float64)
        differences.append(interpolate(ax, ay, at) - interpolate(bx, by, at))
    mean = torch.stack(differences).mean(0)
    return Gap(Effect.of(mean, prompts), tuple((place, Effect.of(d, prompts)) for place, d in zip(places, differences, strict=True)))
