"""What was measured, as a table in Markdown beside the paper's numbers, as a file of evidence for the page, and as a figure."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..claims.statistics import Effect
from ..evidence import COLUMNS, VERSION, Column, from_plain
from ..quality.cards import table
from .figures import Row
from .paper import PAPER, SOURCE, Reported

# column: its head, factor and digits
SHOWN = {
    "fid": ("FID", 1, 2),
    "kid": ("KID × 1000", 1000, 2),
    "clip": ("CLIP", 1, 4),
    "reward": ("ImageReward", 1, 4),
    "accept_length": ("accept length", 1, 2),
    "target_calls": ("target calls", 1, 1),
    "seconds": ("s a picture", 1, 2),
    "speedup": ("× AR", 1, 2),
    "bias": ("bias a token", 1, 4),
    "kl": ("KL a token", 1, 4),
}
DIFFERENCES = ("fid", "kid", "clip", "reward")
OWN_COLUMNS = {  # of the evidence file, beside those it knows
    "reward": Column("reward", "ImageReward", "cost", "more"),
    "target_calls": Column("target_calls", "target calls a picture", "gain", "less"),
    "seconds": Column("seconds", "seconds a picture", "gain", "less"),
}
ABSENT = "–"


def cell(effect: Effect | None, column: str) -> str:
    """A figure with the ends of its interval, where it has one."""
    if effect is None:
        return ABSENT
    _, factor, digits = SHOWN[column]
    value, low, high = (f"{factor * x:.{digits}f}" for x in (effect.value, effect.low, effect.high))
    return f"{value} [{low}, {high}]" if math.isfinite(effect.low) else value


def _paper_row(title: str, row: Reported) -> list[str]:
    """The paper's figures in our columns."""
    figures = {name: getattr(row, name) for name in ("fid", "clip", "reward", "accept_length", "seconds", "speedup")}
    return [f"*the paper: {title}, {row.method}*", *(f"*{figures[name]:g}*" if name in figures else ABSENT for name in SHOWN)]


def markdown(report: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Title, conditions, the table with the paper's rows under it, differences from plain AR, and what the columns mean."""
    lines = [[row.label, *(cell(row.columns.get(name), name) for name in SHOWN)] for row in rows]
    title, reported = PAPER.get(report["target"], ("", ()))
    lines += [_paper_row(title, row) for row in reported]
    parts = [f"# {title_of(report)}", f"`{report['command']}`", table(["method", *(head for head, _, _ in SHOWN.values())], lines)]
    changes = [[row.label, *(cell(row.against_ar.get(name), name) for name in DIFFERENCES)] for row in rows if row.against_ar]
    if changes:
        parts.append("Less plain AR, prompt by prompt:\n\n" + table(["method", *(SHOWN[name][0] for name in DIFFERENCES)], changes))
    paper = f"Rows in italics are the paper's own ({SOURCE})." if reported else f"The paper has no numbers for {report['target']}."
    return "\n\n".join([*parts, f"{paper} {report['note']}"]) + "\n"


def title_of(report: Mapping[str, Any]) -> str:
    """What was measured, in a line, which says where it is only a look."""
    quick = f", a quick look at the first {report['prompts']} of {report['of']} prompts" if report["prompts"] < report["of"] else ""
    return f"{report['target']} on {report['captions']}{quick}"


def evidence(report: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """The file that the page's Evidence tab shows, see evidence.py; a column without an interval is left out."""
    known = COLUMNS | OWN_COLUMNS
    plain = {
        "evidence": VERSION,
        "title": title_of(report)[:200],
        "target": report["target"][:60],
        "command": report["command"][:400],
        "date": report["date"],
        "note": report["note"][:1000],
        "columns": {name: {"label": c.label, "axis": c.axis, "better": c.better} for name, c in OWN_COLUMNS.items()},
        "rows": [
            {
                "method": row.method,
                "label": row.label.split(" δ")[0],  # rows of one label are a curve over δ
                "settings": report["settings"][row.label],
                "pictures": report["prompts"],
                "columns": {
                    name: {"mean": e.value, "low": min(e.low, e.value), "high": max(e.high, e.value)}
                    for name, e in row.columns.items()
                    if name in known and math.isfinite(e.low)
                },
            }
            for row in rows
        ],
    }
    from_plain(plain)
    return plain


def figure(report: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """A Pareto figure for Plotly: accept length to the right, and upwards FID where it was measured, else bias a token."""
    cost = "fid" if all("fid" in row.columns for row in rows) else "bias"
    points = [row for row in rows if cost in row.columns]
    across, up = ([row.columns[name] for row in points] for name in ("accept_length", cost))

    def bars(effects: Sequence[Effect]) -> dict[str, Any]:
        arms = [[abs(getattr(e, end) - e.value) for e in effects] for end in ("high", "low")]
        return {"type": "data", "symmetric": False, "array": arms[0], "arrayminus": arms[1]}

    trace = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [e.value for e in across],
        "y": [e.value for e in up],
        "error_x": bars(across),
        "error_y": bars(up),
        "text": [row.label for row in points],
        "textposition": "top center",
        "marker": {"size": 10, "color": "#CC79A7"},
    }
    layout = {
        "title": {"text": title_of(report)},
        "xaxis": {"title": {"text": "accept length, tokens a target call"}},
        "yaxis": {"title": {"text": f"{SHOWN[cost][0]} (lower is better)"}},
    }
    return {"data": [trace], "layout": layout}


def write_figure(path: Path, content: Mapping[str, Any]) -> None:
    """The figure as a page that needs no network."""
    import plotly.graph_objects as go

    go.Figure(content["data"], content["layout"]).write_html(path, include_plotlyjs=True)
