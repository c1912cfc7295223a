"""Photos, probe and agreement against known answers."""

import json
import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from albums import NETWORKS, SHADES, extract, normal
from PIL import Image
from tiny import CONFIG, tiny_pair, vqvae, write_tiny

import coolsd.__main__ as cli
from coolsd.data import features, metrics
from coolsd.data.pictures import square
from coolsd.evaluation import photos, specks
from coolsd.evaluation.prompts import PromptCase
from coolsd.evaluation.quality import decoders, pair, probe
from coolsd.models.vq import ImageTokenizer
from coolsd.training.target import Trainee
from coolsd.training.tokens import Batch


def test_photos_are_measured_once_and_again_for_another_tokenizer(album, tmp_path):
    tokenizer, calls = tiny_pair().tokenizer, []

    def counted(pictures):
        calls.append(len(pictures))
        return extract(pictures)

    valid = photos.chosen(photos.read_photos(album / "captions.csv"), "valid")
    first = photos.measure(album, valid, tokenizer, photos.Networks(counted, NETWORKS.judge), tmp_path / "cache")
    assert len(first.numbers) == 16 == sum(calls)  # the missing one is left out
    assert first.codes.shape == (16, 16)
    side = tokenizer.grid * tokenizer.patch
    with Image.open(album / valid[first.numbers[3]].file) as picture:
        original = torch.from_numpy(square(picture.convert("RGB"), side)).permute(2, 0, 1)[None]
    assert tokenizer.encode(original)[0].tolist() == first.codes[3].tolist()
    copy = tokenizer.decode(first.codes[3:4])
    assert first.psnr[3].item() == pytest.approx(10 * math.log10(4 / (copy - original).square().mean().item()))
    torch.testing.assert_close(first.features[3:4], extract(features.eight_bit(copy)))
    torch.testing.assert_close(first.judged[3:4], NETWORKS.judge(features.eight_bit(copy)))
    torch.testing.assert_close(first.isolation[3:4], specks.isolation(features.eight_bit(copy), tokenizer.patch))
    again = photos.measure(album, valid, tokenizer, photos.Networks(counted, NETWORKS.judge), tmp_path / "cache")
    assert sum(calls) == 16
    assert torch.equal(again.features, first.features)
    real = photos.measure(album, valid, tokenizer, photos.Networks(counted, NETWORKS.judge), tmp_path / "cache", reconstruct=False)
    torch.testing.assert_close(real.features[3:4], extract(original))
    other = ImageTokenizer(deepcopy(tokenizer.vqvae), tokenizer.grid)
    other.vqvae.quantize.embedding.weight.data += 0.1
    photos.measure(album, valid, other, photos.Networks(counted, NETWORKS.judge), tmp_path / "cache")
    assert sum(calls) == 48
    Image.new("RGB", (20, 24), (1, 2, 3)).save(album / valid[0].file)
    photos.measure(album, valid, tokenizer, photos.Networks(counted, NETWORKS.judge), tmp_path / "cache")
    assert sum(calls) == 64  # a picture was replaced


def test_photos_in_parts_are_numbered_through(album, tmp_path, monkeypatch):
    every = photos.chosen(photos.read_photos(album / "captions.csv"), "train")
    whole = photos.measure(album, every, tiny_pair().tokenizer, NETWORKS, tmp_path / "a")
    monkeypatch.setattr(photos, "PART", 7)
    parts = photos.measure(album, every, tiny_pair().tokenizer, NETWORKS, tmp_path / "b")
    assert torch.equal(parts.numbers, whole.numbers)
    torch.testing.assert_close(parts.features, whole.features)
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="None of the CSV's pictures"):
        photos.measure(empty, every, tiny_pair().tokenizer, NETWORKS, tmp_path / "c")


