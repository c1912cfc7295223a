"""Lumina-mGPT: parity with the original's tensors, forced tokens, the unconditional row, and every method through the engine."""

import json
import shutil

import pytest
import torch
from files import DATA, IDS, words
from safetensors.torch import load_file, save_file
from tiny import check_teacher_forced

from coolsd import METHODS, generate
from coolsd.models.cache import CachePosition, ancestors
from coolsd.models.checkpoints import LoadError, fill
from coolsd.models.drafter import EagleDrafter
from coolsd.models.eagle import Eagle, EagleConfig
from coolsd.models.layers import line_table
from coolsd.models.lumina.load import load_lumina
from coolsd.models.lumina.network import Chameleon, ChameleonConfig
from coolsd.models.lumina.session import Ids, LineEntries, LuminaPrompt, LuminaTarget
from coolsd.sampling import guide, to_probs
from coolsd.trees import chain

CONFIG = ChameleonConfig(dim=64, layers=2, heads=4, ffn=128, vocab=320, norm_rows=1)
TOLERANCE = {"rtol": 0, "atol": 1e-4}
ROPE = line_table(512, 16)


class Fixed(LuminaPrompt):
    """The reference's prompt, whatever is asked."""

    def __init__(self, prompt: list[int], grid: int):
        super().__init__(words(), grid, IDS)
        self.prompt = prompt

    def __call__(self, prompt: str) -> list[int]:
        return self.prompt


@pytest.fixture(scope="module")
def tiny():
    target = fill(Chameleon(CONFIG), load_file(DATA / "tiny_lumina_target" / "model.safetensors"), "target").eval()
    sizes = EagleConfig(dim=64, heads=4, ffn=128, vocab=320, norm_eps=1e-5, input_norm=True, norm_rows=1, halves=True)
    state = torch.load(DATA / "tiny_lumina_drafter" / "pytorch_model.bin", weights_only=True)
    with torch.inference_mode():
        yield target, fill(Eagle(sizes), state, "drafter").eval(), torch.load(DATA / "lumina.pt", weights_only=True)


def plain(model: Chameleon, prompt: list[int], codes: list[int], grid: int, scale: float) -> torch.Tensor:
    """Guided logits of the code that follows `codes`, from whole sequences, one for each row."""
    ids = list(prompt)
    for i, code in enumerate(codes):
        ids += [code + IDS.first] + [IDS.line] * ((i + 1) % grid == 0)
    rows = []
    for part in (ids, ids[len(prompt) - 3 :]):
        hidden = model(torch.tensor([part]), ROPE[: len(part)], None)
        rows.append(model.lm_head(hidden[0, -1])[IDS.first : IDS.first + IDS.codes])
    return guide(*rows, scale)


# ---- parity


def test_features_and_logits(tiny):
    model, _, ref = tiny
    for ids, hidden, logits in (("ids", "hidden", "logits"), ("uncond_ids", "uncond_hidden", "uncond_logits")):
        output = model(ref[ids], ROPE[: ref[ids].shape[1]], None)
        torch.testing.assert_close(output, ref[hidden], **TOLERANCE)
        torch.testing.assert_close(model.lm_head(output), ref[logits], **TOLERANCE)


def test_two_rows_in_one_pass_and_guided_logits(tiny):
    model, _, ref = tiny
    target = LuminaTarget(model, Fixed(ref["ids"][0, :8].tolist(), 6), 3.0, ROPE)
    step = target.prefill("")
    torch.testing.assert_close(step.hidden[0, :, 0], ref["hidden"][0, :8], **TOLERANCE)
    torch.testing.assert_close(step.hidden[1, 5:, 0], ref["uncond_hidden"][0, :3], **TOLERANCE)
    assert not step.hidden[1, :5].any()
    step = target.extend(ref["ids"][0, 8:] - IDS.first, chain(4))
    torch.testing.assert_close(step.hidden[0, :, 0], ref["hidden"][0, 8:], **TOLERANCE)
    torch.testing.assert_close(step.hidden[1, :, 0], ref["uncond_hidden"][0, 3:], **TOLERANCE)
    torch.testing.assert_close(step.logits[-1], ref["cfg3_last"][0, IDS.first : IDS.first + IDS.codes], **TOLERANCE)


