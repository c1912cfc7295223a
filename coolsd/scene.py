"""What is said around a recorded comparison: its words, a question, how it is first shown, and what rival codes would paint."""

import re
from dataclasses import asdict, dataclass
from typing import Any

from . import checks

LANES = ("reference", "relaxed", "plain")  # of a comparison, in the order they are shown
MAPS = ("picture", "tokens", "both")
CLOCKS = ("calls", "seconds")
Patches = dict[str, dict[str, str]]  # cell: code: the patch as data URI
PATCH = re.compile(r"data:image/(webp|png);base64,[A-Za-z0-9+/]+=*")
MOST_CELLS, MOST_CODES = 4096, 64


@dataclass(frozen=True)
class Question:
    """A guess to be made before the scene is revealed. answer: index among the choices."""

    text: str
    choices: tuple[str, ...]
    answer: int
    reveal: str = ""


@dataclass(frozen=True)
class Show:
    """How a scene is first shown; None leaves it to the page."""

    lane: str | None = None
    map: str | None = None
    clock: str | None = None
    round: int | None = None
    cell: int | None = None


@dataclass(frozen=True)
class Scene:
    """One step of a talk."""

    title: str
    sentence: str
    question: Question | None = None
    show: Show = Show()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `read` takes them."""
        return asdict(self)


_QUESTION = checks.record(
    {"text": checks.text(300), "choices": checks.list_of(checks.text(160), 2, 6), "answer": checks.integer(0, 5)},
    optional={"reveal": checks.text(800)},
)
_SHOW = checks.record(
    {},
    optional={
        "lane": checks.maybe(checks.one_of(*LANES)),
        "map": checks.maybe(checks.one_of(*MAPS)),
        "clock": checks.maybe(checks.one_of(*CLOCKS)),
        "round": checks.maybe(checks.integer(0, 2**16)),
        "cell": checks.maybe(checks.integer(0, 2**16)),
    },
)
_SCENE = checks.record(
    {"title": checks.text(120), "sentence": checks.text(400)}, optional={"question": checks.maybe(_QUESTION), "show": _SHOW}
)


def read(value: Any, where: str) -> Scene:
    """A scene from plain values.

    Raises:
        ValueError: a field that is missing or wrong.
    """
    values = _SCENE(value, where)
    question = values.get("question")
    if question and question["answer"] >= len(question["choices"]):
        raise checks.refuse(f"{where}.question.answer", f"is {question['answer']}, which is none of {len(question['choices'])} choices")
    return Scene(values["title"], values["sentence"], Question(**question) if question else None, Show(**values.get("show", {})))


def read_patches(value: Any, where: str) -> Patches:
    """Patches of one lane from plain values: pictures as data URIs and nothing else.

    Raises:
        ValueError: not so.
    """
    if not isinstance(value, dict) or len(value) > MOST_CELLS or not all(_is_number(cell) for cell in value):
        raise checks.refuse(where, f"is {checks.quote(value)}, not patches by cell")
    for cell, by_code in value.items():
        whole = isinstance(by_code, dict) and len(by_code) <= MOST_CODES and all(_is_number(code) for code in by_code)
        if not whole or not all(isinstance(patch, str) and PATCH.fullmatch(patch) for patch in by_code.values()):
            raise checks.refuse(f"{where}.{cell}", "is no table of pictures by code")
    return value


def _is_number(name: Any) -> bool:
    return isinstance(name, str) and name.isascii() and name.isdigit() and len(name) <= 6
