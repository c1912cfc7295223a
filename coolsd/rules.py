"""Acceptance rules: how much of the draft row's mass a rule keeps, and what it draws when it rejects.

A new rule is one class with `kept_mass`; the acceptance probability f = K/q, the residual G* and the cost follow from it. Knows
nothing of rounds, models or random numbers. p is the target row, q the draft row, K = q f the kept mass.

Rows broadcast: `p` and `q` are (..., V) and `position` an int, or an int64 tensor (...) with one draft position a row.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

FIRST_COLUMNS = 4  # neighbours looked at first; each further look takes twice as many
CELLS = 2**24  # most of them, over all tokens, that are held at once


def host_can_branch(device: torch.device) -> bool:
    """Whether the host may read values of this device to save work. On a GPU that would wait for all queued kernels."""
    return device.type == "cpu"


def norm_residual(excess: Tensor, p: Tensor) -> Tensor:
    """Norm([excess]_+) over the last axis; p where nothing is left, which is rounding: a rejection leaves mass behind."""
    excess = excess.clamp(min=0)
    mass = excess.sum(-1, keepdim=True)
    return torch.where(mass > 0, excess / mass, p)


class Rule(ABC):
    """An acceptance rule, given by its kept mass."""

    residual_depends_on_token = False  # True: `residual` looks at the rejected token
    positions: int | None = None  # draft positions it knows; None: any

    @abstractmethod
    def kept_mass(self, p: Tensor, q: Tensor, position: int | Tensor) -> Tensor:
        """K = q f over the whole vocabulary, (..., V), with 0 <= K <= q."""

    def kept_at(self, p: Tensor, q: Tensor, position: Tensor, token: Tensor) -> Tensor:
        """K of one token a row: p, q (L, V), position, token (L,) -> (L,). Rules that can avoid the whole vocabulary override it."""
        return self.kept_mass(p, q, position).gather(-1, token[..., None]).squeeze(-1)

    def accept_prob(self, p: Tensor, q: Tensor, position: Tensor, token: Tensor) -> Tensor:
        """f = K/q of one token a row, (L,) in [0, 1]; 0 for a token that q cannot have drawn."""
        q_token = q.gather(-1, token[..., None]).squeeze(-1)
        return torch.where(q_token > 0, self.kept_at(p, q, position, token) / q_token, 0.0)

    def residual(self, p: Tensor, q: Tensor, position: int | Tensor, token: int | Tensor) -> Tensor:
        """Law of the recovered token after `token` was rejected: G* = Norm([p - K]_+), (..., V) (COOL-SD, arXiv 2601.09212).

        G* is a minimiser of the one-step total variation for any kept mass (derived: the error is at least Σ [K - p]_+, and is
        that under G*).
        """
        return norm_residual(p - self.kept_mass(p, q, position), p)

    def cost(self, p: Tensor, q: Tensor, position: int | Tensor) -> Tensor:
        """Total variation spent by one step with the residual G*: Σ_x [K - p]_+, (...)."""
        return (self.kept_mass(p, q, position) - p).clamp(min=0).sum(-1)


class Pointwise(Rule):
    """A rule whose kept mass of a token depends on that token's p and q alone."""

    def kept_at(self, p: Tensor, q: Tensor, position: Tensor, token: Tensor) -> Tensor:
        index = token[..., None]
        return self.kept_mass(p.gather(-1, index), q.gather(-1, index), position).squeeze(-1)


class Relaxed(Pointwise):
    """f = min(1, ω_i p/q), so K = min(q, ω_i p) (COOL-SD, arXiv 2601.09212); ω = 1 is vanilla speculative decoding.

    A token of target probability 0 is never kept, and the emitted law never exceeds max(1, ω) p. For ω >= 1 the residual is the
    vanilla one, for ω <= 1 the step is exact (derived).

    Args:
        schedule: (length,) ω per draft position.
    """

    def __init__(self, schedule: Tensor):
        self.schedule = schedule
        self.positions = len(schedule)

    def kept_mass(self, p: Tensor, q: Tensor, position: int | Tensor) -> Tensor:
        return torch.minimum(q, self.schedule.to(p.device)[position].unsqueeze(-1) * p)


class RelaxedGuesses(Relaxed):
    """`Relaxed` where a token that was not drawn, whose row is one-hot, is verified losslessly: the pads of Jacobi drafting (derived)."""

    def kept_mass(self, p: Tensor, q: Tensor, position: int | Tensor) -> Tensor:
        return torch.where(q >= 1, torch.minimum(q, p), super().kept_mass(p, q, position))


class Lossless(Pointwise):
    """K = min(q, p): vanilla speculative sampling (arXiv 2211.17192), at any position."""

    def kept_mass(self, p: Tensor, q: Tensor, position: int | Tensor) -> Tensor:
        return torch.minimum(q, p)


class Diverse(Pointwise):
    """K = min(q, w p + (1 - w) q): the emitted law is w p + (1 - w) q (DIVERSED, arXiv 2604.07622; transformers' ensemble weight).

    That law is the purpose, so unlike the other rules this one emits tokens outside the target's support. It costs (1 - w) TV(p, q).

    Args:
        w: weight of the target in [0, 1]; 1 is lossless, 0 copies the drafter.
    """

    def __init__(self, w: float):
        self.w = w

    def kept_mass(self, p: Tensor, q: Tensor, position: int | Tensor) -> Tensor:
        return q - self.w * (q - p).clamp(min=0)