def test_drafter_prefix_and_step(tiny):
    model, eagle, ref = tiny
    target = LuminaTarget(model, Fixed(ref["ids"][0, :8].tolist(), 6), 3.0, ROPE)
    hidden = target.prefill("").hidden
    later = target.extend(ref["ids"][0, 8:] - IDS.first, chain(4)).hidden
    drafter = LineEntries(eagle, target)
    drafter.observe(hidden, ref["d_ids"][0, 7:8] - IDS.first)
    drafter.observe(later, ref["d_ids"][0, 8:] - IDS.first)
    torch.testing.assert_close(drafter.feature, ref["d_out"][:, -1:], **TOLERANCE)
    keys, values = drafter.cache.keys[0, :, :, :12], drafter.cache.values[0, :, :, :12]
    for row, first in ((0, 0), (1, 5)):
        torch.testing.assert_close(keys[row, :, first:], ref["d_k"][row, :, first:], **TOLERANCE)
        torch.testing.assert_close(values[row, :, first:], ref["d_v"][row, :, first:], **TOLERANCE)
    mask = target.visible(ancestors(chain(12))) | torch.eye(12, dtype=torch.bool)
    whole = eagle(ref["d_hidden_in"], ref["d_ids"], target.rope_rows(torch.arange(12)), mask)
    torch.testing.assert_close(whole[1, 5:], ref["d_out"][1, 5:], **TOLERANCE)
    # The reference does not say which token its step takes; exactly one of all fits.
    position = CachePosition(drafter.cache.committed, None, target.pad)
    steps = torch.cat([drafter.level(position, drafter.feature, torch.tensor([i]), None, 0)[0] for i in range(CONFIG.vocab)], 1)
    assert int(((steps - ref["d_step"]).abs().amax((0, 2)) < 1e-4).sum()) == 1


# ---- forced tokens and sessions


def test_the_prompt_has_one_bos_and_the_size_of_the_picture():
    assert words().encode("rose").ids == [0, 120]
    ids = LuminaPrompt(words(), 48, Ids())("rose")
    assert ids.count(0) == 1
    assert ids[0] == 0
    assert 120 in ids
    assert ids[-4:] == [8710, 8197, 8828, 8828]


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_new_lines_are_fed_along_a_chain(tiny, scale):
    model, _, ref = tiny
    prompt = ref["ids"][0, :8].tolist()
    target = LuminaTarget(model, Fixed(prompt, 3), scale, ROPE)
    torch.testing.assert_close(target.prefill("").logits[0], plain(model, prompt, [], 3, scale), **TOLERANCE)
    codes = [5, 9, 33, 2, 60, 11, 7, 7]
    for start, stop in ((0, 1), (1, 4), (4, 8)):
        step = target.extend(torch.tensor(codes[start:stop]), chain(stop - start))
        for i in range(start, stop):
            torch.testing.assert_close(step.logits[i - start], plain(model, prompt, codes[: i + 1], 3, scale), **TOLERANCE)
        target.keep(list(range(stop - start)))
    assert target.done == 8
    assert target.cache.committed == 8 + 8 + 2


def test_new_lines_are_fed_in_every_branch_of_a_tree(tiny):
    model, _, ref = tiny
    prompt = ref["ids"][0, :8].tolist()
    target = LuminaTarget(model, Fixed(prompt, 2), 3.0, ROPE)
    target.prefill("")
    codes, parents = [5, 9, 33, 2, 60, 11], (-1, 0, 0, 1, 2, 4)
    step = target.extend(torch.tensor(codes), parents)
    for node, path in ((0, [0]), (1, [0, 1]), (2, [0, 2]), (3, [0, 1, 3]), (4, [0, 2, 4]), (5, [0, 2, 4, 5])):
        torch.testing.assert_close(step.logits[node], plain(model, prompt, [codes[i] for i in path], 2, 3.0), **TOLERANCE)
    target.keep([0, 2, 4])
    step = target.extend(torch.tensor([1]), (-1,))
    torch.testing.assert_close(step.logits[0], plain(model, prompt, [5, 33, 60, 1], 2, 3.0), **TOLERANCE)


