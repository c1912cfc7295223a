"""What the training runs share: schedule, checkpoints that survive a kill at any moment, a progress line.

Knows nothing of what is trained.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .muon import Rated, prepare


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


class Recipe(Protocol):
    """The settings of a run that `fit` looks at."""

    steps: int
    warmup: int
    decay: float  # share of the steps
    every: int  # steps between checkpoints


def restore(checkpoint: Path, name: str, module: nn.Module, optims: list[Rated]) -> int:
    """Continue from the checkpoint when there is one; returns the step to go on with."""
    state = load_checkpoint(checkpoint)
    if state is None:
        return 0
    module.load_state_dict(state[name])
    for (optim, _), saved in zip(optims, state["optimizers"], strict=True):
        optim.load_state_dict(saved)
    return state["step"]


def fit(
    name: str,
    module: nn.Module,
    optims: list[Rated],
    recipe: Recipe,
    checkpoint: Path,
    start: int,
    loss_of: Callable[[int], Tensor],
    note: Callable[[], str] = str,
) -> None:
    """Steps from `start` to the recipe's end on loss_of(step), with a checkpoint and a line that ends in note() every so often."""
    schedule = Trapezoid(recipe.steps, recipe.warmup, round(recipe.decay * recipe.steps))
    progress = Progress(name, recipe.steps, start=start)
    for step in range(start, recipe.steps):
        prepare(optims, schedule(step))
        loss = loss_of(step)
        loss.backward()
        for optim, _ in optims:
            optim.step()
        due = (step + 1) % recipe.every == 0 or step + 1 == recipe.steps
        progress.update(step, loss.item(), note() if due else "")
        if due:
            save_checkpoint(checkpoint, **{name: module.state_dict()}, optimizers=[o.state_dict() for o, _ in optims], step=step + 1)
