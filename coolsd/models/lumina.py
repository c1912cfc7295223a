"""Lumina-mGPT (arXiv 2408.02657) on Chameleon: prompt template, forced tokens, sessions of target and drafter.

The engine sees image codes only. What the format forces (a new-line token after each row of codes) is fed along in the same pass and
never drawn, so it costs no target call and enters no statistic. Rows: conditional first; the unconditional row starts at the image
start token, with positions of its own, and is padded on the left.
Shapes: B rows, T codes of a pass, E entries (codes and new lines), V image codes, D width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from .chameleon import Chameleon
from .eagle import Eagle, EagleDrafter
from .layers import KVCache, ancestors, depths, line_table
from .llamagen import prefix_mask
from .pair import LoadedPair
from .protocols import Draft, Dynamic, Shape, Step, ToProbs, chain
from .target import SLACK, mixed

TEMPLATE = "Generate an image of {0}x{0} according to the following prompt:\n{1}"
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
        """Ids of one prompt. BOS is put by hand, since the tokenizer would add a second one of its own."""
        i, side = self.ids, self.ids.size + self.grid // 2
        text = self.tokenizer.encode(TEMPLATE.format(16 * self.grid, prompt), add_special_tokens=False).ids
        return [i.bos, *text, i.separator, i.start, side, side]


class LuminaTarget:
    """Implements protocols.Target. Features are (B, T, 2, D): of each code, and of the last entry before the next code.

    Args:
        model: shared weights. encode: prompt to ids. scale: guidance. rope: line_table, long enough for prompt and picture.
    """

    def __init__(self, model: Chameleon, encode: LuminaPrompt, scale: float, rope: Tensor):
        self.model, self.encode, self.scale, self.rope, self.ids, self.grid = model, encode, scale, rope, encode.ids, encode.grid
        self.rows = 1 if scale == 1 else 2
        self.done = 0  # committed codes
        self.prompt: list[int] = []
        self._nodes: list[list[int]] = []  # entries of each code of the last pass

    @property
    def pad(self) -> int:
        """Entries of the prompt that the unconditional row does not have."""
        return len(self.prompt) - 3

    def rope_rows(self, positions: Tensor) -> Tensor:
        """Rotations (B, E, …) of entries at these places (E,) of the conditional row."""
        return torch.stack([self.rope[positions], self.rope[(positions - self.pad).clamp(min=0)]][: self.rows])

    def visible(self, seen: Tensor, start: int) -> Tensor:
        """Mask (B, 1, E, start + U) from what entries see of the U behind the committed `start`, (E, U)."""
        mask = F.pad(seen, (start, 0), value=True).repeat(self.rows, 1, 1, 1)
        mask[1:, :, :, : self.pad] = False
        return mask

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of the image codes only, (..., V)."""
        return F.linear(hidden, self.model.lm_head.weight[self.ids.first : self.ids.first + self.ids.codes])

    def ends_row(self, cell: int) -> bool:
        """Whether a new line follows the code of this cell."""
        return (cell + 1) % self.grid == 0

    def prefill(self, prompt: str) -> Step:
        """Logits (1, V) of the first code; hidden (B, prompt, 2, D), zero where the unconditional row is padded."""
        self.prompt = self.encode(prompt)
        config, count = self.model.config, len(self.prompt)
        length = count + self.grid * (self.grid + 1) + 2 * SLACK
        self.cache = KVCache(config.layers, self.rows, config.heads, length, config.head_dim, self.model.lm_head.weight)
        place = torch.arange(count, device=self.rope.device)
        valid = torch.stack([place >= 0, place >= self.pad][: self.rows])
        tokens = torch.tensor(self.prompt, device=self.rope.device).expand(self.rows, -1)
        hidden = self.model(tokens, self.rope_rows(place), prefix_mask(valid, count)[:, None], self.cache)
        self.cache.keep(list(range(count)))
        hidden = hidden * valid[..., None]
        return Step(mixed(self.head(hidden[:, -1:]), self.scale), hidden[:, :, None].expand(-1, -1, 2, -1))

    def extend(self, tokens: Tensor, parents: tuple[int, ...]) -> Step:
        """One pass over codes (T,), with the new lines that they call for; logits (T, V), hidden (B, T, 2, D)."""
        device, start = self.rope.device, self.cache.committed
        above: list[int] = []  # parent of each entry
        sources: list[int] = []  # the code of each entry, -1 for a new line
        self._nodes = []
        for node, (parent, depth) in enumerate(zip(parents, depths(parents), strict=True)):
            entries = [len(above)]
            above.append(self._nodes[parent][-1] if parent >= 0 else -1)
            sources.append(node)
            if self.ends_row(self.done + depth):
                entries.append(len(above))
                above.append(entries[0])
                sources.append(-1)
            self._nodes.append(entries)
        tree = tuple(above)
        source = torch.tensor(sources, device=device)
        ids = torch.where(source < 0, self.ids.line, tokens.to(device)[source] + self.ids.first)
        place = torch.tensor(depths(tree), device=device) + start
        mask = self.visible(ancestors(tree).to(device), start)
        hidden = self.model(ids.expand(self.rows, -1), self.rope_rows(place), mask, self.cache)
        pairs = torch.tensor([[entries[0], entries[-1]] for entries in self._nodes], device=device)
        hidden = hidden[:, pairs]
        return Step(mixed(self.head(hidden[:, :, 1]), self.scale), hidden)

    def keep(self, path: list[int]) -> None:
        """Commit these codes of the last pass, with their new lines."""
        self.cache.keep([entry for node in path for entry in self._nodes[node]])
        self.done += len(path)


