"""Models' public files in miniature: picture tokenizers, LlamaGen's text encoder, Lumina's folders."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import GenerationConfig, JanusForConditionalGeneration, T5Config, T5ForConditionalGeneration
from transformers import JanusConfig as ReleasedJanus

from coolsd.models.janus.network import JanusConfig
from coolsd.models.lumina.session import Ids

DATA = Path(__file__).parent / "data"
NAMES = json.loads((DATA / "vq_names.json").read_text())  # of the picture tokenizers' tensors, with their shapes
T5_SIZES = {"d_kv": 12, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 32}
IDS = Ids(codes=64, start=69, separator=110, line=203, size=204)  # of the tiny Lumina

JANUS = JanusConfig(dim=64, layers=2, heads=4, ffn=128, vocab=40, codes=48, code_dim=8, grid=4, norm_eps=1e-6)


def patterned(names: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    """Tensors of these names and shapes, filled with numbers that depend on nothing but their place."""
    state = {}
    for i, name in enumerate(sorted(names)):
        shape = names[name]
        count = int(np.prod(shape))
        noise = torch.frac(torch.sin(torch.arange(count, dtype=torch.float64) * 12.9898 + i * 78.233) * 43758.5453)
        spread = 1.0 if len(shape) < 2 or "embedding" in name else 3 * np.prod(shape[1:]) ** -0.5
        state[name] = (noise * spread).float().reshape(shape)
    return state


def write_t5(folder: Path, width: int = 48) -> Path:
    """A tiny encoder-decoder in flan-t5's layout; its tokenizer ends every text with </s>."""
    torch.manual_seed(0)
    T5ForConditionalGeneration(T5Config(d_model=width, **T5_SIZES)).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "red": 4, "rose": 5}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def words() -> Tokenizer:
    """Two words of text; puts a BOS of its own in front, as Lumina's tokenizer may."""
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "<unk>": 3, "rose": 120, "sea": 121}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def write_lumina(root: Path) -> Path:
    """Folders of target, drafter and picture tokenizer."""
    for name in ("target", "drafter"):
        shutil.copytree(DATA / f"tiny_lumina_{name}", root / name)
    words().save(str(root / "target" / "tokenizer.json"))
    (root / "vq").mkdir()
    names = NAMES["chameleon"] | {"quantize.embedding.weight": [64, 256]}
    torch.save({"state_dict": patterned(names)}, root / "vq" / "vqgan.ckpt")
    return root


def janus_sizes(sizes: JanusConfig, **changes: dict) -> ReleasedJanus:
    """transformers' configuration of a Janus of these sizes, as for the released ones; changes: of its parts, by name."""
    text = {
        "hidden_size": sizes.dim,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.heads,
        "intermediate_size": sizes.ffn,
        "vocab_size": sizes.vocab,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
        "max_position_embeddings": 512,
    }
    vision = {"projection_dim": sizes.dim, "num_image_tokens": sizes.grid**2}
    vq = {"projection_dim": sizes.dim, "image_token_embed_dim": sizes.dim, "num_embeddings": sizes.codes, "embed_dim": sizes.code_dim}
    parts = {"text_config": {"model_type": "llama", **text}, "vision_config": vision, "vq_config": vq}
    return ReleasedJanus(**{name: part | changes.get(name, {}) for name, part in parts.items()}, image_token_id=5)


def write_janus(folder: Path) -> JanusForConditionalGeneration:
    """A tiny random Janus in the released format, by transformers itself; returns the model, in which nothing is zero."""
    torch.manual_seed(0)
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64}
    vq = {"base_channels": 32, "latent_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1}
    model = JanusForConditionalGeneration(janus_sizes(JANUS, vision_config=vision, vq_config=vq)).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape) * (0.3 if parameter.ndim > 1 else 1.0)
    model.generation_config = GenerationConfig(bos_token_id=1, pad_token_id=3, guidance_scale=5.0, generation_kwargs={"boi_token_id": 4})
    model.save_pretrained(folder)
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3, "<begin_of_image>": 4, "rose": 20, "sea": 21, "User": 22, "Assistant": 23}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return model
