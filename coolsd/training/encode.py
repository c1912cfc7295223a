"""Photos to tokens, once: each picture in a few flips and crops, kept on disk for the target and the drafter."""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from ..models.tokenizer import ImageTokenizer
from .data import Row, read_pictures, square

BATCH = 16
PART = 1024  # pictures a file


def crops(variant: int, seed: int) -> dict[str, float | bool]:
    """The crop of a variant: 0 is the plain centre, 1 its mirror image, later ones are zoomed and moved at random."""
    if variant < 2:
        return {"flip": variant == 1}
    random = np.random.default_rng((seed, variant))
    zoom, x, y = random.uniform((1.02, 0, 0), (1.25, 1, 1))
    return {"zoom": zoom, "x": x, "y": y, "flip": bool(random.integers(2))}


def encode_part(
    images: Path, rows: list[Row], numbers: list[int], tokenizer: ImageTokenizer, variant: int, skipped: Counter
) -> Iterator[tuple[int, np.ndarray]]:
    """(row number, tokens (n,) uint16) of these rows' readable pictures in one variant."""
    side = tokenizer.grid * tokenizer.patch
    pictures = read_pictures(images, [rows[n] for n in numbers], skipped)
    while batch := list(itertools.islice(pictures, BATCH)):
        chosen = [numbers[i] for i, _ in batch]
        pixels = np.stack([square(picture, side, **crops(variant, n)) for n, (_, picture) in zip(chosen, batch, strict=True)])
        tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(tokenizer.codebook.device)
        yield from zip(chosen, tokenizer.encode(tensor).cpu().numpy().astype(np.uint16), strict=True)


def encode_to(folder: Path, images: Path, rows: list[Row], tokenizer: ImageTokenizer, variants: int) -> Counter:
    """Write `tokens_<variant>_<part>.npz` (rows (N,), tokens (N, n)), parts that are there already excepted.

    Parts are shuffled alike each time, so that a target can start on the first of them. Returns the counts of skipped pictures.
    """
    skipped: Counter = Counter()
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    for variant, start in itertools.product(range(variants), range(0, len(rows), PART)):
        path = folder / f"tokens_{variant}_{start // PART:03d}.npz"
        if path.exists():
            continue
        found = list(encode_part(images, rows, order[start : start + PART], tokenizer, variant, skipped))
        part = path.with_suffix(".part")
        with part.open("wb") as handle:
            np.savez(handle, rows=np.array([n for n, _ in found]), tokens=np.stack([t for _, t in found]))
        part.rename(path)
    return skipped
