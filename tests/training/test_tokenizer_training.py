"""Training a picture tokenizer: from nothing, and the decoder alone on fixed codes; killed, resumed, with pictures that cannot be read."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tiny import vqvae
from torch import nn
from transformers import JanusVQVAE

from coolsd.__main__ import main
from coolsd.data.pictures import read_records
from coolsd.data.store import load_checkpoint
from coolsd.models.vq import load_vq
from coolsd.training import crops, loop, tokenizer
from coolsd.training.group_norm import FastNorm, use_fast_norm

SMALL = ["--grid", "4", "--codes", "16", "--multipliers", "1", "1", "1", "--batch", "4", "--workers", "0", "--warmup", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Sixteen pictures with two flat halves, four of them valid; one line without a picture and one with a broken one."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    lines = [("file", "label", "split"), ("gone.png", "x", "train"), ("broken.png", "x", "train")]
    (root / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n no picture")
    for i in range(16):
        halves = random.integers(0, 255, (2, 1, 3), dtype=np.uint8).repeat(12, 0).repeat(24, 1)
        Image.fromarray(halves).save(root / f"{i}.png")
        lines.append((f"{i}.png", "x", "valid" if i > 11 else "train"))
    with (root / "index.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows(lines)
    return root


def train(folder: Path, out: Path, *options: str, steps: int) -> int:
    files = ["--images", str(folder), "--csv", str(folder / "index.csv"), "--checkpoint", str(out / "vq.pt"), "--out", str(out / "vq")]
    return main(["train", "tokenizer", *files, *SMALL, "--every", "20", *options, "--steps", str(steps)])


def error(folder: Path, vq: Path) -> float:
    rows = read_records(folder / "index.csv")
    pixels = tokenizer.validation_pictures(folder, rows, 16)
    ours = load_vq(vq, 4)
    return F.mse_loss(ours.decode(ours.encode(pixels)), pixels).item()


def test_from_nothing_then_the_decoder_alone(folder, tmp_path, capsys):
    assert train(folder, tmp_path, "--perceptual", "0", "--rate", "2e-3", steps=0) == 0
    before = error(folder, tmp_path / "vq")
    assert train(folder, tmp_path, "--perceptual", "0", "--rate", "2e-3", steps=30) == 0
    log = capsys.readouterr().err
    assert "missing" in log
    assert "unreadable" in log
    assert "perplexity" in log
    first = error(folder, tmp_path / "vq")
    assert first < 0.9 * before
    (tmp_path / "alone").mkdir()
    alone = ["--decoder-only", "--start", str(tmp_path / "vq"), "--rate", "1e-3"]
    assert train(folder, tmp_path / "alone", *alone, steps=20) == 0
    assert train(folder, tmp_path / "alone", *alone, steps=40) == 0
    assert load_checkpoint(tmp_path / "alone" / "vq.pt")["step"] == 40
    assert error(folder, tmp_path / "alone" / "vq") < first
    old, new = (JanusVQVAE.from_pretrained(f).state_dict() for f in (tmp_path / "vq", tmp_path / "alone" / "vq"))
    changed = {name.split(".")[0] for name in old if not torch.equal(old[name], new[name])}
    assert changed == {"decoder", "post_quant_conv"}


def test_adversarial_training_leaves_the_codes_and_resumes_as_if_never_stopped(folder, tmp_path, monkeypatch):
    vqvae().save_pretrained(tmp_path / "vq")
    options = [
        "--decoder-only",
        "--start",
        str(tmp_path / "vq"),
        "--adversarial",
        "0.5",
        "--ramp",
        "2",
        "--perceptual",
        "0",
        "--every",
        "3",
    ]

    def run(name: str, code: int = 0) -> dict[str, torch.Tensor]:
        (tmp_path / name).mkdir(exist_ok=True)
        assert train(folder, tmp_path / name, *options, steps=6) == code
        return load_checkpoint(tmp_path / name / "vq.pt")

    whole, save = run("whole"), loop.save_checkpoint

    def killed(path: Path, **state: object) -> None:
        save(path, **state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", killed)
        assert run("cut", code=130)["step"] == 3
    resumed = run("cut")
    assert resumed["step"] == 6
    for name, tensor in whole["tokenizer"].items():
        assert torch.equal(tensor, resumed["tokenizer"][name]), name
    start = vqvae().state_dict()
    changed = {name for name in start if not torch.equal(start[name], whole["tokenizer"][f"vqvae.{name}"])}
    assert {name.split(".")[0] for name in changed} == {"decoder", "post_quant_conv"}
    assert any(name.startswith("discriminator.") for name in whole["tokenizer"])
    assert len(whole["optimizers"]) == 2


def test_stored_tokens_give_the_codes_of_their_crops(folder, tmp_path):
    vqvae().save_pretrained(tmp_path / "vq")
    files = ["--images", str(folder), "--csv", str(folder / "index.csv"), "--grid", "4", "--out", str(tmp_path / "tokens")]
    assert main(["train", "encode", *files, "--tokenizer", str(tmp_path / "vq"), "--variants", "3"]) == 0
    stream = crops.Crops(folder, read_records(folder / "index.csv"), "train", 16, 0, tmp_path / "tokens")
    assert len(stream) == 12
    pixels, codes = next(crops.batches(stream, 12, 0, {}))
    assert torch.equal(load_vq(tmp_path / "vq", 4).encode(pixels), codes)


def test_the_stream_goes_on_where_it_was(folder):
    stream = crops.Crops(folder, read_records(folder / "index.csv"), "train", 16, 0)
    whole, skipped = crops.batches(stream, 4, 0, {}), {}
    first = [next(whole)[0] for _ in range(4)]
    later = next(crops.batches(stream, 4, 3, {}))[0]
    assert torch.equal(first[3], later)
    ranks = [next(crops.batches(stream, 4, 1, skipped, rank=rank, ranks=2))[0] for rank in (0, 1)]
    assert torch.equal(ranks[0], first[2])
    assert torch.equal(ranks[1], first[3])


def test_pictures_that_are_not_there_are_an_error_in_words(folder, tmp_path, capsys):
    assert train(tmp_path / "nowhere", tmp_path, steps=1) == 2
    (tmp_path / "index.csv").write_text("file,split\na.png,train\nb.png,train\n")
    assert train(tmp_path, tmp_path, "--perceptual", "0", steps=1) == 2
    assert "None of the CSV's pictures can be read" in capsys.readouterr().err
    assert train(folder, tmp_path, "--decoder-only", steps=1) == 2
    assert "--start" in capsys.readouterr().err


def test_dead_codes_are_moved_onto_vectors_that_occur():
    torch.manual_seed(0)
    trainee = tokenizer.TokenizerTrainee(vqvae(), 0.9, decoder_only=False)
    trainee(torch.rand(2, 3, 16, 16), torch.empty(0))
    dead = trainee.unused > 0
    assert 0 < int(dead.sum()) < 32
    assert trainee.revive(patience=1) == int(dead.sum())
    moved = trainee.vqvae.quantize.embedding.weight[dead]
    assert ((moved[:, None] - trainee.latest).abs().amax(-1).amin(1) == 0).all()


def test_the_quick_norm_is_group_norm():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 64, 3), nn.GroupNorm(32, 64), nn.Conv2d(64, 2, 3)).double()
    pixels = torch.rand(2, 3, 9, 9, dtype=torch.double)
    network[1].weight.data.normal_()

    def gradients() -> list[torch.Tensor]:
        network.zero_grad()
        network(pixels).square().sum().backward()
        return [p.grad.clone() for p in network.parameters()]

    plain = gradients()
    use_fast_norm(network)
    assert isinstance(network[1], FastNorm)
    for ours, theirs in zip(gradients(), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
