"""EAGLE-1 drafter in LANTERN's layout: one decoder layer over (embedding of the next token, target feature).

Source: EAGLE (Li et al., arXiv 2401.15077), as trained for LlamaGen by LANTERN (arXiv 2410.03355). Its output goes straight into the
target's head and is the feature of the next draft step. Shapes: B guidance rows, T entries, D width, V codes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..sampling import draw
from .layers import KVCache, RMSNorm, attend, rope_table, rotate
from .protocols import Draft, ToProbs, chain
from .target import mixed

SLACK = 32


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

    @property
    def positions(self) -> int:
        """Entries of a whole picture, drafts past the end included."""
        return self.caption_tokens - 1 + self.grid**2 + SLACK


class SelfAttention(nn.Module):
    """Attention with separate projections, rotary on q and k."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None, start: int) -> Tensor:
        """(B, T, D) -> (B, T, D); with a cache, entries are written at `start`."""
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = rotate(q, rope).transpose(1, 2), rotate(k, rope).transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            k, v = cache.write(0, start, k, v)
        return self.o_proj(attend(q, k, v, mask))


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
        return rope_table(c.caption_tokens - 1, c.grid, c.dim // c.heads, slack=SLACK).to(self.fc.weight.device)

    def forward(
        self, hidden: Tensor, tokens: Tensor, rope: Tensor, mask: Tensor | None = None, cache: KVCache | None = None, start: int = 0
    ) -> Tensor:
        """Predicted features (B, T, D) from features (B, T, D) and the tokens that follow them, (B, T) or (1, T)."""
        embedded = self.embed_tokens(tokens).to(hidden.dtype).expand(hidden.shape[0], -1, -1)
        return self.layers[0](self.fc(torch.cat([embedded, hidden], dim=-1)), rope, mask, cache, start)


class EagleDrafter:
    """Implements protocols.Drafter for one picture.

    Args:
        model: shared weights. head: the target's output layer. scale: guidance, the same as the target's. rope: model.rope().
    """

    def __init__(self, model: Eagle, head: nn.Linear, scale: float, rope: Tensor):
        self.model, self.head, self.scale, self.rope = model, head, scale, rope
        c = model.config
        rows = 1 if scale == 1 else 2
        self.cache = KVCache(1, rows, c.heads, c.positions, c.dim // c.heads, model.fc.weight)
        self.causal = torch.ones(c.positions, c.positions, dtype=torch.bool, device=rope.device).tril()
        self.feature = model.fc.weight.new_zeros(rows, 1, c.dim)  # output of the last observed entry

    def _pass(self, hidden: Tensor, tokens: Tensor, start: int) -> Tensor:
        end = start + hidden.shape[1]
        mask = None if start == 0 or end - start == 1 else self.causal[start:end, :end]
        return self.model(hidden, tokens[None], self.rope[start:end], mask, self.cache, start)

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        """Take in committed features (B, T, D); condition positions in front pair with the embedding of code 0."""
        entries = F.pad(tokens.to(hidden.device), (hidden.shape[1] - len(tokens), 0))
        self.feature = self._pass(hidden, entries, self.cache.committed)[:, -1:]
        self.cache.keep(list(range(len(entries))))

    def propose(self, shape: tuple[int, ...], to_probs: ToProbs, generator: torch.Generator) -> Draft:
        """Draft a chain behind the last observed token; its cache entries are overwritten in the next round."""
        assert shape == chain(len(shape)), "this drafter drafts chains"
        feature, tokens, rows = self.feature, [], []
        for step in range(len(shape)):
            if step:
                feature = self._pass(feature, tokens[-1], self.cache.committed + step - 1)
            rows.append(to_probs(mixed(self.head(feature), self.scale)))
            tokens.append(draw(rows[-1], generator))
        return Draft(torch.cat(tokens), torch.cat(rows), shape, len(shape))
