"""Contact sheets."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

GAP = 4  # pixels between pictures
QUALITY = 85  # of the JPEG


def sheet(pictures: Sequence[Image.Image], columns: int, titles: Sequence[str] = ()) -> Image.Image:
    """Pictures of one size in rows, each above its title where there are some."""
    width, height = pictures[0].size
    font = ImageFont.load_default(10)
    below = 26 if titles else 0
    rows = -(-len(pictures) // columns)
    out = Image.new("RGB", (columns * (width + GAP) - GAP, rows * (height + below + GAP) - GAP), "white")
    draw = ImageDraw.Draw(out)
    for i, picture in enumerate(pictures):
        x, y = i % columns * (width + GAP), i // columns * (height + below + GAP)
        out.paste(picture, (x, y))
        if titles:
            draw.multiline_text((x + 2, y + height), textwrap.fill(titles[i], 24), "black", font, spacing=1)
    return out


def save_sheet(picture: Image.Image, path: Path) -> None:
    """Write a compact JPEG."""
    picture.save(path, quality=QUALITY, optimize=True)
