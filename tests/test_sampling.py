import pytest
import torch
from files import DATA
from tables import FAILS, PASSES, chi_square

from coolsd.sampling import NotFinite, draw, entropy, guide, guided, pick, pick_distinct, to_probs, uniforms

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, -torch.inf], [0.5, 0.5, 3.0, 0.5, -2.0]])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rows_are_float32_laws(dtype):
    for options in ({}, {"temperature": 0.0}, {"temperature": 0.3, "top_k": 2, "top_p": 0.8}):
        probs = to_probs(LOGITS.to(dtype), **options)
        assert probs.dtype == torch.float32
        torch.testing.assert_close(probs.sum(-1), torch.ones(2))
        assert probs[0, 4] == 0


def test_low_precision_logits_give_the_float32_softmax_of_their_values():
    logits = torch.randn(3, 50, generator=generator()).bfloat16()
    torch.testing.assert_close(to_probs(logits), logits.double().softmax(-1).float())


def test_temperature_zero_is_the_argmax():
    assert to_probs(LOGITS, temperature=0.0).tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 0, 0]]


@pytest.mark.parametrize("temperature", [2e-5, 1e-3, 0.5, 3.0])
def test_any_temperature_is_finite(temperature):
    probs = to_probs(1000 * LOGITS, temperature=temperature)
    torch.testing.assert_close(probs, (1000 * LOGITS.double() / temperature).softmax(-1).float())


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.0}, {"temperature": 2.0}, {"temperature": 1e-3}, {"top_k": 1}, {"top_k": 4}, {"top_k": 4, "top_p": 0.7}],
)
def test_every_row_is_a_law_of_its_own(options):
    """Rows of very different levels, in a batch of more than one dimension."""
    logits = torch.randn(2, 3, 9, generator=generator(2)) + torch.tensor([0.0, -300.0, 500.0])[:, None]
    batch = to_probs(logits, **options)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(batch[i, j], to_probs(logits[i, j], **options))
    temperature = options.get("temperature", 1.0)
    if temperature and len(options) < 2 and "top_k" not in options:
        torch.testing.assert_close(batch, (logits.double() / temperature).softmax(-1).float())
    if options.get("top_k") == 1:
        assert torch.equal(batch, to_probs(logits, temperature=0.0))


def test_limits_that_change_nothing_and_limits_that_are_met():
    assert torch.equal(to_probs(LOGITS, 1.0, 0, 1.0), LOGITS.softmax(-1))
    assert float(to_probs(torch.tensor([0.0, -1e-5]), temperature=1e-5)[1]) == pytest.approx(0.2689, abs=1e-3)
    close = torch.tensor([3.0, 3.0001, 2.9999])
    torch.testing.assert_close(to_probs(close, temperature=2e-5).double(), (close.double() / 2e-5).softmax(-1), rtol=0, atol=1e-6)
    quarters = torch.tensor([1.0, 0.5, 0.5]).log()  # probabilities of exactly 1/2, 1/4 and 1/4: the next token crosses 1/2
    assert (to_probs(quarters, top_p=0.5) > 0).tolist() == [True, True, True]


def test_top_k_keeps_ties():
    assert (to_probs(LOGITS, top_k=2)[1] > 0).tolist() == [True, True, True, True, False]
    assert (to_probs(LOGITS, top_k=2)[0] > 0).tolist() == [True, True, False, False, False]
    torch.testing.assert_close(to_probs(LOGITS, top_k=99), to_probs(LOGITS))


def test_top_p_keeps_the_token_that_crosses():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert (to_probs(logits, top_p=0.6) > 0).sum() == 2
    assert (to_probs(logits, top_p=0.85) > 0).sum() == 3
    assert (to_probs(logits, top_p=1e-6) > 0).sum() == 1


def test_top_p_counts_the_mass_that_top_k_left():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # After top-k the first token holds 4/7 of the mass, which exceeds 0.55 by itself; before it would not.
    assert (to_probs(logits, top_k=2, top_p=0.55) > 0).sum() == 1
    assert (to_probs(logits, top_p=0.55) > 0).sum() == 2


@pytest.mark.parametrize(("top_k", "top_p", "temperature"), [(0, 1.0, 1.0), (50, 1.0, 1.0), (50, 0.9, 1.0), (20, 1.0, 0.7)])
def test_filters_match_the_original_llamagen(top_k, top_p, temperature):
    reference = torch.load(DATA / "filters.pt", weights_only=True)
    expected = reference[f"probs_k{top_k}_p{top_p}_t{temperature}"]
    torch.testing.assert_close(to_probs(reference["cfg_step0_combined"], temperature, top_k, top_p), expected)


def test_guidance():
    conditional, unconditional = torch.tensor([1.0, 3.0]).half(), torch.tensor([2.0, 1.0]).half()
    assert guide(conditional, unconditional, 1.0).tolist() == [1.0, 3.0]
    assert guide(conditional, unconditional, 4.0).tolist() == [-2.0, 9.0]
    assert guide(conditional, unconditional, 0.0).tolist() == [2.0, 1.0]
    assert guide(conditional, unconditional, 1.0).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_guidance_of_halves_is_that_of_their_values(dtype):
    """Differences of halves are not halves: they are taken in float32."""
    conditional, unconditional = (20 * torch.randn(2, 300, generator=generator(3))).to(dtype)
    expected = unconditional.double() + 7.5 * (conditional.double() - unconditional.double())
    torch.testing.assert_close(guide(conditional, unconditional, 7.5).double(), expected, rtol=1e-6, atol=1e-5)
    assert bool((expected.to(dtype).double() - expected).abs().max() > 0.1)


