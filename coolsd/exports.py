"""Pictures and runs on their way out of the project, and recorded comparisons on their way in."""

import base64
import io
import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from .bundle import Bundle, read, to_plain
from .scene import LANES, Patches, Scene
from .trace import Run, to_text

log = logging.getLogger(__name__)
ASSETS = Path(__file__).resolve().parents[1] / "assets"
RECORDED, PAGE_PICTURE = ASSETS / "runs", ASSETS / "page.png"
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
SOFTWARE, COMMENT, EXIF = 0x0131, 0x9286, 0x8769  # EXIF tags: program, user's comment, and the directory that the latter is in


@dataclass
class Comparison:
    """Two finished runs side by side, and what plain AR costs beside them.

    ar_token_seconds: median seconds of a plain AR step, where it was measured. plain: plain AR decoded beside them. scene: the words
    around them. patches: what rival codes would paint, by lane, for cells of a recorded run.
    """

    reference: Run
    relaxed: Run
    ar_token_seconds: float | None = None
    plain: Run | None = None
    scene: Scene | None = None
    patches: dict[str, Patches] = field(default_factory=dict)

    def bundle(self) -> Bundle:
        """The lanes by name."""
        lanes = {lane: run for lane in LANES if (run := getattr(self, lane))}
        return Bundle(lanes, self.ar_token_seconds, self.scene, self.patches)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as stored in assets/runs and as exported by the page."""
        return to_plain(self.bundle())


def save(comparison: Comparison, folder: Path, name: str) -> Path:
    """Write NAME.json with the picture of each lane beside it, NAME-LANE.png; returns the JSON's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for lane in LANES:
        if run := getattr(comparison, lane):
            (folder / f"{name}-{lane}.png").write_bytes(png(run.image, run))
    path = folder / f"{name}.json"
    path.write_text(to_text(comparison.to_dict()), encoding="utf-8")
    return path


def load(path: Path) -> Comparison:
    """A comparison written by `save`; a missing picture leaves `image` None.

    Raises:
        ValueError: not a comparison, or one that cannot be used.
    """
    runs = read(path)
    if "relaxed" not in runs.lanes:
        raise ValueError(f"{path.name} holds a single run, not a comparison.")
    return Comparison(**runs.lanes, ar_token_seconds=runs.ar_token_seconds, scene=runs.scene, patches=runs.patches)


def recorded(folder: Path = RECORDED) -> Comparison | None:
    """The first recorded comparison of a folder that can be read, or None."""
    for path in sorted(folder.glob("*.json")):
        try:
            return load(path)
        except ValueError as error:
            log.warning("%s is not a recorded comparison: %s", path.name, error)
    return None


def png(image: Image.Image, run: Run) -> bytes:
    """PNG with the run's settings as text chunks: one a setting, and all of them as JSON under `coolsd`.

    A run that did not fill its grid says so under `stopped`, and its picture is transparent where no token came.
    """
    info = PngInfo()
    info.add_text("Software", "COOL-SD")
    info.add_text("coolsd", _recipe(run))
    if not run.complete:
        info.add_text("stopped", _share(run))
    for name, value in run.settings.to_dict().items():
        info.add_text(name, "auto" if name == "mu" and value is None else str(value))
    return encoded(image.convert("RGB" if run.complete else "RGBA"), "PNG", pnginfo=info)


def _recipe(run: Run) -> str:
    """What it takes to draw the picture again, as JSON in ASCII."""
    settings = run.settings.to_dict()
    return json.dumps({"target": run.target, "settings": settings, "omega": run.omega, "environment": run.environment}, allow_nan=False)


def format_of(path: Path) -> str:
    """The format that a picture's name asks for.

    Raises:
        ValueError: no ending, or one that is none of FORMATS.
    """
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path.name} does not end like a picture. Give a name that ends in {', '.join(FORMATS)}.")
    return FORMATS[path.suffix.lower()]


def save_picture(image: Image.Image, run: Run, path: Path) -> None:
    """Write the picture as its name ends. PNG: see `png`. The others hold the same JSON as EXIF comment; WebP is lossless, and JPEG knows
    no transparency: black is where no token came.

    Raises:
        ValueError: see `format_of`.
    """
    kind = format_of(path)
    if kind == "PNG":
        path.write_bytes(png(image, run))
        return
    exif = Image.Exif()
    exif[SOFTWARE] = "COOL-SD"
    exif.get_ifd(EXIF)[COMMENT] = b"ASCII\0\0\0" + _recipe(run).encode()
    how = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {"lossless": True}
    image.convert("RGB" if run.complete or kind == "JPEG" else "RGBA").save(path, kind, exif=exif, **how)


def data_uri(content: bytes, kind: str) -> str:
    """Content inline, so that no file is written and none can be fetched by anyone else."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    """A picture as the content of a file of this format."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def file_stem(run: Run) -> str:
    """A file name that says what the picture is, and how far it came where it was stopped."""
    words = re.sub(r"[^a-z0-9]+", "-", run.settings.prompt.lower()).strip("-")[:40].strip("-") or "picture"
    stem = f"{words}-{run.settings.method}-seed{run.settings.seed}"
    return stem if run.complete else f"{stem}-stopped-{_share(run).replace(' ', '-')}"


def _share(run: Run) -> str:
    return f"{len(run.tokens)} of {run.grid[0] * run.grid[1]}"
