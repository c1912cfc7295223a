"""A probe that names pictures: multinomial logistic regression on features."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PENALTY = 3e-2  # on the squared weights of standardised features
STEPS = 40  # of L-BFGS


@dataclass(frozen=True)
class Probe:
    """names: what the columns stand for; the rest as fitted."""

    names: tuple[str, ...]
    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Scores (N, names) of features (N, D)."""
        return F.linear((features - self.mean) / self.scale, self.weight, self.bias)

    def rank(self, features: Tensor, names: Sequence[str]) -> Tensor:
        """How many names the probe finds likelier than the asked one, (N,); 0: named right."""
        scores = self(features)
        truth = torch.tensor([self.names.index(name) for name in names])[:, None]
        return (scores > scores.gather(1, truth)).sum(1)


def fit_probe(features: Tensor, labels: Sequence[str], penalty: float = PENALTY) -> Probe:
    """Fit on features (N, D) with their names; every kind counts alike, however many pictures it has."""
    names = tuple(sorted(set(labels)))
    target = torch.tensor([names.index(label) for label in labels])
    counts = torch.bincount(target, minlength=len(names)).float()
    mean, scale = features.mean(0), features.std(0).clamp_min(1e-6)
    x = (features - mean) / scale
    weight = torch.zeros(len(names), features.shape[1], requires_grad=True)
    bias = torch.zeros(len(names), requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(F.linear(x, weight, bias), target, weight=counts.reciprocal()) + penalty * weight.square().sum() / 2
        loss.backward()
        return loss

    optimiser.step(closure)
    return Probe(names, mean, scale, weight.detach(), bias.detach())
