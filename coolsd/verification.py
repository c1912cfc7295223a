"""Verify one round of drafted tokens: how many are accepted, and the token that follows.

Knows nothing of models or caches. p is the target row, q the draft row, both after guidance, temperature, top-k and top-p. A drafted
token is accepted or rejected; the token that follows is recovered (drawn from the residual) or bonus (all accepted: drawn from p).
Each call takes one uniform number a drafted token and one more for the token that follows, whatever is accepted.

A verification has two halves. The first (`chain_verdict`, `block_verdict`, `tree_verification.tree_verdict`) maps tensors to tensors whose
shapes depend on the draft's shape alone and reads no value, so that a GPU never waits. The second (`to_host`) makes one copy to the host,
the only synchronisation of a round. Where the host can branch, on a CPU, the first half may read values to save work.
"""

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from .rules import Diverse, Lantern, Lossless, Relaxed, RelaxedGuesses, Rule, host_can_branch, norm_residual
from .sampling import NotFinite, entropy, pick, uniforms

__all__ = ["Diverse", "Lantern", "Lossless", "Relaxed", "RelaxedGuesses", "Rule", "Verdict", "verify", "verify_block"]


@dataclass(frozen=True)
class Verdict:
    """What verification decided. Per-position tensors are in draft order, in a tree one entry a level; they are on the CPU."""

    path: tuple[int, ...]  # accepted nodes of the draft, from the root down; on a chain the first ones
    token: int  # the token that follows them
    kind: str  # recovered | bonus
    accept_prob: Tensor  # (examined,) acceptance probability of the drafted token; in a tree: of some sibling, given the siblings
    cost: Tensor  # (examined,) total variation spent, Σ_x [K - p]_+; 0 when lossless
    relaxed: Tensor  # (accepted,) bool: with the same uniform number the lossless rule would have rejected
    drafted: tuple[int, ...]  # all drafted tokens
    nodes: Tensor  # (4, N) p, q, f and u of each drafted token, see `DeviceVerdict`
    last: Tensor  # (3,) p, u and law of the token that follows, see `DeviceVerdict`
    entropy: Tensor  # (accepted + 1,) nats, of the target row of each emitted token

    @property
    def accepted(self) -> int:
        """Drafted tokens accepted."""
        return len(self.path)


@dataclass(frozen=True)
class DeviceVerdict:
    """A verdict on the device of the rows, before the copy to the host. D positions, or levels of a tree, whatever was decided."""

    path: Tensor  # (D,) int64 accepted node of each level; only the first `accepted` mean something
    accepted: Tensor  # () int64
    recovered: Tensor  # () bool: the token was drawn from a residual
    token: Tensor  # () int64
    accept_prob: Tensor  # (D,)
    cost: Tensor  # (D,)
    relaxed: Tensor  # (D,) bool
    drafted: Tensor  # (N,) int64
    nodes: Tensor  # (4, N) of each drafted token: its p, its q, f and the uniform number u; f and u are NaN where it was not examined
    last: Tensor  # (3,) of the token that follows: its p, its uniform number and its probability in the law it was drawn from
    entropy: Tensor  # of the target row before each accepted token and after the last; entries behind that mean nothing
    masses: Tensor  # (2,) sums over all target rows and over all draft rows: not finite where a logit was not, see `masses`


def to_host(verdict: DeviceVerdict, whole: bool = False) -> Verdict:
    """The verdict, by one copy to the host.

    Args:
        whole: all positions were examined, not only those up to the first rejection.

    Raises:
        NotFinite: a row was made from logits that are not finite.
    """
    parts = [getattr(verdict, field) for field in DeviceVerdict.__dataclass_fields__]
    # One tensor for all; codes and nodes are whole numbers that float32 holds.
    values = torch.cat([part.reshape(-1) for part in parts]).cpu().split([part.numel() for part in parts])
    path, accepted, recovered, token, accept_prob, cost, relaxed, drafted, nodes, last, spread, sums = values
    for model, total in zip(("target", "drafter"), sums.tolist(), strict=True):
        if not isfinite(total):
            raise NotFinite(model)
    count, rejected = int(accepted), bool(recovered)
    examined = len(path) if whole else count + rejected
    return Verdict(
        path=tuple(path[:count].long().tolist()),
        token=int(token),
        kind="recovered" if rejected else "bonus",
        accept_prob=accept_prob[:examined].to(verdict.accept_prob.dtype),
        cost=cost[:examined].to(verdict.cost.dtype),
        relaxed=relaxed[:count].bool(),
        drafted=tuple(drafted.long().tolist()),
        nodes=nodes.view(verdict.nodes.shape),
        last=last,
        entropy=spread[: count + 1],
    )


def masses(p: Tensor, q: Tensor) -> Tensor:
    """`DeviceVerdict.masses` of target and draft rows (..., V)."""
    return torch.stack((p.sum(), q.sum()))


