"""Trees of drafts: shapes, and the verification of one round.

A tree is a tuple of parents: entry i is the node that drafted node i continues, -1 the last committed token (the root). Nodes come in
breadth-first order, siblings together and in the order they were drawn. Where rows include the root, it is row 0 and node i is row i + 1.
A chain is a tree of one branch. Knows nothing of models or caches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from .rules import Lossless, Rule, free_to_look
from .sampling import pick, uniforms
from .verification import Found, Verdict, told, undrafted

Parents = tuple[int, ...]

# How many children each node has, level by level and in breadth-first order; trailing childless nodes of a level are left out.
# The two big ones are the static trees that EAGLE and LANTERN++ ship, under their names there.
NAMED = {
    "chain": "1 / 1 / 1 / 1 / 1",
    "mc_sim_7b_63": "4 / 3 2 2 1 / 3 2 2 1 / 3 / 2",
    "naive_extend_57": "5 / 4 3 3 2 1 / 4 3 3 2 2 1 0 1 / 4 3 2 1 2 1 0 1 / 3 2 0 0 2 1 0 1",
}


# ---- shapes


def from_counts(text: str) -> Parents:
    """Parents of a tree written like the entries of NAMED."""
    parents: list[int] = []
    level = [-1]
    for counts in text.split("/"):
        first = len(parents)
        for node, count in zip(level, counts.split(), strict=False):
            parents += [node] * int(count)
        level = list(range(first, len(parents)))
    return tuple(parents)


def from_paths(paths: Sequence[Sequence[int]]) -> Parents:
    """Parents of a tree given in EAGLE's notation: every node as its list of sibling ranks from the root, e.g. [[0], [1], [0, 0]].

    Raises:
        ValueError: a node whose parent or elder sibling is not in the list, or a node given twice.
    """
    ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
    index = {(): -1} | {path: i for i, path in enumerate(ordered)}
    for path in ordered:
        *above, rank = path or (-1,)
        if rank < 0 or tuple(above) not in index or (rank > 0 and (*above, rank - 1) not in index):
            raise ValueError(f"node {list(path)} of the tree lacks its parent or its elder sibling")
    if len(index) != len(ordered) + 1:
        raise ValueError("the tree names a node twice")
    return tuple(index[path[:-1]] for path in ordered)


def shape(tree: str | Sequence[Sequence[int]]) -> Parents:
    """Parents of a tree given by name (`NAMED`) or as a list of nodes in EAGLE's notation.

    Raises:
        ValueError: an unknown name or a list that is not a tree.
    """
    if not isinstance(tree, str):
        return from_paths(tree)
    if tree not in NAMED:
        raise ValueError(f"There is no tree called {tree!r}. Choose one of: {', '.join(NAMED)}.")
    return from_counts(NAMED[tree])


def best_subtree(confidence: Tensor, parents: Parents, count: int) -> tuple[Tensor, Parents]:
    """The `count` most confident nodes of a larger tree (EAGLE-2's dynamic tree, arXiv 2406.16858).

    Args:
        confidence: (N,) product of the drafter's probabilities along each node's branch, so that no node exceeds its parent.
        parents: of the larger tree.

    Returns:
        The nodes kept, in their old order, and the parents among them.
    """
    # A stable sort keeps a parent before a child that ties with it.
    kept = confidence.sort(descending=True, stable=True).indices[:count].sort().values
    place = {-1: -1} | {node: i for i, node in enumerate(kept.tolist())}
    return kept, tuple(place[parents[node]] for node in kept.tolist())


def children(parents: Parents) -> list[list[int]]:
    """Children of the root (entry 0) and of each node i (entry i + 1)."""
    below: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        below[parent + 1].append(node)
    return below


def ranks(parents: Parents, path: Sequence[int]) -> tuple[int, ...]:
    """Place of each node of a path from the root among its siblings, in draw order."""
    return tuple(node - parents.index(parents[node]) for node in path)


def depths(parents: Parents) -> list[int]:
    """Tokens between the last committed one and each row: 0 for the root, 1 for its children."""
    depth = [0]
    for parent in parents:
        depth.append(depth[parent + 1] + 1)
    return depth


# ---- verification


@dataclass(frozen=True)
class _Plan:
    """Rows that have children, those with the most first, as index tensors."""

    rows: Tensor  # (M,)
    depth: Tensor  # (M,) draft position of their children
    siblings: tuple[Tensor, ...]  # entry k: child k, (m,), of the first m rows: those that have so many


@lru_cache(256)
def _plan(parents: Parents, rows: tuple[int, ...], device: torch.device) -> _Plan:
    below, depth = children(parents), depths(parents)
    rows = tuple(sorted(rows, key=lambda row: -len(below[row])))
    siblings = [[below[row][k] for row in rows if len(below[row]) > k] for k in range(len(below[rows[0]]))]
    columns = [rows, [depth[row] for row in rows], *siblings]
    flat = torch.tensor([entry for column in columns for entry in column]).to(device, non_blocking=True)
    rows, depth, *siblings = flat.split([len(column) for column in columns])
    return _Plan(rows, depth, tuple(siblings))


@dataclass(frozen=True)
class _Nodes:
    """M rows of a tree whose children were tried, as if each had been reached."""

    rows: Tensor  # (M,)
    chosen: Tensor  # (M,) the child accepted, -1: none
    accept_prob: Tensor  # (M,) probability that some child is, given the children
    cost: Tensor  # (M,) total variation spent, given the children
    relaxed: Tensor  # (M,) bool: the lossless rule would have rejected `chosen` with the same uniform number
    residual: Tensor  # (M, V) law of the token that follows when all are rejected


def _without(row: Tensor, tokens: Tensor) -> Tensor:
    """Draft rows (m, V) once `tokens` (m, k) are taken, float64: the rest is summed up, as 1 minus the taken mass would cancel."""
    rest = row.double().scatter(-1, tokens, 0.0)
    return rest / rest.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def _first(new: Tensor, old: Tensor) -> Tensor:
    """`old` with its first entries replaced."""
    return new if len(new) == len(old) else torch.cat((new, old[len(new) :]))


def _try(p: Tensor, q: Tensor, tokens: Tensor, plan: _Plan, rule: Rule, uniform: Tensor, salvage: bool) -> _Nodes:
    """Try the children of the planned rows, eldest first. p (N+1, V), q (N, V), tokens (N,), uniform (1 or 2, N)."""
    step = Lossless() if salvage else rule
    p = p.index_select(0, plan.rows).double()
    residual = p = p / p.sum(-1, keepdim=True)
    reach, cost, taken = torch.ones_like(p[:, 0]), torch.zeros_like(p[:, 0]), plan.rows.new_empty(len(p), 0)
    accept, ratio = [], []  # f of each child once the elder ones are rejected; its lossless acceptance probability from the same rows
    for k, nodes in enumerate(plan.siblings):
        m = len(nodes)
        token, taken = tokens.index_select(0, nodes), taken[:m]
        rows = residual[:m], _without(q.index_select(0, nodes), taken), plan.depth[:m]
        accept.append(step.accept_prob(*rows, token))
        ratio.append(accept[k] if salvage else Lossless().accept_prob(*rows, token))
        if not salvage:
            cost = _first(cost[:m] + reach[:m] * step.cost(*rows), cost)
        reach = _first(reach[:m] * (1.0 - accept[k]), reach)
        residual = _first(step.residual(*rows, token), residual)
        taken = torch.cat((taken, token[:, None]), 1)
    eldest, salvaged = plan.siblings[0], torch.zeros_like(reach)  # probability that the eldest is taken back
    if salvage:
        relaxed = rule.accept_prob(p, _without(q.index_select(0, eldest), taken.new_empty(len(p), 0)), plan.depth, tokens[eldest])
        salvaged = torch.where(ratio[0] < 1, (relaxed - ratio[0]).clamp(min=0) / (1.0 - ratio[0]), 0.0)
        cost = reach * salvaged
    numbers = [uniform[0].index_select(0, nodes) for nodes in plan.siblings]
    padded = ([F.pad(column, (0, len(p) - len(column))) for column in columns] for columns in (plan.siblings, accept, ratio, numbers))
    node, accept, ratio, number = (torch.stack(columns, 1) for columns in padded)
    passed = number < accept
    child = passed.to(torch.uint8).argmax(-1, keepdim=True)  # the eldest where none passed
    some, back = passed.any(-1), uniform[-1].index_select(0, eldest) < salvaged
    return _Nodes(
        rows=plan.rows,
        chosen=torch.where(some | back, node.gather(-1, child).squeeze(-1), -1),
        accept_prob=1.0 - reach * (1.0 - salvaged),
        cost=cost,
        relaxed=torch.where(some, (number >= ratio).gather(-1, child).squeeze(-1), back),
        residual=residual,
    )


def _tried(parents: Parents, device: torch.device, attempt: Callable[[_Plan], _Nodes]) -> _Nodes:
    """All rows with children in one sweep; where looking is free, only those that are reached, one after another."""
    below = children(parents)
    if not free_to_look(device):
        return attempt(_plan(parents, tuple(row for row, nodes in enumerate(below) if nodes), device))
    found, row = [], 0
    while below[row]:
        found.append(attempt(_plan(parents, (row,), device)))
        row = int(found[-1].chosen) + 1
        if row == 0:
            break
    return _Nodes(*(torch.cat([getattr(nodes, field) for nodes in found]) for field in _Nodes.__dataclass_fields__))


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
    count = len(parents)
    shapes = f"p {tuple(p.shape)}, {len(q)} rows q, draft_tokens {tuple(draft_tokens.shape)}, {count} parents"
    if p.ndim != 2 or len(p) != count + 1 or len(q) != count or draft_tokens.shape != (count,):
        raise ValueError(f"need p (N+1, V), N rows q, draft_tokens (N,) and N parents: {shapes}")
    if any(q[i].shape != p.shape[1:] for i in range(count)) or any(not -1 <= parent < i for i, parent in enumerate(parents)):
        raise ValueError(f"every row q must be ({p.shape[1]},) and every parent come before its child: {shapes}")
    if count and not isinstance(q, Tensor):
        q = torch.stack(tuple(q))
    return told(tree_found(p, q, draft_tokens, parents, rule, uniforms(((1 + salvage) * count + 1,), generator, p.device), salvage))


def tree_found(p: Tensor, q: Tensor, draft_tokens: Tensor, parents: Parents, rule: Rule, uniform: Tensor, salvage: bool) -> Found:
    """`verify_tree` with its numbers: for each node, with salvage the same again, and one for the token that follows. See `told`."""
    if not parents:
        return undrafted(p[0], uniform[0])
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
    law = torch.where(end[:, None] < 0, p.index_select(0, visited[-1:]), tried.residual.index_select(0, end.clamp(min=0)))
    return Found(
        path=visited[1:] - 1,
        accepted=(visited[1:] != visited[:-1]).sum(),
        recovered=end >= 0,
        token=pick(law, uniform[-1:]),
        accept_prob=tried.accept_prob.index_select(0, level),
        cost=tried.cost.index_select(0, level),
        relaxed=tried.relaxed.index_select(0, level),
        drafted=draft_tokens,
    )
