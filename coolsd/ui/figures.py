"""What the live curve draws, as plain Plotly figures (old, stable keys only, so that any plotly.js of the last years draws them).

The measured part is made here; the browser adds ω, which follows the sliders, and the ink of the current theme.
"""

from collections.abc import Mapping
from typing import Any

from ..methods import METHODS, frontiers, shape
from ..settings import TREES, Settings
from ..trace import Stats
from ..trees import chain, depth

# Okabe-Ito, one meaning each, the same on every part of the page.
TARGET, DRAFT, ACCEPTED, RELAXED, RECOVERED, BONUS = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9"
LANES = ((ACCEPTED, "circle"), (RELAXED, "square"))


def shapes(methods: Mapping[str, Any]) -> dict[str, Any]:
    """What the browser needs to draw ω by itself: of each method the form of its ω and its tree, of each named tree its depth, and by
    draft length the fitted schedules.

    A chain is as deep as the draft length says, and a tree given by its nodes as its longest node.
    """
    forms = {
        name: {"title": method.title, "omega": method.form or "none", "tree": method.tree, "chooses": "tree" in method.uses}
        for name, method in methods.items()
    }
    drawn = {tree: shape(Settings(method="coolsd", tree=tree)) for tree in TREES if tree not in ("auto", "chain")}
    trees = {tree: {"depth": depth(form), "chain": form == chain(depth(form))} for tree, form in drawn.items()}
    return {"methods": forms, "trees": trees, "frontiers": frontiers()}


def positions(settings: Settings) -> int:
    """Draft positions of a run with these settings; 0 for plain AR."""
    return 0 if METHODS[settings.method].schedule is None else depth(shape(settings))


def curve(lanes: list[tuple[str, Stats]], length: int) -> dict[str, Any]:
    """Mean acceptance probability (lines) and accepted share (bars) by draft position, both in 0..1.

    Args:
        lanes: (title, statistics so far) of the reference and of the relaxed lane; either may have no rounds yet.
        length: draft positions on the axis.
    """
    data = []
    for (title, stats), (color, _) in zip(lanes, LANES, strict=True):
        data.append(
            {
                "type": "bar",
                "name": f"{title}, accepted share",
                "x": _positions(stats.accepted_share),
                "y": _rounded(stats.accepted_share),
                "marker": {"color": color, "opacity": 0.3},
                "hovertemplate": "%{y:.2f}",
            }
        )
    for (title, stats), (color, symbol) in zip(lanes, LANES, strict=True):
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"{title}, f",
                "meta": title,
                "x": _positions(stats.accept_prob),
                "y": _rounded(stats.accept_prob),
                "line": {"color": color, "width": 3},
                "marker": {"color": color, "size": 9, "symbol": symbol},
                "hovertemplate": "%{y:.2f}",
            }
        )
    return {"data": data, "layout": layout(length), "length": length}


def layout(length: int) -> dict[str, Any]:
    """Fixed axes and a transparent ground; `uirevision` keeps the reader's zoom through updates."""
    positions = list(range(1, length + 1))
    axis = {"zeroline": False, "fixedrange": False, "ticks": ""}
    return {
        "uirevision": "curve",
        "showlegend": False,
        "barmode": "group",
        "bargap": 0.35,
        "hovermode": "x unified",
        "margin": {"l": 34, "r": 40, "t": 6, "b": 34},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {
            **axis,
            "title": {"text": "draft position", "standoff": 2},
            "range": [0.5, length + 1.4],
            "tickmode": "array",
            "tickvals": positions,
            "showgrid": False,
        },
        "yaxis": {**axis, "range": [0, 1.04], "tickvals": [0, 0.5, 1]},
    }


def table(lanes: list[tuple[str, Stats]]) -> list[list[str]]:
    """The curve in words: a head and one row a draft position."""
    head = ["position", *(f"{title}: {what}" for title, _ in lanes for what in ("f", "accepted share"))]
    columns = [row for _, stats in lanes for row in (stats.accept_prob, stats.accepted_share)]
    return [head, *([str(i + 1), *(_two_digits(row, i) for row in columns)] for i in range(max(map(len, columns))))]


def _positions(values: tuple[float | None, ...]) -> list[int]:
    return list(range(1, len(values) + 1))


def _rounded(values: tuple[float | None, ...]) -> list[float | None]:
    return [None if v is None else round(v, 4) for v in values]


def _two_digits(values: tuple[float | None, ...], index: int) -> str:
    return "–" if index >= len(values) or values[index] is None else f"{values[index]:.2f}"
