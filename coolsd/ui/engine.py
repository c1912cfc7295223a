"""The page's one door to the engine: load, stream and the named methods, and the pair that loads behind the page.

Torch and the models are imported in the loading thread, so that the page is up before they are.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..trace import Round

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Engine:
    """What the page needs of the project; tests put a small pair here."""

    load: Callable[[str], Any]
    stream: Callable[..., Iterator[Round]]
    methods: Mapping[str, Any]


def default_engine() -> Engine:
    """The project's own engine."""
    import coolsd

    return Engine(coolsd.load, coolsd.stream, coolsd.METHODS)


@dataclass
class Loading:
    """A pair being loaded. `done` is set when `pair` or `error` is."""

    done: threading.Event = field(default_factory=threading.Event)
    pair: Any = None
    error: str = ""


class Loader:
    """Loads each pair once, in a thread of its own, whoever asks first."""

    def __init__(self, load: Callable[[str], Any]):
        self._load = load
        self._lock = threading.Lock()
        self._pairs: dict[str, Loading] = {}

    def start(self, name: str) -> Loading:
        """The pair's loading, begun if it was not or if it had failed."""
        with self._lock:
            known = self._pairs.get(name)
            if known is None or known.error:
                known = self._pairs[name] = Loading()
                threading.Thread(target=self._run, args=(name, known), name=f"load {name}", daemon=True).start()
            return known

    def _run(self, name: str, loading: Loading) -> None:
        try:
            loading.pair = self._load(name)
        except Exception as error:
            log.exception("loading %s failed", name)
            loading.error = f"{type(error).__name__}: {error}"
        finally:
            loading.done.set()
