"""Block verification against its algorithm, walked in plain Python, with controls that must fail."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from block_laws import block_by_algorithm, block_steps
from tables import FAILS, PASSES, Toy, chi_square, drafted_rows, enumerate_round, random_rows
from torch import Tensor

from coolsd.schedules import annealed, lossless, uniform
from coolsd.verification import block_kept, verify_block

BLOCKS = {
    "lossless": lossless(3),
    "uniform": uniform(3, 1.5),
    "annealed": annealed(3, 1.5),
    "tight": uniform(3, 0.7),
    "loose": uniform(3, 4.0),
}


BLOCK_TOY = Toy.make(3, seed=21)


def block_rows(table: Tensor) -> Callable[[tuple[int, ...]], Tensor]:
    return lambda prefix: table[(0, 0, *prefix)[-2:]]


def play_blocks(schedule: Tensor, rounds: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Counts of the first three tokens (1, 27), the target completing each block; and per round N, Σ r_i, Σ cost."""
    generator = torch.Generator().manual_seed(4)
    draft = BLOCK_TOY.draft(torch.zeros(rounds, 2, dtype=torch.long), 3, generator)
    p, q = BLOCK_TOY.rows(torch.zeros(rounds, 2, dtype=torch.long), draft)
    outcomes, figures = [], []
    for b in range(rounds):
        verdict = verify_block(p[b].float(), q[b].float(), draft[b], schedule, generator)
        tokens = [*draft[b, : verdict.accepted].tolist(), verdict.token]
        while len(tokens) < 3:
            tokens.append(int(torch.multinomial(block_rows(BLOCK_TOY.p)(tuple(tokens)), 1, generator=generator)))
        outcomes.append(tokens[0] * 9 + tokens[1] * 3 + tokens[2])
        figures.append((verdict.accepted, float(verdict.accept_prob.sum()), float(verdict.cost.sum())))
    columns = torch.tensor(figures, dtype=torch.float64).unbind(1)
    return torch.bincount(torch.tensor(outcomes), minlength=27)[None], dict(zip(("accepted", "weight", "cost"), columns, strict=True))


@pytest.mark.parametrize("name", BLOCKS)
def test_block_follows_its_law_and_acceptance(name):
    schedule, rounds = BLOCKS[name], 1800
    law, expected, bias = block_by_algorithm(block_rows(BLOCK_TOY.p), block_rows(BLOCK_TOY.q), schedule.tolist())
    exact = enumerate_round(block_rows(BLOCK_TOY.p), block_rows(BLOCK_TOY.q), schedule.tolist())
    if bool((schedule <= 1).all()):
        assert max(abs(law[x] - exact.target[x]) for x in law) < 1e-12
    assert expected >= exact.accepted - 1e-9
    observed, figures = play_blocks(schedule, rounds)
    error = {name: 5 * float(values.std()) / rounds**0.5 for name, values in figures.items()}
    assert chi_square(observed, torch.tensor(list(law.values()))[None]) > PASSES
    assert abs(float(figures["accepted"].mean()) - expected) <= error["accepted"]
    assert abs(float(figures["weight"].mean()) - expected) <= error["weight"]
    variation = 0.5 * sum(abs(law[x] - exact.target[x]) for x in law)
    assert variation <= bias + 1e-9
    if name in ("uniform", "loose"):
        assert chi_square(observed, torch.tensor(list(exact.target.values()))[None]) < FAILS


@pytest.mark.parametrize("name", BLOCKS)
def test_block_figures_average_to_the_exact_ones(name):
    """Over all drafts: `accept_prob` sums to E[N] and `cost` to the bias, as neither depends on the random numbers."""
    _, expected, bias = block_by_algorithm(block_rows(BLOCK_TOY.p), block_rows(BLOCK_TOY.q), BLOCKS[name].tolist())
    drafts = torch.tensor(list(product(range(3), repeat=3)))
    p, q = BLOCK_TOY.rows(torch.zeros(27, 2, dtype=torch.long), drafts)
    chances = q.gather(-1, drafts[..., None]).prod(1).squeeze(-1)
    verdicts = [verify_block(p[b], q[b], drafts[b], BLOCKS[name], torch.Generator()) for b in range(27)]
    assert sum(d * v.accept_prob.double().sum() for d, v in zip(chances, verdicts, strict=True)) == pytest.approx(expected, abs=1e-6)
    assert sum(d * v.cost.double().sum() for d, v in zip(chances, verdicts, strict=True)) == pytest.approx(bias, abs=1e-6)
    assert (bias > 0.05) == (name in ("uniform", "annealed", "loose"))


