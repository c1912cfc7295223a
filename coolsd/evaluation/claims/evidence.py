"""`eval schedules`: record lossless runs once, evaluate every schedule on the same rows, and hold real runs against it."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ...protocols import Pair
from ..batching import batched
from ..prompts import FIXED
from ..samples import LANES
from ..study import Study
from . import checks, fitted
from .estimator import Estimate, Rounds
from .recording import LENGTH, Recording, recordings
from .schedules import AXES, FAMILIES, Evaluator, by_position, curve, lines, pairs, table

CAVEAT = "Prefixes are those of lossless pictures: that a relaxed method goes on behind its own tokens is not in these figures."


@dataclass(frozen=True)
class Size:
    """How much is recorded and for which draft length it is read."""

    prompts: int = len(FIXED)
    seeds: int = 1
    recorded: int = LENGTH
    length: int = 5
    checked: int = 12  # prompts of the real runs held against the predictions
    fitted: bool = True


QUICK = Size(prompts=4, checked=0, fitted=False)


def martingale(recorded: Sequence[Recording]) -> Estimate:
    """Mean of log p(x) + H(p) a token, nats: 0 where the tokens were drawn from p."""
    names = {prompt: i for i, prompt in enumerate(dict.fromkeys(r.prompt for r in recorded))}
    total = torch.zeros(2, len(names), dtype=torch.float64)
    for one in recorded:
        total[0, names[one.prompt]] += one.surprise.sum()
        total[1, names[one.prompt]] += float((one.accepted + 1).sum())
    return Estimate.ratio(*total)


def evaluate(study: Study, size: Size, common: dict[str, Any]) -> dict[str, Any]:
    """All tables, as JSON values; resumable.

    Args:
        study: without photos. common: settings of all runs.
    """
    folder = study.own / "schedules"
    # No two pictures share their random numbers; those of fewer prompts or seeds are among those of more.
    jobs = [(case.prompt, turn * len(FIXED) + i) for turn in range(size.seeds) for i, case in enumerate(FIXED[: size.prompts])]

    def pair() -> Pair:
        return batched(study.pair, LANES)

    recorded = recordings(pair, folder, jobs, size.recorded, common)
    rounds = Rounds.of(recorded, size.length)
    on = Evaluator(rounds)
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "target": study.target,
        "weights": study.weights,
        "settings": common,
        "size": asdict(size),
        "rounds": sum(map(len, rounds.ratio)),
        "caveat": CAVEAT,
        "martingale": martingale(recorded).to_dict() | {"tokens": sum(int((r.accepted + 1).sum()) for r in recorded)},
        "by_position": by_position(Rounds.of(recorded, size.recorded)),
        "curves": [curve(on, family) for family in FAMILIES],
        "pairs": pairs(on),
        "tables": [table(on, axis, at) for axis, values in AXES.items() for at in values],
    }
    if size.fitted:
        report["fitted"], report["frontiers"] = fitted.evaluate(recorded, size.length, range(1, size.recorded + 1))
    if size.checked:
        report["checks"] = checks.compare(on, pair, folder / "runs.jsonl", jobs[: size.checked], common)
    return report


def words(report: dict[str, Any]) -> list[str]:
    """What a terminal shows."""
    drift, positions = report["martingale"], report["by_position"]
    out = [
        f"{report['rounds']} rounds of Eagle-1 over {report['size']['prompts']} prompts, read at draft length {report['size']['length']}",
        f"mean of log p + H over its tokens {drift['value']:+.4f} ± {drift['error']:.4f} (lossless: 0)",
        "acceptance by position, once reached: " + " ".join(f"{share:.3f}" for share in positions["accepted"]),
        *lines(report["tables"]),
    ]
    if "fitted" in report:
        out += [*lines(report["fitted"]["tables"]), *fitted.lines(report["fitted"])]
    if "checks" in report:
        out += checks.lines(report["checks"])
    return [*out, report["caveat"]]