def test_branches_are_mixed_or_are_the_only_one():
    branches = torch.randn(2, 3, 5, generator=generator(4)).half()
    assert torch.equal(guided(branches, 2.0), guide(branches[0], branches[1], 2.0))
    torch.testing.assert_close(guided(branches, 2.0), 2 * branches[0].float() - branches[1].float())
    assert torch.equal(guided(branches[:1], 2.0), branches[0].float())


def test_numbers_are_doubles_in_order():
    numbers = uniforms((2, 3), generator(8), torch.device("cpu"))
    assert numbers.dtype == torch.float64
    assert torch.equal(numbers, torch.rand(2, 3, generator=generator(8), dtype=torch.float64))
    assert uniforms((2, 3), generator(8), torch.device("meta")).is_meta


def test_entropies_are_in_nats_and_one_a_row():
    rows = torch.tensor([[[0.5, 0.5, 0.0]], [[0.25, 0.25, 0.5]]])
    torch.testing.assert_close(entropy(rows), torch.tensor([[1.0], [1.5]]) * torch.tensor(2.0).log())


def test_logits_that_are_not_finite_are_said_to_be_of_a_model():
    error = NotFinite("drafter")
    assert error.model == "drafter"
    assert str(error) == "The drafter's logits are not finite (NaN or infinity)."


def test_a_number_picks_by_the_sums_up_to_each_token():
    row = torch.tensor([0.0, 1.0, 0.0, 2.0, 1.0])  # need not sum to 1
    numbers = torch.tensor([0.0, 0.2499, 0.2501, 0.7499, 0.7501, 0.9999], dtype=torch.float64)
    assert pick(row.expand(6, 5), numbers).tolist() == [1, 1, 3, 3, 4, 4]
    rows = torch.stack([row, 1000 * row, 1e-6 * row.flip(0)])
    assert pick(rows[None].expand(2, 3, 5), torch.full((2, 3), 0.3, dtype=torch.float64)).tolist() == [[3, 3, 1]] * 2
    many = torch.rand(30_000, generator=generator(5))
    numbers = torch.rand(300, generator=generator(6), dtype=torch.float64)
    upto = many.double().cumsum(0)
    assert torch.equal(pick(many.expand(300, -1), numbers), torch.searchsorted(upto, numbers * upto[-1], right=True))
    behind = torch.arange(25_000, 25_100)  # sums in single precision are off by more than this there
    assert torch.equal(pick(many.expand(100, -1), (upto[behind] + 1e-6) / upto[-1]), behind + 1)


def test_siblings_are_picked_one_after_another_from_what_is_left():
    rows = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 0.3, 0.7]])
    numbers = torch.tensor([[0.6, 0.99], [0.5, 0.1], [0.9, 0.5]], dtype=torch.float64)
    expected = [[1, 0, 2], [3, 2]]
    picks = pick_distinct(rows, numbers)
    assert picks.shape == (2, 3)
    assert picks[0].tolist() == expected[0]
    assert picks[1, :2].tolist() == expected[1]
    assert pick_distinct(rows.expand(4, 2, 4), numbers[:, None].expand(3, 4, 2))[3].tolist() == picks.tolist()


def test_draws_follow_their_row():
    row = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.2, 1e-4, 0.0])
    samples = draw(row.expand(50_000, 7), generator())
    observed = torch.bincount(samples, minlength=7)[None]
    assert chi_square(observed, row[None] / row.sum()) > PASSES
    assert chi_square(observed, torch.tensor([[0.0, 0.5, 0.0, 0.27, 0.23, 0.0, 0.0]]) + 1e-4) < FAILS


def test_draw_never_gives_a_token_of_probability_zero():
    row = torch.zeros(4096)
    row[1::7] = torch.rand(len(row[1::7]), generator=generator()) * 1e-30
    samples = draw(row.expand(2000, 4096), generator(1))
    assert bool((row[samples] > 0).all())
    assert draw(torch.eye(5), generator()).tolist() == [0, 1, 2, 3, 4]


def test_draw_uses_one_number_a_row_and_only_the_given_generator():
    rows = torch.rand(3, 11, generator=generator())
    torch.manual_seed(1)
    together = draw(rows, generator(5))
    torch.manual_seed(2)
    one_by_one = generator(5)
    assert together.tolist() == [int(draw(row, one_by_one)) for row in rows]
    assert draw(rows[0], generator()).shape == ()


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_leave_their_mark_in_a_row(bad, temperature):
    logits = LOGITS.clone()
    logits[1, 3] = bad
    for options in ({}, {"top_k": 2}, {"top_p": 0.5}):
        probs = to_probs(logits, temperature, **options)
        assert not probs[1].sum().isfinite()
        assert probs[0].sum() == pytest.approx(1)  # a forbidden token, -inf, is no fault
