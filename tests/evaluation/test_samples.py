"""Distances against known answers; a collection of pictures that survives kills and refuses to mix settings and weights."""

import math

import pytest
import torch
from tiny import tiny_pair

from coolsd import SettingsError, generate
from coolsd.data import metrics, store
from coolsd.evaluation import samples
from coolsd.evaluation.samples import Job, collect, label_path, log_prob


def normal(count: int, shift: float = 0.0, seed: int = 0, width: int = 8) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) + shift


# ---- distances


def test_kid_of_one_law_is_zero_within_an_error_on_the_safe_side():
    values = [metrics.kid(normal(100, seed=i), normal(130, seed=1000 + i)) for i in range(40)]
    truth = torch.tensor([v.value for v in values])
    assert abs(truth.mean()) < 3 * truth.std() / 40**0.5  # unbiased
    mean_error = sum(v.error for v in values) / 40
    assert 0.9 < mean_error / truth.std() < 2.2
    assert sum(v.agrees() for v in values) >= 34


def test_kid_of_a_shifted_law_is_rejected_and_has_its_true_value():
    value = metrics.kid(normal(200, 0.5), normal(200, seed=1))
    assert not value.agrees(errors=4)
    x, y = normal(1500, 0.5, seed=2), normal(1500, seed=3)
    assert value.agrees(metrics.mmd2(*(metrics.kernel(a, b) for a, b in ((x, x), (y, y), (x, y)))), errors=3)


def test_kid_of_a_pair_by_hand():
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [3.0]])
    expected = (1 * 2 + 1) ** 3 + 1 - 2 * (1 + 4**3 + 1 + 7**3) / 4
    assert metrics.mmd2(metrics.kernel(x, x), metrics.kernel(y, y), metrics.kernel(x, y)) == pytest.approx(expected)


def test_the_error_of_a_difference_sees_that_rows_belong_together():
    x, y = normal(300, 0.3), normal(300, seed=1)
    near = x + 0.01 * normal(300, seed=2)
    difference = metrics.kid_difference(x, near, y)
    assert difference.value == pytest.approx(metrics.kid(x, y).value - metrics.kid(near, y).value)
    assert difference.error < metrics.kid(x, y).error / 5
    assert metrics.kid_difference(x, normal(300, seed=4), y).value > 0


def test_exchange_test_accepts_one_law_over_many_prompts_and_rejects_another():
    prompts = 5 * normal(80, seed=5)  # a law of its own for each pair
    x, y = prompts + normal(80, seed=6), prompts + normal(80, seed=7)
    assert metrics.exchange_test(x, y, draws=199) > 0.05
    assert metrics.exchange_test(x, y + 0.7, draws=199) < 0.02


def test_no_p_value_is_0_and_the_extreme_one_is_one_in_all_draws():
    x = normal(30)
    assert metrics.exchange_test(x, x + 50, draws=99) == pytest.approx(1 / 100)
    assert metrics.exchange_test(x, x, draws=99) == 1


def test_the_jackknifes_error_of_a_mean_is_that_of_its_blocks():
    values = normal(80, width=1)[:, 0].double()
    result = metrics.jackknife(lambda keep: values[keep(80)].mean().item(), 80)
    blocks = torch.stack([values[torch.arange(80) % 20 == b].mean() for b in range(20)])
    assert result.value == pytest.approx(values.mean().item())
    assert result.error == pytest.approx((blocks.std() / 20**0.5).item())
    few = values[:6]
    halves = torch.stack([few[torch.arange(6) % 3 == b].mean() for b in range(3)])
    assert metrics.jackknife(lambda keep: few[keep(6)].mean().item(), 6).error == pytest.approx((halves.std() / 3**0.5).item())


def test_psnr_and_perplexity_of_known_cases():
    a = torch.zeros(2, 3, 4, 4)
    assert metrics.psnr(a, a + 0.2).tolist() == pytest.approx([20.0, 20.0])
    assert metrics.perplexity(torch.arange(8).repeat(3), 16) == pytest.approx(8.0)
    assert metrics.perplexity(torch.tensor([3, 3, 3]), 16) == pytest.approx(1.0)


def test_mean_with_error():
    estimate = metrics.mean_estimate(torch.tensor([1.0, 3.0]))
    assert (estimate.value, estimate.error) == (2.0, pytest.approx(1.0))


# ---- samples


def open_tiny(target: str, dtype: str | None):
    return tiny_pair()


def jobs(count: int = 2, **settings) -> list[Job]:
    lanes = (("AR", "ar", ()), ("COOL-SD δ=2", "coolsd", (("delta", 2.0), *settings.items())))
    return [Job(label, method, own, "a red rose", seed) for label, method, own in lanes for seed in range(count)]


