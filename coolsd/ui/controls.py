"""From the page's controls, or a link's query string, to validated settings.

Knows nothing of layout. The order of CONTROLS is the order in which handlers receive values and in which a link spells them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..settings import CHOICES, MAX_PROMPT, Settings, SettingsError, validate
from .backend import DEFAULT_TARGET, EMBEDDED
from .text import EXAMPLES

METHOD_SETTINGS = (  # that only some methods use
    "delta",
    "nu",
    "mu_auto",
    "mu",
    "clamp",
    "draft_length",
    "tree",
    "siblings",
    "weight",
    "neighbours",
    "distance",
    "budget",
    "cap",
)
CONTROLS = (
    "prompt",
    "target",
    "reference",
    "method",
    *METHOD_SETTINGS,
    "temperature",
    "top_k",
    "top_p",
    "cfg_scale",
    "seed",
)
FLAGS = {"mu_auto", "clamp"}
WORDS = {"tree", *CHOICES}
OWN = dict.fromkeys(("", "null", "None", "0"))  # neighbours: the method's own; gradio shows an empty number as 0 once it is made visible
DEFAULTS: dict[str, Any] = {
    **{name: getattr(Settings(), name) for name in CONTROLS if hasattr(Settings(), name)},
    "prompt": EXAMPLES[0],
    "target": DEFAULT_TARGET,
    "top_k": 500,  # meadow's pictures lose stray codes by it; the library's default keeps all
    "reference": "eagle1",
    "mu_auto": True,
    "mu": 0.0,
}

# lowest, highest, step: what a slider spans. Narrower than what `validate` takes, so that a slider can be aimed.
RANGES: dict[str, tuple[float, float, float]] = {
    "delta": (0.0, 8.0, 0.05),
    "nu": (-2.0, 2.0, 0.05),
    "mu": (-5.0, 5.0, 0.05),
    "draft_length": (1, 10, 1),
    "weight": (0.0, 1.0, 0.05),
    "neighbours": (1, 1000, 1),
    "budget": (0.0, 1.0, 0.01),
    "cap": (1.1, 10.0, 0.1),
    "temperature": (0.0, 2.0, 0.05),
    "top_k": (0, 16384, 1),
    "top_p": (0.05, 1.0, 0.01),
    "cfg_scale": (1.0, 12.0, 0.1),
    "seed": (0, 2**32 - 1, 1),
}


@dataclass(frozen=True)
class Request:
    """What Generate was pressed for: two lanes that differ in their method only."""

    target: str
    reference: Settings
    relaxed: Settings


def read(values: Mapping[str, Any], methods: Collection[str], target_statuses: Mapping[str, Any] = EMBEDDED) -> Request:
    """Two validated settings from the values of CONTROLS.

    Args:
        offers: the targets, as models.catalog describes them.

    Raises:
        SettingsError: any value that `validate` refuses, or a target that this page cannot run.
    """
    target = values["target"]
    if not isinstance(target, str) or target not in target_statuses:
        raise SettingsError("target", f"There is no target called {target!r}. Choose one of: {', '.join(target_statuses)}.")
    if target_statuses[target].missing:
        lacking = f"{target_statuses[target].title} cannot run here yet; what it lacks stands under the target."
        raise SettingsError("target", f"{lacking} Choose {DEFAULT_TARGET}, which runs on any computer.")
    if not isinstance(values["mu_auto"], bool):
        raise SettingsError("mu", f"{values['mu_auto']!r} is not a yes or no. Give 'μ auto' as true or false.")
    shared = {name: values[name] for name in CONTROLS if name not in ("target", "reference", "method", "mu_auto", "mu")}
    shared["mu"] = None if values["mu_auto"] else _present(values["mu"])
    shared["neighbours"] = OWN.get(str(values["neighbours"]), values["neighbours"])
    reference = validate(methods, **shared, method=values["reference"])
    return Request(target, reference, validate(methods, **shared, method=values["method"]))


def _present(mu: Any) -> Any:
    if mu is None:
        raise SettingsError("mu", "μ is empty. Give a number, or switch 'μ auto' on.")
    return mu


def listening(values: Mapping[str, Any], methods: Mapping[str, Any]) -> set[str]:
    """The controls of METHOD_SETTINGS that at least one of the two methods uses, given the other values."""
    active = set()
    for method in (methods[values[lane]] for lane in ("reference", "method") if values[lane] in methods):
        drafted = values["tree"] if "tree" in method.uses and values["tree"] != "auto" else method.tree
        active |= set(method.uses) - ({"siblings"} if drafted == "chain" else set())
        if drafted == "chain" and method.schedule is not None:
            active.add("draft_length")
    if "mu" in active:
        active = active - {"mu"} | {"mu_auto"} | (set() if values["mu_auto"] is True else {"mu"})
    return active


def from_query(
    query: Mapping[str, str], methods: Collection[str], target_statuses: Mapping[str, Any] = EMBEDDED
) -> tuple[dict[str, Any], list[str]]:
    """Control values a link asks for, and a sentence for each that was refused. Numbers may be all that `validate` takes, as anywhere."""
    values, notices = {}, []
    for name in CONTROLS:
        if name in query:
            try:
                values[name] = _target(query[name], target_statuses) if name == "target" else _parse(name, query[name], methods)
            except ValueError as error:
                notices.append(str(error).removesuffix("."))
    return values, notices


def span(name: str, value: Any) -> dict[str, float]:
    """The limits of a slider that has to show a value from outside of its usual range; empty for any other."""
    low, high, _ = RANGES.get(name, (0, 0, 0))
    if name not in RANGES or value is None or low <= value <= high:
        return {}
    return {"minimum": min(low, value), "maximum": max(high, value)}


def _target(text: str, target_statuses: Mapping[str, Any]) -> str:
    if text not in target_statuses:
        raise ValueError(f"there is no target called {text[:40]!r}, only {', '.join(target_statuses)}")
    if missing := target_statuses[text].missing:
        lacks = "; ".join(line.split(". ")[0].removesuffix(".") for line in missing)
        raise ValueError(f"target={text} cannot run here yet: {lacks} (choose it at the top for how to get it)")
    return text


def _parse(name: str, text: str, methods: Collection[str]) -> Any:
    if name == "prompt":
        if not text.strip() or len(text) > MAX_PROMPT:
            raise ValueError(f"prompt must have 1 to {MAX_PROMPT} characters")
        return text
    if name in FLAGS:
        if text not in ("true", "false"):
            raise ValueError(f"{name}={text[:40]} must be true or false")
        return text == "true"
    if name in ("reference", "method"):
        if text not in methods:
            raise ValueError(f"{name}={text[:40]} must be one of {', '.join(methods)}")
        return text
    if name == "neighbours" and text in OWN:
        return None
    if name in WORDS:
        return getattr(validate([Settings.method], prompt="-", **{name: text}), name)
    try:
        return getattr(validate([Settings.method], prompt="-", **{name: _number(text)}), name)
    except SettingsError as error:
        raise ValueError(f"{name}={text[:40]}: {error}") from None


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text[:40]
