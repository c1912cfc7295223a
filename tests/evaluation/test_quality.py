"""Whole evaluations on toy pictures, and their verdicts."""

import json
import sys
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from albums import SETTINGS, SHADES, TOY, extract, study
from PIL import Image
from tables import Toy
from tiny import write_tiny
from toy import ToyPair

import coolsd.__main__ as cli
from coolsd import statistics, stream
from coolsd.data import features, metrics, store
from coolsd.evaluation import samples
from coolsd.evaluation.prompts import DEFAULTS, FIXED
from coolsd.evaluation.quality import cards, defaults, methods, pair


def test_a_study_reads_the_weights_once_and_marks_its_folder_with_them(album, tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "fingerprint", lambda _: pytest.fail("read again"))
    instance = study(album, tmp_path)
    result = instance.collect([samples.Job(label, "ar", (), "a rose", seed) for seed in (1, 0) for label in "ab"])
    assert {label: [s.seed for s in row] for label, row in result.items()} == {"a": [1, 0], "b": [1, 0]}
    assert json.loads((instance.own / "collection.json").read_text())["weights"] == instance.weights == instance.own.name
    tokenizer, pixels = instance.pair.tokenizer, instance.pixels(result["a"])
    for sample, picture in zip(result["a"], instance.pictures(pixels), strict=True):
        assert picture.tobytes() == tokenizer.picture(sample.tokens).tobytes()


def test_eval_meadow_measures_everything_and_writes_the_card(album, tmp_path, capsys):
    size = pair.Size(scored=4, seeds=2)
    report, sheets = pair.evaluate(study(album, tmp_path), size, SETTINGS, TOY)
    assert report["agreement"]["scene_top1"]["pictures"] == 4
    assert set(report["agreement"]["by_prompt"]) == {a.prompt for a in TOY}
    assert {"valid_scene_top1", "valid_flower_top5"} <= set(report["probe"])
    assert report["target"]["photos"] == 4
    assert report["tokenizer"]["codes"] == 32
    assert 0 <= report["specks"]["painted"]["value"] <= 1
    assert sheets["reconstructions"].height > sheets["prompts"].height > 16
    capsys.readouterr()
    again, _ = pair.evaluate(study(album, tmp_path), size, SETTINGS, TOY)
    assert again == json.loads(json.dumps(report))
    assert capsys.readouterr().err == ""  # nothing was decoded or scored again
    card = tmp_path / "README.md"
    card.write_text("# pair\n\nbefore\n")
    for _ in range(2):
        cards.replace_section(card, "eval meadow", cards.pair_section({"command": "eval"} | report))
    text = card.read_text()
    assert text.startswith("# pair\n\nbefore\n")
    assert text.count("## Measured on `valid`") == 1
    assert f"{report['tokenizer']['psnr_db']['value']:.2f} dB" in text


def test_eval_quality_is_honest_about_lossless_and_relaxed_methods(album, tmp_path, monkeypatch):
    output, judged, verdicts = [], {}, methods.verdicts
    monkeypatch.setattr(methods, "exchange_test", partial(metrics.exchange_test, draws=199))
    monkeypatch.setattr(methods, "verdicts", lambda rows, steps, names: judged.update(steps=steps) or verdicts(rows, steps, names))
    report = methods.evaluate(study(album, tmp_path), 8, SETTINGS | {"draft_length": 3}, say=output.append)
    rows = {row["label"]: row for row in report["rows"]}
    assert list(rows) == [label for label, _, _ in methods.VARIANTS]
    assert rows["AR"]["against_ar"] is None
    assert rows["AR"]["accept_length"]["value"] == 1
    assert rows["Eagle-1"]["bias_per_token"] == pytest.approx(0, abs=1e-6)
    assert rows["COOL-SD δ=4"]["bias_per_token"] > rows["COOL-SD δ=1.1"]["bias_per_token"] > 0
    relaxed = report["rows"][2:]
    pairs = [(row["against_ar"], rows["AR"], row) for row in relaxed]
    pairs += [(result, *rows) for result, rows in zip(judged["steps"], pairwise(relaxed), strict=True)]
    for difference, before, after in pairs:
        for figure in ("kid", "log_prob"):
            assert difference[figure]["value"] == pytest.approx(after[figure]["value"] - before[figure]["value"], abs=1e-9)
    assert report["photos"] == 16
    assert any(line.startswith("Eagle-1 agrees with AR within error (1 % level): ") for line in report["verdicts"])
    assert all(row["drift"]["outside"] == 0 for row in report["rows"])
    drifts = {line.split(" ")[0]: line for line in report["verdicts"] if "log p + H" in line}
    assert {"AR", "Eagle-1", "COOL-SD"} == set(drifts)
    assert "NOT" not in drifts["AR"] + drifts["Eagle-1"]
    assert any(line.startswith("Bias a token") and line.endswith("monotone in δ.") for line in report["verdicts"])
    section = cards.quality_section({"command": "eval quality"} | report)
    assert "8 pictures a method" in section
    assert all(label in section for label in rows)


