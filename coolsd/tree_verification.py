"""Verification of a tree of drafts: one round, from the root down.

Trees are those of `trees`: where rows include the root, it is row 0 and node i is row i + 1. Knows nothing of models or caches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from .rules import Lossless, Rule, host_can_branch
from .sampling import entropy, pick, uniforms
from .trees import Parents, children, depths
from .verification import DeviceVerdict, Verdict, figures_of_last, masses, plain_draw, to_host


@dataclass(frozen=True)
class _Plan:
    """Rows that have children, those with the most first, as index tensors."""

    rows: Tensor  # (M,)
    depth: Tensor  # (M,) draft position of their children
    nodes: Tensor  # (M, K) their children; node 0 where there are fewer than K
    counts: tuple[int, ...]  # entry k: how many rows have a child k; they are the first ones
    cells: Tensor  # (n,) where the n children stand in `nodes`, flattened


@lru_cache(256)
def _plan(parents: Parents, rows: tuple[int, ...], device: torch.device) -> _Plan:
    below, depth = children(parents), depths(parents)
    rows = tuple(sorted(rows, key=lambda row: -len(below[row])))
    most = len(below[rows[0]])
    counts = tuple(sum(len(below[row]) > k for row in rows) for k in range(most))
    table = [[row, depth[row], *below[row], *[0] * (most - len(below[row]))] for row in rows]
    columns = torch.tensor(table).to(device, non_blocking=True)
    cells = torch.tensor([i * most + k for i, row in enumerate(rows) for k in range(len(below[row]))]).to(device, non_blocking=True)
    return _Plan(columns[:, 0], columns[:, 1], columns[:, 2:], counts, cells)


@lru_cache(256)
def _above(parents: Parents, device: torch.device) -> Tensor:
    """Row of each node's parent, (N,)."""
    return torch.tensor([parent + 1 for parent in parents]).to(device, non_blocking=True)


@dataclass(frozen=True)
class _Nodes:
    """M rows of a tree whose children were tried, as if each had been reached."""

    rows: Tensor  # (M,)
    chosen: Tensor  # (M,) the child accepted, -1: none
    figures: Tensor  # (M, 3) accept_prob, cost and relaxed of a verdict's level, given the children
    residual: Tensor  # (M, V) law of the token that follows when all are rejected
    children: Tensor  # (n,) all their children
    f_and_u: Tensor  # (n, 2) f and u of each, NaN behind an accepted sibling


def without(row: Tensor, tokens: Tensor) -> Tensor:
    """Draft rows (m, V) once `tokens` (m, k) are taken, float64: the rest is summed up, as 1 minus the taken mass would cancel."""
    rest = row.to(torch.float64, copy=True)
    if tokens.shape[1]:
        rest.scatter_(-1, tokens, 0.0)
    return rest / rest.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def _head(x: Tensor, count: int) -> Tensor:
    return x if x.shape[0] == count else x[:count]


def _first(new: Tensor, old: Tensor) -> Tensor:
    """`old` with its first entries replaced."""
    count = new.shape[0]
    return new if count == old.shape[0] else torch.cat((new, old[count:]))


def _columns(columns: list[Tensor]) -> Tensor:
    """Columns (m,) side by side, zeros below: (M, K), M the length of the first."""
    count = columns[0].shape[0]
    return torch.stack([c if c.shape[0] == count else F.pad(c, (0, count - c.shape[0])) for c in columns], 1)


