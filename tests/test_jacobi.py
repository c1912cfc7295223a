"""Jacobi drafting: the law of a whole picture by enumeration, the couplings, the pads, and the engine against plain AR's law."""

from collections import Counter
from itertools import product

import pytest
import torch
from tables import FAILS, PASSES, Toy, chi_square, counts, random_rows
from tiny import tiny_pair
from toy import ToyPair

from coolsd import generate
from coolsd.jacobi import JacobiDrafter, gumbel, independent, maximal
from coolsd.protocols import Draft
from coolsd.trees import chain

VOCABULARY, CODES_OF_COUPLING = 3, 6
TOY = Toy.make(VOCABULARY, 4)
CELLS, CODES, SLOTS = 5, 2, 2  # a guess must go untested twice before its stored row can matter


def target(seed: int):
    """A target row for each prefix: p(prefix) -> (V,)."""
    table = {}
    for length in range(CELLS):
        rows = random_rows(CODES**length, CODES, seed=seed + length)
        table |= dict(zip(product(range(CODES), repeat=length), rows, strict=True))
    return table.__getitem__


def ar_law(p) -> dict:
    law = {}
    for path in product(range(CODES), repeat=CELLS):
        law[path] = float(torch.stack([p(path[:i])[x] for i, x in enumerate(path)]).prod())
    return law


def one_hot(token: int) -> torch.Tensor:
    return torch.eye(CODES, dtype=torch.float64)[token]


ALL = (0.0, 1.0)


def redraws(how: str, p, q, token: int, noise: tuple[float, float] = ALL):
    """(probability, new token, stored row, noise) of a guess that was not tested, spelled out.

    noise: the interval that the cell's own number is known to lie in. Of two codes the difference of their Gumbel numbers decides; its
    distribution function turns it into a uniform number, and the first code is taken where that is below its probability.
    """
    if how == "gumbel":
        low, high = noise
        cut = min(max(float(p[0]), low), high)
        parts = [(0, (low, cut)), (1, (cut, high))]
        return [((end - start) / (high - low), x, p, (start, end)) for x, (start, end) in parts if end > start]
    if how == "independent":
        return [(float(p[x]), x, p, ALL) for x in range(CODES)]
    keep = min(1.0, float(p[token] / q[token]))
    rest = (p - q).clamp(min=0)
    rest = rest / rest.sum() if rest.sum() > 0 else p
    afresh = [((1 - keep) * float(rest[x]), x, p, ALL) for x in range(CODES)]
    return [(keep, token, q if how == "old q" else p, ALL), *afresh]


def joint(choices: list[list[tuple]]):
    """Every combination of independent choices with its probability."""
    for picked in product(*choices):
        probability = 1.0
        for choice in picked:
            probability *= choice[0]
        if probability:
            yield probability, [choice[1:] for choice in picked]


