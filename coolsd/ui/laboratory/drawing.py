"""The laboratory's words and drawings: plain HTML made of what `coolsd.laboratory.exact` computed. It computes no law of its own."""

import math
from typing import Any

import torch
from torch import Tensor

from ... import theory
from ...laboratory import exact
from ...laboratory.exact import CHOICES, CORRECT, LANTERNS, TOKENS, USES_OMEGA, ChiSquare, Contestant, Knobs, OneRound, OneToken
from ...laboratory.mistakes import MISTAKES
from ..lanes import number

SCALES = (0.3, 0.45, 0.6, 0.8, 1.0)  # tops of the bars' axis
EXACT = 1e-9  # a smaller total variation is rounding
OWN_RESIDUAL = "LANTERN's own residual"
SAME = 1e-5  # costs that differ by less are equal: δ is solved to float32


def two(value: float) -> str:
    """Two digits; rounding noise is 0."""
    return number(round(value, 6))


def percent(value: float) -> str:
    """A share in whole percent."""
    return "< 1 %" if 0 < round(value, 6) < 0.005 else f"{value:.0%}".replace("%", " %")


# ---- one token


def bars() -> str:
    """The editable bars. Heights and numbers are put in by laboratory.js."""
    slots = "".join(_slot(i, name) for i, name in enumerate(TOKENS))
    key = "".join(
        f'<span><i class="{kind}"></i>{meaning}</span>'
        for kind, meaning in (
            ("accepted", "kept: the overlap"),
            ("relaxed", "kept beyond the overlap"),
            ("recovered", "drawn from the residual"),
            ("rejected", "draft rejected"),
            ("overlap", "min(p, q)"),
        )
    )
    return f"""
<div class="lab-bars">
  <p class="lab-note">Pull a bar. <b class="p">Blue outline: target p</b>, filled with what comes out.
  <b class="q">Orange outline: draft q</b>, filled with what becomes of the draft. Numbers in %.</p>
  <p class="lab-source" hidden></p>
  <div class="lab-slots">{slots}</div>
  <div class="key">{key}</div>
</div>"""


def _slot(index: int, name: str) -> str:
    def bar(row: str, last: str) -> str:
        fill = "".join(f'<i class="{kind}"></i>' for kind in ("accepted", "relaxed", last))
        meaning = "target" if row == "p" else "draft"
        handle = f'<b role="slider" tabindex="0" aria-label="{meaning} {row} of token {name}" aria-valuemin="0" aria-valuemax="100"></b>'
        return f'<div class="lab-bar" data-row="{row}" data-token="{index}">{fill}<u></u>{handle}<em></em></div>'

    pair = bar("p", "recovered") + bar("q", "rejected")
    return f'<div class="lab-slot"><div class="lab-pair">{pair}</div><strong>{name}</strong><small class="lab-f"></small></div>'


def reading() -> str:
    """The answer beside the bars."""
    numbers = (("accept", "accepted (f on average)"), ("reject", "rejected"), ("tv", "exact total variation"))
    cells = "".join(f'<div><dd data-text="{key}"></dd><dt>{label}</dt></div>' for key, label in numbers)
    return f"""
<div class="lab-answer" data-state="tone" role="status">
  <p class="lab-verdict" data-text="verdict"></p>
  <dl class="lab-numbers">{cells}</dl>
  <p data-text="why_accept"></p><p data-text="why_reject"></p><p data-text="why_tv"></p><p class="lab-about" data-text="about"></p>
</div>"""


