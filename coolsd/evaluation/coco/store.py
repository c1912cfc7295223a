"""Pictures on disk: each is stored once, as PNG with its recipe and its figures, and is read only by the very same recipe.

A picture lies in a folder whose name ends in a digest of all that it shares with the others of its method: target, weights, dtype, kind of
device, settings, size of a batch. What is its own (prompt, seed, photo, the group it was decoded in) is compared when it is read. Files
appear whole or not at all, so that a kill at any moment costs what was being decoded and nothing else.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ...data.store import digest, replacing
from ...exports import encoded
from .captions import Prompt, mark

END = b"IEND\xaeB`\x82"  # what a whole PNG ends with


@dataclass(frozen=True)
class Variant:
    """A method with the settings that set it apart. shared: all that its pictures have in common, plain values."""

    label: str
    method: str
    settings: tuple[tuple[str, Any], ...]
    shared: tuple[tuple[str, Any], ...]

    @property
    def folder(self) -> str:
        """Name of the folder of its pictures."""
        words = re.sub(r"[^a-z0-9.+]+", "-", self.label.lower()).strip("-")
        return f"{words}-{digest(json.dumps(dict(self.shared), sort_keys=True, allow_nan=False), digits=12)}"


@dataclass(frozen=True)
class Figures:
    """What was counted while a picture was decoded."""

    tokens: int
    target_calls: int
    bias_spent: float  # Σ over the picture, total variation
    kl_spent: float | None  # Σ over the picture, nats; None where it is not measured for the method
    seconds: float  # of the group it was decoded in, ÷ its pictures
    codes: str  # digest of the tokens


@dataclass(frozen=True)
class Group:
    """Prompts that are decoded together. Always the same ones, so that shapes of passes, and with them the last bits, are the same."""

    number: int
    prompts: tuple[Prompt, ...]


def groups_of(prompts: Sequence[Prompt], size: int, limit: int | None = None) -> list[Group]:
    """Groups of `size` prompts; only those that the first `limit` prompts lie in, and these whole."""
    starts = range(0, min(len(prompts), limit or len(prompts)), size)
    return [Group(number, tuple(prompts[start : start + size])) for number, start in enumerate(starts)]


def recipe(variant: Variant, group: Group, prompt: Prompt) -> dict[str, Any]:
    """All that a picture depends on."""
    own = {"prompt": prompt.text, "seed": prompt.index, "photo": prompt.photo, "group": mark(list(group.prompts))}
    return dict(variant.shared) | own


def path_of(folder: Path, variant: Variant, prompt: Prompt) -> Path:
    """Where a picture lies."""
    return folder / variant.folder / f"{prompt.stem}.png"


def write(path: Path, picture: Image.Image, made_by: dict[str, Any], figures: Figures) -> None:
    """Store a picture, whole or not at all."""
    info = PngInfo()
    info.add_text("Software", "COOL-SD")
    info.add_text("recipe", json.dumps(made_by, sort_keys=True, allow_nan=False))
    info.add_text("figures", json.dumps(asdict(figures), allow_nan=False))
    with replacing(path) as part:
        part.write_bytes(encoded(picture.convert("RGB"), "PNG", pnginfo=info))


def read(path: Path, made_by: dict[str, Any]) -> Figures | None:
    """Figures of a stored picture; None where there is none, where it is cut short, or where it was made by another recipe."""
    try:
        with path.open("rb") as file:
            file.seek(-len(END), 2)
            if file.read() != END:
                return None
        with Image.open(path) as picture:
            if json.loads(picture.info["recipe"]) != made_by:
                return None
            return Figures(**json.loads(picture.info["figures"]))
    except (OSError, KeyError, TypeError, ValueError):
        return None


def missing(folder: Path, variants: Sequence[Variant], groups: Sequence[Group]) -> list[tuple[Variant, Group]]:
    """What is yet to be decoded, the methods taking turns: a group lacks one picture at least."""
    return [
        (variant, group)
        for group in groups
        for variant in variants
        if not all(read(path_of(folder, variant, p), recipe(variant, group, p)) for p in group.prompts)
    ]
