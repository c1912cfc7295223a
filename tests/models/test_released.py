"""The released targets: names and shapes of the real sizes, tiny files in their formats through `load`, and what is said without them."""

import argparse
import gc
import json
import math
import shutil
import weakref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from files import NAMES, patterned
from released import DATA, TINY, shrink_llamagen, write_llamagen

from coolsd import generate, load
from coolsd.evaluation.speed import bandwidth
from coolsd.models import catalog, hub
from coolsd.models.checkpoints import LoadError, fill, read_state
from coolsd.models.eagle import Eagle, EagleConfig
from coolsd.models.janus.load import random_janus
from coolsd.models.janus.network import JanusConfig
from coolsd.models.llamagen.load import from_lantern, llamagen_target, load_drafter, random_llamagen
from coolsd.models.llamagen.network import LlamaGen, LlamaGenConfig
from coolsd.models.llamagen.session import LlamaGenPair
from coolsd.models.lumina.network import Chameleon, ChameleonConfig
from coolsd.models.vq import empty_network, from_llamagen
from coolsd.settings import SETTINGS

SHAPES = json.loads((DATA / "released_shapes.json").read_text())


# ---- real sizes, on the meta device


def repeated(shapes: dict, layers: int) -> dict:
    """Shapes of all layers from those of layer 0."""
    return {k.replace("layers.0.", f"layers.{i}."): v for i in range(layers) for k, v in shapes.items()}


def shapes_of(build) -> dict:
    with torch.device("meta"):
        return {k: list(v.shape) for k, v in build().state_dict().items()}


@pytest.mark.parametrize("grid", [16, 32])
def test_llamagen_xl_has_exactly_the_released_names_and_shapes(grid):
    result = shapes_of(lambda: LlamaGen(LlamaGenConfig(grid=grid)))
    assert result == repeated(SHAPES["t2i_XL"], SHAPES["t2i_XL_layers"])
    assert sum(math.prod(shape) for shape in result.values()) == SHAPES["t2i_XL_numel"]
    lantern = {k: torch.empty(v, device="meta") for k, v in repeated(SHAPES["lantern_target"], SHAPES["t2i_XL_layers"]).items()}
    assert {k: list(v.shape) for k, v in from_lantern(lantern).items()} == result


def test_lumina_has_exactly_the_released_names_and_shapes():
    assert shapes_of(lambda: Chameleon(ChameleonConfig())) == repeated(SHAPES["lumina"], SHAPES["lumina_layers"])


LUMINA_DRAFTER = EagleConfig(dim=4096, heads=32, ffn=11008, vocab=65536, input_norm=True, norm_rows=1, halves=True)


@pytest.mark.parametrize(("name", "config"), [("lantern_drafter", EagleConfig()), ("lumina_drafter", LUMINA_DRAFTER)])
def test_the_drafters_have_exactly_the_released_names_and_shapes(name, config):
    assert shapes_of(lambda: Eagle(config)) == SHAPES[name]


def test_vq16_has_exactly_the_released_names_and_shapes():
    tensors = {name: torch.empty(shape, device="meta") for name, shape in SHAPES["vq_ds16_t2i"].items()}
    assert sum(t.numel() for t in tensors.values()) - SHAPES["vq_numel"] == 65536  # the buffer of used codes
    state = from_llamagen({k: v for k, v in tensors.items() if k != "quantize.codebook_used"})
    network = fill(empty_network(state), state, "picture tokenizer")
    assert network.quantize.embedding.weight.shape == (16384, 8)


# ---- tiny files through load


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_llamagen(tmp_path_factory.mktemp("llamagen"))


@pytest.fixture
def entry(monkeypatch):
    return shrink_llamagen(monkeypatch)


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


FILES = [
    "target.pt",
    "drafter/pytorch_model.bin",
    "drafter/config.json",
    "vq.pt",
    "text/model.safetensors",
    "text/tokenizer.json",
    "text/config.json",
]


@pytest.fixture
def broken(paths, tmp_path):
    """Copies of all files, to be broken."""
    shutil.copy(paths["target"], tmp_path / "target.pt")
    shutil.copy(paths["vq"], tmp_path / "vq.pt")
    for part in ("drafter", "text"):
        shutil.copytree(paths[part], tmp_path / part)
    return {
        "target": tmp_path / "target.pt",
        "vq": tmp_path / "vq.pt",
        "drafter": tmp_path / "drafter",
        "text": tmp_path / "text",
    }, tmp_path


