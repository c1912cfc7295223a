"""Captions from a label and from what can be measured in the picture: petal colour, background, sky, season, weather.

The same measures serve the evaluation (does a generated "red rose" come out red?), so they are pure functions of pixels.
"""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from .pictures import Record, Skipped, read_pictures
from .store import progress, replacing

SIDE = 64  # pixels; measures are taken on a small copy
# name: hue interval in degrees (may wrap), for saturated pixels
HUES = {
    "red": (345, 14),
    "orange": (14, 40),
    "yellow": (40, 66),
    "green": (66, 165),
    "blue": (165, 255),
    "purple": (255, 295),
    "pink": (295, 345),
}
COLOURS = [*(name for name in HUES if name != "green"), "white"]


def hsv(picture: Image.Image) -> np.ndarray:
    """(SIDE, SIDE, 3): hue in degrees, saturation and value in [0, 1]."""
    small = picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX).convert("HSV")
    return np.asarray(small, np.float32) / 255 * np.array([360, 1, 1], np.float32)


def colour_names(pixels: np.ndarray) -> np.ndarray:
    """Colour word of every pixel of hsv(): a hue name, pale reds as pink, dim orange as brown, else white, grey or black."""
    hue, saturation, value = np.moveaxis(pixels, -1, 0)
    names = np.full(hue.shape, "grey", dtype="<U7")
    for name, (low, high) in HUES.items():
        inside = (hue >= low) & (hue < high) if low < high else (hue >= low) | (hue < high)
        names[inside] = name
    names[(names == "red") & (saturation < 0.55) & (value > 0.55)] = "pink"
    names[np.isin(names, ["orange", "yellow"]) & (value < 0.5)] = "brown"
    names[saturation < 0.2] = "grey"
    names[(saturation < 0.2) & (value > 0.62)] = "white"
    names[value < 0.2] = "black"
    return names


def petal_colour(picture: Image.Image) -> str | None:
    """Dominant colour word of the middle of a flower photo, leaves and ground left out; None when nothing stands out."""
    names = colour_names(hsv(picture))
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    weight = np.exp(-2.5 * (x**2 + y**2))
    totals = {name: float(weight[names == name].sum()) for name in COLOURS}
    best = max(totals, key=totals.get)
    return best if totals[best] > 0.12 * weight.sum() else None


