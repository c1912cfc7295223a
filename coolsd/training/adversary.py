"""A patch discriminator and the hinge losses by which a decoder learns texture that no distance to one original asks for.

Sources: PatchGAN (Isola et al., 2017), spectral normalisation (Miyato et al., 2018), hinge losses (Lim and Ye, 2017).
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

CHANNELS = (48, 96, 192)  # of the layers that halve the side
STRIDE = 2 ** len(CHANNELS)  # pixels between two scores
SLOPE = 0.2  # of the leaky rectifiers


class PatchDiscriminator(nn.Module):
    """Scores of overlapping patches, 38 pixels wide and 8 apart: above 0 where they look like photos'.

    Every convolution has spectral norm 1, so that the scores change slowly with the picture and the losses stay in range.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in zip((3, *CHANNELS), CHANNELS, strict=False):
            layers += [spectral_norm(nn.Conv2d(inputs, outputs, 4, stride=2, padding=1)), nn.LeakyReLU(SLOPE)]
        self.layers = nn.Sequential(*layers, spectral_norm(nn.Conv2d(CHANNELS[-1], 1, 3, padding=1))).to(memory_format=torch.channels_last)

    def forward(self, pictures: Tensor) -> Tensor:
        """Pictures (B, 3, S, S) in [-1, 1] to scores (B, 1, S/8, S/8), float32."""
        return self.layers(pictures.contiguous(memory_format=torch.channels_last)).float()


def discriminator_loss(real: Tensor, generated: Tensor) -> Tensor:
    """Hinge loss of a discriminator from its scores of photos and of decoded pictures: photos above 1, decoded ones below -1."""
    return F.relu(1 - real).mean() + F.relu(1 + generated).mean()


def decoder_loss(generated: Tensor) -> Tensor:
    """What the decoder lowers: minus the mean score of its pictures."""
    return -generated.mean()


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Inside, what passes through the module leaves no gradient in its parameters, and its power iterations rest."""
    parameters, training = [p for p in module.parameters() if p.requires_grad], module.training
    for p in parameters:
        p.requires_grad_(False)
    module.eval()
    try:
        yield
    finally:
        module.train(training)
        for p in parameters:
            p.requires_grad_(True)


def same_crop(pictures: Tensor, photos: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Both (B, 3, S, S) cut by the same window, moved by up to a stride of the discriminator: (B, 3, S-7, S-7).

    Scores stand a stride apart; at one fixed place the decoder would learn a texture in step with them (a grid of dots in dark pictures).
    """
    down, right = random.Random(seed).choices(range(STRIDE), k=2)
    side = pictures.shape[-1] - STRIDE + 1
    window = (..., slice(down, down + side), slice(right, right + side))
    return pictures[window], photos[window]


def adversarial_losses(discriminator: nn.Module, pictures: Tensor, photos: Tensor) -> tuple[Tensor, Tensor]:
    """(decoder's loss, discriminator's loss) of decoded pictures and photos, both (B, 3, S, S).

    The first leaves gradients in `pictures` alone and the second in the discriminator alone, so one backward pass of their sum trains both.
    """
    with frozen(discriminator):
        deceive = decoder_loss(discriminator(pictures))
    scores = discriminator(torch.cat([photos, pictures.detach()]))
    return deceive, discriminator_loss(*scores.chunk(2))
