"""Several pictures at once: their passes are run as one, so that the weights are read once for all of them.

Knows nothing of models. Every picture is decoded by the engine as ever, in a thread of its own. A session that works in a room (see
cuda_graphs.py) hands its pass over and waits; when all threads wait, those that ask for the same pass are served by one call of it,
vectorised with torch.vmap over inputs and caches. Laws and random numbers are those of decoding one by one; products of other sizes may
round otherwise in the last bit.
"""

import copy
import threading
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..models.cache import KVCache
from ..models.cuda_graphs import Function, Outputs, Room, tensors
from ..models.pair import LoadedPair
from ..protocols import Pair

BLOCK = 64  # entries by which the looked-at part of a cache grows
AHEAD = 16  # entries by which it is longer than the longest picture: a pass looks at the same part for all
PATIENCE = 4  # calls that one waits for while there are others that more ask for

Job = TypeVar("Job")
Result = TypeVar("Result")


def crowded(pair: Pair, lanes: int) -> Pair:
    """A loaded pair that decodes so many pictures at once by `pair.rooms.map`; on a GPU, whose passes are recorded, the pair itself."""
    if not isinstance(pair, LoadedPair) or pair.rooms is not None:
        return pair
    pair = replace(pair)
    pair.rooms = Together(pair._caches, lanes)
    return pair


@dataclass
class _Asked:
    """A pass that a thread waits for."""

    room: Room
    lane: int
    fn: Function
    key: Hashable
    inputs: list[Tensor]
    waited: int = 0
    outputs: Outputs | None = None
    error: BaseException | None = None

    @property
    def answered(self) -> bool:
        return self.outputs is not None or self.error is not None


class _Lane:
    """Stands where a room's recordings are: hands a pass over, and gives back this picture's share."""

    def __init__(self, crew: "Together", number: int):
        self.crew, self.number = crew, number
        self.room: Room | None = None

    def hold(self, key: Hashable, value: Any) -> Any:
        """Nothing is recorded."""
        return value

    def __call__(self, fn: Function, key: tuple, *inputs: Tensor | int) -> Outputs:
        """fn of tensors, see Graphs: fn depends on its inputs, its key and the caches of the room."""
        device = next(x.device for x in inputs if isinstance(x, Tensor))
        given = tensors(inputs, device)
        return self.crew.ask(_Asked(self.room, self.number, fn, (key, *((x.shape, x.dtype) for x in given)), given))


@contextmanager
def _placed(cache: KVCache, keys: Tensor, values: Tensor) -> Iterator[None]:
    """A cache that works in other tensors for a while."""
    own = cache.keys, cache.values
    cache.place(keys, values)
    try:
        yield
    finally:
        cache.place(*own)


