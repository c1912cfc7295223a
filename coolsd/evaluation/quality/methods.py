"""What each method costs in picture quality: same prompts and seeds, features against the valid photos, the target's own opinion."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import ceil
from typing import Any

import torch
from torch import Tensor

from ... import METHODS
from ...data.metrics import LEAST, Estimate, exchange_test, kid, kid_difference, mean_estimate
from ..photos import chosen
from ..prompts import valid_prompts
from ..samples import Sample, jobs
from ..study import Study

VARIANTS: tuple[tuple[str, str, tuple[tuple[str, Any], ...]], ...] = (
    ("AR", "ar", ()),
    ("Eagle-1", "eagle1", ()),
    ("COOL-SD δ=1.1", "coolsd", (("delta", 1.1),)),
    ("COOL-SD δ=2", "coolsd", (("delta", 2.0),)),
    ("COOL-SD δ=4", "coolsd", (("delta", 4.0),)),
)
REJECTED = 0.01  # p-value below which two samples are said to come from different laws
ERRORS = 2.58  # standard errors of a difference at that level
POWER = 3.42  # standard errors at which it is seen there in 80 of 100 trials


def _log_probs(samples: Sequence[Sample]) -> Tensor:
    return torch.tensor([s.log_prob for s in samples], dtype=torch.float64)


def drift_figures(samples: Sequence[Sample]) -> dict[str, Any] | None:
    """Mean of log p + H a token over pictures, 0 where tokens are drawn from the target, with its error and the number of tokens that the
    target cannot emit; None where pictures were stored without it."""
    drifts = [s.drift for s in samples if s.drift is not None]
    if len(drifts) < len(samples):
        return None
    return asdict(mean_estimate(torch.tensor(drifts, dtype=torch.float64))) | {"outside": sum(s.outside for s in samples)}


def variant_figures(samples: Sequence[Sample], features: Tensor, photos: Tensor) -> dict[str, Any]:
    """Figures of one variant: KID against photos, log-probability, accept length, bias."""
    tokens = sum(len(s.tokens) for s in samples)
    return {
        "label": samples[0].label,
        "pictures": len(samples),
        "kid": asdict(kid(features, photos)),
        "log_prob": asdict(mean_estimate(_log_probs(samples))),
        "drift": drift_figures(samples),
        "accept_length": asdict(mean_estimate(torch.tensor([s.accept_length for s in samples]))),
        "bias_per_token": sum(s.bias_spent for s in samples) / tokens,
        "target_calls": sum(s.target_calls for s in samples) / len(samples),
    }


def against(samples: Sequence[Sample], features: Tensor, other: Sequence[Sample], other_features: Tensor, photos: Tensor) -> dict[str, Any]:
    """A variant against another, paired by prompt and seed: differences with their errors, and whether features come from one law."""
    return {
        "kid": asdict(kid_difference(features, other_features, photos)),
        "log_prob": asdict(mean_estimate(_log_probs(samples) - _log_probs(other))),
        "same_law_p": exchange_test(features, other_features),
    }


def _agrees(comparison: dict[str, Any]) -> bool:
    return all(Estimate(**comparison[name]).agrees(errors=ERRORS) for name in ("kid", "log_prob")) and comparison["same_law_p"] >= REJECTED


def _departs(drift: dict[str, Any]) -> bool:
    """Whether tokens are seen not to be drawn from the target's rows."""
    return bool(drift["outside"]) or not Estimate(drift["value"], drift["error"]).agrees(errors=ERRORS)


def martingale_verdicts(rows: Sequence[dict[str, Any]], methods: Sequence[str]) -> list[str]:
    """Are tokens drawn from the target? The mean of log p + H is 0 for a lossless method; relaxed ones are the controls that must fail."""
    measured = [(row, METHODS[method].lossless) for row, method in zip(rows, methods, strict=True) if _finite(row.get("drift") or {})]
    controls = [row for row, lossless in measured if not lossless]
    power = any(_departs(row["drift"]) for row in controls)
    lines = []
    for row, lossless in measured:
        drift = row["drift"]
        figures = f"log p + H {drift['value']:+.4f} ± {drift['error']:.4f} a token"
        figures += f", {drift['outside']} tokens that the target cannot emit" if drift["outside"] else ""
        if _departs(drift):
            verdict = "does NOT draw from the target, unlike what theory says" if lossless else "is seen to depart from the target"
        elif not lossless:
            verdict = f"is not seen to depart: undecided; about {_pictures_needed(row)} pictures would show a departure of this size"
        elif power:
            verdict = "draws from the target within error, on pictures that show a relaxed method to depart"
        else:
            few = min((_pictures_needed(one) for one in controls), default=None)
            more = f"about {few} pictures would show a control to depart" if few else "no relaxed method was measured as a control"
            verdict = f"undecided: {more}"
        lines.append(f"{row['label']} {verdict} (1 % level): {figures}.")
    return lines


def _pictures_needed(row: dict[str, Any]) -> int:
    """How many would show this row's drift in 80 of 100 trials."""
    drift = row["drift"]
    return ceil(row["pictures"] * (POWER * drift["error"] / drift["value"]) ** 2) if drift["value"] else 10**9


def _finite(estimate: dict[str, Any]) -> bool:
    """Whether it is a figure that may decide a verdict."""
    return "value" in estimate and math.isfinite(estimate["value"]) and math.isfinite(estimate["error"])


