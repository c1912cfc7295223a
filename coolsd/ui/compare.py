"""A comparison as it happens: two lanes decoded one after the other, as a generator of what the page shows.

Knows nothing of gradio. All state of a run lives in its generator, so two people's runs cannot meet. Setting the run's stop event ends it
with a last view of what was decoded; closing the generator ends it without one.
"""

import logging
import statistics as median_of
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..models.prompt_domain import notice
from ..protocols import Pair
from ..settings import Settings, SettingsError
from ..trace import Round
from . import figures, lanes
from .backend import Backend, Full, Loader
from .controls import Request
from .lanes import Lane

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)
PACE = 0.3  # seconds between two updates of the page
PREVIEW_SHARE = 3.0  # a preview that took t seconds is followed by 3 t seconds without one
AR_STEPS = 12  # plain AR tokens timed for the estimate
WAITING = "Waiting for your turn: one run at a time."
NO_EXPORT = {"name": "", "text": ""}
POLL = 0.1  # seconds between two looks at whose turn it is


class Stopped(Exception):
    """The person pressed Stop."""


@dataclass
class View:
    """What changed on the page. images: the finished pair for the comparison slider."""

    status: str
    tone: str = "busy"  # busy | good | bad
    lanes: dict[str, Any] | None = None
    chart: dict[str, Any] | None = None
    headline: dict[str, str] | None = None
    images: tuple["Image | None", "Image | None"] | None = None
    export: dict[str, str] | None = None
    ended: bool = False


def snapshot(pair_of_lanes: list[Lane], status: str, token_seconds: float | None, **more: Any) -> View:
    """Everything the page shows, from the lanes as they stand."""
    stats = lanes.stats_of(pair_of_lanes)
    titled = [(lane.title, s) for lane, s in zip(pair_of_lanes, stats, strict=True)]
    length = max(1, *(figures.positions(lane.settings) for lane in pair_of_lanes))
    chart = figures.curve(titled, length) | {"table": figures.table(titled)}
    return View(
        status,
        lanes=lanes.view(pair_of_lanes, stats),
        chart=chart,
        headline=lanes.headline(pair_of_lanes, stats, token_seconds),
        **more,
    )


def rounds_until(stop: Event, backend: Backend, pair: Pair, settings: dict[str, Any]) -> Iterator[Round]:
    """The engine's rounds; none after `stop` was set.

    Raises:
        Stopped: in place of the next round.
    """
    with closing(backend.stream(pair, **settings)) as rounds:
        for event in rounds:
            yield event
            if stop.is_set():
                raise Stopped


def plain_step(backend: Backend, pair: Pair, settings: Settings, stop: Event) -> float:
    """Median seconds of a plain AR token on this machine, prefill and the first step left out. Also warms the target up."""
    ar_settings = {**settings.to_dict(), "method": "ar", "max_tokens": min(AR_STEPS, pair.grid[0] * pair.grid[1])}
    with closing(rounds_until(stop, backend, pair, ar_settings)) as rounds:
        seconds = [r.seconds for r in rounds]
    return median_of.median(seconds[2:] or seconds)


def decode(backend: Backend, pair: Pair, lane: Lane, stop: Event) -> Iterator[None]:
    """Run one lane; yields when there is something new to show, at most every PACE seconds and at least once a round after that."""
    lane.state = "running"
    last_update, rest = perf_counter(), PACE
    with closing(rounds_until(stop, backend, pair, lane.settings.to_dict())) as rounds:
        for event in rounds:
            lane.rounds.append(event)
            if perf_counter() - last_update >= rest:
                before = perf_counter()
                lanes.show_partial(lane, pair.picture(lane.tokens))
                rest = max(PACE, PREVIEW_SHARE * (perf_counter() - before))
                last_update = perf_counter()
                yield
    lanes.finish(lane, pair.picture(lane.tokens), pair.name, pair.environment)
    yield


def wait_for_turn(ahead: Callable[[], int], stop: Event) -> Iterator[View]:
    """Views while others decode.

    Raises:
        Stopped: the person no longer waits.
    """
    last_update, last_ahead = 0.0, None
    while before := ahead():
        if last_ahead != before or perf_counter() - last_update >= PACE:
            last_update, last_ahead = perf_counter(), before
            yield View(f"Waiting for your turn: {before} before you." if before > 1 else WAITING)
        if stop.wait(POLL):
            raise Stopped


