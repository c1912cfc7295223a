"""Verify one round of drafted tokens: how many are accepted, and the token that follows.

Knows nothing of models or caches. p is the target row, q the draft row, both after guidance, temperature, top-k and top-p. A drafted
token is accepted or rejected; the token that follows is recovered (drawn from the residual) or bonus (all accepted: drawn from p).
Each call takes one uniform number a drafted token and one more for the token that follows, whatever is accepted.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .rules import Diverse, Lantern, Lossless, Relaxed, Rule, norm_residual
from .sampling import draw, pick, uniforms

__all__ = ["Diverse", "Lantern", "Lossless", "Relaxed", "Rule", "Verdict", "verify", "verify_block"]

CAP_STEPS = 50  # Newton steps towards the capped ω; about five are taken


@dataclass(frozen=True)
class Verdict:
    """What verification decided. Per-position tensors are in draft order."""

    accepted: int  # drafted tokens accepted
    token: int  # the token that follows them
    kind: str  # recovered | bonus
    accept_prob: Tensor  # (examined,) acceptance probability of the drafted token
    cost: Tensor  # (examined,) total variation spent, Σ_x [K - p]_+; 0 when lossless
    relaxed: Tensor  # (accepted,) bool: with the same uniform number the lossless rule would have rejected
    drafted: tuple[int, ...] | None = None  # the drafted tokens, where they came with what the host waited for

    @property
    def path(self) -> tuple[int, ...]:
        """Accepted nodes of the draft: on a chain the first ones."""
        return tuple(range(self.accepted))


def _check(p: Tensor, q: Tensor, draft: Tensor) -> None:
    """Refuse rows that do not belong together: a draft token without its own q row would break exactness silently."""
    shapes = ", ".join(f"{name} {tuple(t.shape) if isinstance(t, Tensor) else t!r}" for name, t in (("p", p), ("q", q), ("draft", draft)))
    if not all(isinstance(t, Tensor) for t in (p, q, draft)):
        raise ValueError(f"p, q and draft must be tensors: {shapes}")
    if draft.ndim != 1 or p.ndim != 2 or p.shape[0] != len(draft) + 1 or q.shape != (len(draft), p.shape[1]):
        raise ValueError(f"need p (L+1, V), q (L, V) and draft (L,): {shapes}")


def verify(p: Tensor, q: Tensor, draft: Tensor, rule: Rule, generator: torch.Generator) -> Verdict:
    """Accept drafted tokens from the left until one is rejected (speculative sampling, arXiv 2211.17192, with the rule's f and G*).

    Args:
        p: (L+1, V) target rows: before each drafted token, and after the last.
        q: (L, V) the rows the drafted tokens were drawn from.
        draft: (L,) int64 tokens; empty gives a plain draw from p, kind "bonus".
        rule: the acceptance rule.
        generator: source of all random numbers.

    Raises:
        ValueError: a missing or wrongly shaped row.
    """
    _check(p, q, draft)
    length = len(draft)
    uniform = uniforms((length + 1,), generator, p.device)
    if length == 0:
        return Verdict(0, int(pick(p[0], uniform[0])), "bonus", p.new_zeros(0), p.new_zeros(0), p.new_zeros(0, dtype=torch.bool))
    position = torch.arange(length, device=p.device)
    rows, index = p[:length], draft[:, None]
    accept_prob = rule.accept_prob(rows, q, position, draft)
    lossless = (rows.gather(-1, index) / q.gather(-1, index)).squeeze(-1)
    accepted = (uniform[:length] < accept_prob).cumprod(0).sum()
    # The row after the last token accepted is looked up on the device: the host waits once, for everything it has to know, as one
    # tensor. Ids are whole numbers that float32 holds.
    last = accepted.clamp(max=length - 1)[None]
    residual = rule.residual(rows.index_select(0, last), q.index_select(0, last), last, draft.index_select(0, last))[0]
    token = pick(torch.where(accepted == length, p[length], residual), uniform[length])
    known = torch.cat([accept_prob, rule.cost(rows, q, position), uniform[:length] >= lossless, torch.stack([accepted, token]), draft])
    accept_prob, cost, relaxed, (count, token), tokens = (part.tolist() for part in known.cpu().split([length] * 3 + [2, length]))
    accepted, examined = int(count), min(int(count) + 1, length)
    return Verdict(
        accepted=accepted,
        token=int(token),
        kind="bonus" if accepted == length else "recovered",
        accept_prob=p.new_tensor(accept_prob[:examined], device="cpu"),
        cost=p.new_tensor(cost[:examined], device="cpu"),
        relaxed=torch.tensor(relaxed[:accepted]).bool(),
        drafted=tuple(map(int, tokens)),
    )


# ---- block verification


def block_kept(p: Tensor, q: Tensor, weight: Tensor, omega: Tensor) -> Tensor:
    """Kept mass of the block rule at one position: min(q, ω r p), with ω lowered where its sum would exceed r (derived).

    Args:
        p, q: (..., V) float64 rows, normalised.
        weight: (...) r, the probability that the block so far is accepted, given its tokens.
        omega: () or (...) relaxation; the lowered value is at least 1. Without the cap the stopping probabilities leave [0, 1].
    """
    scaled = weight[..., None] * p
    omega = omega.expand(weight.shape)
    kept = torch.minimum(q, omega[..., None] * scaled)
    if bool(((kept.sum(-1) <= weight) | (omega <= 1)).all()):
        return kept
    factor = omega.clamp(max=1.0)
    # The sum is concave and piecewise linear in ω, so Newton's steps from the left never overshoot and end on the root.
    for _ in range(CAP_STEPS):
        open_ = q > factor[..., None] * scaled
        gap = weight - torch.where(open_, factor[..., None] * scaled, q).sum(-1)
        slope = (scaled * open_).sum(-1)
        step = torch.where((gap > 0) & (slope > 0), gap / slope, 0.0)
        raised = torch.minimum(factor + step, omega)
        if not bool((raised > factor).any()):
            break
        factor = raised
    return torch.minimum(q, factor[..., None] * scaled)


@dataclass(frozen=True)
class _Block:
    weight: Tensor  # (L,) r_i: probability that at least i tokens are accepted, given the tokens
    stop: Tensor  # (L,) h_i: probability that i is the number accepted, given that it is not larger
    kept: Tensor  # (L, V) kept mass of each position given the tokens before it
    cost: Tensor  # (L,) Σ_x [K_i - r_{i-1} p_i]_+


def _block(p: Tensor, q: Tensor, draft: Tensor, schedule: Tensor) -> _Block:
    weight = p.new_ones(())
    weights, kept, cost = [], [], []
    for i, token in enumerate(draft):
        kept.append(block_kept(p[i], q[i], weight, schedule[i]))
        cost.append((kept[i] - weight * p[i]).clamp(min=0).sum())
        weight = torch.where(q[i, token] > 0, kept[i][token] / q[i, token], 0.0)
        weights.append(weight)
    weight, kept = torch.stack(weights), torch.stack(kept)
    going_on = kept.sum(-1)[1:]
    rest = 1 - going_on
    stop = torch.where(rest > 0, (weight[:-1] - going_on) / rest, 1.0).clamp(0, 1)
    return _Block(weight, torch.cat((stop, weight[-1:])), kept, torch.stack(cost))


def _block_accepted(block: _Block, uniform: Tensor) -> int:
    """The largest i with u_i < h_i: every position is looked at, not only those before the first failure."""
    passed = (uniform < block.stop).nonzero()
    return int(passed[-1]) + 1 if len(passed) else 0


def verify_block(p: Tensor, q: Tensor, draft: Tensor, schedule: Tensor, generator: torch.Generator) -> Verdict:
    """Verify the drafted tokens jointly (block verification, arXiv 2403.10444), relaxed by ω per position (derived).

    With ω = 1 everywhere it is exact and accepts at least as much as `verify` on average. All positions are examined: `accept_prob` is
    the probability r_i that at least i tokens are accepted given the tokens, and `cost` averages to the bias of the round.

    Args:
        p, q, draft, generator: as for `verify`.
        schedule: (L,) ω per draft position.

    Raises:
        ValueError: a missing or wrongly shaped row.
    """
    _check(p, q, draft)
    length = len(draft)
    uniform = uniforms((length,), generator, p.device)
    if length == 0:
        return Verdict(0, int(draw(p[0], generator)), "bonus", p.new_zeros(0), p.new_zeros(0), p.new_zeros(0, dtype=torch.bool))
    # Differences of nearly equal masses decide where the block stops.
    p, q, schedule = p.double(), q.double(), schedule.to(p.device, torch.float64)
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    block = _block(p, q, draft, schedule)
    accepted = _block_accepted(block, uniform)
    lossless = accepted
    if accepted and bool((schedule > 1).any()):
        lossless = _block_accepted(_block(p, q, draft, torch.ones_like(schedule)), uniform)
    if accepted == length:
        law = p[length]
    else:
        weight = block.weight[accepted - 1] if accepted else 1.0
        law = norm_residual(weight * p[accepted] - block.kept[accepted], p[accepted])
    return Verdict(
        accepted=accepted,
        token=int(draw(law, generator)),
        kind="bonus" if accepted == length else "recovered",
        accept_prob=block.weight.float(),
        cost=block.cost.float(),
        relaxed=torch.arange(accepted, device=p.device) >= lossless,
    )