def background(picture: Image.Image) -> str | None:
    """dark, green, light or None, from the border of the photo."""
    pixels = hsv(picture)
    border = np.ones((SIDE, SIDE), bool)
    border[SIDE // 6 : -SIDE // 6, SIDE // 6 : -SIDE // 6] = False
    names, value = colour_names(pixels)[border], pixels[border][:, 2]
    if value.mean() < 0.28:
        return "dark"
    if (names == "green").mean() > 0.45:
        return "green"
    if (np.isin(names, ["white", "grey"]) & (value > 0.6)).mean() > 0.45:
        return "light"
    return None


def scene_traits(picture: Image.Image, label: str) -> list[str]:
    """What a landscape photo shows, strongest first: black and white, night, sunset, mist, autumn, snow, blue sky, overcast."""
    pixels = hsv(picture)
    names = colour_names(pixels)
    saturation, value = pixels[..., 1], pixels[..., 2]
    top, bottom = slice(0, SIDE // 3), slice(SIDE // 3, SIDE)
    warm = np.isin(names, ["orange", "red", "yellow", "pink", "purple"]) & (saturation > 0.3)
    if np.quantile(saturation, 0.95) < 0.1:
        return ["black and white"]
    traits = []
    if value.mean() < 0.22:
        traits.append("night")
    elif label != "forest" and warm[: SIDE // 2].mean() > 0.3:
        traits.append("sunset")
    elif value.std() < 0.13 and saturation.mean() < 0.25 and value.mean() > 0.35:
        traits.append("mist")
    if label in ("forest", "mountain") and (warm | (names == "brown"))[bottom].mean() > 0.4 and "sunset" not in traits:
        traits.append("autumn")
    if label != "sea" and ((value > 0.7) & (saturation < 0.22))[bottom].mean() > 0.35 and "mist" not in traits:
        traits.append("snow")
    if not {"sunset", "night"} & set(traits):
        if (names[top] == "blue").mean() > 0.5:
            traits.append("blue sky")
        elif np.isin(names[top], ["grey", "white"]).mean() > 0.7 and label != "forest":
            traits.append("overcast")
    return traits


PLACES = {"forest": "a forest", "glacier": "a glacier", "mountain": "a mountain", "sea": "the sea"}
WORDINGS = {
    "black and white": ["a black and white photo of {place}", "{place} in black and white"],
    "night": ["{place} at night", "a dark {label} at night"],
    "sunset": ["sunset over {place}", "{place} at sunset", "a red sunset, {label}"],
    "mist": ["misty {label}", "{place} in the mist", "fog over {place}"],
    "autumn": ["{place} in autumn", "autumn {label}", "an autumn {label} with golden leaves"],
    "snow": ["snowy {label}", "{place} in winter", "snow on {place}"],
    "blue sky": ["{place} under a blue sky", "{label} and blue sky", "a sunny day, {label}"],
    "overcast": ["{place} under an overcast sky", "{label} on a cloudy day", "grey sky over {place}"],
}
PLAIN = ["{place}", "a photo of {place}", "{label}"]


def article(words: str) -> str:
    """'a' or 'an' in front."""
    return f"{'an' if words[:1].lower() in 'aeiou' else 'a'} {words}"


def scene_captions(label: str, traits: list[str]) -> list[str]:
    """Several wordings of a landscape; two traits are also combined."""
    place = PLACES.get(label, article(label))
    out = [form.format(place=place, label=label) for trait in traits for form in WORDINGS[trait]]
    if "snow" in traits and len(traits) > 1:
        out += [form.format(place=f"a snowy {label}", label=f"snowy {label}") for t in traits if t != "snow" for form in WORDINGS[t][:2]]
    return out or [form.format(place=place, label=label) for form in PLAIN]


def flower_captions(label: str, colour: str | None, ground: str | None) -> list[str]:
    """Several wordings of a flower: kind, colour and background, each also left out at times."""
    named = any(word in label.replace("-", " ").split() for word in HUES)
    kind = label if named or not colour else f"{colour} {label}"
    out = [article(kind), f"a photo of {article(kind)}", article(label), f"a close-up of {article(kind)}"]
    if not label.endswith("flower"):
        out.append(f"{kind} flower")
    if colour:
        out += [article(kind), f"{article(colour)} flower", f"{article(label)} with {colour} petals"]
    if ground:
        out += [f"{article(kind)} on a {ground} background"] * 3
        if colour:
            out.append(f"{article(colour)} flower on a {ground} background")
    return out


def plain_captions(label: str) -> list[str]:
    """Wordings of a label of which nothing else is known."""
    return [label, article(label), f"a photo of {article(label)}"]


def captions(picture: Image.Image, row: Record) -> list[str]:
    """All wordings for one picture; a caption in the CSV is used as it stands."""
    if row.caption:
        return [row.caption]
    if row.label in PLACES:
        return scene_captions(row.label, scene_traits(picture, row.label))
    if "flower" in row.source or "flower" in row.label:
        return flower_captions(row.label, petal_colour(picture), background(picture))
    return plain_captions(row.label)


def write_captions(images: Path, rows: list[Record], out: Path) -> Skipped:
    """Write a CSV like the input's with a `captions` column (wordings joined by '|'); returns the skipped pictures.

    Every line is written, so that row numbers stay: a skipped picture has no wording.

    Raises:
        ValueError: lines without label and caption.
    """
    if nameless := [row.file for row in rows if not row.label and not row.caption]:
        raise ValueError(f"{len(nameless)} lines have neither label nor caption (first: {nameless[0]}). Fill in one of these columns.")
    skipped: Skipped = {}
    wordings = [""] * len(rows)
    with progress(len(rows), "captions") as bar:
        for number, picture in read_pictures(images, rows, skipped):
            wordings[number] = "|".join(captions(picture, rows[number]))
            bar.update()
    if not any(wordings):
        raise ValueError(f"None of the CSV's pictures can be read from {images}.")
    with replacing(out) as part, part.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(["file", "source", "label", "split", "captions"])
        writer.writerows([row.file, row.source, row.label, row.split, words] for row, words in zip(rows, wordings, strict=True))
    return skipped
