"""The drafter against the original code's tensors, and its session against a pass over everything at once."""

from functools import partial
from pathlib import Path

import pytest
import torch

from coolsd.models.eagle import Eagle, EagleConfig, EagleDrafter
from coolsd.models.protocols import chain
from coolsd.sampling import to_probs

DATA = Path(__file__).parent / "data"
CONFIG = EagleConfig(dim=64, heads=4, ffn=256, vocab=256, caption_tokens=120, grid=4)
TOLERANCE = {"rtol": 0, "atol": 1e-4}


@pytest.fixture(scope="module")
def tiny():
    model = Eagle(CONFIG).eval()
    model.load_state_dict(torch.load(DATA / "tiny_lantern_drafter" / "pytorch_model.bin", weights_only=True), strict=True)
    head = torch.nn.Linear(64, 256, bias=False)
    from safetensors.torch import load_file

    head.weight.data = load_file(DATA / "tiny_lantern_target" / "model.safetensors")["lm_head.weight"]
    with torch.inference_mode():
        yield model, head, torch.load(DATA / "lantern.pt", weights_only=True)


def test_rope_has_one_zero_row_less_than_the_target(tiny):
    model, _, ref = tiny
    table = model.rope()
    assert not table[:119].any()
    assert table[119, 0, 0] == 1
    torch.testing.assert_close(table[: 119 + 16], ref["drafter_freqs"][: 119 + 16], rtol=0, atol=1e-6)


def test_prefix_and_step(tiny):
    model, head, ref = tiny
    drafter = EagleDrafter(model, head, 7.5, model.rope())
    hidden, ids = ref["prefill_hidden_bf16mask"], ref["d_prefix_ids"][0]
    assert not ids[:-1].any()
    torch.testing.assert_close(model(hidden, ids[None], drafter.rope[:120]), ref["d_prefix_out"], **TOLERANCE)
    drafter.observe(hidden, ids[-1:])
    torch.testing.assert_close(drafter.feature, ref["d_prefix_out"][:, -1:], **TOLERANCE)
    torch.testing.assert_close(drafter.cache.keys[0, :, :, :120], ref["d_prefix_k"], **TOLERANCE)
    torch.testing.assert_close(drafter.cache.values[0, :, :, :120], ref["d_prefix_v"], **TOLERANCE)
    rows = []
    probs = lambda logits: rows.append(logits) or to_probs(logits)  # noqa: E731
    drafter.propose(chain(1), probs, torch.Generator().manual_seed(0))
    torch.testing.assert_close(rows[0], ref["d_cfg_logits_last"], **TOLERANCE)


def test_the_row_travels_with_the_token_and_drafting_leaves_no_trace(tiny):
    model, head, _ = tiny
    torch.manual_seed(0)
    hidden, tokens = torch.randn(2, 125, 64), torch.randint(256, (6,))
    probs = partial(to_probs, top_k=20)

    def draft(observations):
        drafter = EagleDrafter(model, head, 3.0, model.rope())
        drafts = []
        for start, end in observations:
            first = 0 if start == 0 else 119 + start
            drafter.observe(hidden[:, first : 119 + end], tokens[start:end])
            drafts.append(drafter.propose(chain(4), probs, torch.Generator().manual_seed(9)))
        return drafts[-1]

    whole, parts = draft([(0, 6)]), draft([(0, 1), (1, 4), (4, 6)])
    assert whole.tokens.tolist() == parts.tokens.tolist()
    torch.testing.assert_close(whole.q, parts.q, **TOLERANCE)
    assert whole.q.shape == (4, 256)
    assert bool(((whole.q > 0).sum(-1) == 20).all())
    assert bool((whole.q.gather(1, whole.tokens[:, None]) > 0).all())
