"""Toy pictures of four kinds, what is measured of them, and a study on them."""

import torch
from tiny import tiny_pair

from coolsd.evaluation import photos
from coolsd.evaluation.prompts import PromptCase
from coolsd.evaluation.study import Study


def open_tiny(target: str, dtype: str | None):
    return tiny_pair()


def normal(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 12, generator=torch.Generator().manual_seed(seed))


def extract(pictures: torch.Tensor) -> torch.Tensor:
    """Mean and spread of each colour channel: enough to tell toy pictures apart."""
    flat = pictures.flatten(2)
    return torch.cat([flat.mean(-1), flat.std(-1), flat.mean(-1).square()], -1)


NETWORKS = photos.Networks(extract, lambda pictures: extract(pictures.flip(1)))
SHADES = {"rose": (200, 30, 40), "sunflower": (240, 200, 30), "forest": (20, 90, 30), "sea": (30, 90, 200)}


TOY = (
    PromptCase("a red rose", "rose", "red"),
    PromptCase("a sunflower", "sunflower"),
    PromptCase("the sea", "sea"),
    PromptCase("a forest", "forest"),
)
SETTINGS = {"cfg_scale": 2.0, "top_k": 16, "temperature": 1.0}


def study(album, tmp_path) -> Study:
    return Study(tmp_path / "cache", album, photos.read_photos(album / "captions.csv"), NETWORKS, workers=1, opener=open_tiny)
