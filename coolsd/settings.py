"""What a person may ask for: one dataclass, one place that refuses bad input.

Knows nothing of models. Everything that enters the project from outside (page, command line, API, a stored run) becomes a `Settings`
and passes `validate` before any tensor is made.
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any

from .trees import MAX_NODES, NAMED, depths, from_paths

MAX_PROMPT = 1000  # characters
MAX_DRAFT_LENGTH = 16
MAX_SEED = 2**32 - 1


class SettingsError(ValueError):
    """Bad input, with a message that tells the person what to do. `field` names the setting at fault."""

    def __init__(self, field: str, message: str):
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Settings:
    """Everything that determines a run's tokens besides the weights. Defaults are the paper's or the pair's."""

    prompt: str = ""
    method: str = "coolsd"
    delta: float = 2.0  # total relaxation: the mean of ω when mu is None
    nu: float = 0.7  # annealing rate per draft position (paper)
    mu: float | None = None  # None: mean-normalised (derived)
    clamp: bool = False  # max(1, ω): ours, not the paper's
    draft_length: int = 5  # of a chain; a tree has its own depth
    tree: str = "auto"  # draft shape: a name of TREES, or own nodes as JSON; auto: the method's
    siblings: str = "salvage"  # where ω relaxes a tree: the first sibling once all are rejected (derived), or every sibling
    weight: float = 0.8  # of the target in `diverse`
    neighbours: int | None = None  # nearest codes LANTERN may borrow from; None: 1000, and 10 for LANTERN++
    distance: str = "raw"  # between code vectors: raw as in LANTERN, or normalised as in decoding
    budget: float = 0.1  # LANTERN: most probability a code may borrow
    cap: float = 2.0  # λ of LANTERN++: most a code's probability may grow, as a factor
    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    cfg_scale: float = 4.0
    seed: int = 0
    max_tokens: int | None = None  # None: the whole picture

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


# name: (lowest, highest, what to say it is)
NUMBERS: dict[str, tuple[float, float, str]] = {
    "delta": (0.0, 20.0, "δ, the total relaxation"),
    "nu": (-3.0, 3.0, "ν, the annealing rate"),
    "mu": (-10.0, 10.0, "μ, the normaliser"),
    "draft_length": (1, MAX_DRAFT_LENGTH, "the draft length"),
    "weight": (0.0, 1.0, "the target's weight"),
    "neighbours": (1, 1000, "the number of neighbours"),
    "budget": (0.0, 1.0, "the probability budget"),
    "cap": (1.001, 100.0, "λ, the cap"),
    "temperature": (0.0, 5.0, "the temperature"),
    "top_k": (0, 65536, "top-k"),
    "top_p": (0.0, 1.0, "top-p"),
    "cfg_scale": (1.0, 20.0, "the guidance scale"),
    "seed": (0, MAX_SEED, "the seed"),
    "max_tokens": (1, 65536, "the token limit"),
}
INTEGERS = {"draft_length", "neighbours", "top_k", "seed", "max_tokens"}
OPTIONAL = {"mu", "neighbours", "max_tokens"}
CHOICES = {"siblings": ("salvage", "every"), "distance": ("raw", "normalised")}
TREES = ("auto", "dynamic", *NAMED)


def _number(name: str, value: Any) -> float | int | None:
    low, high, label = NUMBERS[name]
    label += "," if "," in label else ""
    allowed = f"Give {label} as a {'whole ' if name in INTEGERS else ''}number from {low:g} to {high:.10g}."
    if value is None:
        if name in OPTIONAL:
            return None
        first = label[0].upper() if label[0].isascii() else label[0]
        raise SettingsError(name, f"{first}{label[1:]} is empty. {allowed}")
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SettingsError(name, f"{value!r} is not a number. {allowed}")
    if not low <= value <= high:
        raise SettingsError(name, f"{value!r} is out of range. {allowed}")
    if name in INTEGERS:
        if value != int(value):
            raise SettingsError(name, f"{value!r} is not a whole number. {allowed}")
        return int(value)
    return float(value)


def _tree(value: Any) -> str:
    if isinstance(value, str) and value in TREES:
        return value
    allowed = f"Choose one of {', '.join(TREES)}, or list its nodes by their ranks among siblings, for example [[0], [1], [0, 0]]."
    try:
        nodes = json.loads(value) if isinstance(value, str) else [list(node) for node in value]
        parents = from_paths(nodes)
    except (TypeError, ValueError, RecursionError):
        raise SettingsError("tree", f"{str(value)[:60]!r} is not a tree. {allowed}") from None
    if not 1 <= len(parents) <= MAX_NODES or max(depths(parents)) > MAX_DRAFT_LENGTH:
        limits = f"from 1 to {MAX_NODES} nodes and at most {MAX_DRAFT_LENGTH} levels"
        raise SettingsError("tree", f"The tree has {len(parents)} nodes on {max(depths(parents))} levels. Give {limits}.")
    return json.dumps(nodes)


def _prompt(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise SettingsError("prompt", f"The prompt is of type {type(value).__name__}. Give it as text.")
    if not value or not value.strip():
        raise SettingsError("prompt", "The prompt is empty. Type a few words, for example: a pink rose on a dark background.")
    if len(value) > MAX_PROMPT:
        raise SettingsError("prompt", f"The prompt has {len(value)} characters. Shorten it to at most {MAX_PROMPT}.")
    return " ".join(value.split())


def validate(methods: Collection[str], **values: Any) -> Settings:
    """Settings from outside values, or a SettingsError that says what to do.

    Args:
        methods: names of the methods that can be run.
        values: any of Settings' fields; those left out keep their defaults.

    Raises:
        SettingsError: unknown field, wrong type, NaN or infinity, out of range, empty or over-long prompt, unknown method.
    """
    known = {f.name for f in fields(Settings)}
    for name in values:
        if name not in known:
            raise SettingsError(name, f"There is no setting called {name!r}. Known settings: {', '.join(sorted(known))}.")
    clean: dict[str, Any] = {"prompt": _prompt(values.get("prompt"))}
    for name in NUMBERS:
        if name in values:
            clean[name] = _number(name, values[name])
    if "clamp" in values:
        if not isinstance(values["clamp"], bool):
            raise SettingsError("clamp", f"{values['clamp']!r} is not a yes or no. Give clamp as true or false.")
        clean["clamp"] = values["clamp"]
    for name, choices in CHOICES.items():
        if name in values:
            if values[name] not in choices:
                raise SettingsError(name, f"{values[name]!r} is not a choice for {name}. Choose one of: {', '.join(choices)}.")
            clean[name] = values[name]
    if "tree" in values:
        clean["tree"] = _tree(values["tree"])
    method = values.get("method", Settings.method)
    if not isinstance(method, str) or method not in methods:
        raise SettingsError("method", f"There is no method called {method!r}. Choose one of: {', '.join(methods)}.")
    if clean.get("top_p") == 0.0:
        raise SettingsError("top_p", "Top-p of 0 leaves no token to draw. Give a number above 0, or 1 to turn it off.")
    return Settings(**clean, method=method)
