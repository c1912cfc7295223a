"""Verification against exact laws: chi-square at every position, each with negative controls that must fail."""

from dataclasses import dataclass
from functools import cache
from itertools import product

import pytest
import torch
from tables import FAILS, PASSES, Toy, chi_square, counts, drafted_rows, enumerate_round, random_rows, relaxed_kept, relaxed_step
from torch import Tensor

from coolsd import theory
from coolsd.schedules import annealed, lossless, uniform
from coolsd.verification import Diverse, Lantern, Relaxed, Rule, verify, verify_block

VOCABULARY, LENGTH, ROUNDS = 4, 3, 6000
TOY = Toy.make(VOCABULARY, seed=11)
SCHEDULES = {
    "lossless": lossless(LENGTH),
    "tight": uniform(LENGTH, 0.6),
    "uniform": uniform(LENGTH, 1.5),
    "annealed": annealed(LENGTH, 1.1),
    "clamped": annealed(LENGTH, 1.1, clamp=True),
}


class ForgottenResidual(Relaxed):
    """Wrong: the recovered token comes from the target row."""

    def residual(self, p, q, position, token):
        return p


class VanillaResidual(Relaxed):
    """Wrong where ω < 1: the recovered token comes from Norm([p - q]_+)."""

    def residual(self, p, q, position, token):
        excess = (p - q).clamp(min=0)
        return excess / excess.sum()


@dataclass(frozen=True)
class Outcome:
    context: Tensor  # (B, 2)
    draft: Tensor  # (B, L)
    accepted: Tensor  # (B,)
    token: Tensor  # (B,)
    cost: Tensor  # (B,) summed over the round

    def emitted(self, i: int) -> Tensor:
        """The token emitted at position i; meaningful where accepted >= i."""
        return self.token if i == LENGTH else torch.where(self.accepted > i, self.draft[:, i], self.token)


def play(context: Tensor, rule: Rule, generator: torch.Generator, belief: Toy = TOY) -> Outcome:
    """One round from each context, drafted by TOY; `belief` is what the verifier believes the rows to be."""
    draft = TOY.draft(context, LENGTH, generator)
    p, q = belief.rows(context, draft)
    verdicts = [verify(p[b].float(), q[b].float(), draft[b], rule, generator) for b in range(len(context))]
    accepted, token = (torch.tensor([getattr(v, name) for v in verdicts]) for name in ("accepted", "token"))
    return Outcome(context, draft, accepted, token, torch.stack([v.cost.sum() for v in verdicts]).double())


def p_value(context: Tensor, token: Tensor, where: Tensor, omega: float) -> float:
    """Chi-square of the tokens after each context against the exact law of a step with relaxation ω."""
    law = relaxed_step(TOY.p, TOY.q, omega).view(-1, VOCABULARY)
    row = context[:, 0] * VOCABULARY + context[:, 1]
    return chi_square(counts(row[where], token[where], law.shape), law)


