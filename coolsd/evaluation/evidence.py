"""Evidence: what methods and settings buy and what they cost, in the file that the page's tab of that name shows.

A file is JSON, written by `eval schedules` for meadow and by hand or by any other command for whatever was measured elsewhere:

    {"evidence": 1, "title": "…", "target": "llamagen-256", "command": "…", "date": "2026-12-01", "note": "…",
     "columns": {"fid": {"label": "FID", "axis": "cost", "better": "less"}},
     "rows": [{"method": "coolsd", "label": "COOL-SD", "settings": {"delta": 2.0}, "pictures": 500,
               "columns": {"accept_length": {"mean": 3.77, "low": 3.74, "high": 3.80}, "fid": {"mean": 31, "low": 30, "high": 32}}}],
     "findings": [{"claim": "…", "verdict": "holds", "words": "…", "sentence": "…"}]}

Rows of one label are a curve. `columns` describes what COLUMNS does not know; the first column of each axis that rows have is drawn.
low and high are the ends of a 95 % interval. Left out at will: command, date, note, columns, findings, and of a row settings, pictures
and thumbnails (up to three pictures as data URIs). Knows nothing of torch, of models and of the page.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from .. import checks, scene
from ..settings import SETTINGS, SettingsError, check

VERSION = 1
MOST_BYTES = 8 * 2**20
MOST_ROWS = 400
Axis = Literal["gain", "cost"]
Better = Literal["more", "less"]
VERDICTS = ("holds", "fails", "depends", "undecided")


@dataclass(frozen=True)
class Column:
    """A measure. axis: whether it is what relaxing buys (drawn to the right) or what it costs (drawn upwards)."""

    name: str
    label: str
    axis: Axis
    better: Better


COLUMNS = {
    column.name: column
    for column in (
        Column("accept_length", "tokens a target call", "gain", "more"),
        Column("speedup", "× plain AR, in seconds", "gain", "more"),
        Column("bias", "bias a token", "cost", "less"),
        Column("kl", "KL a token, nats", "cost", "less"),
        Column("log_p", "shift of log p a token, nats", "cost", "more"),
        Column("kid", "KID", "cost", "less"),
        Column("fid", "FID", "cost", "less"),
        Column("clip", "CLIP score", "cost", "more"),
    )
}


@dataclass(frozen=True)
class Figure:
    """A mean with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One method with its settings, as measured. label: of its curve. thumbnails: data URIs of pictures drawn with these settings."""

    method: str
    label: str
    columns: Mapping[str, Figure]
    settings: Mapping[str, Any] = field(default_factory=dict)
    pictures: int = 0
    thumbnails: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """A claim, whether it holds, and what was found. sentence: all of that for a student, with no figures but those that matter."""

    claim: str
    verdict: str  # holds | fails | depends | undecided
    words: str
    sentence: str = ""


@dataclass(frozen=True)
class Evidence:
    """Everything that the tab shows above the fold."""

    title: str
    target: str
    rows: tuple[Row, ...]
    columns: Mapping[str, Column]
    findings: tuple[Finding, ...] = ()
    command: str = ""
    date: str = ""
    note: str = ""

    def axis(self, which: Axis) -> list[Column]:
        """The columns of an axis that any row has, in their order."""
        return [c for c in self.columns.values() if c.axis == which and any(c.name in row.columns for row in self.rows)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `read` takes them."""
        plain = asdict(self) | {"evidence": VERSION}
        plain["columns"] = {name: {k: v for k, v in asdict(c).items() if k != "name"} for name, c in self.columns.items()}
        return plain


# ---- reading

_NUMBER = checks.real(-1e9, 1e9)
_NAME = checks.text(60)


def _figure(value: Any, where: str) -> Figure:
    figure = Figure(**checks.record({"mean": _NUMBER, "low": _NUMBER, "high": _NUMBER})(value, where))
    if not figure.low <= figure.high:
        raise checks.refuse(where, "has a low end above its high end")
    return figure


def _table(entry: checks.Check, most: int) -> checks.Check:
    """An object of at most so many entries by name."""

    def check_all(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping) or len(value) > most or not all(isinstance(name, str) and len(name) <= 60 for name in value):
            raise checks.refuse(where, f"is {checks.quote(value)}, not an object with at most {most} named entries")
        return {name: entry(one, f"{where}.{name}") for name, one in value.items()}

    return check_all


def _settings(value: Any, where: str) -> dict[str, Any]:
    out = _table(lambda one, _: one, len(SETTINGS))(value, where)
    for name, one in out.items():
        if name not in SETTINGS or name in ("prompt", "method"):
            raise checks.refuse(where, f"has {checks.quote(name)}, which is no setting of a row")
        try:
            out[name] = check(name, one)
        except SettingsError as error:
            raise checks.refuse(f"{where}.{name}", f"cannot be used: {error}") from None
    return out


def _thumbnail(value: Any, where: str) -> str:
    if not isinstance(value, str) or not scene.PATCH.fullmatch(value):
        raise checks.refuse(where, "is no picture as data URI (data:image/webp;base64,… or png)")
    return value


_COLUMN = checks.record({"label": _NAME, "axis": checks.one_of("gain", "cost"), "better": checks.one_of("more", "less")})
_ROW = checks.record(
    {"method": _NAME, "label": _NAME, "columns": _table(_figure, 40)},
    optional={
        "settings": _settings,
        "pictures": checks.integer(0, 10**9),
        "thumbnails": checks.list_of(_thumbnail, 0, 3),
    },
)
_FINDING = checks.record(
    {"claim": checks.text(200), "verdict": checks.one_of(*VERDICTS), "words": checks.text(800)}, optional={"sentence": checks.text(300)}
)
_EVIDENCE = checks.record(
    {
        "evidence": checks.integer(VERSION, VERSION),
        "title": checks.text(200),
        "target": _NAME,
        "rows": checks.list_of(lambda value, where: Row(**_ROW(value, where)), 1, MOST_ROWS),
    },
    optional={
        "columns": _table(_COLUMN, 40),
        "findings": checks.list_of(lambda value, where: Finding(**_FINDING(value, where)), 0, 40),
        "command": checks.text(400),
        "date": checks.text(40),
        "note": checks.text(1000),
    },
)


def from_plain(value: Any) -> Evidence:
    """Evidence from parsed JSON.

    Raises:
        ValueError: a field that is missing or wrong, in one line that says which.
    """
    values = _EVIDENCE(value, "")
    values.pop("evidence")
    own = {name: Column(name, **column) for name, column in values.pop("columns", {}).items()}
    columns = COLUMNS | own
    _refuse_unknown({name for row in values["rows"] for name in row.columns}, columns)
    evidence = Evidence(columns=columns, **values)
    for axis in ("gain", "cost"):
        if not evidence.axis(axis):
            raise checks.refuse("rows", f"have no column on the axis {axis!r}, so that there is nothing to draw; see `columns`")
    return evidence


def _refuse_unknown(names: Collection[str], columns: Collection[str]) -> None:
    if strange := sorted(set(names) - set(columns)):
        raise checks.refuse("rows", f"have the column {checks.quote(strange[0])}, which `columns` does not describe")


def read(path: Path) -> Evidence:
    """Evidence from a file.

    Raises:
        ValueError: too large, no JSON, or no evidence, in one line that says where.
        OSError: the file cannot be read.
    """
    if path.stat().st_size > MOST_BYTES:
        raise checks.Unreadable(f"{path.name} is larger than {MOST_BYTES // 2**20} MB: it holds no evidence.")
    return from_plain(checks.parse(path.read_bytes()))