def step(kid: float, log_prob: float, p: float = 0.5) -> dict:
    return {"kid": {"value": kid, "error": 0.01}, "log_prob": {"value": log_prob, "error": 0.01}, "same_law_p": p}


def row(label: str, kid: float, log_prob: float, bias: float, against: dict | None) -> dict:
    figures = {"kid": {"value": kid, "error": 0.01}, "log_prob": {"value": log_prob, "error": 0.01}}
    return {"label": label, "bias_per_token": bias, "against_ar": against} | figures


def drift_row(label: str, value: float, error: float = 0.01, outside: int = 0) -> dict:
    return {"label": label, "pictures": 50, "drift": {"value": value, "error": error, "outside": outside}}


def test_the_martingale_decides_only_where_its_control_fails():
    names = ["ar", "eagle1", "coolsd"]
    good = [drift_row("AR", 0.01), drift_row("E", -0.02), drift_row("C", -0.08)]
    lines = methods.martingale_verdicts(good, names)
    assert ["within error" in line for line in lines] == [True, True, False]
    assert "is seen to depart" in lines[2]
    blind = methods.martingale_verdicts([*good[:2], drift_row("C", -0.02)], names)
    assert blind[1].startswith("E undecided: about 147 pictures would show a control to depart")
    assert "undecided; about 147 pictures" in blind[2]
    assert "no relaxed method was measured as a control" in methods.martingale_verdicts(good[:2], names[:2])[1]
    wrong = methods.martingale_verdicts([good[0], drift_row("E", 0.03), good[2]], names)
    assert "does NOT draw from the target" in wrong[1]
    outside = methods.martingale_verdicts([good[0], drift_row("E", 0.0, outside=1), good[2]], names)
    assert "NOT" in outside[1]
    assert "1 tokens that the target cannot emit" in outside[1]
    assert methods.martingale_verdicts([{"label": "old", "drift": None}], ["ar"]) == []


def test_pictures_of_a_lossless_method_pass_and_those_of_a_relaxed_one_fail():
    pair = ToyPair(Toy.make(6, seed=5), (1, 40))
    rows = []
    for method, settings in (("eagle1", {}), ("block", {}), ("uniform", {"delta": 3.0})):
        settings |= {"cfg_scale": 1.0, "draft_length": 4}
        drifts = [statistics(list(stream(pair, "x", method, seed=seed, **settings))).drift for seed in range(24)]
        rows.append({"label": method, "pictures": 24, "drift": asdict(metrics.mean_estimate(torch.tensor(drifts))) | {"outside": 0}})
    exact, block, relaxed = methods.martingale_verdicts(rows, [row["label"] for row in rows])
    assert "within error" in exact
    assert "within error" in block
    assert "is seen to depart" in relaxed


def test_verdicts_say_no_where_the_figures_say_no():
    names = ["ar", "eagle1", "coolsd", "coolsd"]
    rows = [row("AR", 0.1, -5, 0, None), row("E", 0.2, -5, 0, step(0.1, 0)), row("C1", 0.3, -6, 0.2, step(0.2, -1))]
    rows.append(row("C2", 0.2, -7, 0.1, step(0.1, -2)))
    lines = methods.verdicts(rows, [step(-0.1, -1)], names)
    assert "E DIFFERS from AR (1 % level), unlike what theory says" in lines[0]
    assert lines[1].startswith("C1 DIFFERS from AR (1 % level): ")
    assert "NOT monotone" in lines[3]
    assert lines[4].endswith("NOT monotone in δ, beyond two standard errors.")
    assert lines[5].endswith("monotone in δ.")
    assert "NOT" not in lines[5]
    small = methods.verdicts(rows, [step(-0.015, 0.015)], names)
    assert all("within two standard errors" in line for line in small[4:])
    unlike = methods.verdicts([rows[0], row("E", 0.1, -5, 0, step(0, 0, p=0.001))], [], ["ar", "eagle1"])
    assert "DIFFERS" in unlike[0]
    blind = methods.verdicts([rows[0], row("C", 0.1, -5, 0.1, step(0, 0))], [], ["ar", "coolsd"])
    assert "for all its bias" in blind[0]


