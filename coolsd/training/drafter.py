"""Train an EAGLE-1 drafter on a frozen target of any LlamaGen-format pair. Resumable at any moment.

Source: EAGLE (arXiv 2401.15077): regression on the target's features plus cross-entropy to its rows, with noise on the input features.
Two changes (ours): conditional and unconditional rows are trained together and the cross-entropy is taken on the *guided* rows, which is
what verification compares; and a second pass feeds the drafter its own predictions, as drafting does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.eagle import Eagle
from ..models.llamagen import LlamaGen, prefix_mask
from ..sampling import guide
from .loop import fit, restore
from .muon import optimizers
from .tokens import Batch


@dataclass(frozen=True)
class DrafterRecipe:
    """Settings of a run."""

    steps: int = 1000
    batch: int = 12  # pictures; each is two rows
    muon: float = 0.02
    adam: float = 2e-3
    weight_decay: float = 0.02
    warmup: int = 30
    decay: float = 0.5
    noise: float = 0.1  # uniform, on the input features
    feature_weight: float = 1.0
    row_weight: float = 1.0
    own_share: float = 0.5  # features replaced by the drafter's own in the second pass
    scale: float = 4.0  # guidance of the rows
    seed: int = 0
    every: int = 100


@torch.no_grad()
def target_features(target: LlamaGen, batch: Batch, rope: Tensor) -> Tensor:
    """Features of conditional rows, then unconditional rows, at all positions: (2B, C + n - 1, D). Padded as in decoding."""
    c = target.config
    count, length = batch.features.shape[:2]
    pad = c.caption_tokens - length
    features = torch.cat([F.pad(batch.features, (0, 0, pad, 0)), target.cls_embedding.uncond_embedding.expand(count, -1, -1)])
    valid = torch.arange(c.caption_tokens, device=rope.device) >= pad
    condition = target.cls_embedding.cap_proj(features)
    x = torch.cat([condition, target.tok_embeddings(batch.tokens[:, :-1]).to(condition.dtype).repeat(2, 1, 1)], dim=1)
    return target(x, rope[: x.shape[1]], prefix_mask(valid, x.shape[1]))


def drafter_loss(
    drafter: Eagle, target: LlamaGen, hidden: Tensor, tokens: Tensor, rope: Tensor, recipe: DrafterRecipe, own: bool
) -> Tensor:
    """Feature and row loss over all draft positions of the batch.

    Args:
        hidden: (2B, C + n - 1, D) from target_features; tokens (B, n).
        own: add the second pass over the drafter's own features.
    """
    first = hidden.shape[1] - tokens.shape[1] + 1  # condition positions; entry first - 1 is paired with token 0
    ids = F.pad(tokens[:, :-1], (first - 1, 0)).repeat(2, 1)
    inputs, wanted = hidden[:, :-1], hidden[:, first:]
    noisy = inputs + (torch.rand_like(inputs) - 0.5) * (2 * recipe.noise * inputs.std())
    with torch.no_grad():
        p = guide(*target.output(wanted).float().chunk(2), recipe.scale).softmax(-1)

    def terms(features: Tensor) -> Tensor:
        guided = guide(*target.output(features).float().chunk(2), recipe.scale)
        rows = -(p * guided.log_softmax(-1)).sum(-1).mean()
        return recipe.feature_weight * F.smooth_l1_loss(features.float(), wanted.float()) + recipe.row_weight * rows

    predicted = drafter(noisy, ids, rope[: ids.shape[1]])
    total = terms(predicted[:, first - 1 :])
    if own:
        shifted = torch.cat([inputs[:, :first], predicted[:, first - 1 : -1].to(inputs.dtype)], dim=1).detach()
        chosen = torch.rand(shifted.shape[:2], device=shifted.device) < recipe.own_share
        again = drafter(torch.where(chosen[..., None], shifted, inputs), ids, rope[: ids.shape[1]])
        total = (total + terms(again[:, first - 1 :])) / 2
    return total


def train_drafter(drafter: Eagle, target: LlamaGen, batches: Iterator[Batch], recipe: DrafterRecipe, checkpoint: Path) -> None:
    """Train until `recipe.steps`, writing `checkpoint` on the way and continuing from it when it is there."""
    torch.set_flush_denormal(True)
    torch.manual_seed(recipe.seed)
    target.eval().requires_grad_(False)
    target_rope, rope = target.rope(), drafter.rope()
    optims = optimizers(drafter, (drafter.fc, drafter.layers), recipe.muon, recipe.adam, recipe.weight_decay)
    start = restore(checkpoint, "drafter", drafter, optims)

    def loss_of(step: int) -> Tensor:
        batch = next(batches)
        with torch.autocast(rope.device.type, torch.bfloat16):
            hidden = target_features(target, batch, target_rope)
            return drafter_loss(drafter, target, hidden, batch.tokens, rope, recipe, own=step > recipe.steps // 4)

    fit("drafter", drafter, optims, recipe, checkpoint, start, loss_of)
