"""The released targets: names and shapes of the real sizes, tiny files in their formats through `load`, and what is said without them."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_t5 import write_t5
from test_vq import NAMES, patterned

from coolsd import generate, load
from coolsd.models import catalog, hub
from coolsd.models.eagle import Eagle, EagleConfig
from coolsd.models.families import llamagen_target, load_drafter, load_llamagen
from coolsd.models.llamagen import LlamaGen, LlamaGenConfig
from coolsd.models.vq import _network, from_llamagen
from coolsd.models.weights import LoadError, fill

DATA = Path(__file__).parent / "data"
SHAPES = json.loads((DATA / "released_shapes.json").read_text())
TINY = LlamaGenConfig(dim=64, layers=3, heads=4, ffn=256, vocab=256, caption_dim=48, caption_tokens=120, grid=4)


# ---- real sizes, on the meta device


@pytest.mark.parametrize("grid", [16, 32])
def test_llamagen_xl_has_exactly_the_released_names_and_shapes(grid):
    with torch.device("meta"):
        state = LlamaGen(LlamaGenConfig(grid=grid)).state_dict()
    expected = {k: v for k, v in SHAPES["t2i_XL"].items() if not k.startswith("layers.")}
    for i in range(SHAPES["t2i_XL_layers"]):
        expected |= {k.replace("layers.0.", f"layers.{i}."): v for k, v in SHAPES["t2i_XL"].items() if k.startswith("layers.")}
    assert {k: list(v.shape) for k, v in state.items()} == expected
    assert sum(v.numel() for v in state.values()) == SHAPES["t2i_XL_numel"]


def test_vq16_has_exactly_the_released_names_and_shapes():
    tensors = {name: torch.empty(shape, device="meta") for name, shape in SHAPES["vq_ds16_t2i"].items()}
    assert sum(t.numel() for t in tensors.values()) - SHAPES["vq_numel"] == 65536  # the buffer of used codes
    state = from_llamagen({k: v for k, v in tensors.items() if k != "quantize.codebook_used"})
    network = fill(_network(state), state, "picture tokenizer")
    assert network.quantize.embedding.weight.shape == (16384, 8)


def test_the_released_drafters_size():
    with torch.device("meta"):
        drafter = Eagle(EagleConfig())
    assert round(sum(p.numel() for p in drafter.parameters()) / 1e6, 2) == 44.57
    assert "layers.0.input_layernorm.weight" not in drafter.state_dict()


# ---- tiny files through load


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """One path a part, tiny."""
    root = tmp_path_factory.mktemp("llamagen")
    torch.save({"model": patterned(NAMES["llamagen"])}, root / "vq_ds16_t2i.pt")
    return {
        "target": DATA / "tiny_t2i_stage1.pt",
        "drafter": DATA / "tiny_lantern_drafter",
        "vq": root / "vq_ds16_t2i.pt",
        "text": write_t5(root / "t5"),
    }


@pytest.fixture
def entry(monkeypatch):
    """llamagen-256 with the tiny model's sizes."""
    tiny = replace(catalog.CATALOG["llamagen-256"], build=partial(load_llamagen, "llamagen-256", TINY))
    monkeypatch.setitem(catalog.CATALOG, "llamagen-256", tiny)
    return tiny


@pytest.mark.parametrize("target", ["tiny_t2i_stage1.pt", "tiny_lantern_target"])
def test_both_layouts_load_and_speculate_like_plain_ar(entry, paths, target):
    pair = load("llamagen-256", "cpu", "float32", **paths | {"target": DATA / target})
    assert pair.environment["dtype"] == "float32"
    settings = {"temperature": 0, "cfg_scale": 7.5}
    run = generate(pair, "a red rose", "eagle1", **settings)
    assert run.tokens == generate(pair, "a red rose", "ar", **settings).tokens
    assert run.image.size == (64, 64)
    assert generate(pair, "a red rose", "coolsd", seed=2, cfg_scale=7.5, top_k=50).complete


def test_a_folder_as_the_hub_leaves_it_and_no_drafter(entry, paths, tmp_path):
    for name in ("t2i_XL_stage1_64.pt", "t2i_XL_stage2_512.pt"):
        shutil.copy(DATA / "tiny_t2i_stage1.pt", tmp_path / name)
    shutil.copy(paths["vq"], tmp_path)
    pair = load("llamagen-256", "cpu", "float32", **paths | {"target": tmp_path, "vq": tmp_path, "drafter": "none"})
    assert pair.drafter_model is None
    assert generate(pair, "a rose", "ar").complete


def test_weights_of_another_grid_are_named(paths, tmp_path):
    with pytest.raises(LoadError, match=r"tiny_t2i_stage1\.pt is the model for 256 px \(16 × 16 tokens\), and 512 px are asked for"):
        llamagen_target(DATA / "tiny_t2i_stage1.pt", replace(TINY, grid=32))
    with pytest.raises(LoadError, match="is a model of 4 × 4 tokens, and 32 × 32 are asked for"):
        llamagen_target(DATA / "tiny_lantern_target", replace(TINY, grid=32))
    with pytest.raises(LoadError, match="made for pictures of 16 × 16 tokens, the target has 32 × 32"):
        load_drafter(DATA / "tiny_lantern_drafter", replace(TINY, grid=32))
    with pytest.raises(LoadError, match="512 px are asked for"):
        load("llamagen-512", "cpu", **paths)