def test_nothing_that_is_not_finite_decides_a_verdict_or_reaches_a_file(tmp_path):
    nan = float("nan")
    rows = [row("AR", 0.1, -5, 0, None), row("E", nan, -5, 0, step(nan, 0)), *(row(f"C{i}", 0.1, nan, i, step(0, nan)) for i in (1, 2))]
    lines = methods.verdicts(rows, [step(nan, nan)], ["ar", "eagle1", "coolsd", "coolsd"])
    assert all("cannot be compared with AR" in line for line in lines[:3])
    assert all(line.endswith("cannot be judged, as a figure is not finite.") for line in lines[-2:])
    store.save_json(tmp_path / "a.json", {"figures": [nan, float("inf"), 1.5], "words": "NaN"})
    assert json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail) == {"figures": [None, None, 1.5], "words": "NaN"}


def test_too_few_photos_or_pictures_and_other_labels_are_refused_before_anything_is_decoded(album, tmp_path):
    whole = study(album, tmp_path)
    few = replace(whole, photos=[photo for photo in whole.photos if photo.split == "train"] + whole.photos[-3:])
    for one, pictures in ((few, 8), (whole, 3)):
        with pytest.raises(ValueError, match="need 4 pictures and 4 valid photos or more"):
            methods.evaluate(one, pictures, SETTINGS)
    with pytest.raises(ValueError, match="need 4 pictures and 4 photos or more; here are 5 and 3"):
        metrics.kid(torch.rand(5, 2), torch.rand(3, 2))
    owls = replace(whole, photos=[replace(photo, label="owl") for photo in whole.photos])
    with pytest.raises(ValueError, match=r"No prompt that is measured names a label of these photos \(owl\)"):
        pair.evaluate(owls, pair.QUICK, SETTINGS)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("kids", "ends"), [((0.2, 0.5, 0.4), "NOT"), ((0.5, 0.4, 0.9), "NOT"), ((0.2, 0.3, 0.4), "monotone in δ.")])
def test_the_order_of_three_relaxed_lanes_is_judged_step_by_step(kids, ends):
    """Neither the ends alone nor the distances from AR tell it: the third lane lies above the first, and all above AR."""
    names = ["ar", "coolsd", "coolsd", "coolsd"]
    rows = [row("AR", 0.1, -5, 0, None)]
    rows += [row(f"C{i}", kid, -5 - kid, 0.1 * (i + 1), step(kid - 0.1, -kid)) for i, kid in enumerate(kids)]
    steps = [step(b - a, a - b) for a, b in pairwise(kids)]
    for line in methods.verdicts(rows, steps, names)[-2:]:
        assert line.endswith("NOT monotone in δ, beyond two standard errors." if ends == "NOT" else ends)
        assert "C0, C1, C2: " in line


def test_sweep_measures_the_grid_and_follows_its_rule(album, tmp_path):
    grid = {"cfg_scale": (1.0, 3.0), "top_k": (8,), "temperature": (1.0,)}
    report = defaults.evaluate(study(album, tmp_path), 6, 8, grid, (1, 3))
    assert [r["settings"]["cfg_scale"] for r in report["rows"]] == [1.0, 3.0]
    assert {(r["method"], r.get("draft_length")) for r in report["speeds"]} == {("ar", None)} | {
        (method, length) for method in ("eagle1", "coolsd") for length in (1, 3)
    }
    assert report["suggested"]["draft_length"] in (1, 3)
    card = cards.defaults_section(report | {"command": "eval sweep"})
    assert "| guidance | top-k | temperature | KID × 1000 |" in card
    assert "draft_length" in card.split("It takes: ")[1]
    assert card.count("\n| coolsd draft_length=") == 2
    rows = [
        {"settings": name, "kid": {"value": kid, "error": 0.01}, "obeyed": {"value": obeyed, "error": 0.05}, "accept_length": length}
        for name, kid, obeyed, length in (
            ("low", 0.1, 0.5, 3.0),
            ("near", 0.115, 0.77, 2.0),
            ("slow", 0.115, 0.8, 1.9),
            ("far", 0.2, 0.9, 3.0),
        )
    ]
    assert defaults.suggest(rows) == "near"
    assert defaults.suggest([*rows, rows[2] | {"settings": DEFAULTS}]) == DEFAULTS
    assert defaults.suggest([*rows, rows[0] | {"settings": DEFAULTS}]) == "near"


