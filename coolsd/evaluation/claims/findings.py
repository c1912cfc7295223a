"""Stored results in a student's words: what the paper claims, what was found, and whether it holds.

Everything said here is made from the results of `eval schedules` and `eval claims`; a result that is not there says nothing. An interval
that holds 0 decides nothing, and then it is said how many pictures would. Knows nothing of torch and of the page.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..evidence import Finding

BETTER = {"bias": -1, "kl": -1, "log_p": 1}
VERDICTS = {"agrees": "holds", "disagrees": "fails", "mixed": "depends", "undecided": "undecided"}
MANY = 100_000  # pictures from which on it is said that nobody will see the difference

Gap = Mapping[str, Any]  # value, low, high and the pictures that would decide it


def rounded(count: float) -> str:
    """A number of pictures to two digits."""
    digits = max(0, len(str(int(count))) - 2)
    return f"{round(count, -digits):,.0f}"


def decides(count: float | None) -> str:
    """What it would take to decide an undecided comparison."""
    if count is None:
        return "no number of pictures would decide it"
    if count > MANY:
        return f"about {rounded(count)} pictures a setting would decide it: too small to matter"
    return f"about {rounded(count)} pictures a setting would decide it"


def side(gap: Gap) -> int:
    """-1 or 1 where the interval lies on one side of 0, else 0."""
    return int(gap["low"] > 0) - int(gap["high"] < 0)


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("0.", ".", 1).replace("-", "−")


def _joined(parts: Sequence[str]) -> str:
    return "".join(parts) if len(parts) < 2 else f"{', '.join(parts[:-1])} and {parts[-1]}"


# ---- what `eval schedules` decides


def exact(report: Mapping[str, Any]) -> Finding | None:
    """Lossless runs draw from the target: the mean of log p + H is 0; relaxed runs are the controls that have to be seen to depart."""
    drift = report.get("martingale")
    if not drift:
        return None
    controls = [row for row in report.get("checks", []) if row["method"] != "eagle1" and "drift" in row]
    seen = [row for row in controls if side(row["drift"]) or row["drift"].get("outside")]
    words = f"Over {drift['tokens']:,} tokens the target is as surprised as it should be: off by {_signed(drift['value'])} ± "
    words += f"{_signed(drift['error'])[1:]} nats a token."
    if seen:
        most = max(seen, key=lambda row: abs(row["drift"]["value"]))
        words += (
            f" The same test sees relaxed methods depart, by {_signed(most['drift']['value'])} and less, in {len(seen)} of {len(controls)}."
        )
    verdict = "fails" if side(drift) else "holds" if seen else "undecided"
    if verdict == "undecided":
        needed = min((row["drift"]["decides"] or MANY for row in controls), default=None)
        words += f" But no relaxed method was seen to depart: {decides(needed)}."
    sentence = {
        "holds": "Yes: guessing ahead, checked exactly, changes nothing. The pictures come from the same odds as without guessing.",
        "fails": "No: guessing ahead should change nothing when it is checked exactly, but here the pictures come from other odds.",
        "undecided": "Not known yet: so few pictures would not show exact guessing to differ from any other.",
    }[verdict]
    return Finding("Exact speculative decoding draws what the large model alone would draw", verdict, words, sentence)


def _places(pair: Mapping[str, Any], measure: str) -> tuple[str, list[str]]:
    """Verdict on "the first is ahead" by a measure over the accept lengths compared, and what was found at each."""
    sides, words = [], []
    for place in pair["places"]:
        gap = place[measure]
        better = side(gap) * BETTER[measure]
        sides.append(better)
        note = "" if better else f" (undecided: {decides(gap['decides'])})"
        words.append(f"{_signed(gap['value'])} at {place['at']:g} tokens a call{note}")
    return combined({1: "holds", -1: "fails", 0: "undecided"}[s] for s in sides), words


def combined(verdicts: Iterable[str]) -> str:
    """One verdict of several; undecided ones count where nothing else was decided."""
    decided = {verdict for verdict in verdicts if verdict != "undecided"}
    return "depends" if len(decided) > 1 else decided.pop() if decided else "undecided"


def _pair(report: Mapping[str, Any], first: str, second: str) -> Mapping[str, Any] | None:
    pairs = (p for p in report.get("pairs", []) if (p["first"], p["second"]) == (first, second) and p["places"])
    return next(pairs, None)


def early_not_late(report: Mapping[str, Any]) -> Finding | None:
    """Relaxing the first positions against relaxing the last, at equal speed."""
    pairs = [pair for names in (("paper", "reversed"), ("clamped", "reversed clamped")) if (pair := _pair(report, *names))]
    if not pairs:
        return None
    own = [_places(pair, "bias") for pair in pairs]
    gaps = [place["bias"]["value"] for pair in pairs for place in pair["places"]]
    verdict = combined(verdict for verdict, _ in own)
    least, most = sorted((min(gaps), max(gaps)), key=abs)
    at = _joined([f"{place['at']:g}" for place in pairs[0]["places"]])
    words = f"Early less late at equal speed ({at} tokens a call): {_signed(least)} to {_signed(most)} bias a token."
    lines = [line for _, own_lines in own for line in own_lines]
    if verdict != "holds" or any("undecided" in line for line in lines):
        words += f" One by one: {'; '.join(lines)}."
    sentence = {
        "holds": "Yes: bending the rule early in a guess costs less than bending it late, at the same speed.",
        "fails": "No: bending the rule late in a guess costs less than bending it early, at the same speed.",
        "depends": "It depends on the speed whether bending the rule early in a guess costs less than bending it late.",
        "undecided": "Not known yet: whether the rule is bent early or late in a guess, the cost is the same as far as can be seen.",
    }[verdict]
    return Finding("Relax early, not late: it costs less", verdict, words, sentence)


def early_not_evenly(report: Mapping[str, Any]) -> Finding | None:
    """The paper's schedule against the same ω everywhere, at equal speed; and what clamping and another measure change."""
    paper = _pair(report, "paper", "uniform")
    if paper is None:
        return None
    verdict, lines = _places(paper, "bias")
    words = f"The paper's schedule less the same ω everywhere, in bias a token: {_joined(lines)}."
    clamped = _pair(report, "clamped", "uniform")
    if clamped:
        by_bias, by_kl = (_places(clamped, measure)[0] for measure in ("bias", "kl"))
        phrase = {"holds": "ahead", "fails": "behind", "depends": "ahead here and behind there", "undecided": "undecided"}
        words += f" Never stricter than exact (clamped, ours), it is {phrase[by_bias]} by bias, and {phrase[by_kl]} by KL."
    return Finding("Relax early rather than evenly: it costs less", verdict, words, _evenly(paper, verdict))


