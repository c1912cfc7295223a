"""A run in words and columns: a summary, a line a round, one round in full, and the rounds as CSV. Plain text; knows nothing of models."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from ..methods import METHODS
from ..trace import Drafts, Round, Run

MARKS = {"accepted": "✓", "relaxed": "~", "rejected": "✗", "unexamined": "·"}
LETTERS = {"recovered": "R", "bonus": "B", "sampled": "S"}
KEY = "✓ accepted   ~ accepted only because relaxed   ✗ rejected   · not examined   R recovered   B bonus   S sampled"
WIDEST = 16  # nodes of a round that its line lists
LAPS = ("draft", "target", "verify", "other")
EVENT = ("lane", "index", "start", "tokens", "kinds", "relaxed", "drafted", "accepted", "accept_prob", "cost", "draft_calls")
COLUMNS = (*EVENT, *(f"{lap}_seconds" for lap in LAPS), "clock")


def title(run: Run) -> str:
    """The method, with δ where it has one."""
    method = METHODS[run.settings.method]
    return f"{method.title}, δ = {run.settings.delta:g}" if "delta" in method.uses else method.title


def counts(run: Run) -> dict[str, int]:
    """How many tokens came by which way, those accepted only because relaxed apart."""
    names = ("accepted", "relaxed", "recovered", "bonus", "sampled")
    ways = ["relaxed" if kind == "accepted" and only else kind for r in run.rounds for kind, only in zip(r.kinds, r.relaxed, strict=True)]
    return {name: ways.count(name) for name in names}


def figures(run: Run) -> dict[str, str]:
    """The numbers of a run, in words, by what they are called."""
    s = run.stats
    parts = ", ".join(f"{part} {getattr(s, f'{part}_seconds'):.2f}" for part in LAPS)
    meaning = "exactly the target's distribution" if METHODS[run.settings.method].lossless else f"{s.bias_per_token:.4f} a token"
    return {
        "tokens": f"{s.tokens} of {run.grid[0] * run.grid[1]}",
        "target calls": f"{s.target_calls}, {s.accept_length:.2f} tokens a call",
        "draft calls": str(s.draft_calls),
        "seconds": f"{s.seconds:.2f} ({parts})",
        "bias": meaning,
    }


def summary(run: Run) -> Iterator[str]:
    """Lines: what was asked, what it took, and the figures by draft position."""
    environment = ", ".join(str(run.environment[name]) for name in ("device", "dtype") if name in run.environment)
    yield f"“{run.settings.prompt}”, {title(run)}, seed {run.settings.seed}"
    yield f"{run.target}{', recorded on ' if environment else ''}{environment}; {run.grid[0]} × {run.grid[1]} tokens"
    for name, value in figures(run).items():
        yield f"  {name:14}{value}"
    yield f"  {'tokens by way':14}{', '.join(f'{count} {name}' for name, count in counts(run).items() if count)}"
    s = run.stats
    if s.offered:
        yield ""
        yield "  position      ω  offered  examined   mean f  accepted share"
        for i, (offered, examined, f, share) in enumerate(zip(s.offered, s.examined, s.accept_prob, s.accepted_share, strict=True)):
            omega = f"{run.omega[i]:.3g}" if i < len(run.omega) else "–"
            yield f"  {i + 1:8}{omega:>7}{offered:9}{examined:10}{_number(f):>9}{_number(share):>16}"


def rounds(run: Run) -> Iterator[str]:
    """A header, then a line a round: the cells it filled, what became of its drafts, and its own clock."""
    yield f"{'round':>5} {'cells':>9} {'f':>6} {'ms':>8} {'clock s':>8}  tokens"
    for event, clock in zip(run.rounds, accumulate(r.seconds for r in run.rounds), strict=True):
        last = event.start + len(event.tokens) - 1
        cells = f"{event.start}–{last}" if last > event.start else str(last)
        f = event.accept_prob[0] if event.accept_prob else None
        yield f"{event.index:5} {cells:>9} {_number(f):>6} {1000 * event.seconds:8.1f} {clock:8.3f}  {_tokens(event)}"


def one_round(run: Run, index: int) -> Iterator[str]:
    """Everything that is known of a round, a line a drafted token.

    Raises:
        ValueError: there is no such round.
    """
    if not 0 <= index < len(run.rounds):
        raise ValueError(f"There is no round {index}. Give a number from 0 to {len(run.rounds) - 1}.")
    event = run.rounds[index]
    cells = f"cells {event.start} to {event.start + len(event.tokens) - 1}"
    yield f"round {index}: {cells}, {event.drafted} positions drafted in {event.draft_calls} calls"
    yield f"{1000 * event.seconds:.1f} ms: " + ", ".join(f"{part} {1000 * getattr(event, f'{part}_seconds'):.1f}" for part in LAPS)
    if event.drafts:
        yield from _nodes(event.drafts, run.omega)
    elif event.drafted:
        yield "This run is of schema 1, which keeps no drafted tokens."
    kind, last = event.kinds[-1], event.last
    detail = f": p {_number(last.p)}, u {_number(last.u)}, probability where it was drawn {_number(last.law)}" if last else ""
    yield f"{LETTERS[kind]} {event.tokens[-1]} {kind}{detail}"
    for i, (log_p, entropy) in enumerate(zip(event.log_p or (), event.entropy or (), strict=True)):
        yield f"  cell {event.start + i}: log p {_number(log_p)}, entropy {_number(entropy)} nats"
    for i, heads in enumerate(event.top or ()):
        for name, head in heads.items():
            yield f"  likeliest of {name} at cell {event.start + i}: " + ", ".join(f"{code} {_number(mass)}" for code, mass in head[:6])


def _nodes(drafts: Drafts, omega: tuple[float, ...]) -> Iterator[str]:
    yield f"  {'node':>4} {'after':>5} {'pos':>3} {'code':>6} {'p':>9} {'q':>9} {'ω':>6} {'f':>7} {'u':>7}  outcome"
    depths: list[int] = []
    for node, (token, parent) in enumerate(zip(drafts.tokens, drafts.parents, strict=True)):
        depths.append(1 if parent < 0 else depths[parent] + 1)
        row = f"{omega[depths[-1] - 1]:6.3g}" if depths[-1] <= len(omega) else f"{'–':>6}"
        after = "–" if parent < 0 else str(parent)
        p, q, f, u = (_number(getattr(drafts, name)[node]) for name in "pqfu")
        outcome = drafts.outcome[node]
        yield f"  {node:4} {after:>5} {depths[-1]:3} {token:6} {p:>9} {q:>9} {row} {f:>7} {u:>7}  {MARKS[outcome]} {outcome}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _tokens(event: Round) -> str:
    ways = [MARKS["relaxed"] if only else MARKS["accepted"] for only in event.relaxed[:-1]]
    words = [f"{mark}{token}" for mark, token in zip(ways, event.tokens, strict=False)]
    if event.drafts:
        listed = event.drafts.outcome[:WIDEST]
        words = [f"{MARKS[outcome]}{token}" for outcome, token in zip(listed, event.drafts.tokens, strict=False)]
        words += [f"… {len(event.drafts.tokens) - WIDEST} more"] if len(event.drafts.tokens) > WIDEST else []
    return " ".join([*words, f"{LETTERS[event.kinds[-1]]}{event.tokens[-1]}"])


def to_csv(lanes: Mapping[str, Run]) -> str:
    """The rounds of all lanes as CSV, a line a round; lists are joined by spaces; clock: seconds since the lane began."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for lane, run in lanes.items():
        for event, clock in zip(run.rounds, accumulate(r.seconds for r in run.rounds), strict=True):
            seconds = [f"{getattr(event, f'{part}_seconds'):.6f}" for part in LAPS]
            joined = [_join(event.tokens), _join(event.kinds), _join(int(only) for only in event.relaxed)]
            shares = [_join(f"{f:.6g}" for f in event.accept_prob), _join(f"{cost:.6g}" for cost in event.cost)]
            first = [lane, event.index, event.start, *joined, event.drafted, event.accepted, *shares, event.draft_calls]
            writer.writerow([*first, *seconds, f"{clock:.6f}"])
    return out.getvalue()


def _join(values: Iterable[object]) -> str:
    return " ".join(map(str, values))
