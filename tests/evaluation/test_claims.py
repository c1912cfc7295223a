"""The claims: bootstrap and interpolation against known answers, verdicts on planted truths, the whole sweep on a pair made of tables."""

import json
from dataclasses import replace
from html import escape

import gradio as gr
import plotly.graph_objects as go
import pytest
import torch
from tables import Toy
from toy import ToyPair

from coolsd import METHODS, theory, validate
from coolsd.__main__ import main
from coolsd.data.metrics import kernel, kid
from coolsd.evaluation import evidence, samples
from coolsd.evaluation.claims import names, plots, statistics, sweep, verdicts
from coolsd.evaluation.claims.statistics import Effect, gap, interpolate, kid_replicates, point, resampled
from coolsd.evaluation.claims.sweep import Setting, Size, settings
from coolsd.evaluation.samples import Sample
from coolsd.evaluation.study import Study
from coolsd.rules import Lantern
from coolsd.ui import evidence_tab as page

REPLICATES = 200
PAIR = ToyPair(Toy.make(6, seed=5), (1, 24), codebook=torch.randn(6, 2, generator=torch.Generator().manual_seed(0)))
SMALL = Size(deltas=(1.1, 4.0), uniforms=(1.2, 3.0), caps=(1.5, 8.0), nearest=(1, 4), prompts=2, seeds=1)
WEIGHTS = resampled(40, REPLICATES)


# ---- figures


def one(prompt: int, **figures) -> Sample:
    base = {"label": "x", "prompt": str(prompt), "seed": 0, "tokens": [1] * 8, "target_calls": 4, "accept_length": 2.0}
    return Sample(**base | {"bias_spent": 0.0, "log_prob": -1.0} | figures)


def test_replicates_draw_prompts_with_replacement():
    assert WEIGHTS.shape == (REPLICATES + 1, 40)
    assert bool((WEIGHTS[0] == 1).all())
    assert bool((WEIGHTS.sum(1) == 40).all())
    assert float(WEIGHTS[1:].var(0).mean()) == pytest.approx(1 - 1 / 40, rel=0.1)


def test_a_points_error_is_the_standard_error_of_its_mean():
    moved = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    reference = [one(i) for i in range(40)]
    answer = point([one(i, log_prob=-1 + float(x), bias_spent=0.4 + i % 2) for i, x in enumerate(moved)], reference, WEIGHTS)
    effect = Effect.of(answer["log_prob_difference"], 40)
    assert effect.value == pytest.approx(float(moved.mean()))
    assert (effect.high - effect.low) / 2 == pytest.approx(1.96 * float(moved.std()) / 40**0.5, rel=0.15)
    assert float(answer["accept_length"][0]) == 2.0
    assert float(answer["bias"][0]) == pytest.approx(0.9 / 8)


def test_student_quantiles_are_the_tables():
    for freedom, table in ((1, 12.7062), (2, 4.3027), (5, 2.5706), (6, 2.4469), (29, 2.0452), (1000, 1.9623)):
        assert statistics.student_quantile(freedom, 0.95) == pytest.approx(table, abs=1e-4)
    with pytest.raises(ValueError, match="2 prompts or more"):
        statistics.widening(1)


def test_intervals_over_six_prompts_hold_the_truth_as_often_as_they_say(monkeypatch):
    draws = torch.randn(500, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    replicates = draws @ (resampled(6, 400) / 6).T

    def coverage() -> float:
        return sum(Effect.of(one, 6).side() == 0 for one in replicates) / len(replicates)

    assert 0.92 < coverage() < 0.97
    monkeypatch.setattr(statistics, "widening", lambda prompts: 1.0)
    assert coverage() < 0.88, "percentiles alone would have done"


def test_a_weighted_accept_length_is_tokens_over_calls():
    few = [one(0, target_calls=2), one(1, target_calls=8)]
    answer = point(few, few, torch.tensor([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]], dtype=torch.float64))
    assert answer["accept_length"].tolist() == [1.6, 4.0, 1.0]