class Together:
    """Gives rooms to the sessions of `map`'s threads; set as a pair's `rooms`. Sessions of other threads get none.

    Args:
        build: the caches for so many guidance rows. lanes: pictures at once.
    """

    def __init__(self, build: Callable[[int], tuple[KVCache, KVCache | None]], lanes: int):
        self.build, self.lanes = build, lanes
        self._models: dict[int, tuple[KVCache, KVCache | None]] = {}  # by rows: caches that those of the lanes are made after
        self._stacks: dict[int, list[tuple[Tensor, Tensor]]] = {}  # by rows: keys and values (lanes, …) of target and drafter
        self._rooms: dict[tuple[int, int], Room] = {}
        self._thread = threading.local()
        self._turn = threading.Condition()
        self._waiting: list[_Asked] = []
        self._at_work = 0

    def take(self, rows: int, session: Any) -> Room | None:
        """This thread's room, emptied: one session at a time."""
        number = getattr(self._thread, "number", None)
        if number is None:
            return None
        with self._turn:
            room = self._rooms.get((rows, number)) or self._build(rows, number)
        for cache in (room.target, room.drafter):
            if cache is not None:
                cache.committed = cache.least = 0
        return room

    def clear(self) -> None:
        """Let go of the rooms."""
        self._models, self._stacks, self._rooms = {}, {}, {}

    def _build(self, rows: int, number: int) -> Room:
        if rows not in self._models:
            self._models[rows] = self.build(rows)
            shapes = [(self.lanes, *cache.keys.shape) for cache in self._models[rows] if cache is not None]
            like = self._models[rows][0].keys
            self._stacks[rows] = [(like.new_zeros(shape), like.new_zeros(shape)) for shape in shapes]
        caches = tuple(copy.copy(cache) for cache in self._models[rows])
        for cache, (keys, values) in zip((cache for cache in caches if cache is not None), self._stacks[rows], strict=True):
            cache.place(keys[number], values[number])
            cache.block = BLOCK
        lane = _Lane(self, number)
        lane.room = self._rooms[rows, number] = Room(*caches, lane)
        return lane.room

    # ---- waiting for each other

    def map(self, work: Callable[[Job], Result], jobs: Iterable[Job]) -> list[Result]:
        """work(job) of at most `lanes` jobs, all at once; the first error is raised when all have ended."""
        jobs = list(jobs)
        assert len(jobs) <= self.lanes, "more jobs than lanes"
        self._at_work = len(jobs)
        with ThreadPoolExecutor(max(1, len(jobs))) as pool:
            return list(pool.map(self._work, [work] * len(jobs), jobs, range(len(jobs))))

    def _work(self, work: Callable[[Job], Result], job: Job, number: int) -> Result:
        self._thread.number = number
        try:
            return work(job)
        finally:
            self._thread.number = None
            with self._turn:
                self._at_work -= 1
                self._serve()

    def ask(self, asked: _Asked) -> Outputs:
        """Wait until this pass has been run."""
        with self._turn:
            self._waiting.append(asked)
            self._serve()
            self._turn.wait_for(lambda: asked.answered)
        if asked.error is not None:
            raise asked.error
        return asked.outputs

    def _serve(self) -> None:
        """When all wait: run the pass that most ask for. Those who wait for another one would fall behind for good if all were run; who
        has let several pass comes first."""
        if not self._waiting or len(self._waiting) < self._at_work:
            return
        groups: dict[Hashable, list[_Asked]] = {}
        for asked in self._waiting:
            groups.setdefault(asked.key, []).append(asked)
        chosen = max(groups.values(), key=lambda group: (max(a.waited for a in group) >= PATIENCE, len(group)))
        self._waiting = [asked for asked in self._waiting if asked.key != chosen[0].key]
        for asked in self._waiting:
            asked.waited += 1
        for part in ("target", "drafter"):
            caches = [cache for room in self._rooms.values() if (cache := getattr(room, part))]
            least = max((cache.committed for cache in caches), default=0) + AHEAD
            for cache in caches:
                cache.least = least
        for run in neighbours(sorted(chosen, key=lambda asked: asked.lane)):
            try:
                with torch.inference_mode():  # the thread that a last one's end has woken is not in it
                    self._run(run)
            except BaseException as error:
                for asked in run:
                    asked.error = error
        self._turn.notify_all()

    def _run(self, run: list[_Asked]) -> None:
        """One call for lanes that lie side by side, whose caches are one slice."""
        first = run[0]
        if len(run) == 1:
            first.outputs = first.fn(*first.inputs)
            return
        caches = [cache for cache in (first.room.target, first.room.drafter) if cache is not None]
        stacks = [part[first.lane : run[-1].lane + 1] for pair in self._stacks[first.room.target.keys.shape[1]] for part in pair]

        def one(parts: list[Tensor], *inputs: Tensor) -> Outputs:
            with ExitStack() as placed:
                for cache, keys, values in zip(caches, parts[::2], parts[1::2], strict=True):
                    placed.enter_context(_placed(cache, keys, values))
                return first.fn(*inputs)

        inputs = (torch.stack(column) for column in zip(*(asked.inputs for asked in run), strict=True))
        with warnings.catch_warnings():
            # Writing and attention have no rule of their own and go lane by lane: a few operations of many.
            warnings.filterwarnings("ignore", "There is a performance drop")
            outputs = torch.vmap(one)(stacks, *inputs)
        for i, asked in enumerate(run):
            asked.outputs = tuple(output[i] for output in outputs)


def neighbours(asked: list[_Asked]) -> list[list[_Asked]]:
    """Runs of lanes without a gap."""
    runs: list[list[_Asked]] = []
    for one in asked:
        if runs and runs[-1][-1].lane + 1 == one.lane:
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs
