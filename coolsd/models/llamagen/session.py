"""A picture's session with a LlamaGen target: prefill, one-pass extension by a chain or a tree, commit by keeping a path.

Knows nothing of methods. Branches: conditional first, unconditional second; one branch when the guidance scale is 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...protocols import Step, TeacherForced
from ...sampling import guided
from ..cache import SLACK, CachePosition, KVCache, tree_tensors
from ..cuda_graphs import Workspaces
from ..drafter import CellEntries, EagleDrafter
from ..eagle import Eagle, EagleConfig, drafter_cache, with_embeddings
from ..layers import eager_rope, prefix_mask
from ..pair import LoadedPair
from .network import Conditioning, LlamaGen


def target_cache(model: LlamaGen, branches: int) -> KVCache:
    """A cache for a picture with its condition and the tree of the last round."""
    c = model.config
    return KVCache(c.layers, branches, c.heads, c.caption_tokens + c.image_tokens + SLACK, c.head_dim, model.output.weight)


class LlamaGenTarget:
    """Implements protocols.Target. No image token sees a padded condition position, so the cache keeps the real ones only.

    Args:
        model: shared weights. encode: prompt to Conditioning. scale: guidance.
        pads: what padded condition queries see, see prefix_mask.
        workspaces: where passes have static shapes, see cuda_graphs.py; None: a private cache and dynamic shapes.
    """

    def __init__(
        self,
        model: LlamaGen,
        encode: Callable[[str], Conditioning],
        scale: float,
        rope: Tensor,
        pads: str = "causal",
        workspaces: Workspaces | None = None,
    ):
        self.model, self.encode, self.scale, self.rope, self.pads = model, encode, scale, eager_rope(rope), pads
        self.branches = 1 if scale == 1 else 2
        self.workspace = workspaces and workspaces.acquire(self.branches, self)
        self.cache = self.workspace.target if self.workspace else target_cache(model, self.branches)
        self.pad = 0  # condition positions that are not in the cache

    def prefill(self, prompt: str) -> Step:
        """Logits (1, V) of the first token; hidden (B, C, D) of all condition positions. The condition is committed."""
        embedded, valid = self._condition(prompt)
        count = embedded.shape[1]
        hidden = self.model(embedded, self.rope[:count], prefix_mask(valid, count, self.pads).to(embedded.device), self.cache)
        self.cache.keep(valid.nonzero().flatten().tolist())
        self.pad = count - self.cache.committed
        return Step(guided(self.model.output(hidden[:, -1:].contiguous()), self.scale), hidden)

    def _condition(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Embeddings (B, C, D) of the condition, and which positions are real, (C,) on the CPU."""
        conditioning, condition = self.encode(prompt), self.model.cls_embedding
        weight = self.model.output.weight
        features = torch.stack([conditioning.features.to(weight), condition.uncond_embedding.to(weight)][: self.branches])
        return condition.cap_proj(features), conditioning.valid

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
        position, x = CachePosition(start, span), self.model.tok_embeddings(tokens).expand(self.branches, -1, -1)
        rope = self.rope.index_select(0, depth + start + pad)
        hidden = self.model(x, rope, position.mask_unless_all(ancestry), self.cache, start=position.slots(0, len(tokens)))
        return guided(self.model.output(hidden), self.scale), hidden

    def keep(self, path: list[int]) -> None:
        """Commit these entries of the last pass."""
        self.cache.keep(path)

    def forced(self, prompt: str, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, C + T, D) of the condition and of tokens (T,), and the guided logits (T, V) of what follows each token.

        One pass without the cache, which leaves the session unchanged.
        """
        embedded, valid = self._condition(prompt)
        count = embedded.shape[1] + len(tokens)
        x = torch.cat([embedded, self.model.tok_embeddings(tokens.to(self.rope.device)).expand(self.branches, -1, -1)], dim=1)
        hidden = self.model(x, self.rope[:count], prefix_mask(valid, count, self.pads).to(x.device))
        return hidden, guided(self.model.output(hidden[:, -len(tokens) :]), self.scale)


@dataclass
class LlamaGenPair(LoadedPair):
    """A LlamaGen-format target with its drafter."""

    target_model: LlamaGen
    text: Callable[[str], Conditioning]

    @property
    def side(self) -> int:
        """See LoadedPair.side."""
        return self.target_model.config.grid

    @property
    def head(self) -> nn.Linear:
        """See LoadedPair.head."""
        return self.target_model.output

    def _make_tables(self) -> None:
        self.target_rope = self.target_model.rope()
        self.drafter_rope = None if self.drafter_model is None else self.drafter_model.rope()

    def begin(self, cfg_scale: float) -> tuple[LlamaGenTarget, EagleDrafter | None]:
        """Fresh sessions for one picture."""
        target = LlamaGenTarget(self.target_model, self.text, cfg_scale, self.target_rope, workspaces=self.workspaces)
        if self.drafter_model is None:
            return target, None
        return target, EagleDrafter(
            CellEntries(self.drafter_model, self.target_model.output, cfg_scale, self.drafter_rope, target.workspace)
        )

    def caches(self, branches: int) -> tuple[KVCache, KVCache | None]:
        """See LoadedPair.caches."""
        drafter = None if self.drafter_model is None else drafter_cache(self.drafter_model, branches)
        return target_cache(self.target_model, branches), drafter

    def teacher_forced(self, prompt: str, tokens: Tensor, cfg_scale: float) -> TeacherForced:
        """See LoadedPair.teacher_forced."""
        target = LlamaGenTarget(self.target_model, self.text, cfg_scale, self.target_rope)
        hidden, logits = target.forced(prompt, tokens[:-1])
        entries, first = hidden.shape[1] - 1, hidden.shape[1] - len(tokens)
        device = hidden.device
        ids = F.pad(tokens[:-1].to(device), (first, 0))  # the condition pairs with code 0
        # A drafter's table has one zero row less than its target's: entry e stands where position e + 1 does there.
        rope = self.target_rope[1 : entries + 1]
        return TeacherForced(hidden, ids, rope, None, torch.arange(first, entries, device=device), logits, self.target_model.output)

    def empty_drafter(self) -> Eagle:
        """See LoadedPair.empty_drafter."""
        c = self.target_model.config
        return with_embeddings(EagleConfig(c.dim, c.heads, c.ffn, c.vocab, c.caption_tokens, c.grid), self.target_model.tok_embeddings)
