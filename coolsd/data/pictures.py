"""A folder of pictures with a caption CSV: pictures that cannot be read are skipped and counted, never a crash."""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np
from PIL import ExifTags, Image, ImageOps

VALID_EVERY = 20  # pictures, where the CSV does not say which are valid
FIELD = 2**27  # characters of a CSV's field; the csv module's own limit cuts long captions
GROUND = (255, 255, 255)  # what a transparent picture is laid on
UPRIGHT = {  # EXIF's orientation: how the picture is turned back
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


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
    """Records of an index CSV in UTF-8; known columns are those of Record. Without a split, train or valid, every 20th picture is valid.

    Raises:
        ValueError: another encoding, a broken line, a required column is missing, or there is no row.
    """
    csv.field_size_limit(FIELD)
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle, skipinitialspace=True)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
            there, lines = reader.fieldnames, list(reader)
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not in UTF-8. Save it as a CSV in UTF-8 (in a spreadsheet: 'CSV UTF-8').") from None
    except csv.Error as error:
        raise ValueError(f"{path.name} is no CSV that can be read: {error}.") from None
    if missing := [name for name in required if name not in there]:
        hint = " `python -m coolsd train captions` writes captions." if "captions" in missing else ""
        raise ValueError(f"{path.name} lacks the column(s) {', '.join(missing)}; it has {', '.join(there) or 'none'}.{hint}")
    if not lines:
        raise ValueError(f"{path.name} has no rows. Give one line a picture, with its file name.")
    rows = []
    for number, line in enumerate(lines):
        empty = {"file": "", "label": "", "split": "train" if number % VALID_EVERY else "valid"}
        rows.append(Record(**empty | {name: value or "" for name, value in line.items() if name in Record.__dataclass_fields__}))
    return rows


Open = Callable[[str], Image.Image]
Skipped = dict[str, str]  # file names of pictures that were not used: "missing" or "unreadable"


def opener(images: Path) -> Open:
    """A function that opens a picture by name from a folder or a zip file, see `plain`; FileNotFoundError where there is none.

    Raises:
        ValueError: there is no such folder, or the zip file is broken.
    """
    if images.is_dir():
        return lambda name: plain(Image.open(images / name))
    if not images.exists():
        raise ValueError(f"There is no folder or zip file {images}.")
    try:
        archive = ZipFile(images)
    except BadZipFile:
        raise ValueError(f"{images} is neither a folder nor a readable zip file.") from None
    inside = set(archive.namelist())

    def from_archive(name: str) -> Image.Image:
        if name not in inside:
            raise FileNotFoundError(name)
        return plain(Image.open(archive.open(name)))

    return from_archive


def plain(picture: Image.Image) -> Image.Image:
    """RGB of 8 bits, upright; transparent parts show GROUND, 16 bits of grey are scaled to 8.

    Raises:
        ValueError: numbers whose range is unknown (floating point, or more than 16 bits).
    """
    picture.load()
    try:
        turn = UPRIGHT.get(picture.getexif().get(ExifTags.Base.Orientation))
    except Exception:  # broken notes beside sound pixels; the decoders raise whatever they like
        turn = None
    if picture.mode.startswith(("I", "F")):
        depths = np.asarray(picture)
        if picture.mode == "F" or depths.max() > 65535 or depths.min() < 0:
            raise ValueError(f"mode {picture.mode} has no known range")
        picture = Image.fromarray((depths / 257 + 0.5).astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, GROUND), picture)
    picture = picture.convert("RGB")
    return picture if turn is None else picture.transpose(turn)


def stamper(images: Path) -> Callable[[str], str]:
    """A function that gives a mark of a picture by name, which changes when its file is replaced; empty where there is no file.

    In a folder size and time, in a zip size and checksum. `images` as for `opener`.
    """
    if images.is_dir():

        def of_file(name: str) -> str:
            path = images / name
            return f"{path.stat().st_size} {path.stat().st_mtime_ns}" if path.is_file() else ""

        return of_file
    with ZipFile(images) as archive:
        marks = {member.filename: f"{member.file_size} {member.CRC}" for member in archive.infolist()}
    return lambda name: marks.get(name, "")


def attempt(open_picture: Open, name: str) -> Image.Image | str:
    """The picture, or why there is none: "missing" or "unreadable"."""
    try:
        return open_picture(name)
    except FileNotFoundError:
        return "missing"
    except Exception:  # a decoder may raise anything: RuntimeError, MemoryError, zlib's own
        return "unreadable"


def read_pictures(images: Path, rows: Sequence[Record], skipped: Skipped) -> Iterator[tuple[int, Image.Image]]:
    """(row number, picture) of every readable picture; missing and unreadable ones are noted in `skipped`."""
    open_picture = opener(images)
    for number, row in enumerate(rows):
        picture = attempt(open_picture, row.file)
        if isinstance(picture, str):
            skipped[row.file] = picture
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
