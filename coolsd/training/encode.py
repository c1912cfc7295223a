"""Photos to tokens, once: each picture in a few flips and crops, kept on disk for the target and the drafter."""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from ..data.pictures import Record, read_pictures, square
from ..data.store import digest, progress, save_arrays
from ..models.vq import ImageTokenizer

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
    images: Path, rows: list[Record], numbers: list[int], tokenizer: ImageTokenizer, variant: int, skipped: Counter
) -> Iterator[tuple[int, np.ndarray]]:
    """(row number, tokens (n,) uint16) of these rows' readable pictures in one variant."""
    side = tokenizer.grid * tokenizer.patch
    pictures = read_pictures(images, [rows[n] for n in numbers], skipped)
    while batch := list(itertools.islice(pictures, BATCH)):
        chosen = [numbers[i] for i, _ in batch]
        pixels = np.stack([square(picture, side, **crops(variant, n)) for n, (_, picture) in zip(chosen, batch, strict=True)])
        tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(tokenizer.codebook.device)
        yield from zip(chosen, tokenizer.encode(tensor).cpu().numpy().astype(np.uint16), strict=True)


def _digest(tokenizer: ImageTokenizer) -> str:
    """Changes with anything that codes depend on, and not with the decoder."""
    parts = ("encoder.", "quant_conv.", "quantize.")
    return digest(*(tensor for name, tensor in tokenizer.vqvae.state_dict().items() if name.startswith(parts)))


def encode_to(folder: Path, images: Path, rows: list[Record], tokenizer: ImageTokenizer, variants: int) -> Counter:
    """Write `tokens_<variant>_<part>.npz` (rows (N,), tokens (N, n)), parts that are there already excepted.

    Parts are shuffled alike each time, so that a target can start on the first of them. Returns the counts of skipped pictures.

    Raises:
        ValueError: no picture can be read, or the folder holds tokens of another tokenizer.
    """
    skipped: Counter = Counter()
    folder.mkdir(parents=True, exist_ok=True)
    mark, made_by = folder / "tokenizer.sha256", _digest(tokenizer)
    if mark.exists() and mark.read_text() != made_by:
        raise ValueError(f"{folder} holds tokens of another tokenizer. Name another folder.")
    mark.write_text(made_by)
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    parts = list(itertools.product(range(variants), range(0, len(rows), PART)))
    parts = [(variant, start, folder / f"tokens_{variant}_{start // PART:03d}.npz") for variant, start in parts]
    parts = [part for part in parts if not part[2].exists()]
    with progress(len(parts), "parts encoded") as bar:
        for variant, start, path in parts:
            codes = list(encode_part(images, rows, order[start : start + PART], tokenizer, variant, skipped))
            if codes:
                save_arrays(path, rows=np.array([n for n, _ in codes]), tokens=np.stack([t for _, t in codes]))
            bar.update()
    if not any(folder.glob("tokens_*.npz")):
        raise ValueError(f"None of the CSV's pictures can be read from {images}.")
    return skipped