def test_kid_of_a_replicate_leaves_copies_of_a_picture_out():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 6, generator=generator), torch.randn(30, 6, generator=generator) + 0.3
    weights = resampled(12, 5)
    answer = kid_replicates(x, y, weights)
    assert float(answer[0]) == pytest.approx(kid(x, y).value)
    chosen = torch.arange(12).repeat_interleave(weights[3].long())
    pairs = [(i, j) for i in range(12) for j in range(12) if chosen[i] != chosen[j]]
    within = torch.stack([kernel(x[chosen[i]][None], x[chosen[j]][None]).squeeze() for i, j in pairs]).mean()
    gram = kernel(y, y)
    expected = within + (gram.sum() - gram.trace()) / (30 * 29) - 2 * kernel(x[chosen], y).mean()
    assert float(answer[3]) == pytest.approx(float(expected))


def test_interpolation_goes_through_the_points_and_stays_flat_beyond():
    x = torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, 4.0]], dtype=torch.float64)
    y = torch.tensor([[9.0, 0.0], [1.0, 1.0], [4.0, 3.0]], dtype=torch.float64)
    for at, expected in (((2.0, 2.0), (4.0, 1.0)), ((2.5, 3.0), (6.5, 2.0)), ((0.0, 9.0), (1.0, 3.0))):
        assert interpolate(x, y, torch.tensor(at, dtype=torch.float64)).tolist() == pytest.approx(expected)
    assert interpolate(x[:1], y[:1], torch.tensor([5.0, 5.0], dtype=torch.float64)).tolist() == [9.0, 0.0]


def curve(slope: float, lengths=(2.0, 2.5, 3.0), noise: float = 0.0) -> list[dict[str, torch.Tensor]]:
    """A family whose bias is slope · (accept length - 2), with replicates that scatter by `noise`."""
    generator = torch.Generator().manual_seed(int(1000 * slope))
    out = []
    for length in lengths:
        figures = torch.full((REPLICATES + 1,), slope * (length - 2), dtype=torch.float64)
        figures[1:] += noise * torch.randn(REPLICATES, generator=generator, dtype=torch.float64)
        out.append({"accept_length": torch.full_like(figures, length), "bias": figures, "log_prob_difference": -figures})
    return out


def test_a_gap_is_that_of_the_curves_where_both_have_points():
    answer = gap(curve(0.1), curve(0.3, (2.2, 2.6, 4.0)), "accept_length", "bias", 40)
    assert [at for at, _ in answer.places] == pytest.approx([2.2 + 0.8 * share for share in statistics.PLACES])
    assert [e.value for _, e in answer.places] == pytest.approx([-0.2 * (at - 2) for at, _ in answer.places])
    assert answer.mean.value == pytest.approx(-0.2 * 0.6)
    assert gap(curve(0.1), curve(0.3, (4.0, 5.0)), "accept_length", "bias", 40) is None


# ---- verdicts


def planted(coolsd: float, other: float, noise: float = 0.001) -> dict[tuple[str, str, str], verdicts.Verdict]:
    curves = {family: curve(other, noise=noise) for family in names.FAMILIES} | {"coolsd": curve(coolsd, noise=noise)}
    answer = verdicts.curve_verdicts(curves, ["bias"], 40)
    return {(v.comparison.split(" at ")[0], v.measure): v for v in answer}


def test_a_verdict_follows_the_truth_that_was_planted():
    for mine, other, noise, outcome in ((0.1, 0.3, 0.001, "agrees"), (0.3, 0.1, 0.001, "disagrees"), (0.2, 0.201, 0.2, "undecided")):
        answer = planted(mine, other, noise)
        for measure in ("bias a token", "accept length"):
            verdict = answer["coolsd - reversed", measure]
            assert verdict.outcome == outcome, (mine, measure)
            assert verdict.paper
        assert {"agrees": "agrees with the paper", "disagrees": "DISAGREES", "undecided": "undecided"}[outcome] in verdict.words
    other = planted(0.1, 0.3)["clamped - coolsd", "bias a token"]
    assert (other.paper, other.outcome) == (False, "disagrees")


