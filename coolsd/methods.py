"""The named methods: what is drafted, how it is verified, and what it is called.

Knows nothing of models. A method is data; a new one is one entry of METHODS.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from . import schedules
from .models.protocols import Draft
from .settings import Settings
from .verification import Relaxed, Verdict, verify, verify_block

Schedule = Callable[[Settings], Tensor]
Verify = Callable[[Tensor, Draft, Generator], Verdict]  # p (L+1, V), the draft and the q rows it was drawn from


@dataclass(frozen=True)
class Method:
    """One way to decode. `schedule` is ω per draft position; None for plain AR, which drafts nothing."""

    name: str
    title: str
    about: str
    source: str  # paper, or "derived"
    lossless: bool
    schedule: Schedule | None
    verifier: Callable[[Tensor], Verify]  # from the ω row, once a run
    uses: tuple[str, ...] = ()  # settings it listens to besides the common ones


def _lossless(s: Settings) -> Tensor:
    return schedules.lossless(s.draft_length)


def _annealed(s: Settings) -> Tensor:
    return schedules.annealed(s.draft_length, s.delta, s.nu, s.mu, s.clamp)


def _uniform(s: Settings) -> Tensor:
    return schedules.uniform(s.draft_length, s.delta)


def _chain(schedule: Tensor) -> Verify:
    rule = Relaxed(schedule)
    return lambda p, draft, generator: verify(p, draft.q, draft.tokens, rule, generator)


def _block(schedule: Tensor) -> Verify:
    return lambda p, draft, generator: verify_block(p, draft.q, draft.tokens, schedule[: len(draft.tokens)], generator)


PAPER = "COOL-SD (arXiv 2601.09212)"
ANNEALING = ("delta", "nu", "mu", "clamp")

METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method("ar", "Plain AR", "One target call a token.", "baseline", True, None, _chain),
        Method(
            "eagle1",
            "Eagle-1",
            "Drafts a chain from the target's features and verifies it exactly.",
            "EAGLE (arXiv 2401.15077)",
            True,
            _lossless,
            _chain,
        ),
        Method("coolsd", "COOL-SD", "Accepts more than exact early in the draft, less late.", PAPER, False, _annealed, _chain, ANNEALING),
        Method("uniform", "UniformRSD", "The same relaxation at every draft position.", PAPER, False, _uniform, _chain, ("delta",)),
        Method(
            "block",
            "Block verification",
            "Verifies the chain as a whole: exact, and never accepts fewer.",
            "block verification (arXiv 2403.10444)",
            True,
            _lossless,
            _block,
        ),
        Method(
            "coolsd-block",
            "COOL-SD, block",
            "Annealed relaxation of block verification.",
            "derived",
            False,
            _annealed,
            _block,
            ANNEALING,
        ),
    )
}


def omega(settings: Settings) -> Tensor:
    """The ω row a run with these settings uses, (draft_length,) float32; empty for plain AR."""
    schedule = METHODS[settings.method].schedule
    return torch.empty(0) if schedule is None else schedule(settings)
