"""The embedded pair as it ships: it loads, it fits, and speculation at temperature 0 is plain AR."""

from pathlib import Path

import numpy as np
import pytest
import torch

from coolsd import exports, generate, load

ROOT = Path(__file__).parent.parent
PROMPTS = [
    *(f"a {colour} {flower}" for colour in ("red", "yellow", "purple", "white", "pink") for flower in ("rose", "petunia")),
    *(
        f"{place} {when}"
        for place in ("the sea", "a forest", "a mountain", "a glacier", "a snowy mountain")
        for when in ("at sunset", "in the mist")
    ),
]


@pytest.fixture(scope="module")
def pair():
    return load("meadow", "cpu", "float32")


def test_twenty_prompts_at_temperature_zero(pair):
    assert len(set(PROMPTS)) == 20
    for prompt in PROMPTS:
        settings = {"temperature": 0, "max_tokens": 40}
        assert generate(pair, prompt, "eagle1", **settings).tokens == generate(pair, prompt, "ar", **settings).tokens


def test_a_pass_over_several_tokens_computes_what_single_passes_do(pair):
    tokens = torch.arange(6) * 7
    with torch.inference_mode():
        single, chain = (pair.begin(4.0)[0] for _ in range(2))
        single.prefill("a forest"), chain.prefill("a forest")
        rows = []
        for token in tokens:
            rows.append(single.extend(token[None], (-1,)).logits)
            single.keep([0])
        whole = chain.extend(tokens, (-1, 0, 1, 2, 3, 4)).logits
    torch.testing.assert_close(whole, torch.cat(rows), rtol=0, atol=1e-3)


def test_the_drafter_earns_its_keep(pair):
    run = generate(pair, "a purple petunia", "eagle1", seed=1, top_k=500, max_tokens=80)
    assert run.stats.accept_length > 1.5
    assert run.stats.bias_spent == pytest.approx(0, abs=1e-4)
    assert len(run.to_json()) < 120_000 * 80 / 256  # a whole picture, without heads, in 120 KB


def test_words_become_colours(pair):
    """Not a measure of quality: a sunset is warmer than a glacier."""
    warmth = []
    for prompt in ("sunset over the sea", "a glacier under a blue sky"):
        pixels = np.asarray(generate(pair, prompt, "coolsd", seed=0, top_k=500).image, float)
        warmth.append(pixels[..., 0].mean() - pixels[..., 2].mean())
    assert warmth[0] > warmth[1] + 20


def test_assets_stay_small_and_the_page_has_its_recording():
    assert sum(f.stat().st_size for f in (ROOT / "assets" / "meadow").rglob("*") if f.is_file()) <= 90e6
    comparison = exports.recorded()
    assert comparison.reference.complete
    assert comparison.relaxed.complete
    assert comparison.relaxed.image.size == (128, 128)


def test_the_readme_and_ci_share_the_test_command():
    install = "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt -r tests/requirements.txt"
    command = f"{install} && .venv/bin/python -m pytest -n 2 --dist loadfile\n"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
