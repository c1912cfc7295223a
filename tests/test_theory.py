import block_laws
import pytest
import torch
from tables import enumerate_round, random_rows, relaxed_step

from coolsd import theory
from coolsd.schedules import annealed, lossless, uniform
from coolsd.verification import Diverse, Lantern, Relaxed, Rule

P, Q = random_rows(3, 4, seed=1), random_rows(3, 4, seed=2)
SCHEDULES = [lossless(3), uniform(3, 0.5), uniform(3, 1.3), annealed(3, 1.1), annealed(3, 2.0, clamp=True), annealed(3, 2.0, nu=-0.7)]
NEIGHBOURS = torch.tensor([[1, 2, 3], [0, 2, 3], [3, 1, 0], [2, 1, 0]])
RULES: list[Rule] = [*map(Relaxed, SCHEDULES), Diverse(0.7), Lantern(NEIGHBOURS, 2, 2.5), Lantern(NEIGHBOURS, 2, 0.4, optimal=True)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_round_matches_the_enumeration(schedule):
    exact = enumerate_round(lambda x: P[len(x)], lambda x: Q[len(x)], schedule.double().tolist())
    rule = Relaxed(schedule)
    law = theory.round_law(P, Q, rule)
    torch.testing.assert_close(law.flatten(), torch.tensor(list(exact.law.values()), dtype=torch.float64))
    torch.testing.assert_close(theory.target_law(P).flatten(), torch.tensor(list(exact.target.values()), dtype=torch.float64))
    assert float(theory.expected_accepted(P, Q, rule)) == pytest.approx(exact.accepted, abs=1e-12)
    assert float(theory.tv_bound(P, Q, rule)) == pytest.approx(exact.bias, abs=1e-12)
    assert float(theory.joint_variation(P, law)) == pytest.approx(exact.variation, abs=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_laws_are_laws_and_the_bound_holds(rule):
    for seed in range(10):
        p, q = random_rows(3, 4, seed=seed), random_rows(3, 4, seed=100 + seed)
        law = theory.round_law(p, q, rule)
        assert float(law.min()) >= 0
        assert float(law.sum()) == pytest.approx(1, abs=1e-12)
        assert float(theory.joint_variation(p, law)) <= float(theory.tv_bound(p, q, rule)) + 1e-12
        step = theory.step_law(p[0], q[0], rule, 0)
        torch.testing.assert_close(law.sum((1, 2)), step)
        assert float(theory.total_variation(step, p[0])) >= float(theory.step_cost(p[0], q[0], rule, 0)) - 1e-12


def test_lantern_step_law_mixes_the_residuals_of_all_rejected_tokens():
    p, q = P[0], Q[0]
    rule = Lantern(NEIGHBOURS, 2, 2.5)
    kept = rule.kept_mass(p, q, 0)
    law = kept.clone()
    for x in range(4):
        law += (q - kept)[x] * rule.residual(p, q, 0, torch.tensor(x))
    torch.testing.assert_close(theory.step_law(p, q, rule, 0), law)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_more_rejected_tokens_than_are_held_at_once(limit, monkeypatch):
    rule = Lantern(NEIGHBOURS, 2, 2.5)
    step, law = theory.step_law(P[0], Q[0], rule, 0), theory.round_law(P, Q, rule)
    monkeypatch.setattr(theory, "RESIDUALS", limit)
    torch.testing.assert_close(theory.step_law(P[0], Q[0], rule, 0), step)
    torch.testing.assert_close(theory.round_law(P, Q, rule), law)


def test_a_law_of_many_codes_is_a_law():
    p, q = random_rows(2, 600, seed=3)
    nearest = torch.rand(600, 600, generator=torch.Generator().manual_seed(0)).argsort(-1)[:, :20]
    assert int((q > p).sum()) > theory.RESIDUALS
    for rule in (Lantern(nearest, 10, 1.5), Lantern(nearest, 10, 0.01), Relaxed(uniform(1, 1.5)), Diverse(0.7)):
        assert float(theory.step_law(p, q, rule, 0).sum()) == pytest.approx(1, abs=1e-12)


def test_variations_of_many_rows_and_laws_of_float32_rows():
    torch.testing.assert_close(theory.total_variation(P, Q), torch.stack([theory.total_variation(p, q) for p, q in zip(P, Q, strict=True)]))
    assert theory.target_law(P.float()).dtype == torch.float64


def test_the_position_reaches_the_rule():
    """A rule whose residuals depend on the token, and whose kept mass on the position."""

    class Late(Lantern):
        def kept_mass(self, p, q, position):
            return super().kept_mass(p, q, position) * torch.as_tensor(position).add(1.0).reciprocal().unsqueeze(-1)

        def residual(self, p, q, position, token):
            rest = torch.ones_like(p) if position == 0 else p
            return rest / rest.sum(-1, keepdim=True)

    rule = Late(NEIGHBOURS, 2, 2.5)
    kept = rule.kept_mass(P[1], Q[1], 1)
    torch.testing.assert_close(theory.step_law(P[1], Q[1], rule, 1), kept + (1 - kept.sum()) * P[1])
    kept = rule.kept_mass(P[0], Q[0], 0)
    torch.testing.assert_close(theory.step_law(P[0], Q[0], rule, 0), kept + (1 - kept.sum()) / 4)
    accepted = [float(rule.kept_mass(P[i], Q[i], i).sum()) for i in range(3)]
    expected = accepted[0] * (1 + accepted[1] * (1 + accepted[2]))
    assert float(theory.expected_accepted(P, Q, rule)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("omega", [0.3, 1.0, 1.7])
def test_step(omega):
    rule = Relaxed(uniform(1, omega))
    law = theory.step_law(P[0].float(), Q[0].float(), rule, 0)
    torch.testing.assert_close(law, relaxed_step(P[0], Q[0], float(torch.tensor(omega))), atol=1e-6, rtol=0)
    assert law.dtype == torch.float64
    formula = torch.minimum((Q[0] - P[0]).clamp(min=0), (max(omega, 1) - 1) * P[0]).sum()
    assert float(theory.step_cost(P[0], Q[0], rule, 0)) == pytest.approx(float(formula), abs=1e-7)
    assert float(theory.total_variation(law, P[0])) == pytest.approx(float(formula), abs=1e-6)


def test_bound_is_tight_when_one_position_is_relaxed():
    rule = Relaxed(torch.tensor([1.0, 2.0, 1.0]))
    bound = float(theory.tv_bound(P, Q, rule))
    assert bound > 0.01
    assert float(theory.joint_variation(P, theory.round_law(P, Q, rule))) == pytest.approx(bound, abs=1e-12)


def test_clamping_a_tail_keeps_the_law_and_accepts_more():
    plain, clamped = Relaxed(annealed(3, 1.1)), Relaxed(annealed(3, 1.1, clamp=True))
    torch.testing.assert_close(theory.round_law(P, Q, plain), theory.round_law(P, Q, clamped))
    assert float(theory.expected_accepted(P, Q, clamped)) > float(theory.expected_accepted(P, Q, plain)) + 0.05


def test_closed_form_of_the_bound_above_one():
    p, q = P[:1].expand(4, -1), Q[:1].expand(4, -1)
    rule = Relaxed(annealed(4, 2.5, clamp=True))
    alpha = 1 - float(theory.total_variation(p[0], q[0]))
    accepted = rule.kept_mass(p, q, torch.arange(4)).sum(-1).prod()
    closed = (1 - alpha) * float(theory.expected_accepted(p, q, rule)) - alpha * (1 - float(accepted))
    assert float(theory.tv_bound(p, q, rule)) == pytest.approx(closed, abs=1e-6)


def test_degenerate_rows_stay_finite():
    eye = torch.eye(4)
    for p, q in ((eye[:2], eye[2:]), (eye[:2], eye[:2]), (eye[:2], Q[:2]), (P[:2], eye[:2])):
        for rule in RULES:
            assert bool(theory.round_law(p, q, rule).isfinite().all())
            assert bool(theory.tv_bound(p, q, rule).isfinite())
        assert bool(block_laws.block_round_law(p, q, uniform(2, 2.0)).isfinite().all())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_block(schedule):
    for seed in range(20):
        p, q = random_rows(3, 4, seed=seed), random_rows(3, 4, seed=50 + seed)
        law = block_laws.block_round_law(p, q, schedule)
        variation = float(theory.joint_variation(p, law))
        assert float(law.sum()) == pytest.approx(1, abs=1e-12)
        assert variation <= float(block_laws.block_tv_bound(p, q, schedule)) + 1e-12
        assert float(block_laws.block_expected_accepted(p, q, schedule)) >= float(theory.expected_accepted(p, q, Relaxed(schedule))) - 1e-9
        if bool((schedule <= 1).all()):
            assert variation < 1e-12


def test_block_example_of_its_paper():
    p, q = torch.tensor([[1 / 3, 2 / 3]] * 2, dtype=torch.float64), torch.tensor([[2 / 3, 1 / 3]] * 2, dtype=torch.float64)
    assert float(theory.expected_accepted(p, q, Relaxed(lossless(2)))) == pytest.approx(10 / 9)
    assert float(block_laws.block_expected_accepted(p, q, lossless(2))) == pytest.approx(11 / 9)


def test_block_of_one_is_the_token_rule():
    for omega in (0.5, 1.0, 3.0):
        torch.testing.assert_close(
            block_laws.block_round_law(P[:1], Q[:1], uniform(1, omega)), theory.round_law(P[:1], Q[:1], Relaxed(uniform(1, omega)))
        )