def test_what_is_undecided_says_how_many_prompts_would_decide_it():
    """Power on planted normal differences: with the stated number of prompts about 80 of 100 sweeps decide."""
    generator = torch.Generator().manual_seed(0)
    draws = 0.3 + torch.randn(20, generator=generator, dtype=torch.float64)
    effect = Effect.of(resampled(20, 400) @ draws / 20, 20)
    verdict = verdicts.Verdict("b", "c", "a - b", "m", True, "undecided", replace(effect, low=-0.2, high=0.8, value=0.3), prompts=20)
    assert ", about 114 prompts would decide a difference of this size" in verdict.words
    rejections = sum(abs(float((x := 0.3 + torch.randn(114, generator=generator)).mean() / x.std() * 114**0.5)) > 1.98 for _ in range(300))
    assert 0.78 < rejections / 300 < 0.97
    understated = replace(verdict, effect=replace(verdict.effect, low=0.1))
    assert "more pictures would not decide it" in understated.words
    assert "would" not in replace(verdict, outcome="agrees").words


def test_log_probability_keeps_its_sign():
    """|difference| would call a method that lies as far above AR as another below it equal; and its mean is never 0."""
    row = point([one(i, log_prob=-1 + (-1) ** i * 0.5) for i in range(40)], [one(i) for i in range(40)], WEIGHTS)
    assert "log_prob_distance" not in row
    assert Effect.of(row["log_prob_difference"], 40).side() == 0
    nearer, farther = curve(0.1, noise=0.001), curve(0.3, noise=0.001)
    curves = dict.fromkeys(plots.FAMILIES, farther) | {"coolsd": nearer}
    by = {v.comparison: v for v in verdicts.curve_verdicts(curves, ["log_prob_difference"], 40)}
    verdict = by["coolsd - uniform at equal accept length"]
    assert verdict.effect.value > 0
    assert verdict.outcome == "agrees"


@pytest.mark.parametrize(("level", "sides", "outcome"), [(0.1, [1, -1, -1], "mixed"), (0.03, [-1, -1, -1], "agrees")])
def test_curves_that_cross_are_neither_ahead_nor_behind(level, sides, outcome):
    """Both flat curves lie below the rising one on the whole; the higher one does not everywhere."""
    flat = [point | {"bias": point["bias"] + level} for point in curve(0.0)]
    curves = {family: curve(0.3, noise=0.001) for family in names.FAMILIES} | {"coolsd": flat}
    answer = {v.comparison: v for v in verdicts.curve_verdicts(curves, ["bias"], 40)}["coolsd - uniform at equal accept length"]
    assert [place.side() for _, place in answer.places] == sides
    assert answer.effect.side() == -1
    assert answer.outcome == outcome
    assert ("at some places" in answer.words) == (outcome == "mixed")


def test_a_lower_bound_proves_others_ahead_but_never_behind():
    for mine, other, outcome in ((0.1, 0.3, "agrees"), (0.3, 0.1, "undecided")):
        answer = planted(mine, other)
        for measure in ("bias a token", "accept length"):
            verdict = answer["coolsd - lantern++", measure + verdicts.AT_LEAST]
            assert verdict.outcome == outcome
            assert "at least" in verdict.words
            assert answer["coolsd - lantern++g", measure].outcome == outcome.replace("undecided", "disagrees")


def test_uniform_and_clamped_are_judged_against_both_lanterns():
    answer = planted(0.2, 0.2)
    for mine in ("coolsd", "clamped", "uniform"):
        assert (f"{mine} - lantern++g", "accept length") in answer
        assert (f"{mine} - lantern++", "accept length" + verdicts.AT_LEAST) in answer
    curves = {family: curve(0.3, noise=0.001) for family in names.FAMILIES} | {"uniform": curve(0.1, noise=0.001)}
    ahead = [v for v in verdicts.curve_verdicts(curves, ["bias"], 40) if v.comparison.startswith("uniform - lantern++")]
    assert [(v.part, v.outcome, v.paper) for v in ahead] == [("b", "agrees", False)] * 4


# ---- the theorem's premise