def describe(p: Tensor, q: Tensor, result: OneToken, knobs: Knobs) -> dict[str, Any]:
    """Values for `reading`, and under "parts" those for `bars`."""
    tone, verdict = _verdict(result, knobs)
    overlap, accepted, rejected = float(result.overlap.sum()), result.accepted, 1 - result.accepted
    extra, residual = float(result.extra.sum()), "the residual G*" if knobs.choice in CORRECT else "what this rule takes for the residual"
    if knobs.choice in LANTERNS and not knobs.optimal:
        residual = OWN_RESIDUAL
    why_accept = f"The overlap Σ min(p, q) is {two(overlap)}: what lossless decoding accepts."
    if not torch.equal(result.draft_row, q):
        why_accept = f"The drafts are not drawn from q: p overlaps with their true row by {two(overlap)}."
    if extra > EXACT:
        why_accept += f" This rule keeps {two(extra)} more."
    if overlap + extra - accepted > EXACT:
        why_accept += f" This rule leaves {two(overlap + extra - accepted)} of it unused."
    why_reject = "No draft is rejected."
    if rejected > EXACT:
        why_reject = f"{percent(rejected)} of the drafts are rejected; those tokens are drawn anew from {residual}."
    return {
        "tone": tone,
        "verdict": verdict,
        "accept": two(accepted),
        "reject": two(rejected),
        "tv": two(result.variation),
        "why_accept": why_accept,
        "why_reject": why_reject,
        "why_tv": _cost(result),
        "about": ABOUT[knobs.choice],
        "parts": _parts(p, result),
    }


ABOUT = {
    "lossless": "f = min(1, p/q). Make p and q alike and the overlap grows: a good drafter is one that agrees.",
    "relaxed": "f = min(1, ω p/q), the rule of COOL-SD. Above 1 it keeps more than the overlap; below 1 it is stricter, and still exact.",
    **dict.fromkeys(LANTERNS, ""),  # said below their picture
    **{name: f"Wrong on purpose. {mistake.about}" for name, mistake in MISTAKES.items()},
}


def _verdict(result: OneToken, knobs: Knobs) -> tuple[str, str]:
    if result.variation < EXACT:
        if knobs.choice in MISTAKES:
            return "good", "A wrong rule, but these rows do not show it."
        return "good", "Lossless: what comes out follows p exactly."
    if knobs.choice in MISTAKES:
        return "bad", f"Biased: {two(result.variation)} away from p."
    return "spent", f"Relaxed: {two(result.variation)} away from p."


def _cost(result: OneToken) -> str:
    if result.variation < EXACT:
        return "Total variation 0: no number of draws tells it from the target."
    text = f"Total variation {two(result.variation)}: of 100 tokens about {100 * result.variation:.0f} are not the target's."
    if result.variation > result.least + EXACT:
        text += f" With the residual G*: {two(result.least)}."
    return text


def _parts(p: Tensor, result: OneToken) -> dict[str, Any]:
    kept = result.kept - result.extra
    columns = zip(
        kept.tolist(),
        result.extra.tolist(),
        result.recovered.tolist(),
        (result.draft_row - result.kept).clamp(min=0).tolist(),
        result.overlap.tolist(),
        result.accept_prob.tolist(),
        result.draft_row.tolist(),
        strict=True,
    )
    highest = max(float(row.max()) for row in (p, result.law, result.draft_row))
    tokens = [
        {"p": [kept, extra, recovered], "q": [kept, extra, rejected], "overlap": overlap, "f": f"f {f:.2f}" if q_token > 0 else "–"}
        for kept, extra, recovered, rejected, overlap, f, q_token in columns
    ]
    return {"tokens": tokens, "scale": next((s for s in SCALES if highest <= 0.94 * s), 1.0)}


