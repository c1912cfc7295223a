"""Real runs beside what was predicted for them from lossless recordings: same prompts, other seeds.

They differ in what a prediction leaves out: a relaxed method goes on behind its own tokens.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ... import stream
from ...data.store import progress
from ...protocols import Pair
from ..batching import map_of
from ..samples import LANES
from .estimator import Estimate, Totals
from .schedules import BY_NAME, Evaluator

OTHER_SEEDS = 1000  # added to a recording's seed
MEASURED = ("calls", "tokens", "bias", "surprise", "outside")  # of a run, summed


@dataclass(frozen=True)
class Check:
    """A setting that is both predicted and run. strength: of the family, whose schedule `method` with `settings` follows."""

    family: str
    strength: float
    method: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """Its name in the report."""
        return f"{self.family} at {self.strength:g}"


CHECKS = (
    Check("uniform", 1.0, "eagle1"),
    Check("uniform", 1.6, "uniform", (("delta", 1.6),)),
    Check("paper", 1.1, "coolsd", (("delta", 1.1),)),
    Check("paper", 2.0, "coolsd", (("delta", 2.0),)),
    Check("clamped", 2.0, "coolsd", (("delta", 2.0), ("clamp", True))),
    Check("clamped .3", 1.5, "coolsd", (("delta", 1.5), ("nu", 0.3), ("clamp", True))),
    Check("reversed clamped", 2.0, "coolsd", (("delta", 2.0), ("nu", -0.7), ("clamp", True))),
    Check("block clamped", 2.0, "coolsd-block", (("delta", 2.0), ("clamp", True))),
)


def _run(pair: Pair, length: int, job: tuple[Check, str, int], common: dict[str, Any]) -> dict[str, float]:
    """Rounds that drafted `length` tokens: how many, their tokens and bias, and Σ of log p + H over the tokens the target can emit."""
    check, prompt, seed = job
    shape = {} if check.family.startswith("block") else {"tree": "chain"}
    settings = common | shape | dict(check.settings)
    rounds = [r for r in stream(pair, prompt, check.method, seed=seed, draft_length=length, **settings) if r.drafted == length]
    pairs = [pair for r in rounds for pair in zip(r.log_p, r.entropy, strict=True)]
    surprise = [log_p + entropy for log_p, entropy in pairs if log_p is not None]
    spent = sum(sum(r.cost) for r in rounds)
    return {"calls": len(rounds), "tokens": len(pairs), "bias": spent, "surprise": sum(surprise), "outside": len(pairs) - len(surprise)}


def runs(
    pair: Callable[[], Pair], path: Path, jobs: Sequence[tuple[Check, str, int]], length: int, common: dict[str, Any]
) -> list[dict[str, float]]:
    """Figures of each (check, prompt, seed), in order: read from `path`, or run and appended there."""
    keys = [json.dumps([c.method, dict(c.settings), prompt, seed, length, common], allow_nan=False) for c, prompt, seed in jobs]
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    stored = map(json.loads, (line for line in lines if line.endswith("}")))
    by_key = {one["key"]: one for one in stored if "surprise" in one}  # earlier ones lack it
    missing = [i for i, key in enumerate(keys) if key not in by_key]
    if missing:
        loaded_pair = pair()
        with progress(len(missing), "real runs") as bar:
            for start in range(0, len(missing), LANES):
                part = missing[start : start + LANES]
                figures = list(map_of(loaded_pair)(lambda i: _run(loaded_pair, length, jobs[i], common), part))
                with path.open("a", encoding="utf-8") as handle:
                    for i, one in zip(part, figures, strict=True):
                        by_key[keys[i]] = one
                        print(json.dumps({"key": keys[i]} | one, allow_nan=False), file=handle)
                bar.update(len(part))
    return [by_key[key] for key in keys]


def measured(figures: Sequence[dict[str, float]], prompts: Sequence[str]) -> dict[str, Estimate]:
    """Accept length, bias and drift (mean of log p + H) a token of one setting; prompts in the order of the recordings."""
    names = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
    index = torch.tensor([names[prompt] for prompt in prompts])
    grouped = partial(torch.zeros(len(names), dtype=torch.float64).index_add, 0, index)
    sums = {name: grouped(torch.tensor([one[name] for one in figures], dtype=torch.float64)) for name in MEASURED}
    drift = Estimate.ratio(sums.pop("surprise"), sums["tokens"] - sums.pop("outside"))
    nothing = torch.zeros(len(names), dtype=torch.float64)
    return Totals(**sums, kl=nothing, log_p=nothing).estimates | {"drift": drift}


def compare(
    on: Evaluator, pair: Callable[[], Pair], path: Path, jobs: Sequence[tuple[str, int]], common: dict[str, Any]
) -> list[dict[str, Any]]:
    """Every check: predicted, measured, and the difference with its error. JSON values.

    Args:
        jobs: (prompt, seed) of the first recordings: predictions are for the same prompts.
    """
    every = [(check, prompt, seed + OTHER_SEEDS) for check in CHECKS for prompt, seed in jobs]
    figures = runs(pair, path, every, on.rounds.length, common)
    prompts = len({prompt for prompt, _ in jobs})
    out = []
    for n, check in enumerate(CHECKS):
        part = figures[n * len(jobs) : (n + 1) * len(jobs)]
        real = measured(part, [prompt for prompt, _ in jobs])
        predicted = on.totals(BY_NAME[check.family], check.strength).first(prompts).estimates
        row: dict[str, Any] = {"label": check.label, "method": check.method, "settings": dict(check.settings)}
        row["drift"] = real["drift"].to_dict() | {"decides": real["drift"].decides(), "tokens": sum(int(one["tokens"]) for one in part)}
        row["drift"]["outside"] = sum(int(one["outside"]) for one in part)
        for name in ("accept_length", "bias"):
            apart = real[name] - predicted[name]
            row[name] = {"predicted": predicted[name].to_dict(), "measured": real[name].to_dict(), "difference": apart.to_dict()}
        out.append(row)
    return out


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """In words: what was predicted, what was measured, and how many standard errors lie between; and the drift of the run."""
    out = ["real runs against the prediction: accept length and bias, predicted, measured (standard errors apart); log p + H"]
    for row in rows:
        cells = []
        for name in ("accept_length", "bias"):
            gap = row[name]["difference"]
            apart = gap["value"] / gap["error"] if gap["error"] else 0.0
            cells.append(f"{row[name]['predicted']['value']:.4f} {row[name]['measured']['value']:.4f} ({apart:+.1f})")
        drift = f"{row['drift']['value']:+.4f} ± {row['drift']['error']:.4f}"
        out.append(f"  {row['label']:<24}" + "".join(f"{cell:>26}" for cell in [*cells, drift]))
    return out
