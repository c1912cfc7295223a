"""The weights of an EAGLE-1 drafter in LANTERN's layout: one decoder layer over (embedding of the next token, target feature).

Source: EAGLE (Li et al., arXiv 2401.15077), as trained for LlamaGen by LANTERN (arXiv 2410.03355). Its output goes straight into the
target's head and is the feature of the next draft step. Shapes: B guidance branches, T entries, D width, V codes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .cache import SLACK, CacheSlots, KVCache
from .checkpoints import fill
from .layers import ROPE_SLACK, LlamaLayer, rope_table
from .packed import Linear


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
        self.fc = Linear(2 * config.dim, config.dim, bias=config.bias)
        c = config
        self.layers = nn.ModuleList([LlamaLayer(c.dim, c.heads, c.ffn, c.norm_eps, c.input_norm, c.norm_rows, c.halves)])

    def rope(self) -> Tensor:
        """Rotation rows of all entries, float32: C - 1 zero rows, then the cells."""
        c = self.config
        return rope_table(c.caption_tokens - 1, c.grid, c.dim // c.heads, slack=ROPE_SLACK).to(self.fc.weight.device)

    def forward(
        self,
        hidden: Tensor,
        tokens: Tensor,
        rope: Tensor,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        start: int | CacheSlots = 0,
    ) -> Tensor:
        """Predicted features (B, T, D) from features (B, T, D) and the tokens that follow them, (B, T) or (1, T)."""
        embedded = self.embed_tokens(tokens).to(hidden.dtype).expand(hidden.shape[0], -1, -1)
        return self.layers[0](self.fc(torch.cat([embedded, hidden], dim=-1)), rope, mask, cache, start)


def with_embeddings(config: EagleConfig, embeddings: Tensor) -> Eagle:
    """An untrained drafter that starts from its target's embeddings (V, D); float32, on the CPU."""
    model = Eagle(config)
    model.embed_tokens.weight.data.copy_(embeddings)
    return model


def drafter_cache(model: Eagle, branches: int) -> KVCache:
    """A cache for a picture with its condition and the draft of the last round."""
    c = model.config
    return KVCache(1, branches, c.heads, c.caption_tokens - 1 + c.grid**2 + SLACK, c.dim // c.heads, model.fc.weight)


def drafter_cache_like(cache: KVCache, model: Eagle) -> KVCache:
    """A drafter's cache as long as its target's."""
    _, branches, heads, length, head_dim = cache.keys.shape
    return KVCache(1, branches, heads, length, head_dim, model.fc.weight)


def build_drafter(config: EagleConfig, state: dict[str, Tensor]) -> Eagle:
    """A drafter of these sizes with these tensors."""
    with torch.device("meta"):
        drafter = Eagle(config)
    return fill(drafter, state, "drafter")
