"""Meadow's text features: a frozen table of static token vectors (wordllama's, MIT) and its tokenizer.

A prompt becomes up to C token vectors, left-padded with zeros, as LlamaGen lays out its T5 features.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from ..checkpoints import LoadError, check_numbers, read_state, read_tokenizer
from ..prompt_domain import PromptDomain
from .network import Conditioning


class TextTable:
    """Prompt to Conditioning by table look-up; no network."""

    def __init__(self, tokenizer: Tokenizer, table: Tensor, length: int, domain: PromptDomain | None = None):
        self.tokenizer, self.table, self.length, self.domain = tokenizer, table, length, domain

    @classmethod
    def load(cls, folder: Path, length: int) -> "TextTable":
        """From `text_tokenizer.json` and `text_table.safetensors` (key `embedding.weight`), with the pair's words.json where there is one.

        Raises:
            LoadError: files that are missing or broken.
        """
        table = read_state(folder / "text_table.safetensors").get("embedding.weight")
        if table is None or table.ndim != 2:
            raise LoadError(f"text_table.safetensors in {folder} has no table embedding.weight.")
        check_numbers(table, f"text_table.safetensors in {folder}: embedding.weight")
        tokenizer = read_tokenizer(folder / "text_tokenizer.json")
        if len(table) < tokenizer.get_vocab_size():
            words = f"text_tokenizer.json has {tokenizer.get_vocab_size()} tokens"
            raise LoadError(f"text_table.safetensors in {folder} has {len(table)} rows, but {words}; they do not belong together.")
        return cls(tokenizer, table, length, PromptDomain.load(folder))

    def ids(self, prompt: str) -> list[int]:
        """Token ids of a lower-cased prompt, at most `length`; an empty list only for an empty prompt."""
        return self.tokenizer.encode(prompt.lower(), add_special_tokens=False).ids[: self.length]

    def unread(self, prompt: str) -> str:
        """The end of a prompt that does not fit, in lower case; empty where all of it does."""
        encoded = self.tokenizer.encode(prompt.lower(), add_special_tokens=False)
        return prompt.lower()[encoded.offsets[self.length][0] :] if len(encoded.ids) > self.length else ""

    def __call__(self, prompt: str) -> Conditioning:
        """Left-padded features of one prompt, float32 on the CPU."""
        ids = self.ids(prompt)
        features = torch.zeros(self.length, self.table.shape[1])
        valid = torch.zeros(self.length, dtype=torch.bool)
        if ids:
            features[-len(ids) :] = self.table[torch.tensor(ids)].float()
            valid[-len(ids) :] = True
        return Conditioning(features, valid)
