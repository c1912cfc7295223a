"""A loaded pair: weights, tokenizers and the sessions they open. One class a family."""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from .eagle import Eagle, EagleConfig, EagleDrafter, drafter_cache, with_embeddings
from .graphs import Rooms, capture
from .layers import KVCache, fuse
from .llamagen import Conditioning, LlamaGen
from .protocols import Drafter, Lesson, Target
from .target import LlamaGenTarget, target_cache
from .tokenizer import ImageTokenizer


def free_memory() -> None:
    """Return what nothing refers to any more to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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

    @abstractmethod
    def lesson(self, prompt: str, tokens: Tensor, cfg_scale: float) -> Lesson:
        """What a drafter of this target is trained on: tokens (n,), n > 1, of one picture under teacher forcing, as in decoding.

        The target's prefix, padding, rows and guidance are those of `begin(cfg_scale)`. Call it under torch.no_grad (not inference
        mode, whose tensors autograd refuses). Nothing of a drafter is looked at, so a pair that has none will do.
        """

    @abstractmethod
    def empty_drafter(self) -> Eagle:
        """A drafter for this target that is yet to be trained: float32, on the CPU, with the target's embeddings."""

    def picture(self, tokens: list[int]) -> Image.Image:
        """The picture so far, transparent where no token is yet."""
        return self.tokenizer.picture(tokens)

    def free(self) -> None:
        """Give back the memory that pictures took and that is kept for the next ones."""
        if self.rooms:
            self.rooms.clear()
        free_memory()

    def to(self, device: str, dtype: torch.dtype) -> "LoadedPair":
        """Move target and drafter and make them fast; the picture decoder stays float32."""
        for model in (self.target_model, self.drafter_model):
            if model is not None:
                model.to(device, dtype).eval().requires_grad_(False)
        self.tokenizer.vqvae.to(device)
        fuse(self.target_model, self.drafter_model)
        self._prepare()
        return self

    def __post_init__(self) -> None:
        self._prepare()

    def _prepare(self) -> None:
        """What depends on the device: tables, and on a GPU rooms, in which passes have static shapes and are recorded."""
        self._make_tables()
        on_gpu = next(self.target_model.parameters()).device.type == "cuda"
        self.rooms = Rooms(self._caches, capture) if on_gpu else None

    @abstractmethod
    def _make_tables(self) -> None:
        """Tables that depend on the device."""

    @abstractmethod
    def _caches(self, rows: int) -> tuple[KVCache, KVCache | None]:
        """Caches of target and drafter for one picture of so many guidance rows."""


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
        target = LlamaGenTarget(self.target_model, self.text, cfg_scale, self._target_rope, rooms=self.rooms)
        if self.drafter_model is None:
            return target, None
        return target, EagleDrafter(self.drafter_model, self.target_model.output, cfg_scale, self._drafter_rope, target.room)

    def _caches(self, rows: int) -> tuple[KVCache, KVCache | None]:
        drafter = None if self.drafter_model is None else drafter_cache(self.drafter_model, rows)
        return target_cache(self.target_model, rows), drafter

    def lesson(self, prompt: str, tokens: Tensor, cfg_scale: float) -> Lesson:
        """See LoadedPair.lesson."""
        target = LlamaGenTarget(self.target_model, self.text, cfg_scale, self._target_rope)
        hidden, logits = target.forced(prompt, tokens[:-1])
        entries, first = hidden.shape[1] - 1, hidden.shape[1] - len(tokens)
        device = hidden.device
        ids = F.pad(tokens[:-1].to(device), (first, 0))  # the condition pairs with code 0
        # A drafter's table has one zero row less than its target's: entry e stands where position e + 1 does there.
        rope = self._target_rope[1 : entries + 1]
        return Lesson(hidden, ids, rope, None, torch.arange(first, entries, device=device), logits, self.target_model.output)

    def empty_drafter(self) -> Eagle:
        """See LoadedPair.empty_drafter."""
        c = self.target_model.config
        return with_embeddings(EagleConfig(c.dim, c.heads, c.ffn, c.vocab, c.caption_tokens, c.grid), self.target_model.tok_embeddings)
