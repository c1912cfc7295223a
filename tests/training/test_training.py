"""From a folder of pictures to a pair that decodes: captions, tokens, target, drafter; killed and resumed on the way."""

import csv
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from files import IDS, JANUS
from PIL import Image
from tiny import CONFIG, tiny_pair, write_tiny
from transformers import JanusVQVAE

from coolsd import generate
from coolsd.__main__ import main
from coolsd.data import captions as words
from coolsd.data import pictures
from coolsd.data.store import load_checkpoint, save_checkpoint
from coolsd.models import catalog, loading
from coolsd.models.eagle import Eagle
from coolsd.models.janus.load import load_janus
from coolsd.models.llamagen.load import load_drafter
from coolsd.models.lumina.load import load_lumina
from coolsd.models.pair import LoadedPair
from coolsd.training import target_samples
from coolsd.training.drafter import DrafterRecipe, Examples, drafter_loss, train_drafter
from coolsd.training.export import export_drafter
from coolsd.training.loop import ALONE, Process, Training, Trapezoid
from coolsd.training.muon import orthogonal
from coolsd.training.target import TargetRecipe, Trainee, continued, deepen, grown
from coolsd.training.target_samples import Sampling, accept_lengths, sample, self_generated


def flat(colour: tuple[int, int, int], size: int = 40) -> Image.Image:
    return Image.new("RGB", (size, size), colour)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Twelve pictures, and in front of them one line with a missing file and one with a broken one."""
    root = tmp_path_factory.mktemp("photos")
    rows = [("gone.png", "rose", "train"), ("broken.png", "rose", "train")]
    for i in range(12):
        colour = ((220, 30, 40), (250, 220, 40), (60, 90, 220))[i % 3]
        flat(colour).save(root / f"{i}.jpg")
        rows.append((f"{i}.jpg", "rose", "valid" if i > 9 else "train"))
    (root / "broken.png").write_bytes(b"no picture")
    with (root / "index.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows([("file", "label", "split"), *rows])
    return root


def test_the_whole_way_by_command(folder, tmp_path, capsys):
    pair = tmp_path / "pair"
    images = ["--images", str(folder), "--csv", str(folder / "index.csv")]
    vq = ["train", "tokenizer", *images, "--checkpoint", str(tmp_path / "v.pt"), "--out", str(pair / "vq"), "--grid", "4", "--codes", "32"]
    assert main([*vq, "--multipliers", "1", "1", "1", "--batch", "4", "--perceptual", "0", "--steps", "2", "--workers", "1"]) == 0
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
    on = ["train", "target", *common, *sizes, "--layers", "2", "--checkpoint", str(tmp_path / "on.pt"), "--start", str(pair)]
    assert main([*on, "--steps", "2"]) == 0
    drafter = ["train", "drafter", *common, "--checkpoint", str(tmp_path / "e.pt"), "--batch", "2", "--every", "2", "--dtype", "float32"]
    assert main([*drafter, "--steps", "4"]) == 0
    assert "before" not in capsys.readouterr().err
    loading.CACHE.clear()  # each command is a process of its own
    assert main([*drafter, "--own", "5", "--refine", "--steps", "6"]) == 0
    log = capsys.readouterr().err
    assert "accept length of Eagle-1" in log
    assert "before" in log
    assert len(load_checkpoint(tmp_path / "e.own.pt")["tokens"]) == 5
    assert main(["generate", "a red rose", "--target", str(pair), "--out", str(tmp_path / "a.png")]) == 0
    assert Image.open(tmp_path / "a.png").size == (16, 16)


def test_many_prompts_at_once_are_sampled_as_one(tmp_path):
    pair, prompts = tiny_pair(), ["a red rose", "the sea", "misty forest on the sea"]
    for scale in (4.0, 1.0):
        greedy = Sampling(scale, temperature=0)
        tokens = sample(pair, prompts, greedy, torch.Generator())
        for prompt, row in zip(prompts, tokens.tolist(), strict=True):
            assert generate(pair, prompt, "ar", cfg_scale=scale, temperature=0).tokens == row


def test_own_samples_go_on_where_they_were(tmp_path, monkeypatch):
    pair, prompts, path = tiny_pair(), ["a red rose", "the sea"], tmp_path / "own.pt"
    monkeypatch.setattr(target_samples, "BATCH", 2)
    whole = self_generated(pair, prompts, 5, Sampling(4.0), 0, tmp_path / "whole.pt")
    self_generated(pair, prompts, 2, Sampling(4.0), 0, path)
    resumed = self_generated(pair, prompts, 5, Sampling(4.0), 0, path)
    assert [prompt for prompt, _ in resumed] == ["a red rose", "the sea", "a red rose", "the sea", "a red rose"]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(whole, resumed, strict=True))
    for changed in ((prompts, Sampling(1.0), 0), (prompts, Sampling(4.0), 1), (prompts[::-1], Sampling(4.0), 1)):
        other = self_generated(pair, changed[0], 2, *changed[1:], path)
        assert len(load_checkpoint(path)["tokens"]) == len(other) == 2
        assert [prompt for prompt, _ in other] == changed[0]


def learn(pair: LoadedPair, tmp_path: Path) -> Eagle:
    """A drafter trained on the target's own pictures and written; its loss on one of them must have fallen."""
    own = self_generated(pair, ["rose", "sea"], 4, Sampling(2.0), 0, tmp_path / "own.pt")
    torch.manual_seed(0)
    drafter = pair.empty_drafter()
    recipe = DrafterRecipe(steps=12, batch=2, warmup=1, every=12, scale=2.0, noise=0.0)
    with torch.no_grad():
        teacher_forced = pair.teacher_forced(*own[0], 2.0)
    before = drafter_loss(drafter, teacher_forced, recipe, own=False).item()
    train_drafter(drafter, pair, Examples(None, own, 0.5, 0), recipe, tmp_path / "d.pt", ALONE)
    assert drafter_loss(drafter, teacher_forced, recipe, own=False).item() < before
    export_drafter(drafter.state_dict(), drafter.config, tmp_path / "drafter", torch.float32)
    return drafter


