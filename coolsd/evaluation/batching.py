"""Batched decoding: the passes of several pictures are run as one, so that the weights are read once for all of them.

Knows nothing of models. Each picture is decoded by the engine in a thread of its own. A session that has a workspace (see
cuda_graphs.py) submits its pass and waits; when all threads wait, equal passes are run as one call, vectorised with torch.vmap over
inputs and caches. Laws and random numbers are those of decoding one by one; matrix products of other sizes may round differently in the
last bit.
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
from ..models.cuda_graphs import Function, Outputs, Workspace, tensors
from ..models.pair import LoadedPair
from ..protocols import Pair

BLOCK = 64  # entries by which the looked-at part of a cache grows
AHEAD = 16  # entries by which it is longer than the longest picture: a pass looks at the same part for all
PATIENCE = 4  # calls that a request may be passed over

Job = TypeVar("Job")
Result = TypeVar("Result")


def batched(pair: Pair, lanes: int) -> Pair:
    """A copy of a loaded pair that decodes `lanes` pictures at once through `pair.workspaces.map`, on a CPU or a GPU.

    On a GPU it stands for recorded passes of single pictures (see cuda_graphs.py): nothing is recorded then.
    """
    if not isinstance(pair, LoadedPair) or isinstance(pair.workspaces, PassBatcher):
        return pair
    pair.unpack()  # packed weights have no rule under vmap
    pair = replace(pair)
    pair.workspaces = PassBatcher(pair.caches, lanes)
    return pair


def map_of(pair: Pair) -> Callable[..., Iterable]:
    """`map`, which decodes at most `lanes` pictures at once where the pair is `batched`."""
    workspaces = getattr(pair, "workspaces", None)
    return workspaces.map if isinstance(workspaces, PassBatcher) else map


@dataclass
class PassRequest:
    """A submitted pass."""

    workspace: Workspace
    lane: int
    fn: Function
    key: Hashable
    inputs: list[Tensor]
    waited: int = 0
    outputs: Outputs | None = None
    error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.outputs is not None or self.error is not None


class _Lane:
    """Stands in for a workspace's graph cache: submits a pass and returns this picture's slice of its outputs."""

    def __init__(self, batcher: "PassBatcher", number: int):
        self.batcher, self.number = batcher, number
        self.workspace: Workspace | None = None

    def keep_alive(self, key: Hashable, value: Any) -> Any:
        """Nothing is recorded."""
        return value

    def __call__(self, fn: Function, key: tuple, *inputs: Tensor | int) -> Outputs:
        """fn of tensors, see GraphCache: fn depends on its inputs, its key and the caches of the workspace."""
        device = next(x.device for x in inputs if isinstance(x, Tensor))
        tensor_inputs = tensors(inputs, device)
        return self.batcher.submit(
            PassRequest(self.workspace, self.number, fn, (key, *((x.shape, x.dtype) for x in tensor_inputs)), tensor_inputs)
        )


@contextmanager
def _placed(cache: KVCache, keys: Tensor, values: Tensor) -> Iterator[None]:
    """A cache that works in other tensors for a while."""
    own = cache.keys, cache.values
    cache.place(keys, values)
    try:
        yield
    finally:
        cache.place(*own)


class PassBatcher:
    """Gives workspaces to the sessions of `map`'s threads; set as a pair's `workspaces`. Sessions of other threads get none.

    Args:
        build: the caches for a number of guidance branches. lanes: pictures decoded at once.
    """

    def __init__(self, build: Callable[[int], tuple[KVCache, KVCache | None]], lanes: int):
        self.build, self.lanes = build, lanes
        self._models: dict[int, tuple[KVCache, KVCache | None]] = {}  # by branches: caches that those of the lanes are copied from
        self._stacks: dict[int, list[tuple[Tensor, Tensor]]] = {}  # by branches: keys and values (lanes, …) of target and drafter
        self._workspaces: dict[tuple[int, int], Workspace] = {}
        self._thread = threading.local()
        self._turn = threading.Condition()
        self._waiting: list[PassRequest] = []
        self._at_work = 0

    def acquire(self, branches: int, session: Any) -> Workspace | None:
        """This thread's workspace, emptied: one session at a time."""
        number = getattr(self._thread, "number", None)
        if number is None:
            return None
        with self._turn:
            workspace = self._workspaces.get((branches, number)) or self._build(branches, number)
        for cache in (workspace.target, workspace.drafter):
            if cache is not None:
                cache.committed = cache.least = 0
        return workspace

    def spare(self, branches: int) -> int:
        """Pictures whose caches are there already."""
        return self.lanes if branches in self._stacks else 0

    def clear(self) -> None:
        """Drop the workspaces."""
        self._models, self._stacks, self._workspaces = {}, {}, {}

    def _build(self, branches: int, number: int) -> Workspace:
        if branches not in self._models:
            self._models[branches] = self.build(branches)
            shapes = [(self.lanes, *cache.keys.shape) for cache in self._models[branches] if cache is not None]
            like = self._models[branches][0].keys
            self._stacks[branches] = [(like.new_zeros(shape), like.new_zeros(shape)) for shape in shapes]
        caches = tuple(copy.copy(cache) for cache in self._models[branches])
        for cache, (keys, values) in zip((cache for cache in caches if cache is not None), self._stacks[branches], strict=True):
            cache.place(keys[number], values[number])
            cache.block = BLOCK
        lane = _Lane(self, number)
        lane.workspace = self._workspaces[branches, number] = Workspace(*caches, lane)
        return lane.workspace

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

    def submit(self, request: PassRequest) -> Outputs:
        """Wait until this pass has been run."""
        with self._turn:
            self._waiting.append(request)
            self._serve()
            self._turn.wait_for(lambda: request.done)
        if request.error is not None:
            raise request.error
        return request.outputs

    def _serve(self) -> None:
        """When all threads wait: run the pass that most of them submitted. Running every pass would keep the threads out of step for
        good; a request passed over several times goes first. Which thread came first decides nothing: the same jobs give the same
        passes, and so the same last bits."""
        if not self._waiting or len(self._waiting) < self._at_work:
            return
        self._waiting.sort(key=lambda request: request.lane)
        groups: dict[Hashable, list[PassRequest]] = {}
        for request in self._waiting:
            groups.setdefault(request.key, []).append(request)
        chosen = max(groups.values(), key=lambda group: (max(a.waited for a in group) >= PATIENCE, len(group)))
        self._waiting = [request for request in self._waiting if request.key != chosen[0].key]
        for request in self._waiting:
            request.waited += 1
        for part in ("target", "drafter"):
            caches = [cache for workspace in self._workspaces.values() if (cache := getattr(workspace, part))]
            least = max((cache.committed for cache in caches), default=0) + AHEAD
            for cache in caches:
                cache.least = least
        for run in neighbours(chosen):
            try:
                with torch.inference_mode():  # the thread that a last one's end has woken is not in it
                    self.run_pass(run)
            except BaseException as error:
                for request in run:
                    request.error = error
        self._turn.notify_all()

    def run_pass(self, run: list[PassRequest]) -> None:
        """One call for lanes that lie side by side, whose caches are one slice."""
        first = run[0]
        if len(run) == 1:
            first.outputs = first.fn(*first.inputs)
            return
        caches = [cache for cache in (first.workspace.target, first.workspace.drafter) if cache is not None]
        stacks = [part[first.lane : run[-1].lane + 1] for pair in self._stacks[first.workspace.target.keys.shape[1]] for part in pair]

        def one(parts: list[Tensor], *inputs: Tensor) -> Outputs:
            with ExitStack() as placed:
                for cache, keys, values in zip(caches, parts[::2], parts[1::2], strict=True):
                    placed.enter_context(_placed(cache, keys, values))
                return first.fn(*inputs)

        inputs = (torch.stack(column) for column in zip(*(request.inputs for request in run), strict=True))
        with warnings.catch_warnings():
            # Writing and attention have no rule of their own and go lane by lane: a few operations of many.
            warnings.filterwarnings("ignore", "There is a performance drop")
            outputs = torch.vmap(one)(stacks, *inputs)
        for i, request in enumerate(run):
            request.outputs = tuple(output[i] for output in outputs)


def neighbours(requests: list[PassRequest]) -> list[list[PassRequest]]:
    """Runs of lanes without a gap."""
    runs: list[list[PassRequest]] = []
    for one in requests:
        if runs and runs[-1][-1].lane + 1 == one.lane:
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs
