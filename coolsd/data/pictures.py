"""A folder of pictures with a caption CSV: pictures that cannot be read are skipped and counted, never a crash."""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile
from zlib import error as ZlibError

import numpy as np
from PIL import Image, ImageOps

VALID_EVERY = 20  # pictures, where the CSV does not say which are valid


@dataclass(frozen=True)
class Record:
    """One line of the CSV: the picture's name inside the folder (or zip), its label, its split, and a caption if one is given.

    captions: wordings joined by '|', as `train captions` writes them.
    """

    file: str
    label: str
    split: str
    source: str = ""
    caption: str = ""
    captions: str = ""

    @property
    def wordings(self) -> tuple[str, ...]:
        """The captions; one empty wording where there are none."""
        return tuple(self.captions.split("|"))


def read_records(path: Path, required: tuple[str, ...] = ("file",)) -> list[Record]:
    """Rows of an index CSV; known columns are those of Row. Without a split, train or valid, every 20th picture is valid.

    Raises:
        ValueError: a required column is missing, or there is no row.
    """
    with path.open(newline="", encoding="utf-8-sig") as handle:
        reader = csv.DictReader(handle)
        missing = [name for name in required if name not in (reader.fieldnames or [])]
        if missing:
            hint = " `python -m coolsd train captions` writes captions." if "captions" in missing else ""
            there = ", ".join(reader.fieldnames or ["none"])
            raise ValueError(f"{path.name} lacks the column(s) {', '.join(missing)}; it has {there}.{hint}")
        known = Record.__dataclass_fields__
        rows = []
        for number, line in enumerate(reader):
            split = "train" if number % VALID_EVERY else "valid"
            rows.append(Record(**{"file": "", "label": "", "split": split} | {k: v or "" for k, v in line.items() if k in known}))
    if not rows:
        raise ValueError(f"{path.name} has no rows. Give one line a picture, with its file name.")
    return rows


Open = Callable[[str], Image.Image]


def opener(images: Path) -> Open:
    """A function that opens a picture by name from a folder or a zip file, as RGB, upright.

    Raises:
        ValueError: there is no such folder, or the zip file is broken.
    """
    if images.is_dir():
        return lambda name: ImageOps.exif_transpose(Image.open(images / name)).convert("RGB")
    if not images.exists():
        raise ValueError(f"There is no folder or zip file {images}.")
    try:
        archive = ZipFile(images)
    except BadZipFile:
        raise ValueError(f"{images} is neither a folder nor a readable zip file.") from None
    return lambda name: ImageOps.exif_transpose(Image.open(archive.open(name))).convert("RGB")


def attempt(open_picture: Open, name: str) -> Image.Image | str:
    """The picture, or why there is none: "missing" or "unreadable"."""
    try:
        return open_picture(name)
    except (KeyError, FileNotFoundError):
        return "missing"
    except (OSError, ValueError, SyntaxError, EOFError, BadZipFile, ZlibError, Image.DecompressionBombError):
        return "unreadable"


def read_pictures(images: Path, rows: Sequence[Record], skipped: Counter) -> Iterator[tuple[int, Image.Image]]:
    """(row number, picture) of every readable picture; missing and unreadable ones are counted in `skipped`."""
    open_picture = opener(images)
    for number, row in enumerate(rows):
        picture = attempt(open_picture, row.file)
        if isinstance(picture, str):
            skipped[picture] += 1
        else:
            yield number, picture


def square(picture: Image.Image, side: int, zoom: float = 1.0, x: float = 0.5, y: float = 0.5, flip: bool = False) -> np.ndarray:
    """A square crop resized to (side, side, 3) float32 in [-1, 1].

    zoom 1 takes the largest square, 1.2 one a fifth smaller; x and y in [0, 1] place it.
    """
    edge = round(min(picture.size) / zoom)
    x0, y0 = round(x * (picture.width - edge)), round(y * (picture.height - edge))
    crop = picture.resize((side, side), Image.Resampling.LANCZOS, box=(x0, y0, x0 + edge, y0 + edge))
    pixels = np.asarray(ImageOps.mirror(crop) if flip else crop, np.float32)
    return pixels / 127.5 - 1