@cache
def three_laws(name: str, kind: type[Relaxed], reports_wrong_q: bool = False) -> tuple[float, float, float]:
    """p-values of the first token, of the one after an acceptance, and of the one after a rejection in the round before."""
    schedule = SCHEDULES[name]
    rule, generator = kind(schedule), torch.Generator().manual_seed(5)
    belief = Toy(TOY.p, TOY.q.roll(1, -1)) if reports_wrong_q else TOY
    context = torch.randint(VOCABULARY, (ROUNDS // 2, 2), generator=generator)
    one = play(context, rule, generator, belief)
    everywhere = torch.ones(len(context), dtype=torch.bool)
    first = p_value(context, one.emitted(0), everywhere, float(schedule[0]))
    after_one = torch.stack((context[:, 1], one.draft[:, 0]), 1)
    after_accepted = p_value(after_one, one.emitted(1), one.accepted >= 1, float(schedule[1]))
    rejected = one.accepted < LENGTH
    before = torch.where(one.accepted > 0, one.draft.gather(1, (one.accepted - 1).clamp(min=0)[:, None])[:, 0], context[:, 1])
    following = torch.stack((before, one.token), 1)[rejected]
    two = play(following, rule, generator, belief)
    after_rejected = p_value(following, two.emitted(0), torch.ones(len(following), dtype=torch.bool), float(schedule[0]))
    return first, after_accepted, after_rejected


@pytest.mark.parametrize("name", SCHEDULES)
def test_laws_are_exact(name):
    assert min(three_laws(name, Relaxed)) > PASSES


def test_control_forgotten_residual_is_seen():
    assert max(three_laws("lossless", ForgottenResidual)) < FAILS
    assert three_laws("annealed", ForgottenResidual)[1] < FAILS


def test_control_vanilla_residual_is_seen_below_one():
    assert max(three_laws("tight", VanillaResidual)) < FAILS


@pytest.mark.parametrize("name", SCHEDULES)
def test_control_wrong_draft_row_is_seen(name):
    assert max(three_laws(name, Relaxed, reports_wrong_q=True)) < FAILS


@pytest.mark.parametrize("name", ["uniform", "annealed", "clamped"])
def test_control_relaxed_tokens_do_not_follow_the_target(name):
    context = torch.randint(VOCABULARY, (ROUNDS // 2, 2), generator=torch.Generator().manual_seed(2))
    one = play(context, Relaxed(SCHEDULES[name]), torch.Generator().manual_seed(3))
    assert p_value(context, one.emitted(0), one.accepted >= 0, 1.0) < FAILS


def test_bonus_follows_the_target():
    context = torch.randint(VOCABULARY, (ROUNDS // 4, 2), generator=torch.Generator().manual_seed(2))
    one = play(context, Relaxed(uniform(LENGTH, 50.0)), torch.Generator().manual_seed(3))
    assert float((one.accepted == LENGTH).double().mean()) > 0.9
    assert p_value(one.draft[:, -2:], one.token, one.accepted == LENGTH, 1.0) > PASSES


@pytest.mark.parametrize("name", SCHEDULES)
def test_accepted_and_bias_spent_average_to_the_enumeration(name):
    schedule, rounds = SCHEDULES[name], 800
    exact = enumerate_round(lambda x: TOY.p[(0, 0, *x)[-2:]], lambda x: TOY.q[(0, 0, *x)[-2:]], schedule.tolist())
    one = play(torch.zeros(rounds, 2, dtype=torch.long), Relaxed(schedule), torch.Generator().manual_seed(8))
    assert exact.variation <= exact.bias + 1e-6
    for sample, truth in ((one.accepted.double(), exact.accepted), (one.cost, exact.bias)):
        error = float(sample.std()) / rounds**0.5
        assert abs(float(sample.mean()) - truth) <= 5 * error + 1e-7
    if bool((schedule <= 1).all()):
        assert float(one.cost.max()) == 0.0
        assert exact.bias < 1e-6


# ---- what a verdict holds


def test_verdict_figures_are_those_of_the_definitions():
    schedule = annealed(3, 1.5)
    for seed in range(40):
        p, q, draft = drafted_rows(seed=seed)
        verdict = verify(p, q, draft, Relaxed(schedule), torch.Generator().manual_seed(seed))
        uniform_numbers = torch.rand(3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        examined = min(verdict.accepted + 1, 3)
        assert verdict.kind == ("bonus" if verdict.accepted == 3 else "recovered")
        ratio = torch.stack([p[i, x] / q[i, x] for i, x in enumerate(draft)])
        torch.testing.assert_close(verdict.accept_prob, (schedule * ratio).clamp(max=1)[:examined])
        cost = torch.stack([(relaxed_kept(p[i], q[i], schedule[i]) - p[i]).clamp(min=0).sum() for i in range(examined)])
        torch.testing.assert_close(verdict.cost, cost)
        assert verdict.relaxed.tolist() == (uniform_numbers >= ratio)[: verdict.accepted].tolist()
        assert verdict.accepted == 3 or p[verdict.accepted, verdict.token] > 0


def test_relaxed_marks_appear_only_when_relaxed():
    marks = {1.0: 0, 3.0: 0}
    for omega in marks:
        for seed in range(60):
            p, q, draft = drafted_rows(seed=seed)
            verdict = verify(p, q, draft, Relaxed(uniform(3, omega)), torch.Generator().manual_seed(seed))
            marks[omega] += int(verdict.relaxed.sum())
    assert marks[1.0] == 0
    assert marks[3.0] > 10


@pytest.mark.parametrize(
    "call", [lambda *a: verify(*a[:3], Relaxed(lossless(3)), a[3]), lambda *a: verify_block(*a[:3], lossless(3), a[3])]
)
def test_the_stream_does_not_depend_on_what_was_accepted(call):
    """One number a drafted token and one for the token that follows."""
    expected = torch.Generator().manual_seed(7)
    torch.rand(4, generator=expected, dtype=torch.float64)
    for seed in range(10):
        generator = torch.Generator().manual_seed(7)
        call(*drafted_rows(seed=seed), generator)
        assert torch.equal(generator.get_state(), expected.get_state())


@pytest.mark.parametrize(
    "call", [lambda *a: verify(*a, Relaxed(lossless(9)), torch.Generator()), lambda *a: verify_block(*a, lossless(9), torch.Generator())]
)
def test_wrong_rows_are_refused(call):
    p, q, draft = drafted_rows()
    for bad in ((p, q[:2], draft), (p[:3], q, draft), (p, q[:, :5], draft), (p, q[0], draft), (p, q, draft[None])):
        with pytest.raises(ValueError, match=r"q \(") as error:
            call(*bad)
        assert str(tuple(bad[1].shape)) in str(error.value)
    with pytest.raises(ValueError, match=r"^need p \(L\+1, V\), q \(L, V\) and draft \(L,\): p \(4, 6\), q \(2, 6\), draft \(3,\)$"):
        call(p, q[:2], draft)
    with pytest.raises(ValueError, match=r"^p, q and draft must be tensors: p \(4, 6\), q None, draft \(3,\)$"):
        call(p, None, draft)


def test_empty_draft_is_a_draw_from_the_target():
    p = random_rows(1, 5, seed=3).float()
    for verdict in (
        verify(p, p[:0], torch.empty(0, dtype=torch.long), Relaxed(lossless(0)), torch.Generator().manual_seed(1)),
        verify_block(p, p[:0], torch.empty(0, dtype=torch.long), lossless(0), torch.Generator().manual_seed(1)),
    ):
        assert (verdict.accepted, verdict.kind) == (0, "bonus")
        assert [len(t) for t in (verdict.accept_prob, verdict.cost, verdict.relaxed)] == [0, 0, 0]
    generator = torch.Generator().manual_seed(1)
    tokens = [verify(p, p[:0], torch.empty(0, dtype=torch.long), Relaxed(lossless(0)), generator).token for _ in range(3000)]
    assert chi_square(torch.bincount(torch.tensor(tokens), minlength=5)[None], p) > PASSES


# ---- degenerate rows

NEIGHBOURS = torch.tensor([[1, 2, 3], [0, 2, 3], [3, 1, 0], [2, 1, 0]])
ONE_HOT = torch.eye(4)
ODD_ROWS = [
    *ONE_HOT,
    torch.tensor([0.5, 0.5, 0, 0]),
    torch.tensor([0, 0, 0.5, 0.5]),
    torch.full((4,), 0.25),
    torch.tensor([1.0, 1e-38, 0, 0]),
]
RULES = {
    **{f"relaxed {omega}": Relaxed(uniform(1, omega)) for omega in (0.0, 0.5, 1.0, 2.0, 3e38)},
    **{f"lantern++ {optimal}": Lantern(NEIGHBOURS, 2, 3.0, optimal) for optimal in (False, True)},
    "block": verify_block,
}


@pytest.mark.parametrize("name", RULES)
def test_degenerate_rows_never_leave_the_target(name):
    generator = torch.Generator().manual_seed(0)
    for p, q in product(ODD_ROWS, ODD_ROWS):
        for token in range(4):
            for _ in range(3):
                target, draft = torch.stack((p, p)), torch.tensor([token])
                if name == "block":
                    verdict = verify_block(target, q[None], draft, uniform(1, 2.0), generator)
                else:
                    verdict = verify(target, q[None], draft, RULES[name], generator)
                emitted = token if verdict.accepted else verdict.token
                assert p[emitted] > 0
                assert bool(verdict.accept_prob.isfinite().all())
                assert bool(verdict.cost.isfinite().all())


def test_identical_one_hot_rows_accept_everything():
    p = torch.eye(4)
    verdict = verify(p, p[:3], torch.arange(3), Relaxed(lossless(3)), torch.Generator().manual_seed(0))
    assert (verdict.accepted, verdict.token, verdict.kind) == (3, 3, "bonus")


# ---- other rules


def test_a_new_rule_needs_its_kept_mass_only():
    class Half(Rule):
        def kept_mass(self, p, q, position):
            return 0.5 * torch.minimum(p, q)

    p, q, _ = drafted_rows(1, 5, seed=4)
    drafts = torch.multinomial(q[0].expand(3000, 5), 1, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    verdicts = [verify(p, q, draft, Half(), generator) for draft in drafts]
    tokens = torch.tensor([int(d) if v.accepted else v.token for d, v in zip(drafts, verdicts, strict=True)])
    assert chi_square(torch.bincount(tokens, minlength=5)[None], p[:1]) > PASSES
    assert all(float(v.cost.sum()) == 0 for v in verdicts)


def test_diverse_emits_the_mixture():
    p, q, _ = drafted_rows(1, 5, seed=6)
    rule, generator = Diverse(0.6), torch.Generator().manual_seed(1)
    drafts = torch.multinomial(q[0].expand(3000, 5), 1, generator=generator)
    verdicts = [verify(p, q, draft, rule, generator) for draft in drafts]
    observed = torch.bincount(torch.tensor([int(d) if v.accepted else v.token for d, v in zip(drafts, verdicts, strict=True)]), minlength=5)
    assert chi_square(observed[None], 0.6 * p[:1] + 0.4 * q) > PASSES
    assert chi_square(observed[None], p[:1]) < FAILS
    torch.testing.assert_close(verdicts[0].cost, 0.4 * 0.5 * (p[0] - q[0]).abs().sum()[None])


def lantern_definition(p: Tensor, x: int, nearest: list[int], budget: float) -> tuple[float, bool]:
    """p(x) + c_m, and whether m >= 1, by the sentence that defines them."""
    limit = budget if budget <= 1 else (budget - 1) * float(p[x])
    best, m = 0.0, 0
    for count in range(1, len(nearest) + 1):
        mass = sum(float(p[n]) for n in nearest[:count])
        if mass <= limit:
            best, m = mass, count
    return float(p[x]) + best, m >= 1


@pytest.mark.parametrize("budget", [0.05, 0.3, 1.0, 1.5, 4.0])
@pytest.mark.parametrize("k", [1, 3, 17])
def test_lantern_keeps_what_its_definition_says(k, budget):
    vocabulary = 40
    points = torch.rand(vocabulary, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    neighbours = torch.cdist(points, points).fill_diagonal_(torch.inf).argsort(-1)[:, :-1]
    p, q = random_rows(2, vocabulary, seed=1, sharpness=4.0), random_rows(2, vocabulary, seed=2, sharpness=4.0)
    rule, position = Lantern(neighbours.to(torch.int32), k, budget), torch.arange(2)
    kept = rule.kept_mass(p, q, position)
    for row, x in product(range(2), range(vocabulary)):
        raised, borrowed = lantern_definition(p[row], x, neighbours[x, :k].tolist(), budget)
        assert float(kept[row, x]) == pytest.approx(min(float(q[row, x]), raised), abs=1e-12)
        draft_row = q[row].clone()
        if borrowed:
            draft_row[neighbours[x, : k + 1]] = 0
        excess = (p[row] - draft_row).clamp(min=0)
        torch.testing.assert_close(rule.residual(p[row], q[row], row, torch.tensor(x)), excess / excess.sum())
    tokens = torch.tensor([3, 20])
    torch.testing.assert_close(rule.kept_at(p, q, position, tokens), kept[position, tokens])


@pytest.mark.parametrize("budget", [0.02, 0.3, 2.0])
@pytest.mark.parametrize("k", [1, 5])
def test_lantern_takes_the_targets_mass_where_tokens_are_ranked(k, budget):
    vocabulary = 40
    points = torch.rand(vocabulary, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    neighbours = torch.cdist(points, points).fill_diagonal_(torch.inf).argsort(-1)[:, :-1]
    p = random_rows(vocabulary, seed=1, sharpness=4.0)
    rule, borrowings = Lantern(neighbours, k, budget), set()
    for x in range(vocabulary):
        _, borrowed = lantern_definition(p, x, neighbours[x, :k].tolist(), budget)
        rest = [0.0 if y == x or (borrowed and y in neighbours[x, : k + 1].tolist()) else float(p[y]) for y in range(vocabulary)]
        expected = torch.tensor(rest, dtype=torch.float64) / sum(rest)
        torch.testing.assert_close(rule.residual(p, torch.eye(vocabulary, dtype=torch.float64)[x], 0, x), expected)
        borrowings.add(borrowed)
    assert True in borrowings
    tokens = torch.arange(vocabulary)
    rows = rule.residual(p.expand(vocabulary, -1), torch.eye(vocabulary, dtype=torch.float64), tokens, tokens)
    torch.testing.assert_close(rows[7], rule.residual(p, torch.eye(vocabulary, dtype=torch.float64)[7], 0, 7))


def lantern_step(p: Tensor, q: Tensor, nearest: Tensor, k: int, budget: float) -> tuple[Tensor, Tensor]:
    """By the definitions, of each drafted code: the mass that is kept (V,), and the law after it was rejected (V, V). p, q (V,)."""
    kept, residual = torch.zeros_like(q), torch.zeros(len(q), len(q), dtype=q.dtype)
    for x in range(len(q)):
        raised, borrowed = lantern_definition(p, x, nearest[x, :k].tolist(), budget)
        kept[x] = min(float(q[x]), raised)
        row = q.clone()
        if borrowed:
            row[nearest[x, : k + 1]] = 0
        residual[x] = (p - row).clamp(min=0)
    return kept, residual / residual.sum(-1, keepdim=True)


class FirstTokensResidual(Lantern):
    """Wrong after an acceptance: the residual of the first drafted token."""

    first = 0

    def residual(self, p, q, position, token):
        return super().residual(p, q, position, torch.full_like(token, self.first))


@pytest.mark.parametrize("budget", [0.15, 2.5])
def test_lantern_on_a_chain_follows_its_definition_after_acceptances_too(budget):
    """The round's law is exact where every draft and every random number lead to the token that the definitions name."""
    p, q = random_rows(3, 8, seed=40, sharpness=3.0), random_rows(2, 8, seed=41, sharpness=3.0)
    nearest = torch.rand(8, 8, generator=torch.Generator().manual_seed(2)).fill_diagonal_(9.0).argsort(-1)[:, :-1]
    steps = [lantern_step(p[i], q[i], nearest, 2, budget) for i in range(2)]
    drafts = torch.multinomial(q, 150, replacement=True, generator=torch.Generator().manual_seed(6)).T
    wrong, after_one = 0, 0
    for seed, draft in enumerate(drafts):
        numbers = torch.rand(3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        accepted = 0
        while accepted < 2 and numbers[accepted] < steps[accepted][0][draft[accepted]] / q[accepted, draft[accepted]]:
            accepted += 1
        law = p[2] if accepted == 2 else steps[accepted][1][draft[accepted]]
        token = int((law.cumsum(0) > numbers[2]).nonzero()[0])
        verdict = verify(p, q, draft, Lantern(nearest, 2, budget), torch.Generator().manual_seed(seed))
        assert (verdict.accepted, verdict.token) == (accepted, token)
        after_one += accepted == 1
        control = FirstTokensResidual(nearest, 2, budget)
        control.first = int(draft[0])
        wrong += verify(p, q, draft, control, torch.Generator().manual_seed(seed)).token != token
    assert after_one > 20
    assert wrong > 3


@pytest.mark.parametrize("budget", [0.15, 2.5])
def test_the_round_law_of_lantern_is_that_of_its_definition(budget):
    p, q = random_rows(2, 8, seed=40, sharpness=3.0), random_rows(2, 8, seed=41, sharpness=3.0)
    nearest = torch.rand(8, 8, generator=torch.Generator().manual_seed(2)).fill_diagonal_(9.0).argsort(-1)[:, :-1]
    (first, after_first), (second, after_second) = (lantern_step(p[i], q[i], nearest, 2, budget) for i in range(2))
    law = first[:, None] * (second + (q[1] - second) @ after_second) + ((q[0] - first) @ after_first)[:, None] * p[1]
    torch.testing.assert_close(theory.round_law(p, q, Lantern(nearest, 2, budget)), law)
    assert float(theory.total_variation(law.flatten(), theory.target_law(p).flatten())) > 0.02


@pytest.mark.parametrize(("columns", "cells"), [(1, 2**24), (64, 2**24), (4, 1), (4, 50), (3, 200)])
def test_lantern_does_not_depend_on_how_many_neighbours_are_looked_at_together(columns, cells, monkeypatch):
    neighbours = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)).argsort(-1)[:, :25]
    p, q = random_rows(3, 40, seed=1, sharpness=4.0), random_rows(3, 40, seed=2, sharpness=4.0)
    expected = [Lantern(neighbours, k, budget).kept_mass(p, q, 0) for k in (1, 5, 24) for budget in (0.05, 0.6, 4.0)]
    monkeypatch.setattr("coolsd.rules.FIRST_COLUMNS", columns)
    monkeypatch.setattr("coolsd.rules.CELLS", cells)
    for k, budget in product((1, 5, 24), (0.05, 0.6, 4.0)):
        torch.testing.assert_close(Lantern(neighbours, k, budget).kept_mass(p, q, 0), expected.pop(0))


def test_lantern_with_the_optimal_residual_uses_the_vanilla_one():
    p, q = random_rows(2, 4, seed=3)
    excess = (p - q).clamp(min=0)
    rule = Lantern(NEIGHBOURS, 2, 2.0, optimal=True)
    torch.testing.assert_close(rule.residual(p, q, 0, 1), excess / excess.sum())
    torch.testing.assert_close(Rule.residual(rule, p, q, 0, 1), excess / excess.sum())


def test_lantern_borrows_up_to_its_budget_and_with_it():
    """Neighbours whose mass is exactly the budget are within it."""
    p, q = torch.tensor([0.25, 0.25, 0.5, 0.0]), torch.tensor([0.5, 0.25, 0.0, 0.25])
    for budget in (0.25, 2.0):
        rule = Lantern(NEIGHBOURS, 1, budget)
        assert float(rule.kept_mass(p, q, 0)[0]) == 0.5
        assert rule.residual(p, q, 0, torch.tensor(0)).tolist() == pytest.approx([0.0, 1 / 3, 2 / 3, 0.0])
    assert float(Lantern(NEIGHBOURS, 1, 0.2499).kept_mass(p, q, 0)[0]) == 0.25


def test_lantern_refuses_a_short_table():
    with pytest.raises(ValueError, match=r"k = 4"):
        Lantern(NEIGHBOURS, 4, 2.0)


@pytest.mark.parametrize("budget", [0.05, 0.6, 1.5, 4.0])
@pytest.mark.parametrize("ranked", [False, True])
def test_lantern_keeps_the_same_where_looking_is_not_free(budget, ranked, monkeypatch):
    """The GPU's way, which passes no neighbour over, against the CPU's, which stops at those that need no more."""
    monkeypatch.setattr("coolsd.rules.CELLS", 500)  # several blocks
    neighbours = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)).argsort(-1)[:, :25]
    p, q = random_rows(3, 40, seed=1, sharpness=4.0), random_rows(3, 40, seed=2, sharpness=4.0)
    if ranked:
        q = torch.nn.functional.one_hot(q.argmax(-1), 40).double()
    expected = Lantern(neighbours, 20, budget).kept_mass(p, q, 0)
    monkeypatch.setattr("coolsd.rules.host_can_branch", lambda device: False)
    torch.testing.assert_close(Lantern(neighbours, 20, budget, ranked=ranked).kept_mass(p, q, 0), expected)
    assert bool((expected > torch.minimum(p, q)).any())


def test_a_schedule_shorter_than_the_draft_is_refused_in_words():
    p, q, draft = drafted_rows(3)
    generator = torch.Generator().manual_seed(0)
    for run in (
        lambda: verify(p, q, draft, Relaxed(uniform(2, 1.5)), generator),
        lambda: verify_block(p, q, draft, uniform(2, 1.5), generator),
    ):
        with pytest.raises(ValueError, match=r"^The schedule has 2 positions and the draft 3\. Give an ω for each drafted token\.$"):
            run()
