"""Predictions from drafted tokens against enumeration and against runs."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from tables import Toy, enumerate_round
from toy import ToyPair
from what_if import predict

from coolsd import statistics, stream, theory
from coolsd.rules import Relaxed
from coolsd.schedules import annealed, uniform
from coolsd.trace import Drafts, Round

LENGTH, CODES = 3, 3
TOY = Toy.make(CODES, seed=21)


def a_round(p: list[float], q: list[float]) -> Round:
    count = len(p)
    none, parents = (None,) * count, tuple(range(-1, count - 1))
    drafts = Drafts((0,) * count, parents, tuple(p), tuple(q), none, none, ("unexamined",) * count)
    return Round(1, 1, (0,), ("recovered",), (False,), count, (0.5,), (0.0,), count, 0.0, 0.0, 0.0, 0.0, drafts=drafts)


@pytest.mark.parametrize("omega", [uniform(3, 1.0), uniform(3, 1.6), annealed(3, 1.5), uniform(3, 5.0)], ids=["1", "1.6", "paper", "5"])
def test_the_mean_over_drafts_is_the_enumerated_round(omega):
    drafts = torch.tensor(list(product(range(CODES), repeat=LENGTH)))
    p, q = TOY.rows(torch.zeros(len(drafts), 2, dtype=torch.long), drafts)
    p, q = (rows[:, :LENGTH].gather(-1, drafts[..., None])[..., 0] for rows in (p, q))
    accepted = bias = 0.0
    for chance, p_draft, q_draft in zip(q.prod(1).tolist(), p.tolist(), q.tolist(), strict=True):
        prediction = predict([a_round(p_draft, q_draft)], omega.tolist())
        accepted += chance * (prediction.accept_length - 1)
        bias += chance * prediction.bias_per_token * prediction.accept_length
    exact = enumerate_round(lambda x: TOY.p[(0, 0, *x)[-2:]], lambda x: TOY.q[(0, 0, *x)[-2:]], omega.tolist())
    assert accepted == pytest.approx(exact.accepted, abs=1e-9)
    assert bias == pytest.approx(exact.bias, abs=1e-9)
    assert (bias > 0.05) == (float(omega.max()) > 1)


@pytest.mark.parametrize("factor", [1.3, 2.0])
def test_kl_is_estimated_within_a_quarter_and_exact_steps_have_none(factor):
    """Against the exact divergence of each step, on as many drafts as a few pictures have."""
    generator = torch.Generator().manual_seed(1)
    context = torch.randint(CODES, (1500, 2), generator=generator)
    drafts = TOY.draft(context, LENGTH, generator)
    p, q = TOY.rows(context, drafts)
    p, omega = p[:, :LENGTH], uniform(LENGTH, factor)
    drawn_p, drawn_q = (rows.gather(-1, drafts[..., None])[..., 0] for rows in (p, q))
    forecast = predict([a_round(*pair) for pair in zip(drawn_p.tolist(), drawn_q.tolist(), strict=True)], omega.tolist())
    rule, exact, reach = Relaxed(omega), 0.0, torch.ones(len(p))
    for i in range(LENGTH):
        emitted = torch.stack([theory.step_law(a, b, rule, i) for a, b in zip(p[:, i], q[:, i], strict=True)])
        exact += float((reach * (emitted * (emitted / p[:, i].double()).log()).nansum(-1)).sum())
        reach = reach * (factor * drawn_p[:, i] / drawn_q[:, i]).clamp(max=1)
    exact /= len(p) * forecast.accept_length
    assert forecast.kl_per_token == pytest.approx(exact, rel=0.25)
    assert predict([a_round([0.1, 0.2], [0.3, 0.1])], [1.0, 0.5]).kl_per_token == 0


def test_predicted_and_measured_agree_on_a_runs_own_schedule_and_not_on_another():
    pair, own, other = ToyPair(Toy.make(6, seed=5), (1, 60)), [], []
    for seed in range(12):
        rounds = list(stream(pair, "x", "uniform", delta=1.6, draft_length=3, cfg_scale=1.0, seed=seed))
        stats = statistics(rounds)
        for omega, gaps in (([1.6] * 3, own), ([1.0] * 3, other)):
            prediction = predict(rounds, omega)
            gaps.append([prediction.accept_length - stats.accept_length, prediction.bias_per_token - stats.bias_per_token])
    own, other = torch.tensor(own), torch.tensor(other)
    errors = own.std(0) / len(own) ** 0.5
    assert bool((own.mean(0).abs() < 4 * errors).all())
    assert bool((other.mean(0).abs() > 5 * errors).all())


def test_shorter_drafts_are_read_off_the_same_rounds_and_trees_are_refused():
    rounds = [replace(a_round([0.2, 0.3, 0.1], [0.4, 0.2, 0.2]), drafted=0, drafts=None), a_round([0.2, 0.3, 0.1], [0.4, 0.2, 0.2])]
    prediction = predict(rounds, [1.0, 1.0])
    assert prediction.accept_prob == pytest.approx((0.5, 1.0))
    assert prediction.accept_length == pytest.approx((2 + 0.5 + 0.5) / 2)
    assert prediction.target_calls == pytest.approx(2 / 1.5)
    assert prediction.bias_per_token == 0
    tree = replace(rounds[1], drafts=replace(rounds[1].drafts, parents=(-1, -1, 0)))
    assert predict([tree], [1.0]) is None
    assert predict([replace(rounds[1], drafts=None)], [1.0]) is None
    assert predict(rounds[:1], [1.0]) is None
