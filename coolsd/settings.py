"""What a person may ask for: one table of settings, and one place that refuses bad input.

Knows nothing of models. A field of `Settings` is a row of the table SETTINGS: default, limits, slider, label, help. `validate`, the
command line's options, the page's controls, the link, the endpoint's signature and its documentation are made from it. Everything that
enters the project from outside becomes a `Settings` and passes `validate` before any tensor is made.
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from numbers import Real
from typing import Any, Literal

from .trees import MAX_NODES, NAMED, depths, from_paths

MAX_PROMPT = 1000  # characters
MAX_DRAFT_LENGTH = 16
MAX_SEED = 2**32 - 1
ECHO = 60  # characters of a refused value that are repeated
TREES = ("auto", "dynamic", *NAMED)

Kind = Literal["prompt", "method", "number", "integer", "flag", "choice", "tree", "row"]
Group = Literal["request", "schedule", "rule", "sampling", "run"]  # where the page shows it; "run" is not on the page


class SettingsError(ValueError):
    """Bad input, with a message that tells the person what to do. `field` names the setting at fault."""

    def __init__(self, field: str, message: str):
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    Args:
        noun: what it is called in a sentence. label: on the page's control. help: what it does, to go behind the noun and a colon.
        limits: lowest and highest number taken. above: the lowest itself is not.
        slider: lowest, highest and step on the page, narrower so that it can be aimed.
        choices: of a choice, or the names of a tree or row. auto: what None means; empty where a value is needed.
    """

    name: str
    kind: Kind
    default: Any
    noun: str
    label: str = ""
    help: str = ""
    limits: tuple[float, float] = (0.0, 0.0)
    above: bool = False
    slider: tuple[float, float, float] | None = None
    choices: tuple[str, ...] = ()
    auto: str = ""
    group: Group = "sampling"

    @property
    def optional(self) -> bool:
        """Whether None is a value."""
        return bool(self.auto)

    @property
    def range(self) -> str:
        """What may be given, in words."""
        if self.kind in ("number", "integer"):
            low, high = self.limits
            start = f"above {low:g} and up to" if self.above else f"from {low:g} to"
            return f"a {'whole ' * (self.kind == 'integer')}number {start} {high:.10g}"
        if self.kind == "row":
            return f"auto, or 1 to {MAX_DRAFT_LENGTH} numbers from {self.limits[0]:g} to {self.limits[1]:g} with commas between"
        return {"flag": "true or false", "prompt": f"1 to {MAX_PROMPT} characters"}.get(self.kind, f"one of {', '.join(self.choices)}")

    @property
    def description(self) -> str:
        """One line for a command's help and for the endpoint's documentation."""
        return f"{self.noun}{': ' * bool(self.help)}{self.help}"


def _row(kind: Kind, default: Any, noun: str, *names: str, **more: Any) -> Any:
    """A field of `Settings` with its row; names: label and help."""
    return field(default=default, metadata={"kind": kind, "noun": noun, **dict(zip(("label", "help"), names, strict=False)), **more})


