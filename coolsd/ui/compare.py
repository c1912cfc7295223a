"""A comparison as it happens: lanes that race on one clock, as a generator of what the page shows.

Knows nothing of gradio's components. All state of a run lives in its generator, so two people's runs cannot meet. Setting the run's stop
event ends it with a last view of what was decoded; closing the generator ends it without one.
"""

import io
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from threading import Event
from time import perf_counter
from typing import Any, Protocol

from PIL import Image

from ..models.prompt_domain import notice
from ..protocols import Pair
from ..settings import SettingsError
from . import lanes
from .backend import Backend, Loader
from .comparison import PACE, Advance, End, Failed, Look, Ready, Step
from .controls import Request
from .lanes import Lane
from .run_queue import ANYONE, Full, Visitor
from .zerogpu import Door, Refused

log = logging.getLogger(__name__)
WAITING = "Waiting for your turn: one run at a time."
TIMING = "Warming up, and timing a few plain AR tokens."
RACING = "Decoding, all lanes on one clock."
IN_TURN = "Decoding, one lane after the other: they do not fit into memory together."
NO_EXPORT = {"name": "", "text": "", "table_name": "", "table": ""}
HEADS = 8  # likeliest codes of each row, for the inspector
POLL = 0.1  # seconds between two looks at whose turn it is
AGAIN = "Press Generate to start again."
COMPLETE = "Stopped. All pictures were complete already."


class Stopped(Exception):
    """The person pressed Stop, or left."""


class Stop(Protocol):
    """Whether the run is to end: a threading.Event is one."""

    def is_set(self) -> bool:
        """True once it is to end."""

    def wait(self, timeout: float) -> bool:
        """Wait so many seconds, or until it is to end; returns `is_set`."""


@dataclass
class View:
    """What changed on the page."""

    status: str
    tone: str = "busy"  # busy | good | bad
    lanes: dict[str, Any] | None = None
    headline: dict[str, Any] | None = None
    export: dict[str, str] | None = None
    ended: bool = False


@dataclass
class Board:
    """The lanes of a run as far as they have come: reference, relaxed and, where it is decoded too, plain AR.

    redraw: the picture of some tokens, where the models are in this process.
    """

    target: str
    lanes: list[Lane]
    environment: dict[str, Any] = field(default_factory=dict)
    token_seconds: float | None = None
    redraw: Callable[[list[int]], Image.Image] | None = None

    def view(self, status: str, **more: Any) -> View:
        """Everything the page shows, from the lanes as they stand."""
        stats = lanes.stats_of(self.lanes)
        headline = lanes.headline(self.lanes, stats, self.token_seconds)
        return View(status, lanes=lanes.view(self.lanes, self.target), headline=headline, **more)

    def finish(self, lane: Lane, image: Image.Image | None, state: str) -> None:
        """The lane's picture in full quality."""
        lanes.finish(lane, image, self.target, self.environment, state)

    def last(self, status: str, tone: str) -> View:
        """The last view of a run that decoded something: pictures to compare, and the runs to download."""
        export = lanes.bundle(self.lanes, self.target, self.environment, self.token_seconds)
        return self.view(status, tone=tone, export=export, ended=True)

    def stopped(self) -> View:
        """The last view of a run that was stopped: what was decoded stays, to look at and to download."""
        if not any(lane.rounds for lane in self.lanes):
            for lane in self.lanes:
                lane.state = "empty"
            message = f"Stopped before the first token. {AGAIN}"
            return self.view(message, tone="", ended=True) if self.lanes else View(message, "", ended=True)
        for lane in self.lanes:
            if lane.state == "running":
                complete = len(lane.tokens) == lane.grid[0] * lane.grid[1]
                if self.redraw:
                    lane.image = self.redraw(lane.tokens)
                self.finish(lane, lane.image, "done" if complete else "stopped")
            elif lane.state == "waiting":
                lane.state = "empty"
        if all(lane.state in lanes.ENDED for lane in self.lanes):
            return self.last(COMPLETE, "good")
        return self.last(f"Stopped. What was decoded can be downloaded. {AGAIN}", "")

    def failed(self, message: str) -> View:
        """The last view of a run that broke: what there is stays visible, and the message says what to do."""
        for lane in self.lanes:
            if lane.state not in lanes.ENDED:
                lane.state = "failed" if lane.state == "running" else "empty"
        view = self.view(message) if self.lanes else View(message)
        view.tone, view.ended = "bad", True
        return view