def test_a_probe_learns_kinds_and_not_noise():
    centres = torch.eye(4, 12) * 4
    labels = [i % 4 for i in range(200)]
    x = centres[labels] + normal(200)
    fitted = probe.fit_probe(x, ["abcd"[i] for i in labels])
    fresh = centres[labels] + normal(200, seed=1)
    rank = fitted.rank(fresh, ["abcd"[i] for i in labels])
    assert (rank == 0).float().mean() > 0.95
    assert (fitted.rank(normal(400, seed=2), ["a"] * 400) == 0).float().mean() < 0.5
    assert set(fitted.rank(fresh[:8], ["d"] * 8).tolist()) <= {0, 1, 2, 3}


def test_agreement_counts_kinds_colours_and_traits(album):
    kinds = list(SHADES)
    cases = [
        PromptCase("a red rose", "rose", "red"),
        PromptCase("a blue rose", "rose", "blue"),
        PromptCase("the sea", "sea"),
        PromptCase("a forest", "forest"),
    ]
    view = ["rose", "rose", "sea", "sea"]
    pictures = [Image.new("RGB", (16, 16), SHADES[kind]) for kind in view]
    tensors = torch.stack([torch.tensor(SHADES[kind]).float()[:, None, None].expand(3, 16, 16) / 127.5 - 1 for kind in SHADES])
    centres = extract(tensors)
    fitted = probe.Probe(tuple(kinds), torch.zeros(9), torch.ones(9), centres, -centres.square().sum(1) / 2)
    figures = pair.agreement(cases, pictures, centres[[kinds.index(kind) for kind in view]], fitted)
    assert {name: (f["value"], f["pictures"]) for name, f in figures.items()} == {
        "scene_top1": (0.5, 2),
        "flower_top5": (1.0, 2),
        "flower_top1": (1.0, 2),
        "colour": (0.5, 2),
    }


def test_the_error_of_a_share_is_over_prompts_not_pictures():
    cases = [PromptCase("a", "a")] * 10 + [PromptCase("b", "b")] * 10
    share = pair.over_prompts(cases, torch.tensor([True] * 10 + [False] * 10))
    assert (share.value, share.error) == (0.5, pytest.approx(0.5))


def test_pictures_are_compared_as_they_are_saved():
    view = features.eight_bit(torch.tensor([-1.0, -0.999, 0.0, 0.5, 1.0, 1.2]))
    assert ((view + 1) * 127.5).tolist() == pytest.approx([0, 0, 128, 191, 255, 255])


def test_isolation_is_the_least_distance_to_the_eight_around():
    picture = torch.zeros(1, 3, 8, 10)  # four by five patches of 2
    picture[0, :, 2:4, 4:6] = 0.4  # patch (1, 2) stands alone
    picture[0, 0, 4:6, 2:4] = 0.1  # patch (2, 1) differs a little
    result = specks.isolation(picture, 2)
    assert result.shape == (1, 2, 3)
    near = math.sqrt(0.3**2 + 2 * 0.4**2)
    torch.testing.assert_close(result[0], torch.tensor([[0.0, near, 0.0], [0.1, 0.0, 0.0]]))
    pair = picture.clone()
    pair[0, :, 2:4, 6:8] = 0.4  # a second one beside it: neither is alone
    assert specks.isolation(pair, 2)[0, 0].max() == 0


def test_specks_are_what_one_photo_patch_in_a_thousand_exceeds():
    random = torch.Generator().manual_seed(0)
    photos_ = torch.rand(500, 4, 5, generator=random)
    limit = specks.speck_limit(photos_)
    assert limit == pytest.approx(0.999, abs=1e-3)
    share = specks.speck_share(torch.tensor([[[0.0, 1.0], [2.0, 0.5]], [[0.0, 0.1], [0.2, 0.3]]]), limit)
    assert share.tolist() == [0.5, 0.0]
    figures = pair.speck_figures(photos_, photos_ / 2, torch.full((3, 4, 5), 2.0))
    assert figures["photos"]["value"] == pytest.approx(0.001, abs=2e-4)
    assert (figures["reconstructions"]["value"], figures["painted"]["value"]) == (0, 1)


