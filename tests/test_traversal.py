"""Traversal verification against its recursion in plain Python: its law, its acceptance, and the engine against plain AR's law."""

from collections import Counter
from itertools import permutations, product

import pytest
import torch
import toy_trees
from tables import FAILS, PASSES, Toy, chi_square, completing
from toy import ToyPair
from toy_trees import HORIZON, SHAPES, VOCABULARY, drafted, enumerate_tree, p_row, q_row

from coolsd import generate, traversal, trees
from coolsd.sampling import uniforms
from coolsd.traversal import verify_traversal
from coolsd.verification import verify_block

End = tuple[int, float, list[float]]  # the row that a round ends at, the probability of that, and the law of the next token


def ends_of(parents: trees.Parents, tokens: list[int], p: list[list[float]], q: list[list[float]]) -> list[End]:
    """All ways in which a drafted tree can end, in the order in which they are tried. p, q: by row."""
    below = trees.children(parents)

    def visit(row: int, weight: float) -> list[End]:
        target, draft, ends, reach = p[row], q[row], [], 1.0
        for node in below[row]:
            x = tokens[node]
            deeper = visit(node + 1, min(1.0, weight * target[x] / draft[x]) if draft[x] else 0.0)
            ends += [(end, reach * mass, law) for end, mass, law in deeper]
            reach *= 1 - sum(mass for _, mass, _ in deeper)
            excess = [max(weight * t - d, 0.0) for t, d in zip(target, draft, strict=True)]
            rest = sum(excess)
            weight = rest / (rest + 1 - weight) if rest + 1 - weight > 0 else 1.0
            target = [e / rest for e in excess] if rest > 0 else target
            draft = [0.0 if y == x else d for y, d in enumerate(draft)]
            draft = [d / sum(draft) for d in draft] if sum(draft) else draft
        return [*ends, (row, reach * weight, target)]

    return visit(0, 1.0)


def paths_of(parents: trees.Parents, tokens: list[int]) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = [()]
    for parent, token in zip(parents, tokens, strict=True):
        paths.append((*paths[parent + 1], token))
    return paths


def enumerated(parents: trees.Parents) -> tuple[Counter, float]:
    """Law of the first HORIZON tokens, completed by the target, and E[accepted], over all trees drawn without replacement."""
    below = trees.children(parents)
    law: Counter = Counter()
    accepted, rows = 0.0, {}
    completed = completing(law, p_row, HORIZON)

    def row(kind, prefix: tuple[int, ...]) -> list[float]:
        return rows.setdefault((kind, prefix), kind(prefix).tolist())

    def fill(at: int, tokens: list[int], mass: float) -> None:
        nonlocal accepted
        while at < len(below) and not below[at]:
            at += 1
        paths = paths_of(parents[: len(tokens)], tokens)
        if at < len(below):
            draft = row(q_row, paths[at])
            for siblings in permutations(range(VOCABULARY), len(below[at])):
                share, rest = 1.0, 1.0
                for x in siblings:
                    share, rest = share * draft[x] / rest, rest - draft[x]
                fill(at + 1, [*tokens, *siblings], mass * share)
            return
        p, q = ([row(kind, path) for path in paths] for kind in (p_row, q_row))
        for end, chance, residual in ends_of(parents, tokens, p, q):
            accepted += mass * chance * len(paths[end])
            for x, share in enumerate(residual):
                ended[(*paths[end], x)[:HORIZON]] += mass * chance * share

    ended: Counter = Counter()
    fill(0, [], 1.0)
    for prefix, mass in ended.items():
        completed(prefix, mass)
    return law, accepted


SMALL = {name: SHAPES[name] for name in ("chain", "wide", "root")} | {"deep": trees.from_paths([[0], [1], [0, 0], [0, 1], [0, 0, 0]])}


@pytest.mark.parametrize(("name", "seed"), [*((name, 31) for name in SMALL), ("deep", 2)])
def test_every_tree_is_exact_and_accepts_no_fewer_than_sibling_by_sibling(name, seed, monkeypatch):
    monkeypatch.setattr(toy_trees, "TOY", Toy.make(VOCABULARY, seed))
    law, accepted = enumerated(SMALL[name])
    for path in product(range(VOCABULARY), repeat=HORIZON):
        exact = float(torch.stack([p_row(path[:i])[x] for i, x in enumerate(path)]).prod())
        assert law[path] == pytest.approx(exact, abs=1e-12)
    siblings = enumerate_tree(SMALL[name], [1.0] * HORIZON, False).accepted
    assert accepted >= siblings - 1e-12
    if name in ("chain", "deep"):  # the others leave no branch below an eldest sibling to gain from
        assert accepted > siblings + 0.005


