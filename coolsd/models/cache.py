"""The key/value cache of a picture: where the entries of a pass go, what they see, and which of them stay.

Knows nothing of networks. Shapes: B guidance branches, T new tokens, S live cache length, H heads.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..trees import MAX_NODES

SLACK = MAX_NODES  # cache entries behind the last cell, for the tree of the last round
BLOCK = 256  # entries by which the looked-at part of a cache grows where shapes are static


@dataclass(frozen=True)
class CacheSlots:
    """Places of a pass in a cache as a tensor (T,), and how much of the cache is looked at: shapes do not depend on the places."""

    index: Tensor
    span: int


@dataclass(frozen=True)
class CachePosition:
    """Where the committed entries of a cache end: a number, or, for passes of static shapes, a tensor () and the span looked at.

    pad: what a family needs besides, in the same form: entries in front that the unconditional branch does not have.
    """

    start: int | Tensor
    span: int | None = None
    pad: int | Tensor = 0

    def slots(self, before: int, count: int) -> "int | CacheSlots":
        """Places of `count` entries, `before` of the same pass or draft preceding them."""
        if self.span is None:
            return self.start + before
        return CacheSlots(self.start + before + torch.arange(count, device=self.start.device), self.span)

    def mask(self, ancestry: Tensor) -> Tensor:
        """What entries see: all that is committed, and of the U entries behind that ancestry (T, U) says; (T, start + U) or (T, span)."""
        if self.span is None:
            return F.pad(ancestry, (self.start, 0), value=True)
        place = torch.arange(self.span, device=ancestry.device) - self.start
        inside = (place >= 0) & (place < ancestry.shape[1])
        return (place < 0) | inside & ancestry[:, place.clamp(0, ancestry.shape[1] - 1)]

    def mask_unless_all(self, ancestry: Tensor) -> Tensor | None:
        """`mask`, or None for a lone entry with nothing but committed ones before it, which sees everything: attention is faster then."""
        return None if self.span is None and ancestry.shape[1] == 1 else self.mask(ancestry)


class KVCache:
    """Preallocated keys and values of every layer, (layers, B, H, length, head_dim); committed entries come first.

    A pass writes its entries behind the committed ones with `write`; `keep` then makes some of them permanent. On a CPU they are
    float32 whatever the weights are: attention of one query over bfloat16 entries takes five times as long there.
    """

    def __init__(self, layers: int, branches: int, heads: int, length: int, head_dim: int, like: Tensor):
        dtype = torch.float32 if like.device.type == "cpu" else like.dtype
        keys = like.new_zeros(layers, branches, heads, length, head_dim, dtype=dtype)
        self.place(keys, torch.zeros_like(keys))
        self.block, self.least = BLOCK, 0
        self.committed = 0

    def place(self, keys: Tensor, values: Tensor) -> None:
        """Work in these tensors from now on, of the same shape."""
        self.keys, self.values = keys, values
        self._layers = list(zip(keys.unbind(), values.unbind(), strict=True))

    def span(self, live: int) -> int:
        """Entries of the cache that a pass of static shapes attends to when `live` are in use: whole blocks, at least `least`."""
        return min(-(-max(live, self.least) // self.block) * self.block, self.keys.shape[3])

    def write(self, layer: int, start: int | CacheSlots, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v (B, H, T, head_dim) at `start`; return all live keys and values (B, H, start + T, head_dim), or those of a span."""
        keys, values = self._layers[layer]
        if isinstance(start, CacheSlots):
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


@lru_cache(64)
def ancestors(parents: tuple[int, ...]) -> Tensor:
    """(T, T) bool: entry i sees j when j is i or lies on i's path to the root. parents[i] < i; -1 marks a root. Not to be written to."""
    ancestry = torch.eye(len(parents), dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            ancestry[i] |= ancestry[parent]
    return ancestry


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
