"""Checks of values that come from outside as JSON: each takes a value and where it stands, and gives it back clean or says what is wrong.

Knows nothing of what is checked. A check is a function of (value, where); the functions here make one, and combine into larger ones.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Check = Callable[[Any, str], Any]


class Unreadable(ValueError):
    """A value from outside that cannot be used, with one line that says which and why."""


def refuse(where: str, problem: str) -> Unreadable:
    """The error for a value at `where`, to be raised."""
    return Unreadable(f"{where or 'the file'} {problem}")


def quote(value: Any) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def parse(text: str | bytes) -> Any:
    """A value from JSON text; NaN and infinities, which are no JSON, are refused.

    Raises:
        Unreadable: not JSON.
    """

    def constant(name: str) -> None:
        raise Unreadable(f"holds {name}, which is no JSON number")

    try:
        return json.loads(text, parse_constant=constant)
    except Unreadable as error:
        raise refuse("", str(error)) from None
    except UnicodeDecodeError:
        raise refuse("", "is not text, so it is no JSON either") from None
    except json.JSONDecodeError as error:
        raise refuse("", f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError):
        raise refuse("", "holds a number or a nesting that no run has") from None


def integer(low: int, high: int) -> Check:
    """A whole number in [low, high]."""

    def check(value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise refuse(where, f"is {quote(value)}, not a whole number from {low} to {high}")
        return value

    return check


def real(low: float, high: float) -> Check:
    """A number in [low, high], as float."""

    def check(value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise refuse(where, f"is {quote(value)}, not a number from {low:g} to {high:g}")
        return float(value)

    return check


def flag(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise refuse(where, f"is {quote(value)}, not true or false")
    return value


def text(most: int) -> Check:
    """A string of at most so many characters."""

    def check(value: Any, where: str) -> str:
        if not isinstance(value, str) or len(value) > most:
            raise refuse(where, f"is {quote(value)}, not text of at most {most} characters")
        return value

    return check


def one_of(*words: str) -> Check:
    """One of these strings."""

    def check(value: Any, where: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise refuse(where, f"is {quote(value)}, not one of {', '.join(words)}")
        return value

    return check


def maybe(check: Check) -> Check:
    """As `check`, or null."""
    return lambda value, where: None if value is None else check(value, where)


def list_of(check: Check, low: int, high: int) -> Check:
    """A list of low to high such values, as tuple."""

    def check_all(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not low <= len(value) <= high:
            size = f"{low} to {high}" if low < high else str(low)
            raise refuse(where, f"is {quote(value)}, not a list with {size} entries")
        return tuple(check(entry, f"{where}[{i}]") for i, entry in enumerate(value))

    return check_all


def record(fields: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with exactly these fields, and some of the optional ones, as dict."""
    optional = optional or {}
    by_name = {**fields, **optional}

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise refuse(where, f"is {quote(value)}, not an object")
        if missing := [name for name in fields if name not in value]:
            raise refuse(where, f"lacks {missing[0]!r}")
        if unknown := [name for name in value if name not in by_name]:
            raise refuse(where, f"has {quote(unknown[0])}, which no run has")
        return {name: by_name[name](entry, f"{where}.{name}".lstrip(".")) for name, entry in value.items()}

    return check
