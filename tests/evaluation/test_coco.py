"""The paper's table as a command: prompts, stored pictures, kills, several processes, networks, intervals, report."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from stand_ins import write_clip, write_inception
from static import static, tokens
from tiny import WORDS, tiny_pair, write_tiny

import coolsd.__main__ as cli
from coolsd.evaluation import evidence
from coolsd.evaluation.batching import PassBatcher, batched
from coolsd.evaluation.coco import command, networks
from coolsd.evaluation.coco.captions import Prompt, read_prompts
from coolsd.evaluation.coco.figures import Measured, frechet, kernel_distance, table
from coolsd.evaluation.coco.store import Figures, Group, Variant, groups_of, path_of, read, recipe, write

COUNT = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Captions in the official layout, photos, the tiny pair, and stand-ins for Inception and CLIP."""
    root = tmp_path_factory.mktemp("coco")
    photos = [{"id": 100 + i, "file_name": f"{100 + i:012d}.jpg"} for i in range(COUNT)]
    words = [{"id": 2 * i + j, "image_id": 100 + i, "caption": f" a {WORDS[1 + i % 6]}\n on {j}"} for i in range(COUNT) for j in range(2)]
    (root / "captions.json").write_text(json.dumps({"images": photos[::-1], "annotations": words}))
    (root / "photos").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (COUNT, 20, 30, 3), np.uint8)
    for photo, pixels in zip(photos, noise, strict=True):
        Image.fromarray(pixels).save(root / "photos" / photo["file_name"])
    write_tiny(root / "tiny")
    write_inception(root / "inception.pt")
    write_clip(root / "clip")
    return root


@pytest.fixture(scope="module")
def processes(folder):
    """What two_processes.py saw."""
    script = Path(__file__).with_name("two_processes.py")
    paths = os.pathsep.join(str(script.parents[i]) for i in (1, 2))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "COOLSD_THREADS": "1"}
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, timeout=300, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("RESULT ")), done.stderr


# ---- prompts


def test_prompts_are_one_caption_a_photo_in_an_order_that_a_shorter_list_begins(folder):
    prompts = read_prompts(folder / "captions.json")
    assert [p.index for p in prompts] == list(range(COUNT))
    assert len({p.photo for p in prompts}) == COUNT
    assert read_prompts(folder / "captions.json", 4) == prompts[:4] != read_prompts(folder / "captions.json", 4, seed=1)
    kinds = {int(p.photo.split(".")[0]): p.text for p in prompts}
    assert all(text in (f"a {WORDS[1 + (number - 100) % 6]} on {j}" for j in range(2)) for number, text in kinds.items())
    assert {text[-1] for text in kinds.values()} == {"0", "1"}  # drawn, not always the first


@pytest.mark.parametrize("content", ["[]", "{", '{"images": [{"id": 1}], "annotations": []}', '{"images": [], "annotations": []}'])
def test_other_files_are_refused_by_name(content, tmp_path):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(ValueError, match=r"other\.json"):
        read_prompts(tmp_path / "other.json")


def test_a_csv_of_train_captions_serves_too(tmp_path):
    path = tmp_path / "captions.csv"
    path.write_text("file,label,split,captions\na.jpg,x,valid,one|two\nb.jpg,x,train,three\nc.jpg,x,valid,four\n")
    prompts = read_prompts(path)
    assert {p.photo for p in prompts} == {"a.jpg", "c.jpg"}
    assert all(p.text in ("one", "two", "four") for p in prompts)


def test_a_limit_inside_a_group_takes_the_whole_group(folder):
    prompts = read_prompts(folder / "captions.json")
    assert groups_of(prompts, 4, 5) == groups_of(prompts, 4)[:2]
    assert [len(group.prompts) for group in groups_of(prompts, 4)] == [4, 4, 2]


# ---- what is stored


