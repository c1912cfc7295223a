"""Pieces shared by the transformer targets and drafters: norm, 2-D rotary table, cached attention, gated feed-forward.

Knows nothing of sampling or of methods. Shapes: B guidance branches, T new tokens, S live cache length, H heads, D width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cache import CacheSlots, KVCache
from .packed import Fused, Linear

ROPE_SLACK = 32  # rows past the last cell, for drafts that look past the end


class RMSNorm(nn.Module):
    """x / rms(x) · weight; the division in float32, the scaling in the dtype of x (LlamaGen)."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return F.rms_norm(x.float(), x.shape[-1:], eps=self.eps).to(x.dtype) * self.weight


def rope_table(zero_rows: int, grid: int, head_dim: int, base: float = 10000.0, slack: int = 0) -> Tensor:
    """Rotations of LlamaGen's 2-D RoPE as (cos, sin), float32 (zero_rows + grid² + slack, head_dim / 2, 2).

    The first half of a head's pairs turns by the row of the cell, the second by its column. Condition rows are *zero*, not the
    identity: they erase q and k, so that every image query looks at all condition values alike. `slack` zero rows follow the last
    cell for drafts that look past the end.
    """
    quarter = head_dim // 4
    freq = base ** -(torch.arange(quarter, dtype=torch.float32) * 4 / head_dim)
    angle = torch.arange(grid, dtype=torch.float32)[:, None] * freq
    row = angle[:, None].expand(grid, grid, quarter)
    column = angle[None].expand(grid, grid, quarter)
    cells = torch.cat([row, column], dim=-1).reshape(grid * grid, 2 * quarter)
    table = torch.polar(torch.ones_like(cells), cells)
    return F.pad(torch.view_as_real(table), (0, 0, 0, 0, zero_rows, slack)).contiguous().view(-1, 2 * quarter, 2)