def picture_law(p, how: str, pads: str, omega: tuple[float, ...] = (1.0,) * SLOTS) -> tuple[dict, float]:
    """Law of the finished picture under Jacobi drafting and the mean total variation spent, with every random choice enumerated."""
    law, spent = Counter(), 0.0

    def fill(prefix, window, mass):
        """Pads at the end of the window."""
        missing = min(SLOTS, CELLS - len(prefix) - 1) - len(window)
        if missing <= 0:
            return test(prefix, window[: CELLS - len(prefix) - 1], mass)
        last = (prefix + tuple(token for token, *_ in window))[-1]
        codes = [(1.0, last)] if pads == "repeat" else [(1 / CODES, x) for x in range(CODES)]
        for probability, picked in joint([codes] * missing):
            fill(prefix, window + [(x, one_hot(x), ALL) for (x,) in picked], mass * probability)
        return None

    def test(prefix, window, mass):
        """One pass: accept from the left, then the token that follows."""
        nonlocal spent
        guesses = tuple(token for token, *_ in window)
        rows = [p(prefix + guesses[:i]) for i in range(len(window) + 1)]
        for i, (token, q, _) in enumerate(window):
            relaxed = 1.0 if float(q.max()) == 1 else omega[i]
            kept = torch.minimum(q, relaxed * rows[i])
            accept = float(kept[token] / q[token])
            spent += mass * float((kept - rows[i]).clamp(min=0).sum()) if q.max() < 1 else 0.0
            rest = (rows[i] - kept).clamp(min=0)
            if accept < 1:
                rest = rest / rest.sum()
                for x in range(CODES):
                    after(prefix + guesses[:i] + (x,), window[i + 1 :], rows[i + 1 :], mass * (1 - accept) * float(rest[x]))
            mass *= accept
        for x in range(CODES):
            after(prefix + guesses + (x,), [], [], mass * float(rows[-1][x]))

    def after(prefix, window, rows, mass):
        """What was not tested is drawn anew."""
        if not mass:
            return
        if len(prefix) == CELLS:
            law[prefix] += mass
            return
        choices = [redraws(how, row, q, token, noise) for row, (token, q, noise) in zip(rows, window, strict=False)]
        fresh = "gumbel" if how == "gumbel" else "independent"
        choices += [redraws(fresh, row, row, 0) for row in rows[len(window) :]]
        for probability, picked in joint(choices):
            fill(prefix, list(picked), mass * probability)

    for x in range(CODES):
        fill((x,), [], float(p(())[x]))
    return law, spent


def variation(a: dict, b: dict) -> float:
    return 0.5 * sum(abs(a[x] - b[x]) for x in b)


@pytest.mark.parametrize("pads", ["random", "repeat"])
@pytest.mark.parametrize("how", ["independent", "maximal", "gumbel"])
def test_the_picture_has_the_targets_law(how, pads):
    for seed in (0, 10):
        p = target(seed)
        law, spent = picture_law(p, how, pads)
        assert sum(law.values()) == pytest.approx(1)
        assert variation(law, ar_law(p)) < 1e-12
        assert spent == pytest.approx(0, abs=1e-12)


def test_storing_the_old_row_of_a_guess_that_stayed_is_biased():
    p = target(0)
    law, _ = picture_law(p, "old q", "random")
    assert variation(law, ar_law(p)) > 1e-3


@pytest.mark.parametrize("how", ["independent", "maximal", "gumbel"])
def test_relaxed_the_variation_stays_within_what_is_spent(how):
    for omega in ((1.5, 1.5), (1.6, 1.0), (0.6, 0.8)):
        p = target(3)
        law, spent = picture_law(p, how, "random", omega)
        assert variation(law, ar_law(p)) <= spent + 1e-12
        if min(omega) >= 1:
            assert variation(law, ar_law(p)) > 1e-3  # the bound says something
        else:
            assert spent == pytest.approx(0, abs=1e-12)


# ---- the code


def path_law(path: tuple[int, ...]) -> float:
    """Probability of a picture of the toy under plain AR."""
    context, probability = (0, 0), 1.0
    for token in path:
        probability *= float(TOY.p[context][token])
        context = (context[1], token)
    return probability


def test_a_coupled_guess_has_the_new_rows_law_and_stays_as_often_as_any_coupling_lets_it():
    p, q = random_rows(CODES_OF_COUPLING, seed=1), random_rows(CODES_OF_COUPLING, seed=2)
    generator = torch.Generator().manual_seed(0)
    count = 40_000
    old = torch.multinomial(q, count, replacement=True, generator=generator)
    uniform = torch.rand((2, count), generator=generator, dtype=torch.float64)
    rows = p.expand(count, -1), q.expand(count, -1)
    for redraw, stays in ((maximal, float(torch.minimum(p, q).sum())), (independent, float((p * q).sum()))):
        new = redraw(*rows, old, uniform)
        assert chi_square(torch.bincount(new, minlength=CODES_OF_COUPLING)[None], p[None]) > PASSES
        assert float((new == old).double().mean()) == pytest.approx(stays, abs=0.02)
    noise = -(-torch.rand((count, CODES_OF_COUPLING), generator=generator, dtype=torch.float64).log()).log()
    before, after = gumbel(rows[1], noise), gumbel(rows[0], noise)
    assert chi_square(torch.bincount(after, minlength=CODES_OF_COUPLING)[None], p[None]) > PASSES
    distance = 0.5 * float((p - q).abs().sum())
    assert float((before == after).double().mean()) >= (1 - distance) / (1 + distance) - 0.02  # arXiv 2408.07978


