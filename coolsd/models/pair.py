"""A loaded pair: weights, tokenizers and the sessions they open. One class a family."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from .eagle import Eagle, EagleDrafter
from .llamagen import LlamaGen
from .protocols import Drafter, Target
from .target import LlamaGenTarget
from .text import Conditioning
from .tokenizer import ImageTokenizer


@dataclass
class LoadedPair(ABC):
    """What all families share; implements protocols.Pair but for `begin`."""

    name: str
    target_model: nn.Module
    drafter_model: Eagle | None
    tokenizer: ImageTokenizer
    text: Callable[[str], Any]
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of image tokens."""
        return (self.tokenizer.grid,) * 2

    @property
    def codebook(self) -> Tensor:
        """Raw code vectors (V, channels)."""
        return self.tokenizer.codebook

    @abstractmethod
    def begin(self, cfg_scale: float) -> tuple[Target, Drafter | None]:
        """Fresh sessions for one picture."""

    def picture(self, tokens: list[int]) -> Image.Image:
        """The picture so far, transparent where no token is yet."""
        return self.tokenizer.picture(tokens)

    def to(self, device: str, dtype: torch.dtype) -> "LoadedPair":
        """Move target and drafter; the picture decoder stays float32."""
        for model in (self.target_model, self.drafter_model):
            if model is not None:
                model.to(device, dtype).eval().requires_grad_(False)
        self.tokenizer.vqvae.to(device)
        self._make_tables()
        return self

    def __post_init__(self) -> None:
        self._make_tables()

    @abstractmethod
    def _make_tables(self) -> None:
        """Tables that depend on the device."""


@dataclass
class LlamaGenPair(LoadedPair):
    """A LlamaGen-format target with its drafter."""

    target_model: LlamaGen
    text: Callable[[str], Conditioning]

    def _make_tables(self) -> None:
        self._target_rope = self.target_model.rope()
        self._drafter_rope = None if self.drafter_model is None else self.drafter_model.rope()

    def begin(self, cfg_scale: float) -> tuple[LlamaGenTarget, EagleDrafter | None]:
        """Fresh sessions for one picture."""
        target = LlamaGenTarget(self.target_model, self.text, cfg_scale, self._target_rope)
        if self.drafter_model is None:
            return target, None
        return target, EagleDrafter(self.drafter_model, self.target_model.output, cfg_scale, self._drafter_rope)