def _try(p: Tensor, q: Tensor, tokens: Tensor, plan: _Plan, rule: Rule, uniform: Tensor, salvage: bool) -> _Nodes:
    """Try the children of the planned rows, eldest first. p (N+1, V), q (N, V), tokens (N,), uniform (1 or 2, N)."""
    step = Lossless() if salvage else rule
    p = p.index_select(0, plan.rows).double()
    residual = p = p / p.sum(-1, keepdim=True)
    reach, cost, tokens = torch.ones_like(p[:, 0]), torch.zeros_like(p[:, 0]), tokens[plan.nodes]
    accept, ratio = [], []  # f of each child once the elder ones are rejected; its lossless acceptance probability from the same rows
    for k, m in enumerate(plan.counts):
        token, place = _head(tokens, m)[:, k], _head(plan.depth, m)
        rows = _head(residual, m), without(q.index_select(0, _head(plan.nodes, m)[:, k]), _head(tokens, m)[:, :k]), place
        if k == 0:
            eldest = (p, rows[1], place, token)
        accept.append(step.accept_prob(*rows, token))
        ratio.append(accept[k] if salvage else Lossless().accept_prob(*rows, token))
        if not salvage:
            cost = _first(_head(cost, m) + _head(reach, m) * step.cost(*rows), cost)
        reach = _first(_head(reach, m) * (1.0 - accept[k]), reach)
        residual = _first(step.residual(*rows, token), residual)
    number, accept, ratio = uniform[0][plan.nodes], _columns(accept), _columns(ratio)
    passed = number < accept
    child = passed.to(torch.uint8).argmax(-1, keepdim=True)  # the eldest where none passed
    some, relaxed = passed.any(-1), (number >= ratio).gather(-1, child).squeeze(-1)
    f_and_u = torch.stack((accept, number), -1).masked_fill((passed.cumsum(-1) > passed)[..., None], torch.nan)
    if salvage:
        # The probability that the eldest is taken back.
        back = torch.where(ratio[:, 0] < 1, (rule.accept_prob(*eldest) - ratio[:, 0]).clamp(min=0) / (1.0 - ratio[:, 0]), 0.0)
        again = uniform[1][plan.nodes[:, 0]]
        reach, cost, second_try = reach * (1.0 - back), reach * back, again < back
        f_and_u = torch.cat((_both_tries(f_and_u[:, :1], back, again, some), f_and_u[:, 1:]), 1)
        some, relaxed = some | second_try, ~some
    chosen = torch.where(some, plan.nodes.gather(-1, child).squeeze(-1), -1)
    tried = plan.nodes.flatten().index_select(0, plan.cells), f_and_u.flatten(0, 1).index_select(0, plan.cells)
    return _Nodes(plan.rows, chosen, torch.stack((1.0 - reach, cost, relaxed), 1), residual, *tried)


def _both_tries(f_and_u: Tensor, back: Tensor, again: Tensor, some: Tensor) -> Tensor:
    """f and u (M, 1, 2) of the eldest where it was tried a second time, as of one try: u is uniform, and u < f where either try passed."""
    first = f_and_u[..., 0]
    second = torch.stack((first + (1.0 - first) * back[:, None], first + (1.0 - first) * again[:, None]), -1)
    return torch.where(some[:, None, None], f_and_u, second)


def _tried(parents: Parents, device: torch.device, attempt: Callable[[_Plan], _Nodes]) -> _Nodes:
    """All rows with children in one sweep; where the host can branch, only those that are reached, one after another."""
    below = children(parents)
    if not host_can_branch(device):
        return attempt(_plan(parents, tuple(row for row, nodes in enumerate(below) if nodes), device))
    visits, row = [], 0
    while below[row]:
        visits.append(attempt(_plan(parents, (row,), device)))
        row = int(visits[-1].chosen) + 1
        if row == 0:
            break
    if len(visits) == 1:
        return visits[0]
    return _Nodes(*(torch.cat([getattr(nodes, field) for nodes in visits]) for field in _Nodes.__dataclass_fields__))


def check_tree(p: Tensor, q: Tensor | Sequence[Tensor], draft_tokens: Tensor, parents: Parents) -> None:
    """Refuse rows, tokens and parents that do not belong together, see `verify_tree`.

    Raises:
        ValueError: with their shapes.
    """
    count = len(parents)
    shapes = f"p {tuple(p.shape)}, {len(q)} rows q, draft_tokens {tuple(draft_tokens.shape)}, {count} parents"
    if p.ndim != 2 or len(p) != count + 1 or len(q) != count or draft_tokens.shape != (count,):
        raise ValueError(f"need p (N+1, V), N rows q, draft_tokens (N,) and N parents: {shapes}")
    rows = [q.shape[1:]] if isinstance(q, Tensor) else [row.shape for row in q]
    if any(row != p.shape[1:] for row in rows) or any(not -1 <= parent < i for i, parent in enumerate(parents)):
        raise ValueError(f"every row q must be ({p.shape[1]},) and every parent come before its child: {shapes}")


