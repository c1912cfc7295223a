"""Train a picture tokenizer, transformers' JanusVQVAE with l2-normalised codes; or its decoder alone on fixed codes.

Decoder-only training leaves encoder and codebook as they are, so that stored tokens and a target trained on them stay valid. Source of
the network: LlamaGen (Sun et al., 2024); of the codebook's losses: VQ-VAE (van den Oord et al., 2017). Resumable at any moment.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from transformers import JanusVQVAE, JanusVQVAEConfig

from ..data.metrics import perplexity, psnr
from ..data.pictures import Record, Skipped, read_pictures, square
from ..models.vq import ImageTokenizer
from .adversary import PatchDiscriminator, adversarial_losses, same_crop
from .crops import Crops, batches
from .group_norm import use_fast_norm
from .loop import Process, Training
from .muon import RatedOptimizer

Perceptual = Callable[[Tensor, Tensor], Tensor]  # pictures and originals (B, 3, S, S) to a distance
COMMITMENT = 0.25  # weight of the encoder's pull towards its codes (VQ-VAE's β)
POOL = 8  # pixels; colours of such blocks are compared too, since a codebook learns them late
ADVERSARIAL_BETAS = (0.5, 0.95)  # of AdamW for both sides: a long memory of gradients lets two opponents circle
FLAT = 1e-6  # keeps the logarithm's slope finite where a picture is met exactly
VALID = 128  # pictures of the fixed validation subset


@dataclass(frozen=True)
class TokenizerRecipe:
    """Settings of a run: rate of AdamW, and the weights of the parts of the loss."""

    steps: int = 8000
    batch: int = 8
    rate: float = 5e-4
    weight_decay: float = 0.01
    warmup: int = 100
    decay: float = 0.8
    average: float = 0.998  # of the weights, over steps
    l1: float = 1.0
    l2: float = 0.5
    log_error: float = 0.0  # mean log10 of a picture's squared error: the PSNR that is reported, in -10 dB
    pooled: float = 1.0
    perceptual: float = 0.0
    adversarial: float = 0.0  # of a patch discriminator's opinion, once it is ramped in
    ramp: int = 200  # steps over which that weight rises from 0, while the discriminator learns
    discriminator_rate: float = 2e-4
    seed: int = 0
    every: int = 250  # steps between checkpoints and validations


FULL = TokenizerRecipe(perceptual=0.25)
DECODER_ONLY = TokenizerRecipe(rate=4e-4, l1=0.2, l2=0.0, log_error=1.0, pooled=0.0)


def fresh(grid: int, codes: int, channels: int, multipliers: list[int]) -> JanusVQVAE:
    """An untrained tokenizer of grid × grid codes; each level but the first halves the picture's side."""
    deepest = channels * multipliers[-1]
    if any(channels * m % 32 for m in multipliers):
        raise ValueError(f"--channels times each of --multipliers must be a multiple of 32, not {channels} × {multipliers}.")
    return JanusVQVAE(
        JanusVQVAEConfig(
            base_channels=channels,
            channel_multiplier=multipliers,
            num_res_blocks=1,
            latent_channels=deepest,
            embed_dim=8,
            num_embeddings=codes,
            num_patches=grid,
        )
    )


def running_average(decay: float) -> Callable[[list[Tensor], list[Tensor], Tensor], None]:
    """For AveragedModel: an exponential average that is short at first, so that it soon forgets the start."""

    @torch.no_grad()
    def update(averages: list[Tensor], current: list[Tensor], count: Tensor) -> None:
        share = 1 - min(decay, (1 + int(count)) / (10 + int(count)))
        for average, new in zip(averages, current, strict=True):
            average.lerp_(new, share)

    return update


