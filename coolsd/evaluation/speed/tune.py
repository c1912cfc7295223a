"""The fastest draft shape for a pair on this machine: chains, the published trees, and trees grown from what is measured here.

A tree is grown node by node: the next node is the one most likely to be on the accepted path. How likely that is follows from the
acceptance of each (depth, sibling rank), measured on a wide tree; how many nodes pay follows from the milliseconds of a target pass over
so many tokens and of a drafter pass. What is fastest is then measured, not predicted.
"""

import heapq
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ... import METHODS, generate
from ...methods import shape
from ...protocols import Pair
from ...settings import Settings, validate
from ...trace import Round, Stats
from ...trees import MAX_NODES, chain, children, depths
from . import bench
from .bench import Variant

CHAINS = range(2, 9)
PUBLISHED = ("mc_sim_7b_63", "naive_extend_57")
PROBE = "naive_extend_57"  # has several siblings at every level
PROBES = 2  # pictures an acceptance table is measured on
SIZES = (1, 2, 4, 8, 16, 32, 64)
REPEATS = 9  # passes of each size

Acceptance = dict[tuple[int, int], float]  # (depth from 1, sibling rank from 0): probability that this child is the one accepted
Paths = list[list[int]]  # a tree in EAGLE's notation


# ---- growing a tree


def acceptance(rounds: Sequence[Round], parents: tuple[int, ...]) -> Acceptance:
    """How often the child of a rank was accepted, of the nodes of its depth that were examined and have such a child.

    Args:
        rounds: of runs that drafted this tree; those that drafted a part of it, at the end of a picture, are left out.
    """
    below, deepest = children(parents), max(depths(parents))
    examined: Counter[tuple[int, int]] = Counter()
    accepted: Counter[tuple[int, int]] = Counter()
    for event in rounds:
        if event.drafted != deepest:
            continue
        row = 0
        for depth in range(1, deepest + 1):
            examined.update((depth, rank) for rank in range(len(below[row])))
            if depth > len(event.ranks):
                break
            rank = event.ranks[depth - 1]
            accepted[depth, rank] += 1
            row = below[row][rank] + 1
    return {place: accepted[place] / count for place, count in sorted(examined.items())}


def grow(rates: Acceptance, count: int) -> tuple[Paths, float]:
    """The tree of at most `count` nodes that are likeliest on the accepted path, and the number of drafts accepted that it promises.

    Greedy growth is best as far as acceptance depends on depth and rank alone (derived: a node never is likelier than its parent).
    """
    paths: Paths = []
    promise = 0.0
    heap = [(-rates.get((1, 0), 0.0), (0,), 1.0)]  # probability, path, probability of its parent
    while heap and len(paths) < count:
        negative, path, above = heapq.heappop(heap)
        if negative == 0.0:
            break
        paths.append(list(path))
        promise -= negative
        *head, rank = path
        for rate, follower, base in (
            (rates.get((len(path), rank + 1), 0.0), (*head, rank + 1), above),
            (rates.get((len(path) + 1, 0), 0.0), (*path, 0), -negative),
        ):
            heapq.heappush(heap, (-base * rate, follower, base))
    return paths, promise


@dataclass(frozen=True)
class Costs:
    """Measured milliseconds: of a target pass by its number of tokens, and of a drafter pass."""

    target: dict[int, float]
    draft: float

    def round(self, nodes: int, depth: int) -> float:
        """Milliseconds of a round with `nodes` nodes on `depth` levels; target passes between the measured sizes by interpolation."""
        sizes = sorted(self.target)
        high = next((size for size in sizes if size > nodes), sizes[-1])
        low = max((size for size in sizes if size <= nodes + 1), default=sizes[0])
        share = (nodes + 1 - low) / (high - low) if high > low else 0.0
        return self.target[low] + min(share, 1.0) * (self.target[high] - self.target[low]) + depth * self.draft


