"""The model card's sections, written from measured figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..prompts import FLOWERS, SCENES

AIMS = {
    "scene_top1": ("scenes named right", "≥ 85 %"),
    "flower_top5": ("flowers right, top-5", "≥ 60 %"),
    "flower_top1": ("flowers right, top-1", ""),
    "colour": ("colour words obeyed", "≥ 70 %"),
    "trait": ("weather, season, time of day obeyed", ""),
}


def replace_section(card: Path, name: str, text: str) -> None:
    """Put text between `<!-- name -->` and `<!-- /name -->` of a card, at its end when it has no such section yet."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    whole = card.read_text(encoding="utf-8") if card.exists() else ""
    if begin not in whole or end not in whole:
        whole = f"{whole.rstrip()}\n\n{begin}\n{end}\n".lstrip()
    before, rest = whole.split(begin, 1)
    card.write_text(f"{before}{begin}\n{text.strip()}\n{end}{rest.split(end, 1)[1]}", encoding="utf-8")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def with_error(figure: dict[str, float], digits: int = 3, factor: float = 1.0) -> str:
    """A figure with its standard error."""
    return f"{factor * figure['value']:.{digits}f} ± {factor * figure['error']:.{digits}f}"


def sampled_with(settings: dict[str, Any]) -> str:
    """Guidance, top-k and temperature in words."""
    top_k = f"top-k {settings['top_k']}" if settings["top_k"] else "no top-k"
    return f"guidance {settings['cfg_scale']:g}, {top_k}, temperature {settings['temperature']:g}"


def _reconstruction(figures: dict[str, Any]) -> tuple[str, str, str]:
    """PSNR, KID lite2 and KID lite0 of reconstructions, as shown."""
    return (f"{figures['psnr_db']['value']:.2f} dB", *(with_error(figures[f"kid_{name}"], 1, 1000) for name in ("lite2", "lite0")))


def decoders_section(report: dict[str, Any]) -> str:
    """The card's section of `eval decoders`."""
    head = ["decoder", "PSNR", "KID × 1000, lite2", "lite0"]
    rows = [[name, *_reconstruction(figures["reconstructions"])] for name, figures in report["rows"].items()]
    photos = next(iter(report["rows"].values()))["reconstructions"]["photos"]
    text = (
        f"Reconstructions: PSNR over {photos} `valid` photos, KID of one half's reconstructions against the other half, on 8-bit pictures. "
        "EfficientNet-lite2 is in no loss; lite0 is the perceptual loss's. ± is one standard error."
    )
    if report["pictures"]:
        head += ["painted: lite2", "lite0", "specks, % of patches"]
        for row, figures in zip(rows, report["rows"].values(), strict=True):
            painted = figures["painted"]
            row += [with_error(painted[name], 1, 1000) for name in ("kid_lite2", "kid_lite0")]
            row.append(with_error(painted["specks"], 2, 100))
        text += (
            f" Painted: the same {report['pictures']} pictures of plain AR, {sampled_with(report['settings'])}, prompts from captions of "
            "`valid` photos, against all of these photos. A speck is a patch whose mean colour stands out further from all eight around it "
            "than 99.9 % of photos' patches do."
        )
    return f"## Decoders of the same codes\n\n`{report['command']}`\n\n{table(head, rows)}\n\n{text}\n"


def pair_section(report: dict[str, Any]) -> str:
    """The card's section of `eval meadow`."""
    tokenizer, target, probe, agreement = (report[name] for name in ("tokenizer", "target", "probe", "agreement"))
    psnr, kid_lite2, kid_lite0 = _reconstruction(tokenizer)
    rows = [
        ("reconstruction PSNR (mean over photos)", psnr, "≥ 22 dB"),
        ("KID × 1000 of reconstructions, EfficientNet-lite2 (in no loss)", kid_lite2, "≤ 64"),
        ("KID × 1000 of reconstructions, EfficientNet-lite0 (in the perceptual loss)", kid_lite0, ""),
        ("code perplexity", f"{tokenizer['code_perplexity']:.0f} of {tokenizer['codes']}", "≥ 3,500"),
        ("target, nats a token, with captions", with_error(target["loss_with_caption"]), ""),
        ("target, nats a token, without", with_error(target["loss_without"]), ""),
        ("what a caption gains", with_error(target["caption_gain"]), "> 0"),
    ]
    rows += [
        (words, f"{with_error(agreement[name], 0, 100)} % of {agreement[name]['pictures']}", aim)
        for name, (words, aim) in AIMS.items()
        if name in agreement
    ]
    specks = report["specks"]
    rows.append(("specks, share of patches", with_error(specks["painted"], 2, 100) + " %", f"≤ {200 * specks['photos']['value']:.2f} %"))
    real = {name.removeprefix("valid_"): share for name, share in probe.items() if name.startswith("valid_")}
    reached = ", ".join(f"{AIMS[name][0]} {100 * share:.0f} %" for name, share in real.items())
    text = [
        f"{tokenizer['photos']} photos for the tokenizer, {target['photos']} for the target's loss (one caption each, no guidance).",
        f"Pictures: {len(FLOWERS)} flower and {len(SCENES)} scene prompts, fixed beforehand, seeds: {report['settings']['seeds']},",
        f"plain AR, {sampled_with(report['settings'])}. They are named by logistic regression on EfficientNet-lite0 features, fitted on",
        f"{probe['photos']} *reconstructed* training photos of {probe['kinds']} kinds, so that it judges what is painted and not the",
        f"tokenizer's blur; on reconstructed `valid` photos: {reached}. Colours and traits are measured as for the captions.",
        "KID: reconstructions of one half of the `valid` photos against the photos of the other half, 8-bit pictures.",
        "A speck is a patch whose mean colour differs from those of all eight around it by more than 999 of 1,000 patches of photos do",
        f"(RGB distance {specks['limit']:.2f}); reconstructions hold {with_error(specks['reconstructions'], 2, 100)} % of them.",
        f"± is one standard error (over photos, or over prompts). Weights {report['weights']}.",
    ]
    head = f"## Measured on `valid`\n\n`{report['command']}`\n\n{table(('what', 'measured', 'aim'), rows)}\n\n"
    pictures = "\n\n![30 prompts](prompts.jpg)\n\nPhotos over their reconstructions:\n\n![reconstructions](reconstructions.jpg)\n"
    return head + "\n".join(text) + pictures