def test_a_llamagen_drafter_is_written_as_lantern_does(tmp_path):
    drafter = learn(tiny_pair(), tmp_path)
    again = load_drafter(tmp_path / "drafter", tiny_pair().target_model.config)
    assert vars(again.config) == vars(drafter.config)
    assert set(accept_lengths(replace(tiny_pair(), drafter_model=again), ["the sea"], Sampling(4.0))) == {"Eagle-1", "COOL-SD δ=2"}


def test_a_lumina_drafter_is_written_as_lantern_does(lumina_folders, tmp_path):
    parts = {"target": lumina_folders / "target", "vq": lumina_folders / "vq", "grid": 4, "ids": IDS}
    generate(load_lumina(drafter=lumina_folders / "drafter", **parts), "rose", "eagle1")  # what decoding caches must not disturb training
    drafter = learn(load_lumina(**parts), tmp_path)
    again = load_lumina(drafter=tmp_path / "drafter", **parts)
    assert vars(again.drafter_model.config) == vars(drafter.config)
    assert generate(again, "rose", "coolsd").complete


def test_a_janus_drafter_is_trained_by_command(released_janus, tmp_path, monkeypatch):
    folder, name = released_janus[1], "janus-pro-1b"
    tiny = partial(load_janus, name, JANUS)
    drafter = learn(tiny(folder), tmp_path)
    again = tiny(folder, tmp_path / "drafter")
    assert vars(again.drafter_model.config) == vars(drafter.config)
    assert generate(again, "rose", "coolsd").complete
    monkeypatch.setitem(catalog.CATALOG, name, replace(catalog.CATALOG[name], build=tiny))
    monkeypatch.setattr(loading, "fetch", lambda part, path: path or folder)
    monkeypatch.setattr(loading, "CACHE", {})
    (tmp_path / "prompts.txt").write_text("rose\nsea\nrose sea\nsea rose\n")
    files = ["--prompts", str(tmp_path / "prompts.txt"), "--checkpoint", str(tmp_path / "e.pt"), "--out", str(tmp_path / "new")]
    assert main(["train", "drafter", "--target", name, "--own", "2", "--steps", "2", "--batch", "1", *files]) == 0
    assert generate(tiny(folder, tmp_path / "new").to("cpu", torch.float32), "rose", "eagle1").complete


def test_what_cannot_be_used_is_said_in_words(folder, tmp_path, capsys):
    images = ["--images", str(folder), "--csv", str(folder / "index.csv")]
    captions, tokens = tmp_path / "captions.csv", tmp_path / "tokens"
    (tmp_path / "bare.csv").write_text("file\n0.jpg\n")
    (tmp_path / "gone.csv").write_text("file,label\ngone.png,rose\n")
    (tmp_path / "broken.zip").write_bytes(b"no zip")
    pair = write_tiny(tmp_path / "pair")
    encode = ["train", "encode", "--out", str(tokens), "--tokenizer", str(pair / "vq"), "--grid", "4", "--variants", "1"]
    drafter = ["train", "drafter", "--target", str(pair), "--checkpoint", str(tmp_path / "e.pt"), "--steps", "1"]
    for command, message in (
        (["train", "captions", *images[:2], "--csv", str(tmp_path / "bare.csv"), "--out", str(captions)], "neither label nor caption"),
        (["train", "captions", *images[:2], "--csv", str(tmp_path / "gone.csv"), "--out", str(captions)], "None of the CSV's pictures"),
        (["train", "captions", "--images", str(tmp_path / "broken.zip"), *images[2:], "--out", str(captions)], "readable zip"),
        ([*encode, *images[:2], "--csv", str(tmp_path / "gone.csv")], "None of the CSV's pictures"),
        (drafter, "Nothing to learn from"),
        ([*drafter, "--tokens", str(tokens), "--csv", str(folder / "index.csv")], "lacks the column"),
        (["train", "drafter", "--target", "llamagen-256", "--checkpoint", str(tmp_path / "e.pt")], "--out"),
    ):
        assert main(command) == 2
        assert message in capsys.readouterr().err
    assert main([*encode, *images]) == 0
    other = write_tiny(tmp_path / "other")
    tokenizer = JanusVQVAE.from_pretrained(other / "vq")
    tokenizer.quantize.embedding.weight.data.neg_()
    tokenizer.save_pretrained(other / "vq")
    encode[encode.index("--tokenizer") + 1] = str(other / "vq")
    assert main([*encode, *images]) == 2
    assert "another tokenizer" in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    save_checkpoint(tmp_path / "c.pt", small=torch.nn.Linear(2, 2).state_dict(), optimizers=[], step=1)
    with pytest.raises(ValueError, match="other sizes"):
        Training("small", torch.nn.Linear(3, 3), [], TargetRecipe(), tmp_path / "c.pt").restore()


