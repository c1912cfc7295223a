"""Pictures a minute against how many are decoded at once: B pictures of different prompts and seeds in one pass, accept lengths ragged."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from ... import generate, stream
from ...models.pair import LoadedPair
from ..batching import batched, map_of
from .bench import PROMPTS, Variant


@dataclass(frozen=True)
class Throughput:
    """A method with B pictures at once: medians over the turns."""

    label: str
    batch: int
    seconds: float  # a picture: those of the batch ÷ B
    gain: float  # × the smallest B, in pictures a second

    @property
    def a_minute(self) -> float:
        """Pictures a minute."""
        return 60 / self.seconds


def _turn(pair: LoadedPair, variant: Variant, batch: int, seed: int, common: dict[str, Any]) -> float:
    """Seconds of a batch: its pictures have prompts in turn and seeds of their own."""

    def one(number: int) -> None:
        settings = common | dict(variant.settings) | {"seed": seed * batch + number}
        for _ in stream(pair, PROMPTS[number % len(PROMPTS)], variant.method, **settings):
            pass

    begun = perf_counter()
    list(map_of(pair)(one, range(batch)))
    return perf_counter() - begun


def turns(
    pair: LoadedPair, variants: Sequence[Variant], batches: Sequence[int], seeds: int, common: dict[str, Any]
) -> Iterator[tuple[Variant, int, float]]:
    """(variant, B, seconds a picture), interleaved over variants and B; a short picture goes first, uncounted.

    B = 1 is decoding as it always is, on a GPU with its recorded passes.
    """
    opened = {batch: pair if batch == 1 else batched(pair, batch) for batch in batches}
    generate(pair, PROMPTS[0], variants[0].method, **common | dict(variants[0].settings) | {"max_tokens": 8})
    for seed in range(seeds):
        for variant in variants:
            for batch in batches:
                (pair.pack if batch == 1 else pair.unpack)()
                yield variant, batch, _turn(opened[batch], variant, batch, seed, common) / batch


def summarise(results: dict[tuple[Variant, int], list[float]]) -> list[Throughput]:
    """A row a method and B; the gain is over the method's smallest B."""
    rows = []
    for (variant, batch), seconds in results.items():
        least = min(size for other, size in results if other == variant)
        base = results[variant, least]
        rows.append(Throughput(variant.label, batch, median(seconds), median(a / b for a, b in zip(base, seconds, strict=True))))
    return rows


def table(rows: Sequence[Throughput]) -> str:
    """As plain text."""
    wide = max(24, *(len(row.label) + 1 for row in rows))
    lines = [f"{'method':{wide}}{'at once':>8}{'s a picture':>13}{'a minute':>10}{'gain':>7}"]
    lines += [f"{row.label:{wide}}{row.batch:>8}{row.seconds:>13.2f}{row.a_minute:>10.1f}{row.gain:>7.2f}" for row in rows]
    return "\n".join(lines)
