"""What happened in a run: rounds, the run, its statistics, and JSON in and out.

Knows nothing of torch, models or methods. Everything a person sees (pictures, curves, counters, exports) is drawn from these events.

Words: a round is one target call. A drafted token is accepted or rejected; the token that follows is recovered (drawn from the
residual), bonus (all accepted: drawn from p) or sampled (plain AR, and the first token of every picture).
"""

import json
import math
from collections.abc import Collection
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import checks
from .settings import Settings, SettingsError, validate
from .trees import MAX_NODES

if TYPE_CHECKING:
    from PIL.Image import Image

SCHEMA = 2  # 1: without drafts, last, log_p and entropy of a round
DIGITS = 6  # significant ones of a number written
OUTCOMES = ("accepted", "relaxed", "rejected", "unexamined")
KINDS = ("accepted", "recovered", "bonus", "sampled")


@dataclass(frozen=True)
class Drafts:
    """All drafted tokens of a round, one entry each, in draft order: a chain from left to right, a tree level by level.

    Token by token (chains and trees), f is the probability with which the token was accepted once it was examined, u the uniform number it
    was compared with: accepted where u < f. Where siblings were rejected before it, f is that of the residual they left. Two cases differ:

    Block verification looks at all positions and stops behind the last one with u < f, f being h_i, the probability of stopping there given
    that it does not stop later (arXiv 2403.10444). So a token can be accepted with u >= f, on account of a later one.
    A tree that is salvaged runs losslessly and may then take back its first sibling. Where all siblings were rejected, the two tries of the
    first are given as one (derived): f is the larger of min(1, p/q) and the rule's own, and u = f1 + (1 - f1) u2, f1 = min(1, p/q) being
    the first try's probability and u2 the second's number. So u stays uniform, and the sibling was taken back where u < f.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]  # entry continued; -1: the last committed token. A chain: -1, 0, 1, …
    p: tuple[float, ...]  # probability of the token in the target row at its place
    q: tuple[float, ...]  # and in the draft row it was drawn from; 1 where it was ranked and not drawn
    f: tuple[float | None, ...]  # acceptance probability; None where it was not examined
    u: tuple[float | None, ...]  # uniform number it was compared with; None where it was not examined
    outcome: tuple[str, ...]  # accepted | relaxed (accepted, but not by the lossless rule with the same u) | rejected | unexamined


@dataclass(frozen=True)
class Last:
    """How the last token of a round was drawn."""

    p: float  # its target probability
    u: float  # its uniform number
    law: float  # its probability in the law it was drawn from: the residual where it is recovered, else p


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
    top: tuple[dict[str, Any], ...] | None = None  # heads of the p and q rows, on request; entry i belongs to token i
    ranks: tuple[int, ...] = ()  # of each accepted token among its siblings, in draw order; 0 all along in a chain
    drafts: Drafts | None = None  # None where nothing was drafted, and in a run of schema 1
    last: Last | None = None  # None in a run of schema 1, as the two that follow
    log_p: tuple[float | None, ...] | None = None  # of each token in its target row, nats; None where p is 0
    entropy: tuple[float, ...] | None = None  # of each token's target row, nats; mean of log_p + entropy is 0 where the law is the target's

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
    conditional_share: tuple[float | None, ...]  # accepted ÷ rounds that accepted all earlier ones
    drift: float | None  # mean of log p + entropy a token, nats: 0 on average where tokens are drawn from p; None in runs of schema 1
    drift_error: float | None  # its standard error
    outside: int  # tokens that the target cannot emit, p = 0: not in the drift


def plain(value: Any) -> Any:
    """A value as JSON has it: objects for dataclasses, lists for tuples, null for NaN and infinities, numbers to DIGITS digits."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 10**DIGITS else short
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    return value


