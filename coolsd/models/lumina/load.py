"""Lumina-mGPT's pair from its files. Everything is checked before anything runs, and nothing is downloaded here."""

from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from torch import Tensor

from ..checkpoints import SIZES, LoadError, fill, only_file, read_folder, read_json, read_number, read_sizes, read_tokenizer
from ..eagle import Eagle, EagleConfig, build_drafter
from ..pair import WORDS, Build
from ..vq import check_codes, load_chameleon_vq
from .network import Chameleon, ChameleonConfig
from .session import Ids, LuminaPair, LuminaPrompt


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
    tokenizer = load_chameleon_vq(only_file(Path(vq), "*.ckpt", "*.safetensors"), grid)
    check_codes(tokenizer, ids.codes)
    text = LuminaPrompt(read_tokenizer(target / "tokenizer.json"), grid, ids)
    return LuminaPair("lumina-768", model, eagle, tokenizer, text)


def random_lumina(name: str, build: Build, layers: int | None = None) -> LuminaPair:
    """A pair of the 7B's sizes without weights of its own, for timing its passes; it makes no pictures.

    Args:
        build: makes a model from its class and sizes. layers: of the target; None: all.
    """
    config = ChameleonConfig() if layers is None else ChameleonConfig(layers=layers)
    sizes = EagleConfig(config.dim, config.heads, config.ffn, config.vocab, input_norm=True, norm_rows=1, halves=True)
    words = Tokenizer(models.WordLevel({str(i): i for i in range(WORDS)}, unk_token="0"))
    return LuminaPair(name, build(Chameleon, config), build(Eagle, sizes), None, LuminaPrompt(words, 48, Ids()))


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
    sizes = read_sizes(folder, data, SIZES | {"layers": "num_hidden_layers"})
    if norm.shape[0] not in (1, sizes["heads"]):
        raise LoadError(f"{folder}: q_norm has {norm.shape[0]} rows; 1 or {sizes['heads']} are expected.")
    norm_eps, rope_base = read_number(folder, data, "rms_norm_eps", 1e-5), read_number(folder, data, "rope_theta", 10000.0)
    return ChameleonConfig(**sizes, norm_rows=norm.shape[0], norm_eps=norm_eps, rope_base=rope_base)
