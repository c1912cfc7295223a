"""Shapes of draft trees: by name, from paths, from counts, and the best part of a bigger one."""

import pytest
import torch
from files import DATA
from torch import Tensor

from coolsd import trees
from coolsd.models import drafter
from coolsd.models.cache import ancestors, depths
from coolsd.trees import chain

PAIR = trees.from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]])


@pytest.mark.parametrize("name", trees.NAMED)
def test_named_trees_match_the_reference(name):
    reference = torch.load(DATA / "trees.pt", weights_only=True)[name]
    parents = trees.shape(name)
    rooted = (-1, *(parent + 1 for parent in parents))  # as a target's pass sees it
    assert torch.equal(ancestors(rooted), reference["mask"])
    assert trees.depths(parents) == list(depths(rooted)) == reference["depths"].tolist()
    assert torch.equal(branches(parents), reference["paths"])


def branches(parents: trees.Parents) -> Tensor:
    """Rows from the root to each leaf, leaves from first to last branch, padded with -1: (leaves, depth + 1) int64."""
    below, result = trees.children(parents), []

    def descend(path: list[int]) -> None:
        for node in below[path[-1]]:
            descend([*path, node + 1])
        if not below[path[-1]]:
            result.append(path)

    descend([0])
    longest = max(map(len, result))
    return torch.tensor([path + [-1] * (longest - len(path)) for path in result])


def test_paths_and_counts_give_the_same_tree():
    assert PAIR == (-1, -1, 0, 0, 1, 2)
    assert trees.from_counts("2 / 2 1 / 1") == PAIR
    assert trees.shape([[0, 0], [1], [0], [1, 0], [0, 1], [0, 0, 0]]) == PAIR
    assert chain(5) == trees.shape("chain")
    assert chain(0) == ()
    assert trees.children(PAIR) == [[0, 1], [2, 3], [4], [5], [], [], []]


@pytest.mark.parametrize("bad", [[[1]], [[0], [0, 1]], [[0, 0]], [[0], [0]], [[]], "oak"])
def test_what_is_not_a_tree_is_refused(bad):
    with pytest.raises(ValueError, match="tree"):
        trees.shape(bad)


def test_a_node_given_twice_and_a_tree_of_no_such_name_are_said():
    with pytest.raises(ValueError, match=r"^the tree names a node twice$"):
        trees.shape([[0], [0]])
    with pytest.raises(ValueError, match=r"^node \[0, 1\] of the tree lacks its parent or its elder sibling$"):
        trees.shape([[0], [0, 1]])
    with pytest.raises(ValueError, match=r"^There is no tree called 'oak'\. Choose one of: chain, mc_sim_7b_63, naive_extend_57\.$"):
        trees.shape("oak")


def test_ranks_lead_back_to_the_path():
    paths = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
    parents = trees.from_paths(paths)
    for node, path in enumerate(paths):
        nodes = [paths.index(path[: i + 1]) for i in range(len(path))]
        assert nodes[-1] == node
        assert trees.ranks(parents, nodes) == tuple(path)


def test_best_subtree_keeps_the_most_confident_nodes_with_their_parents():
    confidence = torch.tensor([0.6, 0.3, 0.5, 0.1, 0.3, 0.5])
    kept, parents = drafter.best_subtree(confidence, PAIR, 4)
    assert kept.tolist() == [0, 1, 2, 5]
    assert parents == (-1, -1, 0, 2)
