"""What is measured on the real photos, once: features, codes and reconstruction error, kept on disk in parts.

Parts carry the pictures' names and marks, the tokenizer's weights and where the photos lie in their key, so that what changed is measured
again.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.features import BATCH, Extract, eight_bit
from ..data.metrics import psnr
from ..data.pictures import Record, read_pictures, read_records, square, stamper
from ..data.store import digest, progress, save_arrays
from ..models.vq import ImageTokenizer
from .specks import isolation

PART = 256  # photos a file


@dataclass(frozen=True)
class PhotoFigures:
    """Figures of M readable photos: which they are (M,), features (M, D); of reconstructions also codes (M, n) and psnr (M,) in dB.

    judged: features (M, D') by the network that no loss sees. isolation: of their patches, see `specks`.
    """

    numbers: Tensor
    features: Tensor
    judged: Tensor
    isolation: Tensor
    codes: Tensor
    psnr: Tensor


def read_photos(path: Path) -> list[Record]:
    """All lines of a CSV written by `train captions`.

    Raises:
        ValueError: a column is missing.
    """
    return read_records(path, ("file", "label", "split", "captions"))


def chosen(photos: Sequence[Record], split: str, a_label: int | None = None, limit: int | None = None) -> list[Record]:
    """The photos of a split: at most `a_label` of a label and `limit` in all, drawn alike each time."""
    order = np.random.default_rng(0).permutation(len(photos))
    counts: Counter = Counter()
    selection = []
    for photo in (photos[i] for i in order):
        if photo.split == split and (a_label is None or counts[photo.label] < a_label):
            counts[photo.label] += 1
            selection.append(photo)
    return selection[:limit]


@dataclass(frozen=True)
class Networks:
    """What is asked about a picture: `extract` also names it, `judge` is in no loss."""

    extract: Extract
    judge: Extract


def _digest(images: Path, marks: Sequence[str], tokenizer: ImageTokenizer, reconstruct: bool) -> str:
    """Of all that figures depend on. marks: names of the pictures, and when they were written."""
    layout = f"{tokenizer.grid} x {tokenizer.patch}, {' '.join(PhotoFigures.__dataclass_fields__)}"
    weights = tokenizer.vqvae.state_dict().values() if reconstruct else ()
    return digest("\n".join([str(images.resolve()), layout, *marks]), *weights, digits=16)


def _part(
    images: Path, photos: Sequence[Record], tokenizer: ImageTokenizer, networks: Networks, reconstruct: bool
) -> dict[str, np.ndarray]:
    """Arrays of Measured for these photos, numbered from 0."""
    patch, side = tokenizer.patch, tokenizer.grid * tokenizer.patch
    out: dict[str, list[np.ndarray]] = {"numbers": [], "features": [], "judged": [], "isolation": [], "codes": [], "psnr": []}
    pictures = read_pictures(images, photos, {})
    while batch := list(itertools.islice(pictures, BATCH)):
        pixels = torch.from_numpy(np.stack([square(picture, side) for _, picture in batch])).permute(0, 3, 1, 2)
        if reconstruct:
            codes = tokenizer.encode(pixels.to(tokenizer.codebook.device))
            pixels, original = tokenizer.decode(codes).cpu(), pixels
            out["codes"].append(codes.cpu().numpy())
            out["psnr"].append(psnr(pixels, original).numpy())
        out["numbers"].append(np.array([number for number, _ in batch]))
        quantised = eight_bit(pixels)
        out["features"].append(networks.extract(quantised).numpy())
        out["judged"].append(networks.judge(quantised).numpy())
        out["isolation"].append(isolation(quantised, patch).numpy())
    return {name: np.concatenate(arrays) if arrays else np.empty(0) for name, arrays in out.items()}


def measure(
    images: Path, photos: Sequence[Record], tokenizer: ImageTokenizer, networks: Networks, folder: Path, reconstruct: bool = True
) -> PhotoFigures:
    """Measure photos, or their reconstructions by the tokenizer; parts that are on disk are read. Unreadable pictures are left out.

    Raises:
        ValueError: no picture can be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stamp = stamper(images)
    groups = [photos[start : start + PART] for start in range(0, len(photos), PART)]
    marks = [[f"{photo.file} {stamp(photo.file)}" for photo in group] for group in groups]
    paths = [folder / f"photos_{_digest(images, names, tokenizer, reconstruct)}.npz" for names in marks]
    missing = [(group, path) for group, path in zip(groups, paths, strict=True) if not path.exists()]
    if missing:
        with progress(sum(len(group) for group, _ in missing), "photos measured") as bar:
            for group, path in missing:
                save_arrays(path, **_part(images, group, tokenizer, networks, reconstruct))
                bar.update(len(group))
    parts = []
    for i, path in enumerate(paths):
        with np.load(path) as archive:
            parts.append({name: archive[name] + (i * PART if name == "numbers" else 0) for name in archive.files if archive[name].size})
    parts = [part for part in parts if "numbers" in part]
    if not parts:
        raise ValueError(f"None of the CSV's pictures can be read from {images}.")
    joined = {name: torch.from_numpy(np.concatenate([part[name] for part in parts])) for name in parts[0]}
    return PhotoFigures(**{name: joined.get(name, torch.empty(0)) for name in PhotoFigures.__dataclass_fields__})
