"""The public endpoint: one picture by one method, for `gradio_client` and other programs."""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from threading import Event
from time import perf_counter
from typing import Any

import gradio as gr

from ..exports import data_uri, png
from ..models.prompt_domain import notice
from ..settings import Settings, SettingsError, validate
from .backend import DEFAULT_TARGET, Backend, Full, Loader
from .compare import PACE, wait_for_turn
from .lanes import Lane
from .text import CHANGE, FAILED, FULL

log = logging.getLogger(__name__)


PARAMETERS = {
    "prompt": "What to draw, 1 to 1000 characters",
    "method": "ar, eagle1, coolsd, or another method the page offers",
    "delta": "Total relaxation, 0 to 20",
    "nu": "Annealing rate of the relaxation, -3 to 3",
    "mu": "Normaliser of the relaxation, -10 to 10; null makes the mean of the schedule equal delta",
    "clamp": "Never stricter than lossless",
    "draft_length": "Tokens drafted a round in a chain, 1 to 16",
    "tree": "Draft shape: auto, chain, dynamic, mc_sim_7b_63, naive_extend_57, or own nodes as a JSON list",
    "siblings": "Where a tree is relaxed: salvage or every",
    "weight": "Target's share in diverse, 0 to 1",
    "neighbours": "Nearest codes LANTERN may borrow from, 1 to 1000; null takes the method's own",
    "distance": "Between code vectors: raw or normalised",
    "budget": "LANTERN's probability budget, 0 to 1",
    "cap": "The factor of LANTERN++, above 1",
    "temperature": "0 to 5; 0 takes the likeliest token",
    "top_k": "Keep this many tokens; 0 keeps all",
    "top_p": "Keep this much probability, above 0 and up to 1",
    "cfg_scale": "Guidance towards the prompt, 1 to 20; 1 is off and halves the work",
    "seed": "0 to 4294967295; the same seed and settings give the same picture",
    "max_tokens": "Stop after so many tokens; null draws the whole picture",
}


def publish(demo: gr.Blocks, backend: Backend, loader: Loader) -> None:
    """Add /generate to the page being built, every parameter described; its runs queue with the page's own."""
    gr.api(endpoint(backend, loader), api_name="generate", concurrency_limit=None)
    published = next(function for function in demo.fns.values() if function.api_name == "generate")
    for block, meaning in zip(published.inputs, PARAMETERS.values(), strict=True):
        block.label = meaning


def endpoint(backend: Backend, loader: Loader) -> Callable[..., Any]:
    """The function behind /generate, bound to a backend. Its signature and docstring become the endpoint's schema."""

    def generate(
        prompt: str,
        method: str = "coolsd",
        delta: float = 2.0,
        nu: float = 0.7,
        mu: float | None = None,
        clamp: bool = False,
        draft_length: int = 5,
        tree: str = "auto",
        siblings: str = "salvage",
        weight: float = 0.8,
        neighbours: int | None = None,
        distance: str = "raw",
        budget: float = 0.1,
        cap: float = 2.0,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        cfg_scale: float = Settings.cfg_scale,
        seed: int = 0,
        max_tokens: int | None = None,
    ) -> dict:
        """Draw one picture with the embedded pair and say how it went.

        Yields {"tokens": so far, "of": in all} while it decodes, and at last {"image": PNG data URI with the settings in its metadata,
        "run": settings, environment, statistics and every round, "notice": what to know when the prompt lies outside what the pair paints}.
        """
        arguments = locals()
        try:
            settings = validate(backend.methods, **{name: arguments[name] for name in PARAMETERS})
            yield from decode(backend, loader, settings)
        except (SettingsError, Full) as error:
            raise gr.Error(str(error), title=FULL if isinstance(error, Full) else CHANGE, print_exception=False) from None
        except Exception as error:
            log.exception("the run failed")
            message = f"The run failed: {type(error).__name__}: {error}. Try again, or change the settings."
            raise gr.Error(message, title=FAILED, print_exception=False) from None

    return generate


def decode(backend: Backend, loader: Loader, settings: Settings) -> Iterator[dict[str, Any]]:
    """Progress while the picture is decoded, then the picture and its run. Closing it stops the run."""
    with backend.run_queue.place() as ahead:
        for _ in wait_for_turn(ahead, Event()):
            yield {"tokens": 0, "of": 0}
        loading = loader.start(DEFAULT_TARGET)
        while not loading.done.wait(PACE):
            yield {"tokens": 0, "of": 0}
        if loading.error:
            raise RuntimeError(f"{DEFAULT_TARGET} could not be loaded ({loading.error})")
        pair = loading.pair
        lane = Lane(settings, tuple(pair.grid))
        last_update = perf_counter()
        with closing(backend.stream(pair, **settings.to_dict())) as rounds:
            for event in rounds:
                lane.rounds.append(event)
                if perf_counter() - last_update >= PACE:
                    last_update = perf_counter()
                    yield {"tokens": len(lane.tokens), "of": settings.max_tokens or pair.grid[0] * pair.grid[1]}
    lane.image = pair.picture(lane.tokens)
    run = lane.run(pair.name, pair.environment)
    yield {"image": data_uri(png(lane.image, run), "image/png"), "run": run.to_dict(), "notice": notice(pair, settings.prompt)}
