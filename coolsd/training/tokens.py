"""Tokens and captions on disk as batches for the target and the drafter.

Condition rows carry no position (their RoPE rows are zero) and padded ones are invisible, so a batch is made of captions of one
length: no padding, no mask, plain causal attention. A dropped caption becomes the last rows of the unconditional features.
"""

import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..models.text import TextTable


@dataclass(frozen=True)
class Batch:
    """tokens (B, n) int64; caption features (B, C', caption_dim), all of one length C'; dropped (B,) bool: unconditional rows."""

    tokens: Tensor
    features: Tensor
    dropped: Tensor


class TokenData:
    """Tokens of every variant of every picture of one split, with the wordings of its caption.

    Args:
        folder: holds `tokens_<variant>_<part>.npz`; `captions`: CSV with columns file, split, captions (wordings joined by '|').
    """

    def __init__(self, folder: Path, captions: Path, split: str, text: TextTable):
        with captions.open(newline="", encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
        chosen = {i for i, row in enumerate(rows) if row["split"] == split}
        self.text = text
        self.wordings = {i: [text.ids(w) for w in rows[i]["captions"].split("|")] for i in chosen}
        self.variants: dict[int, list[np.ndarray]] = defaultdict(list)
        for file in sorted(folder.glob("tokens_*.npz" if split == "train" else "tokens_0_*.npz")):
            with np.load(file) as archive:
                for number, tokens in zip(archive["rows"], archive["tokens"], strict=True):
                    if int(number) in chosen:
                        self.variants[int(number)].append(tokens)
        if not self.variants:
            raise ValueError(f"No tokens of the {split} split in {folder.name}. Run `python -m coolsd train encode` first.")

    def __len__(self) -> int:
        return len(self.variants)

    def batches(self, size: int, seed: int, drop: float = 0.1) -> Iterator[Batch]:
        """Endless batches: a fresh order each epoch, a random variant and wording each time. Same seed, same batches."""
        random = np.random.default_rng(seed)
        numbers = np.array(sorted(self.variants))
        waiting: dict[int, list[tuple[np.ndarray, list[int], bool]]] = defaultdict(list)
        while True:
            for number in random.permutation(numbers):
                tokens = self.variants[number][random.integers(len(self.variants[number]))]
                words = self.wordings[number][random.integers(len(self.wordings[number]))]
                bucket = waiting[len(words)]
                bucket.append((tokens, words, bool(random.random() < drop)))
                if len(bucket) == size:
                    yield self._batch(bucket)
                    bucket.clear()

    def _batch(self, items: list[tuple[np.ndarray, list[int], bool]]) -> Batch:
        tokens, words, dropped = zip(*items, strict=True)
        features = self.text.table[torch.tensor(words)].float()
        torch._dynamo.mark_dynamic(features, 1)  # one compiled graph for all caption lengths
        return Batch(torch.from_numpy(np.stack(tokens).astype(np.int64)), features, torch.tensor(dropped))
