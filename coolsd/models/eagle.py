"""EAGLE-1 drafter in LANTERN's layout: one decoder layer over (embedding of the next token, target feature).

Source: EAGLE (Li et al., arXiv 2401.15077), as trained for LlamaGen by LANTERN (arXiv 2410.03355). Its output goes straight into the
target's head and is the feature of the next draft step. Shapes: B guidance rows, T entries, D width, V codes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..sampling import draw, draw_distinct
from ..trees import best_subtree
from .layers import KVCache, LlamaLayer, ancestors, eager_rope, rope_table
from .llamagen import ROPE_SLACK
from .protocols import Draft, Dynamic, Shape, ToProbs, chain
from .target import SLACK, mixed


@dataclass(frozen=True)
class EagleConfig:
    """Sizes of a drafter. `caption_tokens` and `grid` are its target's; its own table has one zero row less.

    `input_norm`, `norm_rows` and `halves` are for Chameleon's family, see LlamaLayer.
    """

    dim: int = 1280
    heads: int = 20
    ffn: int = 3584
    vocab: int = 16384
    caption_tokens: int = 120
    grid: int = 16
    norm_eps: float = 1e-6
    bias: bool = True
    input_norm: bool = False
    norm_rows: int = 0
    halves: bool = False


class Eagle(nn.Module):
    """The drafter's weights. Entry t pairs the target's feature at position t with the embedding of the token at t + 1."""

    def __init__(self, config: EagleConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.dim)
        self.fc = nn.Linear(2 * config.dim, config.dim, bias=config.bias)
        c = config
        self.layers = nn.ModuleList([LlamaLayer(c.dim, c.heads, c.ffn, c.norm_eps, c.input_norm, c.norm_rows, c.halves)])

    def rope(self) -> Tensor:
        """Rotation rows of all entries, float32: C - 1 zero rows, then the cells."""
        c = self.config
        return rope_table(c.caption_tokens - 1, c.grid, c.dim // c.heads, slack=ROPE_SLACK).to(self.fc.weight.device)

    def forward(
        self, hidden: Tensor, tokens: Tensor, rope: Tensor, mask: Tensor | None = None, cache: KVCache | None = None, start: int = 0
    ) -> Tensor:
        """Predicted features (B, T, D) from features (B, T, D) and the tokens that follow them, (B, T) or (1, T)."""
        embedded = self.embed_tokens(tokens).to(hidden.dtype).expand(hidden.shape[0], -1, -1)
        return self.layers[0](self.fc(torch.cat([embedded, hidden], dim=-1)), rope, mask, cache, start)


class EagleDrafter:
    """Implements protocols.Drafter for one picture. Condition positions are all visible, padded ones too, as in training.

    Args:
        model: shared weights. head: the target's output layer. scale: guidance, the same as the target's. rope: model.rope().
    """

    def __init__(self, model: Eagle, head: nn.Linear, scale: float, rope: Tensor):
        self.model, self.head, self.scale, self.rope = model, head, scale, eager_rope(rope)
        c = model.config
        rows, length = 1 if scale == 1 else 2, c.caption_tokens - 1 + c.grid**2 + SLACK
        self.cache = KVCache(1, rows, c.heads, length, c.dim // c.heads, model.fc.weight)
        self.codes = head.out_features
        self.feature = model.fc.weight.new_zeros(rows, 1, c.dim)  # output of the last observed entry

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        """Take in committed features (B, T, D); condition positions in front pair with the embedding of code 0."""
        start, count = self.cache.committed, hidden.shape[1]
        entries = F.pad(tokens.to(hidden.device), (count - len(tokens), 0))
        mask = None if start == 0 or count == 1 else F.pad(ancestors(chain(count)), (start, 0), value=True).to(hidden.device)
        output = self.model(hidden, entries[None], self.rope[start : start + count], mask, self.cache, start)
        self.feature = output[:, -1:].contiguous()
        self.cache.keep(list(range(count)))

    def propose(self, shape: Shape, to_probs: ToProbs, generator: torch.Generator) -> Draft:
        """Draft behind the last observed token; the entries of the draft are overwritten in the next round.

        A chain is drawn token by token; the children of a tree's node are drawn from its row without replacement.
        """
        if isinstance(shape, Dynamic):
            return self._dynamic(shape)
        return self._chain(shape, to_probs, generator) if shape == chain(len(shape)) else self._tree(shape, to_probs, generator)

    def _logits(self, features: Tensor) -> Tensor:
        return mixed(self.head(features), self.scale)

    def _chain(self, shape: tuple[int, ...], to_probs: ToProbs, generator: torch.Generator) -> Draft:
        feature, tokens, rows = self.feature, [], []
        for step in range(len(shape)):
            if step:
                at = self.cache.committed + step - 1
                feature = self.model(feature, tokens[-1][None], self.rope[at : at + 1], None, self.cache, at)
            rows.append(to_probs(self._logits(feature)))
            tokens.append(draw(rows[-1], generator))
        if not rows:
            return Draft(torch.empty(0, dtype=torch.long), torch.empty(0, self.codes), shape, 0)
        return Draft(torch.cat(tokens), torch.cat(rows), shape, len(shape))

    def _tree(self, shape: tuple[int, ...], to_probs: ToProbs, generator: torch.Generator) -> Draft:
        """Level by level: one pass over the nodes of a level that have children, then their children are drawn.

        A row with all its mass on one token, as at temperature 0, leaves no sibling to draw: there they are ranked, with one-hot rows.
        """
        below: dict[int, list[int]] = {}
        for node, parent in enumerate(shape):
            below.setdefault(parent, []).append(node)
        tokens = torch.empty(len(shape), dtype=torch.long, device=self.feature.device)
        features, seen = self._root()
        logits = self._logits(features)
        q = logits.new_empty(len(shape), self.codes)
        level, calls = [-1], 1
        while True:
            rows, count = to_probs(logits), max(len(below[node]) for node in level)
            siblings = torch.where(rows.amax(-1, keepdim=True) < 1, draw_distinct(rows, count, generator), logits.topk(count).indices)
            for place, node in enumerate(level):
                q[below[node]] = rows[place]
                tokens[below[node]] = siblings[place, : len(below[node])]
            inner = [(place, child) for place, node in enumerate(level) for child in below[node] if child in below]
            if not inner:
                ranked = q.amax(-1, keepdim=True) >= 1
                return Draft(tokens, torch.where(ranked, F.one_hot(tokens, self.codes), q), shape, calls)
            above, level = (list(column) for column in zip(*inner, strict=True))
            features, seen = self._append(features[:, above], tokens[level], seen[above], calls - 1)
            logits = self._logits(features)
            calls += 1

    def _dynamic(self, shape: Dynamic) -> Draft:
        """EAGLE-2's tree: every level continues its most confident nodes; of all nodes the most confident are offered.

        A node's confidence is the product of the drafter's probabilities along its branch, before temperature and top-k, top-p.
        """
        features, seen = self._root()
        confidence, parents = torch.zeros(1, device=seen.device), torch.full((1,), -1, device=seen.device)
        found: list[tuple[Tensor, Tensor, Tensor]] = []  # tokens, log confidence and parents of each level
        width, count = min(shape.top_k, self.codes), 0
        for depth in range(shape.depth):
            likeliest = self._logits(features).log_softmax(-1).topk(width)
            tokens = likeliest.indices.flatten()
            level = (confidence[:, None] + likeliest.values).flatten()
            found.append((tokens, level, parents.repeat_interleave(width)))
            if depth + 1 < shape.depth:
                best = level.topk(width).indices.sort().values
                above = best // width
                features, seen = self._append(features[:, above], tokens[best], seen[above], depth)
                confidence, parents = level[best], best + count
            count += len(tokens)
        tokens, confidence, parents = (torch.cat(column) for column in zip(*found, strict=True))
        kept, tree = best_subtree(confidence, tuple(parents.tolist()), shape.nodes)
        tokens = tokens[kept]
        return Draft(tokens, F.one_hot(tokens, self.codes).float(), tree, shape.depth)

    def _root(self) -> tuple[Tensor, Tensor]:
        """The feature that the first level is drawn from, (B, 1, D), and the entries of this draft that it follows, (1, U)."""
        return self.feature, torch.ones(1, 0, dtype=torch.bool, device=self.feature.device)

    def _append(self, hidden: Tensor, codes: Tensor, seen: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """A pass over drafted codes (T,) of one depth, each with the feature (B, T, D) it continues.

        seen (T, U): which of the U entries of this draft so far each one follows; returned with their own added, beside their features.
        """
        start, before = self.cache.committed, seen.shape[1]
        seen = torch.cat([seen, torch.eye(len(codes), dtype=torch.bool, device=seen.device)], dim=1)
        rope = self.rope[start + depth].expand(len(codes), *self.rope.shape[1:])
        return self.model(hidden, codes[None], rope, F.pad(seen, (start, 0), value=True), self.cache, start + before), seen
