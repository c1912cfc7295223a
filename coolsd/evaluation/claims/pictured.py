"""The result of `eval schedules` as a file of evidence: every schedule a curve, with pictures that were drawn with some of its settings."""

from typing import Any

from ...exports import data_uri, encoded
from ..evidence import COLUMNS, Evidence, Figure, Row
from ..prompts import FIXED
from ..samples import Job
from ..study import Study
from .checks import OTHER_SEEDS

PICTURED = ("paper", "uniform", "clamped", "clamped .3", "window 3", "reversed clamped", "block clamped .3")
PROMPTS = (0, 15, 26)  # of FIXED: a flower, a forest, the sea
SIDE = 96  # pixels
FITTED = "fitted to a bias budget"  # as the curve is called
MEASURES = ("accept_length", "bias", "kl", "log_p")

Point = tuple[str, float]  # family, strength


def jobs(report: dict[str, Any]) -> list[Job]:
    """Pictures to draw: of each point of the families PICTURED, those of three prompts, with the same seeds everywhere."""
    common = report["settings"] | {"draft_length": report["size"]["length"]}
    out = []
    for curve in report["curves"]:
        for point in curve["points"] if curve["family"] in PICTURED else []:
            settings = tuple(sorted((common | point["settings"]).items()))
            label = f"evidence {curve['family']} {point['strength']:g}"
            out += [Job(label, curve["method"], settings, FIXED[i].prompt, OTHER_SEEDS + i) for i in PROMPTS]
    return out


def thumbnails(study: Study, report: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """By label of the jobs: small pictures as data URIs. Resumable."""
    out = {}
    for label, samples in study.collect(jobs(report)).items():
        small = (picture.resize((SIDE, SIDE)) for picture in study.pictures(study.pixels(samples)))
        out[label] = tuple(data_uri(encoded(one, "WEBP", quality=70), "image/webp") for one in small)
    return out


def _figures(values: dict[str, Any]) -> dict[str, Figure]:
    return {name: Figure(*(values[name][end] for end in ("value", "low", "high"))) for name in MEASURES if name in values}


def as_evidence(report: dict[str, Any], pictures: dict[str, tuple[str, ...]]) -> Evidence:
    """The curves of a report, and where schedules were fitted what their budgets came to on other prompts."""
    size = report["size"]
    common, drawn = report["settings"] | {"draft_length": size["length"]}, size["prompts"] * size["seeds"]
    rows = [
        Row(
            method=curve["method"],
            label=curve["label"],
            columns=_figures(point),
            settings=common | point["settings"],
            pictures=drawn,
            thumbnails=pictures.get(f"evidence {curve['family']} {point['strength']:g}", ()),
        )
        for curve in report["curves"]
        for point in curve["points"]
    ]
    fitted = report.get("fitted", {"budgets": []})
    rows += [
        Row("coolsd-fitted", FITTED, _figures(row), common | {"bias": row["budget"]}, fitted["prompts"]["checked on"] * size["seeds"])
        for row in fitted["budgets"]
    ]
    title = f"What schedules of ω buy and cost on {report['target']}"
    note = f"{report['rounds']:,} rounds of lossless pictures, read with every schedule. {report['caveat']}"
    return Evidence(
        title=title, target=report["target"], rows=tuple(rows), columns=COLUMNS, command=report["command"], date=report["date"], note=note
    )