def test_pads_repeat_the_code_to_the_left_or_above_at_a_rows_start():
    drafter = JacobiDrafter(5, 3, "independent", "repeat")
    drafter.observe(torch.zeros(1, 1, 1), torch.tensor([7, 8, 9, 4]))  # the first row of three, and one cell of the second
    rows = torch.eye(10)[[5]]
    drafter.review(torch.eye(10)[[4, 5]], Draft(torch.tensor([4]), rows, (-1,), 0), 0, torch.Generator().manual_seed(0))
    draft = drafter.propose(chain(5), None, torch.Generator().manual_seed(0))
    # Cell 4 is the guess; 5 repeats it; 6 begins a row: the code above, of cell 3; 7 and 8 repeat that.
    assert draft.tokens.tolist() == [5, 5, 4, 4, 4]
    assert draft.q[1:].sum(-1).tolist() == draft.q[1:].amax(-1).tolist() == [1.0] * 4
    assert draft.calls == 0


@pytest.mark.parametrize(
    "settings", [{"method": "sjd"}, {"method": "sjd-coupled"}, {"method": "sjd-coupled", "coupling": "gumbel"}], ids=str
)
def test_the_engine_draws_the_targets_law_without_a_drafter(settings):
    pair = ToyPair(TOY, grid=(1, 4), drafts=False)
    for pads in ("random", "repeat"):
        runs = [tuple(generate(pair, "x", seed=seed, window=3, pads=pads, **settings).tokens) for seed in range(700)]
        paths = list(product(range(VOCABULARY), repeat=4))
        law = torch.tensor([path_law(path) for path in paths])
        tally = Counter(runs)
        assert chi_square(torch.tensor([[tally[path] for path in paths]]), law[None]) > PASSES


def test_relaxed_guesses_leave_the_law_and_pads_stay_exact():
    pair = ToyPair(TOY, grid=(1, 9), drafts=False)
    common = {"window": 4, "pads": "random"}

    def p_value(method: str, **settings) -> tuple[float, list]:
        """Of the tokens after each pair of tokens, over whole pictures."""
        runs = [generate(pair, "x", method, seed=seed, **common, **settings) for seed in range(500)]
        tokens = torch.tensor([[0, 0, *run.tokens] for run in runs])
        context = VOCABULARY * tokens[:, :-2] + tokens[:, 1:-1]
        tally = counts(context.flatten(), tokens[:, 2:].flatten(), (VOCABULARY**2, VOCABULARY))
        return chi_square(tally, TOY.p.reshape(-1, VOCABULARY)), runs

    assert p_value("sjd-coupled")[0] > PASSES
    value, runs = p_value("coolsd-jacobi", delta=20.0, draft_length=3)
    assert value < FAILS
    assert all(set(run.rounds[1].drafts.q) == {1.0} and sum(run.rounds[1].cost) == 0 for run in runs)  # all guesses are pads
    assert any(sum(event.cost) > 0 for run in runs for event in run.rounds[2:])


def test_greedy_jacobi_equals_plain_ar_and_a_seed_repeats():
    pair = tiny_pair()
    for method in ("sjd", "sjd-coupled", "coolsd-jacobi"):
        plain = generate(pair, "a red rose", "ar", temperature=0.0).tokens
        assert generate(pair, "a red rose", method, temperature=0.0, window=6).tokens == plain
        one, two = (generate(pair, "a red rose", method, seed=5, window=6) for _ in range(2))
        assert one.tokens == two.tokens
        assert one.stats.draft_calls == 0
