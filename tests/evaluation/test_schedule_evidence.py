"""Schedules evaluated on recorded rows: means against enumeration, recordings against what was decoded, intervals against their truth."""

import json
from itertools import product

import pytest
import torch
from block_laws import block_by_algorithm
from tables import Toy, enumerate_round, relaxed_kept, relaxed_step
from toy import ToyPair

from coolsd import stream
from coolsd.evaluation.claims import estimator, evidence, fitted
from coolsd.evaluation.claims import schedules as compared
from coolsd.evaluation.claims.checks import CHECKS
from coolsd.evaluation.claims.estimator import Estimate, Rounds, evaluate
from coolsd.evaluation.claims.evidence import Size, martingale
from coolsd.evaluation.claims.evidence import evaluate as report
from coolsd.evaluation.claims.recording import Recording, recordings
from coolsd.evaluation.study import Study
from coolsd.models.checkpoints import ASSETS
from coolsd.schedules import annealed, lossless, uniform, window

LENGTH, CODES = 3, 3
TOY = Toy.make(CODES, seed=21)
SCHEDULES = {
    "lossless": lossless(3),
    "uniform": uniform(3, 1.5),
    "paper": annealed(3, 1.5),
    "clamped": annealed(3, 1.5, clamp=True),
    "reversed": annealed(3, 1.3, nu=-0.7),
    "window": window(3, 2.0, 2),
    "loose": uniform(3, 5.0),
}
COMMON = {"cfg_scale": 1.0, "top_k": 0, "temperature": 1.0}


def row(table: torch.Tensor, prefix: tuple[int, ...]) -> torch.Tensor:
    return table[(0, 0, *prefix)[-2:]]


def every_draft() -> tuple[Rounds, torch.Tensor]:
    """All drafts of a round as recordings of one round each, and the probability with which each is drafted."""
    drafts = torch.tensor(list(product(range(CODES), repeat=LENGTH)))
    context = torch.zeros(len(drafts), 2, dtype=torch.long)
    p, q = TOY.rows(context, drafts)
    chance = q.gather(-1, drafts[..., None])[..., 0].prod(1)
    none = torch.zeros(1)
    parts = zip(p[:, None, :-1].double(), q[:, None].double(), drafts[:, None], strict=True)
    recorded = [Recording(str(i), 0, *part, none, none) for i, part in enumerate(parts)]
    return Rounds.of(recorded, LENGTH), chance


def mean(totals: estimator.Totals, chance: torch.Tensor) -> dict[str, float]:
    return {name: float(chance @ getattr(totals, name)) for name in ("tokens", "bias", "kl", "log_p")}


def spent(omega: list[float]) -> tuple[float, float]:
    """KL and shift of log p of a round under the token rule, spelled out: over all accepted prefixes with their mass."""
    kl = shift = 0.0
    reached = {(): 1.0}
    for position in range(LENGTH):
        onward = {}
        for prefix, mass in reached.items():
            p, q = row(TOY.p, prefix), row(TOY.q, prefix)
            law, kept = relaxed_step(p, q, omega[position]), relaxed_kept(p, q, omega[position])
            kl += mass * float((law * (law / p).log()).sum())
            shift += mass * float(((law - p) * p.log()).sum())
            onward |= {(*prefix, x): mass * float(kept[x]) for x in range(CODES)}
        reached = onward
    return kl, shift


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_mean_over_drafts_is_the_enumerated_round(name):
    rounds, chance = every_draft()
    omega = SCHEDULES[name].double()
    exact = enumerate_round(lambda x: row(TOY.p, x), lambda x: row(TOY.q, x), omega.tolist())
    figures = mean(evaluate(rounds, omega), chance)
    kl, shift = spent(omega.tolist())
    assert figures == pytest.approx({"tokens": 1 + exact.accepted, "bias": exact.bias, "kl": kl, "log_p": shift}, abs=1e-12)
    if name in ("uniform", "loose"):
        assert figures["bias"] > 0.05
        assert figures["kl"] > 0.01


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_mean_under_the_block_rule_is_the_enumerated_round(name):
    rounds, chance = every_draft()
    omega = SCHEDULES[name].double()
    law, accepted, _ = block_by_algorithm(lambda x: row(TOY.p, x), lambda x: row(TOY.q, x), omega.tolist())
    figures = mean(evaluate(rounds, omega, block=True), chance)
    assert figures["tokens"] == pytest.approx(1 + accepted, abs=1e-9)
    target = enumerate_round(lambda x: row(TOY.p, x), lambda x: row(TOY.q, x), omega.tolist()).target
    # The chain rule for KL, with a round's flag of still being in the draft: at least the divergence of the tokens themselves.
    joint = sum(mass * torch.tensor(mass / target[x]).log().item() for x, mass in law.items() if mass > 0)
    assert figures["kl"] >= joint - 1e-9
    variation = 0.5 * sum(abs(law[x] - target[x]) for x in law)
    assert figures["bias"] >= variation - 1e-9
    if bool((omega <= 1).all()):
        assert figures["bias"] < 1e-12
    # The first token is emitted before any of it: there both are exact.
    first = torch.zeros(CODES, dtype=torch.float64)
    for x, mass in law.items():
        first[x[0]] += mass
    one = mean(evaluate(Rounds.of([cut(rounds, i) for i in range(len(rounds.p))], 1), omega[:1], block=True), chance)
    p = row(TOY.p, ())
    assert one["bias"] == pytest.approx(0.5 * float((first - p).abs().sum()), abs=1e-9)
    assert one["kl"] == pytest.approx(float((first * (first / p).log()).sum()), abs=1e-9)
    assert one["log_p"] == pytest.approx(float(((first - p) * p.log()).sum()), abs=1e-9)


