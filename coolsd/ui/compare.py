"""A comparison as it happens: two lanes decoded one after the other, as a generator of what the page shows.

Knows nothing of gradio. All state of a run lives in its generator, so two people's runs cannot meet; closing the generator stops the run.
"""

import logging
import statistics as median_of
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ..settings import SettingsError
from . import figures, lanes
from .controls import Ask
from .engine import Engine, Loader
from .lanes import Lane

log = logging.getLogger(__name__)
PACE = 0.3  # seconds between two updates of the page
PREVIEW_SHARE = 3.0  # a preview that took t seconds is followed by 3 t seconds without one
AR_STEPS = 12  # plain AR tokens timed for the estimate


@dataclass
class View:
    """What changed on the page. images: the finished pair for the comparison slider."""

    status: str
    tone: str = "busy"  # busy | good | bad
    lanes: dict[str, Any] | None = None
    chart: dict[str, Any] | None = None
    headline: dict[str, str] | None = None
    images: tuple[Any, Any] | None = None
    export: dict[str, str] = field(default_factory=dict)
    ended: bool = False


def snapshot(pair_of_lanes: list[Lane], status: str, token_seconds: float | None, **more: Any) -> View:
    """Everything the page shows, from the lanes as they stand."""
    stats = lanes.stats_of(pair_of_lanes)
    titled = [(lane.title, s) for lane, s in zip(pair_of_lanes, stats, strict=True)]
    chart = figures.curve(titled, pair_of_lanes[1].settings.draft_length) | {"table": figures.table(titled)}
    return View(
        status,
        lanes=lanes.view(pair_of_lanes, stats),
        chart=chart,
        headline=lanes.headline(pair_of_lanes, stats, token_seconds),
        **more,
    )


def plain_step(engine: Engine, pair: Any, settings: Any) -> float:
    """Median seconds of a plain AR token on this machine, prefill and the first step left out. Also warms the target up."""
    asked = {**settings.to_dict(), "method": "ar", "max_tokens": min(AR_STEPS, pair.grid[0] * pair.grid[1])}
    with closing(engine.stream(pair, **asked)) as rounds:
        seconds = [r.seconds for r in rounds]
    return median_of.median(seconds[2:] or seconds)


def decode(engine: Engine, pair: Any, lane: Lane) -> Iterator[None]:
    """Run one lane; yields when there is something new to show, at most every PACE seconds and at least once a round after that."""
    lane.state = "running"
    shown, rest = perf_counter(), PACE
    with closing(engine.stream(pair, **lane.settings.to_dict())) as rounds:
        for event in rounds:
            lane.rounds.append(event)
            if perf_counter() - shown >= rest:
                before = perf_counter()
                lanes.show_partial(lane, pair.picture(lane.tokens))
                rest = max(PACE, PREVIEW_SHARE * (perf_counter() - before))
                shown = perf_counter()
                yield
    lanes.finish(lane, pair.picture(lane.tokens), pair.name, pair.environment)
    yield


def wait_for_pair(loader: Loader, target: str) -> Generator[View, None, Any]:
    """Views while the pair loads; returns the pair.

    Raises:
        RuntimeError: loading failed.
    """
    loading = loader.start(target)
    while not loading.done.wait(0.5):
        yield View(f"Loading {target}. The run starts when it is there.")
    if loading.error:
        raise RuntimeError(f"{target} could not be loaded ({loading.error})")
    return loading.pair


def compare(engine: Engine, loader: Loader, ask: Ask) -> Iterator[View]:
    """Views from the first to the last token of both lanes; ends with one whose `ended` is True, also when the run fails."""
    pair_of_lanes: list[Lane] = []
    token_seconds = None
    try:
        pair = yield from wait_for_pair(loader, ask.target)
        pair_of_lanes = [Lane(settings, tuple(pair.grid)) for settings in (ask.reference, ask.relaxed)]
        yield snapshot(pair_of_lanes, "Timing a few plain AR tokens.", None, export={})
        token_seconds = plain_step(engine, pair, ask.reference)
        for lane in pair_of_lanes:
            for _ in decode(engine, pair, lane):
                yield snapshot(pair_of_lanes, f"{lane.title} is decoding.", token_seconds)
        export = lanes.bundle(pair_of_lanes, pair.name, pair.environment, token_seconds)
        images = tuple(lane.image for lane in pair_of_lanes)
        done = snapshot(pair_of_lanes, f"Done on {describe(pair.environment)}.", token_seconds, images=images, export=export)
        done.tone, done.ended = "good", True
        yield done
    except SettingsError as error:
        yield failed(pair_of_lanes, str(error), token_seconds)
    except Exception as error:
        log.exception("the run failed")
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        yield failed(pair_of_lanes, f"The run failed: {reason}. Press Generate to try again, or change the settings.", token_seconds)


def failed(pair_of_lanes: list[Lane], message: str, token_seconds: float | None) -> View:
    """The last view of a run that broke: what there is stays visible, and the message says what to do."""
    for lane in pair_of_lanes:
        if lane.state not in lanes.ENDED:
            lane.state = "failed" if lane.state == "running" else "empty"
    view = snapshot(pair_of_lanes, message, token_seconds) if pair_of_lanes else View(message)
    view.tone, view.ended = "bad", True
    return view


def describe(environment: dict[str, Any]) -> str:
    """The machine in a few words."""
    parts = [str(environment.get("device", "this machine")), str(environment.get("dtype", "")).removeprefix("torch.")]
    if environment.get("threads"):
        parts.append(f"{environment['threads']} threads")
    return ", ".join(p for p in parts if p)
