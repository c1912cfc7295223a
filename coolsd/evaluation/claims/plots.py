"""The figures of a claims result, as plain Plotly values (old, stable keys only). Knows nothing of models, of torch or of the page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .names import BETTER, FAMILIES, INTERVAL, MEASURES, STARTS, lines

Figure = dict[str, Any]  # title, note, data, layout

# Okabe-Ito; never colour alone: each family has its marker and, where it is a variant, its dash.
STYLES = {
    "coolsd": ("#CC79A7", "square", "solid"),
    "clamped": ("#CC79A7", "diamond", "dash"),
    "block": ("#CC79A7", "star", "dot"),
    "uniform": ("#E69F00", "circle", "solid"),
    "reversed": ("#0072B2", "triangle-down", "solid"),
    "reversed clamped": ("#0072B2", "triangle-up", "dash"),
    "lantern++": ("#D55E00", "x", "solid"),
    "lantern++g": ("#009E73", "cross", "dash"),
}
AGAINST = ("coolsd", "clamped", "block", "uniform", "lantern++", "lantern++g")
ANNEALING = ("coolsd", "clamped", "uniform", "reversed", "reversed clamped")


def _error(points: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Plotly's asymmetric error bars of a measure."""
    up, down = ([abs(p[name][end] - p[name]["value"]) for p in points] for end in ("high", "low"))
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1, "width": 3}


def _layout(x: str, y: str) -> dict[str, Any]:
    axis = {"zeroline": False, "ticks": ""}
    return {
        "margin": {"l": 64, "r": 12, "t": 8, "b": 44},
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "legend": {"orientation": "h", "y": -0.32},
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}},
    }


def _curves(result: dict[str, Any], families: Sequence[str], measure: str) -> list[dict[str, Any]]:
    """A line a family over its sweep; LANTERN's over λ at the smallest k."""
    few = min(p["swept"].get("neighbours", 0) for p in result["points"] if "neighbours" in p["swept"])
    data = []
    for family in families:
        points = [p for p in result["points"] if p["family"] == family and p["swept"].get("neighbours", few) == few]
        points += [p for p in result["points"] if p["label"] == STARTS.get(family)]
        points.sort(key=lambda p: p["accept_length"]["value"])
        color, symbol, dash = STYLES[family]
        swept = [", ".join(f"{name} {value:g}" for name, value in p["swept"].items()) or p["label"] for p in points]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": FAMILIES[family],
                "x": [p["accept_length"]["value"] for p in points],
                "y": [p[measure]["value"] for p in points],
                "error_x": _error(points, "accept_length") | {"color": color},
                "error_y": _error(points, measure) | {"color": color},
                "text": swept,
                "hovertemplate": "%{text}: accept length %{x:.2f}, %{y:.4f}",
                "line": {"color": color, "width": 3, "dash": dash},
                "marker": {"color": color, "size": 9, "symbol": symbol},
            }
        )
    return data


def _against_length(result: dict[str, Any], families: Sequence[str], measure: str, title: str) -> Figure:
    note = f"{'Lower' if BETTER[measure] < 0 else 'Higher'} and further right is better. Bars: {result.get('interval', INTERVAL)}."
    if "reversed" in families and "premise" in result:
        note += f" {result['premise']['words']}"
    if "lantern++" in families and measure == "bias":
        note += " LANTERN++ with its own residual spends at least what is drawn."
    data = _curves(result, families, measure)
    return {
        "title": title,
        "note": note,
        "data": data,
        "layout": _layout("accept length, tokens a target call", MEASURES[measure].replace(" from ", "<br>from ")),
    }


def _lossless(result: dict[str, Any]) -> Figure:
    points = [p for p in result["points"] if p["family"].startswith("lossless")]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "name": "lossless - AR",
        "x": [p["label"] for p in points],
        "y": [p["log_prob_difference"]["value"] for p in points],
        "error_y": _error(points, "log_prob_difference"),
        "marker": {"color": "#009E73", "size": 11},
        "hovertemplate": "%{x}: %{y:.4f}",
    }
    note = "Difference in the target's log-probability of the pictures, nats a token, same prompts and seeds. Exact methods lie around 0."
    layout = _layout("", "nats a token")
    layout["margin"]["r"] = 36  # half of the last name hangs over the axis
    return {"title": "Lossless methods against plain AR", "note": note, "data": [trace], "layout": layout}


def _residuals(result: dict[str, Any]) -> Figure:
    rows = result["residuals"]
    data = []
    for name, label, style in (("own", "LANTERN's own residual", "lantern++"), ("optimal", "G*", "lantern++g")):
        color, symbol, dash = STYLES[style]
        points = [{"v": row[name]} for row in rows]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": label,
                "x": [row["k"] for row in rows],
                "y": [row[name]["value"] for row in rows],
                "error_y": _error(points, "v") | {"color": color},
                "line": {"color": color, "width": 3, "dash": dash},
                "marker": {"color": color, "size": 9, "symbol": symbol},
                "hovertemplate": "k = %{x}: %{y:.4f}",
            }
        )
    layout = _layout("k, nearest codes", "total variation of one step")
    layout["xaxis"] |= {"type": "log", "tickvals": [row["k"] for row in rows]}
    note = "Exact, on the same target and draft rows and with the same acceptance; only the recovered token is drawn differently."
    return {"title": "The residual of LANTERN++", "note": note, "data": data, "layout": layout}


def figures(result: dict[str, Any]) -> list[Figure]:
    """The figures of `claims.evaluate`'s result, in the order of the claims."""
    measures = [name for name in MEASURES if name in result["points"][0]]
    out = [_lossless(result)]
    out += [_against_length(result, AGAINST, name, f"Accept length and {MEASURES[name]}") for name in measures]
    out += [_against_length(result, ANNEALING, name, f"Annealed, uniform, reversed: {MEASURES[name]}") for name in measures]
    return [*out, _residuals(result)]


def write_html(result: dict[str, Any], path: Path) -> None:
    """All figures as one page that needs no network; plotly.min.js is put beside it."""
    import plotly.graph_objects as go
    from plotly.offline import get_plotlyjs

    parts = [
        f"<h2>{f['title']}</h2><p>{f['note']}</p>"
        + go.Figure(f["data"], f["layout"]).to_html(full_html=False, include_plotlyjs=False, default_height="420px")
        for f in figures(result)
    ]
    (path.parent / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    words = "".join(f"<li>{line}</li>" for line in lines(result))
    head = '<!doctype html><meta charset="utf-8"><title>What the paper claims</title><script src="plotly.min.js"></script>'
    path.write_text(f"{head}<h1>What the paper claims</h1>{''.join(parts)}<ul>{words}</ul>", encoding="utf-8")
