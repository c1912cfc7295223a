"""What the page needs of the package: load, stream and the named methods, and the pair that loads in the background.

The models are imported in the loading thread, so that the page is up before they are.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ..methods import Method
from ..models.catalog import Files, TargetStatus, target_statuses
from ..protocols import Pair
from ..trace import Round
from .run_queue import RunQueue

log = logging.getLogger(__name__)
DEFAULT_TARGET = "meadow"
EMBEDDED = {DEFAULT_TARGET: TargetStatus(DEFAULT_TARGET, "meadow, 128 px")}


@dataclass(frozen=True)
class Backend:
    """What the page needs of the project; tests put a small pair here."""

    load: Callable[[str], Pair]
    stream: Callable[..., Iterator[Round]]
    methods: Mapping[str, Method]
    target_statuses: Callable[[], Mapping[str, TargetStatus]] = lambda: EMBEDDED
    run_queue: RunQueue = field(default_factory=RunQueue)

    def statuses_for(self, name: object) -> Mapping[str, TargetStatus]:
        """The targets, as far as it takes to judge this one: what the embedded pair needs is known without a look."""
        return EMBEDDED if not isinstance(name, str) or name in EMBEDDED else self.target_statuses()


def default_backend(files: Files | None = None, only: Collection[str] = (), run_queue: RunQueue | None = None) -> Backend:
    """The package itself as backend.

    Args:
        files: local files in place of the hub's, by target and part.
        only: targets to offer; all where none is named.
    """
    import coolsd

    files = files or {}

    def offered() -> dict[str, TargetStatus]:
        return {name: status for name, status in target_statuses(files).items() if not only or name in only}

    load = lambda name: coolsd.load(name, **files.get(name, {}))  # noqa: E731
    return Backend(load, coolsd.stream, coolsd.METHODS, offered, run_queue or RunQueue())


@dataclass
class Loading:
    """A pair being loaded. `done` is set when `pair` or `error` is."""

    done: threading.Event = field(default_factory=threading.Event)
    pair: Pair | None = None
    error: str = ""


class Loader:
    """Loads each pair once, in a background thread, at the first request."""

    def __init__(self, load: Callable[[str], Pair]):
        self._load = load
        self._lock = threading.Lock()
        self.pairs: dict[str, Loading] = {}

    def start(self, name: str) -> Loading:
        """The pair's loading, begun if it was not or if it had failed."""
        with self._lock:
            loading = self.pairs.get(name)
            if loading is None or loading.error:
                loading = self.pairs[name] = Loading()
                threading.Thread(target=self._run, args=(name, loading), name=f"load {name}", daemon=True).start()
            return loading

    def is_loaded(self, name: str) -> bool:
        """Whether the pair is at hand."""
        loading = self.pairs.get(name)
        return loading is not None and loading.pair is not None

    def load_now(self, name: str) -> Loading:
        """The pair's loading, done in this thread: ZeroGPU emulates CUDA in the main one only."""
        with self._lock:
            loading = self.pairs[name] = Loading()
        self._run(name, loading)
        return loading

    def pair(self, name: str) -> Pair:
        """A pair that is loaded.

        Raises:
            KeyError: it was never asked for.
        """
        return self.pairs[name].pair

    def _run(self, name: str, loading: Loading) -> None:
        try:
            loading.pair = self._load(name)
        except Exception as error:
            log.exception("loading %s failed", name)
            loading.error = f"{type(error).__name__}: {error}"
        finally:
            loading.done.set()
