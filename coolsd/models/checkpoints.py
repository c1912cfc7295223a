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

ASSETS = Path(__file__).resolve().parents[2] / "assets"

CONTAINERS = ("model", "module", "state_dict")  # top keys of LlamaGen's .pt files, in the order they are tried
HARMLESS = ("freqs_cis", "causal_mask")

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


SIZES = {"dim": "hidden_size", "heads": "num_attention_heads", "ffn": "intermediate_size", "vocab": "vocab_size"}


def read_sizes(folder: Path, data: dict[str, Any], names: dict[str, str]) -> dict[str, int]:
    """Our names of sizes and what the file's `data` says of them."""
    wrong = [theirs for theirs in names.values() if not isinstance(data.get(theirs), int) or data[theirs] < 1]
    if wrong:
        raise LoadError(f"config.json in {folder} does not give {', '.join(wrong)} as a whole number; it is not this kind of model.")
    return {ours: data[theirs] for ours, theirs in names.items()}


def only_file(path: Path, *patterns: str) -> Path:
    """The path, or the file in this folder that matches the last pattern that exactly one file matches."""
    if not path.is_dir():
        return path
    for pattern in reversed(patterns):
        if len(matches := sorted(path.glob(pattern))) == 1:
            return matches[0]
    raise LoadError(f"{path} holds no file {patterns[-1]}.")