def plain_draw(p: Tensor, uniform: Tensor) -> DeviceVerdict:
    """A plain draw from p (V,), by uniform ()."""
    none, zero = p.new_zeros(0), torch.zeros((), dtype=torch.long, device=p.device)
    token = pick(p, uniform)
    return DeviceVerdict(
        path=none.long(),
        accepted=zero,
        recovered=zero.bool(),
        token=token,
        accept_prob=none,
        cost=none,
        relaxed=none.bool(),
        drafted=none.long(),
        nodes=none.view(4, 0),
        last=figures_of_last(p, token, uniform, p),
        entropy=entropy(p),
        masses=masses(p, none),
    )


def figures_of_last(p: Tensor, token: Tensor, uniform: Tensor, law: Tensor) -> Tensor:
    """`DeviceVerdict.last` of a token () or (1,), drawn from law (V,) by a uniform number of its shape; p (V,): target row there."""
    index = token.view(1)
    return torch.cat((p.gather(0, index), uniform.view(1), law.gather(0, index)))


def emitted_entropy(p: Tensor, accepted: Tensor) -> Tensor:
    """`DeviceVerdict.entropy` of a chain's rows p (L+1, V); rows that emitted nothing are left out where it is free to know them."""
    return entropy(p[: int(accepted) + 1] if host_can_branch(p.device) else p)


# ---- a chain, token by token


def _check(p: Tensor, q: Tensor, draft: Tensor, positions: int | None = None) -> None:
    """Refuse rows that do not belong together: a draft token without its own q row would break exactness silently."""
    shapes = ", ".join(f"{name} {tuple(t.shape) if isinstance(t, Tensor) else t!r}" for name, t in (("p", p), ("q", q), ("draft", draft)))
    if not all(isinstance(t, Tensor) for t in (p, q, draft)):
        raise ValueError(f"p, q and draft must be tensors: {shapes}")
    if draft.ndim != 1 or p.ndim != 2 or p.shape[0] != len(draft) + 1 or q.shape != (len(draft), p.shape[1]):
        raise ValueError(f"need p (L+1, V), q (L, V) and draft (L,): {shapes}")
    if positions is not None and len(draft) > positions:
        raise ValueError(f"The schedule has {positions} positions and the draft {len(draft)}. Give an ω for each drafted token.")


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
    _check(p, q, draft, rule.positions)
    return to_host(chain_verdict(p, q, draft, rule, uniforms((len(draft) + 1,), generator, p.device)))


def chain_verdict(p: Tensor, q: Tensor, draft: Tensor, rule: Rule, uniform: Tensor) -> DeviceVerdict:
    """`verify` with its numbers, uniform (L+1,)."""
    length = len(draft)
    if length == 0:
        return plain_draw(p[0], uniform[0])
    position = torch.arange(length, device=p.device)
    rows, index = p[:length], draft[:, None]
    accept_prob = rule.accept_prob(rows, q, position, draft)
    p_draft, q_draft = rows.gather(-1, index).squeeze(-1), q.gather(-1, index).squeeze(-1)
    accepted = (uniform[:length] < accept_prob).cumprod(0).sum()
    last = accepted.clamp(max=length - 1)[None]
    residual = rule.residual(rows.index_select(0, last), q.index_select(0, last), last, draft.index_select(0, last))[0]
    law = torch.where(accepted == length, p[length], residual)
    token = pick(law, uniform[length])
    f_and_u = torch.stack((accept_prob.double(), uniform[:length])).masked_fill(position > accepted, torch.nan)
    return DeviceVerdict(
        path=position,
        accepted=accepted,
        recovered=accepted < length,
        token=token,
        accept_prob=accept_prob,
        cost=rule.cost(rows, q, position),
        relaxed=uniform[:length] >= p_draft / q_draft,
        drafted=draft,
        nodes=torch.cat((torch.stack((p_draft, q_draft)), f_and_u)),
        last=figures_of_last(p.index_select(0, accepted[None])[0], token, uniform[length], law),
        entropy=emitted_entropy(p, accepted),
        masses=masses(p, q),
    )


# ---- block verification


def block_kept(p: Tensor, q: Tensor, weight: Tensor, omega: Tensor) -> Tensor:
    """Kept mass of the block rule at one position: min(q, ω r p), with ω lowered where its sum would exceed r (derived).

    The sum Σ min(q, ω r p) is the least of lines in ω: one for each number of tokens, of smallest q/p, that are kept with q while the
    others are kept with ω r p. So it first reaches r at the largest ω where one of these lines does.

    Args:
        p, q: (V,) or (..., V) float64 rows, normalised.
        weight: (...) r, the probability that the block so far is accepted, given its tokens.
        omega: () or (...) relaxation; the lowered value is at least 1. Without the cap the stopping probabilities leave [0, 1].
    """
    scaled = weight[..., None] * p
    omega = omega.expand(weight.shape)
    kept = torch.minimum(q, omega[..., None] * scaled)
    over = (kept.sum(-1) > weight) & (omega > 1)
    if host_can_branch(p.device) and not bool(over.any()):
        return kept
    order = torch.where(p > 0, q / p, torch.inf).sort(-1).indices
    kept_q, kept_p = (row.gather(-1, order).cumsum(-1) for row in (q, p))
    rest = weight[..., None] * (kept_p[..., -1:] - kept_p)
    reached = torch.where(rest > 0, (weight[..., None] - kept_q) / rest, 1.0).amax(-1)
    factor = torch.where(over, torch.minimum(reached.clamp(min=1.0), omega), omega)
    return torch.minimum(q, factor[..., None] * scaled)


