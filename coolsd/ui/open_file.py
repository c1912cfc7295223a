"""Runs that were not decoded here: recorded ones, and those of a file dropped on the page; read, checked and shown like any other."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event
from typing import Any

from PIL import Image

from ..bundle import MOST_BYTES, Bundle, read
from . import lanes
from .backend import DEFAULT_TARGET, Backend, Loader
from .compare import Board, View, describe, wait_for_turn
from .controls import matters, of_run
from .run_queue import ANYONE, Full, Visitor

UNPAINTED = "Their pictures are not in the file: choose its target and press Generate for them."


def view_of(bundle: Bundle, backend: Backend, status: str, room: bool = True) -> View:
    """The lanes of a file as the page shows them; a single run is one lane without a headline.

    Args:
        room: keep that of a plain AR lane which is not there, so that no picture changes its size once one joins.
    """
    runs = list(bundle.lanes.values())
    in_file = [lanes.from_run(run, bundle.patches.get(name)) for name, run in bundle.lanes.items()]
    run = runs[-1] if len(runs) < 2 else runs[1]
    board = Board(run.target, in_file, run.environment, bundle.ar_token_seconds)
    if len(runs) < 2:
        return View(status, "", lanes=lanes.view(in_file, run.target), headline=dict(lanes.BLANK), export=lanes.single(run), ended=True)
    view = board.last(status, "")
    if room and len(runs) == 2:
        board.lanes.append(lanes.Lane(replace(run.settings, method="ar"), run.grid, "empty"))
        view.lanes = lanes.view(board.lanes, board.target)
    view.headline = view.headline | {"conditions": matters(of_run(run.target, runs[0].settings, run.settings), backend.methods)}
    return view


def opened(content: Any, backend: Backend, loader: Loader, redraw: Callable[..., Any], visitor: Visitor = ANYONE) -> Iterator[View]:
    """Views while a file's text is read and its pictures are decoded, which waits for the runs that are on their way.

    Args:
        content: what the browser sent: {"name", "text"}.
        redraw: a pair to the function that decodes pictures, or to None; see zerogpu.Door.
    """
    content = content if isinstance(content, dict) else {}
    name, text = str(content.get("name") or "The file")[:80], content.get("text")
    if not isinstance(text, str) or len(text) > MOST_BYTES:
        yield View(f"{name} is larger than {MOST_BYTES // 2**20} MB: it holds no run.", "bad")
        return
    try:
        bundle = read(text, backend.methods)
        with backend.run_queue.place(visitor) as ahead:
            yield from wait_for_turn(ahead, Event())
            painted = _paint(bundle, backend, loader, redraw)
    except (ValueError, Full) as error:
        yield View(f"{name} was not opened: {error}", "bad")
        return
    run = next(iter(bundle.lanes.values()))
    where = f", recorded on {describe(run.environment)}" if run.environment else ""
    yield view_of(bundle, backend, f"“{run.settings.prompt}”, from {name}{where}. {'' if painted else UNPAINTED}".rstrip(), room=False)


def _paint(bundle: Bundle, backend: Backend, loader: Loader, redraw: Callable[..., Any]) -> bool:
    """Decode the pictures, where the target is the embedded one or loaded already and its tokens fit; whether all are there now."""
    for run in bundle.lanes.values():
        at_hand = run.target == DEFAULT_TARGET or loader.is_loaded(run.target)
        loading = loader.start(run.target) if at_hand and run.target in backend.statuses_for(run.target) else None
        pair = loading.pair if loading and loading.done.wait(60) else None
        draw: Callable[[list[int]], Image.Image] | None = redraw(pair) if pair else None
        if draw and tuple(pair.grid) == run.grid and run.tokens and max(run.tokens) < len(pair.codebook):
            run.image = draw(run.tokens)
    return all(run.image is not None for run in bundle.lanes.values())
