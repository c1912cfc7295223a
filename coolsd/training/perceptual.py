"""A perceptual distance between pictures: how far EfficientNet-lite0's feature maps lie apart, at five depths."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.features import LOSS, lite

DEPTHS = (0, 2, 4, 10, 15)  # blocks behind which maps are compared: the last of each resolution


def perceptual(device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """The distance of pictures from originals, both (B, 3, S, S) in [-1, 1]: mean squared, of maps normalised over channels.

    Source: Zhang et al., "The Unreasonable Effectiveness of Deep Features" (2018).

    Raises:
        ValueError: the packages of this extra are not installed.
    """
    network = lite(LOSS).to(device)

    def maps(pictures: Tensor) -> list[Tensor]:
        x = network._swish(network._bn0(network._conv_stem(pictures.contiguous(memory_format=torch.channels_last))))
        features = []
        for number, block in enumerate(network._blocks):
            x = block(x)
            if number in DEPTHS:
                features.append(F.normalize(x.float(), dim=1))
        return features

    def distance(pictures: Tensor, originals: Tensor) -> Tensor:
        with torch.no_grad():
            truth = maps(originals)
        return torch.stack([(a - b).square().sum(1).mean() for a, b in zip(maps(pictures), truth, strict=True)]).mean()

    return distance