def own_shapes(rates: Acceptance, costs: Costs) -> list[Paths]:
    """The grown tree that promises most tokens a millisecond, and those of half and of twice its nodes."""

    def pace(count: int) -> float:
        paths, promise = grow(rates, count)
        return (1 + promise) / costs.round(len(paths), max(map(len, paths))) if paths else 0.0

    best = max(range(1, MAX_NODES + 1), key=pace)
    shapes = [grow(rates, count)[0] for count in (max(1, best // 2), best, min(MAX_NODES, 2 * best))]
    return [paths for i, paths in enumerate(shapes) if paths and paths not in shapes[:i]]


# ---- measuring


def pass_ms(pair: Pair, prompt: str, cfg_scale: float, sizes: Sequence[int] = SIZES) -> dict[int, float]:
    """Median milliseconds of a target pass by its number of tokens, behind the prompt; the sizes are interleaved."""
    milliseconds: dict[int, list[float]] = {size: [] for size in sizes}
    with torch.inference_mode():
        target, _ = pair.begin(cfg_scale)
        target.prefill(prompt)
        for repeat in range(REPEATS + 1):
            for size in sizes:
                began = perf_counter()
                target.extend(torch.zeros(size, dtype=torch.long), chain(size)).logits.argmax(-1).tolist()
                if repeat:  # the first is warm-up
                    milliseconds[size].append(1000 * (perf_counter() - began))
    return {size: median(times) for size, times in milliseconds.items()}


def _variant(label: str, method: str, **settings: Any) -> Variant:
    return Variant(label, method, tuple(settings.items()))


def candidates(method: str, own: Sequence[Paths]) -> list[Variant]:
    """Variants to be timed for one method."""
    title = METHODS[method].title
    variants = [_variant(f"{title} chain {length}", method, tree="chain", draft_length=length) for length in CHAINS]
    variants += [_variant(f"{title} {name}", method, tree=name) for name in PUBLISHED]
    return variants + [_variant(f"{title} grown, {len(paths)} nodes", method, tree=json.dumps(paths, allow_nan=False)) for paths in own]


@dataclass(frozen=True)
class TuneResult:
    """What was found for one method."""

    method: str
    acceptance: Acceptance
    costs: Costs
    rows: list[bench.Timing]
    settings: list[dict[str, Any]]  # of each row

    def best(self, chains: bool | None = None) -> int:
        """Index of the fastest row: of all, of the chains (True) or of the trees (False)."""
        candidates = [i for i, s in enumerate(self.settings) if chains is None or chains == (s["tree"] == "chain")]
        return min(candidates, key=lambda i: self.rows[i].seconds)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        places = [[*place, rate] for place, rate in self.acceptance.items()]
        names = {"chain": True, "tree": False, "all": None}
        best = {name: {"label": self.rows[i].label, **self.settings[i]} for name, i in ((n, self.best(c)) for n, c in names.items())}
        return {"best": best, "acceptance": places, "pass_ms": self.costs.target, "draft_ms": self.costs.draft}


def _probe(pair: Pair, method: str, prompts: Sequence[str], common: dict[str, Any]) -> tuple[Acceptance, float]:
    """Acceptance and milliseconds of a drafter pass."""
    runs = [generate(pair, prompt, method, **common | {"tree": PROBE, "seed": 1000 + i}) for i, prompt in enumerate(prompts[:PROBES])]
    rates = acceptance([event for run in runs for event in run.rounds], shape(runs[0].settings))
    calls = sum(run.stats.draft_calls for run in runs)
    return rates, 1000 * sum(run.stats.draft_seconds for run in runs) / max(calls, 1)


def tune(
    pair: Pair, methods: Sequence[str], prompts: Sequence[str], seeds: int, common: dict[str, Any]
) -> Iterator[tuple[str, Stats | TuneResult]]:
    """(label, statistics) of every timed run, then (method, Tuned) for each method; plain AR is timed with them."""
    scale = common.get("cfg_scale", Settings.cfg_scale)
    target = pass_ms(pair, prompts[0], scale)
    measurements = {}
    for method in methods:
        rates, draft = _probe(pair, method, prompts, common)
        measurements[method] = (rates, Costs(target, draft))
    variants = {method: candidates(method, own_shapes(*measurements[method])) for method in methods}
    every = [bench.Variant("Plain AR", "ar"), *(variant for own in variants.values() for variant in own)]
    results: dict[Variant, list[Stats]] = {}
    for variant, stats in bench.turns(pair, every, prompts, seeds, common):
        results.setdefault(variant, []).append(stats)
        yield variant.label, stats
    rows = dict(zip(results, bench.summarise(results), strict=True))
    for method, own in variants.items():
        yield (
            method,
            TuneResult(method, *measurements[method], [rows[variant] for variant in own], [dict(variant.settings) for variant in own]),
        )


def check(methods: Sequence[str], common: dict[str, Any]) -> None:
    """Refuse what cannot be tuned, before a model is loaded.

    Raises:
        ValueError: a method that drafts no trees. SettingsError: settings that cannot be run.
    """
    for method in methods:
        if "tree" not in METHODS[method].uses:
            able = ", ".join(name for name, m in METHODS.items() if "tree" in m.uses)
            raise ValueError(f"{method} has no trees to choose among. Tune some of: {able}.")
        validate(METHODS, **common | {"prompt": "x", "method": method})


def summary(tuned: TuneResult) -> str:
    """The table of a method and its fastest chain, tree, and shape of all, in words."""
    lines = [bench.table(tuned.rows)]
    for name, chains in (("chain", True), ("tree", False), ("of all", None)):
        i = tuned.best(chains)
        row, settings = tuned.rows[i], tuned.settings[i]
        option = f"--draft-length {settings['draft_length']}" if settings["tree"] == "chain" else f"--tree '{settings['tree']}'"
        ratio = "" if row.speedup is None else f", {row.speedup:.2f}× AR"
        lines.append(f"{METHODS[tuned.method].title}, fastest {name}: {row.label} ({row.seconds:.2f} s{ratio}): {option}")
    return "\n".join(lines)
