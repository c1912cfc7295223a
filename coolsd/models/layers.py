"""Pieces shared by the transformer targets and drafters: norm, 2-D rotary table, cached attention, gated feed-forward.

Knows nothing of sampling or of methods. Shapes: B rows (guidance), T new tokens, S live cache length, H heads, D width.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCK = 256  # entries by which the looked-at part of a cache grows where shapes are static


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


@dataclass(frozen=True)
class Slots:
    """Places of a pass in a cache as a tensor (T,), and how much of the cache is looked at: shapes do not depend on the places."""

    index: Tensor
    span: int


@dataclass(frozen=True)
class Front:
    """Where the committed entries of a cache end: a number, or, for passes of static shapes, a tensor () and the span looked at.

    pad: what a family needs besides, in the same form: entries in front that the unconditional row does not have.
    """

    start: int | Tensor
    span: int | None = None
    pad: int | Tensor = 0

    def slots(self, before: int, count: int) -> "int | Slots":
        """Places of `count` entries, `before` of the same pass or draft preceding them."""
        if self.span is None:
            return self.start + before
        return Slots(self.start + before + torch.arange(count, device=self.start.device), self.span)

    def mask(self, seen: Tensor) -> Tensor:
        """What entries see: all that is committed, and of the U entries behind that what seen (T, U) says; (T, start + U) or (T, span)."""
        if self.span is None:
            return F.pad(seen, (self.start, 0), value=True)
        place = torch.arange(self.span, device=seen.device) - self.start
        inside = (place >= 0) & (place < seen.shape[1])
        return (place < 0) | inside & seen[:, place.clamp(0, seen.shape[1] - 1)]


class KVCache:
    """Preallocated keys and values of every layer, (layers, B, H, length, head_dim); committed entries come first.

    A pass writes its entries behind the committed ones with `write`; `keep` then makes some of them permanent. On a CPU they are
    float32 whatever the weights are: attention of one query over bfloat16 entries takes five times as long there.
    """

    def __init__(self, layers: int, rows: int, heads: int, length: int, head_dim: int, like: Tensor):
        dtype = torch.float32 if like.device.type == "cpu" else like.dtype
        keys = like.new_zeros(layers, rows, heads, length, head_dim, dtype=dtype)
        self.place(keys, torch.zeros_like(keys))
        self.block, self.least = BLOCK, 0
        self.committed = 0

    def place(self, keys: Tensor, values: Tensor) -> None:
        """Work in these tensors from now on, of the same shape."""
        self.keys, self.values = keys, values
        self._layers = list(zip(keys.unbind(), values.unbind(), strict=True))

    def span(self, live: int) -> int:
        """How much of the cache a pass of static shapes looks at for so many live entries: whole blocks, `least` entries at least."""
        return min(-(-max(live, self.least) // self.block) * self.block, self.keys.shape[3])

    def write(self, layer: int, start: int | Slots, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v (B, H, T, head_dim) at `start`; return all live keys and values (B, H, start + T, head_dim), or those of a span."""
        keys, values = self._layers[layer]
        if isinstance(start, Slots):
            keys.index_copy_(2, start.index, k.to(keys.dtype))
            values.index_copy_(2, start.index, v.to(keys.dtype))
            return keys.narrow(2, 0, start.span), values.narrow(2, 0, start.span)
        count = k.shape[2]
        keys.narrow(2, start, count).copy_(k)
        values.narrow(2, start, count).copy_(v)
        return keys.narrow(2, 0, start + count), values.narrow(2, 0, start + count)

    def keep(self, path: list[int]) -> None:
        """Commit the entries at these offsets behind the committed length, in this order; the rest is forgotten."""
        if path != list(range(len(path))):
            source = torch.tensor(path).to(self.keys.device, non_blocking=True) + self.committed
            target = slice(self.committed, self.committed + len(path))
            self.keys[:, :, :, target] = self.keys[:, :, :, source]
            self.values[:, :, :, target] = self.values[:, :, :, source]
        self.committed += len(path)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention (B, H, T, head_dim) -> (B, T, H · head_dim), in the dtype of k and v.

    mask: bool, True = visible. None is plain causal when nothing precedes (T = S), and everything visible for a single query.
    """
    q = q.to(k.dtype)
    tokens, live = q.shape[2], k.shape[2]
    assert mask is not None or tokens in (1, live), "a pass behind committed entries needs a mask"
    causal = mask is None and tokens > 1
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal).transpose(1, 2).flatten(2)


class Fused(nn.Module):
    """A module with linear layers that read the same input, whose weights can be joined to one matrix: one product in place of several.

    The layers keep their names and parameters, which become views of the matrix: nothing is stored twice. In training, and when the
    parameters were moved or replaced since, the layers are used one by one.
    """

    joins: tuple[str, ...]  # names of the layers
    joined: Tensor | None = None

    def fuse(self) -> None:
        """Join the weights; nothing happens where they are."""
        if self.is_fused():
            return
        layers = [getattr(self, name) for name in self.joins]
        self.joined = torch.cat([layer.weight.detach() for layer in layers])
        for layer, part in zip(layers, self.joined.split([layer.out_features for layer in layers]), strict=True):
            layer.weight.data = part

    def is_fused(self) -> bool:
        """Whether the parameters are views of the joined matrix."""
        return self.joined is not None and self.joined.data_ptr() == getattr(self, self.joins[0]).weight.data_ptr()

    def products(self, x: Tensor) -> Tensor:
        """Outputs of all layers side by side, (..., in) -> (..., out of all)."""
        if self.is_fused() and not self.training:
            return F.linear(x, self.joined)
        return torch.cat([getattr(self, name)(x) for name in self.joins], dim=-1)


def fuse(*models: nn.Module | None) -> None:
    """Join what can be joined in models, for inference."""
    for model in models:
        for module in model.modules() if model is not None else ():
            if isinstance(module, Fused):
                module.fuse()


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
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        if norm_rows:
            self.q_norm, self.k_norm = HeadNorm(norm_rows, dim // heads), HeadNorm(norm_rows, dim // heads)
        self.normed = norm_rows > 0

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None, start: int | Slots, layer: int) -> Tensor:
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
        self.gate_proj, self.up_proj = nn.Linear(dim, ffn, bias=False), nn.Linear(dim, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, dim, bias=False)

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

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None, start: int | Slots, layer: int = 0) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.self_attn(self.input_layernorm(x), rope, mask, cache, start, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


@lru_cache(64)
def ancestors(parents: tuple[int, ...]) -> Tensor:
    """(T, T) bool: entry i sees j when j is i or lies on i's path to the root. parents[i] < i; -1 marks a root. Not to be written to."""
    seen = torch.eye(len(parents), dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            seen[i] |= seen[parent]
    return seen


@lru_cache(64)
def depths(parents: tuple[int, ...]) -> tuple[int, ...]:
    """Depth of every entry; a root (parent -1) has depth 0."""
    out: list[int] = []
    for parent in parents:
        out.append(out[parent] + 1 if parent >= 0 else 0)
    return tuple(out)


@lru_cache(64)
def tree_tensors(parents: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Depths (T,) and ancestors (T, T) of the entries of a pass, on the device. Not to be written to."""
    return torch.tensor(depths(parents)).to(device, non_blocking=True), ancestors(parents).to(device, non_blocking=True)
