"""Train a LlamaGen-format target on tokens and captions. Resumable at any moment; bf16 autocast; Muon for the matrices of the blocks.

Two shortcuts for small budgets. Codes share what they learn: an embedding and a head row are a free part plus a linear map of fixed
features of the code's vector, folded into plain weights when saved. And a shallow model can be trained first and grown (`deepen`).
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..data.store import load_checkpoint
from ..models.llamagen.network import LlamaGen, LlamaGenConfig
from .loop import ALONE, Process, Training
from .muon import optimizers
from .tokens import Batch, TokenData

FOURIER = 120  # random Fourier features of a code vector beside the vector itself


@dataclass(frozen=True)
class TargetRecipe:
    """Settings of a run. Rates: `muon` for 2-D weights of the blocks, `adam` for embeddings, head and norms."""

    steps: int = 3000
    batch: int = 32
    muon: float = 0.02
    adam: float = 2e-3
    weight_decay: float = 0.02
    warmup: int = 60
    decay: float = 0.4  # share of the steps
    dropout: float = 0.0
    drop_caption: float = 0.1
    seed: int = 0
    every: int = 250  # steps between checkpoints and validations


def code_features(codebook: Tensor, seed: int = 0) -> Tensor:
    """Fixed features of each code, (V, channels + FOURIER): its unit vector, and random Fourier features of it (Rahimi and Recht, 2007)."""
    unit = F.normalize(codebook.detach().float(), dim=-1)
    generator = torch.Generator().manual_seed(seed)
    frequencies = 3.0 * torch.randn(unit.shape[1], FOURIER, generator=generator)
    phases = 2 * torch.pi * torch.rand(FOURIER, generator=generator)
    return torch.cat([unit, torch.cos(unit @ frequencies + phases) * (2 / FOURIER) ** 0.5], dim=-1)


class Trainee(nn.Module):
    """A target in training: the model and the maps through which its codes share what they learn."""

    def __init__(self, config: LlamaGenConfig, codebook: Tensor):
        super().__init__()
        self.model = LlamaGen(config)
        self.register_buffer("phi", code_features(codebook), persistent=False)
        width = self.phi.shape[1]
        self.embed_map = nn.Parameter(torch.randn(width, config.dim) * 0.5)
        self.head_map = nn.Parameter(torch.zeros(width, config.dim))
        initialise(self.model)

    def folded(self) -> dict[str, Tensor]:
        """The plain weights, in LlamaGen's names: the shared parts added to embedding and head."""
        state = dict(self.model.state_dict())
        state["tok_embeddings.weight"] = state["tok_embeddings.weight"] + self.phi @ self.embed_map.detach()
        state["output.weight"] = state["output.weight"] + self.phi @ self.head_map.detach()
        return state

    def forward(self, batch: Batch, rope: Tensor, dropout: float = 0.0) -> Tensor:
        """Cross-entropy per image token, nats, under plain causal attention. rope: the target's whole table."""
        m, length = self.model, batch.features.shape[1]
        unconditional = m.cls_embedding.uncond_embedding[-length:]
        condition = m.cls_embedding.cap_proj(torch.where(batch.dropped[:, None, None], unconditional, batch.features))
        embedding = m.tok_embeddings.weight + self.phi @ self.embed_map
        x = torch.cat([condition, F.embedding(batch.tokens[:, :-1], embedding).to(condition.dtype)], dim=1)
        rows = rope[m.config.caption_tokens - length : m.config.caption_tokens + m.config.image_tokens - 1]
        hidden = m(x, rows, None, dropout=dropout)[:, length - 1 :]
        logits = F.linear(hidden, m.output.weight + self.phi @ self.head_map)
        return F.cross_entropy(logits.float().flatten(0, 1), batch.tokens.flatten())


def initialise(model: LlamaGen) -> None:
    """Small normal weights; branches start closed, and the head starts at zero: uniform logits."""
    for name, p in model.named_parameters():
        if p.ndim == 2:
            nn.init.normal_(p, std=0.02)
        if name.endswith(("wo.weight", "w2.weight", "output.weight")):
            nn.init.zeros_(p)


