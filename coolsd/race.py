"""Several decodes on one clock, and how much faster one of them is than another.

The next round is always that of the lane whose own clock is furthest behind. No two rounds overlap, so no lane slows another; a slow moment
of the machine hits all lanes alike; and the pictures fill at their true relative speed. Knows nothing of models: a lane is a generator of
rounds. Derived here, not in the paper.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from .trace import Round

Stream = Generator[Round, None, None]
DRAWS, BLOCK = 400, 4  # of the bootstrap, and rounds drawn together
BUSY = 1.15  # highest ÷ lowest end of an interval from which on the machine was too busy for the ratio to be quoted alone


def interleave(streams: Sequence[Stream]) -> Iterator[tuple[int, Round | None]]:
    """(lane, round) in the order of the lanes' own clocks, which add up the seconds of their rounds; (lane, None) when a lane has ended.

    Of lanes with equal clocks the first goes on. Closing the iterator closes all streams.
    """
    clocks = dict.fromkeys(range(len(streams)), 0.0)
    with ExitStack() as lanes:
        for stream in streams:
            lanes.enter_context(closing(stream))
        while clocks:
            lane = min(clocks, key=clocks.__getitem__)
            event = next(streams[lane], None)
            yield lane, event
            if event is None:
                del clocks[lane]
            else:
                clocks[lane] += event.seconds


def one_by_one(streams: Sequence[Stream]) -> Iterator[tuple[int, Round | None]]:
    """As `interleave`, but each lane to its end before the next begins: for lanes that do not fit into memory together."""
    with ExitStack() as lanes:
        for stream in streams:
            lanes.enter_context(closing(stream))
        for lane, stream in enumerate(streams):
            for event in stream:
                yield lane, event
            yield lane, None


@dataclass(frozen=True)
class Speedup:
    """Ratio of two lanes' tokens per second, with the ends of a 95 % interval: of this run's clock, not over other seeds."""

    value: float
    low: float
    high: float

    @property
    def busy(self) -> bool:
        """Whether the interval is too wide for the ratio to be quoted alone."""
        return self.high > BUSY * self.low


def log_ratios(slow: Sequence[Round], fast: Sequence[Round]) -> np.ndarray:
    """ln(seconds of a round of `slow` ÷ seconds of the rounds of `fast` next to it), one entry a round, the prefills left out.

    Next to it: before and after it in the order in which `interleave` ran them, which the lanes' clocks tell. What the machine did at the
    time is in both and cancels.
    """
    starts = list(accumulate((r.seconds for r in fast), initial=0.0))
    ratios: list[float] = []
    clock = slow[0].seconds if slow else 0.0
    for event in slow[1:]:
        after = bisect_left(starts, clock)
        beside = [fast[i].seconds for i in (after - 1, after) if 1 <= i < len(fast)]
        clock += event.seconds
        if event.seconds > 0 and beside and min(beside) > 0 and after < len(starts):
            ratios.append(np.log(event.seconds) - np.mean(np.log(beside)))
    return np.array(ratios)


def resampled(count: int) -> np.ndarray:
    """Indices (DRAWS, count) of a bootstrap in blocks: entries beside each other share rounds, and are drawn together."""
    block = min(BLOCK, count)
    begins = np.random.default_rng(0).integers(0, count - block + 1, (DRAWS, -(-count // block)))
    return (begins[..., None] + np.arange(block)).reshape(DRAWS, -1)[:, :count]


def speedup(reference: Sequence[Round], lane: Sequence[Round]) -> Speedup | None:
    """How much faster `lane` emits tokens than `reference`; None before both have rounds to compare.

    Tokens per call ÷ tokens per call, which a seed fixes, times the median ratio of the seconds of neighbouring rounds, which a busy
    machine hardly moves. Either lane's rounds are compared with the other's next to them, so that neither is favoured where the machine's
    speed changes. The interval is a bootstrap over these rounds, √2 wider since each round is looked at from both sides.
    """
    ratios = np.concatenate([log_ratios(reference, lane), -log_ratios(lane, reference)])
    if not len(ratios):
        return None
    lengths = [sum(len(r.tokens) for r in rounds) / len(rounds) for rounds in (lane, reference)]
    middle = np.median(ratios)
    ends = np.quantile(np.median(ratios[resampled(len(ratios))], axis=1), (0.025, 0.975))
    low, high = middle + np.sqrt(2) * (ends - middle)
    return Speedup(*(float(lengths[0] / lengths[1] * np.exp(x)) for x in (middle, low, high)))
