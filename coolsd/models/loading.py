"""From a name of the catalog to a loaded pair: device and dtype, memory, files. A pair is loaded once a process."""

import logging
import os
import platform
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ..trees import chain
from .catalog import CATALOG, TargetSpec, check_parts
from .checkpoints import LoadError
from .hub import fetch
from .pair import LoadedPair, free_memory

log = logging.getLogger("coolsd")

GAIN = 1.15  # how much faster bfloat16 must be to be chosen over float32
THREADS_GAIN = 1.05  # how much faster fewer threads must be
ROUNDS, MOST_ROUNDS = 3, 9  # times each dtype and thread count is measured, on a quiet machine and at most
BUSY = 1.5  # slowest round ÷ fastest, from which the machine counts as busy
MOST_THREADS = 1024
Candidate = tuple[torch.dtype, int]
MEASURED = 100e6  # parameters up to which a CPU's dtype is chosen by measuring


def best_device() -> str:
    """cuda, else mps, else cpu."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def named_device(value: str | torch.device | None) -> str:
    """A device that is here; None takes the best.

    Raises:
        LoadError: no device, or one that this computer lacks.
    """
    try:
        device = torch.device(value or best_device())
    except (RuntimeError, TypeError):
        raise LoadError(f"{value!r} is not a device. Use cpu, cuda or mps.") from None
    present = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) >= present.get(device.type, 0):
        raise LoadError(f"There is no {device} on this computer. Use {best_device()}.")
    return str(device)


def named_dtype(value: str | torch.dtype | None) -> torch.dtype | None:
    """A dtype of weights, from itself or its name; None stays None.

    Raises:
        LoadError: no dtype, or one that the models do not run in.
    """
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if value is not None and dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise LoadError(f"{value!r} is not a dtype for weights. Use float32, bfloat16 or float16.")
    return dtype


def pass_seconds(pair: LoadedPair, repeats: int = 4) -> float:
    """Seconds of a guided pass over one token and one over six, the best of a few."""
    best = [float("inf")] * 2
    with torch.inference_mode():
        target, _ = pair.begin(4.0)
        target.prefill("meadow")
        for _ in range(repeats):
            for i, count in enumerate((1, 6)):
                began = perf_counter()
                target.extend(torch.zeros(count, dtype=torch.long), chain(count))
                best[i] = min(best[i], perf_counter() - began)
    return sum(best)


def forced_threads() -> int | None:
    """The number of threads in COOLSD_THREADS: with it, and the dtype, a run can be drawn again exactly. None where it is not set.

    Raises:
        LoadError: it is no such number.
    """
    value = os.environ.get("COOLSD_THREADS", "")
    if value and not (value.isdecimal() and 0 < int(value) <= MOST_THREADS):
        raise LoadError(f"COOLSD_THREADS is {value[:20]!r}. Give a whole number of threads from 1 to {MOST_THREADS}.")
    return int(value) if value else None


def choose_on_cpu(pair: LoadedPair, dtype: torch.dtype | None) -> dict[str, Any]:
    """Set the faster dtype and thread count by measuring: float32 unless bfloat16 gains clearly, all threads unless fewer gain.

    All are measured in turns, and the least time of each counts: a busy moment of the machine then decides nothing. Where its rounds differ
    much, or the choice changes from one to the next, more are measured, up to MOST_ROUNDS. Returns what was measured.
    """
    forced, most = forced_threads(), torch.get_num_threads()
    counts = [forced] if forced else sorted({most, max(1, most // 2)})
    dtypes = [dtype] if dtype else [torch.float32, torch.bfloat16]
    candidates = [(kind, threads) for kind in dtypes for threads in counts]
    models = [model for model in (pair.target_model, pair.drafter_model) if model is not None]
    files = [model.state_dict() for model in models]
    seconds: dict[Candidate, list[float]] = {candidate: [] for candidate in candidates}
    choices: list[Candidate] = []
    while not steady(seconds, choices):
        for kind in dtypes:
            pair.to("cpu", kind)
            for threads in counts:
                torch.set_num_threads(threads)
                seconds[kind, threads].append(pass_seconds(pair, 2))
        choices.append(min(candidates, key=lambda c: min(seconds[c]) * handicap(c, max(counts))))
    chosen = choices[-1]
    pair.unpack()
    torch.set_num_threads(chosen[1])
    for model, state in zip(models, files, strict=True):
        model.load_state_dict(state, assign=True)  # going to bfloat16 and back would round
    pair.to("cpu", chosen[0])
    measured = {f"{str(d).removeprefix('torch.')}, {n} threads": round(1000 * min(s) / 2, 2) for (d, n), s in seconds.items()}
    return {"dtype": str(chosen[0]).removeprefix("torch."), "threads": chosen[1], "pass_ms": measured}


def handicap(candidate: Candidate, most: int) -> float:
    """By what its seconds are multiplied before they are compared."""
    return (GAIN if candidate[0] != torch.float32 else 1.0) * (THREADS_GAIN if candidate[1] < most else 1.0)


def steady(seconds: dict[Candidate, list[float]], choices: list[Candidate]) -> bool:
    """Whether enough was measured: the last rounds agree on the choice and on its time, or there were MOST_ROUNDS."""
    if len(choices) < ROUNDS or len(choices) == MOST_ROUNDS:
        return len(choices) == MOST_ROUNDS
    last = seconds[choices[-1]][-ROUNDS:]
    return len(set(choices[-ROUNDS:])) == 1 and max(last) < BUSY * min(seconds[choices[-1]])


def plan(entry: TargetSpec, device: str, paths: dict[str, str | Path]) -> None:
    """Say what memory goes where, and refuse what cannot fit.

    Raises:
        LoadError: the GPU has less free memory than the pair needs.
    """
    if not entry.memory:
        return
    needs, total = entry.needs(paths.get("drafter")), entry.gigabytes(paths.get("drafter"))
    log.info("%s on %s: %s; %.1f GB in all", entry.title, device, ", ".join(f"{k} {v:g}" for k, v in needs.items()), total)
    if device.startswith("cuda"):
        free = torch.cuda.mem_get_info(device)[0] / 1e9
        if free < total:
            raise LoadError(f"{entry.title} needs {total:.1f} GB of GPU memory and {free:.1f} GB are free. Close what uses the GPU.")


def _build(name: str, entry: TargetSpec, device: str, dtype: torch.dtype | None, paths: dict[str, str | Path]) -> LoadedPair:
    paths = {what: path if path == "none" else Path(path).expanduser() for what, path in paths.items()}
    plan(entry, device, paths)
    for part in entry.parts:
        if part.optional and paths.get(part.what) == "none":
            continue
        if part.licence:
            log.warning("%s: %s", part.repo, part.licence)
        paths[part.what] = fetch(part, paths.get(part.what))
    if entry.parts:
        paths["device"] = device
    pair = choice = None
    try:
        pair = entry.build(**paths)
        parameters = sum(p.numel() for p in pair.target_model.parameters())
        if device == "cpu" and parameters < MEASURED:
            choice = choose_on_cpu(pair, dtype)
        else:
            dtype = dtype or torch.bfloat16
            pair.to(device, dtype)
            if threads := forced_threads():
                torch.set_num_threads(threads)
            choice = {"dtype": str(dtype).removeprefix("torch."), "threads": torch.get_num_threads()}
    except (torch.OutOfMemoryError, MemoryError):
        pair = None
    if pair is None:  # not above, where the error still holds on to the frames with all they loaded
        free_memory()
        needs = entry.gigabytes(paths.get("drafter"))
        raise LoadError(f"{name} did not fit into the memory of {device}; what it took was freed. It needs {needs:.1f} GB.")
    pair.cache_gigabytes = entry.memory.get("cache", 0.0)
    pair.environment = {"device": device, **choice, "torch": torch.__version__, "python": platform.python_version()}
    return pair


CACHE: dict[tuple, LoadedPair] = {}  # the pairs that are loaded, by name, device, dtype and files
_lock = threading.Lock()


def load(name: str = "meadow", device: str | None = None, dtype: str | torch.dtype | None = None, **paths: str | Path | None) -> LoadedPair:
    """A pair by name; see coolsd.load. Loaded once for the same arguments.

    Args:
        name: of the catalog, or the folder of a pair in meadow's layout (one of your own).
        dtype: a torch dtype or its name; None measures small pairs on a CPU and takes bfloat16 elsewhere.
        paths: local files in place of the hub's, by part: target, drafter ("none": without one), vq, text. For meadow, `folder`:
            another folder in the same layout.

    Raises:
        LoadError: unknown name, files that are missing or do not fit, too little memory.
    """
    if not isinstance(name, str | Path):
        raise LoadError(f"{name!r} is not the name of a target. Known: {', '.join(CATALOG)}.")
    if name not in CATALOG and (Path(name) / "config.json").exists():
        return load("meadow", device, dtype, folder=name, **paths)
    check_parts(name, paths)
    device, dtype = named_device(device), named_dtype(dtype)
    paths = {what: path for what, path in paths.items() if path is not None}
    key = (name, device, dtype, tuple(sorted((k, str(v)) for k, v in paths.items())))
    with _lock:
        if key not in CACHE:
            CACHE[key] = _build(name, CATALOG[name], device, dtype, paths)
        return CACHE[key]