def test_drafting_over_new_lines_is_the_same_in_a_chain_a_tree_and_after_committing(tiny):
    model, eagle, ref = tiny

    def drafter_after(codes: list[int], cuts: list[int]) -> LineEntries:
        target = LuminaTarget(model, Fixed(ref["ids"][0, :8].tolist(), 3), 3.0, ROPE)
        drafter, hidden = LineEntries(eagle, target), target.prefill("").hidden
        for start, stop in zip([0, *cuts], [*cuts, len(codes)], strict=True):
            if start:
                hidden = target.extend(torch.tensor(codes[start - 1 : stop - 1]), chain(stop - start)).hidden
                target.keep(list(range(stop - start)))
            drafter.observe(hidden, torch.tensor(codes[start:stop]))
        return drafter

    codes = [5, 9, 33, 2, 60, 11]  # the last one ends a row
    whole, parts = drafter_after(codes, [1]), drafter_after(codes, [1, 2, 4])
    torch.testing.assert_close(whole.feature, parts.feature, **TOLERANCE)
    assert whole.cache.committed == 8 + 5 + 1
    first = EagleDrafter(whole).propose(chain(5), to_probs, torch.Generator().manual_seed(3))
    again = EagleDrafter(parts).propose(chain(5), to_probs, torch.Generator().manual_seed(3))
    assert first.tokens.tolist() == again.tokens.tolist()
    torch.testing.assert_close(first.q, again.q, **TOLERANCE)
    # By hand: the new line after the last code, then three codes, then the new line of their row.
    feature, position = whole.feature, CachePosition(whole.cache.committed, None, whole.target.pad)
    ids = [IDS.line, *(first.tokens[:3] + IDS.first).tolist(), IDS.line, int(first.tokens[3]) + IDS.first]
    rows = []
    for rank, token in enumerate(ids):
        feature, _ = whole.level(position, feature, torch.tensor([token]), None, rank)
        rows.append(to_probs(whole.logits(feature))[0])
    torch.testing.assert_close(first.q, torch.stack([rows[i] for i in (0, 1, 2, 4, 5)]), **TOLERANCE)
    tree = EagleDrafter(whole).propose((-1, -1, 0, 1, 2, 3), to_probs, torch.Generator().manual_seed(3))
    assert tree.calls == 3
    assert EagleDrafter(whole).propose((), to_probs, torch.Generator()).calls == 0


# ---- through files and the engine


@pytest.mark.parametrize("method", METHODS)
def test_every_method_fills_the_picture(lumina, method):
    run = generate(lumina, "rose", method, seed=1, cfg_scale=3.0, draft_length=3)
    assert run.complete
    assert len(run.tokens) == 16
    assert run.image.size == (64, 64)


@pytest.mark.parametrize("method", [name for name, m in METHODS.items() if m.lossless and name != "ar"])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_greedy_speculation_is_plain_ar(lumina, method, scale):
    for prompt in ("rose", "sea", "rose sea"):
        settings = {"temperature": 0, "cfg_scale": scale, "draft_length": 5}
        assert generate(lumina, prompt, method, **settings).tokens == generate(lumina, prompt, "ar", **settings).tokens


def test_without_a_drafter(lumina_folders):
    pair = load_lumina(lumina_folders / "target", lumina_folders / "vq" / "vqgan.ckpt", grid=4, ids=IDS)
    assert pair.begin(3.0)[1] is None
    for method in ("ar", "sjd", "sjd-coupled", "coolsd-jacobi"):
        assert generate(pair, "rose", method, window=6).complete


