"""Traversal verification of a static tree: losslessly, and from its leaves to its root (arXiv 2505.12398; the recursion derived).

Sibling by sibling, a tree is walked down and the first rejection ends the round. Here a node that was reached too rarely on its own can
still be accepted with a branch below it, as block verification does on a chain, which is the tree of one branch. Trees are those of
`trees`: row 0 is the root, node i is row i + 1. Knows nothing of models or caches.

Each row has a weight a, the probability that it is accepted or a branch below it, given the tokens above; the root's is 1. A child x in
draw order gets min(1, a p(x)/q(x)). If neither it nor anything below it is accepted, the row goes on with the weight Z/(Z + 1 - a) and
the target row Norm([a p - q]_+), where Z = Σ [a p - q]_+, and with the draft row without x. When no child is left, the row itself is
accepted with the weight it then has, and the next token is drawn from the target row it then has.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .rules import norm_residual
from .sampling import entropy, pick, uniforms
from .tree_verification import check_tree, without
from .trees import Parents, children, depths
from .verification import DeviceVerdict, Verdict, figures_of_last, masses, plain_draw, to_host


@dataclass(frozen=True)
class _Level:
    """Rows of one depth that have children, those with the most first."""

    rows: Tensor  # (M,)
    nodes: Tensor  # (M, K) their children in draw order; node 0 where there are fewer than K
    counts: tuple[int, ...]  # entry k: how many rows have a child k; they are the first ones


@dataclass(frozen=True)
class _Plan:
    """A tree of N nodes and D levels as index tensors."""

    levels: tuple[_Level, ...]  # from the root down
    order: Tensor  # (N + 1,) rows from the leaves to the root: all below a row come before it, elder siblings before younger ones
    turn: Tensor  # (N + 1,) the place of each row there
    depth: Tensor  # (N + 1,) of each row
    inner: Tensor  # (N + 1,) whether a row has children
    above: Tensor  # (N,) row of each node's parent
    paths: Tensor  # (N + 1, D) nodes between the root and each row, from the top; 0 behind the row's own
    inside: Tensor  # (N + 1, N) whether a node is on a row's path


def _leaves_first(below: list[list[int]], row: int) -> list[int]:
    return [deeper for node in below[row] for deeper in _leaves_first(below, node + 1)] + [row]


def _level(below: list[list[int]], rows: list[int], device: torch.device) -> _Level:
    rows = sorted(rows, key=lambda row: -len(below[row]))
    most = len(below[rows[0]])
    table = torch.tensor([[row, *below[row], *[0] * (most - len(below[row]))] for row in rows]).to(device, non_blocking=True)
    return _Level(table[:, 0], table[:, 1:], tuple(sum(len(below[row]) > k for row in rows) for k in range(most)))


@lru_cache(64)
def _plan(parents: Parents, device: torch.device) -> _Plan:
    below, depth = children(parents), depths(parents)
    inner = [[row for row in range(len(depth)) if depth[row] == level and below[row]] for level in range(max(depth))]
    paths: list[list[int]] = [[]]
    for node, parent in enumerate(parents):
        paths.append([*paths[parent + 1], node])
    order = torch.tensor(_leaves_first(below, 0))
    padded = torch.tensor([path + [0] * (max(depth) - len(path)) for path in paths])
    inside = torch.tensor([[node in path for node in range(len(parents))] for path in paths])
    rest = torch.tensor(depth), torch.tensor([bool(nodes) for nodes in below]), torch.tensor(parents) + 1, padded, inside
    tensors = (tensor.to(device, non_blocking=True) for tensor in (order, order.argsort(), *rest))
    return _Plan(tuple(_level(below, rows, device) for rows in inner), *tensors)


def after_rejection(weight: Tensor, law: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (m,) and target rows (m, V) of rows whose child, drawn from draft (m, V), was rejected with all below it."""
    scaled = weight[:, None] * law
    mass = (scaled - draft).clamp(min=0).sum(-1)
    rest = mass + 1.0 - weight
    return torch.where(rest > 0, mass / rest, 1.0), norm_residual(scaled - draft, law)


