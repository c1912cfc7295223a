"""What the parts, curves and measures of the claims are called, and a result in lines. Knows nothing of torch or of the page."""

from typing import Any

SCHEMA = 1  # of the stored result
PARTS = {
    "a": "(a) Lossless methods agree with plain AR",
    "b": "(b) Accept length against quality",
    "c": "(c) Annealed, uniform and reversed schedules",
    "d": "(d) G* against LANTERN++'s own residual",
}
MEASURES = {"bias": "bias a token", "log_prob_difference": "log-probability less that of AR", "kid": "KID"}
BETTER = {"bias": -1, "log_prob_difference": 1, "kid": -1}  # which way; relaxing lowers log p, so that more is nearer to AR
FAMILIES = {
    "coolsd": "COOL-SD, paper schedule",
    "clamped": "COOL-SD, clamped",
    "block": "COOL-SD, block and clamped",
    "uniform": "UniformRSD",
    "reversed": "reversed schedule (ν = -0.7)",
    "reversed clamped": "reversed schedule, clamped",
    "lantern++": "LANTERN++",
    "lantern++g": "LANTERN++ with G*",
}
# Where a family's curve starts, with nothing relaxed; no δ of an unclamped schedule gives ω = 1 everywhere.
STARTS = {name: "lossless block" if name == "block" else "lossless" for name in FAMILIES if name not in ("coolsd", "reversed")}
INTERVAL = "95 % bootstrap intervals over prompts"  # of a result that does not say how its intervals were made


def lines(result: dict[str, Any]) -> list[str]:
    """The verdicts of a result in words, and behind those on annealing whether the theorem's premise holds."""
    out = []
    for part in PARTS:
        out += [verdict["words"] for verdict in result["verdicts"] if verdict["part"] == part]
        if part == "c" and "premise" in result:
            out.append(f"(c) {result['premise']['words']}")
    return out
