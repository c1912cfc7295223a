"""Networks that look at pictures: features for FID and KID, CLIP's agreement with the caption, ImageReward.

Pictures are of 8 bits, as stored. For features they are resized as clean-fid does it (Parmar et al., 2022): Pillow's antialiased bicubic on
each channel in floating point, cut to [0, 255] and not rounded.
"""

import importlib.util
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...data.features import BATCH, efficientnet
from ...data.store import digest, fingerprint, save_arrays

EFFICIENTNETS = {"efficientnet-lite0": (0, 224), "efficientnet-lite2": (2, 260)}  # version and side of the pictures they were trained on
INCEPTION_SIDE = 299
PREFIX = "A photo depicts "  # CLIP score's, as in the protocol that the paper's baselines come with
REWARD = "ImageReward-v1.0"


def clean_resize(picture: Image.Image, side: int) -> np.ndarray:
    """(3, side, side) float32 in [0, 255]."""
    channels = np.asarray(picture.convert("RGB"), np.float32)
    resized = [Image.fromarray(channels[..., c]).resize((side, side), Image.Resampling.BICUBIC) for c in range(3)]
    return np.stack([np.asarray(channel) for channel in resized]).clip(0, 255)


@dataclass(frozen=True)
class FeatureNetwork:
    """name: as given. mark: changes with its weights. extract: pictures (B, 3, side, side) in [0, 255] to features (B, D)."""

    name: str
    mark: str
    side: int
    extract: Callable[[Tensor], Tensor]

    def __call__(self, pictures: Iterable[Image.Image]) -> Tensor:
        """Features (N, D), float64."""
        pictures, batches = iter(pictures), []
        while batch := [clean_resize(picture, self.side) for picture in itertools.islice(pictures, BATCH)]:
            with torch.inference_mode():
                batches.append(self.extract(torch.from_numpy(np.stack(batch))).double().cpu())
        return torch.cat(batches)


def _local(name: str) -> Path:
    """A file of this computer, or OWNER/REPO/FILE of the hub, fetched."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    parts = name.split("/", 2)
    if len(parts) < 3:
        known = ", ".join(EFFICIENTNETS)
        raise ValueError(f"There is no feature network {name}. Give {known}, a TorchScript file, or OWNER/REPO/FILE of the hub.")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download("/".join(parts[:2]), parts[2]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(f"{name} is no file here, and could not be fetched from the hub: {str(error).splitlines()[0]}") from None


def feature_network(name: str, device: str = "cpu") -> FeatureNetwork:
    """A network by name, or Inception-v3 from a TorchScript file in the layout of clean-fid's and StyleGAN's `inception-2015-12-05.pt`.

    That file's submodule `layers` takes pictures of 299 pixels a side as (x - 128) / 128 and gives 2,048 pooled features.

    Raises:
        ValueError: no such network, or a file of another kind.
    """
    if name in EFFICIENTNETS:
        version, side = EFFICIENTNETS[name]
        network = efficientnet(version)
        return FeatureNetwork(name, name, side, lambda pictures: network(pictures / 127.5 - 1))
    path = _local(name)
    try:
        layers = torch.jit.load(str(path), map_location=device).eval().layers
    except (RuntimeError, AttributeError):
        raise ValueError(
            f"{path.name} is no Inception in TorchScript whose `layers` give features, as clean-fid's inception-2015-12-05.pt. "
            f"Give that file, or one of {', '.join(EFFICIENTNETS)}."
        ) from None
    mark = f"{path.name} {digest(path.read_bytes(), digits=12)}"
    return FeatureNetwork(path.name, mark, INCEPTION_SIDE, lambda pictures: layers((pictures.to(device) - 128) / 128).flatten(1))


class Clip:
    """Cosine between a picture and its caption by a CLIP of transformers, (N,) in [-1, 1].

    Args:
        name: of the hub, or a folder.

    Raises:
        ValueError: it cannot be loaded.
    """

    def __init__(self, name: str, device: str = "cpu"):
        from transformers import CLIPModel, CLIPProcessor

        try:
            self.model = CLIPModel.from_pretrained(name).to(device).eval().requires_grad_(False)
            self.processor = CLIPProcessor.from_pretrained(name)
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(f"{name} is no CLIP that can be loaded: {str(error).splitlines()[0]}") from None
        folder = Path(name).expanduser()
        self.name = folder.name if folder.is_dir() else name
        self.mark = f"{self.name} {fingerprint(str(folder.resolve()) if folder.is_dir() else name)} {PREFIX}"
        self.device = device

    def __call__(self, pictures: Iterable[Image.Image], texts: Sequence[str]) -> Tensor:
        """Scores (N,), float64."""
        pairs, scores = zip(pictures, texts, strict=True), []
        while batch := list(itertools.islice(pairs, BATCH)):
            images, captions = zip(*batch, strict=True)
            inputs = self.processor(
                text=[PREFIX + caption for caption in captions], images=list(images), return_tensors="pt", padding=True, truncation=True
            )
            with torch.inference_mode():
                out = self.model(**inputs.to(self.device))
            scores.append(torch.nn.functional.cosine_similarity(out.image_embeds, out.text_embeds).double().cpu())
        return torch.cat(scores)


class Reward:
    """ImageReward (Xu et al., 2023) of a picture for its caption, where its package is installed."""

    name = mark = REWARD

    @staticmethod
    def available() -> bool:
        """Whether the package is there."""
        return importlib.util.find_spec("ImageReward") is not None

    @cached_property
    def _model(self) -> Any:
        return importlib.import_module("ImageReward").load(REWARD)

    def __call__(self, pictures: Iterable[Image.Image], texts: Sequence[str]) -> Tensor:
        """Scores (N,), float64."""
        with torch.inference_mode():
            return torch.tensor([self._model.score(text, picture) for picture, text in zip(pictures, texts, strict=True)]).double()


def kept(path: Path, key: Sequence[str], compute: Callable[[], Tensor]) -> Tensor:
    """A tensor of a network, from `path` where it was computed from the same things, else computed and put there."""
    wanted = json.dumps(list(key), allow_nan=False)
    try:
        with np.load(path, allow_pickle=False) as stored:
            if str(stored["key"]) == wanted:
                return torch.from_numpy(stored["values"])
    except (OSError, KeyError, ValueError, EOFError):
        pass
    values = compute()
    save_arrays(path, key=wanted, values=values.numpy())
    return values
