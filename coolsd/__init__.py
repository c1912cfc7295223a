"""COOL-SD: annealed relaxation of speculative decoding for autoregressive image generation (arXiv 2601.09212).

`load` a pair, then `stream` rounds as they happen or `generate` a whole run.
"""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if sys.orig_argv[1:3] == ["-m", "coolsd"]:  # until the command runs: Ctrl-C in the seconds of these imports ends it without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch

from .decoding import decode, finished
from .methods import METHODS, Method, omega
from .protocols import Pair
from .settings import Settings, SettingsError, validate
from .trace import Round, Run, Stats, statistics

if TYPE_CHECKING:
    from .models.pair import LoadedPair

__all__ = [
    "METHODS",
    "Method",
    "Round",
    "Run",
    "Settings",
    "SettingsError",
    "Stats",
    "generate",
    "load",
    "omega",
    "statistics",
    "stream",
    "validate",
]


def load(
    name: str = "meadow", device: str | None = None, dtype: torch.dtype | str | None = None, **paths: str | Path | None
) -> "LoadedPair":
    """A target with its drafter, tokenizer and text encoder, ready to decode.

    Args:
        name: a name of the catalog; "meadow" ships with the project.
        device, dtype: None chooses, and for meadow measures.
        paths: files to use in place of the catalog's.

    Raises:
        LoadError: a file is missing or does not fit; the message names what differs.
    """
    from .models.loading import load as load_pair  # imports transformers, which is slow: a page can be drawn before

    return load_pair(name, device=device, dtype=dtype, **paths)


def stream(pair: Pair, prompt: str, method: str = "coolsd", *, inspect: int = 0, **settings: Any) -> Iterator[Round]:
    """Decode one picture, yielding each round as it happens. Closing the iterator stops the run and frees it.

    Args:
        method: a name of METHODS.
        inspect: entries of the p and q rows to keep in each round.
        settings: fields of Settings. Same settings and seed give the same tokens on the same device, dtype and thread count.

    Raises:
        SettingsError: at once, before any model runs, with a message that says what to do.
        TypeError: `pair` is not what `load` returns.
    """
    return decode(pair, _checked(pair, prompt, method, inspect, settings), inspect)


def generate(pair: Pair, prompt: str, method: str = "coolsd", *, inspect: int = 0, **settings: Any) -> Run:
    """Decode one picture to the end; arguments and errors as for `stream`. The run holds tokens, picture, rounds and statistics."""
    checked = _checked(pair, prompt, method, inspect, settings)
    run = finished(pair, checked, decode(pair, checked, inspect))
    run.image = pair.picture(run.tokens)
    return run


def _checked(pair: Pair, prompt: str, method: str, inspect: int, settings: dict[str, Any]) -> Settings:
    if not hasattr(pair, "begin"):
        raise TypeError(f"The first argument is a loaded pair, not {pair!r}. Load one: pair = coolsd.load('meadow').")
    checked = validate(METHODS, prompt=prompt, method=method, **settings)
    if not isinstance(inspect, int) or isinstance(inspect, bool) or inspect < 0:
        raise SettingsError("inspect", f"{inspect!r} is no number of entries to keep. Give a whole number, 0 or more.")
    return checked
