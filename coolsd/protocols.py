"""What the engine asks of a target and of a drafter. Sessions: one picture each, with caches of their own; weights are shared.

Shapes: B guidance branches (2: conditional, unconditional; 1 when the scale is 1), T tokens of a pass, V codes, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Generator, Tensor

from .trees import Shape

if TYPE_CHECKING:
    from PIL.Image import Image

ToProbs = Callable[[Tensor], Tensor]  # guided logits (..., V) to probability rows: the one way, for drafting and verifying


@dataclass(frozen=True)
class Step:
    """One target pass: guided logits (T, V) float32, row t being the law of the token after input t; features (B, T, D)."""

    logits: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class Draft:
    """Drafted tokens with the rows they were drawn from.

    tokens (N,) int64; q (N, V) float32, q[i] the processed row token i was drawn from (siblings: the row of their common parent, as it
    was before the first was drawn; a token that was ranked and not drawn: one-hot); parents: for each token the index of its parent in
    `tokens`, -1 for children of the last committed token; levels come one after another, siblings in the order they were drawn.
    A chain of three has parents (-1, 0, 1). calls: drafter passes spent.
    """

    tokens: Tensor
    q: Tensor
    parents: tuple[int, ...]
    calls: int


def no_draft(logits: Tensor) -> Draft:
    """The draft of a round that drafts nothing, on the device and of the codes of logits (..., V)."""
    tokens = torch.empty(0, dtype=torch.long, device=logits.device)
    return Draft(tokens, logits.new_empty(0, logits.shape[-1]), (), 0)


@dataclass(frozen=True)
class TeacherForced:
    """One picture under teacher forcing, laid out as a drafter of the pair reads it, for training one.

    The sequence is the condition, then the tokens of the picture with what the format puts between them; E of its entries are followed
    by another one. Branches as in decoding: B = 2 (conditional, unconditional), or 1 where the guidance scale is 1.

    A drafter's pass over `hidden[:, :-1]` with `ids`, `rope` and `mask` gives features that should be `hidden[:, 1:]`; those at entries
    `at`, through `head`, should give the rows of `logits`: the guided laws of tokens 1 … n - 1.
    """

    hidden: Tensor  # (B, E + 1, D) target features, in the dtype of the weights; zero where the unconditional branch is padded
    ids: Tensor  # (E,) int64: of the token that follows each entry, as the drafter embeds it
    rope: Tensor  # rotations of the entries, for the drafter's layer: (E, head_dim / 2, 2), or (B, E, head_dim / 2, 2)
    mask: Tensor | None  # (B, 1, E, E) bool, True = visible; None: plain causal
    at: Tensor  # (n - 1,) int64: entries whose output predicts the row of a token
    logits: Tensor  # (n - 1, V) float32
    head: Callable[[Tensor], Tensor]  # features (..., D) to the logits of the codes (..., V), before guidance


class Target(Protocol):
    """An AR image model behind a preallocated key/value cache."""

    def prefill(self, prompt: str) -> Step:
        """Condition on the prompt; logits (1, V) of the first token, hidden (B, C, D) of all condition positions. Nothing to keep."""

    def extend(self, tokens: Tensor, parents: tuple[int, ...]) -> Step:
        """One pass over new tokens (T,) behind the committed ones; parents as in Draft, with tokens[0] the last emitted token."""

    def keep(self, path: list[int]) -> None:
        """Commit these entries of the last pass, in order; the others are forgotten."""


class Drafter(Protocol):
    """A cheap model that proposes tokens from the target's features."""

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        """Take in committed features (B, T, D) paired with the token that *follows* each, (t,) with t <= T; when t < T the first
        T - t features are condition positions (after the prefill)."""

    def propose(self, shape: Shape, to_probs: ToProbs, generator: Generator) -> Draft:
        """Draft a chain or tree of this shape behind the last observed token; leaves the committed cache as it was. Children of a node
        are drawn without replacement from its row; those of a `Dynamic` tree are ranked."""

    def review(self, p: Tensor, draft: Draft, accepted: int, generator: Generator) -> None:
        """Look at the rows (L+1, V) of the pass over a draft, of which so many tokens were accepted. Most drafters need not."""


class Pair(Protocol):
    """A target and, where there is one, its drafter, with the picture and text tokenizers that belong to them."""

    name: str
    grid: tuple[int, int]
    environment: dict[str, object]  # device, dtype, threads, versions

    @property
    def codebook(self) -> Tensor:
        """Raw code vectors (V, channels) of the picture tokenizer, the same tensor every time, on the device of the rows."""

    def begin(self, cfg_scale: float) -> tuple[Target, Drafter | None]:
        """Fresh sessions for one picture; B = 1 when cfg_scale is 1, else 2."""

    def picture(self, tokens: list[int]) -> "Image":
        """PIL image of a whole or partial token sequence."""

    def free(self) -> None:
        """Give back the memory that pictures took and that is kept for the next ones."""

    def holds(self, pictures: int, cfg_scale: float) -> bool:
        """Whether so many pictures can be decoded beside each other without running out of memory, as far as is known."""