def codes(p: Tensor, result: OneToken, token: int, knobs: Knobs) -> str:
    """LANTERN's picture: where the codes lie, and from which neighbours a code borrows."""
    lent = exact.borrowed(p, token, knobs)
    spots = [(100 * x, 76 - 76 * y) for x, y in exact.CODEBOOK]
    x0, y0 = spots[token]
    lines, dots = [], []
    for code, mass in lent:
        x, y = spots[code]
        kind = "lends" if mass > EXACT else "idle"
        lines.append(f'<line class="{kind}" x1="{x:.1f}" y1="{y:.1f}" x2="{x0:.1f}" y2="{y0:.1f}"/>')
        if mass > EXACT:
            lines.append(f'<text class="mass" x="{(x + x0) / 2:.1f}" y="{(y + y0) / 2 - 1.5:.1f}">+{two(mass)}</text>')
    for (x, y), name, mass, i in zip(spots, TOKENS, p.tolist(), range(len(spots)), strict=True):
        kind = "chosen" if i == token else "code"
        dots.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{2.6 + 9 * math.sqrt(mass):.1f}"/>')
        dots.append(f'<text x="{x:.1f}" y="{y + 2:.1f}">{name}</text>')
    gained = float(result.kept[token] - result.overlap[token])
    names = [TOKENS[code] for code, mass in lent if mass > EXACT]
    total = sum(mass for _, mass in lent)
    words = f"{TOKENS[token]} may borrow {two(total)} from {' and '.join(names)}, and uses {two(gained)}."
    if not names:
        limit = f"(λ − 1) p({TOKENS[token]})" if knobs.choice == "lantern++" else "the budget"
        words = f"{TOKENS[token]} borrows nothing: its nearest code, {TOKENS[lent[0][0]]}, has more mass than {limit}, or none."
    most = f"as long as its own mass grows {knobs.cap:g}-fold (λ) at most" if knobs.choice == "lantern++" else "up to the budget"
    return f"""
<figure class="lab-codes"><svg viewBox="-4 0 108 78" role="img" aria-label="{words}">{"".join(lines + dots)}</svg>
<figcaption>A drafted code may borrow the target mass of its k nearest codes, {most}. {words}
Larger disc: more target mass.</figcaption></figure>"""


# ---- one round


def profile(result: OneRound) -> str:
    """A round, position by position: how far the draft is off, ω, how often the draft gets so far, and what is spent there."""
    positions = range(1, len(result.omega) + 1)
    head = "".join(f'<th scope="col">{i}</th>' for i in positions)
    top = max(0.05, *result.spent)
    rows = (
        ("TV(p, q)", "draft", result.distance, [d / exact.FARTHEST for d in result.distance], "how far the draft is off", ""),
        ("ω", "lab-omega", result.omega, [_omega_height(w) for w in result.omega], "line: ω = 1, lossless", ""),
        ("all accepted", "accepted", result.reached, result.reached, "up to here", f"E[N] {two(result.accepted)}"),
        ("bias spent", "relaxed", result.spent, [s / top for s in result.spent], "at this position", f"bound {two(result.bound)}"),
    )
    body = "".join(_profile_row(*row) for row in rows)
    figures = (("E[N], accepted drafts", result.accepted), ("TV bound", result.bound), ("true TV", result.variation))
    numbers = "".join(f"<div><dd>{two(value)}</dd><dt>{label}</dt></div>" for label, value in figures)
    return f"""
<div class="lab-round"><p class="lab-verdict">{result.accept_length:.2f} tokens a call <small>accept length</small></p>
<dl class="lab-numbers">{numbers}</dl>
<table><thead><tr><th scope="col">draft position</th>{head}<td>sum</td></tr></thead><tbody>{body}</tbody></table></div>"""


def _omega_height(omega: float) -> float:
    """On a log axis from 1/8 to 8, so that ω = 1 lies in the middle."""
    return min(1.0, max(0.0, 0.5 + math.log2(max(omega, 1e-9)) / 6))


def _profile_row(label: str, kind: str, values: list[float], heights: list[float], note: str, total: str) -> str:
    cells = "".join(
        f'<td><span>{two(value)}</span><div class="lab-cell"><i class="{_kind(kind, value)}" style="{_span(kind, height)}"></i></div></td>'
        for value, height in zip(values, heights, strict=True)
    )
    return f'<tr class="{kind}"><th scope="row">{label}<small>{note}</small></th>{cells}<td class="lab-total">{total}</td></tr>'


def _kind(kind: str, value: float) -> str:
    return kind if kind != "lab-omega" else "relaxed" if value > 1 else "strict"


