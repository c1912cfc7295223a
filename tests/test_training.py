"""From a folder of pictures to a pair that decodes: captions, tokens, target, drafter; killed and resumed on the way."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import CONFIG, write_tiny

from coolsd import generate
from coolsd.__main__ import main
from coolsd.models.catalog import load
from coolsd.training import captions as words
from coolsd.training import data
from coolsd.training.loop import Trapezoid, load_checkpoint, save_checkpoint
from coolsd.training.muon import orthogonal
from coolsd.training.target import Trainee, deepen


def flat(colour: tuple[int, int, int], size: int = 40) -> Image.Image:
    return Image.new("RGB", (size, size), colour)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Twelve pictures, one line with a missing file and one with a broken one."""
    root = tmp_path_factory.mktemp("photos")
    rows = []
    for i in range(12):
        colour = ((220, 30, 40), (250, 220, 40), (60, 90, 220))[i % 3]
        flat(colour).save(root / f"{i}.png")
        rows.append((f"{i}.png", "rose", "valid" if i > 9 else "train"))
    (root / "broken.png").write_bytes(b"no picture")
    rows += [("gone.png", "rose", "train"), ("broken.png", "rose", "train")]
    with (root / "index.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows([("file", "label", "split"), *rows])
    return root


def test_the_whole_way_by_command(folder, tmp_path, capsys):
    pair = write_tiny(tmp_path / "pair")
    images = ["--images", str(folder), "--csv", str(folder / "index.csv")]
    assert main(["train", "captions", *images, "--out", str(tmp_path / "captions.csv")]) == 0
    assert "1 missing, 1 unreadable" in capsys.readouterr().err
    encode = ["train", "encode", *images, "--out", str(tmp_path / "tokens"), "--tokenizer", str(pair / "vq"), "--grid", "4"]
    assert main([*encode, "--variants", "2"]) == 0
    common = ["--tokens", str(tmp_path / "tokens"), "--csv", str(tmp_path / "captions.csv"), "--pair", str(pair), "--seed", "1"]
    sizes = [
        "--dim",
        "32",
        "--heads",
        "2",
        "--ffn",
        "64",
        "--caption-tokens",
        "6",
        "--grid",
        "4",
        "--eager",
        "--batch",
        "2",
        "--every",
        "2",
    ]
    shallow = ["train", "target", *common, *sizes, "--layers", "1", "--checkpoint", str(tmp_path / "t.pt")]
    assert main([*shallow, "--steps", "2"]) == 0
    assert main([*shallow, "--steps", "4"]) == 0
    assert load_checkpoint(tmp_path / "t.pt")["step"] == 4
    deep = ["train", "target", *common, *sizes, "--layers", "2", "--checkpoint", str(tmp_path / "d.pt"), "--grow", str(tmp_path / "t.pt")]
    assert main([*deep, "--steps", "2"]) == 0
    drafter = ["train", "drafter", *common, "--checkpoint", str(tmp_path / "e.pt"), "--batch", "2", "--every", "2"]
    assert main([*drafter, "--steps", "4"]) == 0
    run = generate(load("meadow", "cpu", "float32", folder=pair), "a red rose", "coolsd")
    assert run.complete


def test_missing_columns_and_empty_files_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("name,label\nx,y\n")
    with pytest.raises(ValueError, match="lacks the column"):
        data.read_rows(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("file,label\n")
    with pytest.raises(ValueError, match="no rows"):
        data.read_rows(tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("colour", "word"),
    [
        ((220, 20, 30), "red"),
        ((250, 220, 40), "yellow"),
        ((250, 140, 30), "orange"),
        ((130, 60, 200), "purple"),
        ((240, 240, 240), "white"),
        ((60, 160, 60), None),
    ],
)
def test_petal_colours_are_measured(colour, word):
    assert words.petal_colour(flat(colour)) == word


def test_captions_say_what_is_seen():
    night = flat((10, 10, 25))
    assert "the sea at night" in words.captions(night, data.Row("x", "sea", "train"))
    assert "a red rose on a dark background" not in words.captions(flat((220, 20, 30)), data.Row("x", "rose", "train"))
    assert words.captions(night, data.Row("x", "sea", "train", caption="my own words")) == ["my own words"]
    assert words.background(night) == "dark"


def test_a_grown_target_computes_what_the_shallow_one_does():
    torch.manual_seed(0)
    codebook = torch.randn(CONFIG.vocab, 8)
    small = Trainee(type(CONFIG)(**{**vars(CONFIG), "layers": 1}), codebook)
    for p in small.parameters():
        p.data += 0.05 * torch.randn_like(p)
    deep = deepen(small, CONFIG, codebook)
    x = torch.randn(1, 5, CONFIG.dim)
    with torch.inference_mode():
        rope = small.model.rope()[6:11]
        torch.testing.assert_close(deep.model(x, rope, None), small.model(x, rope, None))
    assert len(deep.model.layers) == 2
    torch.testing.assert_close(deep.folded()["output.weight"], small.folded()["output.weight"])


def test_schedule_rises_stays_and_falls():
    factor = Trapezoid(steps=100, warmup=10, decay=40)
    assert [factor(0), factor(9), factor(50), factor(80), factor(100)] == pytest.approx([0.1, 1, 1, 0.5, 0])


@pytest.mark.parametrize("shape", [(8, 32), (32, 8), (16, 16)])
def test_muon_brings_singular_values_near_one(shape):
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(0))).float())
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.4


def test_a_kill_while_saving_leaves_the_old_checkpoint(tmp_path):
    path = tmp_path / "c.pt"
    save_checkpoint(path, step=1)
    with pytest.raises(Exception, match=r"pickle|lambda"):
        save_checkpoint(path, step=lambda: 0)
    assert load_checkpoint(path) == {"step": 1}


def test_crops_stay_inside_and_flip():
    picture = Image.fromarray(np.arange(40 * 60 * 3, dtype=np.uint32).astype(np.uint8).reshape(40, 60, 3))
    plain, mirrored = data.square(picture, 16), data.square(picture, 16, flip=True)
    np.testing.assert_allclose(plain[:, ::-1], mirrored)
    assert data.square(picture, 16, zoom=1.25, x=1, y=1).shape == (16, 16, 3)
    assert abs(plain).max() <= 1