def test_a_mean_of_figures_has_their_error():
    figures = [metrics.Estimate(0.2, 0.03), metrics.Estimate(0.6, 0.04)]
    assert defaults.mean_of(figures) == metrics.Estimate(0.4, pytest.approx(0.025))


def test_features_are_those_of_efficientnet_or_say_what_to_install(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
        with pytest.raises(ValueError, match=r"evaluation/requirements\.txt"):
            features.efficientnet()
    pytest.importorskip("efficientnet_lite_pytorch")
    network = features.efficientnet()
    pictures = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    result = features.features(pictures, network)
    assert result.shape == (3, 1280)
    torch.testing.assert_close(network(pictures[1:2])[0], result[1], atol=1e-4, rtol=1e-3)
    assert (result[0] - result[1]).abs().max() > 0.01


def test_eval_meadow_as_typed_on_a_pair_of_ones_own(album, tmp_path, monkeypatch, capsys):
    pair = write_tiny(tmp_path / "pair")
    monkeypatch.setattr(features, "efficientnet", lambda version: extract)
    where = ["--images", str(album), "--csv", str(album / "captions.csv"), "--folder", str(tmp_path / "kept"), "--workers", "1"]
    assert cli.main(["eval", "meadow", *where, "--target", str(pair), "--quick"]) == 0
    out = tmp_path / "kept" / "quick"
    report = json.loads((out / "eval.json").read_text())
    assert report["weights"] == store.fingerprint(str(pair))
    prompts = set(report["agreement"]["by_prompt"])
    assert prompts == {a.prompt for a in FIXED if a.kind in SHADES}
    assert capsys.readouterr().out.strip() in (out / "README.md").read_text()
    for name, columns in (("prompts", 10), ("reconstructions", 8)):
        with Image.open(out / f"{name}.jpg") as picture:
            assert picture.width == columns * (16 + 4) - 4


def test_a_quick_run_never_replaces_shipped_figures(album, tmp_path, monkeypatch, capsys):
    call = {}
    monkeypatch.setattr(features, "efficientnet", lambda version: extract)

    def evaluate(study, pictures, settings):
        call.update(pictures=pictures, settings=settings)
        return {"verdicts": ["fine"]}

    monkeypatch.setattr(methods, "evaluate", evaluate)
    monkeypatch.setattr(cards, "quality_section", lambda report: report["command"])
    where = ["--images", str(album), "--csv", str(album / "captions.csv"), "--folder", str(tmp_path / "kept")]
    assert cli.main(["eval", "quality", *where, "--quick"]) == 0
    assert call["pictures"] == 4
    assert json.loads((tmp_path / "kept" / "quick" / "quality.json").read_text())["verdicts"] == ["fine"]
    assert str(album) not in (tmp_path / "kept" / "quick" / "README.md").read_text()
    assert cli.main(["eval", "quality", *where, "--pictures", "7", "--top-k", "9", "--out", str(tmp_path / "out")]) == 0
    assert (call["pictures"], call["settings"]["top_k"]) == (7, 9)
    assert json.loads((tmp_path / "out" / "quality.json").read_text())["command"].endswith("--pictures 7 --top-k 9")
    assert "fine" in capsys.readouterr().out
    monkeypatch.setattr(defaults, "evaluate", lambda study, pictures, kinds, grid, lengths: {"grid": grid, "suggested": {}})
    monkeypatch.setattr(cards, "defaults_section", lambda report: report["command"])
    assert cli.main(["eval", "sweep", *where, "--cfg-scale", "2", "3.5", "--quick", "--top-k", "9"]) == 0
    swept = json.loads((tmp_path / "kept" / "quick" / "sweep.json").read_text())
    assert swept["grid"] == {"cfg_scale": [2.0, 3.5], "top_k": [9], "temperature": [0.9]}
    assert "--cfg-scale 2 3.5 --top-k 9" in swept["command"]
    monkeypatch.undo()
    assert cli.main(["eval", "sweep", *where, "--pictures", "3"]) == 2
    assert "no standard error" in capsys.readouterr().err
    (album / "captions.csv").write_text("file,label\n")
    assert cli.main(["eval", "meadow", *where]) == 2
    assert "lacks the column(s) split, captions" in capsys.readouterr().err
