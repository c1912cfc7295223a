"""EAGLE-1 drafting (arXiv 2401.15077): chains, trees and EAGLE-2's dynamic trees, over entries that a family lays out.

Knows nothing of methods. `DraftEntries` says how codes become entries of the drafter's layer, which is what families differ in;
`EagleDrafter` draws from the rows that they give. Shapes: B guidance branches, T entries, D width, V codes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..protocols import Draft, ToProbs, no_draft
from ..sampling import NotFinite, guided, pick, pick_distinct, uniforms
from ..trees import Dynamic, Parents, Shape, chain, children
from .cache import CachePosition, KVCache, tree_tensors
from .cuda_graphs import Workspace
from .eagle import Eagle, drafter_cache
from .layers import eager_rope

OBSERVED = 8  # entries by which an observation grows where shapes are static


# ---- entries


class DraftEntries(ABC):
    """The drafter's session of one picture: its cache, and how codes become entries.

    Args:
        model: shared weights. head: features (..., D) to logits of the codes (..., V). codes: V. scale: guidance, the target's.
    """

    pad = 0  # entries in front that the unconditional branch does not have
    cache: KVCache
    workspace: Workspace | None  # the target's, where passes have static shapes, see cuda_graphs.py
    feature: Tensor  # (B, 1, D) output of the last observed entry

    def __init__(self, model: Eagle, head: Callable[[Tensor], Tensor], codes: int, scale: float):
        self.model, self.head, self.codes, self.scale = model, head, codes, scale

    @abstractmethod
    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        """See protocols.Drafter.observe."""

    @abstractmethod
    def append(
        self, position: CachePosition, hidden: Tensor, codes: Tensor, ancestry: Tensor | None, depth: int
    ) -> tuple[Tensor, Tensor | None]:
        """A pass over drafted codes (T,) of one depth, each with the feature (B, T, D) it continues.

        ancestry (T, U): which of the U entries of this draft so far each one follows; returned with their own added, beside their features.
        None where the draft is a chain: one code, which follows all.
        """

    def root(self, position: CachePosition, feature: Tensor, ancestry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The feature that the first level is drawn from, (B, 1, D), and the entries of this draft that it follows, (1, U)."""
        return feature, ancestry

    def phase(self, depth: int) -> Hashable:
        """What a draft of this depth depends on besides its inputs."""
        return None

    def most(self, nodes: int) -> int:
        """Most cache entries that a draft of so many nodes takes."""
        return nodes

    def logits(self, features: Tensor) -> Tensor:
        """Guided logits (T, V) of features (B, T, D)."""
        return guided(self.head(features), self.scale)

    def run(self, fn: Callable[..., tuple], key: tuple, ahead: int, *inputs: Tensor | int) -> tuple:
        """fn(position, *inputs), where shapes are static through the workspace's recordings; at most `ahead` entries follow the committed.

        Args:
            key: what fn depends on besides the guidance scale.
        """
        start = self.cache.committed
        if self.workspace is None:
            return fn(CachePosition(start, None, self.pad), *inputs)
        span = self.cache.span(start + ahead)

        def run(at: Tensor, pad: Tensor, *rest: Tensor) -> tuple:
            return fn(CachePosition(at, span, pad), *rest)

        return self.workspace.graphs(run, (*key, self.scale, span), start, self.pad, *inputs)


