"""A picture's session with a LlamaGen target: prefill, one-pass extension by a chain or a tree, commit by keeping a path.

Knows nothing of methods. Rows: conditional first, unconditional second; one row when the guidance scale is 1.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..sampling import guide
from .layers import KVCache, ancestors, depths
from .llamagen import ROPE_SLACK, LlamaGen, prefix_mask
from .protocols import Step, chain
from .text import Conditioning


def mixed(logits: Tensor, scale: float) -> Tensor:
    """Guided logits (T, V) float32 from (B, T, V): cast before mixing, since guidance magnifies rounding."""
    return logits[0].float() if logits.shape[0] == 1 else guide(logits[0], logits[1], scale)


class LlamaGenTarget:
    """Implements protocols.Target.

    Args:
        model: shared weights. encode: prompt to Conditioning. scale: guidance.
        pads: what padded condition queries see, see prefix_mask.
    """

    def __init__(self, model: LlamaGen, encode: Callable[[str], Conditioning], scale: float, rope: Tensor, pads: str = "causal"):
        self.model, self.encode, self.scale, self.rope, self.pads = model, encode, scale, rope, pads
        c = model.config
        self.rows = 1 if scale == 1 else 2
        self.length = c.caption_tokens + c.image_tokens + ROPE_SLACK
        weight = model.output.weight
        self.cache = KVCache(c.layers, self.rows, c.heads, self.length, c.head_dim, weight)

    def _step(self, x: Tensor, rope: Tensor, mask: Tensor | None, tail: int) -> Step:
        hidden = self.model(x, rope, mask, self.cache)
        return Step(mixed(self.model.output(hidden[:, -tail:]), self.scale), hidden)

    def prefill(self, prompt: str) -> Step:
        """Logits (1, V) of the first token; hidden (B, C, D) of all condition positions. The condition is committed."""
        model, c = self.model, self.model.config
        conditioning = self.encode(prompt)
        weight = model.output.weight
        features = conditioning.features.to(weight)
        if self.rows == 2:
            features = torch.stack([features, model.cls_embedding.uncond_embedding.to(weight)])
        else:
            features = features[None]
        self.mask = prefix_mask(conditioning.valid.to(weight.device), self.length, self.pads)
        count = c.caption_tokens
        x = model.cls_embedding.cap_proj(features)
        step = self._step(x, self.rope[:count], self.mask[:count, :count], 1)
        self.cache.keep(list(range(count)))
        return step

    def extend(self, tokens: Tensor, parents: tuple[int, ...]) -> Step:
        """One pass over tokens (T,) behind the committed ones; logits (T, V), hidden (B, T, D)."""
        start, count = self.cache.committed, len(parents)
        end = start + count
        mask = self.mask[start:end, :end]
        rope = self.rope[start:end]
        if parents != chain(count):
            mask = mask[:1].repeat(count, 1)
            mask[:, start:] = ancestors(list(parents)).to(mask.device)
            rope = self.rope[torch.tensor(depths(list(parents)), device=self.rope.device) + start]
        x = self.model.tok_embeddings(tokens.to(self.rope.device)).expand(self.rows, -1, -1)
        return self._step(x, rope, mask, count)

    def keep(self, path: list[int]) -> None:
        """Commit these entries of the last pass."""
        self.cache.keep(path)
