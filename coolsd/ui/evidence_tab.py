"""The tab "Evidence": what schedules and methods buy and cost as one chart, what the paper claims with what was found, and all comparisons.

Shows a file of evidence, or what ships: the results of `eval schedules` and of `eval claims`. Knows nothing of models.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import gradio as gr

from ..evaluation import evidence
from ..evaluation.claims.findings import all_findings, decides, undecided
from ..evaluation.claims.names import PARTS, SCHEMA
from ..evaluation.evidence import Evidence, Finding
from ..exports import ASSETS
from ..settings import SETTINGS
from . import templates

EMPTY = """### Nothing has been measured yet

`python -m coolsd eval schedules` records lossless pictures once and reads off what every schedule buys and costs on them, in minutes.
`python -m coolsd eval claims` decodes the same prompts with every method and judges what the paper claims; add `--quick` for a look. A file
measured elsewhere is shown with `python app.py --evidence FILE`. Whichever way the figures turn out, they then stand here."""
OUTCOMES = {"agrees": "agrees", "disagrees": "disagrees", "mixed": "depends on where", "undecided": "undecided"}
VERDICTS = {"holds": "✓ holds", "fails": "✗ does not hold", "depends": "± depends", "undecided": "? undecided"}
SENTENCES = 3
MEASURES = {"accept_length": "tokens a call", "bias": "bias a token", "kl": "KL a token", "log_p": "log p a token"}


@dataclass(frozen=True)
class Stored:
    """What the tab shows. result, report: of `eval claims` and `eval schedules`, in full, for the comparisons below the fold."""

    evidence: Evidence
    result: Mapping[str, Any] | None = None
    report: Mapping[str, Any] | None = None


def stored_json(path: Path) -> dict[str, Any] | None:
    """A JSON object on disk; None where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def stored_claims(path: Path) -> dict[str, Any] | None:
    """The result of `eval claims` on disk; None where there is none, or one that this version does not read."""
    result = stored_json(path)
    return result if result and result.get("schema") == SCHEMA else None


def shipped(folder: Path = ASSETS) -> Stored | None:
    """What `eval schedules` and `eval claims` wrote; None where nothing can be drawn."""
    try:
        chart = evidence.read(folder / "evidence.json")
    except (OSError, ValueError):
        return None
    report, result = stored_json(folder / "schedules.json"), stored_claims(folder / "claims.json")
    return Stored(replace(chart, findings=tuple(all_findings(report, result))), result, report)


def of_file(path: Path) -> Stored:
    """A file of evidence that somebody named.

    Raises:
        ValueError: it cannot be read or is none, in one line.
    """
    try:
        return Stored(evidence.read(path))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


# ---- words


def badge(verdict: str) -> str:
    """A verdict with its sign, so that colour is not needed."""
    return f'<b class="verdict" data-verdict="{escape(verdict)}">{escape(VERDICTS[verdict])}</b>'


def sentences(findings: Sequence[Finding]) -> str:
    """The first findings, in a student's words."""
    items = "".join(f"<li>{badge(f.verdict)} {escape(f.sentence or f.claim)}</li>" for f in findings[:SENTENCES])
    return f'<ol class="sentences">{items}</ol>'


def claims(findings: Sequence[Finding]) -> str:
    """Every claim of the paper with what was found beside it."""
    rows = "".join(f"<tr><th>{escape(f.claim)}</th><td>{escape(f.words)}</td><td>{badge(f.verdict)}</td></tr>" for f in findings)
    head = "<tr><th>the paper's claim</th><th>what was found here</th><th>verdict</th></tr>"
    return f'<div class="evidence-table claims-rows"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def provenance(result: Mapping[str, Any]) -> str:
    """When, on what and with which settings a sweep was measured, in one line."""
    size, machine = result["size"], result["environment"]
    quick = "A quick look, not a measurement. " if size["quick"] else ""
    chosen = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in result["settings"].items())
    against = f"KID against {result['photos']:,} photos" if result["photos"] else "without KID (no photos were given)"
    seeds = "1 seed" if size["seeds"] == 1 else f"{size['seeds']} seeds"
    pictures = f"{result['pictures']:,} pictures: {size['prompts']} prompts × {seeds} for each of {len(result['points'])} settings"
    where = f"{machine.get('device', '?')}, {machine.get('dtype', '?')}"
    return f"{quick}Measured {result['date']} on {result['target']} ({where}). {pictures}; {chosen}; {against}."


def _interval(effect: Mapping[str, float]) -> str:
    return f"{effect['value']:+.4f} [{effect['low']:+.4f}, {effect['high']:+.4f}]"


