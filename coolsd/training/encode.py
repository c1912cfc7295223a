"""Photos to tokens, once: each picture in a few flips and crops, kept on disk for the target and the drafter."""

import itertools
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from ..data.pictures import Record, Skipped, read_pictures, square, stamper
from ..data.store import digest, progress, save_arrays
from ..models.vq import ImageTokenizer
from .tokens import encoded

BATCH = 16
PART = 1024  # pictures a file


def crops(variant: int, file: str) -> dict[str, float | bool]:
    """The crop of a variant: 0 is the plain centre, 1 its mirror image, later ones are zoomed and moved at random, by the file's name."""
    if variant < 2:
        return {"flip": variant == 1}
    random = np.random.default_rng((zlib.crc32(file.encode()), variant))
    zoom, x, y = random.uniform((1.02, 0, 0), (1.25, 1, 1))
    return {"zoom": zoom, "x": x, "y": y, "flip": bool(random.integers(2))}


def encode_part(
    images: Path, rows: Sequence[Record], tokenizer: ImageTokenizer, variant: int, skipped: Skipped
) -> Iterator[tuple[str, np.ndarray]]:
    """(file name, tokens (n,) uint16) of the readable pictures in one variant."""
    side = tokenizer.grid * tokenizer.patch
    pictures = read_pictures(images, rows, skipped)
    while batch := list(itertools.islice(pictures, BATCH)):
        files = [rows[number].file for number, _ in batch]
        pixels = np.stack([square(picture, side, **crops(variant, file)) for file, (_, picture) in zip(files, batch, strict=True)])
        tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(tokenizer.codebook.device)
        yield from zip(files, tokenizer.encode(tensor).cpu().numpy().astype(np.uint16), strict=True)


def _digest(tokenizer: ImageTokenizer) -> str:
    """Changes with anything that codes depend on, and not with the decoder."""
    parts = ("encoder.", "quant_conv.", "quantize.")
    weights = (tensor for name, tensor in tokenizer.vqvae.state_dict().items() if name.startswith(parts))
    return digest(f"{tokenizer.grid} {tokenizer.patch} {tokenizer.normalise}", *weights)


def encode_to(folder: Path, images: Path, rows: list[Record], tokenizer: ImageTokenizer, variants: int) -> Skipped:
    """Write `tokens_<variant>_<part>.npz` (files, stamps, tokens: see `tokens.encoded`) of the pictures that are not in one yet.

    They are shuffled alike each time, so that a target can start on the first of them. Returns the skipped pictures.

    Raises:
        ValueError: no picture can be read, or the folder holds tokens of another tokenizer or grid.
    """
    skipped: Skipped = {}
    folder.mkdir(parents=True, exist_ok=True)
    mark, fingerprint = folder / "tokenizer.sha256", _digest(tokenizer)
    if mark.exists() and mark.read_text() != fingerprint:
        raise ValueError(f"{folder} holds tokens of another tokenizer. Name another folder.")
    mark.write_text(fingerprint)
    existing, stamp = encoded(folder), stamper(images)
    by_file = {rows[i].file: rows[i] for i in np.random.default_rng(0).permutation(len(rows))}
    stamps = {file: stamp(file) for file in by_file}
    parts = []
    for variant in range(variants):
        old = {file for file, mark in stamps.items() if (variant, file) in existing and existing[variant, file].stamp == mark}
        todo = [row for file, row in by_file.items() if file not in old]
        parts += [(variant, todo[i : i + PART]) for i in range(0, len(todo), PART)]
    with progress(len(parts), "parts encoded") as bar:
        for variant, part in parts:
            codes = dict(encode_part(images, part, tokenizer, variant, skipped))
            if codes:
                arrays = {"files": np.array(list(codes)), "stamps": np.array([stamps[file] for file in codes])}
                save_arrays(_next_part(folder, variant), **arrays, tokens=np.stack(list(codes.values())))
            bar.update()
    if not any(folder.glob("tokens_*.npz")):
        raise ValueError(f"None of the CSV's pictures can be read from {images}.")
    return skipped


def _next_part(folder: Path, variant: int) -> Path:
    numbers = [int(path.stem.split("_")[2]) for path in folder.glob(f"tokens_{variant}_*.npz")]
    return folder / f"tokens_{variant}_{max(numbers, default=-1) + 1:03d}.npz"
