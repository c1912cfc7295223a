"""EAGLE-1 drafter in LANTERN's layout: one decoder layer over (embedding of the next token, target feature).

Source: EAGLE (Li et al., arXiv 2401.15077), as trained for LlamaGen by LANTERN (arXiv 2410.03355). Its output goes straight into the
target's head and is the feature of the next draft step. Shapes: B guidance rows, T entries, D width, V codes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..sampling import draw, draw_distinct
from .layers import KVCache, RMSNorm, ancestors, attend, depths, eager_rope, rope_table, rotate
from .llamagen import ROPE_SLACK
from .protocols import Draft, ToProbs, chain
from .target import SLACK, mixed


@dataclass(frozen=True)
class EagleConfig:
    """Sizes of a drafter. `caption_tokens` and `grid` are its target's; its own table has one zero row less."""

    dim: int = 1280
    heads: int = 20
    ffn: int = 3584
    vocab: int = 16384
    caption_tokens: int = 120
    grid: int = 16
    norm_eps: float = 1e-6
    bias: bool = True


class SelfAttention(nn.Module):
    """Attention with separate projections, rotary on q and k."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None, start: int) -> Tensor:
        """(B, T, D) -> (B, T, D); with a cache, entries are written at `start`."""
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(torch.stack([q, k], dim=2), rope).transpose(1, 3).unbind(2)
        v = v.transpose(1, 2)
        k, v = (k.to(v.dtype), v) if cache is None else cache.write(0, start, k, v)
        return self.o_proj(attend(q, k, v, mask).to(x.dtype))


class Mlp(nn.Module):
    """SwiGLU in Llama's names."""

    def __init__(self, dim: int, ffn: int):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(dim, ffn, bias=False), nn.Linear(dim, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Decoder layer without a norm in front of the attention."""

    def __init__(self, config: EagleConfig):
        super().__init__()
        self.self_attn = SelfAttention(config.dim, config.heads)
        self.mlp = Mlp(config.dim, config.ffn)
        self.post_attention_layernorm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None, start: int) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.self_attn(x, rope, mask, cache, start)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle(nn.Module):
    """The drafter's weights. Entry t pairs the target's feature at position t with the embedding of the token at t + 1."""

    def __init__(self, config: EagleConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.dim)
        self.fc = nn.Linear(2 * config.dim, config.dim, bias=config.bias)
        self.layers = nn.ModuleList([Layer(config)])

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
        self.feature = model.fc.weight.new_zeros(rows, 1, c.dim)  # output of the last observed entry

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        """Take in committed features (B, T, D); condition positions in front pair with the embedding of code 0."""
        start, count = self.cache.committed, hidden.shape[1]
        entries = F.pad(tokens.to(hidden.device), (count - len(tokens), 0))
        mask = None if start == 0 or count == 1 else F.pad(ancestors(chain(count)), (start, 0), value=True).to(hidden.device)
        output = self.model(hidden, entries[None], self.rope[start : start + count], mask, self.cache, start)
        self.feature = output[:, -1:].contiguous()
        self.cache.keep(list(range(count)))

    def propose(self, shape: tuple[int, ...], to_probs: ToProbs, generator: torch.Generator) -> Draft:
        """Draft behind the last observed token; the entries of the draft are overwritten in the next round.

        A chain is drawn token by token; the children of a tree's node are drawn from its row without replacement.
        """
        return self._chain(shape, to_probs, generator) if shape == chain(len(shape)) else self._tree(shape, to_probs, generator)

    def _rows(self, features: Tensor, to_probs: ToProbs) -> Tensor:
        return to_probs(mixed(self.head(features), self.scale))

    def _chain(self, shape: tuple[int, ...], to_probs: ToProbs, generator: torch.Generator) -> Draft:
        feature, tokens, rows = self.feature, [], []
        for step in range(len(shape)):
            if step:
                at = self.cache.committed + step - 1
                feature = self.model(feature, tokens[-1][None], self.rope[at : at + 1], None, self.cache, at)
            rows.append(self._rows(feature, to_probs))
            tokens.append(draw(rows[-1], generator))
        if not rows:
            return Draft(torch.empty(0, dtype=torch.long), torch.empty(0, self.model.config.vocab), shape, 0)
        return Draft(torch.cat(tokens), torch.cat(rows), shape, len(shape))

    def _tree(self, shape: tuple[int, ...], to_probs: ToProbs, generator: torch.Generator) -> Draft:
        """Level by level: one pass over the nodes of a level that have children, then their children are drawn."""
        start, device = self.cache.committed, self.feature.device
        below: dict[int, list[int]] = {}
        for node, parent in enumerate(shape):
            below.setdefault(parent, []).append(node)
        depth, seen = depths(shape), ancestors(shape).to(device)
        tokens = torch.empty(len(shape), dtype=torch.long, device=device)
        rows = self._rows(self.feature, to_probs)
        q = rows.new_empty(len(shape), rows.shape[-1])
        features, of_parent = self.feature, {-1: 0}  # features of the level above, and each node's place among them
        entries: list[int] = []  # nodes in the cache behind the committed entries, in order
        calls, level = 1, [-1]
        while True:
            siblings = draw_distinct(rows, max(len(below[node]) for node in level), generator)
            for place, node in enumerate(level):
                q[below[node]] = rows[place]
                tokens[below[node]] = siblings[place, : len(below[node])]
            inner = [child for node in level for child in below[node] if child in below]
            if not inner:
                return Draft(tokens, q, shape, calls)
            entries += inner
            hidden = features[:, [of_parent[shape[node]] for node in inner]]
            at, rank = start + len(entries) - len(inner), start + depth[inner[0]]
            mask = F.pad(seen[inner][:, entries], (start, 0), value=True)
            rope = self.rope[rank : rank + 1].expand(len(inner), *self.rope.shape[1:])
            features = self.model(hidden, tokens[inner][None], rope, mask, self.cache, at)
            rows = self._rows(features, to_probs)
            calls, level, of_parent = calls + 1, inner, {node: i for i, node in enumerate(inner)}
