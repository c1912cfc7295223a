"""The named methods: what is drafted, how it is verified, and what it is called.

Knows of models only what protocols.py says. A method is data; a new one is one entry of METHODS.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from . import schedules, trees
from .protocols import Draft, Pair
from .settings import SETTINGS, Settings, numbers
from .traversal import verify_traversal
from .tree_verification import verify_tree
from .trees import Dynamic, Shape, chain, depth
from .verification import Diverse, Lantern, Relaxed, RelaxedGuesses, Rule, Verdict, verify, verify_block

Schedule = Callable[[Settings, int], Tensor]  # ω of so many draft positions; empty where the rule has none
Verify = Callable[[Tensor, Draft, Generator], Verdict]  # p (L+1, V), the draft and the q rows it was drawn from

Form = Literal["lossless", "annealed", "uniform", "fitted", "window"] | None

FRONTIERS = Path(__file__).resolve().parents[1] / "assets" / "meadow" / "fitted.json"

BLOCK = 1024  # codes whose distances are held at once
NEIGHBOURS = int(SETTINGS["neighbours"].limits[1]) + 1  # LANTERN's own residual looks at one more than can be borrowed from


@dataclass(frozen=True)
class Method:
    """One way to decode. `schedule` is ω per draft position; None for plain AR, which drafts nothing."""

    name: str
    title: str
    about: str
    source: str  # paper, or "derived"
    lossless: bool
    schedule: Schedule | None
    verifier: Callable[[Settings, Pair], Verify]  # once a run
    form: Form = None  # of ω over draft positions, for whoever draws it; None: the rule has no ω
    uses: tuple[str, ...] = ()  # settings it uses besides the common ones
    tree: str = "chain"  # the draft's shape where the setting is "auto", or not used

    @property
    def jacobi(self) -> bool:
        """Whether the target drafts for itself (see jacobi.py), so that no drafter is needed."""
        return "window" in self.uses

    @property
    def token_rule(self) -> bool:
        """Whether ω alone decides, token by token: then what it would do on recorded drafts can be predicted (see ui/assets/what_if.js)."""
        return self.form is not None and self.verifier is _relaxed


# ---- draft shapes


def shape(settings: Settings) -> Shape:
    """Shape of the drafts of a run; without meaning for plain AR."""
    method = METHODS[settings.method]
    if method.jacobi:
        return chain(settings.window - 1)
    tree = settings.tree if "tree" in method.uses and settings.tree != "auto" else method.tree
    if tree == "chain":
        return chain(settings.draft_length)
    if tree == "dynamic":
        return Dynamic()
    return trees.shape(json.loads(tree) if tree.startswith("[") else tree)


# ---- schedules


def _lossless(_: Settings, length: int) -> Tensor:
    return schedules.lossless(length)


def _annealed(s: Settings, length: int) -> Tensor:
    if by_hand := numbers(s.omega):
        return _padded(torch.tensor(by_hand[:length]), length)
    return schedules.annealed(length, s.delta, s.nu, s.mu, s.clamp)


def _uniform(s: Settings, length: int) -> Tensor:
    return schedules.uniform(length, s.delta)


@lru_cache(maxsize=1)
def frontiers() -> dict[int, list[tuple[float, list[float]]]]:
    """By draft length: (bias a token, ω) of the schedules that `eval schedules` fitted on meadow, bias rising from 0."""
    stored = json.loads(FRONTIERS.read_text(encoding="utf-8"))["lengths"]
    return {int(length): [(bias, omega) for bias, omega in points] for length, points in stored.items()}


def _fitted(s: Settings, length: int) -> Tensor:
    """The fastest schedule within the bias budget. Positions behind those that were fitted are lossless."""
    stored = frontiers()
    return _padded(schedules.between(stored[min(length, max(stored))], s.bias), length)


def _padded(row: Tensor, length: int) -> Tensor:
    return F.pad(row, (0, length - len(row)), value=1.0)


def _window(s: Settings, length: int) -> Tensor:
    """Annealed and clamped over the first `draft_length` guesses, lossless behind (derived): a mean over a whole window would let ω_1 grow
    with it."""
    row = schedules.lossless(length)
    first = min(length, s.draft_length)
    row[:first] = schedules.annealed(first, s.delta, s.nu, s.mu, clamp=True)
    return row


def _none(*_: Settings | int) -> Tensor:
    return torch.empty(0)


def _salvages(settings: Settings) -> bool:
    drafted = shape(settings)
    return settings.siblings == "salvage" and drafted != chain(depth(drafted))


def omega(settings: Settings) -> Tensor:
    """The ω row a run with these settings uses, one entry a draft position, float32; empty where the method has none.

    Salvage verifies a tree's node losslessly before it relaxes, so that there an ω below 1 acts as 1 and is given so.
    """
    schedule = METHODS[settings.method].schedule
    if schedule is None:
        return torch.empty(0)
    row = schedule(settings, depth(shape(settings)))
    return row.clamp(min=1.0) if _salvages(settings) else row


# ---- verification


def _by(rule: Rule, salvage: bool = False) -> Verify:
    """A chain token by token, a tree node by node."""

    def run(p: Tensor, draft: Draft, generator: Generator) -> Verdict:
        if draft.parents == chain(len(draft.parents)):
            return verify(p, draft.q, draft.tokens, rule, generator)
        return verify_tree(p, draft.q, draft.tokens, draft.parents, rule, generator, salvage)

    return run


def metered(settings: Settings) -> str:
    """How the bias that a run meters stands to what its steps really spend: "at least ", "at most ", or "" where they are equal on average.

    LANTERN's own residual spends more than G*, which is what is metered; relaxing every sibling of a tree is metered sibling by sibling.
    """
    if settings.method in ("lantern", "lantern++"):
        return "at least "
    tree = shape(settings) != chain(depth(shape(settings))) and METHODS[settings.method].schedule is not None
    return "at most " if tree and not METHODS[settings.method].lossless and not _salvages(settings) else ""


def _relaxed(settings: Settings, pair: Pair) -> Verify:
    return _by(Relaxed(omega(settings).to(pair.codebook.device)), _salvages(settings))


def _guesses(settings: Settings, pair: Pair) -> Verify:
    return _by(RelaxedGuesses(omega(settings).to(pair.codebook.device)))


def _block(settings: Settings, _: Pair) -> Verify:
    schedule = omega(settings)
    return lambda p, draft, generator: verify_block(p, draft.q, draft.tokens, schedule[: len(draft.tokens)], generator)


def _traversal(*_: Settings | Pair) -> Verify:
    return lambda p, draft, generator: verify_traversal(p, draft.q, draft.tokens, draft.parents, generator)


def _diverse(settings: Settings, _: Pair) -> Verify:
    return _by(Diverse(settings.weight))


@lru_cache(maxsize=4)
def neighbours(codebook: Tensor, normalised: bool = False) -> Tensor:
    """Codes by the distance of their vectors (LANTERN, arXiv 2410.03355). Computed once a codebook.

    Args:
        codebook: (V, channels) code vectors.
        normalised: distances between vectors of length 1, as the picture decoder sees them; LANTERN takes the raw ones.

    Returns:
        (V, min(V - 1, 1001)) int64, nearest first, a code not among its own.
    """
    vectors = F.normalize(codebook.float(), dim=-1) if normalised else codebook.float()
    nearest = []
    for start in range(0, len(vectors), BLOCK):
        distance = torch.cdist(vectors[start : start + BLOCK], vectors, compute_mode="donot_use_mm_for_euclid_dist")
        distance.diagonal(start).fill_(torch.inf)
        nearest.append(distance.topk(min(NEIGHBOURS, len(vectors) - 1), largest=False).indices)
    return torch.cat(nearest)


def _lantern(budget: str, count: int, optimal: bool = False) -> Callable[[Settings, Pair], Verify]:
    """LANTERN's rule with the budget from this setting, and so many neighbours where the setting is None."""

    def verifier(settings: Settings, pair: Pair) -> Verify:
        table = neighbours(pair.codebook, settings.distance == "normalised")
        k = min(settings.neighbours or count, table.shape[1])
        return _by(Lantern(table, k, getattr(settings, budget), optimal, ranked=isinstance(shape(settings), Dynamic)))

    return verifier


