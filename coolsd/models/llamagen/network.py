"""LlamaGen's text-to-image transformer (target), in the original parameter names.

Source: Sun et al., "Autoregressive Model Beats Diffusion" (2024). Knows nothing of sampling, drafting or methods.
Shapes: B guidance branches, T tokens, C condition tokens, D width, V codes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import CacheSlots, KVCache
from ..layers import ROPE_SLACK, RMSNorm, attend, gated, rope_table, rotate
from ..packed import Fused, Linear


@dataclass(frozen=True)
class LlamaGenConfig:
    """Sizes of a LlamaGen target. `grid` is not in the weights: the files of 256 and 512 px look alike."""

    dim: int = 1280
    layers: int = 36
    heads: int = 20
    ffn: int = 3584
    vocab: int = 16384
    caption_dim: int = 2048
    caption_tokens: int = 120
    grid: int = 16
    norm_eps: float = 1e-5
    rope_base: float = 10000.0

    @property
    def image_tokens(self) -> int:
        """Cells of the grid = tokens of a picture."""
        return self.grid**2

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.heads


@dataclass(frozen=True)
class Conditioning:
    """Text features (C, caption_dim), zero where padded, and which of them are real, (C,) bool."""

    features: Tensor
    valid: Tensor


class Attention(nn.Module):
    """Multi-head attention over the cache, rotary on q and k."""

    def __init__(self, config: LlamaGenConfig):
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        self.wqkv = Linear(config.dim, 3 * config.dim, bias=False)
        self.wo = Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None, start: int | CacheSlots, layer: int) -> Tensor:
        """(B, T, D) -> (B, T, D); with a cache, entries are written at `start`."""
        qkv = self.wqkv(x).unflatten(-1, (3, self.heads, self.head_dim))
        q, k = rotate(qkv[:, :, :2], rope).transpose(1, 3).unbind(2)
        v = qkv[:, :, 2].transpose(1, 2)
        k, v = (k.to(v.dtype), v) if cache is None else cache.write(layer, start, k, v)
        return self.wo(attend(q, k, v, mask).to(x.dtype))


class FeedForward(Fused):
    """SwiGLU: w2(silu(w1 x) · w3 x)."""

    joins = ("w1", "w3")

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.w1 = Linear(dim, hidden, bias=False)
        self.w3 = Linear(dim, hidden, bias=False)
        self.w2 = Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return self.w2(gated(self.products(x)))


class Block(nn.Module):
    """Pre-norm transformer block; dropout only while training."""

    def __init__(self, config: LlamaGenConfig):
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.feed_forward = FeedForward(config.dim, config.ffn)

    def forward(
        self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None, start: int | CacheSlots, layer: int, dropout: float
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + F.dropout(self.attention(self.attention_norm(x), rope, mask, cache, start, layer), dropout, self.training)
        return x + F.dropout(self.feed_forward(self.ffn_norm(x)), dropout, self.training)


class CaptionProjection(nn.Module):
    """fc2(gelu(fc1 x)), no biases, so that a zero feature row stays zero."""

    def __init__(self, caption_dim: int, dim: int):
        super().__init__()
        self.fc1 = Linear(caption_dim, dim, bias=False)
        self.fc2 = Linear(dim, dim, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """(..., caption_dim) -> (..., D)."""
        return self.fc2(F.gelu(self.fc1(features), approximate="tanh"))


class CaptionEmbedding(nn.Module):
    """Text features to condition embeddings, with the learned features of "no caption"."""

    def __init__(self, config: LlamaGenConfig):
        super().__init__()
        self.cap_proj = CaptionProjection(config.caption_dim, config.dim)
        self.register_buffer("uncond_embedding", torch.randn(config.caption_tokens, config.caption_dim) / config.caption_dim**0.5)


class LlamaGen(nn.Module):
    """The transformer. Condition embeddings come first, then one embedding an image token; fixed length, no end token."""

    def __init__(self, config: LlamaGenConfig):
        super().__init__()
        self.config = config
        self.cls_embedding = CaptionEmbedding(config)
        self.tok_embeddings = nn.Embedding(config.vocab, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = Linear(config.dim, config.vocab, bias=False)

    def rope(self) -> Tensor:
        """Rotation rows of all positions, float32 (C + grid² + slack, head_dim / 2, 2)."""
        c = self.config
        return rope_table(c.caption_tokens, c.grid, c.head_dim, c.rope_base, ROPE_SLACK).to(self.output.weight.device)

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        mask: Tensor | None,
        cache: KVCache | None = None,
        dropout: float = 0.0,
        start: int | CacheSlots | None = None,
    ) -> Tensor:
        """Embeddings (B, T, D) at the positions of `rope` (T, …) to features after the final norm, (B, T, D).

        Args:
            mask: bool, broadcastable to (B, H, T, S), True = visible.
            start: where the entries go in the cache; None: behind the committed ones.
        """
        if start is None:
            start = 0 if cache is None else cache.committed
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, mask, cache, start, i, dropout)
        return self.norm(x)
