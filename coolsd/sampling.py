"""From logits to probability rows, and draws from them: the one way to a probability, for drafting and for verifying alike.

Knows nothing of models, rounds or schedules. A row is a law over the vocabulary, shape (..., V), float32. Every random number comes
from a generator that the caller passes.
"""

import torch
from torch import Tensor

GREEDY_BELOW = 1e-5  # a lower temperature is argmax: float32 can no longer divide by it


class NotFinite(ValueError):
    """Logits of a model are NaN or infinite. `model`: target or drafter."""

    def __init__(self, model: str):
        super().__init__(f"The {model}'s logits are not finite (NaN or infinity).")
        self.model = model


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance u + s (c - u), in float32 (Ho and Salimans, arXiv 2207.12598, in LlamaGen's parametrisation).

    Args:
        conditional, unconditional: (..., V) finite logits of any float type.
        scale: 1 returns the conditional logits.
    """
    conditional = conditional.float()
    if scale == 1:
        return conditional
    return torch.lerp(unconditional.float(), conditional, scale)


def to_probs(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Probability rows: temperature, then top-k, then top-p, then softmax.

    Args:
        logits: (..., V) of any float type; -inf is a forbidden token, and every row needs a finite entry.
        temperature: 0 gives the one-hot argmax row.
        top_k: tokens kept; those that tie with the k-th stay too (as in LlamaGen). 0 turns it off.
        top_p: mass kept; the token that crosses it stays, and those that tie with it. 1 turns it off.

    Returns:
        (..., V) float32, rows summing to 1. A row whose logits hold NaN or +inf has NaN in it, at any temperature.
    """
    logits = logits.float()
    if temperature < GREEDY_BELOW:
        highest, index = logits.max(-1, keepdim=True)
        return torch.zeros_like(logits).scatter_(-1, index, 1.0 + 0.0 * highest)
    if temperature != 1:
        # Shifting first keeps a small temperature from overflowing.
        logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    if 0 < top_k < logits.shape[-1]:
        kth = logits.topk(top_k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        logits = logits.masked_fill(logits < kth, -torch.inf)
    probs = logits.softmax(-1)
    if top_p >= 1:
        return probs
    ordered = probs.topk(min(top_k, probs.shape[-1]) or probs.shape[-1], dim=-1).values
    above = ordered.cumsum(-1) - ordered > top_p  # the mass before a token already exceeds top_p
    above[..., 0] = False
    lowest = ordered.masked_fill(above, torch.inf).amin(-1, keepdim=True)
    probs = probs.masked_fill(probs < lowest, 0.0)
    return probs / probs.sum(-1, keepdim=True)


def entropy(probs: Tensor) -> Tensor:
    """Entropy of each row in nats: (..., V) to (...), in the dtype of the rows; tokens of probability 0 add nothing."""
    return torch.special.entr(probs).sum(-1)


def uniforms(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    """Uniform float64 numbers in [0, 1), made where the generator lives, so that a CPU seed means the same on every device."""
    return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64).to(device, non_blocking=True)


def pick(probs: Tensor, uniform: Tensor) -> Tensor:
    """One token a row by inverting the cumulative sum; no host synchronisation.

    Args:
        probs: (..., V) non-negative, some entry of every row positive; rows need not sum to 1.
        uniform: (...) float64 in [0, 1), a number a row.

    Returns:
        (...) int64. A token of probability 0 is never picked.
    """
    # Zero entries are masked out of the cumulative sum: a parallel scan may round neighbouring sums apart.
    cumulative = probs.cumsum(-1, dtype=torch.float64) * (probs > 0)
    return (cumulative > uniform[..., None] * cumulative.amax(-1, keepdim=True)).to(torch.uint8).argmax(-1)


def pick_distinct(probs: Tensor, uniform: Tensor) -> Tensor:
    """Tokens drawn one after another without replacement: the siblings of a tree node, in draw order.

    Args:
        probs: (..., V) as for `pick`.
        uniform: (count, ...) float64, a number a draw and row. A row with fewer tokens to give ends in tokens of probability 0 or drawn
            before, which no verification accepts.

    Returns:
        (..., count) int64.
    """
    rest, tokens = probs, []
    for number in uniform:
        tokens.append(pick(rest, number))
        rest = rest.scatter(-1, tokens[-1][..., None], 0.0)
    return torch.stack(tokens, -1)


def draw(probs: Tensor, generator: torch.Generator) -> Tensor:
    """`pick` with numbers from a generator, on the CPU or on the device of `probs`."""
    return pick(probs, uniforms(tuple(probs.shape[:-1]), generator, probs.device))


def guided(logits: Tensor, scale: float) -> Tensor:
    """Guided logits (T, V) float32 from (B, T, V): cast before mixing, since guidance magnifies rounding."""
    return logits[0].float() if logits.shape[0] == 1 else guide(logits[0], logits[1], scale)