def test_kid_of_reconstructions_is_one_half_against_the_other():
    random = torch.Generator().manual_seed(0)
    empty = torch.empty(0)

    def measured(shift: float) -> photos.PhotoFigures:
        judged, named = torch.randn(40, 8, generator=random) + shift, torch.randn(40, 6, generator=random) + shift
        return photos.PhotoFigures(torch.arange(40), named, judged, empty, empty, torch.full((40,), 22.0))

    real, copies = measured(0.0), measured(0.5)
    figures = decoders.reconstruction_figures(copies, real)
    assert figures["kid_lite2"] == {"value": (k := metrics.kid(copies.judged[::2], real.judged[1::2])).value, "error": k.error}
    assert figures["kid_lite0"]["value"] == metrics.kid(copies.features[::2], real.features[1::2]).value
    assert decoders.reconstruction_figures(real, real)["kid_lite2"]["value"] < figures["kid_lite2"]["value"]
    assert figures["psnr_db"]["value"] == 22


def test_decoders_stand_side_by_side(album, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(features, "efficientnet", lambda version: extract)
    instance = vqvae()
    instance.save_pretrained(tmp_path / "old")
    instance.decoder.conv_out.bias += 0.1
    instance.save_pretrained(tmp_path / "new")
    where = ["--images", str(album), "--csv", str(album / "captions.csv"), "--folder", str(tmp_path / "kept"), "--workers", "1"]
    where += ["--target", str(write_tiny(tmp_path / "pair")), "--out", str(tmp_path / "out"), "--grid", "4", "--top-k", "9"]
    folders = [f"{name}={tmp_path / name}" for name in ("old", "new")]
    assert cli.main(["eval", "decoders", *where, "--pictures", "5", "--vq", *folders]) == 0
    report = json.loads((tmp_path / "out" / "decoders.json").read_text())
    old, new = report["rows"]["old"], report["rows"]["new"]
    assert old["reconstructions"]["psnr_db"] != new["reconstructions"]["psnr_db"]
    assert old["painted"]["kid_lite2"] != new["painted"]["kid_lite2"]
    assert capsys.readouterr().out.strip() in (tmp_path / "out" / "README.md").read_text()
    assert report["command"].endswith("--pictures 5 --top-k 9 --vq old=FOLDER new=FOLDER")
    assert cli.main(["eval", "decoders", *where, "--pictures", "0", "--vq", str(tmp_path / "old")]) == 0
    out = capsys.readouterr().out
    assert f"| {tmp_path / 'old'} | " in out
    assert "painted" not in out


def test_target_losses_are_those_of_training_and_go_on_where_they_were(album, tmp_path):
    tiny = tiny_pair()
    valid = photos.chosen(photos.read_photos(album / "captions.csv"), "valid")
    measured = photos.measure(album, valid, tiny.tokenizer, NETWORKS, tmp_path)
    file = tmp_path / "losses.jsonl"
    losses = pair.target_losses(tiny, valid, measured, 6, file)
    whole = file.read_text()
    file.write_text(whole[:-4])
    assert torch.equal(pair.target_losses(tiny, valid, measured, 6, file), losses)
    assert file.read_text() == whole
    others = [replace(photo, captions=f"{photo.captions.split('|')[0]} again") for photo in valid]
    assert not torch.equal(pair.target_losses(tiny, others, measured, 2, file)[:, 0], losses[:2, 0])
    assert torch.equal(pair.target_losses(tiny, valid, measured, 6, file), losses)
    trainee = Trainee(CONFIG, tiny.codebook)
    trainee.embed_map.data.zero_()
    trainee.model.load_state_dict(tiny.target_model.state_dict())
    number = measured.numbers[0].item()
    caption = valid[number].wordings[np.random.default_rng(0).integers(len(valid[number].wordings))]
    words = torch.tensor([tiny.text.ids(caption)])
    for column, dropped in enumerate((False, True)):
        batch = Batch(measured.codes[:1], tiny.text.table[words], torch.tensor([dropped]))
        assert trainee(batch, trainee.model.rope()).item() == pytest.approx(losses[0, column].item(), abs=1e-4)
