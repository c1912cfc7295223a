"""The part of a comparison that needs the models: one generator, which on ZeroGPU runs in a process of its own.

Names and settings as plain values go in; events come out, all of which can be pickled. Elsewhere than on ZeroGPU the same generator runs in
the caller's thread. It knows nothing of gradio or of who listens: closing it ends the run.
"""

import logging
import statistics
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ..exports import encoded
from ..protocols import Pair
from ..race import interleave, one_by_one
from ..settings import SettingsError
from ..trace import Round

log = logging.getLogger(__name__)
PACE = 0.3  # seconds between two looks at the pictures
PREVIEW_SHARE = 3.0  # pictures that took t seconds are followed by 3 t seconds without any
AR_STEPS = 12  # plain AR tokens timed for the estimate
WARM_STEPS = 8  # tokens each other lane decodes unseen, so that none pays for what the next one saves

Plain = Mapping[str, Any]  # settings as plain values
StreamOf = Callable[..., Generator[Round, None, None]]


@dataclass(frozen=True)
class Ready:
    """The models are at hand. together: the lanes fit into memory beside each other."""

    environment: dict[str, Any]
    together: bool


@dataclass(frozen=True)
class Warm:
    """A round that is thrown away: warm-up."""


@dataclass(frozen=True)
class Step:
    """Median seconds of a plain AR token here, prefill and the first step left out."""

    seconds: float


@dataclass(frozen=True)
class Advance:
    """A lane's next round."""

    lane: int
    round: Round


@dataclass(frozen=True)
class Look:
    """Pictures so far of the lanes that have moved, as WebP, transparent where no token is yet."""

    pictures: dict[int, bytes]


@dataclass(frozen=True)
class End:
    """A lane has all its tokens; its picture as PNG."""

    lane: int
    picture: bytes


@dataclass(frozen=True)
class Failed:
    """The run ended early. kind: settings (something to change), memory, or run (nobody's fault)."""

    kind: str
    words: str


Event = Ready | Warm | Step | Advance | Look | End | Failed


def comparison(pair: Pair, stream: StreamOf, requests: Sequence[Plain]) -> Iterator[Event]:
    """Decode these settings, several of them as a race. A single one is decoded as it is: no warm-up, nothing timed beforehand.

    Args:
        stream: the engine, see coolsd.stream.
        requests: settings of each lane.
    """
    try:
        together = pair.holds(len(requests), requests[0]["cfg_scale"])
        yield Ready(dict(pair.environment), together)
        if len(requests) > 1:
            yield from warm_up(pair, stream, requests)
        lanes = [stream(pair, **request) for request in requests]
        yield from race(pair, (interleave if together else one_by_one)(lanes))
    except SettingsError as error:
        yield Failed("settings", str(error))
    except ValueError as error:  # MemoryFull: what the pictures took has been freed
        yield Failed("memory", str(error))
    except Exception as error:
        log.exception("the run failed")
        yield Failed("run", f"{type(error).__name__}: {error}".removesuffix(": ").splitlines()[0])


def warm_up(pair: Pair, stream: StreamOf, requests: Sequence[Plain]) -> Iterator[Event]:
    """A few discarded rounds of every method, and a plain AR step timed on the way."""
    total = pair.grid[0] * pair.grid[1]
    for method in {request["method"]: None for request in requests if request["method"] != "ar"}:
        for _ in stream(pair, **{**requests[0], "method": method, "max_tokens": min(WARM_STEPS, total)}):
            yield Warm()
    seconds = []
    for event in stream(pair, **{**requests[0], "method": "ar", "max_tokens": min(AR_STEPS, total)}):
        seconds.append(event.seconds)
        yield Warm()
    yield Step(statistics.median(seconds[2:] or seconds))


def race(pair: Pair, rounds: Iterator[tuple[int, Round | None]]) -> Iterator[Event]:
    """Rounds as they come, pictures of the lanes at most every PACE seconds, and the finished ones."""
    tokens: dict[int, list[int]] = {}
    moved: set[int] = set()
    last_look, rest = perf_counter(), PACE
    with closing(rounds):
        for lane, event in rounds:
            if event is None:
                yield End(lane, encoded(pair.picture(tokens[lane]), "PNG"))
                moved.discard(lane)
                continue
            tokens.setdefault(lane, []).extend(event.tokens)
            moved.add(lane)
            yield Advance(lane, event)
            if (before := perf_counter()) - last_look >= rest:
                yield Look({i: encoded(pair.picture(tokens[i]), "WEBP", quality=85, method=0) for i in sorted(moved)})
                last_look = perf_counter()
                rest, moved = max(PACE, PREVIEW_SHARE * (last_look - before)), set()