def cut(rounds: Rounds, i: int) -> Recording:
    return Recording(str(i), 0, rounds.p[i], rounds.q[i], rounds.place[i], torch.zeros(1), torch.zeros(1))


def test_the_table_of_costs_is_exact_on_its_grid_and_near_between():
    rounds, _ = every_draft()
    table = estimator.CostTable.of(rounds)
    for omega in (estimator.GRID[[0, 7, 20]], torch.tensor([1.5, 1.31, 0.8]), torch.tensor([1.0, 500.0, 1.2])):
        exact = {name: e.value for name, e in evaluate(rounds, omega).estimates.items()}
        assert dict(zip(estimator.MEASURES, table.figures(omega).tolist(), strict=True)) == pytest.approx(exact, abs=2e-3, rel=2e-2)
    exact = {name: e.value for name, e in evaluate(rounds, estimator.GRID[[3, 9, 14]]).estimates.items()}
    assert dict(zip(estimator.MEASURES, table.figures(estimator.GRID[[3, 9, 14]]).tolist(), strict=True)) == pytest.approx(exact, abs=1e-6)


# ---- recordings


def toy_pair(cells: int = 24) -> ToyPair:
    return ToyPair(Toy.make(6, seed=5), (1, cells), codebook=torch.randn(6, 2, generator=torch.Generator().manual_seed(0)))


JOBS = [(f"prompt {n}", seed) for n in range(12) for seed in range(2)]


def test_recordings_hold_the_rows_that_were_decoded(tmp_path):
    pair = toy_pair()
    recorded = recordings(lambda: pair, tmp_path, JOBS[:2], 4, COMMON)
    for one, (prompt, seed) in zip(recorded, JOBS, strict=False):
        settings = COMMON | {"seed": seed, "draft_length": 4, "inspect": 6}
        events = [e for e in stream(pair, prompt, "eagle1", **settings) if e.drafted == 4]
        assert one.accepted.tolist() == [e.accepted for e in events]
        assert len(one.p) == len(events) > 2
        for n, event in enumerate(events):
            for i, head in enumerate(event.top[:4]):  # behind these a bonus token has a row of p alone
                for name, rows in (("p", one.p), ("q", one.q)):
                    dense = torch.zeros(6)
                    for code, mass in head[name]:
                        dense[code] = mass
                    torch.testing.assert_close(rows[n, i], dense, rtol=1e-3, atol=1e-6)
            assert one.ratio[n, : len(event.accept_prob)].clamp(max=1).tolist() == pytest.approx(event.accept_prob, rel=2e-3)


