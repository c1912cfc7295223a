"""Trees on a toy whose rows follow the last two tokens: how they are drafted, and their laws enumerated from the definitions."""

from collections import Counter
from dataclasses import dataclass
from itertools import permutations

import torch
from tables import Toy, completing, relaxed_kept
from torch import Tensor
from toy import draw_distinct

from coolsd import trees
from coolsd.trees import chain

VOCABULARY, HORIZON = 5, 3
TOY = Toy.make(VOCABULARY, seed=31)
PAIR = trees.from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
WIDE = trees.from_paths([[0], [1], [2], [1, 0], [1, 1]])
SHAPES = {"chain": chain(3), "pair": PAIR, "wide": WIDE, "root": trees.from_paths([[0], [1], [2], [3]])}


def p_row(prefix: tuple[int, ...]) -> Tensor:
    return TOY.p[(0, 0, *prefix)[-2:]]


def q_row(prefix: tuple[int, ...]) -> Tensor:
    return TOY.q[(0, 0, *prefix)[-2:]]


def drafted(parents: trees.Parents, generator: torch.Generator, one_hot: bool = False) -> tuple[list[Tensor], Tensor, Tensor]:
    """q rows, tokens and target rows of one drafted tree; `one_hot`: the drafter's most probable tokens, not sampled."""
    below = trees.children(parents)
    prefixes: list[tuple[int, ...]] = [()] + [()] * len(parents)
    rows: list[Tensor] = [torch.empty(0)] * len(parents)
    tokens = torch.zeros(len(parents), dtype=torch.long)
    for row, nodes in enumerate(below):
        if not nodes:
            continue
        q = q_row(prefixes[row]).float()
        chosen = q.topk(len(nodes)).indices if one_hot else draw_distinct(q, len(nodes), generator)
        for node, token in zip(nodes, chosen.tolist(), strict=True):
            tokens[node] = token
            prefixes[node + 1] = (*prefixes[row], token)
            rows[node] = torch.nn.functional.one_hot(torch.tensor(token), VOCABULARY).float() if one_hot else q
    return rows, tokens, torch.stack([p_row(prefix) for prefix in prefixes]).float()


@dataclass(frozen=True)
class Law:
    emitted: Counter
    accepted: float
    cost: float


def enumerate_tree(parents: trees.Parents, omega: list[float], salvage: bool) -> Law:
    """Law of the first HORIZON tokens, completed by the target, over all drafted trees; E[accepted]; and the mean cost."""
    below = trees.children(parents)
    memory: dict[tuple[tuple[int, ...], int], Law] = {}

    def completed(prefix: tuple[int, ...]) -> Counter:
        law: Counter = Counter()
        completing(law, p_row, HORIZON)(prefix[:HORIZON], 1.0)
        return law

    def visit(prefix: tuple[int, ...], row: int) -> Law:
        if not below[row]:
            return Law(completed(prefix), 0.0, 0.0)
        if (prefix, row) not in memory:
            memory[prefix, row] = expand(prefix, row)
        return memory[prefix, row]

    def expand(prefix: tuple[int, ...], row: int) -> Law:
        p, q, factor = p_row(prefix), q_row(prefix), omega[len(prefix)]
        law, accepted, cost = Counter(), 0.0, 0.0

        def add(x: int, child: int, mass: float) -> None:
            nonlocal accepted, cost
            deeper = visit((*prefix, x), child + 1)
            for path, share in deeper.emitted.items():
                law[path] += mass * share
            accepted += mass * (1 + deeper.accepted)
            cost += mass * deeper.cost

        for siblings in permutations(range(VOCABULARY), len(below[row])):
            mass, remainder = 1.0, 1.0
            for x in siblings:
                mass *= float(q[x]) / remainder
                remainder -= float(q[x])
            target, draft = p.clone(), q.clone()
            for k, x in enumerate(siblings):
                kept = relaxed_kept(target, draft.clamp(min=1e-300), 1.0 if salvage else factor)
                f = min(1.0, float(kept[x] / draft[x]))
                add(x, below[row][k], mass * f)
                if not salvage:
                    cost += mass * float((kept - target).clamp(min=0).sum())
                mass *= 1 - f
                excess = (target - kept).clamp(min=0)
                target = excess / excess.sum() if float(excess.sum()) > 1e-12 else target
                draft[x] = 0
                draft = draft / draft.sum() if float(draft.sum()) > 0 else draft
            ratio = min(1.0, float(p[siblings[0]] / q[siblings[0]]))
            second = (min(1.0, factor * float(p[siblings[0]] / q[siblings[0]])) - ratio) / (1 - ratio) if salvage and ratio < 1 else 0.0
            if mass * second > 0:
                cost += mass * second
                add(siblings[0], below[row][0], mass * second)
            for y, share in enumerate(target.tolist()):
                for path, rest in completed((*prefix, y)).items():
                    law[path] += mass * (1 - second) * share * rest
        return Law(law, accepted, cost)

    return visit((), 0)
