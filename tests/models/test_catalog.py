"""Loading: every layout, every misfit named in one line, and the tiny pair through the whole engine."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import CONFIG, DRAFTER, check_teacher_forced, tiny_pair, write_tiny

from coolsd import METHODS, Run, SettingsError, generate, load, stream
from coolsd.models import checkpoints, loading
from coolsd.models.checkpoints import LoadError, read_state
from coolsd.models.llamagen.load import from_lantern, load_meadow

PROMPT = "a red rose"


def test_a_folder_loads_and_generates_like_the_pair_in_memory(tmp_path):
    pair = load("meadow", "cpu", "float32", folder=write_tiny(tmp_path))
    assert pair is load("meadow", "cpu", "float32", folder=tmp_path)
    assert pair.environment["dtype"] == "float32"
    assert generate(pair, PROMPT, "coolsd", seed=3).tokens == generate(tiny_pair(), PROMPT, "coolsd", seed=3).tokens


def test_dtype_and_threads_are_measured(tmp_path):
    before = torch.get_num_threads()
    environment = load("meadow", "cpu", folder=write_tiny(tmp_path)).environment
    torch.set_num_threads(before)
    assert environment["dtype"] in ("float32", "bfloat16")
    assert len(environment["pass_ms"]) == 2 * len({before, max(1, before // 2)})


TREES = [[[0], [1], [0, 0], [0, 1], [1, 0]], "naive_extend_57", "dynamic"]


@pytest.mark.parametrize(("method", "tree"), [(m, "auto") for m in METHODS] + [("coolsd", tree) for tree in TREES], ids=str)
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_every_method_fills_the_picture(method, scale, tree):
    run = generate(tiny_pair(), PROMPT, method, seed=1, cfg_scale=scale, draft_length=3, tree=tree)
    assert run.complete
    assert run.image.size == (16, 16)
    assert Run.from_json(run.to_json()).tokens == run.tokens


def test_greedy_speculation_equals_plain_ar_on_twenty_prompts():
    for i in range(20):
        prompt = f"{('the', 'a', 'red', 'misty')[i % 4]} {('rose', 'forest', 'sea', 'sunflower', 'on')[i % 5]}"
        settings = {"temperature": 0, "cfg_scale": 4.0, "draft_length": 5}
        runs = {name: generate(tiny_pair(), prompt, name, **settings).tokens for name, m in METHODS.items() if m.lossless}
        assert all(tokens == runs["ar"] for tokens in runs.values())
        trees = [generate(tiny_pair(), prompt, "eagle1", tree=tree, **settings).tokens for tree in TREES[i % 3 :][:1]]
        assert all(tokens == runs["ar"] for tokens in trees)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tree_with_more_siblings_than_codes(temperature):
    settings = {"temperature": temperature, "seed": 2, "tree": str([[k] for k in range(CONFIG.vocab + 8)])}
    run = generate(tiny_pair(), PROMPT, "eagle1", **settings)
    assert all(0 <= t < CONFIG.vocab for t in run.tokens)
    if not temperature:
        assert run.tokens == generate(tiny_pair(), PROMPT, "ar", temperature=0.0).tokens


def test_the_prompt_and_the_scale_matter():
    runs = {tuple(generate(tiny_pair(), p, "ar", cfg_scale=s).tokens) for p in (PROMPT, "misty forest") for s in (1.0, 6.0)}
    assert len(runs) == 4


MISFITS = {
    "vocabulary": (replace(CONFIG, vocab=33), DRAFTER, "vocab"),
    "width": (CONFIG, replace(DRAFTER, dim=64, ffn=128), "dim is 64"),
    "grid": (replace(CONFIG, grid=8), DRAFTER, "grid is 4, the target's is 8"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_drafter_of_another_target_is_named(tmp_path, name):
    config, drafter, message = MISFITS[name]
    with pytest.raises(LoadError, match=message):
        load("meadow", "cpu", "float32", folder=write_tiny(tmp_path, config, drafter))


def test_files_that_do_not_fit_their_config_are_named(tmp_path):
    write_tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(LoadError, match=r"missing.*layers\.2"):
        load("meadow", "cpu", "float32", folder=tmp_path)
    del config["block_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match="grid is unknown"):
        load("meadow", "cpu", "float32", folder=tmp_path)


def test_another_shape_is_named(tmp_path):
    write_tiny(tmp_path)
    state = load_file(tmp_path / "target.safetensors")
    state["norm.weight"] = torch.zeros(5)
    save_file(state, tmp_path / "target.safetensors")
    with pytest.raises(LoadError, match=r"norm\.weight is \(5,\) in the file but \(32,\)"):
        load("meadow", "cpu", "float32", folder=tmp_path)


@pytest.mark.parametrize("file", ["target.safetensors", "drafter/model.safetensors", "vq/model.safetensors"])
def test_missing_and_truncated_files_are_named(tmp_path, file):
    write_tiny(tmp_path)
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(LoadError, match=r"(model|target)\.safetensors"):
        load("meadow", "cpu", "float32", folder=tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(LoadError, match=r"missing|holds none"):
        load("meadow", "cpu", "float32", folder=tmp_path)


def test_unknown_names_say_what_there_is():
    with pytest.raises(LoadError, match="meadow"):
        load("nothing")
    with pytest.raises(LoadError, match="bfloat16"):
        load("meadow", "cpu", "float7")
    for dtype in ("int8", torch.int8, "nn", 3):
        with pytest.raises(LoadError, match="not a dtype"):
            load("meadow", "cpu", dtype)
    for device, words in (("banana", "not a device"), (3.5, "not a device"), ("meta", "no meta on this"), ("cuda:99", "no cuda:99")):
        with pytest.raises(LoadError, match=words):
            load("meadow", device)
    with pytest.raises(LoadError, match="not the name of a target"):
        load(None)


@pytest.mark.parametrize("key", ["model", "module", "state_dict"])
def test_original_containers_are_opened_and_pickled_code_is_refused(tmp_path, key):
    torch.save({key: {"w": torch.ones(2)}, "steps": 3}, tmp_path / "a.pt")
    assert read_state(tmp_path / "a.pt")["w"].tolist() == [1, 1]
    torch.save({key: print}, tmp_path / "b.pt")
    with pytest.raises(LoadError, match=r"b\.pt"):
        read_state(tmp_path / "b.pt")


def test_lantern_names_become_llamagens():
    state = load_file(checkpoints.ASSETS.parent / "tests" / "data" / "tiny_lantern_target" / "model.safetensors")
    original = torch.load(checkpoints.ASSETS.parent / "tests" / "data" / "tiny_t2i_stage1.pt", weights_only=True)["model"]
    converted = from_lantern(state)
    assert {k: tuple(v.shape) for k, v in converted.items()} == {k: tuple(v.shape) for k, v in original.items()}
    q = state["model.layers.1.self_attn.q_proj.weight"]
    torch.testing.assert_close(converted["layers.1.attention.wqkv.weight"][: len(q)], q)


def test_measuring_does_not_round_the_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "GAIN", 1e9)  # float32 is chosen, after bfloat16 was tried
    before = torch.get_num_threads()
    pair = load("meadow", "cpu", folder=write_tiny(tmp_path))
    torch.set_num_threads(before)
    pair.unpack()
    assert torch.equal(pair.target_model.output.weight, load_file(tmp_path / "target.safetensors")["output.weight"])
    assert torch.equal(pair.drafter_model.fc.weight, load_file(tmp_path / "drafter" / "model.safetensors")["fc.weight"])


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"hidden_size": "wide"}, "does not give hidden_size"),
        ("config.json", {"block_size": 17}, "block_size 17.*no square"),
        ("config.json", {"vocab_size": 64}, "tok_embeddings.weight is \\(32, 32\\) in the file but \\(64, 32\\).*vocabulary"),
        ("config.json", {"caption_dim": 16}, "uncond_embedding"),
        ("drafter/config.json", {"intermediate_size": None}, "does not give intermediate_size"),
        ("drafter/config.json", {"bias": False}, "1 unknown .first: fc.bias"),
    ],
)
def test_a_config_of_another_model_is_named(tmp_path, file, change, message):
    write_tiny(tmp_path)
    config = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps(config | change))
    with pytest.raises(LoadError, match=message) as caught:
        load("meadow", "cpu", "float32", folder=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["config.json", "text_table.safetensors", "text_tokenizer.json", "vq/config.json", "drafter/config.json"])
def test_a_missing_file_is_named(tmp_path, file):
    (write_tiny(tmp_path) / file).unlink()
    with pytest.raises(LoadError, match=file.split("/")[-1]):
        load("meadow", "cpu", "float32", folder=tmp_path)


def test_a_pair_without_a_drafter_decodes_plainly_and_refuses_to_draft(tmp_path):
    shutil.rmtree(write_tiny(tmp_path) / "drafter")
    pair = load("meadow", "cpu", "float32", folder=tmp_path)
    assert generate(pair, PROMPT, "ar", seed=2).tokens == generate(tiny_pair(), PROMPT, "ar", seed=2).tokens
    with pytest.raises(SettingsError, match="no drafter"):
        generate(pair, PROMPT, "eagle1")


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_lesson_is_what_decoding_sees(scale):
    check_teacher_forced(tiny_pair(), "a rose", torch.arange(8, 24), scale)


def test_joined_weights_keep_names_and_numbers_and_are_joined_again_when_moved(tmp_path):
    files = load_file(write_tiny(tmp_path) / "drafter" / "model.safetensors")
    pair = load_meadow(tmp_path).to("cpu", torch.float32)
    pair.unpack()
    drafter = pair.drafter_model
    layer, x = drafter.layers[0].mlp, torch.randn(3, 32)
    assert layer.is_fused()
    assert all(torch.equal(files[name], tensor) for name, tensor in drafter.state_dict().items())
    assert drafter.state_dict().keys() == files.keys()
    one_by_one = torch.cat([layer.gate_proj(x), layer.up_proj(x)], dim=-1)
    torch.testing.assert_close(layer.products(x), one_by_one)
    drafter.double()
    assert not layer.is_fused()
    torch.testing.assert_close(layer.products(x.double()).float(), one_by_one)
    layer.fuse()
    assert layer.is_fused()
    assert layer.joined.dtype == torch.float64


def test_misuse_of_the_library_is_told_before_anything_runs():
    for call in (generate, stream):
        with pytest.raises(TypeError, match=r"first argument is a loaded pair, not 'a rose'\. Load one"):
            call("a rose", tiny_pair())
        for entries in (True, -1, 2.5):
            with pytest.raises(SettingsError, match="no number of entries"):
                call(tiny_pair(), PROMPT, inspect=entries)


def test_sizes_that_a_config_gives_are_taken_and_those_it_lacks_have_defaults(tmp_path):
    write_tiny(tmp_path)
    config, drafter = (json.loads((tmp_path / name).read_text()) for name in ("config.json", "drafter/config.json"))
    plain = load("meadow", "cpu", "float32", folder=tmp_path)
    assert (plain.target_model.config.norm_eps, plain.target_model.config.rope_base) == (1e-5, 10000.0)
    sizes = plain.drafter_model.config
    assert (sizes.norm_eps, sizes.bias, sizes.caption_tokens, sizes.grid) == (1e-6, True, CONFIG.caption_tokens, CONFIG.grid)
    loading.CACHE.clear()
    (tmp_path / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1, "rope_base": 7.0, "model_type": "x"}))
    del drafter["block_size"]
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(drafter | {"rms_norm_eps": 0.2, "bias": True, "dropout": 0.5}))
    other = load("meadow", "cpu", "float32", folder=tmp_path)
    assert (other.target_model.config.norm_eps, other.target_model.config.rope_base) == (0.1, 7.0)
    assert (other.drafter_model.config.norm_eps, other.drafter_model.config.grid) == (0.2, CONFIG.grid)
    assert generate(other, PROMPT, "ar", seed=1).tokens != generate(plain, PROMPT, "ar", seed=1).tokens
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(drafter | {"cls_token_num": CONFIG.caption_tokens + 1}))
    loading.CACHE.clear()
    with pytest.raises(LoadError, match="caption_tokens is 7, the target's is 6"):
        load("meadow", "cpu", "float32", folder=tmp_path)


def test_bfloat16_guides_in_float32(tmp_path):
    """Guidance magnifies rounding: rows are cast before they are mixed, in drafting and in verifying."""
    pair = load("meadow", "cpu", "bfloat16", folder=write_tiny(tmp_path))
    with torch.inference_mode():
        target, drafter = pair.begin(7.5)
        first = target.prefill(PROMPT)
        drafter.observe(first.hidden, torch.tensor([3]))
        step = target.extend(torch.tensor([3, 5]), (-1, 0))
        rows = []
        drafter.propose((-1,), lambda logits: rows.append(logits) or logits.softmax(-1), torch.Generator().manual_seed(0))
        for hidden, logits in ((step.hidden, step.logits), (drafter.entries.feature, rows[0])):
            conditional, unconditional = pair.target_model.output(hidden).double()
            assert hidden.dtype == torch.bfloat16
            assert logits.dtype == torch.float32
            torch.testing.assert_close(logits.double(), unconditional + 7.5 * (conditional - unconditional), rtol=1e-6, atol=1e-6)
