"""Defaults by measuring: quality over guidance, top-k and temperature, then speed over draft lengths at the best of them.

Prompts are captions of valid photos, so that the 30 fixed prompts stay unseen. Quality is the target's (Eagle-1 is lossless, and faster
than AR).
"""

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...data.metrics import Estimate, kid
from ...protocols import Pair
from ..photos import chosen
from ..prompts import DEFAULTS, valid_prompts
from ..samples import jobs
from ..speed import bench
from ..study import Study
from .pair import agreement, photo_probe

GRID: dict[str, tuple] = {"cfg_scale": (2.0, 3.0, 4.0, 6.0), "top_k": (200, 500, 1000, 0), "temperature": (0.9, 1.0)}
DRAFT_LENGTHS = (2, 3, 4, 5, 6, 8)
SPEED_PROMPTS = 2


def settings_of(grid: dict[str, tuple]) -> list[dict[str, Any]]:
    """Every combination of the grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def label(settings: dict[str, Any]) -> str:
    """A combination's name."""
    return " ".join(f"{name}={value:g}" for name, value in settings.items())


def suggest(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the settings whose KID is within two standard errors of the lowest, those within one standard error of the best obeyed:
    the present defaults where they are among these, since noise is no reason to move them, or else the longest accept length."""
    lowest = min(rows, key=lambda row: row["kid"]["value"])["kid"]
    near = [row for row in rows if row["kid"]["value"] <= lowest["value"] + 2 * lowest["error"]]
    best = max(near, key=lambda row: row["obeyed"]["value"])["obeyed"]
    obeying = [row for row in near if row["obeyed"]["value"] >= best["value"] - best["error"]]
    return max(obeying, key=lambda row: (row["settings"] == DEFAULTS, row["accept_length"]))["settings"]


def mean_of(figures: Sequence[Estimate]) -> Estimate:
    """The mean of figures that were measured apart."""
    count = len(figures)
    return Estimate(sum(f.value for f in figures) / count, sum(f.error**2 for f in figures) ** 0.5 / count)


def speed(pair: Pair, prompts: Sequence[str], settings: dict[str, Any], lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Speed against plain AR of Eagle-1 and COOL-SD at each draft length, the variants interleaved in this process."""
    variants = [bench.Variant("Plain AR", "ar")]
    for method, length in itertools.product(("eagle1", "coolsd"), lengths):
        variants.append(bench.Variant(f"{method} draft_length={length}", method, (("draft_length", length),)))
    results: dict[bench.Variant, list] = {}
    for variant, stats in bench.turns(pair, variants, prompts, 1, settings):
        results.setdefault(variant, []).append(stats)
    return [
        asdict(row) | {"method": variant.method, **dict(variant.settings)}
        for variant, row in zip(variants, bench.summarise(results), strict=True)
    ]


def evaluate(
    study: Study, pictures: int, a_kind: int, grid: dict[str, tuple] = GRID, lengths: Sequence[int] = DRAFT_LENGTHS
) -> dict[str, Any]:
    """Figures of every combination and draft length, and which the rule of `suggest` takes; resumable but for the speeds."""
    cases = valid_prompts(study.photos, pictures)
    combinations = settings_of(grid)
    variants = [(f"sweep {label(settings)}", "eagle1", settings) for settings in combinations]
    sampled = study.collect(jobs(variants, [a.prompt for a in cases], {}))
    valid = chosen(study.photos, "valid")
    real = study.measure(valid, reconstruct=False).judged
    probe, _ = photo_probe(study, valid, study.measure(valid), a_kind)
    usable = [i for i, a in enumerate(cases) if a.kind in probe.names]
    rows = []
    for settings, samples in zip(combinations, sampled.values(), strict=True):
        pixels = study.pixels(samples)
        features, pictured = study.features(pixels), study.pictures(pixels[usable])
        figures = agreement([cases[i] for i in usable], pictured, features[usable], probe)
        shares = [
            Estimate(figures[name]["value"], figures[name]["error"]) for name in ("scene_top1", "flower_top5", "colour") if name in figures
        ]
        rows.append(
            {
                "settings": settings,
                "kid": asdict(kid(study.judged(pixels), real)),
                "obeyed": asdict(mean_of(shares)),
                "agreement": figures,
                "accept_length": sum(len(s.tokens) for s in samples) / sum(s.target_calls for s in samples),
                "log_prob": sum(s.log_prob for s in samples) / len(samples),
            }
        )
    suggested = suggest(rows)
    speeds = speed(study.pair, [a.prompt for a in cases[:SPEED_PROMPTS]], suggested, lengths)
    fastest = max((row for row in speeds if row["method"] == "coolsd"), key=lambda row: row["speedup"])
    return {
        "weights": study.weights,
        "environment": dict(study.pair.environment),
        "pictures": pictures,
        "rows": rows,
        "speeds": speeds,
        "rule": " ".join((suggest.__doc__ or "").split()) + " Draft length: the fastest COOL-SD.",
        "suggested": suggested | {"draft_length": fastest["draft_length"]},
    }
