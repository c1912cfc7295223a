"""Famous WRONG ways to verify a draft, kept to be looked at: each one is biased, and the laboratory shows how.

Nothing here may be used to decode. Knows nothing of rounds or models. A mistake is a rule, and the row that its drafts are really drawn
from: where the two do not belong together, no rule can be exact.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..rules import Relaxed, Rule, norm_residual
from ..sampling import uniforms


class SoftmaxRatio(Rule):
    """WRONG: f = min(1, ω p/q) and its residual are taken with a row q that the draft was not drawn from.

    Args:
        schedule: (length,) ω per draft position.
        reported: (V,) the row that the drafter says it drew from.
    """

    def __init__(self, schedule: Tensor, reported: Tensor):
        self.believed = Relaxed(schedule)
        self.reported = reported

    def kept_mass(self, p: Tensor, q: Tensor, position: int | Tensor) -> Tensor:
        kept = self.believed.kept_mass(p, self.reported, position)
        return q * torch.where(self.reported > 0, kept / self.reported, 0.0)

    def residual(self, p: Tensor, q: Tensor, position: int | Tensor, token: int | Tensor) -> Tensor:
        return self.believed.residual(p, self.reported.expand_as(p), position, token)


class ForgottenResidual(Relaxed):
    """WRONG: after a rejection the token is drawn from p itself, which gives the tokens that were accepted a second chance."""

    def residual(self, p: Tensor, q: Tensor, position: int | Tensor, token: int | Tensor) -> Tensor:
        return p


class VanillaResidual(Relaxed):
    """WRONG where ω < 1: the residual Norm([p - q]_+) belongs to ω = 1. For ω >= 1 it is G*."""

    def residual(self, p: Tensor, q: Tensor, position: int | Tensor, token: int | Tensor) -> Tensor:
        return norm_residual(p - q, p)


class Reseeded(Relaxed):
    """WRONG: the generator is re-seeded before every test, so each round sees the same two uniform numbers.

    Args:
        schedule: (length,) ω per draft position.
        seed: what is set before every test.
    """

    def __init__(self, schedule: Tensor, seed: int = 0):
        super().__init__(schedule)
        self.test, self.redraw = uniforms((2,), torch.Generator().manual_seed(seed), torch.device("cpu")).tolist()

    def kept_mass(self, p: Tensor, q: Tensor, position: int | Tensor) -> Tensor:
        return torch.where(super().kept_mass(p, q, position) > self.test * q, q, 0.0)

    def residual(self, p: Tensor, q: Tensor, position: int | Tensor, token: int | Tensor) -> Tensor:
        law = norm_residual(p - super().kept_mass(p, q, position), p)
        always = (law.cumsum(-1) > self.redraw).to(torch.uint8).argmax(-1)
        return F.one_hot(always, law.shape[-1]).to(law)


def likeliest(q: Tensor) -> Tensor:
    """The row of a greedy drafter: all mass on the likeliest token of q (V,)."""
    return F.one_hot(q.argmax(), len(q)).to(q)


@dataclass(frozen=True)
class Mistake:
    """A wrong way to verify, in a form that the exact laws take: use `rule(schedule, q)` with drafts drawn from `draft_row(q)`."""

    title: str
    about: str
    rule: Callable[[Tensor, Tensor], Rule]
    draft_row: Callable[[Tensor], Tensor] = lambda q: q
    below_one: bool = False  # wrong only where ω < 1


MISTAKES = {
    "greedy": Mistake(
        "Greedy draft, softmax ratio",
        "The drafter always takes its likeliest token, but the test divides by its softmax q, as if the token had been drawn from it.",
        SoftmaxRatio,
        likeliest,
    ),
    "forgotten": Mistake(
        "Forgotten residual",
        "After a rejection the token is drawn from p itself, not from what the accepted drafts left over of p.",
        lambda schedule, q: ForgottenResidual(schedule),
    ),
    "vanilla": Mistake(
        "Vanilla residual, ω < 1",
        "With ω below 1 more is rejected than in lossless decoding, yet the token is still drawn from the lossless residual [p − q]₊.",
        lambda schedule, q: VanillaResidual(schedule),
        below_one=True,
    ),
    "reseeded": Mistake(
        "Re-seeded uniforms",
        "The random generator gets the same seed before every test, so every round sees the same two random numbers.",
        lambda schedule, q: Reseeded(schedule),
    ),
}
