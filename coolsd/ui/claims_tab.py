"""The tab "Claims", what the paper claims: figures and verdicts of a stored `eval claims`, or how to make one.

Knows nothing of models; what is drawn comes from evaluation.claims.plots.
"""

import json
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import gradio as gr

from ..evaluation.claims.names import PARTS, SCHEMA
from ..evaluation.claims.plots import Figure, figures
from . import templates

STORED = Path(__file__).resolve().parents[2] / "assets" / "claims.json"
EMPTY = """### Nothing has been measured yet

`python -m coolsd eval claims` decodes the same prompts with every method, sweeping δ, λ, k and ω, and judges four claims: lossless
methods agree with plain AR; COOL-SD keeps more quality than LANTERN++ at equal accept length; relaxing early costs less than relaxing
evenly or late; and G* improves LANTERN++. Add `--quick` for a look in minutes. The figures and verdicts then stand here, whichever way
they turn out."""
OUTCOMES = {"agrees": "agrees", "disagrees": "disagrees", "mixed": "depends on where", "undecided": "undecided"}


def stored(path: Path = STORED) -> dict[str, Any] | None:
    """The result on disk; None where there is none, or one that this version does not read."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) and result.get("schema") == SCHEMA else None


def provenance(result: dict[str, Any]) -> str:
    """When, on what and with which settings it was measured, in one line."""
    size, machine = result["size"], result["environment"]
    quick = "A quick look, not a measurement. " if size["quick"] else ""
    chosen = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in result["settings"].items())
    against = f"KID against {result['photos']:,} photos" if result["photos"] else "without KID (no photos were given)"
    seeds = "1 seed" if size["seeds"] == 1 else f"{size['seeds']} seeds"
    pictures = f"{result['pictures']:,} pictures: {size['prompts']} prompts × {seeds} for each of {len(result['points'])} settings"
    where = f"{machine.get('device', '?')}, {machine.get('dtype', '?')}"
    return f"{quick}Measured {result['date']} on {result['target']} ({where}). {pictures}; {chosen}; {against}."


def _interval(effect: dict[str, float]) -> str:
    return f"{effect['value']:+.4f} [{effect['low']:+.4f}, {effect['high']:+.4f}]"


def table(verdicts: list[dict[str, Any]], premise: str = "") -> str:
    """Verdicts as an HTML table, a heading for each part; where along the range a method is ahead is in the row below.

    Args:
        premise: what is to be known before (c) is read.
    """
    rows = []
    for part, own in groupby(verdicts, key=lambda v: v["part"]):
        rows.append(f'<tr><th colspan="4">{escape(PARTS[part])}</th></tr>')
        if part == "c" and premise:
            rows.append(f'<tr class="premise"><td colspan="4">{escape(premise)}</td></tr>')
        for v in own:
            effect = _interval(v["effect"]) if v["effect"] else "the curves share no range"
            cells = (v["comparison"], v["measure"], effect)
            outcome = f'<b data-outcome="{escape(v["outcome"])}">{OUTCOMES[v["outcome"]]}</b>'
            outcome += f"<br><small>{escape(v['decides'])}</small>" if v.get("decides") else ""
            rows.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}<td>{outcome}</td></tr>")
            if v["places"]:
                places = "; ".join(f"at {at:.3g}: {_interval(e)}" for at, e in v["places"])
                rows.append(f'<tr class="places"><td colspan="4">{escape(places)}</td></tr>')
    head = "<tr><th>difference</th><th>in</th><th>value [95 % interval]</th><th>verdict</th></tr>"
    return f'<div class="claims-table"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'


def tally(verdicts: list[dict[str, Any]]) -> str:
    """How many comparisons turned out which way."""
    counts = {word: sum(v["outcome"] == outcome for v in verdicts) for outcome, word in OUTCOMES.items()}
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def words(result: dict[str, Any]) -> str:
    """All verdicts: the paper's claims in the open, this project's own folded away."""
    paper, own = ([v for v in result["verdicts"] if v["paper"] == of_paper] for of_paper in (True, False))
    premise = result.get("premise", {}).get("words", "")
    note = "An interval that holds 0 decides nothing. In twenty comparisons one interval misses the truth by chance."
    return (
        f"<h2>The paper's claims: {tally(paper)}</h2><p>{note}</p>{table(paper, premise)}"
        f"<details><summary>This project's own claims and controls: {tally(own)}</summary>{table(own)}</details>"
    )


def draw(path: Path = STORED) -> None:
    """Place the tab's content."""
    result = stored(path)
    with gr.Column(elem_id="claims"):
        if result is None:
            gr.Markdown(EMPTY)
            return
        gr.HTML(f"<p>{escape(provenance(result))}</p>", elem_classes="claims-note")
        charts = figures(result)
        for pair in (charts[i : i + 2] for i in range(0, len(charts), 2)):
            with gr.Row(elem_classes="claims-row"):
                for figure in pair:
                    _plot(figure)
        gr.HTML(words(result), elem_classes="claims-words")


def _plot(figure: Figure) -> None:
    label = escape(figure["title"])
    template = f'<h2>{label}</h2><p class="note">{escape(figure["note"])}</p><div class="plot" role="img" aria-label="{label}"></div>'
    value = {name: figure[name] for name in ("data", "layout")}
    gr.HTML(
        value,
        html_template=f'<div class="claims-figure">{template}</div>',
        js_on_load=templates.on_load("drawClaims", "props"),
        library=templates.PLOTLY,
        apply_default_css=False,
        min_width=340,
    )
