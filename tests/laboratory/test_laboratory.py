"""The laboratory's numbers against direct definitions, and its mistakes."""

import pytest
import torch
from tables import FAILS, PASSES, chi_square, enumerate_round, relaxed_step

from coolsd import schedules, theory
from coolsd.laboratory import exact
from coolsd.laboratory.exact import CORRECT, PRESETS, TOKENS, Knobs, LaboratoryError
from coolsd.laboratory.mistakes import MISTAKES, Reseeded
from coolsd.sampling import draw
from coolsd.ui.laboratory import drawing as parts
from coolsd.ui.laboratory import tab
from coolsd.verification import verify

ROWS = {name: tuple(exact.read_row(row, "pq"[i]) for i, row in enumerate(rows)) for name, rows in PRESETS.items()}
P, Q = ROWS["ambiguous"]
BIASED = [Knobs(name, 0.5) for name in MISTAKES]
EVERY = [
    *(Knobs(name) for name in CORRECT),
    Knobs("lantern", k=3, budget=0.4),
    Knobs("lantern", optimal=True),
    Knobs("lantern++", optimal=True),
    *BIASED,
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# --- input ------------------------------------------------------------------------------------------------------------------------


def test_rows_are_normalised():
    row = exact.read_row([2, 1, 1, 0, 0, 0], "p")
    assert row.tolist() == [0.5, 0.25, 0.25, 0, 0, 0]


@pytest.mark.parametrize(
    "row", [None, "1,2", [1] * 5, [0] * 6, [1, -1, 1, 1, 1, 1], [float("nan")] * 6, [float("inf")] * 6, [True] * 6, [1e308] * 6]
)
def test_bad_rows_are_refused_with_advice(row):
    with pytest.raises(LaboratoryError, match=r"row p .*(preset|bars)"):
        exact.read_row(row, "p")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"choice": "magic"}, "The rule"),
        ({"choice": ["lossless"]}, "The rule"),
        ({"omega": float("nan")}, "ω"),
        ({"omega": True}, "ω"),
        ({"omega": None}, "ω"),
        ({"k": 0}, "k must"),
        ({"k": 1.5}, "k must"),
        ({"budget": 1.1}, "budget"),
        ({"cap": 1.0}, "λ must"),
    ],
)
def test_bad_knobs_are_refused_by_name(change, named):
    with pytest.raises(LaboratoryError, match=named):
        exact.read_knobs(**{"choice": "lossless", "omega": 1.0, "k": 1, "budget": 0.1, "cap": 2.0, "optimal": False, **change})


# --- one token --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("knobs", EVERY)
def test_masses_add_up(preset, knobs):
    p, q = ROWS[preset]
    result = exact.one_token(p, q, knobs)
    torch.testing.assert_close(result.kept + result.recovered, result.law)
    assert float(result.law.sum()) == pytest.approx(1)
    assert float(result.draft_row.sum()) == pytest.approx(1)
    assert bool((result.kept <= result.draft_row + 1e-12).all())
    assert float(result.recovered.sum()) == pytest.approx(1 - result.accepted)
    assert result.least <= result.variation + 1e-12
    positive = result.draft_row > 0
    torch.testing.assert_close(result.accept_prob[positive], (result.kept / result.draft_row)[positive])


