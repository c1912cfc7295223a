"""Relaxation schedules: ω for each draft position of a round.

Knows nothing of rows or rules. A schedule is a (length,) float32 tensor; entry i - 1 belongs to draft position i, counted from the
start of the round and not of the picture. ω = 1 is lossless, above 1 accepts more than lossless, below 1 less (and is still exact).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

LARGEST = torch.finfo(torch.float32).max  # an infinite ω times p = 0 would be NaN
EXPONENT = 700.0  # whose exp is finite in float64, so that δ = 0 times it is 0


def annealed(length: int, delta: float, nu: float = 0.7, mu: float | None = None, clamp: bool = False) -> Tensor:
    """ω_i = δ exp(-ν i - μ), i = 1..length (COOL-SD, arXiv 2601.09212).

    Args:
        length: draft positions.
        delta: total relaxation.
        nu: decay per position; negative anneals in reverse.
        mu: normaliser. None takes the μ that makes the mean of ω equal δ; the paper speaks of a mean-normalised schedule, the closed
            form is derived.
        clamp: raise every ω below 1 to 1 (ours, not the paper's). Where ω decreases this leaves the law of the round unchanged and
            never accepts less, since a step with ω <= 1 is exact.

    Returns:
        (length,) float32, finite.
    """
    exponent = -nu * torch.arange(1, length + 1, dtype=torch.float64)
    # δ L softmax(-ν i) is δ exp(-ν i) over its mean, without underflow for large ν.
    omega = delta * length * exponent.softmax(0) if mu is None else delta * (exponent - mu).clamp(max=EXPONENT).exp()
    if clamp:
        omega = omega.clamp(min=1.0)
    return omega.clamp(max=LARGEST).float()


def uniform(length: int, delta: float) -> Tensor:
    """The same ω = δ at every position (UniformRSD, the paper's ablation). (length,) float32, finite."""
    return torch.full((length,), min(float(delta), LARGEST))


def window(length: int, omega: float, positions: int) -> Tensor:
    """The same ω at the first positions, 1 behind them (ours): relaxed early, exact late. (length,) float32, finite."""
    row = torch.ones(length)
    row[:positions] = min(float(omega), LARGEST)
    return row


def between(frontier: Sequence[tuple[float, Sequence[float]]], at: float) -> Tensor:
    """ω at a value between those of a frontier, by interpolation (ours); beyond its ends that of the end. (length,) float32.

    Args:
        frontier: (value, ω) of two schedules or more, values rising.
    """
    values = [value for value, _ in frontier]
    right = next((i for i, value in enumerate(values[1:], 1) if value >= at), len(values) - 1)
    share = (at - values[right - 1]) / (values[right] - values[right - 1])
    low, high = (torch.tensor(frontier[i][1]) for i in (right - 1, right))
    return torch.lerp(low, high, min(max(share, 0.0), 1.0))


def lossless(length: int) -> Tensor:
    """ω = 1 at every position: vanilla speculative decoding. (length,) float32."""
    return torch.ones(length)
