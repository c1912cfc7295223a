"""A folder of pictures with a caption CSV, read patiently: what cannot be used is skipped and counted, never a crash."""

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import numpy as np
from PIL import Image, ImageOps


@dataclass(frozen=True)
class Row:
    """One line of the CSV: the picture's name inside the folder (or zip), its label, its split, and a caption if one is given."""

    file: str
    label: str
    split: str
    source: str = ""
    caption: str = ""


def read_rows(path: Path, required: tuple[str, ...] = ("file",)) -> list[Row]:
    """Rows of an index CSV. Known columns: file, label, split (train or valid), source, caption.

    Raises:
        ValueError: a required column is missing, or there is no row.
    """
    with path.open(newline="", encoding="utf-8") as handle:
        reader = csv.DictReader(handle)
        missing = [name for name in required if name not in (reader.fieldnames or [])]
        if missing:
            raise ValueError(f"{path.name} lacks the column(s) {', '.join(missing)}; it has {', '.join(reader.fieldnames or ['none'])}.")
        known = Row.__dataclass_fields__
        rows = [Row(**{"label": "", "split": "train"} | {k: v or "" for k, v in line.items() if k in known}) for line in reader]
    if not rows:
        raise ValueError(f"{path.name} has no rows. Give one line a picture, with its file name.")
    return rows


def opener(images: Path) -> Callable[[str], Image.Image]:
    """A function that opens a picture by name from a folder or a zip file, as RGB, upright."""
    if images.suffix == ".zip":
        archive = ZipFile(images)
        return lambda name: ImageOps.exif_transpose(Image.open(archive.open(name))).convert("RGB")
    return lambda name: ImageOps.exif_transpose(Image.open(images / name)).convert("RGB")


def read_pictures(images: Path, rows: list[Row], skipped: Counter) -> Iterator[tuple[int, Image.Image]]:
    """(row number, picture) of every readable picture; missing and unreadable ones are counted in `skipped`."""
    open_picture = opener(images)
    for number, row in enumerate(rows):
        try:
            picture = open_picture(row.file)
        except (KeyError, FileNotFoundError):
            skipped["missing"] += 1
        except (OSError, ValueError, SyntaxError):
            skipped["unreadable"] += 1
        else:
            yield number, picture


def square(picture: Image.Image, side: int, zoom: float = 1.0, x: float = 0.5, y: float = 0.5, flip: bool = False) -> np.ndarray:
    """A square crop resized to (side, side, 3) float32 in [-1, 1].

    zoom 1 takes the largest square, 1.2 one a fifth smaller; x and y in [0, 1] place it.
    """
    edge = round(min(picture.size) / zoom)
    left, top = round(x * (picture.width - edge)), round(y * (picture.height - edge))
    crop = picture.resize((side, side), Image.Resampling.LANCZOS, box=(left, top, left + edge, top + edge))
    pixels = np.asarray(ImageOps.mirror(crop) if flip else crop, np.float32)
    return pixels / 127.5 - 1