def to_text(value: Any) -> str:
    """Plain values as JSON in the fewest characters."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def drift(rounds: list[Round]) -> tuple[float | None, float | None, int]:
    """Mean of log p(x) + H(p) over the emitted tokens, its standard error, and how many tokens had p = 0.

    Whatever came before, the mean is 0 for a token drawn from p, so that the sums form a martingale: a lossless method stays at 0, and
    log p itself, which varies with how predictable a picture is, scatters several times more (derived).
    """
    pairs = [pair for r in rounds if r.log_p is not None for pair in zip(r.log_p, r.entropy, strict=True)]
    terms = [log_p + entropy for log_p, entropy in pairs if log_p is not None]
    if len(terms) < 2:
        return None, None, len(pairs) - len(terms)
    mean = sum(terms) / len(terms)
    spread = sum((term - mean) ** 2 for term in terms) / (len(terms) - 1)
    return mean, (spread / len(terms)) ** 0.5, len(pairs) - len(terms)


def statistics(rounds: list[Round]) -> Stats:
    """Figures of the rounds so far; every ratio is taken here, at read time, from plain counts."""
    depth = max((r.drafted for r in rounds), default=0)
    offered = [sum(r.drafted > i for r in rounds) for i in range(depth)]
    examined = [[r.accept_prob[i] for r in rounds if len(r.accept_prob) > i] for i in range(depth)]
    accepted = [sum(r.accepted > i for r in rounds) for i in range(depth)]
    reached = [sum(r.drafted > i and r.accepted >= i for r in rounds) for i in range(depth)]
    mean_drift, drift_error, outside = drift(rounds)
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
        conditional_share=tuple(_ratio(a, n) for a, n in zip(accepted, reached, strict=True)),
        drift=mean_drift,
        drift_error=drift_error,
        outside=outside,
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
        """Plain values: settings, environment, statistics and every round. Numbers are rounded, those of the settings are not."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "settings": self.settings.to_dict(),
            "grid": list(self.grid),
            "omega": plain(self.omega),
            "complete": self.complete,
            "environment": plain(self.environment),
            "stats": plain(self.stats),
            "rounds": plain(self.rounds),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """JSON text; written to `path` too when one is given."""
        text = to_text(self.to_dict())
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    @classmethod
    def from_json(cls, source: str | bytes | Path, methods: Collection[str] | None = None) -> "Run":
        """A run from JSON text, or from a file where its path is given as a Path; methods as for `from_dict`.

        Raises:
            ValueError: not JSON, or not a run, with one line that says where.
        """
        return cls.from_dict(checks.parse(source.read_bytes() if isinstance(source, Path) else source), methods)

    @classmethod
    def from_dict(cls, data: Any, methods: Collection[str] | None = None) -> "Run":
        """A run from what `to_dict` gave, also after a way through JSON. Every value is checked; statistics are taken anew.

        Args:
            methods: names of the methods that can be run; None takes any name, for runs that are only counted.

        Raises:
            ValueError: a schema this version does not read, or a field that is missing or wrong, with one line that says which.
        """
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema not in (1, SCHEMA) or isinstance(schema, bool):
            raise checks.Unreadable(f"This run has schema {checks.quote(schema)}; this version reads 1 and {SCHEMA}. Export it again.")
        values = _RUN(data, "")
        rows, columns = values["grid"]
        values["settings"] = _settings(values["settings"], methods)
        check = _round_check(rows * columns, schema)
        rounds = [_round(check(entry, f"rounds[{i}]"), f"rounds[{i}]") for i, entry in enumerate(values["rounds"])]
        start = 0
        for i, event in enumerate(rounds):
            if (event.index, event.start) != (i, start):
                raise checks.refuse(f"rounds[{i}]", f"has index {event.index} and start {event.start}, not {i} and {start}")
            start += len(event.tokens)
        if start > rows * columns:
            raise checks.refuse("rounds", f"have {start} tokens for a grid of {rows} × {columns}")
        return cls(
            **{name: values[name] for name in ("settings", "target", "grid", "omega")}, rounds=rounds, environment=values["environment"]
        )


# ---- a run from outside

MOST_CODES = 2**17  # of any vocabulary
LOOSE = 1e-4  # by which a probability computed in float32 may exceed 1
_PROBABILITY = checks.real(0.0, 1.0 + LOOSE)
_CODE = checks.integer(0, MOST_CODES)
_SECONDS = checks.real(0.0, 1e7)


def _anything(value: Any, _: str) -> Any:
    return value