class LuminaDrafter(EagleDrafter):
    """EAGLE-1 drafter over the same format; implements protocols.Drafter. Its entries are the target's, one to the left.

    Args:
        model: shared weights. target: the session of the same picture, which has been given its prompt before anything is observed.
    """

    def __init__(self, model: Eagle, target: LuminaTarget):
        self.model, self.target, self.scale, self.rope = model, target, target.scale, target.rope
        self.head = target.head
        self.codes = target.ids.codes
        self.done = 0  # codes observed
        self.cache: KVCache | None = None

    def _entries(self, hidden: Tensor, ids: Tensor, seen: Tensor, rank: Tensor) -> Tensor:
        """A pass over entries: features (B, E, D), the ids that follow them (E,), what they see (E, U + E), their ranks behind the
        committed entries (E,)."""
        start, before = self.cache.committed, seen.shape[1] - len(ids)
        rope, mask = self.target.rope_rows(rank + start), self.target.visible(seen, start)
        # A padded entry sees its own kind, so that no row of the mask is empty.
        mask |= F.pad(torch.eye(len(ids), dtype=torch.bool, device=ids.device), (start + before, 0))
        return self.model(hidden, ids[None], rope, mask, self.cache, start + before)

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        """Take in committed features (B, T, 2, D); those of the prompt pair with its own next tokens."""
        device, ids = hidden.device, self.target.ids
        if self.cache is None:
            c, length = self.model.config, hidden.shape[1] + self.target.grid * (self.target.grid + 1) + 2 * SLACK
            self.cache = KVCache(1, hidden.shape[0], c.heads, length, c.dim // c.heads, self.model.fc.weight)
            prompt = hidden.shape[1] - len(tokens)
            following, features = self.target.prompt[1 : prompt + 1], [hidden[:, :prompt, 0]]
        else:
            prompt, following, features = 0, [], []
        for k, code in enumerate(tokens.tolist()):
            at = prompt + k
            if self.done and self.target.ends_row(self.done - 1):
                following.append(ids.line)
                features.append(hidden[:, at : at + 1, 0])
            following.append(code + ids.first)
            features.append(hidden[:, at : at + 1, 1])
            self.done += 1
        count = len(following)
        seen = ancestors(chain(count)).to(device)
        output = self._entries(torch.cat(features, dim=1), torch.tensor(following, device=device), seen, torch.arange(count, device=device))
        self.cache.keep(list(range(count)))
        self.feature = output[:, -1:]

    def propose(self, shape: Shape, to_probs: ToProbs, generator: torch.Generator) -> Draft:
        """As EagleDrafter's; passes over new lines are not among the calls."""
        if isinstance(shape, Dynamic):
            return self._dynamic(shape)
        return self._tree(shape, to_probs, generator) if shape else self._chain(shape, to_probs, generator)

    def _root(self) -> tuple[Tensor, Tensor]:
        features, seen = super()._root()
        return self._line(features, seen, 0) if self.target.ends_row(self.done - 1) else (features, seen)

    def _append(self, hidden: Tensor, codes: Tensor, seen: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        lines = (self.done + depth) // self.target.grid - (self.done - 1) // self.target.grid  # new lines since the last observed code
        features, seen = self._level(hidden, codes + self.target.ids.first, seen, depth + lines)
        ends = self.target.ends_row(self.done + depth)
        return self._line(features, seen, depth + lines + 1) if ends else (features, seen)

    def _line(self, features: Tensor, seen: Tensor, rank: int) -> tuple[Tensor, Tensor]:
        """A new line after each entry of a level; the drafter's own feature stands in for the target's."""
        return self._level(features, torch.full(seen.shape[:1], self.target.ids.line, device=seen.device), seen, rank)

    def _level(self, hidden: Tensor, ids: Tensor, seen: Tensor, rank: int) -> tuple[Tensor, Tensor]:
        count = len(ids)
        seen = torch.cat([seen, torch.eye(count, dtype=torch.bool, device=seen.device)], dim=1)
        return self._entries(hidden, ids, seen, torch.full((count,), rank, device=seen.device)), seen


@dataclass
class LuminaPair(LoadedPair):
    """Lumina-mGPT, with a drafter where there is one: no public one is known."""

    target_model: Chameleon
    text: LuminaPrompt

    def _make_tables(self) -> None:
        config = self.target_model.config
        self._rope = line_table(POSITIONS, config.head_dim, config.rope_base).to(self.target_model.lm_head.weight.device)

    def begin(self, cfg_scale: float) -> tuple[LuminaTarget, LuminaDrafter | None]:
        """Fresh sessions for one picture."""
        target = LuminaTarget(self.target_model, self.text, cfg_scale, self._rope)
        return target, None if self.drafter_model is None else LuminaDrafter(self.drafter_model, target)