def verify_tree(
    p: Tensor,
    q: Tensor | Sequence[Tensor],
    draft_tokens: Tensor,
    parents: Parents,
    rule: Rule,
    generator: torch.Generator,
    salvage: bool = True,
) -> Verdict:
    """Walk down the tree from the root: at each node try the siblings in draw order, and go on below the one accepted.

    Siblings are verified by recursive rejection without replacement (SpecInfer, arXiv 2305.09781, in EAGLE's form): a rejected sibling
    turns the target row into its residual and leaves the draft row. A row that is one-hot at its sibling stands for a draft that was not
    sampled (EAGLE-2's top-k).

    Args:
        p: (N+1, V) target rows after the root and after each node.
        q: N rows (V,), the ones the nodes were drawn from before anything was taken: siblings that were sampled share one.
        draft_tokens: (N,) int64; none gives a plain draw from p, kind "bonus".
        parents: the tree; ω of a schedule goes by depth.
        rule: the acceptance rule.
        generator: source of all random numbers: one a node (two with salvage) and one for the token that follows.
        salvage: True (derived): a node is run losslessly, and only when all siblings are rejected is the first taken back with
            probability (f - min(1, p/q)) / (1 - min(1, p/q)), f the rule's. A token gained then costs its mass once. ω < 1 acts as 1.
            False: the rule decides at every sibling, which costs more than its mass for a token gained; `cost` is then, on average,
            at least the total variation and equals it on a chain.

    Raises:
        ValueError: rows, tokens and parents that do not belong together.
    """
    check_tree(p, q, draft_tokens, parents)
    count = len(parents)
    if count and not isinstance(q, Tensor):
        q = torch.stack(tuple(q))
    return to_host(tree_verdict(p, q, draft_tokens, parents, rule, uniforms(((1 + salvage) * count + 1,), generator, p.device), salvage))


def tree_verdict(p: Tensor, q: Tensor, draft_tokens: Tensor, parents: Parents, rule: Rule, uniform: Tensor, salvage: bool) -> DeviceVerdict:
    """`verify_tree` with its numbers: for each node, with salvage the same again, and one for the token that follows."""
    if not parents:
        return plain_draw(p[0], uniform[0])
    numbers = uniform[:-1].view(-1, len(parents))
    tried = _tried(parents, p.device, lambda plan: _try(p, q, draft_tokens, plan, rule, numbers, salvage))
    rows = torch.arange(len(p), device=p.device)
    place = torch.full_like(rows, -1).scatter(0, tried.rows, rows[: len(tried.rows)])
    step = rows.scatter(0, tried.rows, torch.where(tried.chosen < 0, tried.rows, tried.chosen + 1))
    visited = [rows[:1]]
    for _ in range(max(depths(parents))):
        visited.append(step.index_select(0, visited[-1]))  # stays where it ended
    visited = torch.cat(visited)
    at = place.index_select(0, visited)
    level, end = at[:-1].clamp(min=0), at[-1:]
    row = p.index_select(0, visited[-1:])
    law = torch.where(end[:, None] < 0, row, tried.residual.index_select(0, end.clamp(min=0)))
    token = pick(law, uniform[-1:])
    accept_prob, cost, relaxed = tried.figures.index_select(0, level).unbind(1)
    return DeviceVerdict(
        path=visited[1:] - 1,
        accepted=(visited[1:] != visited[:-1]).sum(),
        recovered=end >= 0,
        token=token,
        accept_prob=accept_prob,
        cost=cost,
        relaxed=relaxed,
        drafted=draft_tokens,
        nodes=_node_figures(p, q, draft_tokens, _above(parents, p.device), visited, tried),
        last=figures_of_last(row[0], token, uniform[-1:], law[0]),
        entropy=entropy(p.index_select(0, visited)),
        masses=masses(p, q),
    )


def _node_figures(p: Tensor, q: Tensor, tokens: Tensor, above: Tensor, visited: Tensor, tried: _Nodes) -> Tensor:
    """`DeviceVerdict.nodes`, (4, N). above: (N,) row of each node's parent; visited: rows of the walk."""
    reached = torch.zeros(len(p), dtype=torch.bool, device=p.device).index_fill(0, visited, True)
    f_and_u = tried.f_and_u.new_full((len(tokens), 2), torch.nan).index_copy(0, tried.children, tried.f_and_u)
    f_and_u = f_and_u.masked_fill(~reached.index_select(0, above)[:, None], torch.nan)
    p_and_q = torch.stack((p[above, tokens], q.gather(-1, tokens[:, None]).squeeze(-1)))
    return torch.cat((p_and_q, f_and_u.T))