@pytest.mark.parametrize("omega", [0.0, 0.4, 1.0, 1.5, 8.0])
def test_relaxed_token_is_the_definitions(omega):
    expected = relaxed_step(P, Q, float(torch.tensor(omega)))
    torch.testing.assert_close(exact.one_token(P, Q, Knobs("relaxed", omega)).law, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("preset", PRESETS)
def test_lossless_emits_p(preset):
    p, q = ROWS[preset]
    assert exact.one_token(p, q, Knobs()).variation < 1e-12


def wrong_law(name, p, q):
    """What the wrong rule emits, from its description alone."""
    f = torch.minimum(torch.ones_like(p), p / q)
    residual = (p - q).clamp(min=0) / (p - q).clamp(min=0).sum()
    if name == "greedy":
        top = int(q.argmax())
        law = (1 - f[top]) * residual
        law[top] += f[top]
        return law
    if name == "forgotten":
        return q * f + (1 - (q * f).sum()) * p
    if name == "vanilla":
        kept = torch.minimum(q, 0.5 * p)
        return kept + (1 - kept.sum()) * residual
    test, redraw = torch.rand(2, generator=generator(), dtype=torch.float64).tolist()
    law = torch.where(test < f, q, 0.0)
    law[int((residual.cumsum(0) > redraw).nonzero()[0])] += 1 - law.sum()
    return law


@pytest.mark.parametrize("knobs", BIASED, ids=lambda k: k.choice)
def test_mistakes_emit_what_their_description_says(knobs):
    result = exact.one_token(P, Q, knobs)
    torch.testing.assert_close(result.law, wrong_law(knobs.choice, P, Q), atol=1e-7, rtol=0)
    assert result.variation > 0.05


def test_reseeding_with_another_seed_is_biased_otherwise():
    one, other = (theory.step_law(P, Q, Reseeded(schedules.lossless(1).double(), seed), 0) for seed in (0, 1))
    assert float(theory.total_variation(one, other)) > 0.05


def test_borrowed_mass_is_lanterns():
    for knobs in (Knobs("lantern"), Knobs("lantern", k=4, budget=0.5), Knobs("lantern", budget=0.0)):
        for token in range(len(TOKENS)):
            lent = exact.borrowed(P, token, knobs)
            assert len(lent) == knobs.k
            total, expected = 0.0, [0.0]
            for code in exact.NEAREST[token, : knobs.k]:
                total += float(P[code])
                if total <= knobs.budget:
                    expected.append(total)
            assert sum(mass for _, mass in lent) == pytest.approx(expected[-1])
            kept = exact.one_token(P, Q, knobs).kept[token]
            assert float(kept) == pytest.approx(min(float(Q[token]), float(P[token]) + expected[-1]))


def test_lantern_plus_plus_keeps_what_its_definition_says_and_never_more_than_uniform():
    for cap in (1.5, 2.5, 6.0):
        kept = exact.one_token(P, Q, Knobs("lantern++", k=3, cap=cap)).kept
        for token in range(len(TOKENS)):
            total, most = 0.0, 0.0
            for code in exact.NEAREST[token, :3]:
                total += float(P[code])
                if total <= (cap - 1) * float(P[token]):
                    most = total
            assert float(kept[token]) == pytest.approx(min(float(Q[token]), float(P[token]) + most))
        assert bool((kept <= exact.one_token(P, Q, Knobs("relaxed", cap)).kept + 1e-6).all())


def test_the_best_residual_costs_lantern_plus_plus_less():
    own, best = (exact.one_token(P, Q, Knobs("lantern++", optimal=optimal)) for optimal in (False, True))
    assert own.variation > best.variation + 1e-3
    assert best.variation == pytest.approx(own.least) == pytest.approx(best.least)


# --- one round --------------------------------------------------------------------------------------------------------------------


def test_round_rows_are_as_far_off_as_asked():
    p, q = exact.round_rows(5, 0.1, 0.5)
    assert theory.total_variation(p, q).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert q.sum(-1).tolist() == pytest.approx([1] * 5)
    assert float(q.min()) > 0


@pytest.mark.parametrize("kind", exact.SHAPES)
def test_round_matches_the_enumeration(kind):
    p, q = exact.round_rows(3, 0.2, 0.4)
    omega = exact.schedule(kind, 3, 1.6, 0.7)
    result = exact.one_round(p, q, omega)
    enumerated = enumerate_round(lambda x: p[len(x)], lambda x: q[len(x)], omega.double().tolist())
    assert result.accepted == pytest.approx(enumerated.accepted)
    assert result.bound == pytest.approx(enumerated.bias)
    assert result.variation == pytest.approx(enumerated.variation)
    assert sum(result.reached) == pytest.approx(result.accepted)
    assert sum(result.spent) == pytest.approx(result.bound)
    assert result.accept_length == pytest.approx(1 + enumerated.accepted)


def test_reversed_is_annealed_backwards_also_with_a_given_mu():
    for mu in (None, 0.3):
        forward, backward = (exact.schedule(kind, 4, 2.0, 0.5, mu) for kind in ("annealed", "reversed"))
        assert backward.tolist() == forward.tolist()[::-1]


def test_contestants_meet_at_the_same_accept_length():
    p, q = exact.round_rows(5, 0.15, 0.4)
    own = exact.one_round(p, q, schedules.uniform(5, 1.4))
    outcome = exact.same_accept_length(p, q, own.accepted, 0.7)
    assert outcome["uniform"].delta == pytest.approx(1.4, abs=1e-5)
    assert outcome["uniform"].round.bound == pytest.approx(own.bound, abs=1e-5)
    assert all(c.round.accepted == pytest.approx(own.accepted, abs=1e-5) for c in outcome.values())
    assert outcome["clamped"].round.bound < outcome["annealed"].round.bound < outcome["reversed"].round.bound


def test_a_clamped_schedule_cannot_accept_less_than_lossless():
    p, q = exact.round_rows(4, 0.2, 0.4)
    outcome = exact.same_accept_length(p, q, 0.5, 0.7)
    assert outcome["clamped"].round is None
    assert outcome["uniform"].round.bound < 1e-6
    assert "cannot accept so little" in parts.contest(outcome, 0.5, 2.0)


def test_contest_names_the_winner():
    p, q = exact.round_rows(5, 0.15, 0.4)
    outcome = exact.same_accept_length(p, q, 3.3, 0.7)
    view = parts.contest(outcome, 3.3, 2.5)
    bounds = {c.title: c.round.bound for c in outcome.values()}
    assert f"{min(bounds, key=bounds.get)} costs least" in view
    assert view.count("· least") == 2
    assert "assumes TV(p, q)" not in view
    assert "assumes TV(p, q)" in tab.unroll(*{**tab.ROUND, "last": 0.45}.values())[1]


# --- is it lossless? ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("knobs", EVERY)
def test_simulated_rounds_follow_the_exact_law(knobs):
    result = exact.one_token(P, Q, knobs)
    counts = exact.simulate(P, exact.case(knobs, Q), 20_000, generator())
    assert int(counts.sum()) == 20_000
    assert chi_square(counts[None], result.law[None]) > PASSES
    if result.variation > 0.05:
        assert chi_square(counts[None], P[None]) < FAILS


@pytest.mark.parametrize("knobs", [Knobs("lantern", k=3, budget=0.4), Knobs("greedy")], ids=lambda k: k.choice)
def test_simulation_is_verify_done_often(knobs):
    rule_case, random = exact.case(knobs, Q), generator(3)
    counts = torch.zeros(len(P))
    target = torch.stack((P, P))
    for _ in range(400):
        draft = draw(rule_case.draft_row[None], random)
        verdict = verify(target, rule_case.draft_row[None], draft, rule_case.rule, random)
        counts[int(draft) if verdict.accepted else verdict.token] += 1
    assert chi_square(counts[None], exact.one_token(P, Q, knobs).law[None]) > PASSES


def test_chi_square_is_the_tests_own():
    for seed, law in ((0, P), (1, Q), (2, ROWS["peaked"][0])):
        counts = draw(P.expand(500, -1), generator(seed)).bincount(minlength=len(P))
        assert exact.chi_square(counts, law).chance == pytest.approx(chi_square(counts[None], law[None]))


def test_a_token_the_target_never_draws_settles_it():
    p, _ = ROWS["disjoint"]
    test = exact.chi_square(torch.tensor([500, 300, 200, 0, 1, 0]), p)
    assert (test.chance, test.impossible) == (0.0, 4)


def test_one_possible_token_leaves_nothing_to_test():
    assert exact.chi_square(torch.tensor([9, 0, 0, 0, 0, 0]), torch.tensor([1.0, 0, 0, 0, 0, 0])).chance == 1