class CellEntries(DraftEntries):
    """One entry a condition position and one a code, as for LlamaGen. Condition positions are all visible, padded ones too, as in training.

    Args:
        model: shared weights. head, codes, scale: see DraftEntries. rope: rotations of the entries, long enough for all of them.
        workspace: the target's, where passes have static shapes.
    """

    def __init__(
        self,
        model: Eagle,
        head: Callable[[Tensor], Tensor],
        codes: int,
        scale: float,
        rope: Tensor,
        workspace: Workspace | None = None,
    ):
        super().__init__(model, head, codes, scale)
        self.rope, self.workspace = eager_rope(rope), workspace
        branches = 1 if scale == 1 else 2
        self.cache = workspace.drafter if workspace else drafter_cache(model, branches)
        self.feature = model.fc.weight.new_zeros(branches, 1, model.config.dim)

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        """Take in committed features (B, T, D); condition positions in front pair with the embedding of code 0."""
        count, tokens = hidden.shape[1], F.pad(tokens.to(hidden.device), (hidden.shape[1] - len(tokens), 0))
        if self.cache.committed == 0:
            output = self.model(hidden, tokens[None], self.rope[:count], None, self.cache, 0)
            self.feature = output[:, -1:].contiguous()
        else:
            # Static shapes: rounds that accept more or less make the same pass. Entries too many are overwritten in the next one.
            width = -(-count // OBSERVED) * OBSERVED if self.workspace else count
            padded = F.pad(hidden, (0, 0, 0, width - count)), F.pad(tokens, (0, width - count))
            ancestry = tree_tensors(chain(width), hidden.device)[1]
            last = (count - 1,) if self.workspace else ()
            (self.feature,) = self.run(self._observed, ("observe",), width, *padded, ancestry, *last)
        self.cache.keep(list(range(count)))

    def _observed(
        self, position: CachePosition, hidden: Tensor, tokens: Tensor, ancestry: Tensor, last: Tensor | None = None
    ) -> tuple[Tensor]:
        """The output of entry `last`, () int64; None: of the last one."""
        count = len(tokens)
        rope = self.rope.index_select(0, position.start + torch.arange(count, device=tokens.device))
        output = self.model(hidden, tokens[None], rope, position.mask_unless_all(ancestry), self.cache, position.slots(0, count))
        return (output[:, -1:].contiguous() if last is None else output.index_select(1, last[None]),)

    def append(
        self, position: CachePosition, hidden: Tensor, codes: Tensor, ancestry: Tensor | None, depth: int
    ) -> tuple[Tensor, Tensor | None]:
        """See DraftEntries.append."""
        if ancestry is None and position.span is None:
            at = position.start + depth
            return self.model(hidden, codes[None], self.rope[at : at + 1], None, self.cache, at), None
        ancestry = after(ancestry, len(codes), depth, codes.device)
        rope = self.rope.index_select(0, position.start + torch.full((len(codes),), depth, device=codes.device))
        slots = position.slots(ancestry.shape[1] - len(codes), len(codes))
        return self.model(hidden, codes[None], rope, position.mask(ancestry), self.cache, slots), ancestry


def after(ancestry: Tensor | None, count: int, before: int, device: torch.device) -> Tensor:
    """Which entries of a draft `count` new ones see, (count, U + count): those of their branches (count, U), and each itself.

    None: a chain, whose next entry sees the `before` entries that there are.
    """
    if ancestry is None:
        return torch.ones(1, before + 1, dtype=torch.bool, device=device)
    return torch.cat([ancestry, torch.eye(count, dtype=torch.bool, device=device)], dim=1)


# ---- drafts


@dataclass(frozen=True)
class Level:
    """How the children of one level of a tree are drawn; index tensors over its parents, or over its children."""

    parents: int
    draws: int  # for each parent: as many as the one with the most children has
    parent: Tensor  # (children,)
    rank: Tensor  # (children,) among its siblings
    inner: Tensor  # children that have children
    above: Tensor  # and their parents


@lru_cache(64)
def levels(tree: tuple[int, ...], device: torch.device) -> list[Level]:
    """The levels of a tree, from the root down. What recordings refer to must be kept alive beside them: this cache evicts."""
    below = children(tree)
    out, level = [], [-1]
    while level:
        pairs = [(place, rank, child) for place, node in enumerate(level) for rank, child in enumerate(below[node + 1])]
        inner = [i for i, (_, _, child) in enumerate(pairs) if below[child + 1]]
        columns = [place for place, _, _ in pairs], [rank for _, rank, _ in pairs], inner, [pairs[i][0] for i in inner]
        tensors = (torch.tensor(column, dtype=torch.long).to(device, non_blocking=True) for column in columns)
        out.append(Level(len(level), max(len(below[node + 1]) for node in level), *tensors))
        level = [pairs[i][2] for i in inner]
    return out


class EagleDrafter:
    """Implements protocols.Drafter for one picture, over the entries of its family."""

    def __init__(self, entries: DraftEntries):
        self.entries = entries

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        """See protocols.Drafter.observe."""
        self.entries.observe(hidden, tokens)

    def review(self, p: Tensor, draft: Draft, accepted: int, generator: torch.Generator) -> None:
        """Nothing: EAGLE drafts from features alone."""

    def propose(self, shape: Shape, to_probs: ToProbs, generator: torch.Generator) -> Draft:
        """Draft behind the last observed token; the entries of the draft are overwritten in the next round.

        A chain is drawn token by token; the children of a tree's node are drawn from its row without replacement.
        """
        if isinstance(shape, Dynamic):
            return self._dynamic(shape, to_probs)
        device = self.entries.feature.device
        if not shape:
            return no_draft(self.entries.feature.new_empty(0, self.entries.codes).float())
        if shape == chain(len(shape)):
            calls, number, fn = len(shape), len(shape), partial(self._chain, len(shape), to_probs)
        else:
            plan = levels(shape, device)
            if self.entries.workspace:
                plan = self.entries.workspace.graphs.keep_alive(("levels", shape), plan)
            calls, number, fn = len(plan), sum(level.draws * level.parents for level in plan), partial(self.draw_tree, plan, to_probs)
        key = ("draft", shape, to_probs, self.entries.phase(calls))
        tokens, q = self.entries.run(fn, key, self.entries.most(len(shape)), self.entries.feature, uniforms((number,), generator, device))
        return Draft(tokens, q, shape, calls)

    def _chain(self, length: int, to_probs: ToProbs, position: CachePosition, feature: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        features, ancestry = self.entries.root(position, feature, None)
        tokens, rows = [], []
        for step in range(length):
            rows.append(to_probs(self.entries.logits(features)))
            tokens.append(pick(rows[-1], uniform[step : step + 1]))
            if step + 1 < length:
                features, ancestry = self.entries.append(position, features, tokens[-1], ancestry, step)
        return torch.cat(tokens), torch.cat(rows)

    def draw_tree(
        self, plan: list[Level], to_probs: ToProbs, position: CachePosition, feature: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Level by level: one pass over the nodes of a level that have children, then their children are drawn.

        A row with all its mass on one token, as at temperature 0, leaves no sibling to draw: there they are ranked, with one-hot rows.
        """
        features, ancestry = self.entries.root(position, feature, torch.ones(1, 0, dtype=torch.bool, device=feature.device))
        tokens, q = [], []
        for depth, level in enumerate(plan):
            logits = self.entries.logits(features)
            rows = to_probs(logits)
            count = level.draws * level.parents
            numbers, uniform = uniform[:count], uniform[count:]
            picks = pick_distinct(rows, numbers.view(level.draws, level.parents))
            certain = rows.amax(-1, keepdim=True) >= 1
            ranked = logits.topk(min(level.draws, self.entries.codes)).indices
            # A token that comes twice is never accepted, see pick_distinct.
            siblings = torch.where(certain, F.pad(ranked, (0, level.draws - ranked.shape[-1])), picks)
            tokens.append(siblings[level.parent, level.rank])
            one_hot = F.one_hot(tokens[-1], self.entries.codes).to(rows.dtype)
            q.append(torch.where(certain[level.parent], one_hot, rows[level.parent]))
            if depth + 1 < len(plan):
                features, ancestry = self.entries.append(
                    position, features[:, level.above], tokens[-1][level.inner], ancestry[level.above], depth
                )
        return torch.cat(tokens), torch.cat(q)

    def _dynamic(self, shape: Dynamic, to_probs: ToProbs) -> Draft:
        """EAGLE-2's tree: every level continues its most confident nodes; of all nodes the most confident are offered.

        A node's confidence is the product of the drafter's probabilities along its branch. They are those that tokens would be drawn
        with, since a ranked token is accepted with its p; where they are one-hot, as at temperature 0, those before temperature and
        top-k, top-p.
        """
        key = ("rank", shape, to_probs, self.entries.phase(shape.depth))
        entries = self.entries.most(shape.depth * shape.top_k)
        # One transfer of all three; double holds them exactly.
        ranking = self.entries.run(partial(self._ranked, shape, to_probs), key, entries, self.entries.feature)[0].cpu()
        if bool(ranking[1].isnan().any()):
            raise NotFinite("drafter")
        best, tree = best_subtree(ranking[1], tuple(ranking[2].long().tolist()), shape.nodes)
        tokens = ranking[0].long()[best].to(self.entries.feature.device, non_blocking=True)
        return Draft(tokens, F.one_hot(tokens, self.entries.codes).float(), tree, shape.depth)

    def _ranked(self, shape: Dynamic, to_probs: ToProbs, position: CachePosition, feature: Tensor) -> tuple[Tensor]:
        """Tokens, log confidence and parents of all nodes looked at, (3, N) float64."""
        features, ancestry = self.entries.root(position, feature, torch.ones(1, 0, dtype=torch.bool, device=feature.device))
        confidence, parents = torch.zeros(1, device=ancestry.device), torch.full((1,), -1, device=ancestry.device)
        ranked: list[tuple[Tensor, Tensor, Tensor]] = []
        width, count = min(shape.top_k, self.entries.codes), 0
        for depth in range(shape.depth):
            logits = self.entries.logits(features)
            rows = to_probs(logits)
            likeliest = torch.where(rows.amax(-1, keepdim=True) < 1, rows.log(), logits.log_softmax(-1)).topk(width)
            tokens = likeliest.indices.flatten()
            level = (confidence[:, None] + likeliest.values).flatten()
            ranked.append((tokens, level, parents.repeat_interleave(width)))
            if depth + 1 < shape.depth:
                best = level.topk(width).indices.sort().values
                above = best // width
                features, ancestry = self.entries.append(position, features[:, above], tokens[best], ancestry[above], depth)
                confidence, parents = level[best], best + count
            count += len(tokens)
        return (torch.stack([torch.cat(column).double() for column in zip(*ranked, strict=True)]),)


def best_subtree(confidence: Tensor, parents: Parents, count: int) -> tuple[Tensor, Parents]:
    """The `count` most confident nodes of a larger tree (EAGLE-2's dynamic tree, arXiv 2406.16858).

    Args:
        confidence: (N,) product of the drafter's probabilities along each node's branch, so that no node exceeds its parent.
        parents: of the larger tree.

    Returns:
        The nodes kept, in their old order, and the parents among them.
    """
    # A stable sort keeps a parent before a child that ties with it.
    nodes = confidence.sort(descending=True, stable=True).indices[:count].sort().values
    place = {-1: -1} | {node: i for i, node in enumerate(nodes.tolist())}
    return nodes, tuple(place[parents[node]] for node in nodes.tolist())