def test_the_premise_is_counted_over_rows_with_its_error_over_prompts():
    weights = resampled(3)
    answer = verdicts.Premise.of([[0.1, 0.4], [0.3, 0.5], [0.6, 0.7]], weights, 0.4)
    assert (answer.rows, answer.share.value, answer.mean.value) == (6, 0.5, pytest.approx(2.6 / 6))
    assert 0.0 <= answer.share.low < 0.5 < answer.share.high <= 1.0
    assert answer.mean.low < 2.6 / 6 < answer.mean.high
    assert "the premise fails on this pair" in answer.words
    premise = verdicts.Premise.of([[0.1, 0.4], [0.3, 0.2]], resampled(2), 0.4)
    assert (premise.share.value, premise.share.low) == (1.0, 1.0)
    assert "All of them keep it" in premise.words


def test_curves_that_share_no_range_are_no_verdict():
    curves = {family: curve(0.1) for family in names.FAMILIES} | {"reversed": curve(0.1, (5.0, 6.0))}
    answer = [v for v in verdicts.curve_verdicts(curves, ["bias"], 40) if v.comparison == "coolsd - reversed at equal accept length"]
    assert [(v.outcome, v.effect) for v in answer] == [("undecided", None)]
    assert "share no range" in answer[0].words


def test_lossless_verdicts_tell_agreement_chance_and_difference_apart():
    def moved(by: float) -> dict[str, torch.Tensor]:
        spread = 0.01 * torch.randn(REPLICATES + 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        spread[0] = 0
        return {"log_prob_difference": by + spread, "bias": torch.zeros(REPLICATES + 1, dtype=torch.float64)}

    points = {"fine": moved(0.001), "chance": moved(0.05), "other law": moved(0.0), "spent": moved(0.0), "relaxed": moved(0.3)}
    points["spent"]["bias"] = points["spent"]["bias"] + 0.01
    same_law = {"fine": 0.4, "chance": 0.3, "other law": 0.001, "spent": 0.5, "relaxed": 0.001}
    answer = verdicts.lossless_verdicts(points, same_law, ["fine", "chance", "other law", "spent"], "relaxed", 40)
    assert [v.outcome for v in answer] == ["agrees", "undecided", "disagrees", "disagrees", "agrees"]
    assert verdicts.lossless_verdicts(points, same_law, [], "chance", 40)[0].outcome == "agrees"
    blunt = verdicts.lossless_verdicts(points, same_law, ["fine", "spent"], "fine", 40)
    assert [v.outcome for v in blunt] == ["undecided", "disagrees", "undecided"], "a test that sees nothing proves no agreement"


# ---- the sweep


def test_every_point_can_be_run_and_the_families_differ_as_they_say():
    for size in (Size(), sweep.QUICK):
        points = settings(size)
        assert len({s.label for s in points}) == len(points)
        swept = {s.label: validate(METHODS, prompt="x", method=s.method, **dict(s.fixed), **dict(s.swept)) for s in points}
        assert swept["reversed delta=2"].nu == -0.7
        assert swept["clamped delta=2"].clamp
        assert not swept["coolsd delta=2"].clamp
        assert swept["block delta=2"].method == "coolsd-block"
        assert swept[f"lantern++g neighbours={size.nearest[-1]} cap=10"].neighbours == size.nearest[-1]
        assert {s.tree for label, s in swept.items() if label.startswith(("coolsd", "uniform", "lantern++"))} == {"chain"}


def test_drafted_rows_are_laws_and_the_best_residual_is_never_worse():
    rows = list(sweep.drafted_rows(PAIR, "x", {}))
    assert len(rows) == sweep.ROWS_A_PROMPT
    table = sweep.neighbours(PAIR.codebook)
    gaps = []
    for p, q in rows:
        torch.testing.assert_close(torch.stack((p, q)).sum(-1), torch.ones(2, dtype=torch.float64))
        assert float(theory.total_variation(p, q)) > 0.01
        best, own = (sweep.variation(p, q, Lantern(table, 4, 4.0, optimal)) for optimal in (True, False))
        assert best == pytest.approx(float(theory.step_cost(p, q, Lantern(table, 4, 4.0, True), 0)))
        gaps.append(own - best)
    assert min(gaps) > -1e-9
    assert max(gaps) > 1e-3


def open_toy(target: str, dtype: str | None) -> ToyPair:
    return PAIR


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("claims")
    with pytest.MonkeyPatch.context() as patch:
        study, common = Study(folder, workers=1, opener=open_toy), {"draft_length": 3}
        answer = sweep.evaluate(study, SMALL, common, quick=True)
        patch.setattr(samples, "sample", lambda *_: pytest.fail("decoded again"))
        patch.setattr(sweep, "drafted_rows", lambda *_: pytest.fail("measured again"))
        again = sweep.evaluate(replace(study), SMALL, common, quick=True)
    assert again == answer
    return answer


def test_the_whole_sweep_is_measured_once_and_judged(result):
    assert result["pictures"] == 2 * len(settings(SMALL))
    parts = {v["part"] for v in result["verdicts"]}
    assert parts == set("abcd")
    for verdict in result["verdicts"]:
        assert verdict["outcome"] in page.OUTCOMES
        if verdict["effect"]:
            assert verdict["effect"]["low"] <= verdict["effect"]["value"] <= verdict["effect"]["high"]
    points = {p["label"]: p for p in result["points"]}
    assert points["ar"]["accept_length"]["value"] == 1.0
    assert points["lossless"]["bias"]["value"] < 1e-6
    assert points["uniform delta=3"]["bias"]["value"] > points["uniform delta=1.2"]["bias"]["value"] > 0.001
    exact = [v for v in result["verdicts"] if v["measure"].startswith("exact")]
    assert [v["comparison"] for v in exact] == [*(f"G* - own residual, k = {k}" for k in (1, 4)), "the gap at k = 4 less that at k = 1"]
    assert all(row["optimal"]["value"] <= row["own"]["value"] for row in result["residuals"])


def test_the_premise_is_that_of_the_rows_and_stands_beside_the_annealing_verdicts(result, tmp_path):
    prompts = [case.prompt for case in sweep.FIXED[: SMALL.prompts]]
    rows = [row for prompt in prompts for row in sweep.drafted_rows(PAIR, prompt, {"draft_length": 3})]
    distances = [float(theory.total_variation(p, q)) for p, q in rows]
    premise = result["premise"]
    assert premise["rows"] == len(distances) == 2 * sweep.ROWS_A_PROMPT
    assert premise["mean"]["value"] == pytest.approx(sum(distances) / len(distances))
    assert premise["share"]["value"] == pytest.approx(sum(d <= 0.4 for d in distances) / len(distances))
    message = names.lines(result)
    assert [line for line in message if premise["words"] not in line] == [v["words"] for v in result["verdicts"]]
    place = next(i for i, line in enumerate(message) if premise["words"] in line)
    assert (message[place - 1][:3], message[place + 1][:3]) == ("(c)", "(d)")
    annealing = [f for f in plots.figures(result) if f["title"].startswith("Annealed")]
    assert annealing
    assert all(premise["words"] in f["note"] for f in annealing)
    assert escape(premise["words"]) in page.comparisons(page.Stored(page.shipped().evidence, result))
    plots.write_html(result, tmp_path / "claims.html")
    assert premise["words"] in (tmp_path / "claims.html").read_text()


def test_figures_kept_before_distances_were_measured_are_measured_again(tmp_path):
    path = tmp_path / "residuals.jsonl"
    fresh = sweep.one_step(PAIR, SMALL, ["x"], {}, path)
    entry = json.loads(path.read_text())
    del entry["distances"]
    path.write_text(json.dumps(entry) + "\n")
    assert sweep.one_step(PAIR, SMALL, ["x"], {}, path) == fresh
    assert len(path.read_text().splitlines()) == 2


def test_a_result_from_before_the_premise_is_still_read(result, tmp_path):
    old = {name: value for name, value in result.items() if name not in ("premise", "interval")}
    path = tmp_path / "claims.json"
    path.write_text(json.dumps(old))
    answer = page.stored_claims(path)
    assert names.lines(answer) == [v["words"] for v in answer["verdicts"]]
    assert "assumes TV" not in page.comparisons(page.Stored(page.shipped().evidence, answer))
    assert len(plots.figures(answer)) == len(plots.figures(result))


def test_its_figures_are_plotly_figures_and_hold_the_points(result, tmp_path):
    charts = plots.figures(result)
    assert len(charts) == 6
    for figure in charts:
        go.Figure(figure["data"], figure["layout"])  # refuses keys that Plotly does not know
        assert figure["title"]
        assert figure["note"]
    against = next(f for f in charts if f["title"] == "Accept length and bias a token")
    uniform = next(t for t in against["data"] if t["name"] == "UniformRSD")
    points = {p["label"]: p for p in result["points"]}
    assert set(uniform["y"]) == {points[f"uniform delta={d:g}"]["bias"]["value"] for d in SMALL.uniforms} | {
        points["lossless"]["bias"]["value"]
    }
    starts = {t["name"]: "lossless" in t["text"] or "lossless block" in t["text"] for t in against["data"]}
    assert [family for family, name in names.FAMILIES.items() if starts.get(name) is False] == ["coolsd"]
    plots.write_html(result, tmp_path / "claims.html")
    assert "http" not in (tmp_path / "claims.html").read_text().replace("http-equiv", "")
    assert (tmp_path / "plotly.min.js").stat().st_size > 1e6


# ---- the tab


def test_the_tab_shows_what_is_stored_and_teaches_without_it(result, tmp_path):
    path = tmp_path / "claims.json"
    for broken in (None, "{", "[]", '{"schema": 0}'):
        if broken is not None:
            path.write_text(broken)
        assert page.stored_claims(path) is None
    assert page.shipped(tmp_path) is None
    with gr.Blocks() as empty:
        page.draw(None)
    assert "eval schedules" in json.dumps(empty.get_config_file())
    path.write_text(json.dumps(result))
    words = page.comparisons(page.Stored(page.shipped().evidence, page.stored_claims(path)))
    assert "A quick look" in words
    assert "48 pictures: 2 prompts × 1 seed for each of 24 settings" in words
    assert "without KID" in words
    assert words.count("data-outcome") == len(result["verdicts"])
    said = sum(words.count(f"undecided{how}") for how in (": about", " whatever", ": no number", ": the curves"))
    assert said == sum(v["outcome"] == "undecided" for v in result["verdicts"]), "each says what would decide it"


def test_what_a_stored_result_holds_is_shown_as_text():
    verdict = {"part": "a", "comparison": "<script>", "measure": "&", "effect": None, "outcome": "agrees", "places": []}
    finding = evidence.Finding("<b>", "holds", "<i>", "<u>")
    for text in (page.sweep_table([verdict]), page.claims([finding]) + page.sentences([finding])):
        assert "&lt;" in text
        assert not any(tag in text for tag in ("<script>", "<i>", "<u>"))


# ---- the command


def test_the_command_writes_what_the_page_reads(monkeypatch, tmp_path, capsys, result):
    call = {}

    def evaluate(study, size, common, quick):
        call.update(size=size, common=common, study=study, quick=quick)
        return result

    monkeypatch.setattr(sweep, "evaluate", evaluate)
    assert main(["eval", "claims", "--quick", "--folder", str(tmp_path), "--seeds", "3", "--top-k", "7"]) == 0
    assert (call["size"].seeds, call["size"].prompts, call["quick"]) == (3, sweep.QUICK.prompts, True)
    assert (call["study"].folder, call["study"].images, call["study"].photos) == (tmp_path, None, ())
    assert (call["common"]["top_k"], call["common"]["draft_length"]) == (7, 5)
    assert page.stored_claims(tmp_path / "quick" / "claims.json")["verdicts"] == json.loads(json.dumps(result["verdicts"]))
    assert (tmp_path / "claims.html").exists()
    message = capsys.readouterr().out
    assert result["verdicts"][0]["words"] in message
    assert result["premise"]["words"] in message
    assert "9.17 times as wide for being only 2" in message
    assert main(["eval", "claims", "--quick", "--folder", str(tmp_path), "--images", "x"]) == 2
    assert "--csv" in capsys.readouterr().err


def test_a_setting_names_what_sets_it_apart():
    assert Setting("uniform", "uniform", (("delta", 1.1),)).label == "uniform delta=1.1"
