"""From stored pictures to figures with 95 % intervals, all methods on the same prompts.

Counts, CLIP and ImageReward: a bootstrap over prompts, the same draws for all methods, widened to Student's (see claims/statistics.py).
Seconds: the same over groups, whose pictures share one clock. FID and KID: torchmetrics' figures, with the delete-a-block jackknife over
prompts and their photos.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...data.metrics import LEAST, block_values, jackknife_error
from ..claims.statistics import LEVEL, Effect, resampled, student_quantile
from .store import Figures


@dataclass(frozen=True)
class Measured:
    """A method's pictures, in the order of the prompts.

    features: (N, D). scores: (N,) by name, "clip" and "reward". Either may lack.
    """

    label: str
    method: str
    figures: Sequence[Figures]
    features: Tensor | None = None
    scores: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A method's figures by column, and those less plain AR's, prompt by prompt, where that was measured."""

    label: str
    method: str
    columns: Mapping[str, Effect]
    against_ar: Mapping[str, Effect]


def frechet(x: Tensor, photos: Tensor) -> float:
    """FID of features (N, D) and (M, D), by torchmetrics, on fewer coordinates where there are fewer pictures than features.

    The distance is that of two normal laws on the span of all features, and an orthonormal basis of it changes nothing.

    Raises:
        ValueError: torchmetrics is not installed.
    """
    fid = _torchmetrics("fid").FrechetInceptionDistance
    if len(x) + len(photos) < x.shape[1]:
        basis = torch.linalg.qr(torch.cat((x, photos)).double().T).Q
        x, photos = x.double() @ basis, photos.double() @ basis
    identity = torch.nn.Identity()
    identity.num_features = x.shape[1]
    metric = fid(feature=identity).set_dtype(torch.float64)
    metric.update(photos.double(), real=True)
    metric.update(x.double(), real=False)
    return metric.compute().item()


def kernel_distance(x: Tensor, photos: Tensor) -> float:
    """KID of features (N, D) and (N, D): the unbiased estimate over all of them, by torchmetrics; may be negative.

    Raises:
        ValueError: torchmetrics is not installed.
    """
    return _torchmetrics("kid").poly_mmd(photos.double(), x.double()).item()


def _torchmetrics(name: str) -> "object":
    from importlib import import_module

    try:
        return import_module(f"torchmetrics.image.{name}")
    except ImportError:
        raise ValueError("FID and KID need torchmetrics: pip install -r coolsd/evaluation/requirements.txt") from None


LEAST_VALUE = {"accept_length": 1.0}  # of counts; of the others 0
DISTANCES = {"fid": frechet, "kid": kernel_distance}


def _distances(one: Measured, photos: Tensor) -> dict[str, tuple[float, Tensor]]:
    """Each distance of all pictures, and without each block of prompts."""

    def statistic(distance):
        def of(keep) -> float:
            rows = keep(len(photos))
            return distance(one.features[rows], photos[rows])

        return of

    return {name: block_values(statistic(distance), len(photos)) for name, distance in DISTANCES.items()}


def _reach(value: float, left_out: Tensor) -> Effect:
    reach = student_quantile(len(left_out) - 1, LEVEL) * jackknife_error(left_out)
    return Effect(value, value - reach, value + reach)


def _counts(one: Measured, weights: Tensor) -> dict[str, Tensor]:
    """Columns (R,) that follow from counts. weights (R, N)."""

    def sums(name: str) -> Tensor:
        return weights @ torch.tensor([getattr(figures, name) for figures in one.figures], dtype=torch.float64)

    tokens, calls = sums("tokens"), sums("target_calls")
    out = {"accept_length": tokens / calls, "target_calls": calls / weights.sum(1), "bias": sums("bias_spent") / tokens}
    if all(figures.kl_spent is not None for figures in one.figures):
        out["kl"] = sums("kl_spent") / tokens
    return out


def _scores(one: Measured, weights: Tensor) -> dict[str, Tensor]:
    return {name: weights @ scores.double() / weights.sum(1) for name, scores in one.scores.items()}


def _clock(one: Measured, group: int) -> Tensor:
    """Seconds of each group, (G,): the sum over its pictures."""
    seconds = torch.tensor([figures.seconds for figures in one.figures], dtype=torch.float64)
    return torch.stack([part.sum() for part in seconds.split(group)])


def _seconds(one: Measured, ar: Measured | None, group: int) -> dict[str, Effect]:
    """Seconds a picture and × AR; with a single group there is no interval, and its ends are not numbers."""
    clock = _clock(one, group)
    counts = torch.tensor([len(part) for part in torch.arange(len(one.figures)).split(group)], dtype=torch.float64)
    weights = resampled(len(clock))
    figures = {"seconds": weights @ clock / (weights @ counts)}
    if ar is not None:
        figures["speedup"] = weights @ _clock(ar, group) / (weights @ clock)
    if len(clock) < 2:
        return {name: Effect(values[0].item(), float("nan"), float("nan")) for name, values in figures.items()}
    return {name: Effect.of(values, len(clock)) for name, values in figures.items()}


def table(measured: Sequence[Measured], photos: Tensor | None, group: int) -> list[Row]:
    """A row a method.

    Args:
        photos: features (N, D) of the photos, one a prompt; None: no distances. group: prompts decoded together.

    Raises:
        ValueError: too few prompts for an interval.
    """
    count = len(measured[0].figures)
    least = LEAST if photos is not None else 2
    if count < least:
        raise ValueError(f"{count} prompts give no interval. Give --limit {least} or more.")
    weights = resampled(count)
    ar = next((one for one in measured if one.method == "ar"), None)
    replicates = {one.label: _counts(one, weights) | _scores(one, weights) for one in measured}
    distances = {one.label: _distances(one, photos) if photos is not None else {} for one in measured}
    rows = []
    for one in measured:
        columns = {name: Effect.of(values, count) for name, values in replicates[one.label].items()} | _seconds(one, ar, group)
        columns = {name: e if name in one.scores else e.within(LEAST_VALUE.get(name, 0.0), math.inf) for name, e in columns.items()}
        columns |= {name: _reach(*values) for name, values in distances[one.label].items()}
        against: dict[str, Effect] = {}
        if ar is not None and one is not ar:
            base, base_distances = replicates[ar.label], distances[ar.label]
            against = {name: Effect.of(replicates[one.label][name] - base[name], count) for name in one.scores}
            for name, (value, left_out) in distances[one.label].items():
                against[name] = _reach(value - base_distances[name][0], left_out - base_distances[name][1])
        rows.append(Row(one.label, one.method, columns, against))
    return rows