def _environment(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or len(str(value)) > 10_000:
        raise checks.refuse(where, f"is {checks.quote(value)}, not a short object")
    return value


_RUN = checks.record(
    {
        "schema": _anything,
        "target": checks.text(200),
        "settings": _anything,
        "grid": checks.list_of(checks.integer(1, 256), 2, 2),
        "omega": checks.list_of(checks.real(0.0, 1e9), 0, MAX_NODES),
        "rounds": checks.list_of(_anything, 0, 256**2),
        "environment": _environment,
    },
    optional={"complete": _anything, "stats": _anything},  # they follow from the rounds
)


def _settings(value: Any, methods: Collection[str] | None) -> Settings:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise checks.refuse("settings", f"is {checks.quote(value)}, not an object")
    try:
        name = checks.text(40)(value.get("method", Settings().method), "settings.method")
        return validate((name,) if methods is None else methods, **value)
    except SettingsError as error:
        raise checks.refuse(f"settings.{error.field}:", str(error)) from None


def _round_check(cells: int, schema: int) -> checks.Check:
    """The check of a round's fields, one by one."""
    nodes = {
        "tokens": _CODE,
        "parents": checks.integer(-1, MAX_NODES - 2),
        "p": _PROBABILITY,
        "q": _PROBABILITY,
        "f": checks.maybe(_PROBABILITY),
        "u": checks.maybe(_PROBABILITY),
        "outcome": checks.one_of(*OUTCOMES),
    }
    few = MAX_NODES + 1  # tokens a round can emit: a draft of one branch, and one more
    head = checks.list_of(checks.list_of(checks.real(0.0, MOST_CODES), 2, 2), 0, MOST_CODES)
    old = {
        "index": checks.integer(0, cells),
        "start": checks.integer(0, cells),
        "tokens": checks.list_of(_CODE, 1, few),
        "kinds": checks.list_of(checks.one_of(*KINDS), 1, few),
        "relaxed": checks.list_of(checks.flag, 1, few),
        "drafted": checks.integer(0, MAX_NODES),
        "accept_prob": checks.list_of(_PROBABILITY, 0, few),
        "cost": checks.list_of(checks.real(0.0, MAX_NODES), 0, few),
        "draft_calls": checks.integer(0, 10_000),
        **{f"{part}_seconds": _SECONDS for part in ("draft", "target", "verify", "other")},
    }
    late = {"top": checks.maybe(checks.list_of(checks.record({"p": head}, {"q": head}), 0, few))}
    late["ranks"] = checks.list_of(checks.integer(0, MAX_NODES), 0, few)
    new = {
        "drafts": checks.maybe(checks.record({name: checks.list_of(check, 1, MAX_NODES) for name, check in nodes.items()})),
        "last": checks.maybe(checks.record({"p": _PROBABILITY, "u": _PROBABILITY, "law": _PROBABILITY})),
        "log_p": checks.maybe(checks.list_of(checks.maybe(checks.real(-1e4, LOOSE)), 1, few)),
        "entropy": checks.maybe(checks.list_of(checks.real(-LOOSE, 100.0), 1, few)),
    }
    return checks.record(old, late) if schema == 1 else checks.record(old | new, late)


def _round(values: dict[str, Any], where: str) -> Round:
    """A round from its checked fields, which must also go together."""
    drafts, last = values.get("drafts"), values.get("last")
    values |= {"drafts": Drafts(**drafts) if drafts else None, "last": Last(**last) if last else None}
    event = Round(**values)
    emitted = [event.kinds, event.relaxed, *(row for row in (event.log_p, event.entropy) if row is not None)]
    rules = {
        "kinds, relaxed, log_p and entropy have an entry a token": all(len(row) == len(event.tokens) for row in emitted),
        "all tokens but the last are accepted": set(event.kinds[:-1]) <= {"accepted"} and event.kinds[-1] != "accepted",
        "accept_prob and cost have an entry an examined position": event.accepted
        <= len(event.accept_prob)
        == len(event.cost)
        <= event.drafted,
        "drafts hold what was drafted": event.drafts is None or _go_together(event.drafts, event),
    }
    if broken := [rule for rule, holds in rules.items() if not holds]:
        raise checks.refuse(where, f"breaks a rule of runs: {broken[0]}")
    return event


def _go_together(drafts: Drafts, event: Round) -> bool:
    """Equally long lists, parents before their children, as many accepted as the round says, f and u where a token was examined."""
    columns = [getattr(drafts, f.name) for f in fields(Drafts)]
    return (
        len({len(column) for column in columns}) == 1
        and all(parent < i for i, parent in enumerate(drafts.parents))
        and sum(outcome in OUTCOMES[:2] for outcome in drafts.outcome) == event.accepted
        and all(
            (f is None) == (u is None) == (outcome == "unexamined")
            for f, u, outcome in zip(drafts.f, drafts.u, drafts.outcome, strict=True)
        )
    )
