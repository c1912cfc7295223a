"""The geometry of drafts: chains, trees, and trees that a drafter shapes itself.

A tree is a tuple of parents: entry i is the node that drafted node i continues, -1 the last committed token (the root). Nodes come in
breadth-first order, siblings together and in the order they were drawn. Where rows include the root, it is row 0 and node i is row i + 1.
A chain is a tree of one branch. Knows nothing of verification, models or caches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_NODES = 64  # of a tree: the caches of targets and drafters have this many entries behind the last cell

Parents = tuple[int, ...]


@dataclass(frozen=True)
class Dynamic:
    """A tree that the drafter shapes in every round (EAGLE-2, arXiv 2406.16858; sizes as in LANTERN).

    Its tokens are ranked, not drawn: the `top_k` likeliest after each of the `top_k` most confident nodes of a level, `depth` levels
    (EAGLE-2 counts the four passes after the first level); of all these the `nodes` most confident are offered.

    A ranked token is accepted with its p and no more, and a level with the p of its siblings together. Where rows are flat, as an image
    model's are at temperature 1, that is far less than the overlap Σ min(p, q) that one drawn token reaches: this tree pays at low
    temperature.
    """

    depth: int = 5
    top_k: int = 10
    nodes: int = 59


Shape = Parents | Dynamic  # of a draft: fixed parents, or left to the drafter

# How many children each node has, level by level and in breadth-first order; trailing childless nodes of a level are left out.
# The two big ones are the static trees that EAGLE and LANTERN++ ship, under their names there.
NAMED = {
    "chain": "1 / 1 / 1 / 1 / 1",
    "mc_sim_7b_63": "4 / 3 2 2 1 / 3 2 2 1 / 3 / 2",
    "naive_extend_57": "5 / 4 3 3 2 1 / 4 3 3 2 2 1 0 1 / 4 3 2 1 2 1 0 1 / 3 2 0 0 2 1 0 1",
}


def chain(length: int) -> tuple[int, ...]:
    """Parents of a chain: the tree of one branch."""
    return tuple(range(-1, length - 1))


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


def children(parents: Parents) -> list[list[int]]:
    """Children of the root (entry 0) and of each node i (entry i + 1)."""
    below: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        below[parent + 1].append(node)
    return below


def ranks(parents: Parents, path: Sequence[int]) -> tuple[int, ...]:
    """Rank of each node of a path from the root among its siblings, in draw order."""
    return tuple(node - parents.index(parents[node]) for node in path)


def depths(parents: Parents) -> list[int]:
    """Tokens between the last committed one and each row: 0 for the root, 1 for its children."""
    depth = [0]
    for parent in parents:
        depth.append(depth[parent + 1] + 1)
    return depth


def depth(shape: Shape) -> int:
    """Draft positions a shape offers: its levels."""
    return shape.depth if isinstance(shape, Dynamic) else max(depths(shape))


def within(shape: Shape, levels: int) -> Shape:
    """The part of a shape that is at most `levels` deep."""
    if isinstance(shape, Dynamic):
        return replace(shape, depth=min(shape.depth, levels))
    return tuple(parent for parent, level in zip(shape, depths(shape)[1:], strict=True) if level <= levels)
