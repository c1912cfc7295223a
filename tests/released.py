"""LlamaGen's formats in miniature: one path a part, and the catalog's llamagen-256 with these sizes."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from files import DATA, NAMES, patterned, write_t5

from coolsd.models import catalog, loading
from coolsd.models.llamagen.load import load_llamagen
from coolsd.models.llamagen.network import LlamaGenConfig

TINY = LlamaGenConfig(dim=64, layers=3, heads=4, ffn=256, vocab=256, caption_dim=48, caption_tokens=120, grid=4)


def write_llamagen(root: Path) -> dict[str, Path]:
    """Paths by part; what the repository does not hold is written."""
    torch.save({"model": patterned(NAMES["llamagen"])}, root / "vq_ds16_t2i.pt")
    return {
        "target": DATA / "tiny_t2i_stage1.pt",
        "drafter": DATA / "tiny_lantern_drafter",
        "vq": root / "vq_ds16_t2i.pt",
        "text": write_t5(root / "t5"),
    }


def shrink_llamagen(monkeypatch, **changes) -> catalog.TargetSpec:
    """Give llamagen-256 the tiny model's sizes, and other fields of its entry these values."""
    tiny = replace(catalog.CATALOG["llamagen-256"], build=partial(load_llamagen, "llamagen-256", TINY), **changes)
    monkeypatch.setitem(catalog.CATALOG, "llamagen-256", tiny)
    monkeypatch.setattr(loading, "CACHE", {})
    return tiny
