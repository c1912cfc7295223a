"""A loaded pair: weights, tokenizers and the sessions they open. One class a family."""

import gc
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from ..protocols import Drafter, Target, TeacherForced
from .cache import KVCache
from .cuda_graphs import Workspaces, capture
from .eagle import Eagle
from .packed import fuse, pack, unpack
from .vq import ImageTokenizer

Build = Callable[..., nn.Module]  # from a network's class and its sizes to the network
WORDS = 20  # of the prompt "0 0 …" that a pair without weights is timed with


def on_zero_gpu() -> bool:
    """Whether this is a ZeroGPU Space, whose main process has no GPU but emulates one for as long as weights are put there."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


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
    cache_gigabytes: float = 0.0  # of one picture's caches with guidance; 0: too little to count

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of image tokens."""
        return (self.side,) * 2

    @property
    def side(self) -> int:
        """Image tokens a side of the picture."""
        return self.target_model.config.grid

    @property
    @abstractmethod
    def head(self) -> nn.Module:
        """The target's output layers, of image codes and whatever else it can emit."""

    @property
    def codebook(self) -> Tensor:
        """Raw code vectors (V, channels)."""
        return self.tokenizer.codebook

    @abstractmethod
    def begin(self, cfg_scale: float) -> tuple[Target, Drafter | None]:
        """Fresh sessions for one picture."""

    @abstractmethod
    def teacher_forced(self, prompt: str, tokens: Tensor, cfg_scale: float) -> TeacherForced:
        """What a drafter of this target is trained on: tokens (n,), n > 1, of one picture under teacher forcing, as in decoding.

        The target's prefix, padding, branches and guidance are those of `begin(cfg_scale)`. Call it under torch.no_grad (not inference
        mode, whose tensors autograd refuses). No drafter is needed.
        """

    @abstractmethod
    def empty_drafter(self) -> Eagle:
        """A drafter for this target that is yet to be trained: float32, on the CPU, with the target's embeddings."""

    def picture(self, tokens: list[int]) -> Image.Image:
        """The picture so far, transparent where no token is yet."""
        return self.tokenizer.picture(tokens)

    def holds(self, pictures: int, cfg_scale: float) -> bool:
        """Whether the caches of so many pictures fit into the device's memory beside each other, as far as is known."""
        device = next(self.target_model.parameters()).device
        if device.type != "cuda" or not self.cache_gigabytes:
            return True
        branches = 1 if cfg_scale == 1 else 2
        spare = self.workspaces.spare(branches) if self.workspaces else 0
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + unused
        return free >= max(0, pictures - spare) * self.cache_gigabytes * 1e9 * branches / 2

    def pictures(self, batch: list[list[int]]) -> list[Image.Image]:
        """Pictures of whole token sequences, in one pass."""
        return self.tokenizer.pictures(batch)

    def free(self) -> None:
        """Give back the memory that pictures took and that is kept for the next ones."""
        if self.workspaces:
            self.workspaces.clear()
        free_memory()

    def to(self, device: str, dtype: torch.dtype) -> "LoadedPair":
        """Move target and drafter and make them fast; the picture decoder stays float32."""
        self.unpack()
        for model in (self.target_model, self.drafter_model):
            if model is not None:
                model.to(device, dtype).eval().requires_grad_(False)
        self.tokenizer.vqvae.to(device)
        self.asleep = on_zero_gpu() and torch.device(device).type == "cuda"
        if not self.asleep:
            self.prepare()
        return self

    def pack(self) -> None:
        """On a CPU, put the weights of linear layers into the order that is fastest there, see packed.py; `to` does so."""
        if next(self.target_model.parameters()).device.type == "cpu":
            pack(self.target_model, self.drafter_model)

    def unpack(self) -> None:
        """Give the layers plain weights again: for gradients, state dicts, and passes under vmap."""
        unpack(self.target_model, self.drafter_model)

    def wake(self) -> None:
        """On ZeroGPU, in a process that has got a GPU: make there what depends on it, once. Views would come apart on the way there."""
        if self.asleep:
            self.asleep = False
            self.prepare()
            device = next(self.target_model.parameters()).device
            self.environment["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

    def __post_init__(self) -> None:
        self.asleep = False
        self._make_tables()
        self.workspaces = None

    def prepare(self) -> None:
        """What depends on the device: joined weights, tables, and on a GPU workspaces, in which passes have static shapes and are recorded.

        COOLSD_GRAPHS=0 records nothing, where recording costs a new process more than it saves.
        """
        fuse(self.target_model, self.drafter_model)
        self.pack()
        self._make_tables()
        on_gpu = next(self.target_model.parameters()).device.type == "cuda"
        record = None if os.environ.get("COOLSD_GRAPHS") == "0" else capture
        self.workspaces = Workspaces(self.caches, record) if on_gpu else None

    @abstractmethod
    def _make_tables(self) -> None:
        """Tables that depend on the device."""

    @abstractmethod
    def caches(self, branches: int) -> tuple[KVCache, KVCache | None]:
        """Caches of target and drafter for one picture of that many guidance branches."""