class Lantern(Rule):
    """A drafted code borrows the target mass of its nearest codes: K = min(q, p + c_m) (LANTERN, arXiv 2410.03355, and LANTERN++).

    c_m is the p of the m nearest codes, m the largest number up to k with c_m <= budget. With an absolute budget a code of target
    probability 0 can be accepted on its neighbours' account, as published.

    Residual, `optimal=False`: what LANTERN's released code does for LlamaGen: if anything was borrowed, q is set to 0 on the k + 1
    nearest codes of the rejected token (one more than can be borrowed), then Norm([p - q]_+). Where q is one-hot, as in the dynamic
    tree, whose tokens are ranked and not drawn, p is set to 0 there instead. `optimal=True`: G*. As f is never below the lossless one,
    G* is then the vanilla residual Norm([p - q]_+).

    Args:
        neighbours: (V, >= k) codes by distance, nearest first, self excluded; of any integer type, on the device of the rows.
        k: most neighbours that can be borrowed from.
        budget: up to 1 an absolute cap on c_m (a total variation); above 1 the factor λ of LANTERN++: c_m <= (λ - 1) p(x).
        optimal: draw from G*.
        ranked: every q row is one-hot, as in the dynamic tree: nothing but its token can be kept.
    """

    def __init__(self, neighbours: Tensor, k: int, budget: float, optimal: bool = False, ranked: bool = False):
        if neighbours.ndim != 2 or not 1 <= k <= neighbours.shape[1]:
            raise ValueError(f"neighbours {tuple(neighbours.shape)} must be (V, columns) with at least k = {k} >= 1 columns")
        self.nearest = neighbours[:, : k + 1].long()
        self.k = k
        self.budget = budget
        self.ranked = ranked
        self.residual_depends_on_token = not optimal

    def _limit(self, p: Tensor, row: Tensor, token: Tensor) -> Tensor:
        """Most mass that a token may borrow, (N,)."""
        mass = p[row, token]
        return torch.full_like(mass, self.budget) if self.budget <= 1 else (self.budget - 1) * mass

    def _kept(self, p: Tensor, q: Tensor, row: Tensor, token: Tensor) -> Tensor:
        """min(q, p + c_m) of tokens (N,) in rows (N,) of p and q (R, V)."""
        limit, need = self._limit(p, row, token), q[row, token] - p[row, token]
        borrowed = torch.zeros_like(need)
        free = host_can_branch(p.device)
        active = ((need > 0) & (limit > 0)).nonzero().squeeze(-1) if free else torch.arange(len(need), device=p.device)
        mass, start, width = borrowed[active], 0, FIRST_COLUMNS
        while start < self.k and len(active):
            stop = min(start + min(width, max(1, CELLS // len(active))), self.k)
            nearest = self.nearest[token[active], start:stop]
            upto = mass[:, None] + p[row[active, None], nearest].cumsum(-1)
            fits = upto <= limit[active, None]
            borrowed[active] = torch.maximum(borrowed[active], upto.masked_fill(~fits, 0.0).amax(-1))
            mass, start, width = upto[:, -1], stop, 2 * width
            if free:  # most tokens meet their budget, or have all that q can use, after a few neighbours
                more = fits[:, -1] & (borrowed[active] < need[active])
                active, mass = active[more], mass[more]
        return torch.minimum(q[row, token], p[row, token] + borrowed)

    def kept_at(self, p: Tensor, q: Tensor, position: Tensor, token: Tensor) -> Tensor:
        return self._kept(p, q, torch.arange(len(token), device=token.device), token)

    def kept_mass(self, p: Tensor, q: Tensor, position: int | Tensor) -> Tensor:
        p, q = torch.broadcast_tensors(p, q)
        flat_p, flat_q = (t.reshape(-1, t.shape[-1]) for t in (p, q))
        if self.ranked:
            token = flat_q.argmax(-1)
            return torch.zeros_like(flat_q).scatter(-1, token[:, None], self.kept_at(flat_p, flat_q, token, token)[:, None]).view_as(q)
        if not host_can_branch(p.device):
            every = torch.arange(flat_p.numel(), device=p.device)
            return self._kept(flat_p, flat_q, every // p.shape[-1], every % p.shape[-1]).view_as(q)
        kept = torch.minimum(flat_p, flat_q)
        row, token = (flat_q > flat_p).nonzero(as_tuple=True)
        kept[row, token] = self._kept(flat_p, flat_q, row, token)
        return kept.view_as(q)

    def residual(self, p: Tensor, q: Tensor, position: int | Tensor, token: int | Tensor) -> Tensor:
        if self.residual_depends_on_token:
            token = torch.as_tensor(token, device=p.device)
            flat_p, flat_token = p.reshape(-1, p.shape[-1]), token.reshape(-1)
            row = torch.arange(len(flat_token), device=p.device)
            borrowed = flat_p[row, self.nearest[flat_token, 0]] <= self._limit(flat_p, row, flat_token)
            near = torch.zeros_like(p).scatter(-1, self.nearest[token], 1.0).bool() & borrowed.view(token.shape)[..., None]
            ranked = q.amax(-1, keepdim=True) >= 1
            return norm_residual(p.masked_fill(near & ranked, 0.0) - q.masked_fill(near & ~ranked, 0.0), p)
        return norm_residual(p - q, p)
