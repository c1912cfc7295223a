"""What training and evaluation share of a disk: checkpoints, fingerprints of weights, lines of progress."""

import hashlib
import os
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ..models.checkpoints import ASSETS


def fingerprint(target: str = "meadow") -> str:
    """12 hex digits that change with the weights of a shipped pair or a folder; of the name alone for a target from the hub."""
    digest, folder = hashlib.sha256(), ASSETS / target  # an absolute path stands for itself
    digest.update(b"" if folder.is_dir() else target.encode())
    for path in sorted(folder.rglob("*.safetensors")):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def progress(done: int, total: int, began: float, what: str = "pictures") -> None:
    """A line on standard error that overwrites itself: count, pace and time left. began: perf_counter at the first."""
    pace = (perf_counter() - began) / max(done, 1)
    remaining = pace * (total - done)
    rest = f"{remaining / 60:.0f} min" if remaining > 90 else f"{remaining:.0f} s"
    print(f"\r{done}/{total} {what}, {pace:.2f} s each, {rest} left   ", end="\n" if done == total else "", file=sys.stderr, flush=True)


def save_checkpoint(path: Path, **state: Any) -> None:
    """Write the state beside `path`, then rename: a kill leaves the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    torch.save(state, part)
    os.replace(part, path)


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The last state, or None where there is none."""
    return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None


@dataclass
class Progress:
    """One line that is rewritten on a terminal, and printed every `every` steps elsewhere: step, loss, seconds left."""

    name: str
    steps: int
    every: int = 20
    start: int = 0
    smooth: float | None = None
    began: float = field(default_factory=time.monotonic)

    def update(self, step: int, loss: float | None = None, note: str = "") -> None:
        """Record that `step` (from 0) is done, and its loss where there is one."""
        if loss is not None:
            self.smooth = loss if self.smooth is None else 0.95 * self.smooth + 0.05 * loss
        live = sys.stderr.isatty()
        if not live and (step + 1) % self.every and step + 1 != self.steps:
            return
        done = step + 1 - self.start
        remaining = (time.monotonic() - self.began) / done * (self.steps - step - 1)
        eta = timedelta(seconds=round(remaining))
        loss_text = "" if self.smooth is None else f" loss {self.smooth:.4f}"
        line = f"{self.name} {step + 1}/{self.steps}{loss_text} eta {eta} {note}"
        print(f"\r{line}" if live else line, end="" if live and step + 1 < self.steps else "\n", file=sys.stderr, flush=True)
