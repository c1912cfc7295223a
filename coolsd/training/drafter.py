"""Train an EAGLE-1 drafter for the frozen target of any pair. Resumable at any moment.

Source: EAGLE (arXiv 2401.15077): regression on the target's features plus cross-entropy to its rows, with noise on the input features.
Two changes (ours): conditional and unconditional branches are trained together, with the cross-entropy taken on the *guided* rows, which
is what verification compares; and a second pass feeds the drafter its own predictions, as drafting does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.eagle import Eagle
from ..models.pair import LoadedPair
from ..protocols import TeacherForced
from ..sampling import guided
from .loop import Process, Training
from .muon import optimizers
from .target_samples import Example
from .tokens import Photos


@dataclass(frozen=True)
class DrafterRecipe:
    """Settings of a run."""

    steps: int = 1000
    batch: int = 12  # pictures; each is two branches
    muon: float = 0.02
    adam: float = 2e-3
    weight_decay: float = 0.02
    warmup: int = 30
    decay: float = 0.5
    noise: float = 0.1  # uniform, on the input features
    feature_weight: float = 1.0
    row_weight: float = 1.0
    own_share: float = 0.5  # features replaced by the drafter's own in the second pass
    sampled: float = 0.5  # share of self-generated pictures, where there are some
    scale: float = 4.0  # guidance of the rows, and of the target's own pictures
    top_k: int = 500  # of the target's own pictures
    seed: int = 0
    every: int = 100


class Examples:
    """Pictures to learn from: photos' tokens with their captions, and the target's own. The k-th is the same each time."""

    def __init__(self, photos: Photos | None, own: Sequence[Example], sampled: float, seed: int):
        self.photos, self.own, self.seed = photos, own, seed
        self.sampled = 0.0 if not own else 1.0 if photos is None else sampled
        self.numbers = sorted(photos.variants) if photos else []

    def __call__(self, k: int) -> Example:
        random = np.random.default_rng((self.seed, k))
        if random.random() < self.sampled:
            return self.own[random.integers(len(self.own))]
        number = self.numbers[random.integers(len(self.numbers))]
        tokens, captions = self.photos.variants[number], self.photos.captions[number]
        chosen = tokens[random.integers(len(tokens))].astype(np.int64)
        return captions[random.integers(len(captions))], torch.from_numpy(chosen)


def drafter_loss(drafter: Eagle, teacher_forced: TeacherForced, recipe: DrafterRecipe, own: bool) -> Tensor:
    """Feature and row loss over all draft positions of one picture.

    Args:
        own: add the second pass over the drafter's own features.
    """
    inputs, at = teacher_forced.hidden[:, :-1], teacher_forced.at
    p = teacher_forced.logits.softmax(-1)

    def terms(features: Tensor) -> Tensor:
        output, truth = features[:, at], teacher_forced.hidden[:, at + 1]
        rows = -(p * guided(teacher_forced.head(output), recipe.scale).log_softmax(-1)).sum(-1).mean()
        return recipe.feature_weight * F.smooth_l1_loss(output.float(), truth.float()) + recipe.row_weight * rows

    noisy = inputs + (torch.rand_like(inputs) - 0.5) * (2 * recipe.noise * inputs.std())
    predicted = drafter(noisy, teacher_forced.ids[None], teacher_forced.rope, teacher_forced.mask)
    total = terms(predicted)
    if own:
        chosen = torch.rand(at.shape[0] - 1, device=at.device) < recipe.own_share
        mixture = inputs.clone()
        mixture[:, at[1:][chosen]] = predicted[:, at[:-1][chosen]].detach().to(inputs.dtype)
        total = (total + terms(drafter(mixture, teacher_forced.ids[None], teacher_forced.rope, teacher_forced.mask))) / 2
    return total


def train_drafter(drafter: Eagle, pair: LoadedPair, examples: Examples, recipe: DrafterRecipe, checkpoint: Path, process: Process) -> None:
    """Train until `recipe.steps`, writing `checkpoint` on the way and continuing from it when it is there."""
    torch.set_flush_denormal(True)
    pair.unpack()
    drafter.to(process.device).train()
    optims = optimizers(drafter, (drafter.fc, drafter.layers), recipe.muon, recipe.adam, recipe.weight_decay)
    training = Training("drafter", drafter, optims, recipe, checkpoint, process)
    start = training.restore()
    torch.manual_seed(recipe.seed + start * process.ranks + process.rank)

    def loss_of(step: int) -> Tensor:
        first = (step * process.ranks + process.rank) * recipe.batch
        losses = []
        with torch.autocast(process.device.type, torch.bfloat16):
            for k in range(first, first + recipe.batch):
                with torch.no_grad():
                    teacher_forced = pair.teacher_forced(*examples(k), recipe.scale)
                losses.append(drafter_loss(drafter, teacher_forced, recipe, own=step > recipe.steps // 4))
        return torch.stack(losses).mean()

    training.fit(start, loss_of)
