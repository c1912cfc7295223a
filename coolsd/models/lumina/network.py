"""Chameleon's transformer, the target of Lumina-mGPT, in transformers' parameter names.

Source: Chameleon (arXiv 2405.09818): a Llama with layer norms on q and k. Written out here, as transformers' class forbids image
codes in its logits and keeps no preallocated cache. Knows nothing of prompts, codes or guidance.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from ..cache import CacheSlots, KVCache
from ..layers import LlamaDecoder, LlamaSizes


@dataclass(frozen=True)
class ChameleonConfig(LlamaSizes):
    """Sizes; the defaults are the 7B's. `norm_rows`: rows of the q and k norms in the file, 1 or one a head."""

    dim: int = 4096
    layers: int = 32
    heads: int = 32
    ffn: int = 11008
    vocab: int = 65536
    norm_rows: int = 1
    norm_eps: float = 1e-5


class Chameleon(nn.Module):
    """The decoder with its head."""

    def __init__(self, config: ChameleonConfig):
        super().__init__()
        self.config = config
        self.model = LlamaDecoder(config)
        self.lm_head = nn.Linear(config.dim, config.vocab, bias=False)

    def forward(
        self, tokens: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None = None, start: int | CacheSlots | None = None
    ) -> Tensor:
        """Features after the final norm, (B, T, D), of tokens (B, T); see LlamaDecoder."""
        return self.model(self.model.embed_tokens(tokens), rope, mask, cache, start)
