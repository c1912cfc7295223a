"""What the training runs share: schedule, checkpoints that survive a kill at any moment, a progress line.

Knows nothing of what is trained.
"""

import os
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Trapezoid:
    """Learning-rate factor: warm-up, plateau, linear decay to zero. A run can be prolonged from any checkpoint before the decay."""

    steps: int
    warmup: int
    decay: int

    def __call__(self, step: int) -> float:
        """Factor in [0, 1] for `step` (from 0)."""
        rise = (step + 1) / max(1, self.warmup)
        fall = (self.steps - step) / max(1, self.decay)
        return max(0.0, min(1.0, rise, fall))


def save_checkpoint(path: Path, **state: Any) -> None:
    """Write the state beside `path`, then rename: a kill leaves the old file or the new one, never half of one."""
    part = path.with_suffix(".part")
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

    def update(self, step: int, loss: float, note: str = "") -> None:
        """Record the loss of `step` (from 0)."""
        self.smooth = loss if self.smooth is None else 0.95 * self.smooth + 0.05 * loss
        live = sys.stderr.isatty()
        if not live and (step + 1) % self.every and step + 1 != self.steps:
            return
        done = step + 1 - self.start
        left = (time.monotonic() - self.began) / done * (self.steps - step - 1)
        eta = timedelta(seconds=round(left))
        line = f"{self.name} {step + 1}/{self.steps} loss {self.smooth:.4f} eta {eta} {note}"
        print(f"\r{line}" if live else line, end="" if live and step + 1 < self.steps else "\n", file=sys.stderr, flush=True)
