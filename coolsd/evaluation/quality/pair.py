"""How good the embedded pair is, on the valid split: tokenizer, target, and whether pictures show what was asked for."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...data.captions import PLACES, petal_colour, scene_traits
from ...data.metrics import Estimate, mean_estimate, perplexity
from ...data.pictures import Record, square
from ...data.pictures import opener as picture_opener
from ...data.store import progress
from ...models.pair import LoadedPair
from ...models.vq import ImageTokenizer, to_uint8
from ..photos import PhotoFigures, chosen
from ..prompts import FIXED, PromptCase
from ..samples import Job, log_prob
from ..specks import isolation, speck_limit, speck_share
from ..study import Study
from .decoders import reconstruction_figures
from .probe import Probe, fit_probe
from .sheets import sheet

SHEET = 16  # originals over their reconstructions
A_KIND = 300  # training photos of a kind for the probe


@dataclass(frozen=True)
class Size:
    """How much is measured: valid photos for the tokenizer and for the target, training photos a kind, pictures a prompt."""

    photos: int | None = None
    scored: int = 256
    a_kind: int = A_KIND
    seeds: int = 4


QUICK = Size(photos=48, scored=8, a_kind=4, seeds=1)


# ---- tokenizer and target


def tokenizer_figures(measured: PhotoFigures, real: PhotoFigures, vocabulary: int) -> dict[str, Any]:
    """`reconstruction_figures`, and how many codes are in effective use."""
    return reconstruction_figures(measured, real) | {
        "code_perplexity": perplexity(measured.codes, vocabulary),
        "codes": vocabulary,
    }


def speck_figures(photos: Tensor, reconstructions: Tensor, painted: Tensor) -> dict[str, Any]:
    """The limit beyond which a patch is a speck, and the share of specks in each kind of picture, from their isolations (N, …)."""
    limit = speck_limit(photos)
    kinds = {"photos": photos, "reconstructions": reconstructions, "painted": painted}
    return {"limit": limit} | {name: asdict(mean_estimate(speck_share(features, limit))) for name, features in kinds.items()}


def reconstruction_sheet(images: Path, photos: Sequence[Record], measured: PhotoFigures, tokenizer: ImageTokenizer) -> Image.Image:
    """Rows of originals, each over its reconstruction; half flowers, half scenes where there are both."""
    numbers = measured.numbers.tolist()
    flowers = [i for i, n in enumerate(numbers) if photos[n].label not in PLACES]
    scenes = [i for i in range(len(numbers)) if i not in set(flowers)]
    picked = (flowers[: SHEET // 2] + scenes[: SHEET // 2])[:SHEET]
    open_picture, side = picture_opener(images), tokenizer.grid * tokenizer.patch
    originals = [Image.fromarray(to_uint8(square(open_picture(photos[numbers[i]].file), side))) for i in picked]
    copies = [tokenizer.picture(measured.codes[i].tolist()) for i in picked]
    half = SHEET // 2
    return sheet([*originals[:half], *copies[:half], *originals[half:], *copies[half:]], half)


def target_losses(pair: LoadedPair, photos: Sequence[Record], measured: PhotoFigures, count: int, file: Path) -> Tensor:
    """Nats a token of valid photos under the target with their caption and with none, (count, 2); each photo is written to `file` at once,
    by its caption and codes.

    Without guidance: scale 1 looks at the conditional row alone, scale 0 at the unconditional one alone.
    """
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    file.write_text("".join(lines), encoding="utf-8")
    by_key = {tuple(entry[:2]): entry[2:] for entry in map(json.loads, lines) if len(entry) == 4}
    wanted = []
    for i, (number, codes) in enumerate(zip(measured.numbers.tolist()[:count], measured.codes.tolist(), strict=False)):
        wordings = photos[number].wordings
        wanted.append((wordings[np.random.default_rng(i).integers(len(wordings))], codes))
    keys = [(caption, zlib.crc32(repr(codes).encode())) for caption, codes in wanted]
    if missing := [i for i, key in enumerate(keys) if key not in by_key]:
        with file.open("a", encoding="utf-8") as handle, progress(len(missing), "photos scored") as bar:
            for i in missing:
                by_key[keys[i]] = [-log_prob(pair, *wanted[i], scale) for scale in (1.0, 0.0)]
                print(json.dumps([*keys[i], *by_key[keys[i]]], ensure_ascii=False, allow_nan=False), file=handle, flush=True)
                bar.update()
    return torch.tensor([by_key[key] for key in keys])


def target_figures(losses: Tensor) -> dict[str, Any]:
    """Mean losses and what a caption helps, each with its error over photos."""
    parts = {"loss_with_caption": losses[:, 0], "loss_without": losses[:, 1], "caption_gain": losses[:, 1] - losses[:, 0]}
    return {"photos": len(losses)} | {name: asdict(mean_estimate(values)) for name, values in parts.items()}


# ---- pictures


def over_prompts(cases: Sequence[PromptCase], hits: Tensor) -> Estimate:
    """Share of hits with its error over prompts: pictures of one prompt succeed or fail together. One prompt: the most it can be."""
    prompts = [a.prompt for a in cases]
    shares = torch.stack([hits[torch.tensor([p == prompt for p in prompts])].double().mean() for prompt in dict.fromkeys(prompts)])
    return mean_estimate(shares) if len(shares) > 1 else Estimate(shares.item(), 0.5 / len(hits) ** 0.5)


def agreement(cases: Sequence[PromptCase], pictures: Sequence[Image.Image], features: Tensor, probe: Probe) -> dict[str, Any]:
    """Do pictures show what was asked for?

    Args:
        cases: of each picture; kinds the probe knows. features: (N, D).
    """
    rank = probe.rank(features, [a.kind for a in cases])
    groups: dict[str, tuple[list[int], list[bool]]] = {
        "scene_top1": ((s := [i for i, a in enumerate(cases) if a.kind in PLACES]), [rank[i].item() == 0 for i in s]),
        "flower_top5": ((f := [i for i, a in enumerate(cases) if a.kind not in PLACES]), [rank[i].item() < 5 for i in f]),
        "flower_top1": (f, [rank[i].item() == 0 for i in f]),
        "colour": ((c := [i for i, a in enumerate(cases) if a.colour]), [petal_colour(pictures[i]) == cases[i].colour for i in c]),
        "trait": (
            (t := [i for i, a in enumerate(cases) if a.trait]),
            [cases[i].trait in scene_traits(pictures[i], cases[i].kind) for i in t],
        ),
    }
    return {
        name: {"pictures": len(which)} | asdict(over_prompts([cases[i] for i in which], torch.tensor(hits)))
        for name, (which, hits) in groups.items()
        if which
    }


def agreement_by_prompt(cases: Sequence[PromptCase], pictures: Sequence[Image.Image], features: Tensor, probe: Probe) -> dict[str, Any]:
    """`agreement` in all and for each prompt."""
    by_prompt = {}
    for prompt in dict.fromkeys(a.prompt for a in cases):
        rows = [i for i, a in enumerate(cases) if a.prompt == prompt]
        figures = agreement([cases[i] for i in rows], [pictures[i] for i in rows], features[rows], probe)
        by_prompt[prompt] = {name: figure["value"] for name, figure in figures.items()}
    return agreement(cases, pictures, features, probe) | {"by_prompt": by_prompt}


def photo_probe(study: Study, valid: Sequence[Record], measured: PhotoFigures, a_kind: int) -> tuple[Probe, dict[str, Any]]:
    """A probe fitted on reconstructions of training photos, so that the tokenizer's blur does not bias it.

    Fitted on the photos themselves its first five names held 97 % of valid flowers, but 76 % of their reconstructions.
    Returns also how well it names reconstructions of valid photos: what a perfect target would reach.
    """
    train = chosen(study.photos, "train", a_label=a_kind)
    fitted_on = study.measure(train)
    probe = fit_probe(fitted_on.features, [train[n].label for n in fitted_on.numbers.tolist()])
    rows = [i for i, n in enumerate(measured.numbers.tolist()) if valid[n].label in probe.names]
    labels = [valid[measured.numbers[i]].label for i in rows]
    rank, scene = probe.rank(measured.features[rows], labels), torch.tensor([label in PLACES for label in labels])
    figures = {"photos": len(fitted_on.numbers), "kinds": len(probe.names), "trained_on": "reconstructions of training photos"}
    for name, which, limit in (("scene_top1", scene, 1), ("flower_top5", ~scene, 5), ("flower_top1", ~scene, 1)):
        if which.any():
            figures[f"valid_{name}"] = (rank[which] < limit).double().mean().item()
    return probe, figures


def evaluate(
    study: Study, size: Size, settings: dict[str, Any], cases: Sequence[PromptCase] = FIXED
) -> tuple[dict[str, Any], dict[str, Image.Image]]:
    """All figures and the two sheets by name; everything slow is kept in the study's folder and continued from there."""
    kinds = {photo.label for photo in study.photos if photo.split == "train"}
    if not any(case.kind in kinds for case in cases):
        some = ", ".join(sorted(kinds)[:5]) or "none"
        raise ValueError(f"No prompt that is measured names a label of these photos ({some}). `eval quality` takes any photos.")
    pair = study.pair
    valid = chosen(study.photos, "valid", limit=size.photos)
    measured, real = study.measure(valid), study.measure(valid, reconstruct=False)
    losses = target_losses(pair, valid, measured, size.scored, study.own / "losses.jsonl")
    probe, probe_figures = photo_probe(study, valid, measured, size.a_kind)
    usable = [a for a in cases if a.kind in probe.names]
    wanted = [Job("fixed prompts", "ar", tuple(settings.items()), a.prompt, seed) for seed in range(size.seeds) for a in usable]
    pixels = study.pixels(study.collect(wanted)["fixed prompts"])
    pictures = study.pictures(pixels)
    figures = {
        "weights": study.weights,
        "environment": dict(pair.environment),
        "settings": settings | {"method": "ar", "seeds": size.seeds},
        "tokenizer": tokenizer_figures(measured, real, len(pair.codebook)),
        "target": target_figures(losses),
        "probe": probe_figures,
        "agreement": agreement_by_prompt(usable * size.seeds, pictures, study.features(pixels), probe),
        "specks": speck_figures(real.isolation, measured.isolation, isolation(pixels, pair.tokenizer.patch)),
    }
    sheets = {
        "reconstructions": reconstruction_sheet(study.images, valid, measured, pair.tokenizer),
        "prompts": sheet(pictures[: len(usable)], 10, [a.prompt for a in usable]),
    }
    return figures, sheets
