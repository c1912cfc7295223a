"""Pictures that a target paints itself, as sequences for its drafter: plain AR sampling, many prompts at once, kept on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .. import generate
from ..data.store import Progress, load_checkpoint, save_checkpoint
from ..models.cache import KVCache
from ..models.layers import eager_rope, prefix_mask
from ..models.llamagen.session import LlamaGenPair
from ..models.pair import LoadedPair
from ..sampling import draw, guide, to_probs

Example = tuple[str, Tensor]  # a prompt and the tokens (n,) of its picture
BATCH = 16  # pictures at once


@dataclass(frozen=True)
class Sampling:
    """How the target is sampled."""

    scale: float
    temperature: float = 1.0
    top_k: int = 0


@torch.inference_mode()
def sample(pair: LlamaGenPair, prompts: Sequence[str], sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Tokens (B, n) of a picture for each prompt, drawn as decoding draws them: the same law, many prompts a pass."""
    model, config, count = pair.target_model, pair.target_model.config, len(prompts)
    weight, conditions, guided = model.output.weight, config.caption_tokens, sampling.scale != 1
    texts = [pair.text(prompt) for prompt in prompts]
    features = torch.stack([text.features for text in texts]).to(weight)
    valid = torch.stack([text.valid for text in texts]).to(weight.device)
    if guided:  # the unconditional half hides the same positions
        features = torch.cat([features, model.cls_embedding.uncond_embedding.to(weight).expand(count, -1, -1)])
        valid = valid.repeat(2, 1)
    rope = eager_rope(model.rope())
    cache = KVCache(config.layers, len(valid), config.heads, conditions + config.image_tokens, config.head_dim, weight)
    visible = torch.cat([valid, valid.new_ones(len(valid), config.image_tokens)], dim=1)[:, None, None]
    hidden = model(model.cls_embedding.cap_proj(features), rope[:conditions], prefix_mask(valid, conditions)[:, None], cache)
    cache.keep(list(range(conditions)))
    tokens: list[Tensor] = []
    for place in range(conditions, conditions + config.image_tokens):
        logits = model.output(hidden[:, -1])
        rows = guide(*logits.chunk(2), sampling.scale) if guided else logits
        tokens.append(draw(to_probs(rows, sampling.temperature, sampling.top_k), generator))
        x = model.tok_embeddings(tokens[-1])[:, None].repeat(len(valid) // count, 1, 1)
        hidden = model(x, rope[place : place + 1], visible[..., : place + 1], cache)
        cache.keep([0])
    return torch.stack(tokens, dim=1).cpu()


def _one_by_one(pair: LoadedPair, prompts: Sequence[str], sampling: Sampling, seed: int) -> Tensor:
    common = {"cfg_scale": sampling.scale, "temperature": sampling.temperature, "top_k": sampling.top_k}
    return torch.tensor([generate(pair, prompt, "ar", seed=seed + i, **common).tokens for i, prompt in enumerate(prompts)])


def _fingerprint(pair: LoadedPair, sampling: Sampling) -> str:
    """Changes when the target was trained on or is sampled otherwise: stored samples are then of no use."""
    size = sum(p.double().abs().sum().item() for p in pair.target_model.parameters())
    return f"{size:.9e} {sampling}"


def own_samples(pair: LoadedPair, prompts: Sequence[str], count: int, sampling: Sampling, seed: int, path: Path) -> list[Example]:
    """`count` pictures of these prompts in turn; `path` holds those that are done, and is gone on with when it is there.

    Batched for LlamaGen's family, one by one for others.
    """
    made_by = _fingerprint(pair, sampling)
    state = load_checkpoint(path)
    if state is None or state["made_by"] != made_by:
        state = {"made_by": made_by, "prompts": [], "tokens": []}
    progress = Progress("samples", count, every=BATCH, start=len(state["tokens"]))
    while (done := len(state["tokens"])) < count:
        chosen = [prompts[i % len(prompts)] for i in range(done, min(done + BATCH, count))]
        if isinstance(pair, LlamaGenPair):
            tokens = sample(pair, chosen, sampling, torch.Generator().manual_seed(seed + done))
        else:
            tokens = _one_by_one(pair, chosen, sampling, seed + done)
        state["prompts"] += chosen
        state["tokens"] += tokens.unbind()
        save_checkpoint(path, **state)
        progress.update(len(state["tokens"]) - 1)
    return list(zip(state["prompts"], state["tokens"], strict=True))[:count]


def accept_lengths(pair: LoadedPair, prompts: Sequence[str], sampling: Sampling) -> dict[str, float]:
    """Tokens a target call of Eagle-1 and of COOL-SD at δ = 2, draft length 5, over these prompts."""
    common = {"cfg_scale": sampling.scale, "temperature": sampling.temperature, "top_k": sampling.top_k, "draft_length": 5}
    found = {}
    for label, method in (("Eagle-1", "eagle1"), ("COOL-SD δ=2", "coolsd")):
        stats = [generate(pair, prompt, method, **common).stats for prompt in prompts]
        found[label] = sum(s.accept_length for s in stats) / len(stats)
    return found