@dataclass(frozen=True)
class Settings:
    """Everything that determines a run's tokens besides the weights. Defaults are the paper's or the library's."""

    prompt: str = _row("prompt", "", "the prompt", "Prompt", "what to draw", group="request")
    method: str = _row("method", "coolsd", "the method", "Method", "how drafts are made and verified", group="request")
    delta: float = _row(
        "number",
        2.0,
        "δ, the total relaxation",
        "δ relaxation",
        "the mean of ω where μ is auto",
        limits=(0.0, 20.0),
        slider=(0.0, 8.0, 0.05),
        group="schedule",
    )
    nu: float = _row(
        "number",
        0.7,
        "ν, the annealing rate",
        "ν annealing",
        "how fast ω falls along the draft",
        limits=(-3.0, 3.0),
        slider=(-2.0, 2.0, 0.05),
        group="schedule",
    )
    mu: float | None = _row(
        "number",
        None,
        "μ, the normaliser",
        "μ",
        "ω is δ exp(-ν i - μ)",
        limits=(-10.0, 10.0),
        slider=(-5.0, 5.0, 0.05),
        auto="mean-normalised: the mean of ω is δ",
        group="schedule",
    )
    clamp: bool = _row("flag", False, "clamp", "clamp (ω ≥ 1)", "raise every ω below 1 to 1 (ours, not the paper's)", group="schedule")
    omega: str = _row(
        "row",
        "auto",
        "ω by hand",
        "ω by hand, like 1.4, 1.4, 1",
        "ω of each draft position, exact behind the last one named; auto makes it from δ, ν, μ and clamp",
        limits=(0.0, 1000.0),
        choices=("auto",),
        group="schedule",
    )
    draft_length: int = _row(
        "integer",
        5,
        "the draft length",
        "L draft length",
        "tokens drafted a round in a chain",
        limits=(1, MAX_DRAFT_LENGTH),
        slider=(1, 10, 1),
        group="schedule",
    )
    bias: float = _row(
        "number",
        0.06,
        "the bias budget",
        "Bias budget a token",
        "coolsd-fitted takes the fastest schedule that stays within it (total variation a token, as fitted on meadow)",
        limits=(0.0, 0.3),
        slider=(0.0, 0.2, 0.005),
        group="schedule",
    )
    tree: str = _row(
        "tree",
        "auto",
        "the draft's tree",
        "Draft tree; or its nodes, like [[0], [1], [0, 0]]",
        "a name, or its nodes by their ranks among siblings, like [[0], [1], [0, 0]]; auto is the method's own",
        choices=TREES,
        group="rule",
    )
    siblings: str = _row(
        "choice",
        "salvage",
        "the siblings",
        "Siblings relaxed",
        "where ω relaxes a tree: the first sibling once all are rejected (salvage), or every one",
        choices=("salvage", "every"),
        group="rule",
    )
    weight: float = _row(
        "number",
        0.8,
        "the target's weight",
        "Target's weight",
        "its share in diverse; 1 is lossless",
        limits=(0.0, 1.0),
        slider=(0.0, 1.0, 0.05),
        group="rule",
    )
    neighbours: int | None = _row(
        "integer",
        None,
        "the number of neighbours",
        "Nearest codes (0: the method's own)",
        "nearest codes that LANTERN may borrow from",
        limits=(1, 1000),
        slider=(1, 1000, 1),
        auto="the method's own, 1000 for LANTERN and 10 for LANTERN++",
        group="rule",
    )
    distance: str = _row(
        "choice",
        "raw",
        "the distance between codes",
        "Distance between codes",
        "of code vectors as they are, as in LANTERN, or normalised, as in decoding",
        choices=("raw", "normalised"),
        group="rule",
    )
    budget: float = _row(
        "number",
        0.1,
        "the probability budget",
        "Probability budget",
        "most probability that a code may borrow in LANTERN",
        limits=(0.0, 1.0),
        slider=(0.0, 1.0, 0.01),
        group="rule",
    )
    cap: float = _row(
        "number",
        2.0,
        "λ, the cap",
        "λ cap",
        "most that a code's probability may grow in LANTERN++, as a factor",
        limits=(1.001, 100.0),
        slider=(1.1, 10.0, 0.1),
        group="rule",
    )
    window: int = _row(
        "integer",
        16,
        "the window",
        "Jacobi window",
        "tokens that one pass of Jacobi drafting reads",
        limits=(2, MAX_NODES),
        slider=(2, 32, 1),
        group="rule",
    )
    coupling: str = _row(
        "choice",
        "maximal",
        "the coupling",
        "Coupling of guesses",
        "how an untested guess of Jacobi drafting is drawn anew so that it mostly stays",
        choices=("maximal", "gumbel"),
        group="rule",
    )
    pads: str = _row(
        "choice",
        "repeat",
        "the pads",
        "Pads of the window",
        "codes where Jacobi drafting has no guess yet: the one to the left, or random ones",
        choices=("repeat", "random"),
        group="rule",
    )
    temperature: float = _row(
        "number", 1.0, "the temperature", "Temperature", "0 takes the likeliest token", limits=(0.0, 5.0), slider=(0.0, 2.0, 0.05)
    )
    top_k: int = _row("integer", 0, "top-k", "Top-k (0: off)", "tokens kept; 0 keeps all", limits=(0, 65536), slider=(0, 16384, 1))
    top_p: float = _row(
        "number", 1.0, "top-p", "Top-p (1: off)", "probability kept; 1 keeps all", limits=(0.0, 1.0), above=True, slider=(0.05, 1.0, 0.01)
    )
    cfg_scale: float = _row(
        "number",
        4.0,
        "the guidance scale",
        "Guidance scale",
        "pull towards the prompt; 1 is off and halves the work",
        limits=(1.0, 20.0),
        slider=(1.0, 12.0, 0.1),
    )
    seed: int = _row(
        "integer", 0, "the seed", "Seed", "the same seed and settings give the same picture", limits=(0, MAX_SEED), slider=(0, MAX_SEED, 1)
    )
    max_tokens: int | None = _row(
        "integer", None, "the token limit", "", "stop after so many tokens", limits=(1, 65536), auto="the whole picture", group="run"
    )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


SETTINGS: dict[str, Setting] = {f.name: Setting(f.name, default=f.default, **f.metadata) for f in fields(Settings)}


def _number(s: Setting, value: Any) -> float | int | None:
    noun = s.noun + "," * ("," in s.noun)
    allowed = f"Give {noun} as {s.range}."
    if value is None:
        if s.optional:
            return None
        raise SettingsError(s.name, f"{noun[0].upper() if noun[0].isascii() else noun[0]}{noun[1:]} is empty. {allowed}")
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SettingsError(s.name, f"{echo(value)} is not a number. {allowed}")
    if not s.limits[0] <= value <= s.limits[1] or (s.above and value == s.limits[0]):
        raise SettingsError(s.name, f"{echo(value)} is out of range. {allowed}")
    if s.kind == "number":
        return float(value)
    if value != int(value):
        raise SettingsError(s.name, f"{echo(value)} is not a whole number. {allowed}")
    return int(value)