@pytest.fixture
def picture(tmp_path):
    """A stored picture: its path and its recipe."""
    variant = Variant("COOL-SD δ=2", "coolsd", (("delta", 2.0),), (("target", "tiny"), ("settings", {"delta": 2.0})))
    prompt = Prompt(3, "000000000139.jpg", "a rose")
    path, made_by = path_of(tmp_path, variant, prompt), recipe(variant, Group(0, (prompt,)), prompt)
    write(path, Image.new("RGB", (8, 8), "red"), made_by, Figures(16, 9, 0.5, None, 0.1, "abc"))
    return path, made_by


def test_a_picture_is_read_by_its_own_recipe_only(picture):
    path, made_by = picture
    assert read(path, made_by) == Figures(16, 9, 0.5, None, 0.1, "abc")
    assert not list(path.parent.glob("*.part"))
    for name, other in (("seed", 4), ("settings", {"delta": 2.5}), ("group", "0"), ("prompt", "a rose "), ("target", "meadow")):
        assert read(path, made_by | {name: other}) is None


def test_a_picture_that_is_cut_short_or_missing_is_none(picture):
    path, made_by = picture
    content = path.read_bytes()
    for size in (0, 5, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        assert read(path, made_by) is None
    assert read(path.with_name("none.png"), made_by) is None


def test_other_settings_weights_or_dtype_have_another_folder(folder):
    def names(*more):
        words = ["eval", "coco", "--captions", "x.json", "--target", str(folder / "tiny"), "--device", "cpu", "--methods", "coolsd", *more]
        args = cli.build_parser().parse_args(words)
        return [variant.folder for variant in command.variants_of(args, command.plan_of(args))]

    changed = [names(), *(names(*more.split()) for more in ("--nu 0.6", "--dtype bfloat16", "--batch 4", "--top-k 5", "--clamp"))]
    changed.append(names("--files", f"vq={folder / 'inception.pt'}"))
    assert len({name for both in changed for name in both}) == 2 * len(changed)


def test_what_was_killed_goes_on_and_ends_as_if_it_had_not_been(processes):
    result, _ = processes
    assert 3 <= result["after kill"] < len(result["whole"]) == 24
    assert result["cut"] == result["whole"]


def test_two_training_processes_know_of_each_other(processes):
    assert sorted(processes[0]["trainers"]) == [[0, 0, 2], [1, 1, 2]]


def test_two_processes_paint_the_same_pictures_as_one(processes):
    result, _errors = processes
    assert result["split"] == result["whole"]
    assert result["left"] == [0, 0, 0]
    assert result["deaths of the next start"] == [[], []]


def test_a_process_that_dies_is_named_to_all_and_the_other_finishes_its_share(processes):
    result, errors = processes
    first, second = result["deaths"]
    assert first == second
    assert len(first) == 1
    assert "process 2 of 2" in first[0]
    assert "killed by signal 9" in first[0]
    assert first[0] in errors
    assert result["after death"] == 14  # six groups of two by the first, one by the second


# ---- decoding together


@pytest.mark.parametrize("method", ["ar", "coolsd"])
def test_a_pair_with_the_gpus_passes_is_batched_too(method):
    pair = batched(static(tiny_pair()), 3)
    assert isinstance(pair.workspaces, PassBatcher)
    assert batched(pair, 3) is pair
    result = pair.workspaces.map(lambda seed: tokens(pair, method, seed=seed), range(3))
    assert result == [tokens(tiny_pair(), method, seed=seed) for seed in range(3)]


def test_passes_do_not_depend_on_which_thread_comes_first(monkeypatch):
    def lanes_of_passes() -> list:
        pair, lanes, run = batched(tiny_pair(), 5), [], PassBatcher.run_pass
        monkeypatch.setattr(PassBatcher, "run_pass", lambda self, group: lanes.append([one.lane for one in group]) or run(self, group))
        pair.workspaces.map(lambda seed: tokens(pair, "eagle1", seed=seed), range(5))
        monkeypatch.setattr(PassBatcher, "run_pass", run)
        return lanes

    assert lanes_of_passes() == lanes_of_passes()


# ---- networks and figures


def test_pictures_are_resized_without_aliasing_and_rounding():
    rows = np.zeros((64, 64, 3), np.uint8)
    rows[::2] = 255
    small = networks.clean_resize(Image.fromarray(rows), 16)
    assert small.shape == (3, 16, 16)
    assert small.dtype == np.float32
    assert abs(small[:, 2:-2, 2:-2] - 127.5).max() < 8  # nearest or unfiltered bilinear would give stripes
    assert (networks.clean_resize(Image.new("RGB", (9, 9), (3, 7, 250)), 16) == np.array([3, 7, 250])[:, None, None]).all()


def test_distances_are_those_of_the_library_and_see_a_shift():
    generator = torch.Generator().manual_seed(0)
    x, photos = torch.randn(40, 12, generator=generator), torch.randn(40, 12, generator=generator)
    assert frechet(photos, photos) == pytest.approx(0, abs=1e-6)
    assert frechet(x + 1, photos) > frechet(x, photos) + 8
    assert kernel_distance(x + 1, photos) > kernel_distance(x, photos) + 0.1
    wide = torch.cat((x, torch.zeros(40, 100)), 1), torch.cat((photos, torch.zeros(40, 100)), 1)  # more features than pictures
    assert frechet(*wide) == pytest.approx(frechet(x, photos), rel=1e-6)


def measured(label: str, method: str, shift: float, n: int = 64) -> Measured:
    generator = torch.Generator().manual_seed(1)
    calls = torch.randint(60, 100, (n,), generator=generator).tolist()
    figures = [Figures(256, 256 if method == "ar" else c, 0.0 if method == "ar" else 20.0, 0.0, 2.0 / (1 + shift), "") for c in calls]
    features = torch.randn(n, 6, generator=generator)
    scores = torch.rand(n, generator=generator) + shift
    return Measured(label, method, figures, features + shift, {"clip": scores})


def test_a_table_is_paired_by_prompt():
    photos = torch.randn(64, 6, generator=torch.Generator().manual_seed(2))
    ar, same, moved = table([measured("AR", "ar", 0), measured("same", "eagle1", 0), measured("moved", "coolsd", 1)], photos, 16)
    assert same.against_ar["clip"].value == 0 == same.against_ar["fid"].value
    assert same.against_ar["fid"].low == 0
    assert moved.against_ar["clip"].low == pytest.approx(1)
    assert moved.against_ar["clip"].high == pytest.approx(1)
    assert moved.against_ar["fid"].low > 0
    assert moved.against_ar["kid"].low > 0
    assert moved.columns["speedup"].value == pytest.approx(2)
    assert moved.columns["bias"].value == pytest.approx(20 / 256)
    assert ar.columns["accept_length"].value == 1
    assert not ar.against_ar
    for row in (ar, same, moved):
        assert all(e.low <= e.value <= e.high for e in row.columns.values())


def test_one_group_has_no_interval_of_seconds_and_one_prompt_none_at_all():
    (row,) = table([measured("AR", "ar", 0)], None, 64)
    assert np.isnan(row.columns["seconds"].low)
    assert row.columns["seconds"].value == 2
    with pytest.raises(ValueError, match="--limit 2"):
        table([measured("AR", "ar", 0, n=1)], None, 1)


# ---- the command


@pytest.fixture
def reward(monkeypatch):
    """A stand-in for the package ImageReward."""
    module = types.ModuleType("ImageReward")
    module.load = lambda name: types.SimpleNamespace(score=lambda text, picture: float(np.asarray(picture).mean()) / 255 + len(text))
    module.__spec__ = types.SimpleNamespace(name="ImageReward")
    monkeypatch.setitem(sys.modules, "ImageReward", module)


def test_the_whole_way_from_stored_pictures_and_again_without_decoding(processes, folder, reward, monkeypatch, capsys):
    words = ["eval", "coco", "--target", str(folder / "tiny"), "--captions", str(folder / "captions.json"), "--batch", "2", "--limit", "7"]
    words += ["--deltas", "2", "--draft-length", "3", "--device", "cpu", "--folder", str(folder / "whole"), "--out", str(folder / "out")]
    words += ["--images", str(folder / "photos"), "--features", str(folder / "inception.pt"), "--clip", str(folder / "clip")]
    monkeypatch.setenv("COOLSD_THREADS", "1")
    monkeypatch.setattr(command, "decode_all", lambda *_: pytest.fail("decoded"))
    monkeypatch.setattr(command, "load", lambda *_, **__: pytest.fail("loaded"))
    assert cli.main(words) == 0, capsys.readouterr().err
    text = (folder / "out" / "coco.md").read_text(encoding="utf-8")
    assert "a quick look at the first 7 of 10 prompts" in text
    assert "The paper has no numbers for tiny" in text
    assert str(folder) not in text  # where things lie is nobody's business
    report = json.loads((folder / "out" / "coco.json").read_text(encoding="utf-8"))
    names = {"fid", "kid", "clip", "reward", "accept_length", "target_calls", "seconds", "speedup", "bias", "kl"}
    assert [row["label"] for row in report["rows"]] == ["Plain AR", "Eagle-1", "COOL-SD δ=2"]
    assert all(set(row["columns"]) == names for row in report["rows"])
    by_label = {row["label"]: row["columns"] for row in report["rows"]}
    assert by_label["Eagle-1"]["kl"]["value"] == 0 < by_label["COOL-SD δ=2"]["kl"]["value"]
    assert by_label["Eagle-1"]["bias"]["value"] == pytest.approx(0, abs=1e-6)
    assert by_label["COOL-SD δ=2"]["bias"]["value"] > 0
    stored = evidence.read(folder / "out" / "coco.evidence.json")
    assert [row.label for row in stored.rows] == ["Plain AR", "Eagle-1", "COOL-SD"]
    assert stored.rows[2].settings["delta"] == 2.0
    assert "Plotly" in (folder / "out" / "coco.html").read_text(encoding="utf-8")
    monkeypatch.setattr(networks.Clip, "__call__", lambda *_: pytest.fail("looked again"))
    assert cli.main(words) == 0


def test_the_papers_rows_stand_beside_its_targets_only():
    from coolsd.evaluation.coco.report import markdown

    rows = table([measured("AR", "ar", 0)], None, 16)
    report = {"target": "llamagen-256", "command": "c", "captions": "captions_val2017.json", "prompts": 64, "of": 5000, "note": "n"}
    text = markdown(report, rows)
    assert "*the paper: LlamaGen-XL, 775 M, COOL-SD δ=2* | *21.2*" in text
    assert "Rows in italics are the paper's own" in text
    assert "the paper: Lumina" not in text
    assert "*the paper" not in markdown(report | {"target": "meadow"}, rows)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--limit 1", "--limit 2"),
        ("--seed 3", "leave out the single settings"),
        ("--features efficientnet-lite2", "give --images and --features"),
        ("--batch 0", "--batch 1"),
        ("--deltas 99", "out of range"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(more, message, folder, capsys, monkeypatch):
    monkeypatch.setattr(command, "load", lambda *_, **__: pytest.fail("loaded"))
    assert cli.main(["eval", "coco", "--captions", str(folder / "captions.json"), "--device", "cpu", *more.split()]) == 2
    assert message in capsys.readouterr().err


def test_bench_times_pictures_decoded_at_once(monkeypatch, tmp_path, capsys):
    from coolsd.evaluation.speed import cli as speed

    monkeypatch.setattr(speed, "chosen_pair", lambda args: tiny_pair())
    lanes, run = [], PassBatcher.run_pass
    monkeypatch.setattr(PassBatcher, "run_pass", lambda self, group: lanes.append(len(group)) or run(self, group))
    words = ["bench", "--batch", "1", "3", "--methods", "ar", "--seeds", "2", "--json", str(tmp_path / "b.json")]
    assert cli.main(words) == 0, capsys.readouterr().err
    rows = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["label"], row["batch"]) for row in rows] == [("Plain AR", 1), ("Plain AR", 3)]
    assert rows[0]["gain"] == 1
    assert lanes == [3] * 30  # two turns of fifteen passes, none of them for B = 1
    assert cli.main(["bench", "--batch", "0"]) == 2
    assert "--batch 1" in capsys.readouterr().err
