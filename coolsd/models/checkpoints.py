"""Weight files in every public layout, read strictly: what does not fit is named before anything runs."""

import argparse
import json
import logging
import math
import pickle
import re
from numbers import Real
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
POINTER = b"version https://git-lfs"  # how a file of Git LFS begins that was not fetched
CODE = re.compile(r"(?:GLOBAL|class) (\S+)")  # in torch's refusal of a file that holds code
WRAPPERS = ("_orig_mod.", "module.")  # what torch.compile and DataParallel put in front of a name

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
    if path.is_file() and path.open("rb").read(len(POINTER)) == POINTER:
        raise LoadError(f"{path.name} in {path.parent} is a pointer of Git LFS, not the file. Fetch it: `git lfs pull`, or download it.")
    try:
        if path.suffix == ".safetensors":
            return _unwrapped(load_file(path))
        with torch.serialization.safe_globals([argparse.Namespace]):  # LlamaGen's checkpoints keep their options beside the weights
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
        if isinstance(error, pickle.UnpicklingError) and (code := CODE.search(str(error))):
            save = "torch.save({name: tensor for name, tensor in model.state_dict().items()}, path)"
            raise LoadError(f"{path.name} holds code beside its weights ({code[1]}), which is not run. Save them alone: {save}.") from error
        raise LoadError(f"{path.name} cannot be read ({type(error).__name__}); it may be cut short. Copy or download it again.") from error
    if isinstance(state, dict):
        state = next((state[key] for key in CONTAINERS if isinstance(state.get(key), dict)), state)
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise LoadError(f"{path.name} holds none of the keys {', '.join(CONTAINERS)} and is no table of tensors.")
    return _unwrapped(state)


def _unwrapped(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names without what wrappers of a model put in front of all of them, or in between."""
    state = {name.replace(WRAPPERS[0], ""): tensor for name, tensor in state.items()}
    wrapped = all(name.startswith(WRAPPERS[1]) for name in state)
    return {name.removeprefix(WRAPPERS[1]) if wrapped else name: tensor for name, tensor in state.items()}


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
    shards = shards_of(index)
    return {name: tensor for shard in shards for name, tensor in read_state(folder / shard).items()}


def shards_of(index: Path) -> list[str]:
    """Names of the files that an index lists.

    Raises:
        LoadError: it lists none.
    """
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
        raise LoadError(f"{index.name} in {index.parent} lists no files under weight_map; copy it again.")
    return sorted(set(listed.values()))


def fill(model: nn.Module, state: dict[str, Tensor], what: str) -> nn.Module:
    """Load strictly, in the dtype of the file.

    Raises:
        LoadError: a tensor is missing, unknown, of another shape, not of floating-point numbers, or not finite; the first is named.
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
    for name, tensor in state.items():
        check_numbers(tensor, f"{what}: {name}")
    model.load_state_dict(state, strict=True, assign=True)
    return model


def _hint(name: str) -> str:
    if "tok_embeddings" in name or "embed_tokens" in name or name.startswith("output"):
        return "The vocabulary or the width is another model's."
    return "The width or the depth is another model's." if "layers" in name else ""


def check_numbers(tensor: Tensor, what: str) -> None:
    """Refuse a tensor that is no plain weight.

    Raises:
        LoadError: not floating-point numbers, as in quantised files, or not finite ones.
    """
    if tensor.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        kind = str(tensor.dtype).removeprefix("torch.")
        raise LoadError(f"{what} is of {kind}. Weights must be float32, bfloat16 or float16; quantised files are not read.")
    # A sum is not finite where one number is not; it needs no copy. A tensor on the meta device has shapes only.
    if not tensor.is_meta and not bool(tensor.sum(dtype=torch.float64).isfinite()):
        raise LoadError(f"{what} holds numbers that are not finite. Copy the file again, or take one from before its training broke down.")


SIZES = {"dim": "hidden_size", "heads": "num_attention_heads", "ffn": "intermediate_size", "vocab": "vocab_size"}


def read_sizes(folder: Path, data: dict[str, Any], names: dict[str, str]) -> dict[str, int]:
    """Our names of sizes and what the file's `data` says of them."""
    wrong = [theirs for theirs in names.values() if type(data.get(theirs)) is not int or data[theirs] < 1]
    if wrong:
        raise LoadError(f"config.json in {folder} does not give {', '.join(wrong)} as a whole number; it is not this kind of model.")
    return {ours: data[theirs] for ours, theirs in names.items()}


def read_number(folder: Path, data: dict[str, Any], name: str, default: float) -> float:
    """A number above 0 of the config.json's `data`, where it has one.

    Raises:
        LoadError: something else stands there.
    """
    value = data.get(name, default)
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < value < math.inf:
        raise LoadError(f"config.json in {folder} gives {name} as {value!r:.40}; a number above 0 is expected.")
    return value


def read_flag(folder: Path, data: dict[str, Any], name: str, default: bool) -> bool:
    """True or false of the config.json's `data`, where it has one.

    Raises:
        LoadError: something else stands there.
    """
    value = data.get(name, default)
    if not isinstance(value, bool):
        raise LoadError(f"config.json in {folder} gives {name} as {value!r:.40}; true or false is expected.")
    return value


def only_file(path: Path, *patterns: str) -> Path:
    """The path, or the file in this folder that matches the last pattern that exactly one file matches."""
    if not path.is_dir():
        return path
    for pattern in reversed(patterns):
        if len(matches := sorted(path.glob(pattern))) == 1:
            return matches[0]
    raise LoadError(f"{path} holds no file {patterns[-1]}.")
