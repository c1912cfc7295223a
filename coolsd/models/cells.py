"""A picture's session with a target that has one entry a code behind those of its condition: LlamaGen's and Janus's.

Knows nothing of methods. Branches: conditional first, unconditional second; one branch when the guidance scale is 1.
Shapes: B guidance branches, C condition entries, T codes of a pass, V codes, D width.
"""

from abc import ABC, abstractmethod
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..protocols import Step, TeacherForced
from ..sampling import guided
from .cache import CachePosition, KVCache, tree_tensors
from .cuda_graphs import Workspaces
from .layers import eager_rope, prefix_mask


class CellTarget(ABC):
    """Implements protocols.Target. No code sees a padded condition entry, so the cache keeps the real ones only.

    Args:
        model: shared weights: embeddings, rotations, mask, cache and `start` to features after the final norm. scale: guidance.
        rope: rotations by position, long enough for condition, picture and the tree of the last round.
        workspaces: where passes have static shapes, see cuda_graphs.py; None: a private cache and dynamic shapes.
        pads: what padded condition queries see, see prefix_mask.
    """

    cache: KVCache
    most: int  # condition entries that the cache of a workspace holds

    def __init__(self, model: nn.Module, scale: float, rope: Tensor, workspaces: Workspaces | None, pads: str = "causal"):
        self.model, self.scale, self.rope, self.pads = model, scale, eager_rope(rope), pads
        self.branches = 1 if scale == 1 else 2
        self.workspace = workspaces and workspaces.acquire(self.branches, self)
        self.pad = 0  # condition positions that are not in the cache

    @abstractmethod
    def condition(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Embeddings (B, C, D) of the condition, and which positions are real, (C,) bool on the CPU."""

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """Codes (T,) to embeddings (T, D)."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Features (..., D) to logits (..., V)."""

    @abstractmethod
    def new_cache(self, condition: int) -> KVCache:
        """A private cache for a condition of so many entries."""

    def prefill(self, prompt: str) -> Step:
        """Logits (1, V) of the first token; hidden (B, C, D) of all condition positions. The condition is committed."""
        embedded, valid = self.condition(prompt)
        count = embedded.shape[1]
        if count > self.most:
            self.workspace = None
        self.cache = self.workspace.target if self.workspace else self.new_cache(count)
        mask = prefix_mask(valid, count, self.pads).to(embedded.device)
        hidden = self.model(embedded, self.rope[:count], mask, self.cache)
        self.cache.keep(valid.nonzero().flatten().tolist())
        self.pad = count - self.cache.committed
        return Step(guided(self.head(hidden[:, -1:].contiguous()), self.scale), hidden)

    def extend(self, tokens: Tensor, parents: tuple[int, ...]) -> Step:
        """One pass over tokens (T,) behind the committed ones; logits (T, V), hidden (B, T, D)."""
        start, device = self.cache.committed, self.rope.device
        inputs = (tokens.to(device), *tree_tensors(parents, device), start, self.pad)
        if self.workspace is None:
            return Step(*self._pass(None, *inputs))
        span = self.cache.span(start + len(parents))
        return Step(*self.workspace.graphs(partial(self._pass, span), ("extend", self.scale, span), *inputs))

    def _pass(
        self, span: int | None, tokens: Tensor, depth: Tensor, ancestry: Tensor, start: int | Tensor, pad: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Guided logits and features of a pass; with a span its shapes do not depend on what is committed."""
        position, x = CachePosition(start, span), self.embed(tokens).expand(self.branches, -1, -1)
        rope = self.rope.index_select(0, depth + start + pad)
        hidden = self.model(x, rope, position.mask_unless_all(ancestry), self.cache, start=position.slots(0, len(tokens)))
        return guided(self.head(hidden), self.scale), hidden

    def keep(self, path: list[int]) -> None:
        """Commit these entries of the last pass."""
        self.cache.keep(path)

    def forced(self, prompt: str, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, C + T, D) of the condition and of tokens (T,), and the guided logits (T, V) of what follows each token.

        One pass without the cache, which leaves the session unchanged.
        """
        embedded, valid = self.condition(prompt)
        count = embedded.shape[1] + len(tokens)
        x = torch.cat([embedded, self.embed(tokens.to(self.rope.device)).expand(self.branches, -1, -1)], dim=1)
        hidden = self.model(x, self.rope[:count], prefix_mask(valid, count, self.pads).to(x.device))
        return hidden, guided(self.head(hidden[:, -len(tokens) :]), self.scale)


def teacher_forced(target: CellTarget, prompt: str, tokens: Tensor, rope: Tensor) -> TeacherForced:
    """See LoadedPair.teacher_forced; the condition pairs with code 0. rope: rotations of the drafter's entries, from the first on."""
    hidden, logits = target.forced(prompt, tokens[:-1])
    entries, first, device = hidden.shape[1] - 1, hidden.shape[1] - len(tokens), hidden.device
    ids = F.pad(tokens[:-1].to(device), (first, 0))
    return TeacherForced(hidden, ids, rope[:entries], None, torch.arange(first, entries, device=device), logits, target.head)
