"""Janus-Pro (arXiv 2501.17811): prompt, the two branches, sessions of target and drafter.

The unconditional branch is the prompt with everything but BOS and image start replaced by the padding token, which is attended to, as
transformers does it. Both branches have the same positions, and no entry is hidden. Knows nothing of methods.
Shapes: B guidance branches, C prompt tokens, T codes of a pass, V codes, D width.
"""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from ...protocols import TeacherForced
from ..cache import SLACK, KVCache
from ..cells import CellTarget, teacher_forced
from ..cuda_graphs import Workspaces
from ..drafter import CellEntries, EagleDrafter
from ..eagle import Eagle, EagleConfig, drafter_cache_like, with_embeddings
from ..layers import line_table
from ..pair import LoadedPair
from .network import Janus, JanusConfig

TEMPLATE = "<|User|>: {}\n\n<|Assistant|>:"
PROMPT = 256  # tokens of a prompt that fit into a workspace
POSITIONS = 4096 + SLACK  # of the rotary table: more than any prompt that is accepted takes, the picture, and the tree of the last round


@dataclass(frozen=True)
class Ids:
    """Token ids of the format."""

    bos: int
    pad: int
    start: int  # of an image


class JanusPrompt:
    """Prompt to token ids: BOS, the conversation, image start."""

    def __init__(self, tokenizer: Tokenizer, ids: Ids):
        self.tokenizer, self.ids = tokenizer, ids

    def __call__(self, prompt: str) -> list[int]:
        """Ids of one prompt. BOS is added here, and the tokenizer is kept from adding a second one."""
        text = self.tokenizer.encode(TEMPLATE.format(prompt.strip()), add_special_tokens=False).ids
        return [self.ids.bos, *text, self.ids.start]


def janus_cache(model: Janus, branches: int, prompt: int) -> KVCache:
    """A cache for a prompt of so many tokens, a picture and the tree of the last round."""
    c = model.config
    return KVCache(c.layers, branches, c.heads, prompt + c.grid**2 + SLACK, c.head_dim, model.generation_head.proj_out.weight)


class JanusTarget(CellTarget):
    """Implements protocols.Target.

    Args:
        encode: prompt to ids. rope: line_table. model, scale, workspaces: see CellTarget.
    """

    most = PROMPT

    def __init__(self, model: Janus, encode: JanusPrompt, scale: float, rope: Tensor, workspaces: Workspaces | None = None):
        super().__init__(model, scale, rope, workspaces)
        self.encode = encode

    def condition(self, prompt: str) -> tuple[Tensor, Tensor]:
        """See CellTarget.condition."""
        ids = torch.tensor(self.encode(prompt))
        known = (ids == self.encode.ids.bos) | (ids == self.encode.ids.start)
        branches = torch.stack([ids, torch.where(known, ids, self.encode.ids.pad)][: self.branches])
        return self.model.language_model.embed_tokens(branches.to(self.rope.device)), torch.ones_like(known)

    def embed(self, tokens: Tensor) -> Tensor:
        """See CellTarget.embed."""
        return self.model.embed(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        """See CellTarget.head."""
        return self.model.generation_head(hidden)

    def new_cache(self, condition: int) -> KVCache:
        """See CellTarget.new_cache."""
        return janus_cache(self.model, self.branches, condition)


class PromptEntries(CellEntries):
    """CellEntries whose cache is as long as the target's, which knows its prompt.

    Args:
        model: shared weights. target: the session of the same picture, which has been given its prompt before anything is observed.
    """

    def __init__(self, model: Eagle, target: JanusTarget, rope: Tensor):
        super().__init__(model, target.head, target.model.config.codes, target.scale, rope, target.workspace)
        self.target = target

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        """See CellEntries.observe."""
        if self.target.workspace is None and self.cache.committed == 0:
            self.workspace, self.cache = None, drafter_cache_like(self.target.cache, self.model)
        super().observe(hidden, tokens)


def drafter_sizes(config: JanusConfig) -> EagleConfig:
    """Sizes of a drafter as it is trained for this target: EAGLE-1's layer over codes, in Llama's layout."""
    c = config
    return EagleConfig(c.dim, c.heads, c.ffn, c.codes, PROMPT, c.grid, norm_eps=c.norm_eps, halves=True)


@dataclass
class JanusPair(LoadedPair):
    """Janus-Pro, with a drafter where there is one: no public one is known."""

    target_model: Janus
    text: JanusPrompt

    @property
    def head(self) -> nn.Module:
        """See LoadedPair.head."""
        return self.target_model.generation_head

    def _make_tables(self) -> None:
        config = self.target_model.config
        self.rope = line_table(POSITIONS, config.head_dim, config.rope_base).to(self.target_model.generation_head.proj_out.weight.device)

    def begin(self, cfg_scale: float) -> tuple[JanusTarget, EagleDrafter | None]:
        """Fresh sessions for one picture."""
        target = JanusTarget(self.target_model, self.text, cfg_scale, self.rope, self.workspaces)
        return target, None if self.drafter_model is None else EagleDrafter(PromptEntries(self.drafter_model, target, self.rope))

    def caches(self, branches: int) -> tuple[KVCache, KVCache | None]:
        """See LoadedPair.caches."""
        cache = janus_cache(self.target_model, branches, PROMPT)
        return cache, None if self.drafter_model is None else drafter_cache_like(cache, self.drafter_model)

    def teacher_forced(self, prompt: str, tokens: Tensor, cfg_scale: float) -> TeacherForced:
        """See LoadedPair.teacher_forced."""
        return teacher_forced(JanusTarget(self.target_model, self.text, cfg_scale, self.rope), prompt, tokens, self.rope)

    def empty_drafter(self) -> Eagle:
        """See LoadedPair.empty_drafter."""
        model = self.target_model
        codes = torch.arange(model.config.codes, device=model.generation_embeddings.weight.device)
        with torch.no_grad():
            return with_embeddings(drafter_sizes(model.config), model.embed(codes))
