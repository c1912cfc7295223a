"""Tokens and captions on disk as batches for the target and the drafter.

Condition rows carry no position (their RoPE rows are zero) and padded ones are invisible, so a batch is made of captions of one
length: no padding, no mask, plain causal attention. A dropped caption becomes the last rows of the unconditional features.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.pictures import Record, read_records
from ..models.llamagen.text_table import TextTable


@dataclass(frozen=True)
class Batch:
    """tokens (B, n) int64; caption features (B, C', caption_dim), all of one length C'; dropped (B,) bool: unconditional branches."""

    tokens: Tensor
    features: Tensor
    dropped: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device."""
        return Batch(self.tokens.to(device), self.features.to(device), self.dropped.to(device))


@dataclass(frozen=True)
class Encoded:
    """What `train encode` stored of a picture in one variant: its mark (see `stamper`) when it was read, and its tokens (n,)."""

    stamp: str
    tokens: np.ndarray


def encoded(folder: Path) -> dict[tuple[int, str], Encoded]:
    """All that `train encode` wrote, `tokens_<variant>_<part>.npz`, by variant and file name; of a picture replaced since the latest.

    Raises:
        ValueError: a file that does not name its pictures, as earlier versions wrote them.
    """
    parts = sorted((*map(int, path.stem.split("_")[1:3]), path) for path in folder.glob("tokens_*.npz"))
    entries = {}
    for variant, _, path in parts:
        with np.load(path) as archive:
            if "files" not in archive.files:
                raise ValueError(f"{path} does not say which pictures its tokens are of. Remove {folder} and run `train encode` again.")
            for file, stamp, tokens in zip(archive["files"].tolist(), archive["stamps"].tolist(), archive["tokens"], strict=True):
                entries[variant, file] = Encoded(stamp, tokens)
    return entries


def stored(folder: Path) -> Iterator[tuple[int, str, np.ndarray]]:
    """(variant, file name, tokens (n,)) of all that `train encode` wrote."""
    for (variant, file), entry in encoded(folder).items():
        yield variant, file, entry.tokens


def numbered(rows: Sequence[Record]) -> dict[str, list[int]]:
    """Row numbers by file name: results on disk belong to a picture, wherever its line stands by now."""
    numbers = defaultdict(list)
    for number, row in enumerate(rows):
        numbers[row.file].append(number)
    return numbers


MEASURED = 4  # prompts held out to measure a drafter on
CAPTIONED = ("file", "split", "captions")  # columns that are needed


def split_prompts(lines: list[str], captions: Path | None, seed: int) -> tuple[list[str], list[str]]:
    """Prompts to generate from and a few others to measure on: of `lines`, or else a wording of each picture, in a fixed random order."""
    random = np.random.default_rng(seed)
    if lines:
        mixed = [lines[i] for i in random.permutation(len(lines))]
        return mixed[MEASURED:] or mixed, mixed[:MEASURED]
    rows = read_records(captions, CAPTIONED) if captions else []
    chosen = [(row.split, row.wordings[random.integers(len(row.wordings))]) for row in (rows[i] for i in random.permutation(len(rows)))]
    train, valid = ([words for split, words in chosen if split == name and words] for name in ("train", "valid"))
    return train, valid[:MEASURED]


class Photos:
    """Captions and stored tokens of the pictures of one split, by row number: every variant of a train picture, the plain one of a valid.

    Args:
        folder: written by `train encode`; `captions`: CSV with columns file, split, captions (wordings joined by '|').

    Raises:
        ValueError: a column is missing, or there are no tokens of the split.
    """

    def __init__(self, folder: Path, captions: Path, split: str):
        rows = read_records(captions, CAPTIONED)
        self.captions, numbers = {i: row.wordings for i, row in enumerate(rows) if row.split == split}, numbered(rows)
        self.variants: dict[int, list[np.ndarray]] = defaultdict(list)
        for variant, file, tokens in stored(folder):
            for number in numbers.get(file, ()):
                if number in self.captions and (split == "train" or variant == 0):
                    self.variants[number].append(tokens)
        if not self.variants:
            raise ValueError(f"No tokens of the {split} split in {folder.name}. Run `python -m coolsd train encode` first.")


class TokenData:
    """Batches of one split for the target."""

    def __init__(self, photos: Photos, text: TextTable):
        wordings = {i: [ids for words in photos.captions[i] if (ids := text.ids(words))] for i in photos.variants}
        self.text, self.wordings = text, {i: ids_of for i, ids_of in wordings.items() if ids_of}
        self.variants = {i: photos.variants[i] for i in self.wordings}
        if not self.variants:
            raise ValueError("None of the pictures has a caption; see the column captions of the CSV.")

    def __len__(self) -> int:
        return len(self.variants)

    def batches(self, size: int, seed: int | tuple[int, ...], drop: float = 0.1) -> Iterator[Batch]:
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