def test_shards_and_norms_for_every_head_are_the_same_model(lumina_folders, lumina, tmp_path):
    target = shutil.copytree(lumina_folders / "target", tmp_path / "target")
    state = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    state = {k: v.repeat_interleave(4, 0) if "q_norm" in k or "k_norm" in k else v for k, v in state.items()}
    names = sorted(state)
    index = {}
    for i, part in enumerate((names[::2], names[1::2])):
        shard = f"model-0000{i + 1}-of-00002.safetensors"
        save_file({k: state[k].contiguous() for k in part}, target / shard)
        index |= dict.fromkeys(part, shard)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    other = load_lumina(target, lumina_folders / "vq", grid=4, ids=IDS)
    assert other.target_model.config.norm_rows == 4
    assert generate(other, "rose", "ar", seed=4).tokens == generate(lumina, "rose", "ar", seed=4).tokens
    (target / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(LoadError, match=r"model-00002-of-00002\.safetensors is missing"):
        load_lumina(target, lumina_folders / "vq", grid=4, ids=IDS)


def test_a_drafter_with_norms_for_every_head_is_the_same(lumina_folders, lumina, tmp_path):
    drafter = shutil.copytree(lumina_folders / "drafter", tmp_path / "drafter")
    state = torch.load(drafter / "pytorch_model.bin", weights_only=True)
    (drafter / "pytorch_model.bin").unlink()
    save_file(
        {k: v.repeat_interleave(4, 0) if "_norm." in k and "self_attn" in k else v for k, v in state.items()}, drafter / "model.safetensors"
    )
    other = load_lumina(lumina_folders / "target", lumina_folders / "vq", drafter, grid=4, ids=IDS)
    assert other.drafter_model.config.norm_rows == 4
    assert generate(other, "rose", "coolsd", seed=4).tokens == generate(lumina, "rose", "coolsd", seed=4).tokens


def test_misfits_are_named(lumina_folders, tmp_path):
    with pytest.raises(LoadError, match="64 codes, the target was made for 8192"):
        load_lumina(lumina_folders / "target", lumina_folders / "vq")
    with pytest.raises(LoadError, match=r"holds no file \*\.safetensors"):
        load_lumina(lumina_folders / "target", tmp_path)
    drafter = shutil.copytree(lumina_folders / "drafter", tmp_path / "drafter")
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    with pytest.raises(LoadError, match="another target: vocab is 300, not 320"):
        load_lumina(lumina_folders / "target", lumina_folders / "vq", drafter, grid=4, ids=IDS)
    (drafter / "config.json").write_text(json.dumps(config | {"swin_norm": True}))
    with pytest.raises(LoadError, match="swin_norm"):
        load_lumina(lumina_folders / "target", lumina_folders / "vq", drafter, grid=4, ids=IDS)
    (drafter / "config.json").write_text(json.dumps(config))
    (drafter / "pytorch_model.bin").write_bytes(b"nothing")
    with pytest.raises(LoadError, match=r"pytorch_model\.bin cannot be read"):
        load_lumina(lumina_folders / "target", lumina_folders / "vq", drafter, grid=4, ids=IDS)
    with pytest.raises(LoadError, match=r"no layers\.0\.self_attn\.q_norm"):
        load_lumina(lumina_folders / "target", lumina_folders / "vq", DATA / "tiny_lantern_drafter", grid=4, ids=IDS)


def test_sizes_that_a_config_gives_are_taken_and_those_it_lacks_have_defaults(lumina_folders, tmp_path):
    target = shutil.copytree(lumina_folders / "target", tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    for changes, eps, base in (({}, 1e-5, 10000.0), ({"rms_norm_eps": 0.1, "rope_theta": 7.0}, 0.1, 7.0)):
        rest = {key: value for key, value in config.items() if key not in ("rms_norm_eps", "rope_theta")}
        (target / "config.json").write_text(json.dumps(rest | changes | {"swin_norm": False}))
        sizes = load_lumina(target, lumina_folders / "vq", grid=4, ids=IDS).target_model.config
        assert (sizes.norm_eps, sizes.rope_base) == (eps, base)
    (target / "config.json").write_text(json.dumps(config | {"num_attention_heads": 2}))
    state = load_file(target / "model.safetensors")
    save_file({k: v.repeat(3, 1) if "q_norm" in k else v for k, v in state.items()}, target / "model.safetensors")
    with pytest.raises(LoadError, match="q_norm has 3 rows; 1 or 2 are expected"):
        load_lumina(target, lumina_folders / "vq", grid=4, ids=IDS)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_lesson_is_what_decoding_sees(lumina, scale):
    check_teacher_forced(lumina, "rose sea", torch.arange(7, 23), scale)
