"""Public picture-tokenizer files as transformers' JanusVQVAE: LlamaGen's VQ-16 and Chameleon's VQGAN, which is the same network without
attention in its levels.

Neither file carries a configuration: what the shapes tell is read from them, the rest is the published architecture. Tensors keep the
originals' order in memory: convolutions in channels_last add up in another one, which puts pixels up to 2e-5 off, for a sixth less time.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import JanusVQVAE, JanusVQVAEConfig

from .tokenizer import ImageTokenizer
from .weights import LoadError, fill, read_state

LEVELS = [1, 1, 2, 2, 4]  # channel multipliers of both networks; stride 16
MIDDLE = {"0": "block_1", "1": "attn_1", "2": "block_2"}
UNUSED = ("loss.", "quantize.codebook_used")


def from_llamagen(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """LlamaGen's names to JanusVQVAE's; the order of the levels is the same."""
    out = {}
    for name, tensor in state.items():
        head, _, rest = name.partition(".")
        if rest.startswith("conv_blocks."):
            rest = rest.replace("conv_blocks.", {"encoder": "down.", "decoder": "up."}[head], 1).replace(".res.", ".block.", 1)
        elif rest.startswith("mid."):
            _, index, rest = rest.split(".", 2)
            if index not in MIDDLE:
                raise LoadError(f"picture tokenizer: {name} is no name of LlamaGen's VQ-16; the file is another network's.")
            rest = f"mid.{MIDDLE[index]}.{rest}"
        out[f"{head}.{rest}"] = tensor
    return out


def from_chameleon(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Chameleon's names to JanusVQVAE's: taming-transformers counts the decoder's levels from the highest resolution, Janus from the
    lowest. Which one a file uses is seen from the channels of its level 0.
    """
    first, deep = (state.get(f"decoder.{name}.weight") for name in ("up.0.block.0.conv1", "conv_in"))
    if first is None or deep is None:
        raise LoadError("picture tokenizer: the file has no decoder (decoder.up.0 and decoder.conv_in are missing).")
    taming = first.shape[1] != deep.shape[0]
    out = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if taming and name.startswith("decoder.up.") and parts[2].isdigit():
            parts[2] = str(len(LEVELS) - 1 - int(parts[2]))
        out[".".join(parts)] = tensor
    return out


def _network(state: dict[str, Tensor]) -> JanusVQVAE:
    """The empty network for these tensors, on the meta device."""
    try:
        channels, codes = state["encoder.conv_in.weight"].shape[0], state["quantize.embedding.weight"].shape
        latent = state["post_quant_conv.weight"].shape[0]
    except KeyError as error:
        raise LoadError(f"picture tokenizer: {error.args[0]} is missing in the file.") from None
    config = JanusVQVAEConfig(
        base_channels=channels,
        channel_multiplier=LEVELS,
        num_res_blocks=2,
        latent_channels=latent,
        num_embeddings=codes[0],
        embed_dim=codes[1],
    )
    with torch.device("meta"):
        return JanusVQVAE(config)


def _tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    state = {k.removeprefix(prefix): v for k, v in read_state(path).items()}
    return {k: v for k, v in state.items() if not k.startswith(UNUSED)}


def load_llamagen_vq(path: Path, grid: int) -> ImageTokenizer:
    """LlamaGen's `vq_ds16_t2i.pt`, for pictures of `grid` × `grid` codes; float32.

    Raises:
        LoadError: the file is missing, cut short or another network's.
    """
    state = from_llamagen(_tensors(path))
    vqvae = fill(_network(state), state, "picture tokenizer")
    return ImageTokenizer(vqvae.float(), grid)


def load_chameleon_vq(path: Path, grid: int) -> ImageTokenizer:
    """Chameleon's VQGAN: Meta's `vqgan.ckpt`, or a safetensors file of the same tensors; float32. Meta's licence.

    Codes are looked up as they are, and pixels truncated, as in Chameleon's own code.

    Raises:
        LoadError: the file is missing, cut short or another network's.
    """
    state = from_chameleon(_tensors(path, "model.vqmodel."))
    vqvae = _network(state)
    for level in (*vqvae.encoder.down, *vqvae.decoder.up):
        level.attn = nn.ModuleList()
    vqvae = fill(vqvae, state, "picture tokenizer")
    return ImageTokenizer(vqvae.float(), grid, normalise=False, rounding=0.0)
