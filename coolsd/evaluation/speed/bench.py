"""How fast each method is here: variants are interleaved over prompts and seeds after a warm-up, so that drift affects all alike.

Seconds hold drafting, target passes, verification and bookkeeping; pixel decoding is outside. Ratios are taken within one turn.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ... import METHODS, generate
from ...protocols import Pair
from ...trace import Stats

PROMPTS = ("a pink rose on a dark background", "misty forest", "sunset over the sea", "a yellow sunflower")
PARTS = ("draft", "target", "verify", "other")


@dataclass(frozen=True)
class Variant:
    """A method with the settings that set it apart."""

    label: str
    method: str
    settings: tuple[tuple[str, Any], ...] = ()


# Methods that are compared with other settings than their defaults; every other method once, as it is.
CHOSEN = {
    "eagle1": (
        Variant("Eagle-1", "eagle1"),
        Variant("Eagle-1 tree of 25", "eagle1", (("tree", "mc_sim_7b_63"),)),
        Variant("Eagle-1 dynamic tree", "eagle1", (("tree", "dynamic"),)),
    ),
    "coolsd": (
        Variant("COOL-SD δ=1.1", "coolsd", (("delta", 1.1),)),
        Variant("COOL-SD δ=1.1 clamped", "coolsd", (("delta", 1.1), ("clamp", True))),
        Variant("COOL-SD δ=2", "coolsd", (("delta", 2.0),)),
        Variant("COOL-SD δ=2 clamped", "coolsd", (("delta", 2.0), ("clamp", True))),
        Variant("COOL-SD δ=1.1 tree of 25", "coolsd", (("delta", 1.1), ("tree", "mc_sim_7b_63"))),
    ),
    "uniform": (Variant("UniformRSD δ=1.1", "uniform", (("delta", 1.1),)),),
    "coolsd-block": (Variant("COOL-SD block δ=1.1", "coolsd-block", (("delta", 1.1),)),),
}

# A chain and a tree of as many tokens: what the tree's mask, paths and siblings cost.
BUSH = "[[0],[1],[2],[3],[0,0],[0,1],[0,2],[1,0],[1,1],[2,0],[0,0,0],[0,0,1],[0,1,0],[1,0,0],[0,0,0,0],[0,0,0,0,0]]"
TREE_COST = (Variant("Chain of 16", "eagle1", (("draft_length", 16),)), Variant("Tree of 16 nodes", "eagle1", (("tree", BUSH),)))


def variants_of(methods: Iterable[str], windows: Sequence[int] = ()) -> list[Variant]:
    """What `bench` compares of these methods: their CHOSEN variants, or each as it is; a Jacobi method once for each of `windows`."""

    def of(name: str) -> tuple[Variant, ...]:
        title = METHODS[name].title
        if METHODS[name].jacobi and windows:
            return tuple(Variant(f"{title}, W={window}", name, (("window", window),)) for window in windows)
        return CHOSEN.get(name, (Variant(title, name),))

    return [variant for name in methods for variant in of(name)]


@dataclass(frozen=True)
class Timing:
    """One variant's figures: medians over the turns, with the lowest and highest of the seconds."""

    label: str
    seconds: float
    fastest: float
    slowest: float
    target_calls: float
    accept_length: float
    speedup: float | None  # median over turns of AR's seconds ÷ this variant's
    call_speedup: float | None  # the same in target calls
    bias_per_token: float
    round_ms: dict[str, float]  # draft, target, verify, other: mean milliseconds of a round
    target_pass_ms: float
    draft_call_ms: float | None


def row(variant: Variant, stats: Sequence[Stats], baseline: Sequence[Stats] | None) -> Timing:
    """Summarise the turns of a variant; `baseline`: AR's of the same turns."""
    seconds = [s.seconds for s in stats]
    rounds = sum(s.target_calls for s in stats)
    drafts = sum(s.draft_calls for s in stats)
    totals = {part: sum(getattr(s, f"{part}_seconds") for s in stats) for part in PARTS}
    pairs = list(zip(baseline or (), stats, strict=bool(baseline)))
    return Timing(
        label=variant.label,
        seconds=median(seconds),
        fastest=min(seconds),
        slowest=max(seconds),
        target_calls=median(s.target_calls for s in stats),
        accept_length=sum(s.tokens for s in stats) / rounds,
        speedup=median(a.seconds / s.seconds for a, s in pairs) if pairs else None,
        call_speedup=median(a.target_calls / s.target_calls for a, s in pairs) if pairs else None,
        bias_per_token=sum(s.bias_spent for s in stats) / sum(s.tokens for s in stats),
        round_ms={part: 1000 * total / rounds for part, total in totals.items()},
        target_pass_ms=1000 * totals["target"] / rounds,
        draft_call_ms=1000 * totals["draft"] / drafts if drafts else None,
    )


def tree_cost(chain: Sequence[Stats], tree: Sequence[Stats]) -> dict[str, float]:
    """A round of the tree ÷ a round of the chain, medians over turns: whole, and without drafting, which takes a tree fewer passes."""

    def ratio(parts: Sequence[str]) -> float:
        rounds = [
            [sum(getattr(s, f"{part}_seconds") for part in parts) / s.target_calls for s in pair] for pair in zip(chain, tree, strict=True)
        ]
        return median(b / a for a, b in rounds)

    return {"round": ratio(PARTS), "without drafting": ratio(PARTS[1:])}


def turns(
    pair: Pair, variants: Sequence[Variant], prompts: Sequence[str], seeds: int, common: dict[str, Any]
) -> Iterator[tuple[Variant, Stats]]:
    """(variant, statistics) of every run, interleaved; a short run of each variant goes first, uncounted."""
    for variant in variants:
        generate(pair, prompts[0], variant.method, **common | dict(variant.settings) | {"max_tokens": 32})
    for seed in range(seeds):
        for prompt in prompts:
            for variant in variants:
                yield variant, generate(pair, prompt, variant.method, **common | dict(variant.settings) | {"seed": seed}).stats


def summarise(results: dict[Variant, list[Stats]]) -> list[Timing]:
    """One timing a variant; × against plain AR where it is among them."""
    baseline = next((stats for variant, stats in results.items() if variant.method == "ar"), None)
    return [row(variant, stats, baseline) for variant, stats in results.items()]


def table(rows: Sequence[Timing]) -> str:
    """The timings as plain text."""
    wide = max(24, *(len(r.label) + 1 for r in rows))
    head = f"{'method':{wide}}{'seconds (min-max)':>22}{'× AR':>7}{'calls':>7}{'× calls':>9}{'τ':>6}{'bias/tok':>10}"
    head += "   ms a round: draft target verify other"
    lines = [head]
    for r in rows:
        spread = f"{r.seconds:.2f} ({r.fastest:.2f}-{r.slowest:.2f})"
        ratios = ["" if x is None else f"{x:.2f}" for x in (r.speedup, r.call_speedup)]
        parts = " ".join(f"{r.round_ms[part]:7.2f}" for part in PARTS)
        counts = f"{r.target_calls:>7.0f}{ratios[1]:>9}{r.accept_length:>6.2f}{r.bias_per_token:>10.4f}"
        lines.append(f"{r.label:{wide}}{spread:>22}{ratios[0]:>7}{counts}   {parts}")
    return "\n".join(lines)


def report(pair: Pair, rows: Sequence[Timing], settings: dict[str, Any]) -> dict[str, Any]:
    """JSON values: the timings, the settings they were measured with and the machine's choices."""
    return {"target": pair.name, "environment": dict(pair.environment), "settings": settings, "rows": [asdict(r) for r in rows]}