def line_table(length: int, head_dim: int, base: float = 10000.0) -> Tensor:
    """Rotations of the usual 1-D RoPE, (length, head_dim / 2, 2)."""
    freq = base ** -(torch.arange(head_dim // 2, dtype=torch.float32) * 2 / head_dim)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * freq
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def rotate(x: Tensor, rope: Tensor, halves: bool = False) -> Tensor:
    """Turn the pairs of x (B, T, N, H, head_dim) by rope, in float32 and returned so.

    Args:
        rope: (T, head_dim / 2, 2), which compilers fuse, or its complex view (T, head_dim / 2), which is four times faster without
            one; or one of these for each row, with B in front.
        halves: element i belongs with i + head_dim / 2 (the layout of Llama files in transformers), not 2i with 2i + 1 (LlamaGen).
    """
    x = x.float()
    if rope.is_complex() and not halves:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * rope[..., None, None, :]).flatten(-2)
    parts = torch.view_as_real(rope) if rope.is_complex() else rope
    cos, sin = parts[..., None, None, :, :].unbind(-1)
    a, b = x.chunk(2, -1) if halves else x.unflatten(-1, (-1, 2)).unbind(-1)
    turned = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat(turned, dim=-1) if halves else torch.stack(turned, dim=-1).flatten(-2)


def eager_rope(rope: Tensor) -> Tensor:
    """The form of a rotary table that is fastest without a compiler on its device."""
    return rope if rope.device.type == "mps" else torch.view_as_complex(rope)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention (B, H, T, head_dim) -> (B, T, H · head_dim), in the dtype of k and v.

    mask: bool, True = visible. None is plain causal when nothing precedes (T = S), and everything visible for a single query.
    """
    q = q.to(k.dtype)
    tokens, live = q.shape[2], k.shape[2]
    assert mask is not None or tokens in (1, live), "a pass behind committed entries needs a mask"
    causal = mask is None and tokens > 1
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal).transpose(1, 2).flatten(2)


class HeadNorm(nn.Module):
    """Layer norm over each head, with weights for every head or one row for all."""

    def __init__(self, rows: int, head_dim: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(rows, head_dim)), nn.Parameter(torch.zeros(rows, head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """(..., H, head_dim) -> the same."""
        return F.layer_norm(x, x.shape[-1:], eps=1e-5) * self.weight + self.bias


class LlamaAttention(Fused):
    """Attention in Llama's parameter names, rotary on q and k, with Chameleon's norms on them where `norm_rows` is not 0."""

    joins = ("q_proj", "k_proj", "v_proj")

    def __init__(self, dim: int, heads: int, norm_rows: int, halves: bool):
        super().__init__()
        assert norm_rows in (0, 1, heads), "q and k norms come for every head or for all together"
        self.heads, self.halves = heads, halves
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (Linear(dim, dim, bias=False) for _ in range(4))
        if norm_rows:
            self.q_norm, self.k_norm = HeadNorm(norm_rows, dim // heads), HeadNorm(norm_rows, dim // heads)
        self.normed = norm_rows > 0

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None, start: int | CacheSlots, layer: int) -> Tensor:
        """(B, T, D) -> (B, T, D); with a cache, entries are written at `start`."""
        qkv = self.products(x).unflatten(-1, (3, self.heads, -1))
        qk = torch.stack([self.q_norm(qkv[:, :, 0]), self.k_norm(qkv[:, :, 1])], dim=2) if self.normed else qkv[:, :, :2]
        q, k = rotate(qk, rope, self.halves).transpose(1, 3).unbind(2)
        v = qkv[:, :, 2].transpose(1, 2)
        k, v = (k.to(v.dtype), v) if cache is None else cache.write(layer, start, k, v)
        return self.o_proj(attend(q, k, v, mask).to(x.dtype))


def gated(both: Tensor) -> Tensor:
    """silu(gate) · up of (..., 2 · ffn)."""
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


class LlamaMlp(Fused):
    """SwiGLU in Llama's parameter names."""

    joins = ("gate_proj", "up_proj")

    def __init__(self, dim: int, ffn: int):
        super().__init__()
        self.gate_proj, self.up_proj = Linear(dim, ffn, bias=False), Linear(dim, ffn, bias=False)
        self.down_proj = Linear(ffn, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return self.down_proj(gated(self.products(x)))


class LlamaLayer(nn.Module):
    """Decoder layer in Llama's parameter names.

    Args:
        input_norm: a norm in front of the attention, which EAGLE's drafter for LlamaGen does not have.
        norm_rows: of Chameleon's norms on q and k: 0 for none, 1 for all heads, or one a head. halves: see rotate.
    """

    def __init__(self, dim: int, heads: int, ffn: int, eps: float, input_norm: bool, norm_rows: int = 0, halves: bool = False):
        super().__init__()
        self.self_attn = LlamaAttention(dim, heads, norm_rows, halves)
        self.mlp = LlamaMlp(dim, ffn)
        self.input_layernorm = RMSNorm(dim, eps) if input_norm else nn.Identity()
        self.post_attention_layernorm = RMSNorm(dim, eps)

    def forward(
        self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None, start: int | CacheSlots, layer: int = 0
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.self_attn(self.input_layernorm(x), rope, mask, cache, start, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


@dataclass(frozen=True)
class LlamaSizes:
    """Sizes of a decoder of such layers. `norm_rows`: see LlamaLayer."""

    dim: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    norm_rows: int = 0
    norm_eps: float = 1e-6
    rope_base: float = 10000.0

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.heads


class LlamaDecoder(nn.Module):
    """Embeddings, layers and final norm, in the parameter names of transformers."""

    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        s = sizes
        self.embed_tokens = nn.Embedding(s.vocab, s.dim)
        self.layers = nn.ModuleList(
            LlamaLayer(s.dim, s.heads, s.ffn, s.norm_eps, input_norm=True, norm_rows=s.norm_rows, halves=True) for _ in range(s.layers)
        )
        self.norm = RMSNorm(s.dim, s.norm_eps)

    def forward(
        self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None = None, start: int | CacheSlots | None = None
    ) -> Tensor:
        """Features after the final norm, (B, T, D), of embeddings (B, T, D).

        Args:
            rope: rows of line_table, (T, …) or (B, T, …).
            mask: bool, broadcastable to (B, H, T, S), True = visible.
            start: where the entries go in the cache; None: behind the committed ones.
        """
        if start is None:
            start = 0 if cache is None else cache.committed
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, mask, cache, start, i)
        return self.norm(x)


def prefix_mask(valid: Tensor, length: int, pads: str = "causal") -> Tensor:
    """Visibility for a sequence of `length` positions whose first C are condition tokens; (..., length, length) bool.

    Padded condition columns are hidden from every real query, in the unconditional branch too. What a *padded* query sees reaches
    no logit, only a drafter that reads those rows: `pads="self"` shows it itself (LlamaGen), `pads="causal"` all before it (the
    rule LANTERN's drafters were trained under).

    Args:
        valid: (..., C) bool, True = a real condition token.
    """
    c = valid.shape[-1]
    key_valid = F.pad(valid, (0, length - c), value=True)
    causal = torch.ones(length, length, dtype=torch.bool, device=valid.device).tril()
    if pads == "causal":
        return causal & (key_valid[..., None, :] | ~key_valid[..., :, None])
    return (causal & key_valid[..., None, :]) | torch.eye(length, dtype=torch.bool, device=valid.device)