def _stops(p: Tensor, q: Tensor, tokens: Tensor, plan: _Plan) -> tuple[Tensor, Tensor]:
    """Of each row, when everything below it was rejected: the probability that it is accepted (N+1,), and the law of the next token
    (N+1, V); p (N+1, V) and q (N, V) in float64, p normalised."""
    stop, residual = p.new_ones(len(p)), p.clone()
    for level in plan.levels:
        weight, law = stop[level.rows], p[level.rows]
        for k, m in enumerate(level.counts):
            node = level.nodes[:m, k]
            draft = without(q[node], tokens[level.nodes[:m, :k]])
            token = tokens[node][:, None]
            q_token, p_token = (rows.gather(-1, token).squeeze(-1) for rows in (draft, law[:m]))
            stop[node + 1] = torch.where(q_token > 0, (weight[:m] * p_token / q_token).clamp(max=1.0), 0.0)
            rest = after_rejection(weight[:m], law[:m], draft)
            weight, law = (torch.cat((new, old[m:])) for new, old in zip(rest, (weight, law), strict=True))
        stop[level.rows], residual[level.rows] = weight, law
    return stop, residual


def verify_traversal(p: Tensor, q: Tensor, draft_tokens: Tensor, parents: Parents, generator: torch.Generator) -> Verdict:
    """Verify a tree of drafts from its leaves to its root. It is exact, and accepts at least as much as `verify_tree` on average.

    All levels are examined: `accept_prob` is the probability that at least so many tokens are accepted, given the tree. In `nodes`, f is
    the probability that a node is the last one accepted, given that nothing before it in that order is, and u the number it is compared
    with; a node above the last one is accepted whatever its own are.

    Args:
        p: (N+1, V) target rows after the root and after each node.
        q: (N, V) the rows the nodes were drawn from before anything was taken. A row that is one-hot at its node stands for a token that
            was ranked and not sampled.
        draft_tokens: (N,) int64; none gives a plain draw from p, kind "bonus".
        parents: the tree.
        generator: source of all random numbers: one a node and one for the token that follows.

    Raises:
        ValueError: rows, tokens and parents that do not belong together.
    """
    check_tree(p, q, draft_tokens, parents)
    return to_host(traversal_verdict(p, q, draft_tokens, parents, uniforms((len(parents) + 1,), generator, p.device)), whole=True)


def traversal_verdict(p: Tensor, q: Tensor, draft_tokens: Tensor, parents: Parents, uniform: Tensor) -> DeviceVerdict:
    """`verify_traversal` with its numbers, (N+1,)."""
    if not parents:
        return plain_draw(p[0], uniform[0])
    plan, count = _plan(parents, p.device), len(parents)
    rows = p.double()
    stop, residual = _stops(rows / rows.sum(-1, keepdim=True), q.double(), draft_tokens, plan)
    stop[0] = 1.0  # so it is but for rounding: one row must be the last
    ends = torch.cat((uniform.new_zeros(1), uniform[:count])) < stop
    first = ends[plan.order].to(torch.uint8).argmax(0, keepdim=True)
    end = plan.order[first]  # (1,), as index tensors of one number would be read by the host
    path, accepted, law = plan.paths[end][0], plan.depth[end], residual[end][0]
    levels = torch.arange(len(path), device=p.device)
    chance = stop[plan.order]  # that a row is the last one
    chance = chance * torch.cat((chance.new_ones(1), (1.0 - chance[:-1]).cumprod(0)))
    visited = torch.cat((torch.zeros_like(accepted), torch.where(levels < accepted, path + 1, 0)))
    token = pick(law, uniform[count])
    behind = (plan.turn[1:] > first) & ~plan.inside[end][0]
    f_and_u = torch.stack((stop[1:], uniform[:count])).masked_fill(behind, torch.nan)
    p_and_q = torch.stack((p[plan.above, draft_tokens], q.gather(-1, draft_tokens[:, None]).squeeze(-1)))
    return DeviceVerdict(
        path=path,
        accepted=accepted,
        recovered=plan.inner[end],
        token=token,
        accept_prob=(chance[:, None] * (plan.depth[plan.order][:, None] > levels)).sum(0).clamp(max=1.0).float(),
        cost=p.new_zeros(len(path)),
        relaxed=torch.zeros_like(levels, dtype=torch.bool),
        drafted=draft_tokens,
        nodes=torch.cat((p_and_q, f_and_u)),
        last=figures_of_last(p[end][0], token, uniform[count:], law),
        entropy=entropy(p[visited]),
        masses=masses(p, q),
    )
