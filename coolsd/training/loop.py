"""What the training runs share: schedule, checkpoints that survive a kill at any moment, a progress line.

Knows nothing of what is trained.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..data.store import load_checkpoint, progress, save_checkpoint
from .muon import RatedOptimizer, prepare

SMOOTHING = 0.95  # of the loss that is shown


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


@dataclass(frozen=True)
class Process:
    """A process of a run: the only one, or one of `ranks` on a device each, started by `accelerate launch`."""

    device: torch.device
    rank: int = 0
    ranks: int = 1
    accelerator: Any = None

    def wait(self) -> None:
        """Until all processes are here."""
        if self.accelerator is not None:
            self.accelerator.wait_for_everyone()

    def same(self, *tensors: Tensor) -> None:
        """Overwrite these with the first process's."""
        if self.accelerator is not None:
            from accelerate.utils import broadcast

            for tensor in tensors:
                tensor.copy_(broadcast(tensor.clone(), from_process=0))

    def share(self, module: nn.Module) -> None:
        """Average the gradients over all processes."""
        if self.accelerator is None:
            return
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        mean = self.accelerator.reduce(torch.cat([g.flatten() for g in gradients]), reduction="mean")
        for gradient, part in zip(gradients, mean.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


ALONE = Process(torch.device("cpu"))


def this_process() -> Process:
    """This process: on a GPU where there is one.

    Raises:
        ValueError: several processes were launched without accelerate being installed.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return Process(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        from accelerate import Accelerator
    except ImportError:
        raise ValueError("Training in several processes needs accelerate: pip install -r coolsd/training/requirements.txt") from None
    accelerator = Accelerator(cpu=not torch.cuda.is_available())  # unasked it sees one process where there is no GPU
    return Process(accelerator.device, accelerator.process_index, accelerator.num_processes, accelerator)


class Recipe(Protocol):
    """The settings of a run that `fit` looks at."""

    steps: int
    warmup: int
    decay: float  # share of the steps
    every: int  # steps between checkpoints


@dataclass(frozen=True)
class Training:
    """One run: what is trained, with which optimizers and recipe, where it is saved, and as which process.

    name: of the module in the checkpoint and on the progress line.
    """

    name: str
    module: nn.Module
    optims: list[RatedOptimizer]
    recipe: Recipe
    checkpoint: Path
    process: Process = ALONE

    def restore(self) -> int:
        """Continue from the checkpoint when there is one; returns the step to go on with.

        Raises:
            ValueError: it holds another model's state.
        """
        state = load_checkpoint(self.checkpoint)
        if state is None:
            return 0
        try:
            self.module.load_state_dict(state[self.name])
            for (optim, _), saved in zip(self.optims, state["optimizers"], strict=True):
                optim.load_state_dict(saved)
            return int(state["step"])
        except (KeyError, TypeError, RuntimeError, ValueError, AttributeError) as error:
            raise ValueError(f"{self.checkpoint} is of a run with other sizes; name another --checkpoint, or remove it.") from error

    def save(self, step: int) -> None:
        """Write the state after `step` steps."""
        optimizers = [optim.state_dict() for optim, _ in self.optims]
        save_checkpoint(self.checkpoint, **{self.name: self.module.state_dict()}, optimizers=optimizers, step=step)

    def fit(self, start: int, loss_of: Callable[[int], Tensor], note: Callable[[], str] = str) -> None:
        """Steps from `start` to the recipe's end on loss_of(step), with a checkpoint and a note(), shown beside the loss, every so often.

        Of several processes each computes its own loss; the first one writes.
        """
        recipe = self.recipe
        schedule = Trapezoid(recipe.steps, recipe.warmup, round(recipe.decay * recipe.steps))
        smooth, last_note = None, ""
        with progress(recipe.steps, self.name, start) as bar:
            for step in range(start, recipe.steps):
                prepare(self.optims, schedule(step))
                loss = loss_of(step)
                loss.backward()
                self.process.share(self.module)
                for optim, _ in self.optims:
                    optim.step()
                if self.process.rank:
                    continue
                if (step + 1) % recipe.every == 0 or step + 1 == recipe.steps:
                    self.save(step + 1)
                    last_note = note()
                smooth = loss.item() if smooth is None else SMOOTHING * smooth + (1 - SMOOTHING) * loss.item()
                bar.set_postfix_str(f"loss {smooth:.4f} {last_note}".rstrip(), refresh=False)
                bar.update()