def test_recording_goes_on_where_it_was_stopped_and_heals_damage(tmp_path):
    first = recordings(toy_pair, tmp_path, JOBS[:2], 3, COMMON)

    def closed():
        raise AssertionError("nothing is missing")

    again = recordings(closed, tmp_path, JOBS[:2], 3, COMMON)
    assert all(torch.equal(a.p, b.p) and torch.equal(a.place, b.place) for a, b in zip(first, again, strict=True))
    files = sorted(tmp_path.iterdir())
    files[0].write_bytes(files[0].read_bytes()[:100])
    healed = recordings(toy_pair, tmp_path, JOBS[:2], 3, COMMON)
    assert all(torch.equal(a.q, b.q) for a, b in zip(first, healed, strict=True))
    other = recordings(toy_pair, tmp_path, JOBS[:1], 3, COMMON | {"temperature": 0.8})
    assert not torch.equal(other[0].p, first[0].p), "other settings are other recordings"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_picture_too_short_for_the_draft_is_refused(tmp_path):
    with pytest.raises(ValueError, match="smaller --recorded-length"):
        recordings(lambda: toy_pair(4), tmp_path, JOBS[:1], 8, COMMON)


def test_log_p_and_entropy_cancel_for_lossless_runs_alone(tmp_path, monkeypatch):
    """The martingale: 0 within its error for the exact method; a rule that keeps too much is seen on as many pictures."""
    jobs = [(f"prompt {n}", n) for n in range(32)]

    def errors_from_zero(folder: str) -> float:
        drift = martingale(recordings(lambda: toy_pair(30), tmp_path / folder, jobs, 4, COMMON))
        return abs(drift.value) / drift.error

    assert errors_from_zero("exact") < 3.5
    monkeypatch.setattr("coolsd.rules.Relaxed.kept_mass", lambda self, p, q, position: torch.minimum(q, 3.0 * p))
    assert errors_from_zero("relaxed") > 5


# ---- fitted schedules


def drafted(prompts: int, rounds: int, generator: torch.Generator) -> list[Recording]:
    """Rounds after random contexts, without an engine; a prompt's rounds come after the same context."""
    none, recorded = torch.zeros(1), []
    for n in range(prompts):
        context = torch.randint(CODES, (1, 2), generator=generator).expand(rounds, 2)
        drafts = TOY.draft(context, LENGTH, generator)
        p, q = TOY.rows(context, drafts)
        recorded.append(Recording(str(n), 0, p[:, :-1], q, drafts, none, none))
    return recorded


def toy_costs(prompts: int = 8, seed: int = 3) -> estimator.CostTable:
    return estimator.CostTable.of(Rounds.of(drafted(prompts, 40, torch.Generator().manual_seed(seed)), LENGTH))


@pytest.mark.parametrize("measure", ["bias", "kl"])
def test_no_schedule_of_a_random_search_spends_less_than_the_fitted_one(measure):
    costs, index = toy_costs(), estimator.MEASURES.index(measure)
    lossless_length = float(costs.figures(torch.ones(LENGTH))[0])
    for share in (0.1, 0.3):
        accept_length = lossless_length + share * (LENGTH + 1 - lossless_length)
        omega = fitted.fit(costs, accept_length, measure)
        figures = costs.figures(omega)
        assert float(figures[0]) == pytest.approx(accept_length, abs=1e-4)
        assert bool(((omega >= 1) & (omega <= fitted.LARGEST + 1e-4)).all())
        spent = {name: float(costs.figures(form)[index]) for name, form in fitted.starts(costs, accept_length).items()}
        assert float(figures[index]) <= min(spent.values()) + 1e-9
        assert float(figures[index]) < spent["paper"] - 0.005, "the search moves"
        generator = torch.Generator().manual_seed(0)
        for _ in range(60):
            way = torch.rand(LENGTH, generator=generator) ** 3
            rival = fitted.restore(costs, torch.zeros(LENGTH), way, accept_length).exp()
            if abs(float(costs.figures(rival)[0]) - accept_length) < 1e-4:
                assert float(figures[index]) <= float(costs.figures(rival)[index]) + 2e-4


def test_a_budget_is_kept_on_prompts_that_were_not_fitted():
    points = fitted.frontier(toy_costs(40))
    biases = [p.bias for p in points]
    assert biases == sorted(biases)
    assert [p.accept_length for p in points] == sorted(p.accept_length for p in points)
    fresh = compared.Evaluator(Rounds.of(drafted(40, 40, torch.Generator().manual_seed(99)), LENGTH))
    for row in fitted.budgets(fresh, points)[1:]:
        spread = 3 * row["bias"]["error"]
        assert row["bias"]["value"] == pytest.approx(row["budget"], abs=0.1 * row["budget"] + spread)
        assert all(gap["value"] > -3 * gap["error"] - 0.005 for gap in row["ahead"].values())
        assert len(row["ahead"]) > 5