def sweep_table(verdicts: Sequence[Mapping[str, Any]], premise: str = "") -> str:
    """Verdicts of `eval claims`, a heading for each part; where along the range a method is ahead is in the row below.

    Args:
        premise: what is to be known before (c) is read.
    """
    rows = []
    for part, own in groupby(verdicts, key=lambda v: v["part"]):
        rows.append(f'<tr><th colspan="4">{escape(PARTS[part])}</th></tr>')
        if part == "c" and premise:
            rows.append(f'<tr class="places"><td colspan="4">{escape(premise)}</td></tr>')
        for v in own:
            effect = _interval(v["effect"]) if v["effect"] else "the curves share no range"
            outcome = undecided(v) if v["outcome"] == "undecided" else OUTCOMES[v["outcome"]]
            cells = (v["comparison"], v["measure"], effect, outcome)
            rows.append(f"<tr data-outcome={escape(v['outcome'])}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
            if v["places"]:
                places = "; ".join(f"at {at:.3g}: {_interval(e)}" for at, e in v["places"])
                rows.append(f'<tr class="places"><td colspan="4">{escape(places)}</td></tr>')
    head = "<tr><th>difference</th><th>in</th><th>value [95 % interval]</th><th>agrees with the claim</th></tr>"
    return f'<div class="evidence-table"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'


def schedule_table(table: Mapping[str, Any]) -> str:
    """Every schedule at one figure of an axis, and less the one they are compared with."""
    names = [name for name in MEASURES if name != table["axis"]]
    rows = []
    for row in table["rows"]:
        cells = [row["family"]]
        for name in names:
            gap = row.get("against", {}).get(name)
            words = f"{row[name]['value']:.3f}"
            if gap:
                words += f" ({gap['value']:+.3f} ± {gap['error']:.3f})"
                words += f", undecided: {decides(gap['decides'])}" if gap["low"] <= 0 <= gap["high"] else ""
            cells.append(words)
        rows.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    title = f"At {MEASURES[table['axis']]} {table['at']:g}; in brackets less {table['against']}, ± one standard error"
    missing = (
        f'<tr class="places"><td colspan="4">not reached by {escape(", ".join(table["not reached"]))}</td></tr>'
        if table["not reached"]
        else ""
    )
    head = "".join(f"<th>{escape(cell)}</th>" for cell in ("schedule", *(MEASURES[name] for name in names)))
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}{missing}</tbody></table>"
    return f'<div class="evidence-table"><h3>{escape(title)}</h3>{body}</div>'


def comparisons(stored: Stored) -> str:
    """Everything below the fold."""
    parts = []
    if stored.report:
        tables = [*stored.report["tables"], *stored.report.get("fitted", {}).get("tables", [])]
        parts.append("<h2>Schedules on the same recorded rows</h2>" + "".join(schedule_table(table) for table in tables))
    if stored.result:
        premise = stored.result.get("premise", {}).get("words", "")
        note = "An interval that holds 0 decides nothing. In twenty comparisons one interval misses the truth by chance."
        parts.append(f"<h2>Methods on the same prompts</h2><p>{escape(provenance(stored.result))} {note}</p>")
        parts.append(sweep_table(stored.result["verdicts"], premise))
    return f"<details><summary>All comparisons</summary>{''.join(parts)}</details>" if parts else ""


def about(content: Evidence) -> str:
    """Where the chart's figures come from, in one line."""
    source = " · ".join(part for part in (content.target, content.date, content.command) if part)
    return f'<p class="evidence-note">{escape(source)}. {escape(content.note)}</p>' if source else ""


# ---- the tab


def for_browser(content: Evidence) -> dict[str, Any]:
    """What the chart is drawn from; which rows can be loaded is for the page to say."""
    plain = content.to_dict()
    return {
        "title": plain["title"],
        "target": plain["target"],
        "rows": plain["rows"],
        "columns": {c.name: plain["columns"][c.name] for axis in ("gain", "cost") for c in content.axis(axis)},
    }


def server(content: Evidence) -> Callable[..., dict[str, Any]]:
    """The function that the browser calls once the tab is opened."""

    def rows(_: Any = None) -> dict[str, Any]:
        """Rows and columns of the chart; what was sent along does not matter."""
        return for_browser(content)

    return rows


def draw(stored: Stored | None) -> gr.HTML | None:
    """Place the tab's content; gives the chart, whose event `point` carries the settings of a point."""
    with gr.Column(elem_id="evidence"):
        if stored is None:
            gr.Markdown(EMPTY)
            return None
        content = stored.evidence
        chart = gr.HTML(
            html_template=f"<h2>{escape(content.title)}</h2>{sentences(content.findings)}{templates.mount()}",
            js_on_load=templates.on_load("mountEvidence", "(row) => trigger('point', row)", "server"),
            server_functions=[server(content)],
            apply_default_css=False,
        )
        below = claims(content.findings) if content.findings else ""
        gr.HTML(f"{about(content)}{below}{comparisons(stored)}", elem_classes="evidence-words")
        return chart


def settings_of(row: Any) -> dict[str, Any]:
    """Control values by which Generate draws a row: its settings, and the usual ones of ω beside them. Unchecked."""
    row = row if isinstance(row, dict) else {}
    given = row.get("settings") if isinstance(row.get("settings"), dict) else {}
    usual = {s.name: s.default for s in SETTINGS.values() if s.group == "schedule" and s.name != "mu"}
    return {"method": row.get("method"), "mu_auto": "mu" not in given, "tree": SETTINGS["tree"].default} | usual | given