def test_pictures_are_split_where_the_csv_does_not_say(tmp_path):
    (tmp_path / "a.csv").write_text("file,label\n" + "".join(f"{i}.png,rose\n" for i in range(40)), encoding="utf-8-sig")
    assert [i for i, row in enumerate(pictures.read_records(tmp_path / "a.csv")) if row.split == "valid"] == [0, 20]


def test_labels_of_other_things_get_plain_wordings():
    assert words.captions(flat((220, 20, 30)), pictures.Record("x", "owl", "train")) == ["owl", "an owl", "a photo of an owl"]
    assert "a red rose" in words.captions(flat((220, 20, 30)), pictures.Record("x", "rose", "train", source="flowers102"))


def test_missing_columns_and_empty_files_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("name,label\nx,y\n")
    with pytest.raises(ValueError, match="lacks the column"):
        pictures.read_records(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("file,label\n")
    with pytest.raises(ValueError, match="no rows"):
        pictures.read_records(tmp_path / "b.csv")


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
    assert "the sea at night" in words.captions(night, pictures.Record("x", "sea", "train"))
    assert "a red rose on a dark background" not in words.captions(flat((220, 20, 30)), pictures.Record("x", "rose", "train", "flowers102"))
    assert words.captions(night, pictures.Record("x", "sea", "train", caption="my own words")) == ["my own words"]
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


def test_a_finished_target_is_grown_from_its_folder(tmp_path):
    folder, codebook = write_tiny(tmp_path / "pair"), torch.randn(CONFIG.vocab, 8)
    deep = grown(folder, replace(CONFIG, layers=2 * CONFIG.layers), codebook)
    assert len(deep.model.layers) == 2 * CONFIG.layers
    for block in deep.model.layers[1::2]:  # behind each old block a new one that changes nothing yet
        assert not block.attention.wo.weight.any()
        assert not block.feed_forward.w2.weight.any()
    plain, x = tiny_pair().target_model, torch.randn(1, 5, CONFIG.dim)
    with torch.inference_mode():
        rope = plain.rope()[6:11]
        torch.testing.assert_close(deep.model(x, rope, None), plain(x, rope, None))
    torch.testing.assert_close(deep.folded()["output.weight"], plain.output.weight)
    with pytest.raises(ValueError, match="multiple of the 2 layers"):
        grown(folder, replace(CONFIG, layers=3), codebook)
    with pytest.raises(ValueError, match="holds no shallower target"):
        grown(tmp_path, CONFIG, codebook)


def test_a_finished_target_is_trained_on_from_its_weights(tmp_path):
    folder, codebook = write_tiny(tmp_path / "pair"), torch.randn(CONFIG.vocab, 8)
    state = continued(folder, CONFIG, codebook).folded()
    assert state.keys() == tiny_pair().target_model.state_dict().keys()
    for name, tensor in tiny_pair().target_model.state_dict().items():
        torch.testing.assert_close(state[name], tensor)
    for place, config in ((folder, replace(CONFIG, layers=1)), (tmp_path, CONFIG)):
        with pytest.raises(ValueError, match=r"target\.safetensors is no target of these sizes"):
            continued(place, config, codebook)


def test_gradients_are_shared_between_processes():
    class Doubled:
        """Stands for accelerate: the others' gradients are such that the mean is twice ours."""

        def reduce(self, tensor, reduction):
            assert reduction == "mean"
            return 2 * tensor

    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    network(torch.ones(1, 3)).sum().backward()
    before = [p.grad.clone() for p in network.parameters()]
    Process(torch.device("cpu"), 0, 2, Doubled()).share(network)
    for p, grad in zip(network.parameters(), before, strict=True):
        assert torch.equal(p.grad, 2 * grad)


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
    plain, mirrored = pictures.square(picture, 16), pictures.square(picture, 16, flip=True)
    np.testing.assert_allclose(plain[:, ::-1], mirrored)
    assert pictures.square(picture, 16, zoom=1.25, x=1, y=1).shape == (16, 16, 3)
    assert abs(plain).max() <= 1
