"""LlamaGen's text path: cleaning, left padding, a tiny encoder through files."""

import json

import pytest
import torch
from files import DATA, T5_SIZES, write_t5
from tokenizers import Tokenizer
from transformers import T5Config, T5EncoderModel

from coolsd.models.checkpoints import LoadError
from coolsd.models.llamagen.t5 import T5Text, clean, left_pad, load_t5


@pytest.mark.parametrize(
    ("caption", "cleaned"),
    [
        ("A Red  Rose", "a red rose"),
        ("a rose (close-up) [oil] / canvas", "a rose close-up oil canvas"),
        ("“A cat’s hat” – sitting...", '"a cat\'s hat" - sitting'),
        ("<b>bold</b> &amp; <person>", "bold person"),
        ("see https://example.com/a?b=1 now", "see now"),
        ("by @someone, 10.0.0.1", "by"),
        ("一只猫", ""),
        ("a%20blue%20sea", "a blue sea"),
        ("jc6640 free shipping page 12 100x200 sunflower", "sunflower"),
        ("IMG_1.jpg flower 1234567", "flower"),
        ("a-b-c-d-e", "a b c d e"),
        ("sea:blue , calm", "sea:blue , calm"),
        ("'quoted'", "quoted"),
    ],
)
def test_cleaning(caption, cleaned):
    assert clean(caption) == cleaned


@pytest.mark.parametrize("prompt", [0, 1])
def test_left_padding_is_the_originals(prompt):
    ref = torch.load(DATA / "t5.pt", weights_only=True)
    result = left_pad(ref["t5_raw"][prompt], ref["t5_mask"][prompt])
    assert torch.equal(result.features, ref["cond"][prompt])
    assert torch.equal(result.valid, ref["emb_mask"][prompt].bool())


def test_features_end_at_the_right_and_do_not_depend_on_padding(tmp_path):
    text = load_t5(write_t5(tmp_path), 8, 48, "cpu")
    assert next(text.encoder.parameters()).dtype == torch.bfloat16
    result = text("A (red) rose")
    assert result.valid.tolist() == [False] * 4 + [True] * 4  # the end token is one of them
    assert not result.features[:4].any()
    ids = torch.tensor([[3, 4, 5, 1]])
    alone = text.encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
    torch.testing.assert_close(result.features[4:], alone, rtol=0, atol=0.05)
    assert text("a " * 20).valid.all()
    assert text("一只猫").valid.tolist() == [False] * 7 + [True]


def test_the_end_that_was_not_read(tmp_path):
    text = load_t5(write_t5(tmp_path), 4, 48, "cpu")
    assert text.unread("a rose") == ""
    assert text.unread("a Rose a rose, A SEA") == "rose, a sea"  # the end token takes a place


def test_a_prompt_is_encoded_once(tmp_path):
    calls = []
    encoder = T5EncoderModel(T5Config(d_model=48, **T5_SIZES))
    encoder.register_forward_hook(lambda *_: calls.append(1))
    text = T5Text(encoder, Tokenizer.from_file(str(write_t5(tmp_path) / "tokenizer.json")), 8)
    first = text("a rose")
    assert text("a rose") is first
    text("a red rose")
    assert len(calls) == 2


def test_misfits_are_named(tmp_path):
    write_t5(tmp_path)
    with pytest.raises(LoadError, match="width 48, the target was made for 2048"):
        load_t5(tmp_path, 8, 2048, "cpu")
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(LoadError, match="cannot be read"):
        load_t5(tmp_path, 8, 48, "cpu")
    (tmp_path / "model.safetensors").write_bytes(weights)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_layers": 2}))
    with pytest.raises(LoadError, match="missing or do not fit"):
        load_t5(tmp_path, 8, 48, "cpu")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(LoadError, match=r"holds none of model\.safetensors"):
        load_t5(tmp_path, 8, 48, "cpu")
