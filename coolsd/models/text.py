"""Meadow's text features: a frozen table of static token vectors (wordllama's, MIT) and its tokenizer.

A prompt becomes up to C token vectors, left-padded with zeros, as LlamaGen lays out its T5 features.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor


@dataclass(frozen=True)
class Conditioning:
    """Text features (C, caption_dim), zero where padded, and which of them are real, (C,) bool."""

    features: Tensor
    valid: Tensor


class TextTable:
    """Prompt to Conditioning by table look-up; no network."""

    def __init__(self, tokenizer: Tokenizer, table: Tensor, length: int):
        self.tokenizer, self.table, self.length = tokenizer, table, length

    @classmethod
    def load(cls, folder: Path, length: int) -> "TextTable":
        """From `text_tokenizer.json` and `text_table.safetensors` (key `embedding.weight`)."""
        table = load_file(folder / "text_table.safetensors")["embedding.weight"]
        return cls(Tokenizer.from_file(str(folder / "text_tokenizer.json")), table, length)

    def ids(self, prompt: str) -> list[int]:
        """Token ids of a lower-cased prompt, at most `length`; an empty list only for an empty prompt."""
        return self.tokenizer.encode(prompt.lower(), add_special_tokens=False).ids[: self.length]

    def __call__(self, prompt: str) -> Conditioning:
        """Left-padded features of one prompt, float32 on the CPU."""
        ids = self.ids(prompt)
        features = torch.zeros(self.length, self.table.shape[1])
        valid = torch.zeros(self.length, dtype=torch.bool)
        if ids:
            features[-len(ids) :] = self.table[torch.tensor(ids)].float()
            valid[-len(ids) :] = True
        return Conditioning(features, valid)
