"""Weight files in every public layout, read strictly: what does not fit is named before anything runs."""

import argparse
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from .chameleon import ChameleonConfig
from .eagle import EagleConfig
from .llamagen import LlamaGenConfig

CONTAINERS = ("model", "module", "state_dict")  # top keys of LlamaGen's .pt files, in the order they are tried
HARMLESS = ("freqs_cis", "causal_mask")
INPUT_GRIDS = {"t2i": 16, "t2i2": 32}  # what LANTERN's drafter configs call the two released targets

log = logging.getLogger("coolsd")


class LoadError(ValueError):
    """Weights that cannot be used, in one line that names the cause."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or a LoadError that names it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LoadError(f"{path.name} is missing in {path.parent}.") from None
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise LoadError(f"{path.name} in {path.parent} is not valid JSON; copy it again.")
    return data


def read_tokenizer(path: Path) -> Tokenizer:
    """A text tokenizer's tokenizer.json, or a LoadError that names it."""
    read_json(path)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise LoadError(f"{path.name} in {path.parent} is no tokenizer ({error}).") from error


def read_state(path: Path) -> dict[str, Tensor]:
    """Named tensors of a safetensors, .pt or .bin file; LlamaGen's containers are opened. Pickled code is never run.

    Raises:
        LoadError: missing, truncated or unreadable file.
    """
    if not path.exists():
        raise LoadError(f"{path.name} is missing in {path.parent}.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):  # LlamaGen's checkpoints keep their options beside the weights
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise LoadError(f"{path.name} cannot be read ({type(error).__name__}); it may be cut short. Copy or download it again.") from error
    if isinstance(state, dict):
        state = next((state[key] for key in CONTAINERS if isinstance(state.get(key), dict)), state)
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise LoadError(f"{path.name} holds none of the keys {', '.join(CONTAINERS)} and is no table of tensors.")
    return state


def first_file(folder: Path, names: tuple[str, ...]) -> Path:
    """The first of these files that is there, or a LoadError that lists them."""
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise LoadError(f"{folder} holds none of {', '.join(names)}.")


def read_folder(folder: Path) -> dict[str, Tensor]:
    """Named tensors of a folder in transformers' layout: one file, or shards that an index lists.

    Raises:
        LoadError: as read_state.
    """
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists() or not index.exists():
        return read_state(first_file(folder, ("model.safetensors", "pytorch_model.bin")))
    shards = sorted(set(read_json(index).get("weight_map", {}).values()))
    return {name: tensor for shard in shards for name, tensor in read_state(folder / shard).items()}


def from_lantern(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """LANTERN's converted target names to LlamaGen's; q, k and v rows are stacked. Other states pass through."""
    if "lm_head.weight" not in state:
        return state
    names = {
        "model.embed_tokens.": "tok_embeddings.",
        "model.norm.": "norm.",
        "lm_head.": "output.",
        "model.cls_embedding.": "cls_embedding.",
    }
    parts = {
        "self_attn.o_proj.": "attention.wo.",
        "mlp.gate_proj.": "feed_forward.w1.",
        "mlp.up_proj.": "feed_forward.w3.",
        "mlp.down_proj.": "feed_forward.w2.",
        "input_layernorm.": "attention_norm.",
        "post_attention_layernorm.": "ffn_norm.",
    }
    out = {}
    for key, tensor in state.items():
        if key.endswith("self_attn.q_proj.weight"):
            base = key.removesuffix("q_proj.weight")
            parts_of_it = [f"{base}{p}_proj.weight" for p in "qkv"]
            if absent := [name for name in parts_of_it if name not in state]:
                raise LoadError(f"target: {absent[0]} is missing in the file.")
            stacked = torch.cat([state[name] for name in parts_of_it])
            out[base.removeprefix("model.").replace("self_attn.", "attention.") + "wqkv.weight"] = stacked
        elif not key.endswith(("k_proj.weight", "v_proj.weight")):
            for old, new in (names | parts).items():
                key = key.replace(old, new)
            out[key.removeprefix("model.")] = tensor
    return out


def fill(model: nn.Module, state: dict[str, Tensor], what: str) -> nn.Module:
    """Load strictly, in the dtype of the file.

    Raises:
        LoadError: a tensor is missing, unknown, or of another shape; the first difference of each kind is named.
    """
    state = {k: v for k, v in state.items() if k not in HARMLESS and ".kv_cache." not in k}
    own = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    for name, shape in own.items():
        if name in state and tuple(state[name].shape) != shape:
            raise LoadError(f"{what}: {name} is {tuple(state[name].shape)} in the file but {shape} is expected. {_hint(name)}".strip())
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or extra:
        parts = [f"{len(names)} {word} (first: {names[0]})" for names, word in ((missing, "missing"), (extra, "unknown")) if names]
        raise LoadError(f"{what}: the file has other tensors than expected: {', '.join(parts)}.")
    model.load_state_dict(state, strict=True, assign=True)
    return model


def _hint(name: str) -> str:
    if "tok_embeddings" in name or "embed_tokens" in name or name.startswith("output"):
        return "The vocabulary or the width is another model's."
    return "The width or the depth is another model's." if "layers" in name else ""


def check_pair(target: LlamaGenConfig, drafter: EagleConfig) -> None:
    """Refuse a drafter made for another target, by name of what differs."""
    for name in ("vocab", "dim", "heads", "caption_tokens", "grid"):
        ours, theirs = getattr(target, name), getattr(drafter, name)
        if ours != theirs:
            raise LoadError(f"The drafter was made for another target: {name} is {theirs}, the target's is {ours}.")


SIZES = {"dim": "hidden_size", "heads": "num_attention_heads", "ffn": "intermediate_size", "vocab": "vocab_size"}
TARGET_SIZES = SIZES | {"layers": "num_hidden_layers", "caption_dim": "caption_dim", "caption_tokens": "cls_token_num"}


def _sizes(folder: Path, data: dict[str, Any], names: dict[str, str]) -> dict[str, int]:
    """Our names of sizes and what the file's `data` says of them."""
    wrong = [theirs for theirs in names.values() if not isinstance(data.get(theirs), int) or data[theirs] < 1]
    if wrong:
        raise LoadError(f"config.json in {folder} does not give {', '.join(wrong)} as a whole number; it is not this kind of model.")
    return {ours: data[theirs] for ours, theirs in names.items()}


def _grid(folder: Path, data: dict[str, Any]) -> int:
    grid = round(_sizes(folder, data, {"tokens": "block_size"})["tokens"] ** 0.5)
    if grid**2 != data["block_size"]:
        raise LoadError(f"config.json in {folder} gives block_size {data['block_size']}, which is no square number of tokens.")
    return grid


def target_config(folder: Path, expected: LlamaGenConfig | None = None) -> LlamaGenConfig:
    """A target's sizes from LANTERN's config.json. `block_size` gives the grid, which the weights do not tell.

    Args:
        expected: of a released model: it supplies what the file leaves out, and its grid must be the file's.
    """
    data = read_json(folder / "config.json")
    if expected is not None:
        data = {theirs: getattr(expected, ours) for ours, theirs in TARGET_SIZES.items()} | {"block_size": expected.image_tokens} | data
        if data.get("rms_norm_eps", expected.norm_eps) != expected.norm_eps:
            log.warning("%s: rms_norm_eps %g is not used; the model has %g", folder, data["rms_norm_eps"], expected.norm_eps)
            data["rms_norm_eps"] = expected.norm_eps
        if _grid(folder, data) != expected.grid:
            here, there = _grid(folder, data), expected.grid
            raise LoadError(f"{folder} is a model of {here} × {here} tokens, and {there} × {there} are asked for.")
    if "block_size" not in data:
        raise LoadError(f"config.json in {folder} has no block_size, so the picture's grid is unknown. Add it: 256 or 1024 tokens.")
    return LlamaGenConfig(
        **_sizes(folder, data, TARGET_SIZES),
        grid=_grid(folder, data),
        norm_eps=data.get("rms_norm_eps", 1e-5),
        rope_base=data.get("rope_base", 10000.0),
    )


def drafter_config(folder: Path, target: LlamaGenConfig) -> EagleConfig:
    """A drafter's sizes from its config.json; what that leaves out (grid, condition) is its target's."""
    data = read_json(folder / "config.json")
    made_for = INPUT_GRIDS.get(data.get("input_type"))
    if made_for not in (None, target.grid) and target.grid in INPUT_GRIDS.values():
        raise LoadError(
            f"The drafter was made for pictures of {made_for} × {made_for} tokens, the target has {target.grid} × {target.grid}."
        )
    return EagleConfig(
        **_sizes(folder, data, SIZES),
        caption_tokens=data.get("cls_token_num", target.caption_tokens),
        grid=_grid(folder, data) if "block_size" in data else target.grid,
        norm_eps=data.get("rms_norm_eps", 1e-6),
        bias=data.get("bias", True),
    )


def chameleon_config(folder: Path, state: dict[str, Tensor], prefix: str) -> ChameleonConfig:
    """Sizes of a model in Chameleon's layout; the rows of its q and k norms are seen from the tensors, since configs do not tell.

    Args:
        prefix: of the layers' names in `state`.
    """
    data = read_json(folder / "config.json")
    if data.get("swin_norm"):
        raise LoadError(f"{folder} puts its norms behind its layers (swin_norm), as only Chameleon-30B does; that is not supported.")
    norm = state.get(f"{prefix}layers.0.self_attn.q_norm.weight")
    if norm is None:
        raise LoadError(f"{folder} has no {prefix}layers.0.self_attn.q_norm.weight; it is no model in Chameleon's layout.")
    sizes = _sizes(folder, data, SIZES | {"layers": "num_hidden_layers"})
    if norm.shape[0] not in (1, sizes["heads"]):
        raise LoadError(f"{folder}: q_norm has {norm.shape[0]} rows; 1 or {sizes['heads']} are expected.")
    return ChameleonConfig(
        **sizes, norm_rows=norm.shape[0], norm_eps=data.get("rms_norm_eps", 1e-5), rope_base=data.get("rope_theta", 10000.0)
    )
