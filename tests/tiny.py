"""A tiny random pair in meadow's file layout: 4×4 tokens, 32 codes, 16 pixels wide. Runs in milliseconds."""

import json
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import JanusVQVAE, JanusVQVAEConfig

from coolsd.models.eagle import Eagle, EagleConfig
from coolsd.models.llamagen.network import LlamaGen, LlamaGenConfig
from coolsd.models.llamagen.session import LlamaGenPair
from coolsd.models.llamagen.text_table import TextTable
from coolsd.models.vq import ImageTokenizer

CONFIG = LlamaGenConfig(dim=32, layers=2, heads=2, ffn=64, vocab=32, caption_dim=8, caption_tokens=6, grid=4)
DRAFTER = EagleConfig(dim=32, heads=2, ffn=64, vocab=32, caption_tokens=6, grid=4)
WORDS = ["a", "red", "rose", "forest", "sea", "misty", "sunflower", "the", "on", "[UNK]"]


def randomise(module: torch.nn.Module, seed: int, std: float = 0.3) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in (*module.parameters(), *module.buffers()):
        parameter.data = torch.randn(parameter.shape, generator=generator) * std
    return module.eval().requires_grad_(False)


def vqvae() -> JanusVQVAE:
    config = JanusVQVAEConfig(
        base_channels=32, channel_multiplier=[1, 1, 1], num_res_blocks=1, latent_channels=32, embed_dim=8, num_embeddings=32, num_patches=4
    )
    torch.manual_seed(0)
    return JanusVQVAE(config).eval().requires_grad_(False)


def text(length: int = CONFIG.caption_tokens) -> TextTable:
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return TextTable(tokenizer, torch.randn(len(WORDS), CONFIG.caption_dim, generator=torch.Generator().manual_seed(5)), length)


@cache
def tiny_pair() -> LlamaGenPair:
    """The pair, built in memory, float32."""
    target = randomise(LlamaGen(CONFIG), 1)
    return LlamaGenPair(
        "tiny", target, randomise(Eagle(DRAFTER), 2), ImageTokenizer(vqvae(), CONFIG.grid), text(), {"device": "cpu", "dtype": "float32"}
    )


def write_tiny(folder: Path, config: LlamaGenConfig = CONFIG, drafter: EagleConfig = DRAFTER) -> Path:
    """The pair as files, as in assets/meadow; other sizes make files that do not fit."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "drafter").mkdir(exist_ok=True)
    block = {"block_size": config.grid**2}
    sizes = {"num_hidden_layers": config.layers, "caption_dim": config.caption_dim, "cls_token_num": config.caption_tokens}
    names = {"dim": "hidden_size", "heads": "num_attention_heads", "ffn": "intermediate_size", "vocab": "vocab_size"}
    target_json = {new: getattr(config, old) for old, new in names.items()} | sizes | block
    drafter_json = {new: getattr(drafter, old) for old, new in names.items()} | {"block_size": drafter.grid**2}
    (folder / "config.json").write_text(json.dumps(target_json))
    (folder / "drafter" / "config.json").write_text(json.dumps(drafter_json))
    save_file(dict(randomise(LlamaGen(config), 1).state_dict()), folder / "target.safetensors")
    save_file(dict(randomise(Eagle(drafter), 2).state_dict()), folder / "drafter" / "model.safetensors")
    vqvae().save_pretrained(folder / "vq")
    table = text()
    save_file({"embedding.weight": table.table}, folder / "text_table.safetensors")
    table.tokenizer.save(str(folder / "text_tokenizer.json"))
    return folder


def check_teacher_forced(pair, prompt: str, tokens: torch.Tensor, scale: float) -> None:
    """A lesson's rows, and the drafter's features over all of it, are those of sessions that are given the tokens one by one."""
    tolerance = {"rtol": 0, "atol": 1e-4}
    empty, trained = pair.empty_drafter().state_dict(), pair.drafter_model.state_dict()
    assert {k: v.shape for k, v in empty.items()} == {k: v.shape for k, v in trained.items()}
    with torch.inference_mode():
        teacher_forced = pair.teacher_forced(prompt, tokens, scale)
        whole = pair.drafter_model(teacher_forced.hidden[:, :-1], teacher_forced.ids[None], teacher_forced.rope, teacher_forced.mask)[
            :, teacher_forced.at
        ]
        target, drafter = pair.begin(scale)
        hidden = target.prefill(prompt).hidden
        for i, token in enumerate(tokens[:-1]):
            drafter.observe(hidden, token[None])
            # At the end of Lumina's rows a lesson goes on behind the new line, for which drafting has no target feature yet.
            if teacher_forced.mask is None or (i + 1) % pair.grid[1]:
                torch.testing.assert_close(drafter.entries.feature[:, 0], whole[:, i], **tolerance)
            step = target.extend(token[None], (-1,))
            torch.testing.assert_close(step.logits[0], teacher_forced.logits[i], **tolerance)
            hidden = step.hidden
            target.keep([0])
