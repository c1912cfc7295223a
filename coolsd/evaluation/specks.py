"""Specks: single tokens that do not fit what is around them, told by their patch's colour. Pure functions of pictures."""

import torch
import torch.nn.functional as F
from torch import Tensor

QUANTILE = 0.999  # of photos' patches; what stands out further is called a speck


def isolation(pictures: Tensor, patch: int) -> Tensor:
    """How far each inner token's patch stands out: the least distance of its mean colour to those of the eight patches around it.

    Args:
        pictures: (N, 3, R·patch, C·patch) in [-1, 1]. patch: side of a token's patch in pixels.

    Returns:
        (N, R-2, C-2): Euclidean distances of RGB in [-1, 1]; patches at the border have no eight neighbours and are left out.
    """
    colours = F.avg_pool2d(pictures.float(), patch)
    rows, columns = colours.shape[-2] - 2, colours.shape[-1] - 2
    inner = colours[..., 1:-1, 1:-1]
    around = [colours[..., y : y + rows, x : x + columns] for y in range(3) for x in range(3) if (y, x) != (1, 1)]
    return torch.stack([(inner - other).square().sum(1).sqrt() for other in around]).amin(0)


def speck_limit(of_photos: Tensor) -> float:
    """The isolation that only one patch in a thousand of photos exceeds, from the isolations of their patches, any shape."""
    return torch.quantile(of_photos.flatten().double(), QUANTILE).item()


def speck_share(isolations: Tensor, limit: float) -> Tensor:
    """Share of each picture's patches (N, …) that are specks; (N,) float64."""
    return (isolations.flatten(1) > limit).double().mean(1)
