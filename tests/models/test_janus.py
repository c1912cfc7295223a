"""Janus-Pro: parity with transformers' own image mode on a tiny checkpoint in the released format, and the engine on top of it."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from far import Far, Waits, move
from files import JANUS, janus_sizes
from static import replayed, static
from tiny import check_teacher_forced
from transformers import JanusForConditionalGeneration

from coolsd import SettingsError, generate, stream
from coolsd.models.catalog import CATALOG
from coolsd.models.checkpoints import LoadError
from coolsd.models.cuda_graphs import Workspaces
from coolsd.models.janus.load import load_janus
from coolsd.models.janus.network import PRO_7B, Janus, JanusConfig
from coolsd.models.janus.session import drafter_sizes
from coolsd.sampling import guide
from coolsd.training.export import export_drafter
from coolsd.trees import chain

TOLERANCE = {"rtol": 0, "atol": 1e-4}
PROMPT = "rose sea"


def rows(pair, prompt: str, codes: list[int], released: JanusForConditionalGeneration) -> torch.Tensor:
    """Features (2, C + T, D) by transformers' language model, of the prompt's two branches and codes."""
    ids = torch.tensor([pair.text(prompt)] * 2)
    ids[1][(ids[1] != 1) & (ids[1] != 4)] = 3  # BOS and image start stay, the rest becomes padding
    embedded = released.get_input_embeddings()(ids)
    cells = released.prepare_embeddings_for_image_generation(torch.tensor([codes] * 2, dtype=torch.long))
    return released.model.language_model(inputs_embeds=torch.cat([embedded, cells], 1)).last_hidden_state


# ---- parity


@pytest.mark.parametrize("scale", [5.0, 1.0])
@pytest.mark.parametrize("prompt", [PROMPT, "sea"])
def test_greedy_tokens_are_those_of_transformers(janus, released_janus, prompt, scale):
    ids = torch.tensor([janus.text(prompt)])
    near = scale if scale > 1 else 1 + 1e-7  # at 1 itself transformers does not run
    mode = {"generation_mode": "image", "do_sample": False, "guidance_scale": near, "attention_mask": torch.ones_like(ids)}
    assert generate(janus, prompt, "ar", temperature=0, cfg_scale=scale).tokens == released_janus[0].generate(ids, **mode)[0].tolist()


@pytest.mark.parametrize("scale", [5.0, 1.0])
def test_features_and_logits(janus, released_janus, scale):
    codes = [5, 9, 33, 2]
    with torch.inference_mode():
        expected = rows(janus, PROMPT, codes, released_janus[0])
        target, _ = janus.begin(scale)
        steps = [target.prefill(PROMPT), target.extend(torch.tensor(codes), chain(4))]
        hidden = torch.cat([step.hidden for step in steps], 1)
        torch.testing.assert_close(hidden, expected[: target.branches], **TOLERANCE)
        logits = guide(*released_janus[0].model.generation_head(expected[:, -5:]), scale)
        torch.testing.assert_close(torch.cat([step.logits for step in steps]), logits, **TOLERANCE)


def test_a_tree_pass_is_step_by_step(janus):
    tree, tokens = (-1, 0, 0, 2, 2, 4), torch.tensor([7, 1, 2, 3, 4, 5])
    with torch.inference_mode():
        target, _ = janus.begin(5.0)
        target.prefill(PROMPT)
        whole = target.extend(tokens, tree)
        target.keep([0, 2, 4])
        after = target.extend(torch.tensor([8]), (-1,))
        steps, _ = janus.begin(5.0)
        steps.prefill(PROMPT)
        for node in (0, 2, 4):
            step = steps.extend(tokens[node : node + 1], (-1,))
            steps.keep([0])
            torch.testing.assert_close(whole.logits[node], step.logits[0], **TOLERANCE)
            torch.testing.assert_close(whole.hidden[:, node], step.hidden[:, 0], **TOLERANCE)
        torch.testing.assert_close(after.logits, steps.extend(torch.tensor([8]), (-1,)).logits, **TOLERANCE)


def test_pixels_are_those_of_transformers(janus, released_janus):
    codes = torch.arange(16) * 2
    decoded = released_janus[0].decode_image_tokens(codes[None])[0].detach().numpy()
    expected = (decoded * 127.5 + 127.5).clip(0, 255).astype(np.uint8)
    assert np.abs(np.asarray(janus.picture(codes.tolist())).astype(int) - expected).max() <= 1


def test_the_prompt_is_a_conversation_between_bos_and_image_start(janus):
    # <s> <unk> User <unk> rose <unk> Assistant <unk> <begin_of_image>: the words' tokenizer knows no punctuation
    assert [i for i in janus.text(" rose ") if i] == [1, 22, 20, 23, 4]


@pytest.mark.parametrize(("size", "config"), [("1b", JanusConfig()), ("7b", PRO_7B)])
def test_names_and_shapes_are_those_of_the_released_sizes(size, config):
    with torch.device("meta"):
        ours = {f"model.{k}": v.shape for k, v in Janus(config).state_dict().items()}
        released = JanusForConditionalGeneration(janus_sizes(config, vision_config={"num_hidden_layers": 1}))
    theirs = {k: v.shape for k, v in released.state_dict().items()}
    away = ("model.vision_model.", "model.aligner.", "model.vqmodel.", "lm_head.")
    assert ours == {k: shape for k, shape in theirs.items() if not k.startswith(away)}
    assert released.model.vqmodel.quantize.embedding.weight.shape == (config.codes, config.code_dim)
    memory = CATALOG[f"janus-pro-{size}"].memory
    assert memory["target"] == pytest.approx(2e-9 * sum(shape.numel() for shape in ours.values()), abs=0.01)
    entries = 256 + config.grid**2 + 64
    assert memory["cache"] == pytest.approx(2e-9 * config.layers * 2 * 2 * config.dim * entries, abs=0.01)


# ---- the engine


@pytest.mark.parametrize("method", ["ar", "sjd", "sjd-coupled", "coolsd-jacobi"])
def test_without_a_drafter(released_janus, method):
    pair = load_janus("janus-pro-1b", JANUS, released_janus[1])
    assert pair.begin(5.0)[1] is None
    run = generate(pair, PROMPT, method, seed=1, cfg_scale=5.0, window=5)
    assert run.complete
    assert run.image.size == (8, 8)
    with pytest.raises(SettingsError, match="no drafter"):
        generate(pair, PROMPT, "eagle1")


DRAFTS = [
    ("eagle1", "chain"),
    ("traversal", "auto"),
    ("coolsd", "dynamic"),
    ("coolsd-block", "auto"),
    ("lantern++", "auto"),
    ("coolsd-jacobi", "auto"),
]


@pytest.mark.parametrize("scale", [5.0, 1.0])
@pytest.mark.parametrize(("method", "tree"), DRAFTS)
def test_with_a_drafter_greedy_is_plain_ar_and_static_shapes_change_nothing(janus, method, tree, scale):
    settings = {"cfg_scale": scale, "draft_length": 4, "tree": tree, "neighbours": 4}
    assert (
        generate(janus, PROMPT, "eagle1", tree=tree, temperature=0, cfg_scale=scale).tokens
        == generate(janus, PROMPT, "ar", temperature=0, cfg_scale=scale).tokens
    )
    plain = generate(janus, PROMPT, method, seed=3, **settings).tokens
    for record in (None, replayed):
        assert generate(static(janus, record), PROMPT, method, seed=3, **settings).tokens == plain


@pytest.mark.parametrize("method", ["ar", "coolsd", "coolsd-jacobi"])
def test_a_prompt_too_long_for_a_workspace(janus, method, monkeypatch):
    plain = generate(janus, PROMPT, method, seed=3, cfg_scale=5.0).tokens
    monkeypatch.setattr("coolsd.models.janus.session.JanusTarget.most", 4)
    assert generate(static(janus), PROMPT, method, seed=3, cfg_scale=5.0).tokens == plain


@pytest.mark.parametrize("method", ["coolsd", "coolsd-jacobi"])
def test_on_a_gpu_a_round_waits_once(janus, released_janus, method, monkeypatch):
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)
    settings = {"cfg_scale": 5.0, "draft_length": 3, "top_k": 20, "window": 5}
    expected = generate(janus, PROMPT, method, seed=1, **settings).tokens
    far = load_janus("janus-pro-1b", JANUS, released_janus[1])
    far.drafter_model = type(janus.drafter_model)(drafter_sizes(JANUS)).eval().requires_grad_(False)
    far.drafter_model.load_state_dict(janus.drafter_model.state_dict())
    with Waits() as waits:
        for module in (far.target_model, far.drafter_model, far.tokenizer.vqvae):
            move(module)
        far.rope, far.workspaces = Far(far.rope), Workspaces(far.caches, None)
        tokens = []
        for event in stream(far, PROMPT, method, seed=1, **settings):
            assert event.index <= 1 or waits.events == ["copy to the host"]
            tokens += event.tokens
            waits.events.clear()
    assert tokens == expected


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_teacher_forcing_is_what_decoding_sees(janus, scale):
    check_teacher_forced(janus, PROMPT, torch.arange(7, 23), scale)


# ---- files


@pytest.fixture
def folder(released_janus, tmp_path):
    return shutil.copytree(released_janus[1], tmp_path / "janus")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"model_type": "llama"}, "of type 'llama', not a Janus"),
        ("config.json", {"vision_config": {"num_image_tokens": "many"}}, "describes no Janus"),
        ("config.json", {"vision_config": {"num_image_tokens": 576}}, "grid is 24, and 4 is expected"),
        ("config.json", {"text_config": {"num_key_value_heads": 2}}, "num_key_value_heads as 2; 4 is expected"),
        ("config.json", {"text_config": {"hidden_size": 32}}, "another model than the one asked for: dim is 32, and 64 is expected"),
        ("generation_config.json", {"pad_token_id": None}, "does not give pad_token_id"),
        ("generation_config.json", {"generation_kwargs": {"boi_token_id": 99}}, "does not give boi_token_id"),
    ],
)
def test_a_config_of_another_model_is_named(folder, file, change, message):
    data = json.loads((folder / file).read_text())
    for name, value in change.items():
        data[name] = data[name] | value if isinstance(value, dict) and name != "generation_kwargs" else value
    (folder / file).write_text(json.dumps(data))
    with pytest.raises(LoadError, match=message) as caught:
        load_janus("janus-pro-1b", JANUS, folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_and_truncated_files_are_named(folder, file):
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(LoadError, match=file):
        load_janus("janus-pro-1b", JANUS, folder)
    (folder / file).unlink()
    with pytest.raises(LoadError, match=file):
        load_janus("janus-pro-1b", JANUS, folder)


def test_without_a_generation_config_the_ids_are_the_tokenizers(folder, janus):
    (folder / "generation_config.json").unlink()
    assert load_janus("janus-pro-1b", JANUS, folder).text.ids == janus.text.ids


def test_a_drafter_of_another_target_is_named(folder, janus, tmp_path):
    model = janus.drafter_model
    export_drafter(model.state_dict(), model.config, tmp_path / "drafter", torch.float32)
    again = load_janus("janus-pro-1b", JANUS, folder, tmp_path / "drafter")
    assert vars(again.drafter_model.config) == vars(model.config)
    export_drafter(model.state_dict(), replace(model.config, vocab=99), tmp_path / "drafter", torch.float32)
    with pytest.raises(LoadError, match="made for another target: vocab is 99, not 48"):
        load_janus("janus-pro-1b", JANUS, folder, tmp_path / "drafter")