# ---- the methods

PAPER = "COOL-SD (arXiv 2601.09212)"
ANNEALING = ("delta", "nu", "mu", "clamp", "omega")
TREE = ("tree", "siblings")
JACOBI = ("window", "pads")
NEAREST = ("tree", "neighbours", "distance")

METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method(
            name="ar",
            title="Plain AR",
            about="One target call a token.",
            source="baseline",
            lossless=True,
            schedule=None,
            verifier=_relaxed,
        ),
        Method(
            name="eagle1",
            title="Eagle-1",
            about="Drafts a chain or a tree from the target's features and verifies it exactly.",
            source="EAGLE (arXiv 2401.15077)",
            lossless=True,
            schedule=_lossless,
            verifier=_relaxed,
            form="lossless",
            uses=("tree",),
        ),
        Method(
            name="coolsd",
            title="COOL-SD",
            about="Accepts more than exact early in the draft, less late.",
            source=PAPER,
            lossless=False,
            schedule=_annealed,
            verifier=_relaxed,
            form="annealed",
            uses=ANNEALING + TREE,
        ),
        Method(
            name="uniform",
            title="UniformRSD",
            about="The same relaxation at every draft position.",
            source=PAPER,
            lossless=False,
            schedule=_uniform,
            verifier=_relaxed,
            form="uniform",
            uses=("delta", *TREE),
        ),
        Method(
            name="coolsd-fitted",
            title="COOL-SD, fitted",
            about="A bias a token is named; ω is the fastest schedule within it, as fitted on meadow's recorded rows (ours).",
            source="derived",
            lossless=False,
            schedule=_fitted,
            verifier=_relaxed,
            form="fitted",
            uses=("bias",),
        ),
        Method(
            name="block",
            title="Block verification",
            about="Verifies the chain as a whole: exact, and never accepts fewer.",
            source="block verification (arXiv 2403.10444)",
            lossless=True,
            schedule=_lossless,
            verifier=_block,
            form="lossless",
        ),
        Method(
            name="coolsd-block",
            title="COOL-SD, block",
            about="Annealed relaxation of block verification.",
            source="derived",
            lossless=False,
            schedule=_annealed,
            verifier=_block,
            form="annealed",
            uses=ANNEALING,
        ),
        Method(
            name="traversal",
            title="Traversal verification",
            about="Verifies a tree from its leaves to its root: exact, and on average never accepts fewer than sibling by sibling.",
            source="traversal verification (arXiv 2505.12398)",
            lossless=True,
            schedule=_lossless,
            verifier=_traversal,
            form="lossless",
            uses=("tree",),
            tree="mc_sim_7b_63",
        ),
        Method(
            name="diverse",
            title="Diverse",
            about="Draws from a mixture of target and drafter.",
            source="DIVERSED (arXiv 2604.07622)",
            lossless=False,
            schedule=_none,
            verifier=_diverse,
            uses=("weight",),
        ),
        Method(
            name="lantern",
            title="LANTERN",
            about="A code may borrow the probability of its nearest codes, up to a budget.",
            source="LANTERN (arXiv 2410.03355)",
            lossless=False,
            schedule=_none,
            verifier=_lantern("budget", 1000),
            uses=(*NEAREST, "budget"),
            tree="dynamic",
        ),
        Method(
            name="lantern++",
            title="LANTERN++",
            about="As LANTERN on a static tree; what is borrowed is capped at a multiple of the code's own probability.",
            source="LANTERN++",
            lossless=False,
            schedule=_none,
            verifier=_lantern("cap", 10),
            uses=(*NEAREST, "cap"),
            tree="mc_sim_7b_63",
        ),
        Method(
            name="lantern++g",
            title="LANTERN++ with G*",
            about="LANTERN++ whose recovered token is drawn from the best residual for its rule.",
            source=PAPER,
            lossless=False,
            schedule=_none,
            verifier=_lantern("cap", 10, optimal=True),
            uses=(*NEAREST, "cap"),
            tree="mc_sim_7b_63",
        ),
        Method(
            name="sjd",
            title="Jacobi (SJD)",
            about="Needs no drafter: the rows of a pass over a window are the guesses of the next pass; each pass is one target call.",
            source="SJD (arXiv 2410.01699)",
            lossless=True,
            schedule=_lossless,
            verifier=_guesses,
            form="lossless",
            uses=JACOBI,
        ),
        Method(
            name="sjd-coupled",
            title="Jacobi, coupled",
            about="Needs no drafter. As SJD; a guess that was not tested is drawn anew so that it mostly stays.",
            source="coupled SJD (arXiv 2510.24211)",
            lossless=True,
            schedule=_lossless,
            verifier=_guesses,
            form="lossless",
            uses=(*JACOBI, "coupling"),
        ),
        Method(
            name="coolsd-jacobi",
            title="COOL-SD, Jacobi",
            about="Needs no drafter: annealed relaxation of the guesses that a pass tests; the coupling and the pads stay exact (ours).",
            source="derived",
            lossless=False,
            schedule=_window,
            verifier=_guesses,
            form="window",
            uses=("delta", "nu", "mu", "draft_length", *JACOBI, "coupling"),
        ),
    )
}