class TokenizerTrainee(nn.Module):
    """A tokenizer in training, the running average of its weights, and for how many batches each code was not used.

    Args:
        decoder_only: encoder and codebook stay as they are. adversarial: a patch discriminator is trained beside it.
    """

    def __init__(self, vqvae: JanusVQVAE, average: float, decoder_only: bool, adversarial: bool = False):
        super().__init__()
        self.vqvae, self.decoder_only = vqvae.to(memory_format=torch.channels_last), decoder_only
        self.discriminator = PatchDiscriminator() if adversarial else None
        vqvae.requires_grad_(not decoder_only)
        vqvae.decoder.requires_grad_(True)
        vqvae.post_quant_conv.requires_grad_(True)
        self.average = AveragedModel(vqvae, multi_avg_fn=running_average(average))
        self.average.update_parameters(vqvae)
        self.register_buffer("unused", torch.zeros(vqvae.config.num_embeddings, dtype=torch.long))

    def forward(self, pixels: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Reconstructions of pictures (B, 3, S, S) and the codebook's loss; codes (B, n) are used where the decoder alone is trained."""
        vectors = F.normalize(self.vqvae.quantize.embedding.weight, dim=-1)
        if self.decoder_only:
            side = round(codes.shape[1] ** 0.5)
            return self._decode(vectors[codes].unflatten(1, (side, side))), torch.zeros((), device=pixels.device)
        z = F.normalize(self.vqvae.quant_conv(self.vqvae.encoder(pixels)).float().permute(0, 2, 3, 1), dim=-1)
        codes = (z.flatten(0, 2).detach() @ vectors.detach().T).argmax(-1).view(z.shape[:3])
        if self.training:
            self._note_use(codes)
        chosen = vectors[codes]
        loss = F.mse_loss(chosen, z.detach()) + COMMITMENT * F.mse_loss(z, chosen.detach())
        self.latest = z.detach().flatten(0, 2)
        return self._decode(z + (chosen - z).detach()), loss

    def _decode(self, z: Tensor) -> Tensor:
        z = self.vqvae.post_quant_conv(z.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last))
        return self.vqvae.decoder(z).float()

    def _note_use(self, codes: Tensor) -> None:
        self.unused += 1
        self.unused[codes.flatten()] = 0

    @torch.no_grad()
    def revive(self, patience: int) -> int:
        """Move codes that were unused for `patience` batches onto vectors of the last batch; returns how many."""
        dead = (self.unused >= patience).nonzero().flatten()[: len(self.latest)]
        chosen = torch.randperm(len(self.latest), device=dead.device)[: len(dead)]
        for vqvae in (self.vqvae, self.average.module):
            vqvae.quantize.embedding.weight[dead] = self.latest[chosen]
        self.unused[dead] = 0
        return len(dead)


def reconstruction_loss(pictures: Tensor, pixels: Tensor, recipe: TokenizerRecipe, perceptual: Perceptual | None) -> Tensor:
    """The weighted parts of the recipe; pictures and originals (B, 3, S, S) in [-1, 1]."""
    loss = recipe.l1 * F.l1_loss(pictures, pixels) + recipe.l2 * F.mse_loss(pictures, pixels)
    if recipe.log_error:
        loss = loss + recipe.log_error * ((pictures - pixels).square().mean((1, 2, 3)) + FLAT).log10().mean()
    if recipe.pooled:
        loss = loss + recipe.pooled * F.l1_loss(F.avg_pool2d(pictures, POOL), F.avg_pool2d(pixels, POOL))
    if perceptual:
        loss = loss + recipe.perceptual * perceptual(pictures, pixels)
    return loss


def adversarial_weight(recipe: TokenizerRecipe, step: int) -> float:
    """Weight of the discriminator's opinion at a step (from 0)."""
    return recipe.adversarial * min(1.0, step / max(1, recipe.ramp))


def tokenizer_optimizers(trainee: TokenizerTrainee, recipe: TokenizerRecipe) -> list[RatedOptimizer]:
    """AdamW for the tokenizer's trained part and, with another rate, for the discriminator where there is one."""
    learned = [p for p in trainee.vqvae.parameters() if p.requires_grad]
    if trainee.discriminator is None:
        return [(torch.optim.AdamW(learned, weight_decay=recipe.weight_decay), recipe.rate)]
    options = {"betas": ADVERSARIAL_BETAS, "weight_decay": recipe.weight_decay}
    return [
        (torch.optim.AdamW(learned, **options), recipe.rate),
        (torch.optim.AdamW(trainee.discriminator.parameters(), **options), recipe.discriminator_rate),
    ]


def validation_pictures(images: Path, rows: list[Record], side: int) -> Tensor:
    """The plain centre crops (N, 3, side, side) of the same VALID pictures of the valid split each time; N = 0 where there are none."""
    valid = [row for row in rows if row.split == "valid"]
    order = torch.randperm(len(valid), generator=torch.Generator().manual_seed(0)).tolist()
    parts = [square(picture, side) for _, picture in read_pictures(images, [valid[i] for i in order[:VALID]], {})]
    return torch.stack([torch.from_numpy(p) for p in parts]).permute(0, 3, 1, 2) if parts else torch.empty(0, 3, side, side)


