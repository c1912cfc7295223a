"""The engine: a generator of rounds.

Each round the drafter proposes, the target looks once, verification decides, the accepted path is committed. The engine never prints and
never decodes pixels; closing the generator between rounds frees the sessions. Shapes: L drafted tokens, V codes.

A draft is a tree; a chain is one of a single branch. A draft position is a level of it: a round offers as many as the draft is deep, and
its `accept_prob` and `cost` have one entry for each level that was looked at. For a level of siblings `accept_prob` is the probability
that some sibling is accepted, given the siblings; `cost` is what the whole level spends.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from math import isnan, log
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from .jacobi import JacobiDrafter
from .methods import METHODS, omega, shape
from .protocols import Draft, Drafter, Pair, Target, no_draft
from .sampling import NotFinite, to_probs
from .settings import Settings, SettingsError
from .trace import Drafts, Last, Round, Run
from .trees import depth, ranks, within
from .verification import Verdict


class MemoryFull(ValueError):
    """Decoding needed more memory than the device has."""


class Broken(ValueError):
    """A model of the pair computes nothing that can be decoded."""


@dataclass(frozen=True)
class RowFilter:
    """Logits to the rows of a run. Equal for equal settings, so that recordings serve the next picture too."""

    temperature: float
    top_k: int
    top_p: float

    def __call__(self, logits: Tensor) -> Tensor:
        """(..., V) to (..., V)."""
        return to_probs(logits, self.temperature, self.top_k, self.top_p)


class RoundTimer:
    """Seconds since the last lap, by name; every moment of a round falls in exactly one.

    A GPU works behind the host's back: what drafting and the target only launch there is waited for, and counted, in `verify`.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("draft", "target", "verify", "other"), 0.0)
        self._last = perf_counter()

    def lap(self, name: str) -> None:
        """Add the time since the last lap to `name`."""
        now = perf_counter()
        self.seconds[name] += now - self._last
        self._last = now


def _top(p: Tensor, q: Tensor | None, count: int) -> dict[str, Any]:
    """The `count` likeliest codes of a p row and those of a q row, in both, as [code, probability] pairs, the likeliest first."""
    rows = {"p": p} if q is None else {"p": p, "q": q}
    heads = [row.topk(min(count, row.numel())) for row in rows.values()]
    codes = sorted({code for h in heads for code, value in zip(h.indices.tolist(), h.values.tolist(), strict=True) if value > 0})
    return {
        name: sorted(([code, value] for code, value in zip(codes, row[codes].tolist(), strict=True)), key=lambda entry: -entry[1])
        for name, row in rows.items()
    }


def heads_of(p: Tensor, draft: Draft, verdict: Verdict, size: int) -> tuple[dict[str, Any], ...]:
    """Heads of the rows at each level: those of its target row, and of the draft row where something was drafted from there.

    Entry i belongs to emitted token i; behind the accepted path, where a position was examined, the first branch goes on.
    """
    heads, row = [], 0
    for level in range(len(verdict.accept_prob)):
        if row - 1 not in draft.parents:  # other branches are deeper
            break
        child = draft.parents.index(row - 1)
        heads.append(_top(p[row], draft.q[child], size))
        row = 1 + (verdict.path[level] if level < verdict.accepted else child)
    if verdict.kind == "bonus":
        heads.append(_top(p[row], None, size))
    return tuple(heads)


def _drafts(parents: tuple[int, ...], verdict: Verdict, relaxed: list[bool]) -> Drafts:
    p, q, f, u = verdict.nodes.tolist()
    outcome = ["unexamined" if isnan(x) else "rejected" for x in f]
    for node, only in zip(verdict.path, relaxed, strict=True):
        outcome[node] = "relaxed" if only else "accepted"
    f, u = (tuple(None if isnan(x) else x for x in row) for row in (f, u))
    return Drafts(verdict.drafted, parents, tuple(p), tuple(q), f, u, tuple(outcome))


def _round(index: int, start: int, draft: Draft, tokens: list[int], verdict: Verdict, timer: RoundTimer) -> Round:
    relaxed, last = verdict.relaxed.tolist(), Last(*verdict.last.tolist())
    drafts = _drafts(draft.parents, verdict, relaxed) if draft.parents else None
    probabilities = (*(drafts.p[node] for node in verdict.path), last.p) if drafts else (last.p,)
    log_p = tuple(log(p) if p > 0 else None for p in probabilities)
    timer.lap("other")
    return Round(
        index=index,
        start=start,
        tokens=tuple(tokens),
        kinds=("accepted",) * verdict.accepted + (verdict.kind if drafts else "sampled",),
        relaxed=(*relaxed, False),
        drafted=depth(draft.parents),
        accept_prob=tuple(verdict.accept_prob.tolist()),
        cost=tuple(verdict.cost.tolist()),
        draft_calls=draft.calls,
        **{f"{name}_seconds": value for name, value in timer.seconds.items()},
        ranks=ranks(draft.parents, verdict.path),
        drafts=drafts,
        last=last,
        log_p=log_p,
        entropy=tuple(verdict.entropy.tolist()),
    )


