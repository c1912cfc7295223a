"""Groups of prompts to pictures on disk: decoded together, metered, and stored one by one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ... import METHODS, omega, stream, validate
from ...data.store import digest
from ...methods import shape
from ...models.pair import LoadedPair
from ...protocols import Draft
from ...settings import Settings
from ...trace import Stats, statistics
from ...trees import chain, depth
from ..batching import map_of
from ..claims.estimator import Rounds, evaluate
from ..claims.recording import WatchedPair
from .captions import Prompt
from .store import Figures, Group, Variant, path_of, read, recipe, write

BY_TOKEN = ("coolsd", "uniform", "coolsd-fitted")  # methods whose KL is known from the rows of a round, on a chain
BY_BLOCK = ("coolsd-block",)


def settings_of(variant: Variant, prompt: Prompt) -> Settings:
    """The settings of one picture.

    Raises:
        SettingsError: they cannot be run.
    """
    return validate(METHODS, prompt=prompt.text, method=variant.method, seed=prompt.index, **dict(variant.settings))


@dataclass
class Divergence:
    """KL(law of a token, target's row), summed over a picture, nats: for each round what it expects given its drafts.

    omega: (L,) of the schedule. block: whether the chain is verified as a whole.
    """

    omega: Tensor
    block: bool
    total: float = field(default=0.0)

    def add(self, draft: Draft, rows: Tensor) -> None:
        """A round that drafted L tokens, with target rows (L + 1, V)."""
        count = len(draft.tokens)
        p, q = rows[None, :count].float().cpu(), draft.q[None].float().cpu()
        place = draft.tokens[None].cpu()
        ratio = (p.gather(-1, place[..., None]).double() / q.gather(-1, place[..., None]).double())[..., 0]
        one = Rounds([p], [q], [torch.where(p > 0, p, 1.0).log()], [place], [ratio], torch.zeros(1, dtype=torch.long))
        self.total += evaluate(one, self.omega[:count], self.block).kl.item()


def divergence(settings: Settings) -> Divergence | None:
    """How the KL of a run is metered; None for lossless methods, which have none, and for those it is not known for."""
    drafted = shape(settings)
    if settings.method not in BY_TOKEN + BY_BLOCK or drafted != chain(depth(drafted)):
        return None
    return Divergence(omega(settings), settings.method in BY_BLOCK)


def _decode(pair: LoadedPair, variant: Variant, prompt: Prompt) -> tuple[list[int], Stats, float | None]:
    """Tokens, statistics and KL of one picture."""
    settings = settings_of(variant, prompt)
    meter = divergence(settings)
    watched = pair if meter is None else WatchedPair(pair, meter.add)
    rounds = list(stream(watched, **settings.to_dict()))
    spent = meter.total if meter else 0.0 if METHODS[settings.method].lossless else None
    return [token for event in rounds for token in event.tokens], statistics(rounds), spent


def decode_group(pair: LoadedPair, folder: Path, variant: Variant, group: Group) -> None:
    """Decode the pictures of a group in one go, and store those that are not there yet.

    Args:
        pair: `batched`, or one that decodes one by one.
    """
    begun = perf_counter()
    decoded = list(map_of(pair)(partial(_decode, pair, variant), group.prompts))
    seconds = (perf_counter() - begun) / len(group.prompts)
    for prompt, (tokens, stats, spent) in zip(group.prompts, decoded, strict=True):
        path, made_by = path_of(folder, variant, prompt), recipe(variant, group, prompt)
        if read(path, made_by) is None:
            codes = digest(torch.tensor(tokens), digits=16)
            write(path, pair.picture(tokens), made_by, Figures(stats.tokens, stats.target_calls, stats.bias_spent, spent, seconds, codes))


Notice = Callable[[Variant, Group], Any]


def decode_all(pair: LoadedPair, folder: Path, jobs: list[tuple[Variant, Group]], done: Notice) -> None:
    """Decode and store these groups; `done` hears of each."""
    for variant, group in jobs:
        decode_group(pair, folder, variant, group)
        done(variant, group)
