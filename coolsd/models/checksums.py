"""Checksums of a pair's files, stored beside them: loading compares them, so that a damaged file is named and not decoded from."""

import hashlib
import json
from pathlib import Path

from .checkpoints import LoadError, read_json

FILE = "checksums.json"
NAMES = ("config.json", "words.json", "text_tokenizer.json", "*.safetensors")  # of the files that loading reads
PLACES = ("", "drafter/", "vq/")


def _sums(folder: Path) -> dict[str, str]:
    paths = {path for place in PLACES for name in NAMES for path in folder.glob(place + name)}
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


def write(folder: Path) -> Path:
    """Write the SHA-256 of each of the pair's files; returns the path."""
    path = folder / FILE
    path.write_text(json.dumps(_sums(folder), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def refresh(folder: Path) -> None:
    """After a file in this folder was replaced on purpose: write the sums of the pair again that it is a part of, where it has some."""
    for pair in (folder, folder.parent):
        if (pair / FILE).exists():
            write(pair)


def check(folder: Path) -> None:
    """Compare the pair's files with its checksums, where it has some.

    Raises:
        LoadError: a file that is not as it was, by name.
    """
    if not (folder / FILE).exists():
        return
    expected, present = read_json(folder / FILE), _sums(folder)
    if changed := sorted(name for name in expected.keys() | present.keys() if name in present and expected.get(name) != present[name]):
        fix = f"`python -m coolsd train checksums --pair {folder}`"
        raise LoadError(f"{changed[0]} in {folder} is not as {FILE} says: damaged. Copy it again; or {fix} if you replaced it on purpose.")
