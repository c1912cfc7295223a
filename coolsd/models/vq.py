"""Image tokens to pixels and back: transformers' JanusVQVAE, which is LlamaGen's VQ-16 network, from public files.

Source: LlamaGen (Sun et al., 2024). Its codes are l2-normalised before the look-up, in both directions; transformers' own `encode`
does not do that, so encoding is done here. Chameleon's codes are used as they are; its VQGAN is the same network without attention in
its levels.

Neither public file carries a configuration: what the shapes tell is read from them, the rest is the published architecture. Tensors keep
the originals' order in memory: convolutions in channels_last add up in another one, which puts pixels up to 2e-5 off, for a sixth less
time.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import JanusVQVAE, JanusVQVAEConfig

from .checkpoints import LoadError, fill, read_json, read_state

LEVELS = [1, 1, 2, 2, 4]  # channel multipliers of both networks; stride 16
MIDDLE = {"0": "block_1", "1": "attn_1", "2": "block_2"}
UNUSED = ("loss.", "quantize.codebook_used")


class ImageTokenizer:
    """A VQ tokenizer for pictures of `grid` × `grid` tokens, each `patch` pixels wide (8 for meadow, 16 for LlamaGen).

    Args:
        normalise: whether code vectors count by direction alone. rounding: added before a pixel is cut to an integer.
    """

    def __init__(self, vqvae: JanusVQVAE, grid: int, normalise: bool = True, rounding: float = 0.5):
        self.vqvae = vqvae.eval().requires_grad_(False)
        self.normalise, self.rounding = normalise, rounding
        self.grid, self.patch = grid, 2 ** (len(vqvae.config.channel_multiplier) - 1)

    @property
    def codebook(self) -> Tensor:
        """Raw code vectors (V, channels), as trained."""
        return self.vqvae.quantize.embedding.weight

    def _vectors(self) -> Tensor:
        return F.normalize(self.codebook, dim=-1) if self.normalise else self.codebook

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) in [-1, 1] to codes (B, H/patch · W/patch), row-major, int64."""
        z = self.vqvae.quant_conv(self.vqvae.encoder(pixels)).permute(0, 2, 3, 1).flatten(1, 2)
        vectors = self._vectors()
        return (z @ vectors.T - vectors.square().sum(-1) / 2).argmax(-1)  # the nearest vector: |z|² is the same for all

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes (B, rows · grid), whole rows from the top, to pictures (B, 3, rows · patch, grid · patch) in [-1, 1]."""
        z = self._vectors()[codes].unflatten(1, (-1, self.grid)).permute(0, 3, 1, 2)
        return self.vqvae.decoder(self.vqvae.post_quant_conv(z.contiguous())).clamp(-1, 1)

    def picture(self, codes: list[int]) -> Image.Image:
        """The picture of a whole or partial token sequence; cells without a token yet are left transparent.

        The decoder sees whole rows, so a started row is completed with the code to the left for decoding and then masked.
        """
        rows = -(-len(codes) // self.grid)
        if rows == 0:
            return Image.new("RGBA", (self.grid * self.patch,) * 2)
        filled = codes + [codes[-1]] * (rows * self.grid - len(codes))
        device = self.codebook.device
        rgb = self.decode(torch.tensor([filled], device=device))[0].permute(1, 2, 0).float().cpu().numpy()
        side = self.grid * self.patch
        canvas = np.zeros((side, side, 4), np.uint8)
        canvas[: rows * self.patch, :, :3] = to_uint8(rgb, self.rounding)
        done = np.arange(self.grid * self.grid).reshape(self.grid, self.grid) < len(codes)
        canvas[..., 3] = np.kron(done, np.full((self.patch, self.patch), 255, np.uint8))
        image = Image.fromarray(canvas, "RGBA")
        return image.convert("RGB") if done.all() else image

    def pictures(self, batch: list[list[int]]) -> list[Image.Image]:
        """Pictures of whole token sequences of one length, in one pass of the decoder."""
        rgb = self.decode(torch.tensor(batch, device=self.codebook.device)).permute(0, 2, 3, 1).float().cpu().numpy()
        return [Image.fromarray(to_uint8(pixels, self.rounding), "RGB") for pixels in rgb]


def to_uint8(pixels: np.ndarray, rounding: float = 0.5) -> np.ndarray:
    """[-1, 1] to 0…255; 0.5 rounds to nearest (LlamaGen's save rule), 0 truncates (Chameleon's)."""
    return ((pixels + 1) * 127.5 + rounding).clip(0, 255).astype(np.uint8)


# ---- files


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


def empty_network(state: dict[str, Tensor]) -> JanusVQVAE:
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
    vqvae = fill(empty_network(state), state, "picture tokenizer")
    return ImageTokenizer(vqvae.float(), grid)


def load_chameleon_vq(path: Path, grid: int) -> ImageTokenizer:
    """Chameleon's VQGAN: Meta's `vqgan.ckpt`, or a safetensors file of the same tensors; float32. Meta's licence.

    Codes are looked up as they are, and pixels truncated, as in Chameleon's own code.

    Raises:
        LoadError: the file is missing, cut short or another network's.
    """
    state = from_chameleon(_tensors(path, "model.vqmodel."))
    vqvae = empty_network(state)
    for level in (*vqvae.encoder.down, *vqvae.decoder.up):
        level.attn = nn.ModuleList()
    vqvae = fill(vqvae, state, "picture tokenizer")
    return ImageTokenizer(vqvae.float(), grid, normalise=False, rounding=0.0)


def janus_vq(config: JanusVQVAEConfig, state: dict[str, Tensor], grid: int) -> ImageTokenizer:
    """A JanusVQVAE from its tensors, for pictures of `grid` × `grid` codes; float32. Pixels are truncated, as transformers does.

    Raises:
        LoadError: the tensors are not those of this configuration.
    """
    with torch.device("meta"):
        vqvae = JanusVQVAE(config)
    return ImageTokenizer(fill(vqvae, state, "picture tokenizer").float(), grid, rounding=0.0)


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


def check_codes(tokenizer: ImageTokenizer, codes: int) -> None:
    """Refuse a picture tokenizer with another number of codes than its target's."""
    if len(tokenizer.codebook) != codes:
        raise LoadError(f"picture tokenizer: it has {len(tokenizer.codebook)} codes, the target was made for {codes}.")