def _span(kind: str, height: float) -> str:
    if kind != "lab-omega":
        return f"height:{100 * height:.1f}%"
    low, high = sorted((0.5, height))
    return f"bottom:{100 * low:.1f}%;height:{100 * max(high - low, 0.03):.1f}%"


def contest(contestants: dict[str, Contestant], accepted: float, lossless: float) -> str:
    """All schedules at the same accept length, what each costs, and which costs least."""
    able = [c.round for c in contestants.values() if c.round]
    least = min(r.bound for r in able), min(r.variation for r in able)
    top = max(r.bound for r in able) or 1
    rows = "".join(_contest_row(c, top, least) for c in contestants.values())
    return f"""
<div class="lab-contest"><p class="lab-verdict">{_winner(contestants, least)}</p>
<p class="lab-note">Each schedule's δ is solved for {accepted + 1:.2f} tokens a call (lossless: {lossless + 1:.2f}).
Hatched: the bound, what a round spends on average. Solid: the exact total variation of the whole draft.</p>
<div class="lab-lanes">{rows}</div>{_explain(contestants, least)}</div>"""


def _contest_row(contestant: Contestant, top: float, least: tuple[float, float]) -> str:
    result = contestant.round
    if result is None:
        return f'<div class="lab-lane"><b>{contestant.title}</b><p>cannot accept so little: it never accepts less than lossless</p></div>'
    costs = (("bound", result.bound, least[0]), ("exact", result.variation, least[1]))
    lanes = "".join(_cost_bar(kind, value, top, value <= low + SAME) for kind, value, low in costs)
    return f'<div class="lab-lane"><b>{contestant.title} <small>δ = {two(contestant.delta)}</small></b>{lanes}</div>'


def _cost_bar(kind: str, value: float, top: float, least: bool) -> str:
    mark, words = (" least", " · least") if least else ("", "")
    width = f"{70 * value / top:.1f}%"
    return f'<div class="lab-cost{mark}"><i class="{kind}" style="width:{width}"></i><span>{kind} {two(value)}{words}</span></div>'


def _winner(contestants: dict[str, Contestant], least: tuple[float, float]) -> str:
    if least[0] < SAME:
        return "Nothing has to be spent: lossless decoding gets as far."
    by_bound, exactly = _ahead(contestants, least)
    if by_bound == exactly:
        return f"{by_bound} costs least: {two(least[0])} a round."
    return f"{by_bound} costs least by the bound, {exactly.lower()} by the exact total variation."


def _ahead(contestants: dict[str, Contestant], least: tuple[float, float]) -> tuple[str, str]:
    """Titles of those that cost least: by the bound, and exactly."""
    able = [(c.title, (c.round.bound, c.round.variation)) for c in contestants.values() if c.round]
    by_bound, exactly = (" or ".join(title for title, cost in able if cost[i] <= least[i] + SAME) for i in (0, 1))
    return by_bound, exactly


def _explain(contestants: dict[str, Contestant], least: tuple[float, float]) -> str:
    notes = []
    plain, clamped = contestants["annealed"].round, contestants["clamped"].round
    if plain and clamped and plain.bound > clamped.bound + SAME:
        notes.append("Plain annealing has ω below 1 late in the draft: it rejects good drafts there and pays with a looser start.")
    by_bound, exactly = _ahead(contestants, least)
    if least[0] >= SAME and by_bound != exactly:
        notes.append(
            "The bound adds up what every position spends. In the law of the whole draft, small biases at many positions hide in part."
        )
    if max(next(c.round.distance for c in contestants.values() if c.round)) > theory.PAPER_TV_LIMIT + EXACT:
        notes.append(
            f"The paper's claim for annealing assumes TV(p, q) of at most {theory.PAPER_TV_LIMIT} at every position; here it is more."
        )
    return "".join(f"<p>{note}</p>" for note in notes)


# ---- is it lossless?


