"""A picture's session with a LlamaGen target: prefill, one-pass extension by a chain or a tree, commit by keeping a path.

Knows nothing of methods. Rows: conditional first, unconditional second; one row when the guidance scale is 1.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..sampling import guide
from ..settings import MAX_NODES
from .graphs import Rooms
from .layers import Front, KVCache, ancestors, depths, eager_rope, tree_tensors
from .llamagen import Conditioning, LlamaGen, prefix_mask
from .protocols import Step, chain

SLACK = MAX_NODES  # cache entries behind the last cell, for the tree of the last round


def mixed(logits: Tensor, scale: float) -> Tensor:
    """Guided logits (T, V) float32 from (B, T, V): cast before mixing, since guidance magnifies rounding."""
    return logits[0].float() if logits.shape[0] == 1 else guide(logits[0], logits[1], scale)


def target_cache(model: LlamaGen, rows: int) -> KVCache:
    """Room for a picture with its condition and the tree of the last round."""
    c = model.config
    return KVCache(c.layers, rows, c.heads, c.caption_tokens + c.image_tokens + SLACK, c.head_dim, model.output.weight)


class LlamaGenTarget:
    """Implements protocols.Target. No image token sees a padded condition position, so the cache keeps the real ones only.

    Args:
        model: shared weights. encode: prompt to Conditioning. scale: guidance.
        pads: what padded condition queries see, see prefix_mask.
        rooms: where passes have static shapes, see graphs.py; None: a cache of its own, and shapes as they come.
    """

    def __init__(
        self,
        model: LlamaGen,
        encode: Callable[[str], Conditioning],
        scale: float,
        rope: Tensor,
        pads: str = "causal",
        rooms: Rooms | None = None,
    ):
        self.model, self.encode, self.scale, self.rope, self.pads = model, encode, scale, eager_rope(rope), pads
        self.rows = 1 if scale == 1 else 2
        self.room = rooms and rooms.take(self.rows, self)
        self.cache = self.room.target if self.room else target_cache(model, self.rows)
        self.pad = 0  # condition positions that are not in the cache

    def _step(self, x: Tensor, rope: Tensor, mask: Tensor | None, tail: int) -> Step:
        hidden = self.model(x, rope, mask, self.cache)
        return Step(mixed(self.model.output(hidden[:, -tail:].contiguous()), self.scale), hidden)

    def prefill(self, prompt: str) -> Step:
        """Logits (1, V) of the first token; hidden (B, C, D) of all condition positions. The condition is committed."""
        embedded, valid = self._condition(prompt)
        count = embedded.shape[1]
        step = self._step(embedded, self.rope[:count], prefix_mask(valid, count, self.pads).to(embedded.device), 1)
        self.cache.keep(valid.nonzero().flatten().tolist())
        self.pad = count - self.cache.committed
        return step

    def _condition(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Embeddings (B, C, D) of the condition, and which positions are real, (C,) on the CPU."""
        conditioning, condition = self.encode(prompt), self.model.cls_embedding
        weight = self.model.output.weight
        features = torch.stack([conditioning.features.to(weight), condition.uncond_embedding.to(weight)][: self.rows])
        return condition.cap_proj(features), conditioning.valid

    def extend(self, tokens: Tensor, parents: tuple[int, ...]) -> Step:
        """One pass over tokens (T,) behind the committed ones; logits (T, V), hidden (B, T, D)."""
        start, count = self.cache.committed, len(parents)
        if self.room:
            span = self.cache.span(start + count)
            inputs = (tokens, *tree_tensors(parents, self.rope.device), start, self.pad)
            return Step(*self.room.graphs(partial(self._static, span), ("extend", self.scale, span), *inputs))
        position = start + self.pad
        if parents == chain(count):
            rope = self.rope[position : position + count]
        else:
            rope = self.rope[torch.tensor(depths(parents), device=self.rope.device) + position]
        mask = None if count == 1 else F.pad(ancestors(parents), (start, 0), value=True).to(self.rope.device)
        x = self.model.tok_embeddings(tokens.to(self.rope.device)).expand(self.rows, -1, -1)
        return self._step(x, rope, mask, count)

    def _static(self, span: int, tokens: Tensor, depth: Tensor, seen: Tensor, start: Tensor, pad: Tensor) -> tuple[Tensor, Tensor]:
        """`extend` with shapes that do not depend on what is committed: guided logits and features."""
        front, x = Front(start, span), self.model.tok_embeddings(tokens).expand(self.rows, -1, -1)
        rope = self.rope.index_select(0, depth + start + pad)
        hidden = self.model(x, rope, front.mask(seen), self.cache, start=front.slots(0, len(tokens)))
        return mixed(self.model.output(hidden), self.scale), hidden

    def keep(self, path: list[int]) -> None:
        """Commit these entries of the last pass."""
        self.cache.keep(path)

    def forced(self, prompt: str, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, C + T, D) of the condition and of tokens (T,), and the guided logits (T, V) of what follows each token.

        One pass without the cache: the session goes on as if it had not been.
        """
        embedded, valid = self._condition(prompt)
        count = embedded.shape[1] + len(tokens)
        x = torch.cat([embedded, self.model.tok_embeddings(tokens.to(self.rope.device)).expand(self.rows, -1, -1)], dim=1)
        hidden = self.model(x, self.rope[:count], prefix_mask(valid, count, self.pads).to(x.device))
        return hidden, mixed(self.model.output(hidden[:, -len(tokens) :]), self.scale)
