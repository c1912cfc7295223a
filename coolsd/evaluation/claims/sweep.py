"""What the paper claims, measured on one pair: a sweep over δ, λ, k and ω, and for each claim a verdict with its error bar.

Chains throughout, so that all methods draft alike. Quality is how far pictures moved from the target's law: bias spent a token, distance
of their log-probability from plain AR's, and where photos are given KID. The bias metered for LANTERN with its own residual is what G*
would have spent, so there it is a lower bound.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ... import METHODS, stream, theory
from ...data.metrics import exchange_test
from ...data.store import progress
from ...methods import neighbours
from ...protocols import Pair
from ...rules import Lantern, Rule
from ...theory import PAPER_TV_LIMIT
from ..photos import chosen
from ..prompts import FIXED
from ..samples import Sample, jobs
from ..study import Study
from .names import FAMILIES, INTERVAL, SCHEMA, STARTS
from .statistics import Effect, Point, kid_replicates, point, resampled, widening
from .verdicts import Premise, Verdict, curve_verdicts, lossless_verdicts, residual_verdicts

CHAIN = (("tree", "chain"),)
BANDS = 4  # of a picture's tokens, from top to bottom, whose codes are averaged
ROWS_A_PROMPT = 8  # of target and drafter, on which the residuals are compared
ROW_TOKENS = 96  # decoded for them


@dataclass(frozen=True)
class Setting:
    """One point of the sweep. swept: what sets it apart within its family."""

    family: str
    method: str
    swept: tuple[tuple[str, Any], ...] = ()
    fixed: tuple[tuple[str, Any], ...] = CHAIN

    @property
    def label(self) -> str:
        """Its name in the collection."""
        return " ".join([self.family, *(f"{name}={value:g}" for name, value in self.swept)])


@dataclass(frozen=True)
class Size:
    """How much is swept."""

    deltas: tuple[float, ...] = (1.1, 1.5, 2.0, 3.0, 5.0)
    uniforms: tuple[float, ...] = (1.1, 1.3, 1.6, 2.0, 3.0)
    caps: tuple[float, ...] = (1.5, 2.0, 4.0, 10.0)
    nearest: tuple[int, ...] = (10, 100, 1000)
    prompts: int = len(FIXED)
    seeds: int = 2


QUICK = Size(deltas=(1.1, 2.0, 5.0), uniforms=(1.1, 1.6, 3.0), caps=(2.0, 10.0), nearest=(10, 1000), prompts=6, seeds=1)


def settings(size: Size) -> list[Setting]:
    """Every point of the sweep; plain AR first."""
    reverse, clamp, plain = (("nu", -0.7),), (("clamp", True),), ()
    schedules = {
        "coolsd": ("coolsd", CHAIN),
        "clamped": ("coolsd", CHAIN + clamp),
        "block": ("coolsd-block", clamp),
        "reversed": ("coolsd", CHAIN + reverse),
        "reversed clamped": ("coolsd", CHAIN + reverse + clamp),
    }
    points = [Setting("ar", "ar", fixed=plain), Setting("lossless", "eagle1"), Setting("lossless block", "block", fixed=plain)]
    points += [Setting("lossless tree", "eagle1", fixed=(("tree", "mc_sim_7b_63"),))]
    points += [Setting(name, method, (("delta", d),), fixed) for name, (method, fixed) in schedules.items() for d in size.deltas]
    points += [Setting("uniform", "uniform", (("delta", delta),)) for delta in size.uniforms]
    for method in ("lantern++", "lantern++g"):
        points += [Setting(method, method, (("neighbours", k), ("cap", cap))) for k in size.nearest for cap in size.caps]
    return points


# ---- measuring


def drafted_rows(pair: Pair, prompt: str, common: dict[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows p, q (V,) of the first draft position, from rounds spread over one picture."""
    codes = len(pair.codebook)
    chain_settings = common | {"tree": "chain", "max_tokens": ROW_TOKENS, "inspect": codes}
    heads = [event.top[0] for event in stream(pair, prompt, "eagle1", **chain_settings) if event.accept_prob]
    for index in range(ROWS_A_PROMPT):
        head = heads[(2 * index + 1) * len(heads) // (2 * ROWS_A_PROMPT)]
        rows = torch.zeros(2, codes, dtype=torch.float64)
        for row, name in zip(rows, "pq", strict=True):
            index, mass = zip(*head[name], strict=True)
            row[torch.tensor(index)] = torch.tensor(mass, dtype=torch.float64)
        yield tuple(rows / rows.sum(-1, keepdim=True))


def variation(p: Tensor, q: Tensor, rule: Rule) -> float:
    """Exact total variation of one step."""
    return float(theory.total_variation(theory.step_law(p, q, rule, 0), p))


@dataclass(frozen=True)
class OneStep:
    """Exact one-step figures on the rows of one prompt."""

    residuals: list[list[float]]  # for each k: mean total variation of LANTERN++ with G* and with its own residual, over rows and λ
    distances: list[float]  # TV(p, q) of each row


def one_step(pair: Pair, size: Size, prompts: Sequence[str], common: dict[str, Any], path: Path) -> list[OneStep]:
    """The figures of each prompt. Kept in `path`, a prompt a line."""
    key = json.dumps({"k": size.nearest, "caps": size.caps, **common}, allow_nan=False)
    stored = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    # A line without distances is from before they were measured.
    by_prompt = {e["prompt"]: OneStep(e["found"], e["distances"]) for e in stored if e["key"] == key and "distances" in e}
    missing = [prompt for prompt in prompts if prompt not in by_prompt]
    if not missing:
        return [by_prompt[prompt] for prompt in prompts]
    table = neighbours(pair.codebook).cpu()
    rules = [[[Lantern(table, min(k, table.shape[1]), cap, best) for cap in size.caps] for best in (True, False)] for k in size.nearest]
    with progress(len(missing), "prompts for the residuals") as bar:
        for prompt in missing:
            rows = list(drafted_rows(pair, prompt, common))
            residuals = [[fmean(variation(p, q, rule) for p, q in rows for rule in over_caps) for over_caps in both] for both in rules]
            by_prompt[prompt] = OneStep(residuals, [float(theory.total_variation(p, q)) for p, q in rows])
            with path.open("a") as handle:
                line = {"key": key, "prompt": prompt, "found": residuals, "distances": by_prompt[prompt].distances}
                print(json.dumps(line, allow_nan=False), file=handle)
            bar.update()
    return [by_prompt[prompt] for prompt in prompts]


def code_features(pair: Pair, samples: Sequence[Sample]) -> Tensor:
    """Mean and spread of the code vectors in each band of the picture, (N, 2 · BANDS · channels): they need no network."""
    bands = pair.codebook.float().cpu()[torch.tensor([s.tokens for s in samples])].tensor_split(BANDS, 1)
    return torch.cat([f for band in bands for f in (band.mean(1), band.std(1, unbiased=False))], 1)


def evaluate(study: Study, size: Size, common: dict[str, Any], quick: bool = False) -> dict[str, Any]:
    """Sweep, compare and judge; resumable.

    Args:
        study: without photos KID is left out. common: settings of all points.

    Returns:
        JSON values: points, residuals, verdicts, and what they were measured with.
    """
    swept = settings(size)
    prompts = [case.prompt for case in FIXED[: size.prompts]]
    lanes = [(s.label, s.method, (*s.fixed, *s.swept)) for s in swept]
    samples, pair = study.collect(jobs(lanes, prompts * size.seeds, common)), study.pair
    by_prompt = resampled(len(prompts))
    weights = by_prompt.repeat(1, size.seeds)
    points = {s.label: point(samples[s.label], samples["ar"], weights) for s in swept}
    measures = ["bias", "log_prob_difference"]
    photos = 0
    if study.photos:
        against = study.measure(chosen(study.photos, "valid"), reconstruct=False).features
        for label, at_point in points.items():
            at_point["kid"] = kid_replicates(study.features(study.pixels(samples[label])), against, weights)
        measures.append("kid")
        photos = len(against)
    steps = one_step(pair, size, prompts, common, study.own / "residuals.jsonl")
    spent = torch.tensor([step.residuals for step in steps], dtype=torch.float64)  # (prompts, k, 2)
    stepwise = {k: tuple(by_prompt @ spent[:, i, which] / by_prompt.sum(1) for which in (0, 1)) for i, k in enumerate(size.nearest)}
    pooled = {label: code_features(pair, pictures) for label, pictures in samples.items()}
    verdicts = judge(swept, points, stepwise, pooled, measures, len(prompts))
    premise = Premise.of([step.distances for step in steps], by_prompt, PAPER_TV_LIMIT)
    return {
        "schema": SCHEMA,
        "date": time.strftime("%Y-%m-%d"),
        "target": pair.name,
        "weights": study.weights,
        "environment": dict(pair.environment),
        "settings": common,
        "size": asdict(size) | {"quick": quick},
        "pictures": sum(map(len, samples.values())),
        "photos": photos,
        "interval": f"{INTERVAL}, {widening(len(prompts)):.2f} times as wide for being only {len(prompts)} (Student's t, n / (n - 1))",
        "points": [_point(s, points[s.label], len(prompts)) for s in swept],
        "residuals": [
            {"k": k} | {name: asdict(Effect.of(figures, len(prompts))) for name, figures in zip(("optimal", "own"), both, strict=True)}
            for k, both in stepwise.items()
        ],
        "premise": premise.to_dict(),
        "verdicts": [verdict.to_dict() for verdict in verdicts],
    }


def judge(
    swept: Sequence[Setting],
    points: dict[str, Point],
    stepwise: dict[int, tuple[Tensor, Tensor]],
    pooled: dict[str, Tensor],
    measures: Sequence[str],
    prompts: int,
) -> list[Verdict]:
    """All verdicts. LANTERN's curves go over λ at the smallest k, the paper's."""
    lossless = [s.label for s in swept if s.method != "ar" and METHODS[s.method].lossless]
    control = next(s.label for s in reversed(swept) if s.family == "coolsd")
    same_law = {label: exchange_test(pooled[label], pooled["ar"]) for label in (*lossless, control)}
    few = min(stepwise)
    curves = {
        family: [points[s.label] for s in swept if s.family == family and dict(s.swept).get("neighbours", few) == few]
        for family in FAMILIES
    }
    for family, start in STARTS.items():
        curves[family].append(points[start])
    nearest = {(s.method, *dict(s.swept).values()): points[s.label] for s in swept if "cap" in dict(s.swept)}
    verdicts = [
        *lossless_verdicts(points, same_law, lossless, control, prompts),
        *curve_verdicts(curves, measures, prompts),
        *residual_verdicts(stepwise, nearest, measures, prompts),
    ]
    return [replace(verdict, prompts=prompts) for verdict in verdicts]


def _point(setting: Setting, at_point: Point, prompts: int) -> dict[str, Any]:
    figures = {name: asdict(Effect.of(values, prompts)) for name, values in at_point.items()}
    return {"family": setting.family, "label": setting.label, "method": setting.method, "swept": dict(setting.swept)} | figures
