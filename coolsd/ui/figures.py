"""What the browser needs to draw schedules by itself, from the sliders and without a server."""

from collections.abc import Mapping
from typing import Any

from ..methods import frontiers, shape
from ..settings import TREES, Settings
from ..trees import chain, depth


def shapes(methods: Mapping[str, Any]) -> dict[str, Any]:
    """What the browser needs to draw ω by itself: of each method the form of its ω and its tree, of each named tree its depth, and by
    draft length the fitted schedules.

    A chain is as deep as the draft length says, a tree given by its nodes as its longest node, and a Jacobi window one less than it reads.
    """
    forms = {
        name: {
            "title": method.title,
            "omega": method.form or "none",
            "tree": method.tree,
            "chooses": "tree" in method.uses,
            "jacobi": method.jacobi,
            "token": method.token_rule,
            "by_hand": "omega" in method.uses,
        }
        for name, method in methods.items()
    }
    tree_shapes = {tree: shape(Settings(method="coolsd", tree=tree)) for tree in TREES if tree not in ("auto", "chain")}
    trees = {tree: {"depth": depth(form), "chain": form == chain(depth(form))} for tree, form in tree_shapes.items()}
    return {"methods": forms, "trees": trees, "frontiers": {str(length): points for length, points in frontiers().items()}}