@dataclass(frozen=True)
class _Block:
    """Of S schedules at once."""

    weight: Tensor  # (S, L) r_i: probability that at least i tokens are accepted, given the tokens
    stop: Tensor  # (S, L) h_i: probability that i is the number accepted, given that it is not larger
    kept: Tensor  # (S, L, V) kept mass of each position given the tokens before it
    cost: Tensor  # (S, L) Σ_x [K_i - r_{i-1} p_i]_+


def _block(p: Tensor, q: Tensor, draft: Tensor, schedules: Tensor) -> _Block:
    """p and q without the row after the last position, (L, V)."""
    q_draft = q.gather(-1, draft[:, None])
    q_draft = torch.where(q_draft > 0, q_draft, torch.inf)
    weights, kept = [p.new_ones(len(schedules))], []
    for p_row, q_row, omega, token, mass in zip(p, q, schedules.unbind(1), draft.split(1), q_draft, strict=True):
        kept.append(block_kept(p_row, q_row, weights[-1], omega))
        weights.append((kept[-1].index_select(-1, token) / mass).squeeze(-1))
    weight, kept = torch.stack(weights, 1), torch.stack(kept, 1)
    cost = (kept - weight[:, :-1, None] * p).clamp(min=0).sum(-1)
    weight, going_on = weight[:, 1:], kept.sum(-1)[:, 1:]
    rest = 1 - going_on
    stop = torch.where(rest > 0, (weight[:, :-1] - going_on) / rest, 1.0).clamp(0, 1)
    return _Block(weight, torch.cat((stop, weight[:, -1:]), 1), kept, cost)


def block_accepted(stop: Tensor, uniform: Tensor) -> Tensor:
    """The largest i with u_i < h_i: every position is looked at, not only those before the first failure. (S, L), (L,) -> (S,)."""
    return torch.where(uniform < stop, torch.arange(1, len(uniform) + 1, device=stop.device), 0).amax(-1)


def verify_block(p: Tensor, q: Tensor, draft: Tensor, schedule: Tensor, generator: torch.Generator) -> Verdict:
    """Verify the drafted tokens jointly (block verification, arXiv 2403.10444), relaxed by ω per position (derived).

    With ω = 1 everywhere it is exact and accepts at least as much as `verify` on average. All positions are examined: `accept_prob` is
    the probability r_i that at least i tokens are accepted given the tokens, and `cost` averages to the bias of the round. In `nodes`, f is
    h_i, the probability that the block stops behind position i given that it does not stop later, and u the number it is compared with: the
    last position with u < h is the last one accepted, so that a token can be accepted with u >= f.

    Args:
        p, q, draft, generator: as for `verify`.
        schedule: (L,) ω per draft position, on the CPU.

    Raises:
        ValueError: a missing or wrongly shaped row.
    """
    _check(p, q, draft, len(schedule))
    schedules = schedule.double()[None]
    if bool((schedule > 1).any()):
        schedules = torch.cat((schedules, torch.ones_like(schedules)))
    schedules = schedules.to(p.device, non_blocking=True)
    return to_host(block_verdict(p, q, draft, schedules, uniforms((len(draft) + 1,), generator, p.device)), whole=True)


def block_verdict(p: Tensor, q: Tensor, draft: Tensor, schedules: Tensor, uniform: Tensor) -> DeviceVerdict:
    """`verify_block` with its numbers, uniform (L+1,), by the first of the schedules (S, L); the last is the lossless one."""
    length = len(draft)
    if length == 0:
        return plain_draw(p[0], uniform[0])
    # Differences of nearly equal masses decide where the block stops.
    p, q = p.double(), q.double()
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    block = _block(p[:length], q, draft, schedules)
    counts = block_accepted(block.stop, uniform[:length])
    accepted, lossless = counts[0], counts[-1]
    last, position = accepted.clamp(max=length - 1)[None], torch.arange(length, device=p.device)
    weight, row = torch.cat((p.new_ones(1), block.weight[0])).index_select(0, last), p.index_select(0, last)
    residual = norm_residual(weight[:, None] * row - block.kept[0].index_select(0, last), row)[0]
    law = torch.where(accepted == length, p[length], residual)
    token = pick(law, uniform[length])
    p_and_q = torch.stack([rows.gather(-1, draft[:, None]).squeeze(-1) for rows in (p[:length], q)])
    return DeviceVerdict(
        path=position,
        accepted=accepted,
        recovered=accepted < length,
        token=token,
        accept_prob=block.weight[0].float(),
        cost=block.cost[0].float(),
        relaxed=position >= lossless,
        drafted=draft,
        nodes=torch.cat((p_and_q, block.stop[:1], uniform[None, :length])),
        last=figures_of_last(p.index_select(0, accepted[None])[0], token, uniform[length], law),
        entropy=emitted_entropy(p, accepted),
        masses=masses(p, q),
    )
