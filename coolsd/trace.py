"""What happened in a run: rounds, the run, its statistics, and JSON in and out.

Knows nothing of torch or of models. Everything a person sees (pictures, curves, counters, exports) is drawn from these events.

Words: a round is one target call. A drafted token is accepted or rejected; the token that follows is recovered (drawn from the
residual), bonus (all accepted: drawn from p) or sampled (plain AR, and the first token of every picture).
"""

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .settings import Settings

if TYPE_CHECKING:
    from PIL.Image import Image

SCHEMA = 1


@dataclass(frozen=True)
class Round:
    """One target call and the tokens it emitted.

    Per-token tuples have one entry an emitted token; per-position tuples one an *examined* draft position, in draft order.
    """

    index: int  # counts from 0; round 0 is the prefill
    start: int  # image position of the first token emitted
    tokens: tuple[int, ...]
    kinds: tuple[str, ...]  # accepted | recovered | bonus | sampled
    relaxed: tuple[bool, ...]  # accepted here, but the lossless rule would have rejected with the same uniform
    drafted: int  # draft positions offered (depth)
    accept_prob: tuple[float, ...]  # f of the drafted token
    cost: tuple[float, ...]  # exact Σ_x [q f - p]+
    draft_calls: int
    draft_seconds: float
    target_seconds: float
    verify_seconds: float
    other_seconds: float
    top: tuple[dict[str, Any], ...] | None = None  # heads of the p and q rows, on request
    ranks: tuple[int, ...] = ()  # of each accepted token among its siblings, in draw order; 0 all along in a chain

    @property
    def accepted(self) -> int:
        """Number of drafted tokens accepted."""
        return self.kinds.count("accepted")

    @property
    def seconds(self) -> float:
        """Draft, target, verification and bookkeeping together; no pixel decoding."""
        return self.draft_seconds + self.target_seconds + self.verify_seconds + self.other_seconds


@dataclass(frozen=True)
class Stats:
    """Figures of a run. Per-position lists are indexed by draft position from 0."""

    tokens: int
    target_calls: int
    draft_calls: int
    accept_length: float  # tokens per target call, recovered and bonus counted; plain AR is 1
    seconds: float
    draft_seconds: float
    target_seconds: float
    verify_seconds: float
    other_seconds: float
    tokens_per_second: float
    bias_spent: float  # Σ cost over the run
    bias_per_token: float
    offered: tuple[int, ...]  # rounds that drafted this position
    examined: tuple[int, ...]  # rounds that looked at it (all earlier ones accepted)
    accept_prob: tuple[float | None, ...]  # mean f over examined; None where none was
    accepted_share: tuple[float | None, ...]  # accepted ÷ offered (unconditional)
    conditional_share: tuple[float | None, ...]  # accepted ÷ examined


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def statistics(rounds: list[Round]) -> Stats:
    """Figures of the rounds so far; every ratio is taken here, at read time, from plain counts."""
    depth = max((r.drafted for r in rounds), default=0)
    offered = [sum(r.drafted > i for r in rounds) for i in range(depth)]
    examined = [[r.accept_prob[i] for r in rounds if len(r.accept_prob) > i] for i in range(depth)]
    accepted = [sum(r.accepted > i for r in rounds) for i in range(depth)]
    tokens = sum(len(r.tokens) for r in rounds)
    parts = {part: sum(getattr(r, f"{part}_seconds") for r in rounds) for part in ("draft", "target", "verify", "other")}
    seconds = sum(parts.values())
    bias = sum(sum(r.cost) for r in rounds)
    return Stats(
        tokens=tokens,
        target_calls=len(rounds),
        draft_calls=sum(r.draft_calls for r in rounds),
        accept_length=_ratio(tokens, len(rounds)) or 0.0,
        seconds=seconds,
        **{f"{part}_seconds": value for part, value in parts.items()},
        tokens_per_second=_ratio(tokens, seconds) or 0.0,
        bias_spent=bias,
        bias_per_token=_ratio(bias, tokens) or 0.0,
        offered=tuple(offered),
        examined=tuple(len(f) for f in examined),
        accept_prob=tuple(_ratio(sum(f), len(f)) for f in examined),
        accepted_share=tuple(_ratio(a, n) for a, n in zip(accepted, offered, strict=True)),
        conditional_share=tuple(_ratio(a, len(f)) for a, f in zip(accepted, examined, strict=True)),
    )


@dataclass
class Run:
    """A finished (or stopped) run: what was asked, what happened, and the picture where it was decoded."""

    settings: Settings
    target: str  # name of the pair
    grid: tuple[int, int]  # rows, columns of image tokens
    omega: tuple[float, ...]  # the schedule used; empty for plain AR
    rounds: list[Round]
    environment: dict[str, Any] = field(default_factory=dict)  # device, dtype, threads, versions
    image: "Image | None" = None  # not part of the JSON

    @property
    def tokens(self) -> list[int]:
        """Emitted image tokens, row-major."""
        return [t for r in self.rounds for t in r.tokens]

    @property
    def complete(self) -> bool:
        """True when every cell of the grid has its token."""
        return len(self.tokens) == self.grid[0] * self.grid[1]

    @cached_property
    def stats(self) -> Stats:
        """Statistics over all rounds; computed once, so read it when the run has ended."""
        return statistics(self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: settings, environment, statistics and every round."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "settings": self.settings.to_dict(),
            "grid": list(self.grid),
            "omega": list(self.omega),
            "complete": self.complete,
            "environment": self.environment,
            "stats": asdict(self.stats),
            "rounds": [asdict(r) for r in self.rounds],
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """JSON text; written to `path` too when one is given."""
        text = json.dumps(self.to_dict(), ensure_ascii=False)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> "Run":
        """A run from JSON text or from a file's path.

        Raises:
            ValueError: not JSON, or a schema this version does not read.
        """
        text = Path(source).read_text(encoding="utf-8") if isinstance(source, Path) or not source.lstrip().startswith("{") else source
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, data: Any) -> "Run":
        """A run from what `to_dict` gave, also after a way through JSON.

        Raises:
            ValueError: a schema this version does not read.
        """
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"This run has schema {schema!r}; this version reads {SCHEMA}. Export it again.")
        rounds = [Round(**{k: tuple(v) if isinstance(v, list) else v for k, v in r.items()}) for r in data["rounds"]]
        return cls(
            settings=Settings(**data["settings"]),
            target=data["target"],
            grid=tuple(data["grid"]),
            omega=tuple(data["omega"]),
            rounds=rounds,
            environment=data["environment"],
        )