def _evenly(paper: Mapping[str, Any], verdict: str) -> str:
    less, more = ([f"{p['at']:g}" for p in paper["places"] if side(p["bias"]) * BETTER["bias"] == way] for way in (1, -1))
    return {
        "holds": "Yes: the paper's recipe, most at the start and less later on, costs less than bending the rule evenly.",
        "fails": "Not as the paper writes it: at the same speed its recipe costs more here than bending the rule evenly.",
        "depends": f"It depends: the paper's recipe costs more than bending the rule evenly at {_joined(more)} tokens a call, "
        f"and less at {_joined(less)}.",
        "undecided": "Not known yet: the paper's recipe and bending the rule evenly cost the same as far as can be seen.",
    }[verdict]


def sentences(report: Mapping[str, Any]) -> list[Finding]:
    """The three that stand at the top."""
    return [finding for make in (exact, early_not_late, early_not_evenly) if (finding := make(report))]


# ---- what `eval claims` adds


def _lines(verdicts: Sequence[Mapping[str, Any]]) -> str:
    out = []
    for verdict in verdicts:
        effect = verdict["effect"]
        _, _, where = verdict["comparison"].partition(", ")  # at which k
        measure = ", ".join(part for part in (verdict["measure"].split(" (")[0], where) if part)
        figures = "no range in common" if effect is None else f"{effect['value']:+.4f} [{effect['low']:+.4f}, {effect['high']:+.4f}]"
        needed = f", {undecided(verdict)}" if verdict["outcome"] == "undecided" else ""
        out.append(f"{measure} {figures.replace('-', '−')}{needed}")
    return "; ".join(out)


def undecided(verdict: Mapping[str, Any]) -> str:
    """Of an undecided row: how many pictures would decide it, as the sweep worked it out."""
    effect = verdict["effect"]
    if effect is None:
        return "undecided: the curves share no range, more settings would decide it"
    if side(effect):
        return "undecided whatever the number of pictures: what LANTERN++ meters is a lower bound"
    prompts = verdict.get("prompts") or 30  # older results do not say
    half = (effect["high"] - effect["low"]) / 2
    count = prompts * (2.8 / 1.96 * half / effect["value"]) ** 2 if effect["value"] else None
    return f"undecided: {decides(count)}"


CLAIMED = (  # comparison in the sweep, the claim in words
    ("coolsd - lantern++ at equal", "COOL-SD keeps more quality than LANTERN++ at equal speed"),
    ("G* - own residual", "The residual G* costs less than LANTERN++'s own"),
    ("the gap at", "and the more codes LANTERN++ may borrow from, the more"),
)


def of_sweep(result: Mapping[str, Any]) -> list[Finding]:
    """The paper's claims that only `eval claims` measures."""
    out = []
    for start, claim in CLAIMED:
        own = [v for v in result["verdicts"] if v["paper"] and v["comparison"].startswith(start)]
        if own:
            out.append(Finding(claim, combined(VERDICTS[v["outcome"]] for v in own), f"{_lines(own)}."))
    return out


def all_findings(report: Mapping[str, Any] | None, result: Mapping[str, Any] | None) -> list[Finding]:
    """Every claim of the paper with what was found, the three sentences first."""
    return [*(sentences(report) if report else []), *(of_sweep(result) if result else [])]