def histogram(p: Tensor, result: OneToken, counts: Tensor, knobs: Knobs) -> str:
    """Counted tokens against p, with the verdict. All three rows are (V,)."""
    rounds = int(counts.sum())
    test = exact.chi_square(counts, p)
    share = counts.double() / rounds
    top = next((s for s in SCALES if float(max(share.max(), p.max(), result.law.max())) <= 0.9 * s), 1.0)
    slots = "".join(
        _histogram_slot(name, *values, rounds, top)
        for name, *values in zip(TOKENS, counts.tolist(), p.tolist(), result.law.tolist(), strict=True)
    )
    tone, verdict = _test_verdict(test, result)
    return f"""
<div class="lab-answer" data-is="{tone}" role="status"><p class="lab-verdict">{verdict}</p>
<p>{CHOICES[knobs.choice]}{_at(knobs)}, {rounds:,} rounds. {_test_words(test)} {_truth(test, result, knobs)}</p></div>
<div class="lab-slots lab-histogram" role="img" aria-label="Counts of each token against the target">{slots}</div>
<div class="key"><span><i class="counted"></i>counted</span><span><i class="counted off"></i>counted, far from p</span>
<span><i class="outline"></i>target p</span>
<span><i class="theory"></i>what this rule emits, exactly</span><span>numbers: counted − expected</span></div>"""


def _at(knobs: Knobs) -> str:
    if knobs.choice in LANTERNS:
        limit = f"λ = {knobs.cap:g}" if knobs.choice == "lantern++" else f"budget {knobs.budget:g}"
        return f" with k = {knobs.k}, {limit} and {'the residual G*' if knobs.optimal else OWN_RESIDUAL}"
    return f" with ω = {knobs.omega:g}" if knobs.choice in USES_OMEGA else ""


def _histogram_slot(name: str, count: float, p: float, law: float, rounds: int, top: float) -> str:
    off = count - rounds * p
    far = " off" if abs(off) > 4 * math.sqrt(max(rounds * p * (1 - p), 1)) else ""
    signed = f"{off:+,.0f}".replace("-", "−")
    counted, target, theory, highest = (f"{100 * value / top:.2f}%" for value in (count / rounds, p, law, max(count / rounds, p, law)))
    return (
        f'<div class="lab-slot"><div class="lab-count"><i class="counted{far}" style="height:{counted}"></i><b style="height:{target}"></b>'
        f'<u style="bottom:{theory}"></u><em class="{far}" style="bottom:{highest}">{signed}</em></div><strong>{name}</strong></div>'
    )


def _test_verdict(test: ChiSquare, result: OneToken) -> tuple[str, str]:
    if test.chance < exact.REJECT_BELOW:
        return ("bad", "Not lossless: the counts do not fit p.")
    if result.variation < EXACT:
        return ("good", "Lossless: the counts fit p.")
    return ("spent", "Not caught yet: the counts still fit p.")


def _test_words(test: ChiSquare) -> str:
    if test.impossible is not None:
        return f"Token {TOKENS[test.impossible]} came out, which the target never draws."
    statistic = f"χ² = {test.statistic:,.1f} on {test.freedom} degrees of freedom:"
    if test.chance < 1e-6:
        return f"{statistic} a correct sampler is so far off less than once in a million runs."
    if test.chance < 0.01:
        return f"{statistic} a correct sampler is so far off once in {1 / test.chance:,.0f} runs."
    return f"{statistic} a correct sampler is at least so far off in {test.chance:.0%} of runs.".replace("%", " %")


def _truth(test: ChiSquare, result: OneToken, knobs: Knobs) -> str:
    if result.variation < EXACT:
        if knobs.choice not in MISTAKES:
            return "Its exact total variation is 0."
        if MISTAKES[knobs.choice].below_one and knobs.omega >= 1:
            return "From ω = 1 upwards this residual is the right one."
        return "On these rows this mistake does no harm; try another preset."
    words = f"Its exact total variation from p is {two(result.variation)}."
    return words if test.chance < exact.REJECT_BELOW else f"{words} Roll more rounds."
