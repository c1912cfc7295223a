"""What another schedule would have done on the rounds of a run: predicted from the drafted tokens alone, no model is run.

A round's trace holds p(x) and q(x) of every drafted token, also of those behind a rejection. With f_i = min(1, ω_i p/q) position i is
reached with probability Π_{j<i} f_j, and as the tokens were drawn from q, [f - p/q]_+ of the drafted token is on average Σ [q f - p]_+:
the bias that the step spends (derived). So acceptance, tokens a call and bias follow without any row. Noisier than from whole rows, as
`eval schedules` has them, and for the prefixes of this run: a relaxed run goes on behind its own tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .trace import Round


@dataclass(frozen=True)
class Prediction:
    """For one schedule. By draft position from 0: the mean f where it is reached."""

    accept_prob: tuple[float | None, ...]
    accept_length: float  # tokens a target call
    target_calls: float  # for as many tokens as the run has
    bias_per_token: float


def _steps(event: Round, omega: Sequence[float]) -> Iterator[tuple[float, float, float]]:
    """Along a chain: the chance that a position is reached, f, and p/q of its drafted token."""
    reach = 1.0
    for p, q, factor in zip(event.drafts.p, event.drafts.q, omega, strict=False):
        ratio = p / q if q > 0 else 0.0
        accept = min(1.0, factor * ratio)
        yield reach, accept, ratio
        reach *= accept


def predict(rounds: Sequence[Round], omega: Sequence[float]) -> Prediction | None:
    """What the token rule with ω (L,) would have done on these rounds, L up to what they drafted.

    None where nothing can be said: no round drafted, a draft is a tree, or the run was stored without its drafts.
    """
    offered = [r for r in rounds if r.drafted]
    if not offered or any(r.drafts is None or r.drafts.parents != tuple(range(-1, len(r.drafts.p) - 1)) for r in offered):
        return None
    reached, accepted = [0.0] * len(omega), [0.0] * len(omega)
    bias = 0.0
    for event in offered:
        for i, (reach, accept, ratio) in enumerate(_steps(event, omega)):
            reached[i] += reach
            accepted[i] += reach * accept
            bias += reach * max(0.0, accept - ratio)
    accept_length = (len(rounds) + sum(accepted)) / len(rounds)
    tokens = sum(len(r.tokens) for r in rounds)
    return Prediction(
        accept_prob=tuple(a / r if r else None for a, r in zip(accepted, reached, strict=True)),
        accept_length=accept_length,
        target_calls=tokens / accept_length,
        bias_per_token=bias / (len(rounds) + sum(accepted)),
    )
