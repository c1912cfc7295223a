"""Prompts with the photos they describe: one caption of each picture of MS-COCO's official file, or of a CSV of `train captions`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...data.pictures import read_records
from ...data.store import digest
from ...settings import MAX_PROMPT
from ..photos import chosen

COUNT = 5000  # pictures of val2017, all of which the usual protocol takes


@dataclass(frozen=True)
class Prompt:
    """A caption, the photo it is of, and the seed that every method draws its picture with."""

    index: int  # in the chosen order, from 0: also the seed
    photo: str  # file name
    text: str

    @property
    def stem(self) -> str:
        """File name, without its ending, of pictures drawn for it."""
        return f"{self.index:05d}_{Path(self.photo).stem[-40:]}"


def _from_json(path: Path) -> list[tuple[str, list[str]]]:
    """Photos by rising id, each with its captions by rising id."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        captions: dict[int, list[dict[str, Any]]] = {}
        for one in content["annotations"]:
            captions.setdefault(one["image_id"], []).append(one)
        photos = sorted(content["images"], key=lambda photo: photo["id"])
        return [
            (photo["file_name"], [a["caption"] for a in sorted(captions.get(photo["id"], []), key=lambda a: a["id"])]) for photo in photos
        ]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        what = "images (id, file_name) and annotations (id, image_id, caption)"
        raise ValueError(f"{path.name} is no caption file of MS-COCO, which has {what}: {error!r}.") from None


def _from_csv(path: Path) -> list[tuple[str, list[str]]]:
    """Valid photos, which are those no model was trained on."""
    records = chosen(read_records(path, ("file", "captions")), "valid")
    return [(record.file, list(record.wordings)) for record in sorted(records, key=lambda record: record.file)]


def read_prompts(path: Path, count: int = COUNT, seed: int = 0) -> list[Prompt]:
    """`count` photos in an order drawn by seed, one caption each, drawn too; fewer where the file has fewer.

    A smaller count gives the first ones of a larger one. Photos without a caption that can be a prompt are left out.

    Raises:
        ValueError: no caption file, or none that can be a prompt.
    """
    photos = _from_csv(path) if path.suffix.lower() == ".csv" else _from_json(path)
    random = np.random.default_rng(seed)
    texts = [text for _, captions in photos if (text := _one(captions, random.random()))]
    names = [name for name, captions in photos if _usable(captions)]
    if not texts:
        raise ValueError(f"{path.name} has no photo with a caption.")
    order = random.permutation(len(texts))[:count]
    return [Prompt(index, names[at], texts[at]) for index, at in enumerate(order.tolist())]


def _usable(captions: list[str]) -> list[str]:
    """Captions as prompts are read: without line breaks and outer spaces, none empty or too long."""
    plain = [" ".join("".join(c if c.isprintable() else " " for c in caption).split()) for caption in captions]
    return [caption for caption in plain if 0 < len(caption) <= MAX_PROMPT]


def _one(captions: list[str], number: float) -> str:
    """One of them by a number in [0, 1), empty where there is none."""
    usable = _usable(captions)
    return usable[int(number * len(usable))] if usable else ""


def mark(prompts: list[Prompt]) -> str:
    """Changes with any caption, photo or place of these prompts."""
    return digest(json.dumps([[p.index, p.photo, p.text] for p in prompts], allow_nan=False), digits=12)