def deepen(trainee: Trainee, config: LlamaGenConfig, codebook: Tensor) -> Trainee:
    """A deeper trainee that computes what the shallow one does: behind each block stand copies of it with closed branches.

    Function-preserving growth (Chen et al., "Net2Net", 2016). config.layers must be a multiple of the shallow model's depth.
    """
    repeat = config.layers // len(trainee.model.layers)
    assert repeat * len(trainee.model.layers) == config.layers, "the depth must be a multiple of the shallow model's"
    deep = Trainee(config, codebook)
    deep.load_state_dict({k: v for k, v in trainee.state_dict().items() if ".layers." not in k}, strict=False)
    blocks = []
    for block in trainee.model.layers:
        blocks.append(block)
        for _ in range(repeat - 1):
            closed = copy.deepcopy(block)
            nn.init.zeros_(closed.attention.wo.weight)
            nn.init.zeros_(closed.feed_forward.w2.weight)
            blocks.append(closed)
    deep.model.layers = nn.ModuleList(blocks)
    return deep


def _depth(names: Iterable[str], prefix: str) -> int:
    """Layers of a model, from its weights' names; 0 where none is a layer's."""
    return max((1 + int(name.removeprefix(prefix).split(".")[0]) for name in names if name.startswith(prefix)), default=0)


def grown(source: Path, config: LlamaGenConfig, codebook: Tensor) -> Trainee:
    """A shallower trainee deepened to config.layers.

    Args:
        source: checkpoint of the shallower run, or folder of a pair whose finished target is deepened.

    Raises:
        ValueError: the source is neither, or its depth does not divide config.layers.
    """
    try:
        if source.is_dir():
            layers = _depth(load_file(source / "target.safetensors"), "layers.")
            shallow = continued(source, replace(config, layers=layers), codebook)
        else:
            state = (load_checkpoint(source) or {})["trainee"]
            layers = _depth(state, "model.layers.")
            shallow = Trainee(replace(config, layers=layers), codebook)
            shallow.load_state_dict(state)
    except (OSError, SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"{source} holds no shallower target of these sizes, as a checkpoint or as a pair's folder.") from error
    if config.layers % layers:
        raise ValueError(f"--layers must be a multiple of the {layers} layers in {source.name}.")
    return deepen(shallow, config, codebook)


@torch.no_grad()
def validation_loss(trainee: Trainee, data: TokenData, rope: Tensor, pictures: int = 256, captions: bool = True) -> float:
    """Nats per token on the first `pictures` validation pictures, with their captions or with none."""
    trainee.eval()
    losses, batches = [], data.batches(16, seed=1, drop=0.0 if captions else 1.0)
    with torch.autocast(rope.device.type, torch.bfloat16):
        for _ in range(pictures // 16):
            losses.append(trainee(next(batches).to(rope.device), rope).item())
    trainee.train()
    return sum(losses) / len(losses)


def continued(folder: Path, config: LlamaGenConfig, codebook: Tensor) -> Trainee:
    """A trainee with the weights of a finished target, to train on: the shared part of its codes starts at zero.

    Raises:
        ValueError: the folder holds no target of these sizes.
    """
    trainee = Trainee(config, codebook)
    nn.init.zeros_(trainee.embed_map)
    path = folder / "target.safetensors"
    try:
        trainee.model.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path} is no target of these sizes: {str(error).splitlines()[0]}") from error
    return trainee


def train_target(
    trainee: Trainee,
    train: TokenData,
    valid: TokenData,
    recipe: TargetRecipe,
    checkpoint: Path,
    compiled: bool = True,
    process: Process = ALONE,
) -> None:
    """Train until `recipe.steps`, writing `checkpoint` on the way and continuing from it when it is there."""
    torch.set_flush_denormal(True)
    rope = trainee.to(process.device).model.rope()
    optims = optimizers(trainee, (trainee.model.layers,), recipe.muon, recipe.adam, recipe.weight_decay)
    training = Training("trainee", trainee, optims, recipe, checkpoint, process)
    start = training.restore()
    if compiled:
        trainee.compile()
    batches = train.batches(recipe.batch, seed=(recipe.seed, start, process.rank), drop=recipe.drop_caption)
    trainee.train()

    def loss_of(_: int) -> Tensor:
        with torch.autocast(rope.device.type, torch.bfloat16):
            return trainee(next(batches).to(process.device), rope, recipe.dropout)

    note = lambda: f"valid {validation_loss(trainee, valid, rope):.4f}"  # noqa: E731
    training.fit(start, loss_of, note)
