"""What a round says of its drafted tokens, against the tables they were drawn from."""

from math import isclose, log

import pytest
import torch
from tables import PASSES, Toy, chi_square
from toy import ToyPair

from coolsd import METHODS, Run, generate, omega, stream
from coolsd.trace import Round
from coolsd.trees import MAX_NODES

TOY = Toy.make(3, seed=5)
OWN = [[0], [1], [2], [1, 0], [1, 0, 0]]
CHAINS = [(name, "chain", {}) for name, m in METHODS.items() if m.schedule is not None]
TREES = [("coolsd", tree, {"siblings": siblings}) for tree in (OWN, "dynamic", "mc_sim_7b_63") for siblings in ("salvage", "every")]
TREES += [("eagle1", OWN, {}), ("traversal", OWN, {}), ("lantern++", "dynamic", {"neighbours": 1}), ("lantern++g", OWN, {"neighbours": 1})]
RELAXED = {"delta": 1.8, "draft_length": 4}


def contexts(r: Round, before: list[int]) -> list[tuple[int, int]]:
    """The two tokens before each drafted one."""
    paths: dict[int, list[int]] = {-1: before}
    for node, (token, parent) in enumerate(zip(r.drafts.tokens, r.drafts.parents, strict=True)):
        paths[node] = [*paths[parent], token]
    return [tuple(paths[parent][-2:]) for parent in r.drafts.parents]


def rounds_of(method: str, tree, settings: dict, seeds: int = 12):
    """Rounds that drafted, each with the tokens before it."""
    for seed in range(seeds):
        tokens = [0, 0]
        for r in stream(ToyPair(TOY, (4, 6)), "x", method, seed=seed, tree=tree, **RELAXED | settings):
            if r.drafts:
                yield tokens, r
            tokens = tokens + list(r.tokens)


@pytest.mark.parametrize(("method", "tree", "settings"), CHAINS + TREES, ids=str)
def test_probabilities_are_those_of_the_tables(method, tree, settings):
    for before, r in rounds_of(method, tree, settings):
        at = contexts(r, before)
        assert r.drafts.p == pytest.approx([float(TOY.p[a, b, t]) for (a, b), t in zip(at, r.drafts.tokens, strict=True)], rel=1e-5)
        q = [1.0 if tree == "dynamic" else float(TOY.q[a, b, t]) for (a, b), t in zip(at, r.drafts.tokens, strict=True)]
        if METHODS[method].jacobi:  # drafted from rows of the target at an earlier guess, which are not in the tables
            assert all(0 < x <= 1 for x in r.drafts.q)
        else:
            assert r.drafts.q == pytest.approx(q, rel=1e-5)
        rows, sequence = [], list(before)
        for token in r.tokens:
            rows.append(TOY.p[sequence[-2], sequence[-1]])
            sequence.append(token)
        assert r.log_p == pytest.approx([log(row[t]) for row, t in zip(rows, r.tokens, strict=True)], rel=1e-4)
        assert r.entropy == pytest.approx([float(-(row * row.log()).sum()) for row in rows], rel=1e-4)
        assert r.last.p == pytest.approx(float(rows[-1][r.tokens[-1]]), rel=1e-5)
        assert r.kinds[-1] == "recovered" or r.last.law == pytest.approx(r.last.p)


@pytest.mark.parametrize(("method", "tree", "settings"), CHAINS + TREES, ids=str)
def test_outcomes_follow_from_the_numbers(method, tree, settings):
    jointly = "block" in method or method == "traversal"  # a token can be accepted with those below it
    every = jointly and tree == "chain"
    outcomes = set()
    for _, r in rounds_of(method, tree, settings):
        d = r.drafts
        passed = [node for node, outcome in enumerate(d.outcome) if outcome in ("accepted", "relaxed")]
        assert [d.tokens[node] for node in passed] == list(r.tokens[:-1])
        assert [d.outcome[node] == "relaxed" for node in passed] == list(r.relaxed[:-1])
        for node, (f, u, outcome) in enumerate(zip(d.f, d.u, d.outcome, strict=True)):
            assert (f is None) == (u is None) == (outcome == "unexamined")
            if jointly and f is not None:
                assert (u < f) == (node in passed) or node < max(passed, default=-1)
            elif f is not None:
                assert (u < f) == (node in passed)
            outcomes.add(outcome)
    assert {"accepted", "rejected"} <= outcomes
    assert ("relaxed" in outcomes) == (not METHODS[method].lossless)
    assert ("unexamined" in outcomes) == (not every)


