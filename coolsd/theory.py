"""Exact laws of a round in float64: what verification emits, how much it accepts and what that costs.

Knows nothing of models or random numbers. Rows are context-free, p and q (L, V): position i has the same rows whatever came before. With
a_i = Σ K_i and D_i the total variation of step i, E[N] = Σ_i Π_{j<=i} a_j and B = Σ_i D_i Π_{j<i} a_j (derived: telescoping over the
positions of a round; the paper's own Theorem 2 was not available). In a real model rows depend on the drafted prefix, and the expectation
over drafts goes around each product, not into it: E[N] = Σ_i E[Π_{j<=i} f_j] and B = Σ_i E[D_i Π_{j<i} f_j].
"""

import torch
from torch import Tensor

from .rules import Rule

PAPER_TV_LIMIT = 0.4  # the paper's claim about annealing assumes TV(p, q) <= 2/5 at every prefix

RESIDUALS = 256  # held at once, of a rule that has one for each rejected token

# ---- one step


def total_variation(a: Tensor, b: Tensor) -> Tensor:
    """½ Σ |a - b| over the last axis, (...) float64."""
    return 0.5 * (a.double() - b.double()).abs().sum(-1)


def _rejected(p: Tensor, q: Tensor, kept: Tensor, rule: Rule, position: int) -> Tensor:
    """R G: the mass of the recovered tokens, (V,)."""
    rejected = (q - kept).clamp(min=0)
    if not rule.residual_depends_on_token:
        return rejected.sum() * rule.residual(p, q, position, 0)
    mass = torch.zeros_like(p)
    for token in rejected.nonzero().squeeze(-1).split(RESIDUALS):
        rows = (len(token), len(p))
        mass += rejected[token] @ rule.residual(p.expand(rows), q.expand(rows), position, token)
    return mass


def step_law(p: Tensor, q: Tensor, rule: Rule, position: int) -> Tensor:
    """Law of the token emitted at a position that is examined: kept mass plus recovered mass. p, q (V,) -> (V,) float64."""
    p, q = p.double(), q.double()
    kept = rule.kept_mass(p, q, position)
    return kept + _rejected(p, q, kept, rule, position)


def step_cost(p: Tensor, q: Tensor, rule: Rule, position: int) -> Tensor:
    """Σ_x [K - p]_+, () float64: the total variation spent at a position with the residual G*, and the least with any residual."""
    return rule.cost(p.double(), q.double(), position)


# ---- one round, token by token


def _accepted_mass(p: Tensor, q: Tensor, rule: Rule) -> Tensor:
    """a_i, the acceptance probability of each examined position, (L,)."""
    position = torch.arange(len(q), device=q.device)
    return rule.kept_mass(p.double(), q.double(), position).sum(-1)


def expected_accepted(p: Tensor, q: Tensor, rule: Rule) -> Tensor:
    """E[N], the mean number of accepted drafts of a round, () float64. p, q (L, V). The accept length is E[N] + 1."""
    return _accepted_mass(p, q, rule).cumprod(0).sum()


def tv_bound(p: Tensor, q: Tensor, rule: Rule) -> Tensor:
    """B >= TV(law of the round completed to L tokens by the target, target law), () float64. p, q (L, V).

    It is the mean bias spent in a round: the total variation of every step, weighted by how often the step is reached. Equal to the
    total variation when only one position is relaxed.
    """
    step = torch.stack([total_variation(step_law(p[i], q[i], rule, i), p[i]) for i in range(len(q))])
    reached = torch.cat((step.new_ones(1), _accepted_mass(p, q, rule).cumprod(0)[:-1]))
    return (reached * step).sum()


def target_law(p: Tensor) -> Tensor:
    """Joint law of L independent tokens from the rows p (L, V): shape (V,) * L, float64."""
    law = p.new_ones((), dtype=torch.float64)
    for row in p.double():
        law = law[..., None] * row
    return law


def round_law(p: Tensor, q: Tensor, rule: Rule) -> Tensor:
    """Joint law of the first L tokens when the target completes the round after a rejection: shape (V,) * L, float64.

    Args:
        p, q: (L, V). V ** L entries are made.
    """
    p, q = p.double(), q.double()
    law = p.new_ones(())
    for i in reversed(range(len(q))):
        kept = rule.kept_mass(p[i], q[i], i)
        recovered = _rejected(p[i], q[i], kept, rule, i)
        law = torch.tensordot(kept[:, None], law[None], 1) + torch.tensordot(recovered[:, None], target_law(p[i + 1 :])[None], 1)
    return law


def joint_variation(p: Tensor, law: Tensor) -> Tensor:
    """Total variation between a round's joint law and the target's, () float64. p (L, V), law (V,) * L."""
    return total_variation(law.flatten(), target_law(p).flatten())


# ---- one round, as a block
