"""A picture's session with a LlamaGen target: prefill, one-pass extension by a chain or a tree, commit by keeping a path.

Knows nothing of methods. Rows: conditional first, unconditional second; one row when the guidance scale is 1.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..sampling import guide
from .layers import KVCache, ancestors, depths, eager_rope
from .llamagen import LlamaGen, prefix_mask
from .protocols import Step, chain
from .text import Conditioning

SLACK = 64  # cache entries behind the last cell, for the tree of the last round


def mixed(logits: Tensor, scale: float) -> Tensor:
    """Guided logits (T, V) float32 from (B, T, V): cast before mixing, since guidance magnifies rounding."""
    return logits[0].float() if logits.shape[0] == 1 else guide(logits[0], logits[1], scale)


class LlamaGenTarget:
    """Implements protocols.Target. No image token sees a padded condition position, so the cache keeps the real ones only.

    Args:
        model: shared weights. encode: prompt to Conditioning. scale: guidance.
        pads: what padded condition queries see, see prefix_mask.
    """

    def __init__(self, model: LlamaGen, encode: Callable[[str], Conditioning], scale: float, rope: Tensor, pads: str = "causal"):
        self.model, self.encode, self.scale, self.rope, self.pads = model, encode, scale, eager_rope(rope), pads
        c = model.config
        self.rows = 1 if scale == 1 else 2
        self.cache = KVCache(c.layers, self.rows, c.heads, c.caption_tokens + c.image_tokens + SLACK, c.head_dim, model.output.weight)
        self.pad = 0  # condition positions that are not in the cache

    def _step(self, x: Tensor, rope: Tensor, mask: Tensor | None, tail: int) -> Step:
        hidden = self.model(x, rope, mask, self.cache)
        return Step(mixed(self.model.output(hidden[:, -tail:].contiguous()), self.scale), hidden)

    def prefill(self, prompt: str) -> Step:
        """Logits (1, V) of the first token; hidden (B, C, D) of all condition positions. The condition is committed."""
        model, c = self.model, self.model.config
        conditioning = self.encode(prompt)
        weight = model.output.weight
        features = torch.stack([conditioning.features.to(weight), model.cls_embedding.uncond_embedding.to(weight)][: self.rows])
        count = c.caption_tokens
        mask = prefix_mask(conditioning.valid, count, self.pads).to(weight.device)
        step = self._step(model.cls_embedding.cap_proj(features), self.rope[:count], mask, 1)
        self.cache.keep(conditioning.valid.nonzero().flatten().tolist())
        self.pad = count - self.cache.committed
        return step

    def extend(self, tokens: Tensor, parents: tuple[int, ...]) -> Step:
        """One pass over tokens (T,) behind the committed ones; logits (T, V), hidden (B, T, D)."""
        start, count = self.cache.committed, len(parents)
        position = start + self.pad
        if parents == chain(count):
            rope = self.rope[position : position + count]
        else:
            rope = self.rope[torch.tensor(depths(parents), device=self.rope.device) + position]
        mask = None if count == 1 else F.pad(ancestors(parents), (start, 0), value=True).to(self.rope.device)
        x = self.model.tok_embeddings(tokens.to(self.rope.device)).expand(self.rows, -1, -1)
        return self._step(x, rope, mask, count)

    def keep(self, path: list[int]) -> None:
        """Commit these entries of the last pass."""
        self.cache.keep(path)