# ---- intervals and comparisons


def test_a_ratio_estimate_covers_its_truth_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(400):
        calls = 20 + 10 * torch.rand(30, generator=generator, dtype=torch.float64)
        tokens = 3 * calls + calls.sqrt() * torch.randn(30, generator=generator, dtype=torch.float64)
        interval = Estimate.ratio(tokens, calls).to_dict()
        covered += interval["low"] <= 3 <= interval["high"]
    assert 0.92 < covered / 400 < 0.975


def test_the_error_at_an_equal_figure_counts_that_the_strength_was_fitted(monkeypatch):
    """Bias of the uniform schedule at an accept length, on many sets of rounds: its spread is the error that each set gives."""
    monkeypatch.setattr(estimator, "GRID", torch.tensor([1.0, 1.3, 2.0, 4.0, 20.0]))
    generator = torch.Generator().manual_seed(3)
    uniforms = next(f for f in compared.FAMILIES if f.name == "uniform")
    biases = []
    for _ in range(30):
        on = compared.Evaluator(Rounds.of(drafted(10, 20, generator), LENGTH))
        biases.append(compared.matched(on, uniforms, "accept_length", 2.9).estimates["bias"])
    spread = torch.tensor([e.value for e in biases]).std() / torch.tensor([e.error for e in biases]).mean()
    unfitted = [e.error for e in (on.totals(uniforms, 1.5).estimates["bias"], biases[-1])]
    assert 0.7 < float(spread) < 1.35
    assert unfitted[1] > 1.5 * unfitted[0], "most of the error is that of the strength"


def test_a_figure_that_no_strength_reaches_is_said_to_be_so():
    assert estimator.crossing(lambda s: s, 5.0, 0.1, 2.0) is None
    assert estimator.crossing(lambda s: s**2, 2.0, 0.1, 50.0) == pytest.approx(2**0.5, rel=1e-5)


def test_the_whole_report_agrees_with_real_runs(tmp_path, monkeypatch):
    """On a toy whose law forgets its prefix after two tokens predictions hold for real runs too; a wrong prediction is seen."""
    monkeypatch.setattr(estimator, "GRID", torch.tensor([1.0, 1.3, 2.0, 4.0, 20.0]))
    monkeypatch.setattr(evidence, "AXES", {"accept_length": (2.6,), "bias": (0.05,)})
    study = Study(tmp_path, target="toy", opener=lambda target, dtype: toy_pair(40))
    result = report(study, Size(prompts=6, recorded=4, length=3, checked=6, fitted=False), COMMON)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    apart = [row[name]["difference"] for row in result["checks"] for name in ("accept_length", "bias")]
    assert len(result["checks"]) == len(CHECKS) >= 6
    assert all(abs(gap["value"]) <= 6 * gap["error"] + 1e-9 for gap in apart)
    bias = {row["label"]: row["bias"] for row in result["checks"]}
    wrong = bias["uniform at 1.6"]["measured"]["value"] - bias["uniform at 1"]["predicted"]["value"]
    assert abs(wrong) > 6 * bias["uniform at 1.6"]["difference"]["error"]
    for table in result["tables"]:
        assert len(table["rows"]) + len(table["not reached"]) == len(compared.FAMILIES)
        for row in table["rows"]:
            assert table["axis"] not in row
            assert set(row.get("against", ())) <= set(estimator.MEASURES)


def test_the_stored_result_is_read_in_words_and_its_checks_agree():
    stored = json.loads((ASSETS / "schedules.json").read_text(encoding="utf-8"))
    text = "\n".join(evidence.words(stored))
    assert "at accept length 3.75, against uniform" in text
    assert "real runs against the prediction" in text
    for row in stored["checks"]:
        for name in ("accept_length", "bias"):
            gap = row[name]["difference"]
            assert abs(gap["value"]) <= 3 * gap["error"] + 1e-9, row["label"]
    frontiers = json.loads((ASSETS / "meadow" / "fitted.json").read_text(encoding="utf-8"))
    assert frontiers["weights"] == stored["weights"]
    for row in stored["fitted"]["budgets"]:
        assert abs(row["bias"]["value"] / row["budget"] - 1) < 0.1