def test_a_seed_decides_as_the_recursion_does():
    """With the same numbers: the path, the token that follows, and every figure of the verdict."""
    outcomes = set()
    for name, parents in SHAPES.items():
        for seed in range(25):
            rows, tokens, p = drafted(parents, torch.Generator().manual_seed(seed))
            verdict = verify_traversal(p, torch.stack(rows), tokens, parents, torch.Generator().manual_seed(seed))
            numbers = uniforms((len(parents) + 1,), torch.Generator().manual_seed(seed), p.device).tolist()
            paths = paths_of(parents, tokens.tolist())
            laws = [[row / row.sum() for row in table] for table in (p.double(), torch.stack([q_row(path) for path in paths]))]
            ends = ends_of(parents, tokens.tolist(), *([row.tolist() for row in table] for table in laws))
            reach, order = 1.0, [end for end, _, _ in ends]
            for end, chance, law in ends:
                residual, stop = law, chance / reach
                if end == 0 or numbers[end - 1] < stop:
                    break
                assert verdict.nodes[2:, end - 1].tolist() == pytest.approx([stop, numbers[end - 1]], abs=1e-6)
                reach -= chance
            upto = torch.tensor(residual, dtype=torch.float64).cumsum(0)
            assert tuple(tokens[node] for node in verdict.path) == paths[end]
            assert verdict.token == int((upto > numbers[-1] * upto[-1]).nonzero()[0])
            assert verdict.kind == ("recovered" if trees.children(parents)[end] else "bonus")
            assert verdict.last[2] == pytest.approx(residual[verdict.token], abs=1e-6)
            behind = {other - 1 for other in order[order.index(end) + 1 :] if other} - set(verdict.path)
            assert {node for node in range(len(parents)) if bool(verdict.nodes[2, node].isnan())} == behind
            levels = range(1, 1 + max(trees.depths(parents)))
            assert verdict.accept_prob.tolist() == pytest.approx(
                [sum(chance for end, chance, _ in ends if len(paths[end]) >= level) for level in levels], abs=1e-5
            )
            assert verdict.cost.tolist() == [0.0] * len(levels)
            outcomes.add((name, verdict.path))
    assert len(outcomes) > 14


def test_on_a_chain_it_is_block_verification():
    for seed in range(60):
        rows, tokens, p = drafted(SHAPES["chain"], torch.Generator().manual_seed(seed))
        one = verify_traversal(p, torch.stack(rows), tokens, SHAPES["chain"], torch.Generator().manual_seed(seed))
        other = verify_block(p, torch.stack(rows), tokens, torch.ones(3), torch.Generator().manual_seed(seed))
        assert (one.path, one.token, one.kind) == (other.path, other.token, other.kind)
        torch.testing.assert_close(one.nodes, other.nodes)


# ---- through the engine

TOY = Toy.make(3, seed=5)
TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]


def p_value(runs: int = 450, **pair) -> float:
    """Of the tokens after each pair of tokens, over whole pictures, against the target's rows."""
    tokens = torch.tensor(
        [[0, 0, *generate(ToyPair(TOY, (1, 9), **pair), "x", "traversal", seed=seed, tree=TREE).tokens] for seed in range(runs)]
    )
    context = (3 * tokens[:, :-2] + tokens[:, 1:-1]).flatten()
    tally = torch.bincount(context * 3 + tokens[:, 2:].flatten(), minlength=27).view(9, 3)
    return chi_square(tally, TOY.p.reshape(9, 3))


def test_the_engine_draws_the_targets_law():
    assert p_value() > PASSES


def test_control_a_weight_that_a_rejection_leaves_is_seen(monkeypatch):
    right = traversal.after_rejection
    monkeypatch.setattr(traversal, "after_rejection", lambda weight, law, draft: (weight, right(weight, law, draft)[1]))
    assert p_value() < FAILS


def test_temperature_zero_and_an_empty_tree():
    row = torch.eye(4)[2:3]
    verdict = verify_traversal(row, torch.empty(0, 4), torch.empty(0, dtype=torch.long), (), torch.Generator())
    assert (verdict.path, verdict.token, verdict.kind) == ((), 2, "bonus")
    with pytest.raises(ValueError, match="parents"):
        verify_traversal(row, torch.empty(0, 4), torch.zeros(1, dtype=torch.long), (), torch.Generator())
    greedy = generate(ToyPair(TOY), "x", "ar", temperature=0.0).tokens
    for tree in (TREE, "dynamic"):
        assert generate(ToyPair(TOY), "x", "traversal", temperature=0.0, tree=tree).tokens == greedy