@torch.no_grad()
def encoded(tokenizer: ImageTokenizer, pictures: Tensor) -> Tensor:
    """Codes (N, n) of pictures (N, 3, S, S), on the CPU."""
    parts = [tokenizer.encode(batch.to(tokenizer.codebook.device)).cpu() for batch in pictures.split(16)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def judge(tokenizer: ImageTokenizer, pictures: Tensor, codes: Tensor) -> str:
    """Mean PSNR of these pictures (N, 3, S, S) and perplexity of their codes (N, n), as a note for the progress line."""
    if not len(pictures):
        return "no valid split"
    device = tokenizer.codebook.device
    with torch.autocast(device.type, torch.bfloat16):
        decoded = torch.cat([tokenizer.decode(batch.to(device)).float().cpu() for batch in codes.split(16)])
    return f"valid {psnr(decoded, pictures).mean():.3f} dB, perplexity {perplexity(codes, len(tokenizer.codebook)):.0f}"


@dataclass(frozen=True)
class TokenizerData:
    """The pictures of a run, `grid` × `grid` codes each.

    Args:
        tokens: codes stored by `train encode` with this encoder, for decoder-only training; None: crops are encoded on the way.
        workers: processes that read pictures.
    """

    images: Path
    records: list[Record]
    grid: int
    tokens: Path | None = None
    workers: int = 0


def train_tokenizer(
    vqvae: JanusVQVAE,
    data: TokenizerData,
    recipe: TokenizerRecipe,
    checkpoint: Path,
    process: Process,
    decoder_only: bool = False,
    perceptual: Perceptual | None = None,
) -> tuple[ImageTokenizer, Skipped]:
    """Train until `recipe.steps`, writing `checkpoint` on the way and continuing from it when it is there.

    Args:
        vqvae: start weights. decoder_only: encoder and codebook stay as they are.

    Returns:
        The tokenizer with averaged weights, and the skipped pictures.
    """
    torch.set_flush_denormal(True)
    trainee = TokenizerTrainee(vqvae, recipe.average, decoder_only, recipe.adversarial > 0).to(process.device)
    fixed = ImageTokenizer(trainee.average.module, data.grid)
    optims = tokenizer_optimizers(trainee, recipe)
    training = Training("tokenizer", trainee, optims, recipe, checkpoint, process)
    start = training.restore()
    if process.device.type == "cpu":
        use_fast_norm(trainee.vqvae)
    crops = Crops(data.images, data.records, "train", data.grid * fixed.patch, recipe.seed, data.tokens if decoder_only else None)
    skipped: Skipped = {}
    stream = batches(crops, recipe.batch, start, skipped, data.workers, process.rank, process.ranks)
    valid = validation_pictures(data.images, data.records, data.grid * fixed.patch)
    codes_before = encoded(fixed, valid) if decoder_only else None
    patience = max(8, 4 * trainee.unused.numel() // (recipe.batch * data.grid**2))

    def loss_of(step: int) -> Tensor:
        trainee.average.update_parameters(trainee.vqvae)
        if not decoder_only and 0 < step < recipe.steps // 2:
            trainee.revive(patience)
            process.same(*(v.quantize.embedding.weight.data for v in (trainee.vqvae, trainee.average.module)), trainee.unused)
        pixels, codes = (t.to(process.device) for t in next(stream))
        with torch.autocast(process.device.type, torch.bfloat16):
            if decoder_only and not codes.numel():
                codes = fixed.encode(pixels)
            pictures, codebook = trainee(pixels, codes)
            loss = reconstruction_loss(pictures, pixels, recipe, perceptual) + codebook
            if trainee.discriminator is None:
                return loss
            deceive, discriminate = adversarial_losses(trainee.discriminator, *same_crop(pictures, pixels, recipe.seed + step))
            return loss + adversarial_weight(recipe, step) * deceive + discriminate

    def note() -> str:
        return judge(fixed, valid, encoded(fixed, valid) if codes_before is None else codes_before)

    training.fit(start, loss_of, note)
    return fixed, skipped