def _monotone(name: str, key: str, rows: Sequence[dict[str, Any]], steps: Sequence[Estimate], rises: int) -> str:
    """Whether a figure moves one way along rows. steps: differences of neighbours with their errors; rises: 1 or -1."""
    path = " → ".join(f"{row[key]['value']:.4g}" for row in rows)
    if not all(math.isfinite(step.value) and math.isfinite(step.error) for step in steps):
        verdict = "cannot be judged, as a figure is not finite"
    elif all(rises * step.value >= 0 for step in steps):
        verdict = "monotone in δ"
    elif all(rises * step.value >= -2 * step.error for step in steps):
        verdict = "not monotone in δ, but every step against the order is within two standard errors"
    else:
        verdict = "NOT monotone in δ, beyond two standard errors"
    return f"{name} over {', '.join(row['label'] for row in rows)}: {path}: {verdict}."


def verdicts(rows: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]], methods: Sequence[str]) -> list[str]:
    """Do lossless methods agree with AR, is the cost of relaxing monotone.

    Args:
        rows: of all variants, AR first. steps: `against` of neighbouring relaxed rows, in order. methods: of each row.
    """
    lines = martingale_verdicts(rows, methods)
    for row, method in zip(rows[1:], methods[1:], strict=True):
        difference = row["against_ar"]
        if not all(_finite(difference[name]) for name in ("kid", "log_prob")):
            lines.append(f"{row['label']} cannot be compared with AR: a figure is not finite.")
            continue
        kid_words, log_words = (f"{difference[n]['value']:+.4f} ± {difference[n]['error']:.4f}" for n in ("kid", "log_prob"))
        agrees = _agrees(difference)
        verdict = "agrees with AR within error (1 % level)" if agrees else "DIFFERS from AR (1 % level)"
        note = (
            "" if agrees == METHODS[method].lossless else ", unlike what theory says" if METHODS[method].lossless else ", for all its bias"
        )
        figures = f"KID {kid_words}, log p {log_words}, one law p = {difference['same_law_p']:.3f}"
        lines.append(f"{row['label']} {verdict}{note}: {figures}.")
    relaxed = [row for row, method in zip(rows, methods, strict=True) if not METHODS[method].lossless]
    if len(relaxed) > 1:
        biases = [row["bias_per_token"] for row in relaxed]
        rising = all(a <= b for a, b in pairwise(biases))
        lines.append(f"Bias a token {' → '.join(f'{b:.4f}' for b in biases)}: {'monotone in δ' if rising else 'NOT monotone in δ'}.")
        lines.append(_monotone("KID", "kid", relaxed, [Estimate(**s["kid"]) for s in steps], 1))
        drop = -1 if relaxed[-1]["log_prob"]["value"] < rows[0]["log_prob"]["value"] else 1
        lines.append(_monotone("log p", "log_prob", relaxed, [Estimate(**s["log_prob"]) for s in steps], drop))
    return lines


def check_size(photos: int, pictures: int) -> None:
    """Refuse at once what would have no figures at the end.

    Raises:
        ValueError: with the number that is needed.
    """
    if min(photos, pictures) < LEAST:
        raise ValueError(f"KID and its error need {LEAST} pictures and {LEAST} valid photos or more; here are {pictures} and {photos}.")


def evaluate(
    study: Study, pictures: int, settings: dict[str, Any], variants: Sequence[tuple] = VARIANTS, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Figures of every variant and the verdicts; the first variant is the reference. Resumable through the study."""
    check_size(len(chosen(study.photos, "valid")), pictures)
    sampled = study.collect(jobs(variants, [a.prompt for a in valid_prompts(study.photos, pictures)], settings))
    photos = study.measure(chosen(study.photos, "valid"), reconstruct=False)
    copies = study.measure(chosen(study.photos, "train", limit=pictures))
    real, features, kid_lite0 = photos.judged, {}, {}
    for label, samples in sampled.items():
        pixels = study.pixels(samples)
        features[label] = study.judged(pixels)
        kid_lite0[label] = asdict(kid(study.features(pixels), photos.features))
    rows, steps, before = [], [], None
    reference = next(iter(sampled))
    for (label, samples), (_, method, _) in zip(sampled.items(), variants, strict=True):
        row = variant_figures(samples, features[label], real) | {"kid_lite0": kid_lite0[label]}
        first = label == reference
        row["against_ar"] = None if first else against(samples, features[label], sampled[reference], features[reference], real)
        if not METHODS[method].lossless:
            if before is not None:
                steps.append(against(samples, features[label], sampled[before], features[before], real))
            before = label
        rows.append(row)
        drift = f"log p + H {row['drift']['value']:+.4f}, " if row["drift"] else ""
        figures = f"{drift}log p {row['log_prob']['value']:.4f}, accept length {row['accept_length']['value']:.2f}"
        say(f"{label}: KID {row['kid']['value']:.5f}, {figures}")
    return {
        "weights": study.weights,
        "environment": dict(study.pair.environment),
        "settings": settings,
        "pictures": pictures,
        "photos": len(real),
        "perfect": asdict(kid(copies.judged, real)),
        "rows": rows,
        "verdicts": verdicts(rows, steps, [method for _, method, _ in variants]),
    }
