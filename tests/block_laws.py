"""."""

import torch
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
