"""LlamaGen target against the original code's tensors: prefill, cached decoding, guided greedy tokens, one pass over a tree."""

import pytest
import torch
from files import DATA

from coolsd.models.llamagen.network import LlamaGen, LlamaGenConfig
from coolsd.models.llamagen.session import LlamaGenTarget
from coolsd.models.llamagen.text_table import Conditioning
from coolsd.sampling import guide

GRIDS = {1: 4, 2: 8}
TOLERANCE = {"rtol": 0, "atol": 1e-4}


def tiny(stage: int) -> tuple[LlamaGen, dict]:
    config = LlamaGenConfig(dim=64, layers=3, heads=4, ffn=256, vocab=256, caption_dim=48, caption_tokens=120, grid=GRIDS[stage])
    model = LlamaGen(config).eval()
    model.load_state_dict(torch.load(DATA / f"tiny_t2i_stage{stage}.pt", weights_only=True)["model"], strict=True)
    return model, torch.load(DATA / f"llamagen_stage{stage}.pt", weights_only=True)


def session(model: LlamaGen, ref: dict, prompt: int, scale: float, pads: str = "self") -> LlamaGenTarget:
    conditioning = Conditioning(ref["cond"][prompt], ref["emb_mask"][prompt].bool())
    return LlamaGenTarget(model, lambda _: conditioning, scale, model.rope(), pads)


@pytest.fixture(params=[1, 2], ids=["256px", "512px"])
def reference(request):
    with torch.inference_mode():
        yield tiny(request.param)


def test_rope_rows_are_zero_for_the_condition_and_match(reference):
    model, ref = reference
    table = model.rope()
    assert not table[:120].any()
    n = min(136, 120 + model.config.image_tokens)
    torch.testing.assert_close(table[:n], ref["freqs_cis"][:n], rtol=0, atol=1e-6)


@pytest.mark.parametrize("prompt", [0, 1])
@pytest.mark.parametrize("scale", [1.0, 7.5])
def test_prefill_and_cached_decoding(reference, prompt, scale):
    model, ref = reference
    target = session(model, ref, prompt, scale)
    name = "nocfg" if scale == 1 else "cfg"
    rows = [prompt] if scale == 1 else [prompt, prompt + 2]
    step = target.prefill("")
    if scale != 1:
        torch.testing.assert_close(step.hidden, ref["prefill_hidden"][rows], **TOLERANCE)
        torch.testing.assert_close(step.logits[0], ref["cfg_step0_combined"][prompt], **TOLERANCE)
    else:
        torch.testing.assert_close(step.logits[0], ref["nocfg_prefill_logits"][prompt], **TOLERANCE)
    tokens = ref[f"{name}_tokens"][prompt]
    for k in range(8):
        step = target.extend(tokens[k : k + 1], (-1,))
        target.keep([0])
        expected = ref[f"{name}_decode_logits"][rows, k]
        torch.testing.assert_close(model.output(step.hidden)[:, 0], expected, **TOLERANCE)


@pytest.mark.parametrize("prompt", [0, 1])
def test_everything_in_one_pass_without_a_cache(reference, prompt):
    model, ref = reference
    target, tokens = session(model, ref, prompt, 7.5), ref["cfg_tokens"][prompt][:8]
    hidden, logits = target.forced("", tokens)
    expected = ref["cfg_decode_logits"][[prompt, prompt + 2], :8]
    torch.testing.assert_close(model.output(hidden)[:, -8:], expected, **TOLERANCE)
    torch.testing.assert_close(logits, guide(*expected, 7.5), rtol=0, atol=1e-3)


@pytest.mark.parametrize("prompt", [0, 1])
def test_guided_greedy_tokens_are_exact(reference, prompt):
    model, ref = reference
    target = session(model, ref, prompt, 7.5)
    token = target.prefill("").logits[-1].argmax()[None]
    tokens = [int(token)]
    for _ in range(len(ref["cfg_tokens"][prompt]) - 1):
        token = target.extend(token, (-1,)).logits[-1].argmax()[None]
        target.keep([0])
        tokens.append(int(token))
    assert tokens == ref["cfg_tokens"][prompt].tolist()


@pytest.mark.parametrize("prompt", [0, 1])
def test_tree_in_one_pass(reference, prompt):
    model, ref = reference
    target = session(model, ref, prompt, 7.5)
    target.prefill("")
    base = ref["tree_base"][prompt]
    target.extend(base[:-1], tuple(range(-1, len(base) - 2)))
    target.keep(list(range(len(base) - 1)))
    paths = ref["tree_paths"]
    tokens = torch.cat([base[-1:], paths.flatten()])
    parents = (-1, *(p for i in range(len(paths)) for p in (0, 1 + 2 * i)))
    step = target.extend(tokens, parents)
    logits = model.output(step.hidden)
    for i in range(len(paths)):
        for depth, node in enumerate((0, 1 + 2 * i, 2 + 2 * i)):
            torch.testing.assert_close(logits[:, node], ref["tree_logits"][[prompt, prompt + 2], i, depth], **TOLERANCE)


def test_chain_in_one_pass_equals_step_by_step_and_a_kept_tree_path_too():
    with torch.inference_mode():
        model, ref = tiny(1)
        tokens = ref["cfg_tokens"][0][:6]
        steps = session(model, ref, 0, 7.5)
        steps.prefill("")
        single = []
        for token in tokens:
            single.append(steps.extend(token[None], (-1,)).logits[0])
            steps.keep([0])
        whole = session(model, ref, 0, 7.5)
        whole.prefill("")
        torch.testing.assert_close(whole.extend(tokens, (-1, 0, 1, 2, 3, 4)).logits, torch.stack(single), **TOLERANCE)
        tree = session(model, ref, 0, 7.5)
        tree.prefill("")
        other = (tokens + 1) % 256
        tree.extend(torch.stack([tokens[0], other[1], tokens[1], other[2], tokens[2]]), (-1, 0, 0, 2, 2))
        tree.keep([0, 2, 4])
        torch.testing.assert_close(tree.extend(tokens[3:4], (-1,)).logits[0], single[3], **TOLERANCE)
