"""Tree verification against laws enumerated from the definitions."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from tables import FAILS, PASSES, chi_square, enumerate_round, random_rows
from torch import Tensor
from toy import draw_distinct
from toy_trees import HORIZON, PAIR, SHAPES, VOCABULARY, Law, drafted, enumerate_tree, p_row, q_row

from coolsd import tree_verification, trees
from coolsd.sampling import draw
from coolsd.schedules import annealed, lossless, uniform
from coolsd.trees import chain
from coolsd.verification import Diverse, Lantern, Lossless, Relaxed, verify

# ---- drafting and playing on the toy


@dataclass(frozen=True)
class Played:
    observed: Tensor  # (1, V ** HORIZON) counts of the first tokens, completed by the target
    accepted: Tensor  # (rounds,)
    cost: Tensor  # (rounds,)
    accept_prob: Tensor  # (rounds,) of the root


def play(parents, rule, salvage, rounds=1300, seed=3, draft_rows=drafted) -> Played:
    generator = torch.Generator().manual_seed(seed)
    outcomes, figures = [], []
    for _ in range(rounds):
        q, tokens, p = draft_rows(parents, generator)
        verdict = tree_verification.verify_tree(p, q, tokens, parents, rule, generator, salvage)
        emitted = [*tokens[list(verdict.path)].tolist(), verdict.token]
        while len(emitted) < HORIZON:
            emitted.append(int(draw(p_row(tuple(emitted)), generator)))
        outcomes.append(sum(token * VOCABULARY ** (HORIZON - 1 - i) for i, token in enumerate(emitted[:HORIZON])))
        figures.append((verdict.accepted, float(verdict.cost.sum()), float(verdict.accept_prob[0])))
    accepted, cost, accept_prob = torch.tensor(figures, dtype=torch.float64).unbind(1)
    return Played(torch.bincount(torch.tensor(outcomes), minlength=VOCABULARY**HORIZON)[None], accepted, cost, accept_prob)


TARGET = enumerate_round(p_row, q_row, [1.0] * HORIZON)
TARGET_LAW = torch.tensor(list(TARGET.target.values()), dtype=torch.float64)[None]


# ---- exactness


@pytest.mark.parametrize("salvage", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_lossless_trees_are_exact(name, salvage):
    played = play(SHAPES[name], Lossless(), salvage, rounds=1000)
    assert chi_square(played.observed, TARGET_LAW) > PASSES
    assert float(played.cost.max()) == 0


def test_ranked_tokens_are_exact_as_one_hot_rows():
    played = play(PAIR, Lossless(), False, draft_rows=lambda parents, generator: drafted(parents, generator, one_hot=True))
    assert chi_square(played.observed, TARGET_LAW) > PASSES


def test_tight_rule_is_exact_at_every_sibling():
    assert chi_square(play(PAIR, Relaxed(uniform(3, 0.6)), False).observed, TARGET_LAW) > PASSES


def test_control_ranked_tokens_with_sampled_rows_are_seen():
    def wrong(parents, generator):
        _, tokens, p = drafted(parents, generator, one_hot=True)
        below = trees.children(parents)
        prefixes = [()] * (len(parents) + 1)
        rows = [torch.empty(0)] * len(parents)
        for row, nodes in enumerate(below):
            for node in nodes:
                prefixes[node + 1] = (*prefixes[row], int(tokens[node]))
                rows[node] = q_row(prefixes[row]).float()
        return rows, tokens, p

    assert chi_square(play(PAIR, Lossless(), False, draft_rows=wrong).observed, TARGET_LAW) < FAILS


def first_tokens(p: Tensor, q: Tensor, siblings: int, rounds: int = 3000) -> Tensor:
    """Counts (1, V) of the token emitted by one node."""
    generator = torch.Generator().manual_seed(1)
    tokens = draw_distinct(q.expand(rounds, -1), siblings, generator)
    rows, targets, parents = [q] * siblings, p.expand(siblings + 1, -1), (-1,) * siblings
    verdicts = [tree_verification.verify_tree(targets, rows, t, parents, Lossless(), generator, False) for t in tokens]
    emitted = [int(t[v.path[0]]) if v.path else v.token for t, v in zip(tokens, verdicts, strict=True)]
    return torch.bincount(torch.tensor(emitted), minlength=len(p))[None]


def test_control_draft_row_that_keeps_rejected_siblings_is_seen(monkeypatch):
    p, q = random_rows(12, seed=15, sharpness=3.0), random_rows(12, seed=16, sharpness=3.0)
    assert chi_square(first_tokens(p, q, 4), p[None]) > PASSES
    monkeypatch.setattr(tree_verification, "without", lambda row, tokens: row.double())
    assert chi_square(first_tokens(p, q, 4), p[None]) < FAILS


@pytest.mark.parametrize("salvage", [True, False])
def test_a_mark_stands_where_the_lossless_rule_with_the_same_numbers_ends(salvage):
    rule, marked = Relaxed(uniform(3, 3.0)), 0
    for seed in range(80):
        q, tokens, p = drafted(PAIR, torch.Generator().manual_seed(seed))
        verdict, strict = (
            tree_verification.verify_tree(p, q, tokens, PAIR, one, torch.Generator().manual_seed(1000 + seed), salvage)
            for one in (rule, Lossless())
        )
        first = (*verdict.relaxed.tolist(), True).index(True)
        assert verdict.path[:first] == strict.path[:first]
        assert first == verdict.accepted or verdict.path[first : first + 1] != strict.path[first : first + 1]
        assert first < verdict.accepted or verdict.path == strict.path
        assert not strict.relaxed.any()
        marked += int(verdict.relaxed.sum())
    assert marked > 10


# ---- relaxed trees against enumeration


def variation(law: Law) -> float:
    return 0.5 * sum(abs(law.emitted[x] - TARGET.target[x]) for x in TARGET.target)


@pytest.mark.parametrize("salvage", [True, False])
@pytest.mark.parametrize("name", ["chain", "pair", "wide"])
def test_relaxed_trees_follow_their_law(name, salvage):
    schedule = annealed(3, 2.5, clamp=True)
    law = enumerate_tree(SHAPES[name], schedule.tolist(), salvage)
    assert sum(law.emitted.values()) == pytest.approx(1, abs=1e-9)
    played = play(SHAPES[name], Relaxed(schedule), salvage)
    exact = torch.tensor([law.emitted[x] for x in product(range(VOCABULARY), repeat=HORIZON)], dtype=torch.float64)[None]
    assert chi_square(played.observed, exact) > PASSES
    assert chi_square(played.observed, TARGET_LAW) < FAILS
    for sample, truth in ((played.accepted, law.accepted), (played.cost, law.cost)):
        assert abs(float(sample.mean()) - truth) <= 5 * float(sample.std()) / len(sample) ** 0.5 + 1e-7
    assert abs(float((played.accepted >= 1).double().mean() - played.accept_prob.mean())) < 5 / len(played.cost) ** 0.5
    assert variation(law) <= law.cost + 1e-9


def test_one_salvaged_node_gains_what_it_costs_and_siblings_cost_more():
    exact = enumerate_tree(SHAPES["root"][:2], [1.0] * 3, True)
    salvaged, siblings = (enumerate_tree(SHAPES["root"][:2], [2.0] * 3, salvage) for salvage in (True, False))
    assert variation(exact) < 1e-12
    assert variation(salvaged) > 0.01
    assert salvaged.accepted - exact.accepted == pytest.approx(variation(salvaged), abs=1e-9)
    assert variation(siblings) > 1.2 * (siblings.accepted - exact.accepted)


@pytest.mark.parametrize("salvage", [True, False])
def test_a_chain_has_the_law_of_the_chain_rule(salvage):
    schedule = annealed(3, 1.8, clamp=True).tolist()
    law, exact = enumerate_tree(chain(3), schedule, salvage), enumerate_round(p_row, q_row, schedule)
    assert law.accepted == pytest.approx(exact.accepted, abs=1e-9)
    assert law.cost == pytest.approx(exact.bias, abs=1e-9)
    assert max(abs(law.emitted[x] - exact.law[x]) for x in exact.law) < 1e-9


NEIGHBOURS = torch.tensor([[1, 2, 3], [0, 2, 3], [3, 1, 0], [2, 1, 4], [0, 1, 2]])


@pytest.mark.parametrize(
    "rule", [Lossless(), Relaxed(annealed(3, 1.5)), Diverse(0.7), Lantern(NEIGHBOURS, 2, 2.0), Lantern(NEIGHBOURS, 2, 0.3, True)]
)
def test_a_chain_with_the_rule_at_every_sibling_is_the_chain_verification(rule):
    for seed in range(60):
        q, tokens, p = drafted(chain(3), torch.Generator().manual_seed(seed))
        p = p.double() / p.double().sum(-1, keepdim=True)
        rows = torch.stack(q).double() / torch.stack(q).double().sum(-1, keepdim=True)
        tree = tree_verification.verify_tree(p, rows, tokens, chain(3), rule, torch.Generator().manual_seed(seed), salvage=False)
        one = verify(p, rows, tokens, rule, torch.Generator().manual_seed(seed))
        assert (tree.accepted, tree.token, tree.kind) == (one.accepted, one.token, one.kind)
        torch.testing.assert_close(tree.accept_prob, one.accept_prob)
        torch.testing.assert_close(tree.cost, one.cost)
        assert tree.relaxed.tolist() == one.relaxed.tolist()


# ---- edges


def test_temperature_zero_follows_the_argmax():
    for seed in range(40):
        q, tokens, p = drafted(PAIR, torch.Generator().manual_seed(seed))
        greedy = torch.nn.functional.one_hot(p.argmax(-1), VOCABULARY).float()
        verdict = tree_verification.verify_tree(greedy, q, tokens, PAIR, Relaxed(uniform(3, 2.0)), torch.Generator().manual_seed(seed))
        rows = [0, *(node + 1 for node in verdict.path)]
        assert [*tokens[list(verdict.path)].tolist(), verdict.token] == greedy[rows].argmax(-1).tolist()


@pytest.mark.parametrize("salvage", [True, False])
def test_degenerate_rows_never_leave_the_target(salvage):
    odd = [*torch.eye(4), torch.tensor([0.5, 0.5, 0, 0]), torch.tensor([0, 0, 0.5, 0.5]), torch.full((4,), 0.25)]
    generator = torch.Generator().manual_seed(0)
    for p, q in product(odd, odd):
        for tokens in (torch.tensor([0, 1]), torch.tensor([2, 2]), torch.tensor([3, 0])):
            verdict = tree_verification.verify_tree(p.expand(3, 4), [q, q], tokens, (-1, -1), Relaxed(uniform(1, 3.0)), generator, salvage)
            emitted = int(tokens[verdict.path[0]]) if verdict.path else verdict.token
            assert p[emitted] > 0
            assert bool(verdict.accept_prob.isfinite().all())
            assert bool(verdict.cost.isfinite().all())


@pytest.mark.parametrize("salvage", [True, False])
def test_the_stream_does_not_depend_on_what_was_accepted(salvage):
    """One number a node, with salvage two, and one for the token that follows."""
    expected = torch.Generator().manual_seed(7)
    torch.rand((1 + salvage) * len(PAIR) + 1, generator=expected, dtype=torch.float64)
    for seed in range(10):
        generator = torch.Generator().manual_seed(7)
        q, tokens, p = drafted(PAIR, torch.Generator().manual_seed(seed))
        tree_verification.verify_tree(p, q, tokens, PAIR, Relaxed(lossless(3)), generator, salvage)
        assert torch.equal(generator.get_state(), expected.get_state())


def test_wrong_rows_are_refused():
    q, tokens, p = drafted(PAIR, torch.Generator())
    for bad in ((p[:-1], q, tokens), (p, q[:-1], tokens), (p, q, tokens[:-1]), (p, [*q[:-1], q[0][:2]], tokens)):
        with pytest.raises(ValueError, match="parents"):
            tree_verification.verify_tree(*bad, PAIR, Lossless(), torch.Generator())
    rest = r"6 rows q, draft_tokens \(6,\), 6 parents"
    with pytest.raises(ValueError, match=rf"^need p \(N\+1, V\), N rows q, draft_tokens \(N,\) and N parents: p \(6, 5\), {rest}$"):
        tree_verification.verify_tree(p[:-1], q, tokens, PAIR, Lossless(), torch.Generator())
    with pytest.raises(ValueError, match=rf"^every row q must be \(5,\) and every parent come before its child: p \(7, 5\), {rest}$"):
        tree_verification.verify_tree(p, q, tokens, (0, *PAIR[1:]), Lossless(), torch.Generator())


def test_empty_tree_is_a_draw_from_the_target():
    verdict = tree_verification.verify_tree(torch.eye(4)[2:3], [], torch.empty(0, dtype=torch.long), (), Lossless(), torch.Generator())
    assert (verdict.path, verdict.token, verdict.kind) == ((), 2, "bonus")


def test_draws_without_replacement():
    row = random_rows(4, seed=9)
    picks = draw_distinct(row.expand(30_000, 4), 2, torch.Generator().manual_seed(0))
    pairs = torch.tensor([[float(row[a] * row[b] / (1 - row[a])) if a != b else 0.0 for b in range(4)] for a in range(4)])
    observed = torch.bincount(picks[:, 0] * 4 + picks[:, 1], minlength=16)[None]
    assert chi_square(observed, pairs.flatten()[None]) > PASSES
    assert chi_square(observed, (row[:, None] * row).flatten()[None]) < FAILS


# ---- the same numbers, one node after another


def walked(
    p, q, tokens, parents, omega: list[float], salvage: bool, numbers: list[float]
) -> tuple[list[int], int, list[tuple[float, float]], list[bool]]:
    """The accepted path, the token that follows, accept_prob and cost of each level and what was relaxed, from the definitions."""
    below, row, path, figures, marks = trees.children(parents), 0, [], [], []
    law = p[0].double().tolist()
    while below[row]:
        target, spent = [float(x) / float(p[row].double().sum()) for x in p[row]], []
        factor, chosen, rejected, cost, relaxed = omega[len(path)], None, 1.0, 0.0, False
        eldest = below[row][0]
        ratio = target[int(tokens[eldest])] / float(q[eldest].double()[tokens[eldest]] / q[eldest].double().sum())
        for node in below[row]:
            draft = [0.0 if x in spent else float(mass) for x, mass in enumerate(q[node])]
            draft = [mass / sum(draft) for mass in draft]
            kept = [min(d, (1.0 if salvage else factor) * t) for d, t in zip(draft, target, strict=True)]
            f = kept[int(tokens[node])] / draft[int(tokens[node])]
            if chosen is None and numbers[node] < f:
                chosen, relaxed = node, numbers[node] >= target[int(tokens[node])] / draft[int(tokens[node])]
            cost += 0.0 if salvage else rejected * sum(max(k - t, 0.0) for k, t in zip(kept, target, strict=True))
            rejected *= 1 - f
            excess = [max(t - k, 0.0) for t, k in zip(target, kept, strict=True)]
            target = [e / sum(excess) for e in excess] if sum(excess) > 0 else target
            spent.append(int(tokens[node]))
        if salvage and ratio < 1:
            back = max(min(1.0, factor * ratio) - ratio, 0.0) / (1 - ratio)
            if chosen is None and numbers[len(parents) + eldest] < back:
                chosen, relaxed = eldest, True
            cost = rejected * back
            rejected *= 1 - back
        figures.append((1 - rejected, cost))
        law = target
        if chosen is None:
            break
        path.append(chosen)
        marks.append(relaxed)
        row = chosen + 1
        law = p[row].double().tolist()
    upto = torch.tensor(law, dtype=torch.float64).cumsum(0)
    return path, int((upto > numbers[-1] * upto[-1]).nonzero()[0]), figures, marks


@pytest.mark.parametrize("looks", [True, False], ids=["as on a CPU", "as on a GPU"])
@pytest.mark.parametrize("salvage", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_a_seed_decides_as_a_walk_from_node_to_node(name, salvage, looks, monkeypatch):
    """All nodes in one sweep, as on a GPU, and only those that are reached, as on a CPU."""
    monkeypatch.setattr(tree_verification, "host_can_branch", lambda device: looks)
    parents, schedule = SHAPES[name], annealed(3, 0.8, clamp=True)
    paths = set()
    for seed in range(80):
        q, tokens, p = drafted(parents, torch.Generator().manual_seed(seed))
        verdict = tree_verification.verify_tree(p, q, tokens, parents, Relaxed(schedule), torch.Generator().manual_seed(seed), salvage)
        count = (1 + salvage) * len(parents) + 1
        numbers = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()
        path, token, figures, marks = walked(p, q, tokens, parents, schedule.tolist(), salvage, numbers)
        assert (list(verdict.path), verdict.token) == (path, token)
        assert verdict.accept_prob.tolist() == pytest.approx([f for f, _ in figures], abs=1e-6)
        assert verdict.cost.tolist() == pytest.approx([cost for _, cost in figures], abs=1e-6)
        assert verdict.relaxed.tolist() == marks
        assert verdict.kind == ("recovered" if len(figures) > len(path) else "bonus")
        assert verdict.drafted == tuple(tokens.tolist())
        paths.add(tuple(path))
    assert len(paths) > 1
