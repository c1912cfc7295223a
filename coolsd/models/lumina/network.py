"""Chameleon's transformer, the target of Lumina-mGPT, in transformers' parameter names.

Source: Chameleon (arXiv 2405.09818): a Llama with layer norms on q and k. Written out here, as transformers' class forbids image
codes in its logits and keeps no preallocated cache. Knows nothing of prompts, codes or guidance.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from ..cache import CacheSlots, KVCache
from ..layers import LlamaLayer, RMSNorm


@dataclass(frozen=True)
class ChameleonConfig:
    """Sizes; the defaults are the 7B's. `norm_rows`: rows of the q and k norms in the file, 1 or one a head."""

    dim: int = 4096
    layers: int = 32
    heads: int = 32
    ffn: int = 11008
    vocab: int = 65536
    norm_rows: int = 1
    norm_eps: float = 1e-5
    rope_base: float = 10000.0

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.heads


class Decoder(nn.Module):
    """Embeddings, layers and final norm."""

    def __init__(self, config: ChameleonConfig):
        super().__init__()
        c = config
        self.embed_tokens = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(
            LlamaLayer(c.dim, c.heads, c.ffn, c.norm_eps, input_norm=True, norm_rows=c.norm_rows, halves=True) for _ in range(c.layers)
        )
        self.norm = RMSNorm(c.dim, c.norm_eps)


class Chameleon(nn.Module):
    """The decoder with its head."""

    def __init__(self, config: ChameleonConfig):
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.dim, config.vocab, bias=False)

    def forward(
        self, tokens: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None = None, start: int | CacheSlots | None = None
    ) -> Tensor:
        """Features after the final norm, (B, T, D), of tokens (B, T).

        Args:
            rope: rows of line_table, (T, …) or (B, T, …).
            mask: bool, broadcastable to (B, H, T, S), True = visible.
            start: where the entries go in the cache; None: behind the committed ones.
        """
        x = self.model.embed_tokens(tokens)
        if start is None:
            start = 0 if cache is None else cache.committed
        for i, layer in enumerate(self.model.layers):
            x = layer(x, rope, mask, cache, start, i)
        return self.model.norm(x)