@pytest.mark.parametrize("file", FILES)
def test_every_broken_file_is_named_in_one_line(entry, broken, file):
    parts, folder = broken
    content = (folder / file).read_bytes()
    pages = [b"version https://git-lfs.github.com/spec/v1", b"<html>404</html>", b"[1, 2]", content[: len(content) // 2], b"", None]
    for page in pages:
        if page is None:
            (folder / file).unlink()
        else:
            (folder / file).write_bytes(page)
        with pytest.raises(LoadError, match=r"pytorch_model\.bin" if page is None and "bin" in file else file.split("/")[-1]) as caught:
            load("llamagen-256", "cpu", "float32", **parts)
        assert "\n" not in str(caught.value)


def test_a_file_of_another_kind_is_named(entry, broken):
    parts, folder = broken
    torch.save([torch.ones(2)], folder / "list.pt")
    with pytest.raises(LoadError, match=r"list\.pt holds none of the keys model, module, state_dict and is no table of tensors"):
        load("llamagen-256", "cpu", **parts | {"target": folder / "list.pt"})
    torch.save({"model": patterned(NAMES["chameleon"])}, folder / "chameleon.pt")
    with pytest.raises(LoadError, match="another network"):
        load("llamagen-256", "cpu", **parts | {"vq": folder / "chameleon.pt"})
    with pytest.raises(LoadError, match="picture tokenizer"):
        load("llamagen-256", "cpu", **parts | {"vq": parts["target"]})
    with pytest.raises(LoadError, match="target: "):
        load("llamagen-256", "cpu", **parts | {"target": parts["vq"]})
    half = {"lm_head.weight": torch.ones(1), "model.layers.0.self_attn.q_proj.weight": torch.ones(1)}
    with pytest.raises(LoadError, match=r"layers\.0\.self_attn\.k_proj\.weight is missing"):
        from_lantern(half)


def test_options_pickled_beside_the_weights_do_no_harm(tmp_path):
    torch.save({"model": {"w": torch.ones(2)}, "args": argparse.Namespace(lr=1e-4)}, tmp_path / "a.pt")
    assert read_state(tmp_path / "a.pt")["w"].tolist() == [1, 1]


def test_loading_says_nothing_of_new_weights(entry, paths, capfd, caplog):
    load("llamagen-256", "cpu", "bfloat16", **paths)
    out, err = capfd.readouterr()
    assert "newly initialized" not in out + err + caplog.text
    assert "not initialized" not in out + err + caplog.text


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
    part = hub.HubFiles("vq", "someone/something", ("a*.pt",), 0.29)
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
    assert "17.2 GB; none was found" in lines[0]
    assert [line.split(":")[0] for line in lines[1:]] == ["target", "vq"]
    assert len(catalog.available("llamagen-256", **paths)) == 1
    assert catalog.available("meadow") == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (20e9, 24e9))
    assert catalog.available("llamagen-256", **paths) == []
    assert offline.downloads == []


def test_a_full_gpu_is_refused_with_figures(offline, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (3e9, 24e9))
    with pytest.raises(LoadError, match=r"needs 17\.2 GB of GPU memory and 3\.0 GB are free"):
        load("lumina-768", "cuda")


def test_running_out_of_memory_is_a_readable_error(monkeypatch, paths):
    def build(**_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setitem(catalog.CATALOG, "llamagen-256", replace(catalog.CATALOG["llamagen-256"], build=build))
    with pytest.raises(LoadError, match="llamagen-256 did not fit into the memory of cpu; what it took was freed"):
        load("llamagen-256", "cpu", "bfloat16", **paths)


def test_what_did_not_fit_is_freed(monkeypatch, paths, entry):
    pairs = []

    def full(pair, *_):
        pairs.append(weakref.ref(pair))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(LlamaGenPair, "to", full)
    with pytest.raises(LoadError, match=r"did not fit.* needs 4\.6 GB"):
        load("llamagen-256", "cpu", "float16", **paths)
    gc.collect()
    assert [pair() for pair in pairs] == [None]


def test_the_plan_is_told_before_anything_is_loaded(monkeypatch, caplog, paths):
    caplog.set_level("INFO", "coolsd")
    for name, drafter, line in (
        ("llamagen-512", "none", "target 1.56, text encoder 2.45, picture decoder 0.29, cache 0.45; 4.8 GB in all"),
        ("lumina-768", paths["drafter"], "target 14.03, drafter 1.01, picture decoder 0.28, cache 2.9; 18.2 GB in all"),
    ):
        lines = []
        build = lambda lines=lines, **_: lines.append(caplog.text) or 1 / 0  # noqa: E731
        monkeypatch.setitem(catalog.CATALOG, name, replace(catalog.CATALOG[name], build=build))
        with pytest.raises(ZeroDivisionError):
            load(name, "cpu", **{part.what: DATA for part in catalog.CATALOG[name].parts} | {"drafter": drafter})
        assert line in lines[0]


def test_a_download_that_was_broken_off_is_not_complete(tmp_path, monkeypatch):
    part = hub.HubFiles("target", "someone/something", ("config.json", "model*.safetensors*"), 1.0)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    )
    (tmp_path / "model-1.safetensors").touch()
    assert not part.complete(tmp_path)
    (tmp_path / "model-2.safetensors").touch()
    assert part.complete(tmp_path)
    (tmp_path / "config.json").unlink()
    assert not part.complete(tmp_path)
    assert not hub.HubFiles("vq", "someone/something", ("model-1.safetensors", "model-3.safetensors"), 1.0).complete(tmp_path)
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    assert hub.local(part) is None
    (tmp_path / "config.json").write_text("{}")
    assert hub.local(part) == tmp_path


def test_licences_are_shown(monkeypatch, paths, caplog):
    monkeypatch.setitem(catalog.CATALOG, "lumina-768", replace(catalog.CATALOG["lumina-768"], build=lambda **_: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        load("lumina-768", "cpu", target=DATA, vq=DATA)
    assert caplog.text.count("research licence") == 2


# ---- speed against bandwidth


@pytest.mark.parametrize("name", ["llamagen-512", "lumina-768", "janus-pro-1b"])
def test_passes_are_timed_with_random_weights(monkeypatch, name):
    sizes = {"dim": 64, "heads": 4, "ffn": 128}
    monkeypatch.setattr(bandwidth, "COPY", {"cpu": 4096})
    small = {
        "llamagen-512": partial(random_llamagen, name, LlamaGenConfig(**sizes, vocab=2048, caption_dim=16, grid=32)),
        "janus-pro-1b": partial(random_janus, name, JanusConfig(**sizes, vocab=99, codes=2048)),
    }
    if name in small:
        monkeypatch.setitem(catalog.CATALOG, name, replace(catalog.CATALOG[name], random=small[name]))
    monkeypatch.setattr("coolsd.models.lumina.load.ChameleonConfig", partial(ChameleonConfig, **sizes, vocab=9000))
    result = bandwidth.measure(name, "cpu", "float32", layers=2, draft=3, repeats=2)
    window = f"Jacobi round of {SETTINGS['window'].default}"
    assert [part.name for part in result.parts] == ["AR step", "draft step", "verify pass of 4", window]
    assert all(part.milliseconds > 0 and part.floor_ms > 0 for part in result.parts)
    layer = 4 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + (4 * 4 * 16 if name == "lumina-768" else 0)
    head = 4 * 64 * (8192 if name == "lumina-768" else 2048)
    if name == "janus-pro-1b":  # with biases, a layer before it, and two on the way from a code to its embedding
        head += 4 * (2048 + 64 * 64 + 64) + 4 * (8 * 64 + 64 + 64 * 64 + 64)
    entry = 2 * 2 * 2 * 64 * 4  # keys and values, layers, rows
    assert result.parts[0].gigabytes * 1e9 == pytest.approx(2 * layer + 4 * 64 + head + entry * result.cached)
    cells = {"llamagen-512": 1024, "lumina-768": 48 * 48, "janus-pro-1b": 576}[name]
    assert cells // 2 <= result.cached < cells
    assert name in bandwidth.table(result)
    with pytest.raises(LoadError, match="no sizes for 'meadow'"):
        bandwidth.measure("meadow", "cpu")


@pytest.mark.parametrize(("each", "calls"), [(0.1, 1 + 30), (7.0, 1 + 3), (30.0, 1 + 3)])
def test_a_slow_machine_repeats_a_pass_less_often(monkeypatch, each, calls):
    clock, done = [0.0], []
    monkeypatch.setattr(bandwidth, "perf_counter", lambda: clock[0])

    def call():
        done.append(1)
        clock[0] += each

    assert bandwidth.seconds(call, torch.device("cpu"), 30) == pytest.approx(each)
    assert len(done) == calls
