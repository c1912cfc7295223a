"""From the page's controls, or a link's query string, to validated settings.

Knows nothing of layout. The order of CONTROLS is the order in which handlers receive values and in which a link spells them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..methods import Method
from ..models.catalog import TargetStatus, sampling_defaults
from ..settings import SETTINGS, Settings, SettingsError, check, echo, validate
from .backend import DEFAULT_TARGET, EMBEDDED
from .text import EXAMPLES


def _controls_of(*groups: str) -> tuple[str, ...]:
    """Names of the page's controls for settings of these groups. μ has two: a switch for auto, and the number."""
    names = (s.name for s in SETTINGS.values() if s.group in groups)
    return tuple(control for name in names for control in (("mu_auto", "mu") if name == "mu" else (name,)))


Value = bool | int | float | str | list | dict | None  # of a control as the browser or a program sends it: anything that JSON has
METHOD_SETTINGS = _controls_of("schedule", "rule")  # that only some methods use
CONTROLS = ("prompt", "target", "reference", "method", "plain", *METHOD_SETTINGS, *_controls_of("sampling"))
OWN = dict.fromkeys(("", "null", "None", "0"))  # neighbours: the method's own; gradio shows an empty number as 0 once it is made visible
DEFAULTS: dict[str, Value] = {
    **{name: SETTINGS[name].default for name in CONTROLS if name in SETTINGS},
    "prompt": EXAMPLES[0],
    "target": DEFAULT_TARGET,
    **sampling_defaults(DEFAULT_TARGET),
    "reference": "eagle1",
    "plain": True,
    "mu_auto": True,
    "mu": 0.0,
}


@dataclass(frozen=True)
class Request:
    """What Generate was pressed for: lanes that differ in their method only."""

    target: str
    reference: Settings
    relaxed: Settings
    plain: Settings | None = None  # plain AR beside them

    @property
    def lanes(self) -> list[Settings]:
        """The settings of every lane, from left to right."""
        return [self.reference, self.relaxed, *([self.plain] if self.plain else [])]


def read(values: Mapping[str, Value], methods: Collection[str], target_statuses: Mapping[str, TargetStatus] = EMBEDDED) -> Request:
    """Validated settings of every lane from the values of CONTROLS.

    Args:
        target_statuses: the targets, as models.catalog describes them.

    Raises:
        SettingsError: any value that `validate` refuses, or a target that this page cannot run.
    """
    target = values["target"]
    if not isinstance(target, str) or target not in target_statuses:
        raise SettingsError("target", f"There is no target called {echo(target)}. Choose one of: {', '.join(target_statuses)}.")
    if target_statuses[target].missing:
        lacking = f"{target_statuses[target].title} cannot run here yet; what it lacks stands under the target."
        raise SettingsError("target", f"{lacking} Choose {DEFAULT_TARGET}, which runs on any computer.")
    for switch, label in (("mu_auto", "μ auto"), ("plain", "plain AR too")):
        if not isinstance(values[switch], bool):
            raise SettingsError(
                switch.removesuffix("_auto"), f"{echo(values[switch])} is not a yes or no. Give '{label}' as true or false."
            )
    shared = {name: values[name] for name in CONTROLS if name not in ("target", "reference", "method", "plain", "mu_auto", "mu")}
    shared["mu"] = None if values["mu_auto"] else _present(values["mu"])
    shared["neighbours"] = OWN.get(str(values["neighbours"]), values["neighbours"])
    reference = validate(methods, **shared, method=values["reference"])
    relaxed = validate(methods, **shared, method=values["method"])
    beside = values["plain"] and "ar" not in (reference.method, relaxed.method)
    return Request(target, reference, relaxed, validate(methods, **shared, method="ar") if beside else None)


def matters(values: Mapping[str, Value], methods: Mapping[str, Method]) -> dict[str, Value]:
    """The values that decide what a run shows: of the settings that only some methods have, those of the two lanes."""
    active = listening(values, methods)
    return {name: values[name] for name in CONTROLS if name in active or name not in METHOD_SETTINGS}


def of_run(target: str, reference: Settings, relaxed: Settings) -> dict[str, Value]:
    """Control values that ask for these two lanes."""
    values = {name: getattr(relaxed, name, None) for name in CONTROLS}
    chosen = {"target": target, "reference": reference.method, "plain": DEFAULTS["plain"]}
    return values | chosen | {"mu_auto": relaxed.mu is None, "mu": relaxed.mu or 0.0}


def _present(mu: Value) -> Value:
    if mu is None:
        raise SettingsError("mu", "μ is empty. Give a number, or switch 'μ auto' on.")
    return mu


def listening(values: Mapping[str, Value], methods: Mapping[str, Method]) -> set[str]:
    """The controls of METHOD_SETTINGS that at least one of the two lanes listens to, as the others stand."""
    active = set()
    for method in (methods[values[lane]] for lane in ("reference", "method") if isinstance(values[lane], str) and values[lane] in methods):
        drafted = values["tree"] if "tree" in method.uses and values["tree"] != "auto" else method.tree
        active |= set(method.uses) - ({"siblings"} if drafted == "chain" else set())
        if drafted == "chain" and method.schedule is not None and not method.jacobi:
            active.add("draft_length")
    if "mu" in active:
        active = active - {"mu"} | {"mu_auto"} | (set() if values["mu_auto"] is True else {"mu"})
    return active


def from_query(
    query: Mapping[str, str], methods: Collection[str], target_statuses: Mapping[str, TargetStatus] = EMBEDDED
) -> tuple[dict[str, Value], list[str]]:
    """Control values a link asks for, and a sentence for each that was refused. Numbers may be all that `validate` takes, as anywhere."""
    values, notices = {}, []
    for name in CONTROLS:
        if name in query:
            try:
                values[name] = _target(query[name], target_statuses) if name == "target" else _parse(name, query[name], methods)
            except ValueError as error:
                notices.append(str(error).removesuffix("."))
    return values, notices


def span(name: str, value: Value) -> dict[str, float]:
    """The limits of a slider that has to show a value from outside of its usual range; empty for any other."""
    slider = SETTINGS[name].slider if name in SETTINGS else None
    if slider is None or value is None or slider[0] <= value <= slider[1]:
        return {}
    low, high, _ = slider
    return {"minimum": min(low, value), "maximum": max(high, value)}


def _target(text: str, target_statuses: Mapping[str, TargetStatus]) -> str:
    if text not in target_statuses:
        raise ValueError(f"there is no target called {text[:40]!r}, only {', '.join(target_statuses)}")
    if missing := target_statuses[text].missing:
        lacks = "; ".join(line.split(". ")[0].removesuffix(".") for line in missing)
        raise ValueError(f"target={text} cannot run here yet: {lacks} (choose it at the top for how to get it)")
    return text


def _parse(name: str, text: str, methods: Collection[str]) -> Value:
    """A control's value from a link.

    Raises:
        ValueError: in words that go into a list.
    """
    kind = SETTINGS[name].kind if name in SETTINGS else {"mu_auto": "flag", "plain": "flag", "reference": "method"}[name]
    if kind == "flag":
        if text not in ("true", "false"):
            raise ValueError(f"{name}={text[:40]} must be true or false")
        return text == "true"
    if kind == "method":
        if text not in methods:
            raise ValueError(f"{name}={text[:40]} must be one of {', '.join(methods)}")
        return text
    if name == "neighbours" and text in OWN:
        return None
    try:
        return check(name, _number(text) if kind in ("number", "integer") else text)
    except SettingsError as error:
        raise ValueError(str(error) if kind == "prompt" else f"{name}={text[:40]}: {error}") from None


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text[:40]
