"""The draft shapes that `bench --tune` found, kept between calls, so that `bench` can list them beside the methods' own.

One JSON file a user. An entry belongs to the weights, the hardware and the decoding settings it was timed with, and is used for no others.
"""

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..methods import METHODS
from ..models.protocols import Pair
from ..settings import Settings, validate
from .bench import Lane
from .samples import fingerprint
from .tune import Tuned

STORE = Path.home() / ".cache" / "coolsd" / "tuned.json"
SCHEMA = 1
DECODING = ("temperature", "top_k", "top_p", "cfg_scale", "max_tokens")  # what the pace of every method hangs on
SYMBOLS = {"delta": "δ", "nu": "ν", "mu": "μ", "cap": "λ"}

Entry = dict[str, Any]  # place, method, own (its settings but for the shape), kind, shape (settings), label (of the shape), date


def place(pair: Pair, target: str, files: Sequence[tuple[str, str]], common: dict[str, Any]) -> dict[str, Any]:
    """What a shape was found for: weights, hardware, and the decoding settings among `common`.

    Args:
        target, files: as given on the command line.
    """
    named = str(Path(target).resolve()) if Path(target).is_dir() else target
    device = str(pair.environment.get("device", "cpu"))
    settings = validate(METHODS, **common | {"prompt": "x"})
    return {
        "target": pair.name,
        "weights": fingerprint(named),
        "files": sorted([part, str(Path(path).resolve())] for part, path in files),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{device}, {os.cpu_count()} cores",
        "dtype": str(pair.environment.get("dtype", "")),
    } | {name: getattr(settings, name) for name in DECODING}


def read(path: Path) -> list[Entry]:
    """What is stored; nothing where there is no file, or one that this version does not read."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return stored["entries"] if isinstance(stored, dict) and stored.get("schema") == SCHEMA else []


def store(path: Path, where: dict[str, Any], found: Iterable[Tuned], common: dict[str, Any]) -> None:
    """Keep the fastest shape of each method, and its fastest tree where that is a chain. They replace older ones for the same place."""
    fresh = []
    for tuned in found:
        settings = validate(METHODS, **common | {"prompt": "x", "method": tuned.method})
        own = {name: getattr(settings, name) for name in METHODS[tuned.method].uses if name != "tree"}
        best, tree = tuned.best(), tuned.best(chains=False)
        for kind, i in {"tuned": best, **({} if tree == best else {"tuned tree": tree})}.items():
            told = {"label": tuned.rows[i].label, "date": time.strftime("%Y-%m-%d")}
            fresh.append({"place": where, "method": tuned.method, "own": own, "kind": kind, "shape": tuned.settings[i]} | told)
    replaced = [(e["method"], e["own"]) for e in fresh]
    kept = [e for e in read(path) if e["place"] != where or (e["method"], e["own"]) not in replaced]
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}")
    half.write_text(json.dumps({"schema": SCHEMA, "entries": kept + fresh}, indent=1, ensure_ascii=False), encoding="utf-8")
    half.replace(path)


def _title(method: str, own: dict[str, Any]) -> str:
    """The method with what sets it apart: δ, and whatever is not as by default."""
    parts = []
    for name, value in own.items():
        if name == "delta" or value != getattr(Settings, name):
            parts.append(name if value is True else f"{SYMBOLS.get(name, name)}={value}".removesuffix(".0"))
    return " ".join([METHODS[method].title, *parts])


def lanes(path: Path, where: dict[str, Any], methods: Sequence[str]) -> dict[Lane, str]:
    """The shapes found for this place as lanes of these methods, each with where it comes from."""
    out = {}
    for entry in read(path):
        if entry["place"] == where and entry["method"] in methods:
            lane = Lane(
                f"{_title(entry['method'], entry['own'])}, {entry['kind']}",
                entry["method"],
                (*entry["own"].items(), *entry["shape"].items()),
            )
            out[lane] = f"{entry['label']}, found by bench --tune on {entry['date']} ({path})"
    return out
