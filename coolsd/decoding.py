"""The engine: a generator of rounds.

Each round the drafter proposes, the target looks once, verification decides, the accepted path is committed. The engine never prints and
never decodes pixels; closing the generator between rounds frees the sessions. Shapes: L drafted tokens, V codes.
"""

from collections.abc import Iterator
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from .methods import METHODS, omega
from .models.protocols import Draft, Pair, chain
from .sampling import draw, to_probs
from .settings import Settings, SettingsError
from .trace import Round
from .verification import Verdict


class Laps:
    """Seconds since the last lap, by name; every moment of a round falls in exactly one."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("draft", "target", "verify", "other"), 0.0)
        self._last = perf_counter()

    def lap(self, name: str) -> None:
        """Add the time since the last lap to `name`."""
        now = perf_counter()
        self.seconds[name] += now - self._last
        self._last = now


def _top(p: Tensor, q: Tensor | None, count: int) -> dict[str, Any]:
    """The `count` likeliest codes of a p and a q row, as [code, probability] pairs."""
    rows = {"p": p} if q is None else {"p": p, "q": q}
    heads = {name: row.topk(min(count, row.numel())) for name, row in rows.items()}
    return {name: [list(pair) for pair in zip(h.indices.tolist(), h.values.tolist(), strict=True)] for name, h in heads.items()}


def _round(index: int, start: int, draft: Draft | None, tokens: list[int], verdict: Verdict | None, laps: Laps, top: Any) -> Round:
    drafted = 0 if draft is None else len(draft.tokens)
    accepted = 0 if verdict is None else verdict.accepted
    last = verdict.kind if drafted and verdict else "sampled"
    laps.lap("other")
    return Round(
        index=index,
        start=start,
        tokens=tuple(tokens),
        kinds=("accepted",) * accepted + (last,),
        relaxed=(*(verdict.relaxed.tolist() if verdict else ()), False),
        drafted=drafted,
        accept_prob=tuple(verdict.accept_prob.tolist()) if verdict else (),
        cost=tuple(verdict.cost.tolist()) if verdict else (),
        draft_calls=0 if draft is None else draft.calls,
        **{f"{name}_seconds": value for name, value in laps.seconds.items()},
        top=top,
    )


def decode(pair: Pair, settings: Settings, inspect: int = 0) -> Iterator[Round]:
    """Decode one picture, a round at a time; round 0 is the prefill and emits the first token.

    Args:
        inspect: keep this many entries of the p and q rows in each round, for an inspector; 0 keeps none.

    Raises:
        SettingsError: the method drafts and the pair has no drafter.
    """
    method = METHODS[settings.method]
    total = pair.grid[0] * pair.grid[1]
    total = min(total, settings.max_tokens or total)
    schedule = omega(settings)
    length, verify = len(schedule), method.verifier(schedule)
    rows = partial(to_probs, temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p)
    generator = torch.Generator().manual_seed(settings.seed)
    with torch.inference_mode():
        laps = Laps()
        target, drafter = pair.begin(settings.cfg_scale)
        if length and drafter is None:
            raise SettingsError(
                "method", f"{pair.name} has no drafter. Choose plain AR, or train one with `python -m coolsd train drafter`."
            )
        step = target.prefill(settings.prompt)
        laps.lap("target")
        p = rows(step.logits[-1:])
        hidden, observed = step.hidden, draw(p, generator)
        tokens, done, index = observed.tolist(), 1, 0
        laps.lap("verify")
        event = _round(index, 0, None, tokens, None, laps, (_top(p[0], None, inspect),) if inspect else None)
    yield event
    while done < total:
        with torch.inference_mode():
            laps = Laps()
            draft = None
            if shape := chain(min(length, total - done - 1)):
                drafter.observe(hidden, observed)
                draft = drafter.propose(shape, rows, generator)
                laps.lap("draft")
            feed = observed[-1:] if draft is None else torch.cat([observed[-1:], draft.tokens])
            step = target.extend(feed, (-1, *(i + 1 for i in (draft.parents if draft else ()))))
            laps.lap("target")
            p = rows(step.logits)
            if draft is None:
                verdict, observed = None, draw(p, generator)
            else:
                verdict = verify(p, draft, generator)
                observed = torch.cat([draft.tokens[: verdict.accepted], draft.tokens.new_tensor([verdict.token])])
            tokens = observed.tolist()
            laps.lap("verify")
            target.keep(list(range(len(tokens))))
            hidden = step.hidden[:, : len(tokens)]
            index += 1
            top = None
            if inspect:
                examined = [] if verdict is None else range(len(verdict.accept_prob))
                top = tuple(_top(p[i], draft.q[i], inspect) for i in examined) or (_top(p[0], None, inspect),)
            event = _round(index, done, draft, tokens, verdict, laps, top)
            done += len(tokens)
        yield event
