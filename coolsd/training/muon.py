"""Muon: momentum whose matrix update is made orthogonal (Jordan et al., 2024).

torch.optim.Muon works on transposed views, whose bfloat16 products are ten times slower on a CPU (measured with torch 2.13); this one
copies them first and is otherwise the same rule.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # quintic of the Newton-Schulz step (Jordan et al.)
STEPS = 5


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix with all singular values brought near 1, (rows, columns), computed in bfloat16."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).bfloat16().contiguous()
    x /= x.norm() + 1e-7
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """For 2-D weights only. The step of a (rows, columns) matrix has size lr · sqrt(max(1, rows / columns))."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        """One update with Nesterov momentum and decoupled weight decay."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                buffer = state.setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(buffer, group["momentum"]))
                scale = max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * scale)


RatedOptimizer = tuple[torch.optim.Optimizer, float]  # an optimizer and its full learning rate


def optimizers(module: nn.Module, hidden: Iterable[nn.Module], muon: float, adam: float, weight_decay: float) -> list[RatedOptimizer]:
    """Muon for the matrices of the `hidden` parts of a module, AdamW for all else of it (embeddings, heads, norms, biases)."""
    matrices = [p for part in hidden for p in part.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    rest = [p for p in module.parameters() if id(p) not in chosen]
    return [
        (Muon(matrices, lr=muon, weight_decay=weight_decay), muon),
        (torch.optim.AdamW(rest, lr=adam, betas=(0.9, 0.95), weight_decay=0.0), adam),
    ]


def prepare(optims: list[RatedOptimizer], factor: float) -> None:
    """Before a step: clear the gradients and set every rate to its full value times `factor`."""
    for optim, rate in optims:
        optim.zero_grad(set_to_none=True)
        for group in optim.param_groups:
            group["lr"] = rate * factor