@pytest.mark.parametrize(("method", "tree", "settings"), [("eagle1", "chain", {}), ("coolsd", "chain", {}), *TREES[:2]], ids=str)
def test_f_of_an_eldest_sibling_is_the_rules(method, tree, settings):
    for _, r in rounds_of(method, tree, settings):
        d = r.drafts
        row = omega(generate(ToyPair(TOY, (1, 1)), "x", method, tree=tree, **RELAXED | settings).settings).tolist()
        depth = [0] * len(d.tokens)
        for node, parent in enumerate(d.parents):
            depth[node] = depth[parent] + 1 if parent >= 0 else 0
            if d.f[node] is None or d.parents.index(parent) != node:
                continue
            exact, relaxed = min(1.0, d.p[node] / d.q[node]), min(1.0, row[depth[node]] * d.p[node] / d.q[node])
            second = settings.get("siblings") == "salvage" and (d.outcome[node] == "relaxed" or _all_rejected(d, parent))
            first = settings.get("siblings") == "salvage" and not second
            assert isclose(d.f[node], exact if first else relaxed, rel_tol=1e-4)
            if d.outcome[node] != "unexamined":
                assert (d.outcome[node] == "relaxed") == (exact <= d.u[node] < relaxed) or first


def _all_rejected(drafts, parent: int) -> bool:
    return all(o == "rejected" for o, p in zip(drafts.outcome, drafts.parents, strict=True) if p == parent)


@pytest.mark.parametrize(("tree", "siblings"), [("chain", "every"), (OWN, "every"), (OWN, "salvage")], ids=str)
def test_the_numbers_are_uniform(tree, siblings):
    """Of the first drafted token, which is examined in every round: also where two tries are given as one."""
    numbers = torch.tensor([r.drafts.u[0] for _, r in rounds_of("coolsd", tree, {"siblings": siblings}, 60)])
    counts = torch.histc(numbers, 10, 0.0, 1.0)[None].double()
    assert chi_square(counts, torch.full((1, 10), 0.1, dtype=torch.float64)) > PASSES
    squared = torch.histc(numbers**2, 10, 0.0, 1.0)[None].double()
    assert chi_square(squared, torch.full((1, 10), 0.1, dtype=torch.float64)) < 1e-9


def test_the_law_of_a_recovered_token_is_the_residual():
    count = 0
    for before, r in rounds_of("eagle1", "chain", {}):
        if r.kinds[-1] == "recovered":
            a, b = [*before, *r.tokens[:-1]][-2:]
            excess = (TOY.p[a, b] - TOY.q[a, b]).clamp(min=0)
            assert r.last.law == pytest.approx(float(excess[r.tokens[-1]] / excess.sum()), rel=1e-4)
            count += 1
    assert count > 20


def test_plain_ar_says_what_it_drew():
    for r in stream(ToyPair(TOY, (4, 6)), "x", "ar", seed=2):
        assert r.drafts is None
        assert r.last.law == r.last.p == pytest.approx(float(torch.tensor(r.log_p[0]).exp()))
        assert 0 <= r.last.u < 1


@pytest.mark.parametrize(("method", "exact"), [("eagle1", True), ("block", True), ("coolsd", False)])
def test_log_p_and_entropy_cancel_where_the_law_is_the_targets(method, exact):
    """A martingale: over pictures, the mean of log p + H is 0 whatever was drawn before; a relaxed law moves it."""
    sums = []
    for seed in range(150):
        rounds = list(stream(ToyPair(TOY, (4, 6)), "x", method, seed=seed, delta=4.0, draft_length=3))
        sums.append(sum(lp + h for r in rounds for lp, h in zip(r.log_p, r.entropy, strict=True)))
    sums = torch.tensor(sums)
    z = float(sums.mean() / (sums.std() / len(sums) ** 0.5))
    assert abs(z) < 4.5 if exact else abs(z) > 6


def test_the_longest_draft_comes_back_from_json():
    """A Jacobi window is longer than any chain or tree."""
    run = generate(ToyPair(TOY, (10, 10)), "x", "coolsd-jacobi", window=MAX_NODES)
    assert max(r.drafted for r in run.rounds) == MAX_NODES - 1
    assert Run.from_json(run.to_json(), METHODS).tokens == run.tokens
