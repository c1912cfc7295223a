import pytest
import torch

from coolsd.schedules import annealed, between, lossless, uniform, window


@pytest.mark.parametrize(
    ("length", "delta", "expected"),
    [
        (3, 1.1, [1.893, 0.940, 0.467]),
        (4, 2.0, [4.288, 2.129, 1.057, 0.525]),
        (5, 1.1, [2.855, 1.418, 0.704, 0.350, 0.174]),
        (5, 2.0, [5.191, 2.578, 1.280, 0.636, 0.316]),
    ],
)
def test_mean_normalised_values(length, delta, expected):
    omega = annealed(length, delta)
    torch.testing.assert_close(omega, torch.tensor(expected), atol=6e-4, rtol=0)
    torch.testing.assert_close(omega.mean(), torch.tensor(delta))


def test_values_are_computed_in_double_precision():
    exponent = -0.7 * torch.arange(1, 17, dtype=torch.float64)
    assert torch.equal(annealed(16, 2.0), (2.0 * exponent.exp() / exponent.exp().mean()).float())


def test_given_mu_is_the_formula():
    torch.testing.assert_close(annealed(4, 1.5, nu=0.4, mu=0.3), 1.5 * torch.exp(-0.4 * torch.arange(1.0, 5.0) - 0.3))


def test_clamp_raises_only_what_is_below_one():
    plain, clamped = annealed(5, 1.1), annealed(5, 1.1, clamp=True)
    assert torch.equal(clamped, plain.clamp(min=1))
    assert bool((plain < 1).any())


@pytest.mark.parametrize("nu", [-500.0, -3.0, 0.0, 3.0, 500.0, 1e6])
def test_extreme_decay_stays_finite_and_keeps_the_mean(nu):
    omega = annealed(16, 2.0, nu=nu)
    assert bool(omega.isfinite().all())
    torch.testing.assert_close(omega.mean(), torch.tensor(2.0))
    assert bool(annealed(16, 2.0, nu=nu, mu=-10.0).isfinite().all())


def test_nothing_decays_to_uniform():
    torch.testing.assert_close(annealed(6, 1.7, nu=0.0), uniform(6, 1.7))
    assert uniform(3, 2).tolist() == [2.0, 2.0, 2.0]
    assert lossless(3).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("schedule", [annealed(0, 2.0), uniform(0, 2.0), lossless(0), annealed(7, 2.0), uniform(7, 2.0), lossless(7)])
def test_float32_rows(schedule):
    assert schedule.dtype == torch.float32
    assert schedule.shape in ((0,), (7,))


def test_every_schedule_is_finite_as_promised():
    for omega in (annealed(5, 0.0, -500.0, 0.0), annealed(5, 2.0, -500.0, 0.0), uniform(3, float("inf")), window(3, float("inf"), 2)):
        assert bool(omega.isfinite().all())
    assert annealed(5, 0.0, -500.0, 0.0).tolist() == [0.0] * 5


def test_a_window_is_relaxed_early_and_exact_late():
    assert window(5, 1.5, 2).tolist() == [1.5, 1.5, 1.0, 1.0, 1.0]
    assert window(2, 1.5, 4).tolist() == [1.5, 1.5]


def test_between_two_schedules_of_a_frontier():
    frontier = [(0.0, [1.0, 1.0]), (0.1, [2.0, 1.0]), (0.3, [4.0, 2.0])]
    for at, expected in ((-1.0, [1, 1]), (0.05, [1.5, 1]), (0.1, [2, 1]), (0.2, [3, 1.5]), (0.9, [4, 2])):
        assert between(frontier, at).tolist() == pytest.approx(expected)
