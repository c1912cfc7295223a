"""Fitted schedules: on recorded rounds, the ω_1 … ω_L that spend least at an accept length, and how far the closed forms are from them.

The search works on a table of costs; what is reported was evaluated on the rows. It starts from the best closed form, so that on the rounds
it is fitted to it is never behind one; the figures that count are those on other prompts.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ...schedules import between
from .estimator import MEASURES, CostTable, Rounds, crossing, through
from .recording import Recording
from .schedules import AXES, FAMILIES, STRONGEST, WEAKEST, Evaluator, Family, matched, table

SHARES = (0.04, 0.1, 0.17, 0.25, 0.34, 0.43, 0.53, 0.63, 0.73, 0.83)  # of the way from lossless tokens a call to the most
LARGEST = 20.0  # ω
STEPS = 60
LENGTHS = range(1, 11)


# ---- one fit


def _slopes(costs: CostTable, log_omega: Tensor, measure: int) -> tuple[Tensor, Tensor, float]:
    """Gradients of a measure and of tokens a call over log ω, and the measure."""
    at = log_omega.clone().requires_grad_()
    figures = costs.figures(at.exp())
    spent, length = (torch.autograd.grad(figures[i], at, retain_graph=True)[0] for i in (measure, 0))
    return spent, length, float(figures[measure].detach())


def restore(costs: CostTable, log_omega: Tensor, along: Tensor, accept_length: float) -> Tensor:
    """log ω moved along a direction until the accept length is met, within the limits."""

    def at(by: float) -> Tensor:
        return (log_omega + by * along).clamp(0, torch.tensor(LARGEST).log())

    def length(by: float) -> float:
        return 1 + float(through(costs.ratio, at(by).exp())[1].sum(1).mean())

    low, high = -8.0, 8.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if length(middle) < accept_length else (low, middle)
    return at(high)


def descend(costs: CostTable, omega: Tensor, accept_length: float, measure: int) -> Tensor:
    """Projected gradient from a schedule with this accept length: downhill in the measure, tokens a call held, 1 <= ω <= LARGEST."""
    here = omega.clamp(1, LARGEST).log()
    step = 0.3
    spent, length, value = _slopes(costs, here, measure)
    for _ in range(STEPS):
        free = (here > 0) | (spent < 0)  # at ω = 1 there is only a way up
        downhill = torch.where(free, -spent + (spent @ length) / (length @ length) * length, 0.0)
        size = downhill.abs().max()
        if size < 1e-9 or step < 1e-3:
            break
        trial = restore(costs, here + step * downhill / size, length / length.abs().max(), accept_length)
        figures = _slopes(costs, trial, measure)
        if figures[2] < value:
            here, step = trial, 1.5 * step
            spent, length, value = figures
        else:
            step /= 3
    return here.exp()


def starts(costs: CostTable, accept_length: float) -> dict[str, Tensor]:
    """The closed forms of the token rule at this accept length."""
    size = costs.ratio.shape[1]

    def length(family: Family, strength: float) -> float:
        return 1 + float(through(costs.ratio, family.make(strength, size))[1].sum(1).mean())

    out = {}
    for family in FAMILIES:
        if not family.block:
            strength = crossing(lambda s, f=family: length(f, s), accept_length, WEAKEST, STRONGEST)
            if strength is not None:
                out[family.name] = family.make(strength, size)
    return out


def fit(costs: CostTable, accept_length: float, measure: str = "bias") -> Tensor:
    """The ω (L,) that spend least of a measure a token at an accept length."""
    index = MEASURES.index(measure)
    forms = [omega for omega in starts(costs, accept_length).values() if bool((omega >= 1).all())]
    ranked = sorted(forms, key=lambda omega: float(costs.figures(omega)[index]))
    fitted = [descend(costs, omega, accept_length, index) for omega in ranked[:3]]
    return min([*fitted, ranked[0]], key=lambda omega: float(costs.figures(omega)[index]))


# ---- a frontier, and what it is worth on other prompts


@dataclass(frozen=True)
class Point:
    """A fitted schedule with its figures where it was fitted."""

    omega: list[float]
    accept_length: float
    bias: float
    kl: float


def frontier(costs: CostTable, measure: str = "bias") -> list[Point]:
    """Fitted schedules from lossless to loose. What the target cannot emit stays rejected, so that L + 1 tokens a call are not reached."""
    size = costs.ratio.shape[1]
    lossless, most = (float(costs.figures(torch.full((size,), omega))[0]) for omega in (1.0, LARGEST))
    out = [Point([1.0] * size, lossless, 0.0, 0.0)]
    for share in SHARES:
        omega = fit(costs, lossless + share * (most - lossless), measure)
        figures = costs.figures(omega)
        out.append(Point([round(x, 4) for x in omega.tolist()], *(float(x) for x in figures[:3])))
    return out


def as_family(name: str, points: Sequence[Point]) -> Family:
    """Schedules along a frontier, their strength being the accept length where they were fitted."""
    pairs = [(p.accept_length, p.omega) for p in points]
    return Family(name, name, False, lambda strength, length: between(pairs, strength)[:length], tuple(at for at, _ in pairs[1:]))


def halves(recorded: Sequence[Recording]) -> tuple[list[Recording], list[Recording]]:
    """Recordings of every other prompt, to fit on and to check on."""
    prompts = list(dict.fromkeys(r.prompt for r in recorded))
    first = set(prompts[::2])
    return [r for r in recorded if r.prompt in first], [r for r in recorded if r.prompt not in first]


def budgets(on: Evaluator, points: Sequence[Point]) -> list[dict[str, Any]]:
    """On other prompts: what a bias budget really costs, and how far ahead of the closed forms its schedule is at that bias."""
    out = []
    for budget in AXES["bias"]:
        omega = between([(p.bias, p.omega) for p in points], budget)
        own = on.totals(Family("budget", "", False, lambda _, length, omega=omega: omega[:length], ()), 1.0).estimates
        row = {"budget": budget, "omega": omega.tolist(), "ahead": {}} | {name: own[name].to_dict() for name in MEASURES}
        for family in FAMILIES:
            other = None if family.block else matched(on, family, "bias", own["bias"].value)
            if other is not None:
                gap = own["accept_length"] - other.estimates["accept_length"]
                row["ahead"][family.name] = gap.to_dict() | {"decides": gap.decides()}
        out.append(row)
    return out


def evaluate(recorded: Sequence[Recording], length: int, lengths: Sequence[int] = LENGTHS) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fit on half of the prompts and check on the others.

    Returns:
        Frontiers, tables and budgets on fresh prompts, for the report; and by draft length the frontier over bias, as
        `coolsd-fitted` reads it. JSON values.
    """
    mine, fresh = halves(recorded)
    longest = max(length, *lengths)
    costs, on = CostTable.of(Rounds.of(mine, longest)), Evaluator(Rounds.of(fresh, length))
    stored = {size: frontier(costs.shortened(size)) for size in lengths}
    fitted = {"bias": stored.get(length) or frontier(costs.shortened(length)), "kl": frontier(costs.shortened(length), "kl")}
    families = [family for family in FAMILIES if not family.block]
    families += [as_family(f"fitted by {measure}", points) for measure, points in fitted.items()]
    report = {
        "prompts": {"fitted on": len({r.prompt for r in mine}), "checked on": on.rounds.prompts},
        "frontiers": {measure: [asdict(point) for point in points] for measure, points in fitted.items()},
        "tables": [table(on, "accept_length", at, families, "fitted by bias") for at in AXES["accept_length"]],
        "budgets": budgets(on, fitted["bias"]),
    }
    return report, {str(size): [[round(p.bias, 5), p.omega] for p in points] for size, points in stored.items()}


def lines(report: dict[str, Any]) -> list[str]:
    """The budgets in words."""
    out = [f"fitted on {report['prompts']['fitted on']} prompts, on {report['prompts']['checked on']} others:"]
    for row in report["budgets"]:
        omega = " ".join(f"{x:.2f}" for x in row["omega"])
        best = min(row["ahead"], key=lambda name: row["ahead"][name]["value"], default=None)
        beside = f"; {row['ahead'][best]['value']:+.3f} ± {row['ahead'][best]['error']:.3f} tokens a call against {best}" if best else ""
        out.append(
            f"  budget {row['budget']:g}: bias {row['bias']['value']:.4f}, {row['accept_length']['value']:.3f} a call, ω {omega}{beside}"
        )
    return out
