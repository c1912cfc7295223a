"""What training and evaluation share of a disk: files that appear whole, digests, fingerprints of weights, progress on the way."""

import hashlib
import json
import math
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..models.checkpoints import ASSETS

LOG_SECONDS = 30.0  # between two lines of progress in a log


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, renamed to it at the end: a kill leaves the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        yield part
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    os.replace(part, path)


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write an .npz file, whole or not at all."""
    with replacing(path) as part, part.open("wb") as handle:
        np.savez(handle, **arrays)


def save_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, whole or not at all."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def finite(value: Any) -> Any:
    """Plain values for JSON, which knows no NaN and no infinity: None stands for a figure that could not be taken."""
    if isinstance(value, dict):
        return {name: finite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_json(path: Path, value: Any) -> None:
    """Write figures as JSON, whole or not at all; see `finite`."""
    save_text(path, json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def save_checkpoint(path: Path, **state: Any) -> None:
    """Write tensors and plain values by name, whole or not at all."""
    with replacing(path) as part:
        torch.save(state, part)


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The last state, or None where there is none.

    Raises:
        ValueError: the file is damaged, or no checkpoint.
    """
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path} is no checkpoint that can be read; it may be cut short. Remove it to begin again.") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} is no checkpoint of a training. Name another file.")
    return state


def digest(*parts: str | bytes | Tensor, digits: int = 64) -> str:
    """The first hexadecimal digits of the SHA-256 of these, one after another; a tensor counts by its float32 values."""
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            part = part.detach().float().cpu().numpy().tobytes()
        sha.update(part.encode() if isinstance(part, str) else part)
    return sha.hexdigest()[:digits]


def fingerprint(target: str = "meadow") -> str:
    """12 digits that change with the weights of a shipped pair or a folder; of the name alone for a target from the hub."""
    folder = ASSETS / target  # an absolute path stands for itself
    files = sorted(folder.rglob("*.safetensors"))
    contents = (part for path in files for part in (path.relative_to(folder).as_posix(), path.read_bytes()))
    return digest(b"" if folder.is_dir() else target, *contents, digits=12)


def progress(total: int, what: str, done: int = 0) -> tqdm:
    """A bar on standard error, to be updated and closed: redrawn on a terminal, a line now and then in a log.

    Args:
        total: steps in all. done: of them, those before this start.
    """
    live = sys.stderr.isatty()
    line = "{desc}: {n_fmt}/{total_fmt}, {elapsed} so far, {remaining} to go{postfix}"
    form = {} if live else {"bar_format": line + "\n", "mininterval": LOG_SECONDS, "miniters": 1}
    return tqdm(total=total, initial=done, desc=what, file=sys.stderr, dynamic_ncols=live, **form)
