"""Exact laws of block verification: by its levels, and walked in plain Python. Shared by tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from tables import completing
from torch import Tensor

from coolsd.theory import target_law
from coolsd.verification import block_kept


def _block_levels(p: Tensor, q: Tensor, schedule: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For i = 0..L-1 over all drafted prefixes x_1..i: their q mass (V**i,), weight r_i (V**i,) and kept mass K_{i+1} (V**i, V)."""
    drafted, weight = q.new_ones(1), q.new_ones(1)
    levels = []
    for i in range(len(q)):
        rows = (len(weight), q.shape[1])
        kept = block_kept(p[i].expand(rows), q[i].expand(rows), weight, schedule[i].double())
        levels.append((drafted, weight, kept))
        drafted = (drafted[:, None] * q[i]).flatten()
        weight = torch.where(q[i] > 0, kept / q[i], 0.0).flatten()
    return levels


def block_expected_accepted(p: Tensor, q: Tensor, schedule: Tensor) -> Tensor:
    """E[N] of block verification by enumeration of the drafts, () float64. p, q (L, V), schedule (L,)."""
    return sum(drafted @ kept.sum(-1) for drafted, _, kept in _block_levels(p.double(), q.double(), schedule))


def block_tv_bound(p: Tensor, q: Tensor, schedule: Tensor) -> Tensor:
    """B of block verification, () float64: Σ_i E_q[ Σ_x [K_i - r_{i-1} p_i]_+ ] (derived). p, q (L, V), schedule (L,)."""
    levels = _block_levels(p.double(), q.double(), schedule)
    return sum(
        drafted @ (kept - weight[:, None] * row).clamp(min=0).sum(-1)
        for (drafted, weight, kept), row in zip(levels, p.double(), strict=True)
    )


def block_round_law(p: Tensor, q: Tensor, schedule: Tensor) -> Tensor:
    """Joint law of the first L tokens under block verification, completed by the target: shape (V,) * L, float64."""
    p, q = p.double(), q.double()
    law = p.new_zeros((p.shape[1],) * len(q))
    levels = _block_levels(p, q, schedule)
    for i, (drafted, weight, kept) in enumerate(levels):
        # The block ends after x_1..i with mass r_i less what goes on; then comes the residual.
        excess = (weight[:, None] * p[i] - kept).clamp(min=0)
        mass = excess.sum(-1, keepdim=True)
        residual = torch.where(mass > 0, excess / mass, p[i])
        stopped = drafted * (weight - kept.sum(-1)).clamp(min=0)
        ending = (stopped[:, None] * residual).view((p.shape[1],) * (i + 1))
        law = law + torch.tensordot(ending[..., None], target_law(p[i + 1 :])[None], 1)
    drafted, _, kept = levels[-1]
    return law + (drafted[:, None] * kept).view_as(law)


def _kept(p: Tensor, q: Tensor, weight: float, omega: float) -> Tensor:
    """min(q, ω r p), with ω lowered by bisection where the sum would exceed r."""
    if float(torch.minimum(q, omega * weight * p).sum()) > weight and omega > 1:
        low, high = 1.0, omega
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (low, middle) if float(torch.minimum(q, middle * weight * p).sum()) > weight else (middle, high)
        omega = low
    return torch.minimum(q, omega * weight * p)


@dataclass(frozen=True)
class Steps:
    """One drafted block of L tokens, by the algorithm."""

    weights: list[float]  # r_0 … r_L
    kept: list[Tensor]  # K_1 … K_L, (V,)
    stops: list[float]  # h_1 … h_L: the block ends after i tokens with h_i where it does not end later
    excess: list[Tensor]  # (V,) what is left to draw from after 0 … L - 1 tokens, not normalised; the target row where nothing is


def block_steps(p: Sequence[Tensor], q: Sequence[Tensor], draft: Sequence[int], schedule: Sequence[float]) -> Steps:
    """The steps of block verification in plain Python, from the rows p and q (V,) at each place of the draft."""
    weights, kept, excess = [1.0], [], []
    for p_row, q_row, x, omega in zip(p, q, draft, schedule, strict=False):
        kept.append(_kept(p_row, q_row, weights[-1], omega))
        rest = (weights[-1] * p_row - kept[-1]).clamp(min=0)
        excess.append(rest if float(rest.sum()) > 0 else p_row)
        weights.append(float(kept[-1][x] / q_row[x]))
    length = len(kept)
    stops = [(weights[i] - float(kept[i].sum())) / max(1e-300, 1 - float(kept[i].sum())) for i in range(1, length)] + [weights[-1]]
    assert all(-1e-9 <= h <= 1 + 1e-9 for h in stops)
    return Steps(weights, kept, stops, excess)


def block_by_algorithm(p_row, q_row, schedule: list[float]) -> tuple[dict[tuple[int, ...], float], float, float]:
    """Joint law (completed by the target), E[N] and bias of block verification, walking all drafts through its steps."""
    length, vocabulary = len(schedule), len(p_row(()))
    law = dict.fromkeys(product(range(vocabulary), repeat=length), 0.0)
    expected = bias = 0.0
    completed = completing(law, p_row, length)
    for path in product(range(vocabulary), repeat=length):
        p, q = ([row(path[:i]) for i in range(length)] for row in (p_row, q_row))
        steps = block_steps(p, q, path, schedule)
        mass_q = float(torch.stack([q[i][x] for i, x in enumerate(path)]).prod())
        bias += mass_q * sum(float((steps.kept[i] - steps.weights[i] * p[i]).clamp(min=0).sum()) for i in range(length))
        larger = 1.0
        for i in range(length, -1, -1):
            here = larger * (steps.stops[i - 1] if i else 1.0)
            larger -= here
            expected += mass_q * here * i
            if i == length:
                law[path] += mass_q * here
                continue
            for x, mass in enumerate((steps.excess[i] / steps.excess[i].sum()).tolist()):
                completed((*path[:i], x), mass_q * here * mass)
    return law, expected, bias