def test_another_model_is_named_before_anything_runs(entry, paths, tmp_path):
    with pytest.raises(LoadError, match=r"uncond_embedding is \(120, 48\) in the file but \(120, 2048\) is expected"):
        llamagen_target(DATA / "tiny_t2i_stage1.pt", LlamaGenConfig())
    drafter = shutil.copytree(paths["drafter"], tmp_path / "drafter")
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    with pytest.raises(LoadError, match="another target: vocab is 300, the target's is 256"):
        load("llamagen-256", "cpu", "float32", **paths | {"drafter": drafter})
    names = NAMES["llamagen"] | {"quantize.embedding.weight": [512, 8]}
    torch.save({"model": patterned(names)}, tmp_path / "vq.pt")
    with pytest.raises(LoadError, match="it has 512 codes, the target was made for 256"):
        load("llamagen-256", "cpu", "float32", **paths | {"vq": tmp_path / "vq.pt"})
    with pytest.raises(LoadError, match="has no part called folder"):
        load("llamagen-256", "cpu", folder=tmp_path)


def test_an_eps_that_is_not_the_models_is_not_believed(tmp_path, caplog):
    folder = shutil.copytree(DATA / "tiny_lantern_target", tmp_path / "target")
    config = json.loads((folder / "config.json").read_text())
    del config["block_size"], config["cls_token_num"]
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-6}))
    assert llamagen_target(folder, TINY).config == TINY
    assert "rms_norm_eps 1e-06 is not used" in caplog.text


# ---- the hub


@pytest.fixture
def offline(monkeypatch):
    """A hub that cannot be reached, with an empty cache; `sizes` and `folder` make it answer."""
    state = SimpleNamespace(folder=None, sizes=None, downloads=[])

    def snapshot_download(repo, allow_patterns, local_files_only=False):
        if local_files_only:
            raise FileNotFoundError("not in the cache")
        state.downloads.append((repo, allow_patterns))
        return str(state.folder)

    def model_info(self, repo, files_metadata):
        if state.sizes is None:
            raise ConnectionError("no route to host\nmore words")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=k, size=v) for k, v in state.sizes.items()])

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(hub.HfApi, "model_info", model_info)
    return state


def test_missing_weights_name_files_sizes_and_the_command(offline):
    with pytest.raises(LoadError) as caught:
        load("llamagen-256", "cpu")
    message = str(caught.value)
    for words in ("t2i_XL_stage1_256.pt", "3.1 GB", "`hf download peizesun/llamagen_t2i t2i_XL_stage1_256.pt`", "target=PATH", "no route"):
        assert words in message
    assert "\n" not in message
    with pytest.raises(LoadError, match=r"vq: .*nowhere\.pt does not exist"):
        load("lumina-768", "cpu", target=DATA, vq=DATA / "nowhere.pt")


def test_the_size_is_told_before_the_download(offline, tmp_path, caplog):
    caplog.set_level("INFO", "coolsd")
    part = hub.Part("vq", "someone/something", ("a*.pt",), 0.29)
    offline.folder, offline.sizes = tmp_path, {"a1.pt": 290_000_000, "b.pt": 5_000_000_000}
    with pytest.raises(LoadError, match=r"someone/something does not hold a\*\.pt"):
        hub.fetch(part)
    (tmp_path / "a1.pt").touch()
    assert hub.fetch(part) == tmp_path
    assert "downloading 0.29 GB from someone/something (a1.pt)" in caplog.text
    assert offline.downloads[-1] == ("someone/something", ["a*.pt"])


def test_what_is_missing_is_listed_without_a_download(offline, paths, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lines = catalog.available("lumina-768")
    assert "16.9 GB; none was found" in lines[0]
    assert [line.split(":")[0] for line in lines[1:]] == ["target", "vq"]
    assert len(catalog.available("llamagen-256", **paths)) == 1
    assert catalog.available("meadow") == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (20e9, 24e9))
    assert catalog.available("llamagen-256", **paths) == []
    assert offline.downloads == []


def test_a_full_gpu_is_refused_with_figures(offline, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (3e9, 24e9))
    with pytest.raises(LoadError, match=r"needs 16\.9 GB of GPU memory and 3\.0 GB are free"):
        load("lumina-768", "cuda")


def test_running_out_of_memory_is_a_readable_error(monkeypatch, paths):
    def build(**_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setitem(catalog.CATALOG, "llamagen-256", replace(catalog.CATALOG["llamagen-256"], build=build))
    with pytest.raises(LoadError, match="llamagen-256 did not fit into the memory of cpu; what it took was freed"):
        load("llamagen-256", "cpu", "bfloat16", **paths)


def test_licences_are_shown(monkeypatch, paths, caplog):
    monkeypatch.setitem(catalog.CATALOG, "lumina-768", replace(catalog.CATALOG["lumina-768"], build=lambda **_: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        load("lumina-768", "cpu", target=DATA, vq=DATA)
    assert caplog.text.count("research licence") == 2