def quality_section(report: dict[str, Any]) -> str:
    """The card's section of `eval quality`."""
    head = ("method", "KID × 1000", "against AR", "KID lite0", "log p + H", "log p a token", "against AR", "accept length", "bias a token")
    rows = []
    for row in report["rows"]:
        against = row["against_ar"]
        rows.append(
            (
                row["label"],
                with_error(row["kid"], 2, 1000),
                with_error(against["kid"], 2, 1000) if against else "",
                with_error(row["kid_lite0"], 2, 1000),
                with_error(row["drift"]) if row.get("drift") else "",
                with_error(row["log_prob"]),
                with_error(against["log_prob"]) if against else "",
                with_error(row["accept_length"], 2),
                f"{row['bias_per_token']:.4f}",
            )
        )
    perfect, settings = with_error(report["perfect"], 2, 1000), report["settings"]
    text = [
        f"{report['pictures']} pictures a method, the same prompts (captions of `valid` photos) and seeds; {sampled_with(settings)},",
        f"draft length {settings['draft_length']}. KID on EfficientNet-lite2 features against {report['photos']} `valid` photos",
        "(lite0, which the decoder was trained on, beside it);",
        f"reconstructions of training photos, what a perfect target would paint, stand at {perfect}. log p: nats, under the guided target",
        "without top-k, of the finished picture. log p + H: the same under the rows as decoded, plus their entropy; 0 for a method whose",
        "tokens are drawn from the target, whatever the picture. ± is one standard error; differences are paired by prompt and seed.",
    ]
    verdicts = "\n".join(f"- {line}" for line in report["verdicts"])
    return f"## Quality of each method\n\n`{report['command']}`\n\n{table(head, rows)}\n\n" + "\n".join(text) + f"\n\n{verdicts}\n"


def defaults_section(report: dict[str, Any]) -> str:
    """The card's section of `eval sweep`."""
    shares = ("scene_top1", "flower_top5", "colour")
    rows = []
    for row in report["rows"]:
        swept, agreement = row["settings"], row["agreement"]
        rows.append(
            (
                *(f"{value:g}" for value in swept.values()),
                with_error(row["kid"], 2, 1000),
                *(with_error(agreement[name], 0, 100) if name in agreement else "" for name in shares),
                with_error(row["obeyed"], 0, 100),
                f"{row['accept_length']:.2f}",
            )
        )
    swept = [name.replace("cfg_scale", "guidance").replace("_", "-") for name in report["rows"][0]["settings"]]
    head = (*swept, "KID × 1000", *(f"{AIMS[name][0]}, %" for name in shares), "mean, %", "Eagle-1's accept length")
    speeds = [
        (row["label"], f"{row['speedup']:.2f}", f"{row['call_speedup']:.2f}", f"{row['accept_length']:.2f}") for row in report["speeds"]
    ]
    suggested = ", ".join(f"{name} {value:g}" for name, value in report["suggested"].items())
    text = (
        f"{report['pictures']} pictures a row, captions of `valid` photos, Eagle-1, draft length 5. The rule: "
        f"{report['rule']} It takes: {suggested}. ± is one standard error; with so few pictures neighbours are seldom told apart."
    )
    faster = table(("lane, at the best of these", "× AR in seconds", "× AR in calls", "accept length"), speeds)
    return f"## Defaults by measuring\n\n`{report['command']}`\n\n{table(head, rows)}\n\n{text}\n\n{faster}\n"
