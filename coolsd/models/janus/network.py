"""Janus-Pro's path to pictures, in transformers' parameter names: a Llama with embeddings and a head of its own for codes.

Source: Janus-Pro (arXiv 2501.17811), as transformers' `JanusForConditionalGeneration` runs it in its image mode. The path that looks at
pictures is left out. Knows nothing of prompts or guidance. Shapes: B guidance branches, T entries, D width, V codes.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import CacheSlots, KVCache
from ..layers import LlamaDecoder, LlamaSizes
from ..packed import Linear


@dataclass(frozen=True)
class JanusConfig(LlamaSizes):
    """Sizes; the defaults are the 1B's. `vocab` is of the text; `grid`: codes a side of the picture."""

    dim: int = 2048
    layers: int = 24
    heads: int = 16
    ffn: int = 5632
    vocab: int = 102400
    codes: int = 16384
    code_dim: int = 8
    grid: int = 24


PRO_7B = JanusConfig(dim=4096, layers=30, heads=32, ffn=11008)


class CodeAligner(nn.Module):
    """Code embeddings (..., code_dim) to the width of the text's, (..., D)."""

    def __init__(self, config: JanusConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.code_dim, config.dim)
        self.hidden_layers = nn.ModuleList([Linear(config.dim, config.dim)])

    def forward(self, x: Tensor) -> Tensor:
        """(..., code_dim) -> (..., D)."""
        return self.hidden_layers[0](F.gelu(self.fc1(x)))


class CodeHead(nn.Module):
    """Features to logits of the codes."""

    def __init__(self, config: JanusConfig):
        super().__init__()
        self.proj_out = Linear(config.dim, config.dim)
        self.vision_head = Linear(config.dim, config.codes)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        return self.vision_head(F.gelu(self.proj_out(hidden)))


class Janus(nn.Module):
    """The decoder with the embeddings and the head of codes."""

    def __init__(self, config: JanusConfig):
        super().__init__()
        self.config = config
        self.language_model = LlamaDecoder(config)
        self.generation_embeddings = nn.Embedding(config.codes, config.code_dim)
        self.generation_aligner = CodeAligner(config)
        self.generation_head = CodeHead(config)

    def embed(self, codes: Tensor) -> Tensor:
        """Embeddings (..., D) of codes (...)."""
        return self.generation_aligner(self.generation_embeddings(codes))

    def forward(
        self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: KVCache | None = None, start: int | CacheSlots | None = None
    ) -> Tensor:
        """Features after the final norm, (B, T, D), of embeddings (B, T, D); see LlamaDecoder."""
        return self.language_model(x, rope, mask, cache, start)
