"""Image tokens to pixels and back: transformers' JanusVQVAE, which is LlamaGen's VQ-16 network.

Source: LlamaGen (Sun et al., 2024). Its codes are l2-normalised before the look-up, in both directions; transformers' own `encode`
does not do that, so encoding is done here. Chameleon's codes are used as they are.
"""

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from transformers import JanusVQVAE


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


def to_uint8(pixels: np.ndarray, rounding: float = 0.5) -> np.ndarray:
    """[-1, 1] to 0…255; 0.5 rounds to nearest (LlamaGen's save rule), 0 truncates (Chameleon's)."""
    return ((pixels + 1) * 127.5 + rounding).clip(0, 255).astype(np.uint8)
