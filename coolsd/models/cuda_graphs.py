"""CUDA graphs: a pass is recorded once and replayed, so that its few hundred kernels are launched by one call.

Knows nothing of models. A recorded function reads and writes fixed addresses: its inputs are copied to where they were at recording,
its caches must stay where they are (see Workspaces), and its outputs are overwritten by the next call of the same shapes.
"""

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .cache import KVCache

Outputs = tuple[Tensor, ...]
Function = Callable[..., Outputs]
Record = Callable[[Function, list[Tensor]], tuple[Callable[[], None], Outputs]]  # what repeats the function, and where its outputs are

MAX_RECORDINGS = 96  # recordings of one workspace; the least recently used goes

log = logging.getLogger("coolsd")


def capture(fn: Function, inputs: list[Tensor]) -> tuple[Callable[[], None], Outputs]:
    """Record fn on these inputs as a CUDA graph; nothing is run."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # another thread may be using the GPU
        outputs = fn(*inputs)
    return graph.replay, outputs


@dataclass
class _Recorded:
    inputs: list[Tensor]
    replay: Callable[[], None]
    outputs: Outputs


class GraphCache:
    """Calls functions: the first time eagerly, which warms up; from the second call of the same key and shapes on, as recordings.

    Args:
        record: how to record; None calls every function as it is.
    """

    def __init__(self, record: Record | None):
        self.record = record
        self._known: OrderedDict[Hashable, _Recorded | None] = OrderedDict()
        self._held: dict[Hashable, Any] = {}

    def keep_alive(self, key: Hashable, value: Any) -> Any:
        """Keep what recordings refer to alive as long as they are; returns the first value of the key."""
        return self._held.setdefault(key, value)

    def __call__(self, fn: Function, key: tuple, *inputs: Tensor | int) -> Outputs:
        """fn of tensors; an int becomes an int64 tensor () without a host synchronisation. One input at least is a tensor.

        Args:
            key: all that fn depends on besides its inputs, hashable. Tensors that fn refers to must live as long as this object.
        """
        device = next(x.device for x in inputs if isinstance(x, Tensor))
        key = (key, *((x.shape, x.dtype) if isinstance(x, Tensor) else None for x in inputs))
        first = key not in self._known
        recorded = self._known.setdefault(key, None)
        self._known.move_to_end(key)
        if first or self.record is None:
            if len(self._known) > MAX_RECORDINGS:
                self._known.popitem(last=False)
            return fn(*tensors(inputs, device))
        if recorded is None:
            copies = [x.clone() for x in tensors(inputs, device)]
            try:
                recorded = self._known[key] = _Recorded(copies, *self.record(fn, copies))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                log.warning("CUDA graphs are off, decoding is slower: %s", str(error).splitlines()[0])
                self.record = None
                return fn(*tensors(inputs, device))
        for place, value in zip(recorded.inputs, inputs, strict=True):
            if isinstance(value, Tensor):
                place.copy_(value)
            else:
                place.fill_(value)
        recorded.replay()
        return recorded.outputs


def tensors(inputs: tuple[Tensor | int, ...], device: torch.device) -> list[Tensor]:
    """The inputs with every int as an int64 tensor () on the device, filled there: no host synchronisation."""
    return [x if isinstance(x, Tensor) else torch.full((), x, dtype=torch.long, device=device) for x in inputs]


@dataclass
class Workspace:
    """Caches for one picture at a time, and the recordings bound to their addresses."""

    target: KVCache
    drafter: KVCache | None
    graphs: GraphCache


class Workspaces:
    """Workspaces by number of guidance branches, lent to the sessions of one picture until the target's is collected.

    Args:
        build: the caches for a number of branches. record: see GraphCache.
    """

    def __init__(self, build: Callable[[int], tuple[KVCache, KVCache | None]], record: Record | None):
        self.build, self.record = build, record
        self._free: dict[int, list[Workspace]] = {}

    def acquire(self, branches: int, session: Any) -> Workspace:
        """An empty workspace, until `session` is collected."""
        free = self._free.setdefault(branches, [])
        workspace = free.pop() if free else Workspace(*self.build(branches), GraphCache(self.record))
        for cache in (workspace.target, workspace.drafter):
            if cache is not None:
                cache.committed = 0
        weakref.finalize(session, free.append, workspace).atexit = False
        return workspace

    def spare(self, branches: int) -> int:
        """Workspaces that are built and free."""
        return len(self._free.get(branches, ()))

    def clear(self) -> None:
        """Drop the free workspaces; the others go when their sessions end."""
        self._free = {}
