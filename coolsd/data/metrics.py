"""How far pictures and laws lie apart: KID with its standard error, PSNR, code perplexity. Pure functions of tensors."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCKS = 20  # of the jackknife
LEAST = 4  # pictures of either kind: two blocks of two


@dataclass(frozen=True)
class Estimate:
    """A figure with its standard error."""

    value: float
    error: float

    def agrees(self, with_value: float = 0.0, errors: float = 2.0) -> bool:
        """Whether the figure lies within this many standard errors of a value."""
        return abs(self.value - with_value) <= errors * self.error


def mean_estimate(values: Tensor) -> Estimate:
    """Mean of independent values (N,) with its standard error; N > 1."""
    values = values.double()
    return Estimate(values.mean().item(), (values.std() / len(values) ** 0.5).item())


def kernel(x: Tensor, y: Tensor) -> Tensor:
    """KID's cubic kernel (x·y / D + 1)³ between rows, (N, M) float64."""
    return (x.double() @ y.double().T / x.shape[1] + 1) ** 3


def mmd2(xx: Tensor, yy: Tensor, xy: Tensor) -> float:
    """Unbiased squared maximum mean discrepancy from kernel matrices (N, N), (M, M), (N, M) (Gretton et al., 2012, equation 3)."""
    n, m = xy.shape
    within_x = (xx.sum() - xx.trace()) / (n * (n - 1))
    within_y = (yy.sum() - yy.trace()) / (m * (m - 1))
    return (within_x + within_y - 2 * xy.mean()).item()


def block_values(statistic: Callable[[Callable[[int], Tensor]], float], smallest: int) -> tuple[float, Tensor]:
    """A statistic of several samples, and the same without each block of their rows, (blocks,) float64.

    Args:
        statistic: gets `keep`, which turns a sample's size into the rows to use.
        smallest: size of the smallest sample, at least 4.
    """
    blocks = min(BLOCKS, smallest // 2)

    def without(block: int) -> Callable[[int], Tensor]:
        return lambda size: torch.arange(size)[torch.arange(size) % blocks != block]

    left_out = torch.tensor([statistic(without(b)) for b in range(blocks)], dtype=torch.float64)
    return statistic(torch.arange), left_out


def jackknife_error(left_out: Tensor) -> float:
    """Delete-a-block standard error (Künsch, 1989) from the statistic without each block.

    For an MMD between samples of one law, a degenerate U-statistic, it comes out too large, by √2 for many rows.
    """
    return ((len(left_out) - 1) * left_out.var(unbiased=False)).sqrt().item()


def jackknife(statistic: Callable[[Callable[[int], Tensor]], float], smallest: int) -> Estimate:
    """A statistic with its jackknife error; arguments as for `block_values`."""
    value, left_out = block_values(statistic, smallest)
    return Estimate(value, jackknife_error(left_out))


def kid(x: Tensor, y: Tensor) -> Estimate:
    """Kernel Inception Distance of two sets of features (N, D) and (M, D): unbiased, so it may be negative (Bińkowski et al., 2018)."""
    return kid_difference(x, None, y)


def kid_difference(x: Tensor, other: Tensor | None, y: Tensor) -> Estimate:
    """KID(x, y) - KID(other, y), with the error of the difference: rows of x and other belong together (same prompt and seed).

    Raises:
        ValueError: too few rows for an error.
    """
    if min(len(x), len(y)) < LEAST:
        raise ValueError(f"KID and its error need {LEAST} pictures and {LEAST} photos or more; here are {len(x)} and {len(y)}.")
    yy = kernel(y, y)
    sides = [(kernel(a, a), kernel(a, y)) for a in (x, other) if a is not None]

    def statistic(keep: Callable[[int], Tensor]) -> float:
        rows, photos = keep(len(x)), keep(len(y))
        values = [mmd2(aa[rows][:, rows], yy[photos][:, photos], ay[rows][:, photos]) for aa, ay in sides]
        return values[0] - sum(values[1:])

    return jackknife(statistic, min(len(x), len(y)))


def exchange_test(x: Tensor, y: Tensor, draws: int = 999, seed: int = 0) -> float:
    """P-value of "x and y come from one law" for paired rows (N, D): the KID between them against that after swapping random pairs.

    Exact when the rows of a pair are exchangeable under one law; same prompts do not blunt it, since pairs stay together.
    """
    n, generator = len(x), torch.Generator().manual_seed(seed)
    both = torch.cat([x, y])
    gram = kernel(both, both)
    statistic, larger = None, 0
    for draw in range(draws + 1):
        swap = torch.rand(n, generator=generator) < 0.5 if draw else torch.zeros(n, dtype=torch.bool)
        side = torch.arange(n) + n * swap
        opposite = (side + n) % (2 * n)
        value = mmd2(gram[side][:, side], gram[opposite][:, opposite], gram[side][:, opposite])
        statistic = value if statistic is None else statistic
        larger += value >= statistic
    return larger / (draws + 1)


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of each pair of pictures (B, 3, H, W) in [-1, 1]; (B,)."""
    return 10 * math.log10(4) - 10 * (a - b).double().square().mean((1, 2, 3)).log10()


def perplexity(codes: Tensor, vocabulary: int) -> float:
    """exp of the entropy of how often each code occurs: the number of codes in effective use."""
    shares = torch.bincount(codes.flatten(), minlength=vocabulary).double()
    shares = shares / shares.sum()
    return torch.special.entr(shares).sum().exp().item()