def decode(pair: Pair, settings: Settings, inspect: int = 0) -> Iterator[Round]:
    """Decode one picture, a round at a time; round 0 is the prefill and emits the first token.

    Args:
        inspect: keep this many entries of the p and q rows in each round, for an inspector; 0 keeps none.

    Raises:
        SettingsError: the method drafts and the pair has no drafter.
        MemoryFull: the device has no memory left; what the picture took has been freed.
        Broken: logits are NaN or infinite.
    """
    full = False
    try:
        yield from _rounds(pair, settings, inspect)
    except NotFinite as error:
        dtype = str(pair.environment.get("dtype", "float32"))
        advice = "Its weights are damaged: load them again" if dtype == "float32" else "Try float32"
        reason = f"The {error.model} of {pair.name} gives NaN or infinity in {dtype}."
        raise Broken(f"{reason} {advice}, or choose another {error.model}.") from None
    except torch.OutOfMemoryError:
        full = True
    if full:  # not above, where the error still holds on to the frames with all their tensors
        pair.free()
        raise MemoryFull(
            f"{pair.name} ran out of memory while decoding; what the picture took was freed. Close what else uses the GPU, or choose a "
            "smaller tree or target."
        )


def finished(pair: Pair, settings: Settings, rounds: Iterable[Round]) -> Run:
    """The run of a pair that these rounds make up, without its picture."""
    return run_of(settings, rounds, pair.name, pair.grid, pair.environment)


def run_of(settings: Settings, rounds: Iterable[Round], target: str, grid: tuple[int, int], environment: Mapping[str, Any]) -> Run:
    """The run of these rounds, for who has no pair at hand: target, grid (rows, columns) and environment are the pair's."""
    return Run(settings, target, tuple(grid), tuple(omega(settings).tolist()), list(rounds), dict(environment))


def _sessions(pair: Pair, settings: Settings) -> tuple[Target, Drafter | None]:
    """Fresh sessions for a picture; no drafter for plain AR."""
    target, drafter = pair.begin(settings.cfg_scale)
    method = METHODS[settings.method]
    if method.schedule is None:
        return target, None
    if method.jacobi:
        coupling = settings.coupling if "coupling" in method.uses else "independent"
        return target, JacobiDrafter(settings.window - 1, pair.grid[1], coupling, settings.pads)
    if drafter is None:
        raise SettingsError(
            "method", f"{pair.name} has no drafter. Choose plain AR or a Jacobi method, or train one with `python -m coolsd train drafter`."
        )
    return target, drafter


def _rounds(pair: Pair, settings: Settings, inspect: int) -> Iterator[Round]:
    cells = pair.grid[0] * pair.grid[1]
    total = min(cells, settings.max_tokens or cells)
    rows = RowFilter(settings.temperature, settings.top_k, settings.top_p)
    generator = torch.Generator().manual_seed(settings.seed)
    verify = METHODS[settings.method].verifier(settings, pair)
    done = 0
    with torch.inference_mode():
        timer = RoundTimer()
        target, drafter = _sessions(pair, settings)
        step = target.prefill(settings.prompt)
        timer.lap("target")
    nothing = draft = no_draft(step.logits)
    for index in count():
        with torch.inference_mode():
            p = rows(step.logits)
            verdict = verify(p, draft, generator)
            if drafter:
                drafter.review(p, draft, verdict.accepted, generator)
            path = [0, *(node + 1 for node in verdict.path)]
            tokens = [*(verdict.drafted[node] for node in verdict.path), verdict.token]
            observed = torch.tensor(tokens).to(p.device, non_blocking=True)
            timer.lap("verify")
            hidden = step.hidden
            if index:  # after the prefill all its positions are committed
                target.keep(path)
                hidden = _along(hidden, path)
            event = _round(index, done, draft, tokens, verdict, timer)
            if inspect:  # behind the timer: what an inspector wants is no part of decoding
                event = replace(event, top=heads_of(p, draft, verdict, inspect))
            done += len(tokens)
        yield event
        if done >= total:
            return
        with torch.inference_mode():
            timer = RoundTimer()
            draft = nothing
            ahead = total - done - 1  # the round emits one token more than it accepts
            if drafter and ahead:
                drafter.observe(hidden, observed)
                draft = drafter.propose(within(shape(settings), ahead), rows, generator)
                timer.lap("draft")
            step = target.extend(torch.cat([observed[-1:], draft.tokens]), (-1, *(i + 1 for i in draft.parents)))
            timer.lap("target")


def _along(hidden: Tensor, path: list[int]) -> Tensor:
    """Features (B, T, …) at the entries of a path."""
    if path[-1] < len(path):
        return hidden[:, : len(path)]
    return hidden.index_select(1, torch.tensor(path).to(hidden.device, non_blocking=True))
