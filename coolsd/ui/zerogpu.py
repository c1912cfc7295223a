"""The way from the page to the models: in this process, or on ZeroGPU through `spaces` to one that has a GPU for as long as a run takes.

ZeroGPU forks a process for a decorated generator and sends what it yields through a pipe. The main process has no GPU: it knows a pair's
name, grid and text, and touches no tensor of a model. Same generator, same events on both ways.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from statistics import median

import gradio as gr
from PIL import Image

from ..models.catalog import CATALOG
from ..models.pair import on_zero_gpu
from ..protocols import Pair
from .backend import Backend, Loader
from .comparison import Advance, Event, Plain, comparison

AT_ONCE = 4  # runs that may wait for a GPU together: the platform has a queue of its own
COLD = 8.0  # seconds a new process takes to have the models on its GPU
MOST = 90.0  # seconds asked for at once: under the 120 of a day that a visitor has who is not signed in
LOCALLY = "or run the demo on your own computer"
NOT_OURS = (
    "Try re-running",
    "Subscribe to",
    "Authenticate with",
    "Add credits",
    "Create a free",
)  # from there on the message sells or misleads
ADVICE = {
    "quota exceeded": f"Sign in to Hugging Face for more GPU time, {LOCALLY}.",
    "illegal duration": f"Choose a smaller target or fewer lanes, {LOCALLY}.",
    "aborted": "The GPU's process ended before the run did. Press Generate to try again.",
    "No GPU was available": "Press Generate again in a minute.",
    "Expired": "Reload the page, and press Generate again.",
}


class Refused(Exception):
    """The run cannot go on; the message is for the person who asked."""


def advise(error: gr.Error) -> Refused:
    """The platform's refusal in its words, and what to do."""
    message = str(error.message)
    for offer in NOT_OURS:
        message = message.partition(offer)[0]
    words = f"{error.title}: {message.rstrip('. ')}."
    return Refused(f"{words} {next((advice for cause, advice in ADVICE.items() if cause in words), '')}".rstrip())


class Door:
    """Events of a comparison, wherever it is decoded. waiting: what to say until the first one."""

    def __init__(self, backend: Backend, loader: Loader):
        self._loader = loader
        self._seen: dict[str, float] = {}  # seconds of a pass, by target
        self.waiting = "Waiting for a GPU." if on_zero_gpu() else ""

        def events(target: str, requests: Sequence[Plain]) -> Iterator[Event]:
            pair = loader.pair(target)
            if on_zero_gpu():
                pair.wake()
            yield from comparison(pair, backend.stream, requests)

        self._events: Callable[[str, Sequence[Plain]], Iterator[Event]] = events
        if on_zero_gpu():
            import spaces

            self._events = spaces.GPU(events, duration=self.estimate)

    def estimate(self, target: str, requests: Sequence[Plain]) -> int:
        """Seconds of GPU to ask for: a cold start, and every lane as if each of its tokens took a pass (plain AR's bound)."""
        spec = CATALOG[target]
        tokens = sum(request.get("max_tokens") or spec.length for request in requests)
        return round(min(MOST, COLD + tokens * self._seen.get(target, spec.pass_seconds)))

    def redraw(self, pair: Pair) -> Callable[[list[int]], Image.Image] | None:
        """The picture of some tokens; None where this process has no models."""
        return None if on_zero_gpu() else pair.picture

    def __call__(self, target: str, requests: Sequence[Plain]) -> Iterator[Event]:
        """See comparison.comparison; iterate it where gradio runs the handler, whose context holds the visitor's token.

        Raises:
            Refused: the platform gives no GPU, or took it away.
        """
        passes = []
        try:
            with closing(self._events(target, requests)) as events:
                for event in events:
                    if isinstance(event, Advance):
                        passes.append(event.round.seconds)
                    yield event
        except gr.Error as error:
            raise advise(error) from None
        if passes:
            self._seen[target] = median(passes)