def test_collect_decodes_what_stream_decodes_and_reads_it_again(tmp_path):
    first = list(collect(jobs(), tmp_path, workers=1, opener=open_tiny))
    assert len(first) == 4
    for job, sample in zip(jobs(), first, strict=True):
        run = generate(tiny_pair(), job.prompt, job.method, seed=job.seed, **dict(job.settings))
        assert sample.tokens == run.tokens
        assert sample.bias_spent == pytest.approx(run.stats.bias_spent)
        assert sample.target_calls == run.stats.target_calls

    def never(target, dtype):
        raise AssertionError("everything is stored")

    assert list(collect(jobs(), tmp_path, workers=1, opener=never)) == first
    assert list(collect(jobs()[:1], tmp_path, workers=1, opener=never)) == first[:1]


def test_collect_with_worker_processes_gives_the_same_pictures(tmp_path):
    alone = {(s.label, s.seed): s.tokens for s in collect(jobs(), tmp_path / "a", workers=1, opener=open_tiny)}
    together = {(s.label, s.seed): s.tokens for s in collect(jobs(), tmp_path / "b", workers=2, opener=open_tiny)}
    assert together == alone


def test_a_half_written_line_is_dropped_and_only_its_picture_decoded_again(tmp_path, capsys):
    first = list(collect(jobs(), tmp_path, workers=1, opener=open_tiny))
    path = label_path(tmp_path, "AR")
    path.write_bytes(path.read_bytes()[:-9])
    capsys.readouterr()
    again = list(collect(jobs(), tmp_path, workers=1, opener=open_tiny))
    assert "pictures: 1/1" in capsys.readouterr().err
    assert {(s.label, s.seed): s.tokens for s in again} == {(s.label, s.seed): s.tokens for s in first}
    path.write_bytes(b'{"half')
    assert len(list(collect(jobs(), tmp_path, workers=1, opener=open_tiny))) == 4


def test_closing_the_iterator_keeps_what_was_decoded(tmp_path):
    result = collect(jobs(), tmp_path, workers=1, opener=open_tiny)
    one = next(result)
    result.close()
    assert samples.read_label(label_path(tmp_path, "AR"))[1] == [one]


@pytest.mark.parametrize("change", [{"delta": 3.0}, {"top_k": 5}])
def test_changed_settings_under_one_label_are_refused(tmp_path, change):
    list(collect(jobs(), tmp_path, workers=1, opener=open_tiny))
    with pytest.raises(ValueError, match=f"other settings: {next(iter(change))}"):
        list(collect(jobs(**change), tmp_path, workers=1, opener=open_tiny))


def test_other_weights_and_bad_jobs_are_refused(tmp_path, monkeypatch):
    list(collect(jobs(1), tmp_path, workers=1, opener=open_tiny))
    monkeypatch.setattr(samples, "fingerprint", lambda target: "other")
    with pytest.raises(ValueError, match="other weights"):
        list(collect(jobs(2), tmp_path, workers=1, opener=open_tiny))
    with pytest.raises(SettingsError, match="out of range"):
        list(collect([Job("x", "ar", (("top_p", 7.0),), "a", 0)], tmp_path, opener=open_tiny))
    with pytest.raises(ValueError, match="same label"):
        list(collect(jobs(1) * 2, tmp_path, opener=open_tiny))
    with pytest.raises(ValueError, match="two different settings"):
        list(collect([*jobs(1), Job("AR", "eagle1", (), "b", 0)], tmp_path, opener=open_tiny))


def test_the_fingerprint_follows_the_weights(tmp_path):
    (tmp_path / "vq").mkdir()
    file = tmp_path / "vq" / "model.safetensors"
    file.write_bytes(b"1")
    before = store.fingerprint(str(tmp_path))
    assert store.fingerprint(str(tmp_path)) == before
    file.write_bytes(b"2")
    assert store.fingerprint(str(tmp_path)) != before


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_log_prob_is_what_the_tokens_cost_one_by_one(monkeypatch, scale):
    pair = tiny_pair()
    tokens = [3, 1, 30, 7, 7, 0, 5, 2, 9, 9, 1, 31, 4, 8, 6, 11]
    target, _ = pair.begin(scale)
    rows = [target.prefill("a red rose").logits[-1]]
    for token in tokens[:-1]:
        rows.append(target.extend(torch.tensor([token]), (-1,)).logits[0])
        target.keep([0])
    expected = sum(row.log_softmax(-1)[t].item() for row, t in zip(rows, tokens, strict=True)) / len(tokens)
    for chunk in (64, 5):
        monkeypatch.setattr(samples, "CHUNK", chunk)
        assert log_prob(pair, "a red rose", tokens, scale) == pytest.approx(expected, abs=1e-4)
    assert math.isfinite(expected)


def test_batches_hold_one_label_and_take_turns():
    queue = [Job(label, "ar", (), "a", seed) for seed in range(5) for label in "xy"]
    result = samples.batches(queue, 2)
    assert [[(job.label, job.seed) for job in batch] for batch in result] == [
        [("x", 0), ("x", 1)],
        [("y", 0), ("y", 1)],
        [("x", 2), ("x", 3)],
        [("y", 2), ("y", 3)],
        [("x", 4)],
        [("y", 4)],
    ]