def wait_for_turn(ahead: Callable[[], int], stop: Stop) -> Iterator[View]:
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


def wait_for_pair(backend: Backend, loader: Loader, request: Request, stop: Stop) -> Generator[View, None, Pair]:
    """Views while the pair loads, with the memory it takes; returns the pair.

    Raises:
        RuntimeError: loading failed.
        Stopped: the person no longer waits.
    """
    target = request.target
    loading = loader.start(target)
    plan = backend.statuses_for(target)[target].plan_for(len(request.lanes))
    while not loading.done.wait(PACE):
        yield View(f"Loading {target}. {plan or 'The run starts when it is there.'}")
        if stop.is_set():
            raise Stopped
    if loading.error:
        raise RuntimeError(f"{target} could not be loaded ({loading.error})")
    return loading.pair


def compare(
    backend: Backend, loader: Loader, request: Request, stop: Stop | None = None, door: Door | None = None, visitor: Visitor = ANYONE
) -> Iterator[View]:
    """Views from the first to the last token of all lanes; ends with one whose `ended` is True, also when the run is stopped or fails.

    Args:
        stop: ends the run at its next round once it is set; what was decoded by then is shown and can be downloaded.
        door: the way to the models, where it was made beforehand.
        visitor: whose places in the queue are counted.
    """
    stop, door = stop or Event(), door or Door(backend, loader)
    board = Board(request.target, [])
    try:
        with backend.run_queue.place(visitor) as ahead:
            yield from wait_for_turn(ahead, stop)
            pair = yield from wait_for_pair(backend, loader, request, stop)
            board.target, board.environment, board.redraw = pair.name, dict(pair.environment), door.redraw(pair)
            board.lanes = [Lane(settings, tuple(pair.grid)) for settings in request.lanes]
            remark = notice(pair, request.relaxed.prompt)
            yield board.view(door.waiting or TIMING, export=NO_EXPORT)
            yield from follow(board, door, request, stop, remark)
        yield board.last(f"Done on {describe(board.environment)}. {remark}".rstrip(), "good")
    except Stopped:
        yield board.stopped()
    except (SettingsError, Full, Refused) as error:
        yield board.failed(str(error))
    except Exception as error:
        log.exception("the run failed")
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        yield board.failed(f"The run failed: {reason}. Press Generate to try again, or change the settings.")


def follow(board: Board, door: Door, request: Request, stop: Stop, remark: str) -> Iterator[View]:
    """Put the run's events on the board, and views of it where there is something new to show.

    Raises:
        Stopped: in place of the next event.
    """
    status = ""
    requests = [{**settings.to_dict(), "inspect": HEADS} for settings in request.lanes]
    with closing(door(request.target, requests)) as events:
        for event in events:
            shows = None
            match event:
                case Ready():
                    board.environment = event.environment
                    status = f"{RACING if event.together else IN_TURN} {remark}".rstrip()
                    shows = TIMING
                case Step():
                    board.token_seconds = event.seconds
                case Advance():
                    lane = board.lanes[event.lane]
                    lane.state = "running"
                    lane.rounds.append(event.round)
                case Look():
                    for index, content in event.pictures.items():
                        lanes.show_partial(board.lanes[index], content)
                    shows = status
                case End():
                    board.finish(board.lanes[event.lane], Image.open(io.BytesIO(event.picture)), "done")
                    shows = status
                case Failed(kind="run"):
                    raise Refused(f"The run failed: {event.words}. Press Generate to try again, or change the settings.")
                case Failed():
                    raise Refused(event.words)
            if shows:
                yield board.view(shows)
            if stop.is_set():
                raise Stopped


def describe(environment: dict[str, Any]) -> str:
    """The machine in a few words."""
    parts = [str(environment.get("device", "this machine")), str(environment.get("dtype", "")).removeprefix("torch.")]
    if environment.get("threads"):
        parts.append(f"{environment['threads']} thread{'' if environment['threads'] == 1 else 's'}")
    return ", ".join(p for p in parts if p)
