"""LlamaGen-format pairs from their files: the embedded one and the released ones, with LANTERN's drafters.

Everything is checked before anything runs, and nothing is downloaded here.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checksums
from ..checkpoints import (
    ASSETS,
    SIZES,
    LoadError,
    fill,
    first_file,
    log,
    only_file,
    read_flag,
    read_folder,
    read_json,
    read_number,
    read_sizes,
    read_state,
)
from ..eagle import Eagle, EagleConfig, build_drafter
from ..pair import WORDS, Build
from ..vq import check_codes, load_llamagen_vq, load_vq
from .network import Conditioning, LlamaGen, LlamaGenConfig
from .session import LlamaGenPair
from .t5 import load_t5
from .text_table import TextTable

INPUT_GRIDS = {"t2i": 16, "t2i2": 32}  # what LANTERN's drafter configs call the two released targets
TARGET_SIZES = SIZES | {"layers": "num_hidden_layers", "caption_dim": "caption_dim", "caption_tokens": "cls_token_num"}

FILE_GRIDS = {"256": 16, "stage1": 16, "512": 32, "stage2": 32}  # what the names of LlamaGen's files say, and their contents do not


def load_drafter(folder: Path, target: LlamaGenConfig) -> Eagle:
    """LANTERN's folder of a drafter made for this target.

    Raises:
        LoadError: missing or broken files, or a drafter of another target.
    """
    sizes = drafter_config(folder, target)
    check_pair(target, sizes)
    return build_drafter(sizes, read_folder(folder))


def load_meadow(folder: Path | None = None) -> LlamaGenPair:
    """The embedded pair, or one in the same layout: config.json, target, drafter/, vq/, text table and tokenizer."""
    folder = ASSETS / "meadow" if folder is None else Path(folder)
    checksums.check(folder)
    config = target_config(folder)
    with torch.device("meta"):
        target = LlamaGen(config)
    fill(target, read_state(folder / "target.safetensors"), "target")
    drafter = load_drafter(folder / "drafter", config) if (folder / "drafter").exists() else None
    for name in ("text_table.safetensors", "text_tokenizer.json"):
        first_file(folder, (name,))
    text = TextTable.load(folder, config.caption_tokens)
    if text.table.shape[1] != config.caption_dim:
        raise LoadError(f"The text table is {text.table.shape[1]} wide, but the target was made for {config.caption_dim}.")
    return LlamaGenPair(folder.resolve().name, target, drafter, load_vq(folder / "vq", config.grid), text)


# ---- LlamaGen-XL


def llamagen_target(path: Path, expected: LlamaGenConfig) -> LlamaGen:
    """LlamaGen's own file (or the folder that holds it), or LANTERN's converted folder.

    Raises:
        LoadError: missing or broken files, another model, or a file whose name says that its pictures have another grid.
    """
    config = expected
    if path.is_dir() and (path / "config.json").exists():
        config = target_config(path, expected)
        state = from_lantern(read_folder(path))
    else:
        path = only_file(path, "*.pt", f"t2i_XL_stage*_{16 * expected.grid}.pt")
        grids = {grid for hint, grid in FILE_GRIDS.items() if hint in path.stem}
        if expected.grid in FILE_GRIDS.values() and grids - {expected.grid}:
            other = (grids - {expected.grid}).pop()
            raise LoadError(
                f"{path.name} is the model for {16 * other} px ({other} × {other} tokens), and {16 * expected.grid} px are asked for."
            )
        state = read_state(path)
    with torch.device("meta"):
        target = LlamaGen(config)
    return fill(target, state, "target")


def load_llamagen(
    name: str, expected: LlamaGenConfig, target: Path, vq: Path, text: Path, drafter: Path | str = "none", device: str = "cpu"
) -> LlamaGenPair:
    """LlamaGen's text-to-image model, with LANTERN's drafter.

    Args:
        expected: sizes and grid of the released model.
        target: see llamagen_target. vq: vq_ds16_t2i.pt, or the folder that holds it. text: flan-t5's folder.
        drafter: LANTERN's folder, or "none".
        device: where the text encoder works.
    """
    model = llamagen_target(Path(target), expected)
    config = model.config
    eagle = None if drafter == "none" else load_drafter(Path(drafter), config)
    tokenizer = load_llamagen_vq(only_file(Path(vq), "*.pt", "vq*.pt"), config.grid)
    check_codes(tokenizer, config.vocab)
    return LlamaGenPair(name, model, eagle, tokenizer, load_t5(Path(text), config.caption_tokens, config.caption_dim, device))


# ---- Lumina-mGPT


def random_llamagen(name: str, config: LlamaGenConfig, build: Build, layers: int | None = None) -> LlamaGenPair:
    """A pair of these sizes without weights of its own, for timing its passes; it makes no pictures.

    Args:
        build: makes a model from its class and sizes. layers: of the target; None: all.
    """
    config = config if layers is None else replace(config, layers=layers)
    valid = torch.arange(config.caption_tokens) >= config.caption_tokens - WORDS
    condition = Conditioning(torch.randn(config.caption_tokens, config.caption_dim) * valid[:, None], valid)
    c = config
    drafter = build(Eagle, EagleConfig(c.dim, c.heads, c.ffn, c.vocab, c.caption_tokens, c.grid))
    return LlamaGenPair(name, build(LlamaGen, config), drafter, None, lambda _: condition)


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


def check_pair(target: LlamaGenConfig, drafter: EagleConfig) -> None:
    """Refuse a drafter made for another target, by name of what differs."""
    for name in ("vocab", "dim", "heads", "caption_tokens", "grid"):
        ours, theirs = getattr(target, name), getattr(drafter, name)
        if ours != theirs:
            raise LoadError(f"The drafter was made for another target: {name} is {theirs}, the target's is {ours}.")


def _grid(folder: Path, data: dict[str, Any]) -> int:
    grid = round(read_sizes(folder, data, {"tokens": "block_size"})["tokens"] ** 0.5)
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
        if (eps := read_number(folder, data, "rms_norm_eps", expected.norm_eps)) != expected.norm_eps:
            log.warning("%s: rms_norm_eps %g is not used; the model has %g", folder, eps, expected.norm_eps)
            data["rms_norm_eps"] = expected.norm_eps
        if _grid(folder, data) != expected.grid:
            here, there = _grid(folder, data), expected.grid
            raise LoadError(f"{folder} is a model of {here} × {here} tokens, and {there} × {there} are asked for.")
    if "block_size" not in data:
        raise LoadError(f"config.json in {folder} has no block_size, so the picture's grid is unknown. Add it: 256 or 1024 tokens.")
    return LlamaGenConfig(
        **read_sizes(folder, data, TARGET_SIZES),
        grid=_grid(folder, data),
        norm_eps=read_number(folder, data, "rms_norm_eps", 1e-5),
        rope_base=read_number(folder, data, "rope_base", 10000.0),
    )


def drafter_config(folder: Path, target: LlamaGenConfig) -> EagleConfig:
    """A drafter's sizes from its config.json; what that leaves out (grid, condition) is its target's."""
    data = read_json(folder / "config.json")
    made_for = INPUT_GRIDS.get(str(data.get("input_type")))
    if made_for not in (None, target.grid) and target.grid in INPUT_GRIDS.values():
        raise LoadError(
            f"The drafter was made for pictures of {made_for} × {made_for} tokens, the target has {target.grid} × {target.grid}."
        )
    data = {"cls_token_num": target.caption_tokens} | data
    return EagleConfig(
        **read_sizes(folder, data, SIZES | {"caption_tokens": "cls_token_num"}),
        grid=_grid(folder, data) if "block_size" in data else target.grid,
        norm_eps=read_number(folder, data, "rms_norm_eps", 1e-6),
        bias=read_flag(folder, data, "bias", True),
    )
