"""Lumina-mGPT (arXiv 2408.02657) on Chameleon: prompt template, forced tokens, sessions of target and drafter.

The engine sees image codes only. What the format forces (a new-line token after each row of codes) is fed along in the same pass and
never drawn, so it costs no target call and enters no statistic. Branches: conditional first; the unconditional branch starts at the image
start token, with positions of its own, and is padded on the left.
Shapes: B guidance branches, T codes of a pass, E entries (codes and new lines), V image codes, D width.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from ...protocols import Step, TeacherForced
from ...sampling import guided
from ...trees import chain
from ..cache import SLACK, CachePosition, KVCache, depths, tree_tensors
from ..cuda_graphs import Workspaces
from ..drafter import DraftEntries, EagleDrafter, after
from ..eagle import Eagle, EagleConfig, drafter_cache_like, with_embeddings
from ..layers import line_table, prefix_mask
from ..pair import LoadedPair
from .network import Chameleon

TEMPLATE = "Generate an image of {0}x{0} according to the following prompt:\n{1}"
PROMPT = 256  # tokens of a prompt that fit into a workspace
POSITIONS = 4096 + SLACK  # what the model was trained for, and the tree of the last round


@dataclass(frozen=True)
class Ids:
    """Token ids of the format. Image codes are the ids first … first + codes - 1."""

    bos: int = 0
    first: int = 4
    codes: int = 8192
    start: int = 8197
    separator: int = 8710
    line: int = 8803
    size: int = 8804  # plus the side of the picture in units of 32 pixels


class LuminaPrompt:
    """Prompt to token ids: BOS, the template, the separator, image start, height, width."""

    def __init__(self, tokenizer: Tokenizer, grid: int, ids: Ids):
        self.tokenizer, self.grid, self.ids = tokenizer, grid, ids

    def __call__(self, prompt: str) -> list[int]:
        """Ids of one prompt. BOS is added here, and the tokenizer is kept from adding a second one."""
        i, side = self.ids, self.ids.size + self.grid // 2
        text = self.tokenizer.encode(TEMPLATE.format(16 * self.grid, prompt), add_special_tokens=False).ids
        return [i.bos, *text, i.separator, i.start, side, side]


@dataclass(frozen=True)
class Layout:
    """Entries of a pass over codes with the new lines they call for; tensors on the device of the pass."""

    nodes: list[list[int]]  # entries of each code
    source: Tensor  # (E,) the code of each entry, -1 for a new line
    depth: Tensor  # (E,)
    ancestry: Tensor  # (E, E)
    ends: Tensor  # (T, 2) of each code, and the last entry before the next one


class PassInputs(NamedTuple):
    """What a pass depends on: its codes, the fields of its Layout, where committed entries end, and the pad of the unconditional branch."""

    tokens: Tensor
    source: Tensor
    depth: Tensor
    ancestry: Tensor
    ends: Tensor
    start: int | Tensor
    pad: int | Tensor


@lru_cache(256)
def layout(parents: tuple[int, ...], column: int, grid: int, device: torch.device) -> Layout:
    """Entries of codes of which the first is to stand in this column."""
    above: list[int] = []
    sources: list[int] = []
    nodes: list[list[int]] = []
    for node, (parent, depth) in enumerate(zip(parents, depths(parents), strict=True)):
        entries = [len(above)]
        above.append(nodes[parent][-1] if parent >= 0 else -1)
        sources.append(node)
        if (column + depth + 1) % grid == 0:
            entries.append(len(above))
            above.append(entries[0])
            sources.append(-1)
        nodes.append(entries)
    pairs = torch.tensor([[entries[0], entries[-1]] for entries in nodes])
    source, ends = (x.to(device, non_blocking=True) for x in (torch.tensor(sources), pairs))
    return Layout(nodes, source, *tree_tensors(tuple(above), device), ends)


def lumina_cache(model: Chameleon, branches: int, prompt: int, grid: int) -> KVCache:
    """A cache for a prompt of `prompt` tokens, a picture with its new lines and the tree of the last round with its own."""
    c = model.config
    return KVCache(c.layers, branches, c.heads, prompt + grid * (grid + 1) + 2 * SLACK, c.head_dim, model.lm_head.weight)


class LuminaTarget:
    """Implements protocols.Target. Features are (B, T, 2, D): of each code, and of the last entry before the next code.

    Args:
        model: shared weights. encode: prompt to ids. scale: guidance. rope: line_table, long enough for prompt and picture.
        workspaces: where passes have static shapes, see cuda_graphs.py; None: a private cache and dynamic shapes.
    """

    def __init__(self, model: Chameleon, encode: LuminaPrompt, scale: float, rope: Tensor, workspaces: Workspaces | None = None):
        self.model, self.encode, self.scale, self.rope, self.ids, self.grid = model, encode, scale, rope, encode.ids, encode.grid
        self.branches = 1 if scale == 1 else 2
        self.workspace = workspaces and workspaces.acquire(self.branches, self)
        self.done = 0  # committed codes
        self.prompt: list[int] = []
        self._nodes: list[list[int]] = []  # entries of each code of the last pass

    @property
    def pad(self) -> int:
        """Entries of the prompt that the unconditional branch does not have."""
        return len(self.prompt) - 3

    def rope_rows(self, positions: Tensor, pad: int | Tensor | None = None) -> Tensor:
        """Rotations (B, E, …) of entries at these places (E,) of the conditional branch. pad: as a tensor where shapes are static."""
        pad = self.pad if pad is None else pad
        places = [positions, (positions - pad).clamp(min=0)][: self.branches]
        return self.rope.index_select(0, torch.cat(places)).unflatten(0, (self.branches, -1))

    def visible(self, mask: Tensor, pad: int | Tensor | None = None) -> Tensor:
        """Mask (B, 1, E, S) from the conditional branch's (E, S): the unconditional one does not see the prompt."""
        pad = self.pad if pad is None else pad
        if self.branches == 1:
            return mask[None, None]
        return torch.stack([mask, mask & (torch.arange(mask.shape[1], device=mask.device) >= pad)])[:, None]

    def valid(self, count: int) -> Tensor:
        """Which of the first entries are there, (B, count) bool: the unconditional branch does not have the prompt."""
        place = torch.arange(count, device=self.rope.device)
        return torch.stack([place >= 0, place >= self.pad][: self.branches])

    def causal(self, count: int) -> Tensor:
        """Mask (B, 1, count, count) of a drafter's pass over the first entries: a padded one sees itself, so that no row is empty."""
        return prefix_mask(self.valid(count), count, pads="self")[:, None]

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of the image codes only, (..., V)."""
        return F.linear(hidden, self.model.lm_head.weight[self.ids.first : self.ids.first + self.ids.codes])

    def ends_row(self, cell: int) -> bool:
        """Whether a new line follows the code of this cell."""
        return (cell + 1) % self.grid == 0

    def prefill(self, prompt: str) -> Step:
        """Logits (1, V) of the first code; hidden (B, prompt, 2, D), zero where the unconditional branch is padded."""
        self.prompt = self.encode(prompt)
        count = len(self.prompt)
        if count > PROMPT:
            self.workspace = None
        self.cache = self.workspace.target if self.workspace else lumina_cache(self.model, self.branches, count, self.grid)
        hidden = self._prefix(torch.tensor(self.prompt, device=self.rope.device), self.cache)
        self.cache.keep(list(range(count)))
        return Step(guided(self.head(hidden[:, -1:]), self.scale), hidden[:, :, None].expand(-1, -1, 2, -1))

    def _prefix(self, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Features (B, E, D) of entries (E,) from the first of the prompt on, zero where the unconditional branch is padded."""
        count, valid = len(ids), self.valid(len(ids))
        rope = self.rope_rows(torch.arange(count, device=ids.device))
        return self.model(ids.expand(self.branches, -1), rope, prefix_mask(valid, count)[:, None], cache) * valid[..., None]

    def extend(self, tokens: Tensor, parents: tuple[int, ...]) -> Step:
        """One pass over codes (T,), with the new lines that they call for; logits (T, V), hidden (B, T, 2, D)."""
        plan, start = layout(parents, self.done % self.grid, self.grid, self.rope.device), self.cache.committed
        self._nodes = plan.nodes
        inputs = PassInputs(tokens.to(self.rope.device), plan.source, plan.depth, plan.ancestry, plan.ends, start, self.pad)
        if self.workspace is None:
            return Step(*self._pass(None, *inputs))
        span = self.cache.span(start + len(plan.source))
        return Step(*self.workspace.graphs(partial(self._pass, span), ("extend", self.scale, span), *inputs))

    def _pass(self, span: int | None, *inputs: Tensor | int) -> tuple[Tensor, Tensor]:
        """Guided logits and features of a pass. inputs: the fields of PassInputs."""
        i = PassInputs(*inputs)
        position = CachePosition(i.start, span)
        ids = torch.where(i.source < 0, self.ids.line, i.tokens[i.source] + self.ids.first)
        rope, mask = self.rope_rows(i.depth + i.start, i.pad), self.visible(position.mask(i.ancestry), i.pad)
        hidden = self.model(ids.expand(self.branches, -1), rope, mask, self.cache, position.slots(0, len(i.source)))
        hidden = hidden[:, i.ends]
        return guided(self.head(hidden[:, :, 1]), self.scale), hidden

    def keep(self, path: list[int]) -> None:
        """Commit these codes of the last pass, with their new lines."""
        self.cache.keep([entry for node in path for entry in self._nodes[node]])
        self.done += len(path)

    def forced(self, prompt: str, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One pass over the prompt and codes (T,) with their new lines, without the cache, as if nothing had been committed.

        Returns:
            Features (B, E, D), zero where the unconditional branch is padded; the ids of the E entries, (E,); and for each code the last
            entry before the next one, (T,).
        """
        self.prompt = self.encode(prompt)
        lines = torch.tensor([self.ends_row(cell) for cell in range(len(tokens))], dtype=torch.long)
        last = len(self.prompt) + torch.arange(len(tokens)) + lines.cumsum(0)
        ids = torch.full((len(self.prompt) + len(tokens) + int(lines.sum()),), self.ids.line)
        ids[: len(self.prompt)] = torch.tensor(self.prompt)
        ids[last - lines] = tokens.cpu() + self.ids.first
        ids = ids.to(self.rope.device)
        return self._prefix(ids), ids, last.to(ids.device)


@lru_cache(256)
def observation(count: int, column: int, grid: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Entries of observed codes of which the first stands in this column, a new line in front of each row: the code of each, -1 for a
    new line, and which of the features (T · 2) it continues."""
    entries = []
    for k in range(count):
        if (column + k) % grid == 0:
            entries.append((-1, 2 * k))
        entries.append((k, 2 * k + 1))
    source, at = (torch.tensor(part).to(device, non_blocking=True) for part in zip(*entries, strict=True))
    return source, at


class LineEntries(DraftEntries):
    """One entry a code and one for each new line: the target's entries, one to the left.

    Args:
        model: shared weights. target: the session of the same picture, which has been given its prompt before anything is observed.
    """

    def __init__(self, model: Eagle, target: LuminaTarget):
        super().__init__(model, target.head, target.ids.codes, target.scale)
        self.target = target
        self.done = 0  # codes observed

    def _entries(self, position: CachePosition, hidden: Tensor, ids: Tensor, ancestry: Tensor, rank: Tensor) -> Tensor:
        """A pass over entries: features (B, E, D), the ids that follow them (E,), what they see (E, U + E), their ranks behind the
        committed entries (E,)."""
        rope, mask = self.target.rope_rows(rank + position.start, position.pad), self.target.visible(position.mask(ancestry), position.pad)
        return self.model(hidden, ids[None], rope, mask, self.cache, position.slots(ancestry.shape[1] - len(ids), len(ids)))

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        """Take in committed features (B, T, 2, D); those of the prompt pair with its own next tokens."""
        if self.done == 0:
            self._begin(hidden, tokens)
        else:
            source, at = observation(len(tokens), self.done % self.target.grid, self.target.grid, hidden.device)
            ancestry = tree_tensors(chain(len(source)), hidden.device)[1]
            (self.feature,) = self.run(self._observed, ("observe",), len(source), hidden, tokens.to(hidden.device), source, at, ancestry)
            self.cache.keep(list(range(len(source))))
        self.done += len(tokens)

    def _observed(
        self, position: CachePosition, hidden: Tensor, tokens: Tensor, source: Tensor, at: Tensor, ancestry: Tensor
    ) -> tuple[Tensor]:
        ids = torch.where(source < 0, self.target.ids.line, tokens[source] + self.target.ids.first)
        features = hidden.flatten(1, 2).index_select(1, at)
        output = self._entries(position, features, ids, ancestry, torch.arange(len(ids), device=ids.device))
        return (output[:, -1:].contiguous(),)

    def _begin(self, hidden: Tensor, tokens: Tensor) -> None:
        """The prompt and the first code."""
        target, count = self.target, hidden.shape[1]
        assert len(tokens) == 1, "the first observation is of one code"
        self.workspace = target.workspace
        self.cache = self.workspace.drafter if self.workspace else drafter_cache_like(target.cache, self.model)
        ids = torch.cat([torch.tensor(target.prompt[1:], device=hidden.device), tokens.to(hidden.device) + target.ids.first])
        rope = target.rope_rows(torch.arange(count, device=hidden.device))
        self.feature = self.model(hidden[:, :, 0], ids[None], rope, target.causal(count), self.cache, 0)[:, -1:].contiguous()
        self.cache.keep(list(range(count)))

    @property
    def pad(self) -> int:
        """See DraftEntries."""
        return self.target.pad

    def phase(self, depth: int) -> tuple[bool, ...]:
        """Where new lines come."""
        return tuple(self.target.ends_row(self.done - 1 + i) for i in range(depth + 1))

    def most(self, nodes: int) -> int:
        """See DraftEntries.most: each node may call for a new line."""
        return 2 * nodes + 1

    def root(self, position: CachePosition, feature: Tensor, ancestry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """See DraftEntries.root."""
        return self._line(position, feature, ancestry, 0) if self.target.ends_row(self.done - 1) else (feature, ancestry)

    def append(
        self, position: CachePosition, hidden: Tensor, codes: Tensor, ancestry: Tensor | None, depth: int
    ) -> tuple[Tensor, Tensor | None]:
        """See DraftEntries.append."""
        lines = (self.done + depth) // self.target.grid - (self.done - 1) // self.target.grid  # new lines since the last observed code
        features, ancestry = self.level(position, hidden, codes + self.target.ids.first, ancestry, depth + lines)
        ends = self.target.ends_row(self.done + depth)
        return self._line(position, features, ancestry, depth + lines + 1) if ends else (features, ancestry)

    def _line(self, position: CachePosition, features: Tensor, ancestry: Tensor | None, rank: int) -> tuple[Tensor, Tensor | None]:
        """A new line after each entry of a level; the drafter's own feature stands in for the target's."""
        ids = torch.full(features.shape[1:2], self.target.ids.line, device=features.device)
        return self.level(position, features, ids, ancestry, rank)

    def level(
        self, position: CachePosition, hidden: Tensor, ids: Tensor, ancestry: Tensor | None, rank: int
    ) -> tuple[Tensor, Tensor | None]:
        """A pass over entries of one rank behind the committed ones: ids (E,) with the features (B, E, D) they continue."""
        now = after(ancestry, len(ids), rank, ids.device)
        features = self._entries(position, hidden, ids, now, torch.full((len(ids),), rank, device=ids.device))
        return features, None if ancestry is None else now


@dataclass
class LuminaPair(LoadedPair):
    """Lumina-mGPT, with a drafter where there is one: no public one is known."""

    target_model: Chameleon
    text: LuminaPrompt

    @property
    def side(self) -> int:
        """See LoadedPair.side."""
        return self.text.grid

    @property
    def head(self) -> nn.Module:
        """See LoadedPair.head."""
        return self.target_model.lm_head

    def _make_tables(self) -> None:
        config = self.target_model.config
        self._rope = line_table(POSITIONS, config.head_dim, config.rope_base).to(self.target_model.lm_head.weight.device)

    def begin(self, cfg_scale: float) -> tuple[LuminaTarget, EagleDrafter | None]:
        """Fresh sessions for one picture."""
        target = LuminaTarget(self.target_model, self.text, cfg_scale, self._rope, self.workspaces)
        return target, None if self.drafter_model is None else EagleDrafter(LineEntries(self.drafter_model, target))

    def caches(self, branches: int) -> tuple[KVCache, KVCache | None]:
        """See LoadedPair.caches."""
        cache = lumina_cache(self.target_model, branches, PROMPT, self.text.grid)
        return cache, None if self.drafter_model is None else drafter_cache_like(cache, self.drafter_model)

    def teacher_forced(self, prompt: str, tokens: Tensor, cfg_scale: float) -> TeacherForced:
        """See LoadedPair.teacher_forced."""
        target = LuminaTarget(self.target_model, self.text, cfg_scale, self._rope)
        hidden, ids, last = target.forced(prompt, tokens[:-1])
        entries = torch.arange(len(ids) - 1, device=ids.device)
        logits = guided(target.head(hidden[:, last]), cfg_scale)
        return TeacherForced(hidden, ids[1:], target.rope_rows(entries), target.causal(len(entries)), last - 1, logits, target.head)

    def empty_drafter(self) -> Eagle:
        """See LoadedPair.empty_drafter."""
        c = self.target_model.config
        sizes = EagleConfig(c.dim, c.heads, c.ffn, c.vocab, norm_eps=c.norm_eps, input_norm=True, norm_rows=1, halves=True)
        return with_embeddings(sizes, self.target_model.model.embed_tokens.weight)