@pytest.mark.parametrize("name", BLOCKS)
def test_a_seed_decides_as_the_algorithm_does(name):
    """With the same random numbers: how many are accepted, the token that follows, and every figure of the verdict."""
    schedule, ends = BLOCKS[name], set()
    for seed in range(80):
        p, q, draft = drafted_rows(seed=seed)
        p, q = 1.01 * p, 0.5 * p[:3] + 0.6 * q  # normalised anew, in double
        numbers = torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(1000 + seed)).tolist()
        laws = [[row / row.sum() for row in rows.double()] for rows in (p, q)]
        lossless_steps, steps = (block_steps(*laws, draft.tolist(), omega) for omega in ([1.0] * 3, schedule.tolist()))
        without, accepted = (max([0, *(i + 1 for i in range(3) if numbers[i] < part.stops[i])]) for part in (lossless_steps, steps))
        law = (laws[0][3] if accepted == 3 else steps.excess[accepted]).cumsum(0)
        verdict = verify_block(p, q, draft, schedule, torch.Generator().manual_seed(1000 + seed))
        assert (verdict.accepted, verdict.path) == (accepted, tuple(range(accepted)))
        assert verdict.token == int((law > numbers[3] * law[-1]).nonzero()[0])
        assert verdict.kind == ("bonus" if accepted == 3 else "recovered")
        assert verdict.relaxed.tolist() == [bool((schedule > 1).any()) and i >= without for i in range(accepted)]
        assert verdict.drafted == tuple(draft.tolist())
        cost = [float((k - r * row).clamp(min=0).sum()) for k, r, row in zip(steps.kept, steps.weights, laws[0], strict=False)]
        assert verdict.accept_prob.tolist() == pytest.approx(steps.weights[1:], abs=1e-6)
        assert verdict.cost.tolist() == pytest.approx(cost, abs=1e-6)
        assert verdict.cost.dtype == verdict.accept_prob.dtype == torch.float32
        ends.add((accepted, bool(verdict.relaxed.any())))
    assert {n for n, _ in ends} >= {0, 1, 3}
    assert any(relaxed for _, relaxed in ends) == bool((schedule > 1).any())


def test_control_block_that_stops_at_the_first_failure_is_seen(monkeypatch):
    law, *_ = block_by_algorithm(block_rows(BLOCK_TOY.p), block_rows(BLOCK_TOY.q), [1.0] * 3)
    monkeypatch.setattr("coolsd.verification.block_accepted", lambda stop, uniform: (uniform < stop).int().cumprod(-1).sum(-1))
    assert chi_square(play_blocks(lossless(3), 1800)[0], torch.tensor(list(law.values()))[None]) < FAILS


def test_block_marks_what_the_lossless_block_would_not_have_accepted():
    marks = {1.0: 0, 3.0: 0}
    for omega in marks:
        for seed in range(60):
            rows = drafted_rows(seed=seed)
            verdict, strict = (verify_block(*rows, uniform(3, w), torch.Generator().manual_seed(seed)) for w in (omega, 1.0))
            assert verdict.relaxed.tolist() == [i >= strict.accepted for i in range(verdict.accepted)]
            marks[omega] += int(verdict.relaxed.sum())
    assert marks[1.0] == 0
    assert marks[3.0] > 10


def test_the_cap_is_the_largest_that_keeps_no_more_than_the_weight():
    """The closed form against bisection, also where q has mass that p lacks and where the cap is never met."""
    capped = 0
    for seed in range(60):
        p, q = random_rows(2, 12, seed=seed, sharpness=5.0)
        p[seed % 12] = q[(seed + 3) % 12] = 0.0
        p, q, weight, omega = p / p.sum(), q / q.sum(), 0.2 + 0.013 * seed, 1.0 + 0.1 * seed
        low, high = 1.0, omega
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (low, middle) if float(torch.minimum(q, middle * weight * p).sum()) > weight else (middle, high)
        result = block_kept(p, q, torch.tensor(weight, dtype=torch.float64), torch.tensor(omega, dtype=torch.float64))
        torch.testing.assert_close(result, torch.minimum(q, low * weight * p), rtol=0, atol=1e-12)
        capped += low < omega - 1e-9
    assert 10 < capped < 60
