"""Decoders of the same codes side by side: reconstructions of photos, and what the pair paints, decoded by each."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from ...data.metrics import kid, mean_estimate
from ...models.vq import ImageTokenizer
from ..photos import PhotoFigures, chosen, measure
from ..prompts import valid_prompts
from ..samples import Job
from ..specks import isolation, speck_limit, speck_share
from ..study import Study


def reconstruction_figures(copies: PhotoFigures, real: PhotoFigures) -> dict[str, Any]:
    """PSNR over all photos, and KID of the reconstructions of every other photo against the photos between them.

    Args:
        copies: figures of reconstructions. real: of the same photos themselves.
    """
    return {
        "photos": len(copies.numbers),
        "psnr_db": asdict(mean_estimate(copies.psnr)),
        "kid_lite2": asdict(kid(copies.judged[::2], real.judged[1::2])),
        "kid_lite0": asdict(kid(copies.features[::2], real.features[1::2])),
    }


def painted_figures(study: Study, pixels: Tensor, real: PhotoFigures, patch: int) -> dict[str, Any]:
    """KID of painted pictures (N, 3, H, W) against all photos, and the share of their patches that are specks."""
    share = speck_share(isolation(pixels, patch), speck_limit(real.isolation))
    return {
        "kid_lite2": asdict(kid(study.judged(pixels), real.judged)),
        "kid_lite0": asdict(kid(study.features(pixels), real.features)),
        "specks": asdict(mean_estimate(share)),
    }


def evaluate(
    study: Study, tokenizers: Mapping[str, ImageTokenizer], pictures: int, settings: Mapping[str, Any], photos: int | None = None
) -> dict[str, Any]:
    """Figures of every decoder by name, on the same photos and on the same tokens of plain AR.

    Args:
        pictures: painted from captions of valid photos; 0 for reconstructions alone. photos: how many valid ones, all without it.
    """
    valid = chosen(study.photos, "valid", limit=photos)
    cases = valid_prompts(study.photos, pictures)
    jobs = [Job("AR", "ar", tuple(settings.items()), case.prompt, seed) for seed, case in enumerate(cases)]
    samples: Sequence = study.collect(jobs)["AR"] if jobs else ()
    rows = {}
    for name, tokenizer in tokenizers.items():
        copies, real = (measure(study.images, valid, tokenizer, study.networks, study.folder, which) for which in (True, False))
        rows[name] = {"reconstructions": reconstruction_figures(copies, real)}
        if samples:
            rows[name]["painted"] = painted_figures(study, study.pixels(samples, tokenizer), real, tokenizer.patch)
    return {"weights": study.weights, "pictures": pictures, "settings": dict(settings), "rows": rows}