def echo(value: Any) -> str:
    """A refused value as it was given, cut: nobody is sent back what nobody can read."""
    text = repr(value)
    return text if len(text) <= ECHO else f"{text[:ECHO]}…"


def _flag(s: Setting, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(s.name, f"{echo(value)} is not a yes or no. Give {s.noun} as {s.range}.")
    return value


def _choice(s: Setting, value: Any) -> str:
    if not isinstance(value, str) or value not in s.choices:
        raise SettingsError(s.name, f"{echo(value)} is not a choice for {s.name}. Choose one of: {', '.join(s.choices)}.")
    return value


def _tree(s: Setting, value: Any) -> str:
    if isinstance(value, str) and value in s.choices:
        return value
    allowed = f"Choose one of {', '.join(s.choices)}, or list its nodes by their ranks among siblings, for example [[0], [1], [0, 0]]."
    try:
        nodes = json.loads(value) if isinstance(value, str) else [list(node) for node in value]
        if any(type(rank) is not int for node in nodes for rank in node):
            raise ValueError
        parents = from_paths(nodes)
    except (TypeError, ValueError, RecursionError):
        raise SettingsError(s.name, f"{echo(value)} is not a tree. {allowed}") from None
    if not 1 <= len(parents) <= MAX_NODES or max(depths(parents)) > MAX_DRAFT_LENGTH:
        limits = f"from 1 to {MAX_NODES} nodes and at most {MAX_DRAFT_LENGTH} levels"
        raise SettingsError(s.name, f"The tree has {len(parents)} nodes on {max(depths(parents))} levels. Give {limits}.")
    return json.dumps(nodes, allow_nan=False)


def numbers(text: str) -> list[float]:
    """The numbers of a row as `validate` gives it; none where it is auto."""
    return [] if text == "auto" else [float(part) for part in text.split(",")]


def _row_of_numbers(s: Setting, value: Any) -> str:
    text = value if isinstance(value, str) else ",".join(map(str, value)) if isinstance(value, (list, tuple)) else None
    allowed = f"Give {s.noun} as {s.range}."
    if text is None or len(text) > 400:
        raise SettingsError(s.name, f"{echo(value)} is not a row of numbers. {allowed}")
    if text.strip() in ("", *s.choices):
        return s.choices[0]
    try:
        row = [float(part) for part in text.strip(" []()").replace(";", ",").replace(" ", ",").split(",") if part]
    except ValueError:
        raise SettingsError(s.name, f"{echo(value)} is not a row of numbers. {allowed}") from None
    if not 1 <= len(row) <= MAX_DRAFT_LENGTH or not all(s.limits[0] <= one <= s.limits[1] for one in row):
        raise SettingsError(s.name, f"{echo(value)} is out of range. {allowed}")
    return ",".join(f"{one:.6g}" for one in row)


def _prompt(s: Setting, value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise SettingsError(s.name, f"The prompt is of type {type(value).__name__}. Give it as text.")
    words = " ".join("".join(c if c.isprintable() else " " for c in value or "").split())
    if not words:
        raise SettingsError(s.name, "The prompt is empty. Type a few words, for example: a pink rose on a dark background.")
    if len(value) > MAX_PROMPT:
        raise SettingsError(s.name, f"The prompt has {len(value)} characters. Shorten it to at most {MAX_PROMPT}.")
    return words


READERS = {
    "prompt": _prompt,
    "number": _number,
    "integer": _number,
    "flag": _flag,
    "choice": _choice,
    "tree": _tree,
    "row": _row_of_numbers,
}


def check(name: str, value: Any) -> Any:
    """One setting's value, as `validate` takes it; not for `method`, whose names only `validate` is told.

    Raises:
        SettingsError: with a message that says what to do.
    """
    return READERS[SETTINGS[name].kind](SETTINGS[name], value)


def validate(methods: Collection[str], **values: Any) -> Settings:
    """Settings from outside values, or a SettingsError that says what to do.

    Args:
        methods: names of the methods that can be run.
        values: any of Settings' fields; those left out keep their defaults.

    Raises:
        SettingsError: unknown field, wrong type, NaN or infinity, out of range, empty or over-long prompt, unknown method.
    """
    for name in values:
        if name not in SETTINGS:
            raise SettingsError(name, f"There is no setting called {echo(name)}. Known settings: {', '.join(sorted(SETTINGS))}.")
    method = values.get("method", SETTINGS["method"].default)
    checked = {name: check(name, values.get(name)) for name in SETTINGS if name == "prompt" or (name in values and name != "method")}
    if not isinstance(method, str) or method not in methods:
        raise SettingsError("method", f"There is no method called {echo(method)}. Choose one of: {', '.join(methods)}.")
    return Settings(**checked, method=method)
