"""What rival codes would paint in one cell of a finished picture: a bounded, cached pass of the picture decoder for the inspector.

Knows nothing of rounds. What comes from the browser is checked here.
"""

import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from time import monotonic, sleep
from typing import Any

from ..exports import data_uri, encoded
from ..show.record import crop
from .backend import Backend, Loader
from .run_queue import Full

MOST = 16  # codes a request
CACHE_SIZE = 256  # requests remembered
PATIENCE = 4.0  # seconds a request waits for a run that is on its way, so as not to slow it down
POLL = 0.05

Request = tuple[str, tuple[int, ...], int, tuple[int, ...]]


def read(request: Any) -> Request | None:
    """Target, tokens, cell and codes of a request from the browser; None where it is not one."""
    if not isinstance(request, Mapping):
        return None
    target, tokens, cell, codes = (request.get(name) for name in ("target", "tokens", "cell", "codes"))
    whole = isinstance(tokens, list) and isinstance(codes, list) and 0 < len(codes) <= MOST
    if not isinstance(target, str) or not whole or not all(_is_code(number) for number in (*tokens, *codes, cell)):
        return None
    return (target, tuple(tokens), cell, tuple(codes)) if cell < len(tokens) else None


def _is_code(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**17


def server(backend: Backend, loader: Loader) -> Callable[[Any], dict[str, str]]:
    """The function that the browser calls: code to picture as data URI; empty where it cannot be had (bad request, not loaded, busy)."""
    one_at_a_time = threading.Lock()

    @lru_cache(maxsize=CACHE_SIZE)
    def painted(target: str, tokens: tuple[int, ...], cell: int, codes: tuple[int, ...]) -> tuple[str, ...]:
        pair = loader.start(target).pair
        batch = [[*tokens[:cell], code, *tokens[cell + 1 :]] for code in codes]
        patches = (crop(image, cell, tuple(pair.grid)) for image in pair.pictures(batch))
        return tuple(data_uri(encoded(patch, "WEBP", quality=85, method=0), "image/webp") for patch in patches)

    def patches(request: Any) -> dict[str, str]:
        """Patches of the codes of a request, see `read`."""
        wanted = read(request)
        if wanted is None or wanted[0] not in backend.statuses_for(wanted[0]):
            return {}
        target, tokens, _, codes = wanted
        loading = loader.start(target)
        if not loading.done.wait(PATIENCE) or loading.pair is None:
            return {}
        rows, columns = loading.pair.grid
        if len(tokens) != rows * columns or max(*tokens, *codes) >= len(loading.pair.codebook):
            return {}
        try:
            with one_at_a_time, backend.run_queue.place() as ahead:
                until = monotonic() + PATIENCE
                while ahead():
                    if monotonic() > until:
                        return {}
                    sleep(POLL)
                return dict(zip(map(str, codes), painted(*wanted), strict=True))
        except Full:
            return {}

    return patches
