"""From files to pairs, one function a family. Everything is checked before anything runs, and nothing is downloaded here."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import JanusVQVAE

from .chameleon import Chameleon
from .eagle import Eagle, EagleConfig
from .llamagen import LlamaGen, LlamaGenConfig
from .lumina import Ids, LuminaPair, LuminaPrompt
from .pair import LlamaGenPair
from .t5 import load_t5
from .text import TextTable
from .tokenizer import ImageTokenizer
from .vq import load_chameleon_vq, load_llamagen_vq
from .weights import (
    LoadError,
    chameleon_config,
    check_pair,
    drafter_config,
    fill,
    first_file,
    from_lantern,
    read_folder,
    read_json,
    read_state,
    read_tokenizer,
    target_config,
)

ASSETS = Path(__file__).resolve().parents[2] / "assets"
FILE_GRIDS = {"256": 16, "stage1": 16, "512": 32, "stage2": 32}  # what the names of LlamaGen's files say, and their contents do not


def build_drafter(config: EagleConfig, state: dict[str, Tensor]) -> Eagle:
    """A drafter of these sizes with these tensors."""
    with torch.device("meta"):
        drafter = Eagle(config)
    return fill(drafter, state, "drafter")


def load_drafter(folder: Path, target: LlamaGenConfig) -> Eagle:
    """LANTERN's folder of a drafter made for this target.

    Raises:
        LoadError: missing or broken files, or a drafter of another target.
    """
    sizes = drafter_config(folder, target)
    check_pair(target, sizes)
    return build_drafter(sizes, read_folder(folder))


def load_vq(folder: Path, grid: int) -> ImageTokenizer:
    """A JanusVQVAE folder: config.json and model.safetensors."""
    sizes, state = read_json(folder / "config.json"), read_state(folder / "model.safetensors")
    try:
        with torch.device("meta"):
            vqvae = JanusVQVAE(JanusVQVAE.config_class.from_dict(sizes))
    except Exception as error:  # the library checks values and their types, each with errors of its own
        raise LoadError(f"picture tokenizer: config.json in {folder} describes no JanusVQVAE ({str(error).splitlines()[0]}).") from error
    fill(vqvae, state, "picture tokenizer")
    return ImageTokenizer(vqvae.float().to(memory_format=torch.channels_last), grid)


def load_meadow(folder: Path | None = None) -> LlamaGenPair:
    """The embedded pair, or one in the same layout: config.json, target, drafter/, vq/, text table and tokenizer."""
    folder = ASSETS / "meadow" if folder is None else Path(folder)
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
        path = _only_file(path, "*.pt", f"t2i_XL_stage*_{16 * expected.grid}.pt")
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


def _only_file(path: Path, *patterns: str) -> Path:
    """The path, or the file in this folder that matches the last pattern that exactly one file matches."""
    if not path.is_dir():
        return path
    for pattern in reversed(patterns):
        if len(found := sorted(path.glob(pattern))) == 1:
            return found[0]
    raise LoadError(f"{path} holds no file {patterns[-1]}.")


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
    tokenizer = load_llamagen_vq(_only_file(Path(vq), "*.pt", "vq*.pt"), config.grid)
    _check_codes(tokenizer, config.vocab)
    return LlamaGenPair(name, model, eagle, tokenizer, load_t5(Path(text), config.caption_tokens, config.caption_dim, device))


def _check_codes(tokenizer: ImageTokenizer, codes: int) -> None:
    if len(tokenizer.codebook) != codes:
        raise LoadError(f"picture tokenizer: it has {len(tokenizer.codebook)} codes, the target was made for {codes}.")


# ---- Lumina-mGPT


def load_lumina(
    target: Path, vq: Path, drafter: Path | str = "none", device: str = "cpu", grid: int = 48, ids: Ids | None = None
) -> LuminaPair:
    """Lumina-mGPT from its folder in transformers' layout.

    Args:
        vq: Chameleon's VQGAN, a file or the folder that holds it. drafter: LANTERN's folder, or "none".
        device: not used; nothing but target and drafter works on it.
        grid: picture side in codes. ids: of the format.
    """
    target, ids = Path(target), ids or Ids()
    state = read_folder(target)
    config = chameleon_config(target, state, "model.")
    with torch.device("meta"):
        model = Chameleon(config)
    fill(model, {k: v for k, v in state.items() if not k.startswith("model.vqmodel.")}, "target")
    eagle = None
    if drafter != "none":
        tensors = read_folder(Path(drafter))
        sizes = chameleon_config(Path(drafter), tensors, "")
        for name in ("vocab", "dim", "heads"):
            if getattr(sizes, name) != getattr(config, name):
                raise LoadError(f"The drafter was made for another target: {name} is {getattr(sizes, name)}, not {getattr(config, name)}.")
        shape = EagleConfig(dim=sizes.dim, heads=sizes.heads, ffn=sizes.ffn, vocab=sizes.vocab, norm_eps=sizes.norm_eps)
        shape = replace(shape, bias="fc.bias" in tensors, input_norm=True, norm_rows=sizes.norm_rows, halves=True)
        eagle = build_drafter(shape, tensors)
    tokenizer = load_chameleon_vq(_only_file(Path(vq), "*.ckpt", "*.safetensors"), grid)
    _check_codes(tokenizer, ids.codes)
    text = LuminaPrompt(read_tokenizer(target / "tokenizer.json"), grid, ids)
    return LuminaPair("lumina-768", model, eagle, tokenizer, text)
