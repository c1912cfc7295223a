"""From checkpoints to the files that are loaded: safetensors in the original names, with their config.json."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import JanusVQVAE

from ..data.store import replacing
from ..models.checksums import refresh
from ..models.eagle import EagleConfig
from ..models.llamagen.network import LlamaGenConfig


def _write(path: Path, state: dict[str, Tensor], dtype: torch.dtype, config: dict[str, object]) -> None:
    with replacing(path) as part:
        save_file({name: tensor.to(dtype).cpu().contiguous() for name, tensor in state.items()}, part)
    (path.parent / "config.json").write_text(json.dumps(config, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    refresh(path.parent)


def export_target(state: dict[str, Tensor], config: LlamaGenConfig, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write target.safetensors in LlamaGen's names and a config.json in LANTERN's fields."""
    fields = {
        "model_type": "llama",
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "caption_dim": config.caption_dim,
        "cls_token_num": config.caption_tokens,
        "block_size": config.image_tokens,
        "rms_norm_eps": config.norm_eps,
        "rope_base": config.rope_base,
        "input_type": "t2i",
    }
    _write(folder / "target.safetensors", state, dtype, fields)


def export_drafter(state: dict[str, Tensor], config: EagleConfig, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write model.safetensors and config.json in LANTERN's drafter layout; without grid and condition for families in Llama's layout."""
    fields = {
        "model_type": "chameleon" if config.norm_rows else "llama",
        "hidden_size": config.dim,
        "num_hidden_layers": 1,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "rms_norm_eps": config.norm_eps,
        "bias": config.bias,
    }
    if not config.halves:
        fields |= {"cls_token_num": config.caption_tokens, "block_size": config.grid**2, "input_type": "t2i"}
    _write(folder / "model.safetensors", state, dtype, fields)


def export_vq(vqvae: JanusVQVAE, folder: Path) -> None:
    """Write a picture tokenizer as transformers does: config.json and model.safetensors, float32."""
    state = {name: tensor.float().cpu().contiguous() for name, tensor in vqvae.state_dict().items()}
    with replacing(folder / "model.safetensors") as part:
        save_file(state, part, metadata={"format": "pt"})
    vqvae.config.save_pretrained(folder)
    refresh(folder)
