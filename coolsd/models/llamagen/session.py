"""A picture's session with a LlamaGen target, and the pair. Knows nothing of methods."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...protocols import TeacherForced
from ..cache import SLACK, KVCache
from ..cells import CellTarget, teacher_forced
from ..cuda_graphs import Workspaces
from ..drafter import CellEntries, EagleDrafter
from ..eagle import Eagle, EagleConfig, drafter_cache, with_embeddings
from ..pair import LoadedPair
from .network import Conditioning, LlamaGen


def target_cache(model: LlamaGen, branches: int) -> KVCache:
    """A cache for a picture with its condition and the tree of the last round."""
    c = model.config
    return KVCache(c.layers, branches, c.heads, c.caption_tokens + c.image_tokens + SLACK, c.head_dim, model.output.weight)


class LlamaGenTarget(CellTarget):
    """Implements protocols.Target.

    Args:
        encode: prompt to Conditioning. model, scale, rope, pads, workspaces: see CellTarget.
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
        super().__init__(model, scale, rope, workspaces, pads)
        self.encode, self.most = encode, model.config.caption_tokens

    def condition(self, prompt: str) -> tuple[Tensor, Tensor]:
        """See CellTarget.condition."""
        conditioning, condition = self.encode(prompt), self.model.cls_embedding
        weight = self.model.output.weight
        features = torch.stack([conditioning.features.to(weight), condition.uncond_embedding.to(weight)][: self.branches])
        return condition.cap_proj(features), conditioning.valid

    def embed(self, tokens: Tensor) -> Tensor:
        """See CellTarget.embed."""
        return self.model.tok_embeddings(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        """See CellTarget.head."""
        return self.model.output(hidden)

    def new_cache(self, condition: int) -> KVCache:
        """See CellTarget.new_cache."""
        return target_cache(self.model, self.branches)


@dataclass
class LlamaGenPair(LoadedPair):
    """A LlamaGen-format target with its drafter."""

    target_model: LlamaGen
    text: Callable[[str], Conditioning]

    @property
    def head(self) -> nn.Module:
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
            CellEntries(self.drafter_model, target.head, self.target_model.config.vocab, cfg_scale, self.drafter_rope, target.workspace)
        )

    def caches(self, branches: int) -> tuple[KVCache, KVCache | None]:
        """See LoadedPair.caches."""
        drafter = None if self.drafter_model is None else drafter_cache(self.drafter_model, branches)
        return target_cache(self.target_model, branches), drafter

    def teacher_forced(self, prompt: str, tokens: Tensor, cfg_scale: float) -> TeacherForced:
        """See LoadedPair.teacher_forced."""
        target = LlamaGenTarget(self.target_model, self.text, cfg_scale, self.target_rope)
        # A drafter's table has one zero row less than its target's: entry e stands where position e + 1 does there.
        return teacher_forced(target, prompt, tokens, self.target_rope[1:])

    def empty_drafter(self) -> Eagle:
        """See LoadedPair.empty_drafter."""
        c = self.target_model.config
        sizes = EagleConfig(c.dim, c.heads, c.ffn, c.vocab, c.caption_tokens, c.grid)
        return with_embeddings(sizes, self.target_model.tok_embeddings.weight)