def wait_for_pair(backend: Backend, loader: Loader, target: str, stop: Event) -> Generator[View, None, Pair]:
    """Views while the pair loads, with the memory it takes; returns the pair.

    Raises:
        RuntimeError: loading failed.
        Stopped: the person no longer waits.
    """
    loading = loader.start(target)
    plan = backend.statuses_for(target)[target].plan
    while not loading.done.wait(PACE):
        yield View(f"Loading {target}. {plan or 'The run starts when it is there.'}")
        if stop.is_set():
            raise Stopped
    if loading.error:
        raise RuntimeError(f"{target} could not be loaded ({loading.error})")
    return loading.pair


def compare(backend: Backend, loader: Loader, request: Request, stop: Event | None = None) -> Iterator[View]:
    """Views from the first to the last token of both lanes; ends with one whose `ended` is True, also when the run is stopped or fails.

    Args:
        stop: ends the run at its next round once it is set; what was decoded by then is shown and can be downloaded.
    """
    stop = stop or Event()
    pair_of_lanes: list[Lane] = []
    pair = token_seconds = None
    try:
        with backend.run_queue.place() as ahead:
            yield from wait_for_turn(ahead, stop)
            pair = yield from wait_for_pair(backend, loader, request.target, stop)
            remark = notice(pair, request.relaxed.prompt)
            pair_of_lanes = [Lane(settings, tuple(pair.grid)) for settings in (request.reference, request.relaxed)]
            yield snapshot(pair_of_lanes, "Timing a few plain AR tokens.", None, images=(None, None), export=NO_EXPORT)
            token_seconds = plain_step(backend, pair, request.reference, stop)
            for lane in pair_of_lanes:
                for _ in decode(backend, pair, lane, stop):
                    yield snapshot(pair_of_lanes, f"{lane.title} is decoding. {remark}".rstrip(), token_seconds)
        yield last(pair_of_lanes, f"Done on {describe(pair.environment)}. {remark}".rstrip(), "good", pair, token_seconds)
    except Stopped:
        yield stopped(pair_of_lanes, pair, token_seconds)
    except (SettingsError, Full) as error:
        yield failed(pair_of_lanes, str(error), token_seconds)
    except Exception as error:
        log.exception("the run failed")
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        yield failed(pair_of_lanes, f"The run failed: {reason}. Press Generate to try again, or change the settings.", token_seconds)


def last(pair_of_lanes: list[Lane], status: str, tone: str, pair: Pair, token_seconds: float | None) -> View:
    """The last view of a run that decoded something: pictures to compare, and both runs to download."""
    images = tuple(lane.image for lane in pair_of_lanes)
    export = lanes.bundle(pair_of_lanes, pair.name, pair.environment, token_seconds)
    return snapshot(pair_of_lanes, status, token_seconds, tone=tone, images=images, export=export, ended=True)


def stopped(pair_of_lanes: list[Lane], pair: Pair, token_seconds: float | None) -> View:
    """The last view of a run that was stopped: what was decoded stays, to look at and to download."""
    again = "Press Generate to start again."
    if not any(lane.rounds for lane in pair_of_lanes):
        for lane in pair_of_lanes:
            lane.state = "empty"
        message = f"Stopped before the first token. {again}"
        return snapshot(pair_of_lanes, message, None, tone="", ended=True) if pair_of_lanes else View(message, "", ended=True)
    for lane in pair_of_lanes:
        if lane.state == "running":
            complete = len(lane.tokens) == lane.grid[0] * lane.grid[1]
            lanes.finish(lane, pair.picture(lane.tokens), pair.name, pair.environment, "done" if complete else "stopped")
        elif lane.state == "waiting":
            lane.state = "empty"
    return last(pair_of_lanes, f"Stopped. What was decoded can be downloaded. {again}", "", pair, token_seconds)


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
        parts.append(f"{environment['threads']} thread{'' if environment['threads'] == 1 else 's'}")
    return ", ".join(p for p in parts if p)
