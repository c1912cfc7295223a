"""Trees of drafts: shapes, and the verification of one round.

A tree is a tuple of parents: entry i is the node that drafted node i continues, -1 the last committed token (the root). Nodes come in
breadth-first order, siblings together and in the order they were drawn. Where rows include the root, it is row 0 and node i is row i + 1.
A chain is a tree of one branch. Knows nothing of models or caches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .rules import Lossless, Rule
from .sampling import draw, uniforms

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
class TreeVerdict:
    """What verification decided. Per-position tensors have one entry a depth, float64."""

    path: tuple[int, ...]  # accepted nodes, from the root down
    token: int  # the token that follows them
    kind: str  # recovered | bonus
    accept_prob: Tensor  # (examined,) probability that some sibling is accepted, given the siblings
    cost: Tensor  # (examined,) total variation spent, given the siblings; 0 when lossless
    relaxed: Tensor  # (accepted,) bool: the lossless rule would have rejected with the same uniform number
    drafted: tuple[int, ...] | None = None  # as in verification.Verdict

    @property
    def accepted(self) -> int:
        """Drafted tokens accepted."""
        return len(self.path)


@dataclass(frozen=True)
class _Node:
    accept: list[float]  # f of each sibling once the elder ones are rejected
    ratio: list[float]  # its lossless acceptance probability from the same rows
    residual: Tensor  # (V,) law of the token that follows when all are rejected
    salvaged: float  # probability that the first sibling is taken back then
    cost: float

    @property
    def accept_prob(self) -> float:
        rejected = 1.0 - self.salvaged
        for f in self.accept:
            rejected *= 1.0 - f
        return 1.0 - rejected


def _without(row: Tensor, tokens: Tensor) -> Tensor:
    """The draft row once `tokens` are taken, float64: the rest is summed up, as 1 minus the taken mass would cancel."""
    rest = row.double().index_fill(0, tokens, 0.0)
    return rest / rest.sum().clamp(min=torch.finfo(torch.float64).tiny)


def _node(p: Tensor, rows: list[Tensor], tokens: Tensor, rule: Rule, depth: int, salvage: bool) -> _Node:
    step = Lossless() if salvage else rule
    position = torch.tensor([depth], device=p.device)
    p = p.double() / p.double().sum()
    residual, reach, cost = p, p.new_ones(1), p.new_zeros(1)
    accept, ratio = [], []
    for k, row in enumerate(rows):
        token = tokens[k : k + 1]
        q = _without(row, tokens[:k])
        accept.append(step.accept_prob(residual[None], q[None], position, token))
        ratio.append(accept[k] if salvage else Lossless().accept_prob(residual[None], q[None], position, token))
        if not salvage:
            cost = cost + reach * step.cost(residual, q, depth)
        reach = reach * (1.0 - accept[k])
        residual = step.residual(residual, q, depth, tokens[k])
    salvaged = torch.zeros_like(cost)
    if salvage:
        relaxed = rule.accept_prob(p[None], _without(rows[0], tokens[:0])[None], position, tokens[:1])
        salvaged = torch.where(ratio[0] < 1, (relaxed - ratio[0]).clamp(min=0) / (1.0 - ratio[0]), 0.0)
        cost = reach * salvaged
    # One transfer a node, however many siblings it has.
    *shares, salvaged, cost = torch.cat([*accept, *ratio, salvaged, cost]).tolist()
    return _Node(shares[: len(rows)], shares[len(rows) :], residual, salvaged, cost)


def verify_tree(
    p: Tensor,
    q: Tensor | Sequence[Tensor],
    draft_tokens: Tensor,
    parents: Parents,
    rule: Rule,
    generator: torch.Generator,
    salvage: bool = True,
) -> TreeVerdict:
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
    uniform = uniforms((1 + salvage, count), generator, torch.device("cpu")).tolist()
    below = children(parents)
    path: list[int] = []
    examined: list[_Node] = []
    relaxed: list[bool] = []
    row, law, kind = 0, p[0], "bonus"
    while siblings := below[row]:
        node = _node(p[row], [q[i] for i in siblings], draft_tokens[siblings], rule, len(path), salvage)
        examined.append(node)
        chosen = next((k for k, i in enumerate(siblings) if uniform[0][i] < node.accept[k]), None)
        if chosen is not None:
            relaxed.append(uniform[0][siblings[chosen]] >= node.ratio[chosen])
        elif salvage and uniform[1][siblings[0]] < node.salvaged:
            chosen = 0
            relaxed.append(True)
        else:
            law, kind = node.residual, "recovered"
            break
        path.append(siblings[chosen])
        row = path[-1] + 1
        law = p[row]
    return TreeVerdict(
        path=tuple(path),
        token=int(draw(law, generator)),
        kind=kind,
        accept_prob=torch.tensor([node.accept_prob for node in examined], dtype=torch.float64),
        cost=torch.tensor([node.cost for node in examined], dtype=torch.float64),
        relaxed=torch.tensor(relaxed, dtype=torch.bool),
    )
