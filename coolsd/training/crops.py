"""An endless stream of training crops of a folder of pictures, the same for the same seed from any step on."""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..data.pictures import Open, Record, Skipped, attempt, opener, square
from .encode import crops
from .tokens import numbered, stored


class Unusable(NamedTuple):
    """A picture that cannot be read, and why."""

    file: str
    reason: str


Item = tuple[Tensor, Tensor] | Unusable  # a picture (3, side, side) in [-1, 1] and its codes (n,)


class Crops(Dataset):
    """Item k is the crop of the stream's k-th picture: random place, zoom and mirroring, or a variant whose codes are stored.

    Args:
        rows: lines of the CSV; all of `split` are used. tokens: folder written by `train encode` from the same CSV, or None.

    Raises:
        ValueError: the split is empty, or none of its pictures has tokens.
    """

    def __init__(self, images: Path, rows: list[Record], split: str, side: int, seed: int, tokens: Path | None = None):
        self.images, self.rows, self.side, self.seed = images, rows, side, seed
        self.numbers = np.array([i for i, row in enumerate(rows) if row.split == split])
        self.variants: dict[int, list[tuple[int, np.ndarray]]] = {}
        if tokens:
            numbers = numbered(rows)
            for variant, file, codes in stored(tokens):
                for number in numbers.get(file, ()):
                    self.variants.setdefault(number, []).append((variant, codes))
            self.numbers = np.array([i for i in self.numbers if i in self.variants])
        if not len(self.numbers):
            raise ValueError(
                f"There is no picture of the {split} split{' with tokens' if tokens else ''}; see the column split of the CSV."
            )

    @functools.cached_property
    def open(self) -> Open:
        """Opens a picture by name; made in the process that reads, since a zip file's handle cannot be shared."""
        return opener(self.images)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - lives as long as the run
    def order(self, epoch: int) -> np.ndarray:
        """Rows of an epoch."""
        return np.random.default_rng((self.seed, epoch)).permutation(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, k: int) -> Item:
        number = int(self.order(k // len(self))[k % len(self)])
        random, codes = np.random.default_rng((self.seed, k, 1)), np.empty(0)
        if self.variants:
            variant, codes = self.variants[number][random.integers(len(self.variants[number]))]
            crop = crops(variant, self.rows[number].file)
        else:
            zoom, x, y = random.uniform((1, 0, 0), (1.25, 1, 1))
            crop = {"zoom": zoom, "x": x, "y": y, "flip": bool(random.integers(2))}
        picture = attempt(self.open, self.rows[number].file)
        if isinstance(picture, str):
            return Unusable(self.rows[number].file, picture)
        return torch.from_numpy(square(picture, self.side, **crop)).permute(2, 0, 1), torch.from_numpy(codes.astype(np.int64))


def _batch(items: list[Item]) -> tuple[Tensor, Tensor, list[Unusable]]:
    pairs = [item for item in items if not isinstance(item, Unusable)]
    reasons = [item for item in items if isinstance(item, Unusable)]
    if not pairs:
        return torch.empty(0), torch.empty(0), reasons
    pixels, codes = zip(*pairs, strict=True)
    return torch.stack(pixels).contiguous(memory_format=torch.channels_last), torch.stack(codes), reasons


def batches(
    crops: Crops, size: int, start: int, skipped: Skipped, workers: int = 0, rank: int = 0, ranks: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (pictures (B, 3, S, S), codes (B, n)) from batch `start` on; a batch is smaller by what was skipped, and noted.

    Args:
        rank, ranks: every ranks-th batch, from the rank-th on.

    Raises:
        ValueError: a whole epoch without a readable picture.
    """
    numbers = (range(b * size, b * size + size) for b in itertools.count(start * ranks + rank, ranks))
    since = 0
    for pixels, codes, reasons in DataLoader(crops, batch_sampler=numbers, collate_fn=_batch, num_workers=workers):
        skipped.update(reasons)
        since = 0 if len(pixels) else since + len(reasons)
        if since > len(crops):
            raise ValueError(f"None of the CSV's pictures can be read from {crops.images}.")
        if len(pixels):
            yield pixels, codes
