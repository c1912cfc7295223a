"""A resumable collection of generated pictures: what is stored is read, what is missing is decoded, each picture is written at once.

A folder belongs to one target with its weights and dtype (`collection.json`); each label has a JSONL of its own, whose first line holds the
settings. Knows nothing of pixels and features.
"""

import json
import multiprocessing
import os
import re
import signal
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import METHODS, Settings, load, statistics, stream, validate
from ..data.store import fingerprint, progress, save_text
from ..models.loading import best_device
from ..protocols import Pair
from ..trace import Round
from ..trees import chain
from .batching import batched, map_of

LANES = 16  # pictures that a worker decodes at once
CHUNK = 64  # tokens a scoring pass: what the targets' caches have room for behind the last cell
Opener = Callable[[str, str | None], Pair]  # target, dtype


@dataclass(frozen=True)
class Job:
    """A picture to decode; `settings` are those beyond prompt, method and seed, the same for all jobs of a label."""

    label: str
    method: str
    settings: tuple[tuple[str, Any], ...]
    prompt: str
    seed: int


@dataclass(frozen=True)
class Sample:
    """A decoded picture. log_prob: see `log_prob`; drift and outside: see `trace.drift`, None and 0 in pictures stored without them."""

    label: str
    prompt: str
    seed: int
    tokens: list[int]
    target_calls: int
    accept_length: float
    bias_spent: float  # Σ over the picture, so that ÷ tokens is the bias a token
    log_prob: float
    drift: float | None = None
    outside: int = 0


def log_prob(pair: Pair, prompt: str, tokens: Sequence[int], cfg_scale: float) -> float:
    """Mean log-probability of these tokens, nats a token, under the target's guided logits at temperature 1 with no top-k or top-p.

    Teacher-forced: the target looks at the finished picture, CHUNK tokens a pass. Finite for every method, also where a relaxed one
    emitted what top-k had removed.
    """
    with torch.inference_mode():
        target, _ = pair.begin(cfg_scale)
        step, total = target.prefill(prompt), 0.0
        for start in range(0, len(tokens), CHUNK):
            part = torch.tensor(tokens[start : start + CHUNK], device=step.logits.device)
            # The row of a part's first token comes from the pass before, which the next pass may overwrite.
            total += _score(step.logits[-1:], part[:1])
            if start + 1 < len(tokens):
                step = target.extend(part, chain(len(part)))
                target.keep(list(range(len(part))))
                total += _score(step.logits[:-1], part[1:])
    return total / len(tokens)


def _score(logits: Tensor, tokens: Tensor) -> float:
    return logits.float().log_softmax(-1).gather(-1, tokens[:, None]).sum().item()


def sample(pair: Pair, jobs: Sequence[Job]) -> list[Sample]:
    """Decode pictures, several at once where the pair is `batched`, and score them."""
    decoded = map_of(pair)(partial(_decode, pair), jobs)
    return [_scored(pair, job, rounds) for job, rounds in zip(jobs, decoded, strict=True)]


def _decode(pair: Pair, job: Job) -> list[Round]:
    return list(stream(pair, **_settings(job).to_dict()))


def _scored(pair: Pair, job: Job, rounds: list[Round]) -> Sample:
    tokens, stats = [t for r in rounds for t in r.tokens], statistics(rounds)
    score = log_prob(pair, job.prompt, tokens, _settings(job).cfg_scale)
    figures = (stats.target_calls, stats.accept_length, stats.bias_spent, score, stats.drift, stats.outside)
    return Sample(job.label, job.prompt, job.seed, tokens, *figures)


# ---- what is stored


def _settings(job: Job) -> Settings:
    return validate(METHODS, prompt=job.prompt, method=job.method, seed=job.seed, **dict(job.settings))


def _shared(settings: Settings) -> dict[str, Any]:
    """What all pictures of a label have in common."""
    return {name: value for name, value in settings.to_dict().items() if name not in ("prompt", "seed")}


def label_path(folder: Path, label: str) -> Path:
    """The JSONL of a label."""
    name = re.sub(r"[^\w.=+-]+", "_", label)
    return folder / (f"{name}.jsonl" if name == label else f"{name}.{zlib.crc32(label.encode()):08x}.jsonl")


def read_label(path: Path) -> tuple[dict[str, Any] | None, list[Sample]]:
    """Settings and samples of a label's file; None and nothing without one. A half-written last line is cut off the file.

    Raises:
        ValueError: a line that is not JSON stands before the last.
    """
    if not path.exists():
        return None, []
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        os.truncate(path, len(whole))
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}). Delete it to decode its pictures again.") from None
    return (lines[0], [Sample(**line) for line in lines[1:]]) if lines else (None, [])


def _check(path: Path, stored: dict[str, Any], now: dict[str, Any]) -> None:
    before = asdict(Settings()) | stored  # settings that came later had their defaults
    changed = [f"{name} {before[name]!r} → {now[name]!r}" for name in now if before[name] != now[name]]
    if changed:
        raise ValueError(f"{path} was made with other settings: {', '.join(changed)}. Give another folder, or delete the file.")


def collection(folder: Path, target: str, opener: Opener, weights: str | None = None) -> dict[str, str]:
    """Target, weights and dtype of a folder, settled at its first use, so that pictures of different models never mix.

    Args:
        weights: the target's fingerprint, where it is known.

    Raises:
        ValueError: the folder's pictures are another target's, or come from other weights.
    """
    path = folder / "collection.json"
    now = {"target": target, "weights": weights or fingerprint(target)}
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if {name: stored.get(name) for name in now} != now:
            raise ValueError(f"{folder} holds pictures of {stored.get('target')} with other weights. Give another folder, or delete it.")
        return stored
    folder.mkdir(parents=True, exist_ok=True)
    now["dtype"] = str(opener(target, None).environment.get("dtype", "float32"))
    save_text(path, json.dumps(now, allow_nan=False))
    return now


# ---- workers

_worker: dict[str, Pair] = {}


def _start(opener: Opener, target: str, dtype: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    torch.set_num_threads(1)
    _worker["pair"] = batched(opener(target, dtype), LANES)


def _work(jobs: Sequence[Job]) -> list[Sample]:
    return sample(_worker["pair"], jobs)


def batches(jobs: Sequence[Job], size: int) -> list[list[Job]]:
    """At most `size` jobs of one label each, labels interleaved: pictures that draft alike are decoded at once."""
    labels: dict[str, list[Job]] = {}
    for job in jobs:
        labels.setdefault(job.label, []).append(job)
    parts = ([of_label[i : i + size] for i in range(0, len(of_label), size)] for of_label in labels.values())
    return [part for turn in zip_longest(*parts) for part in turn if part]


def open_pair(target: str, dtype: str | None) -> Pair:
    """The pair by name, or from a folder in meadow's layout; None lets it choose its dtype."""
    return load("meadow", dtype=dtype, folder=Path(target)) if Path(target).is_absolute() else load(target, dtype=dtype)


def _decoded(jobs: Sequence[Job], opener: Opener, target: str, dtype: str, workers: int) -> Iterator[list[Sample]]:
    """Samples as they are finished. One worker decodes in this process, with its threads."""
    size = min(LANES, -(-len(jobs) // workers))
    if workers == 1:
        yield from map(partial(sample, batched(opener(target, dtype), size)), batches(jobs, size))
        return
    with multiprocessing.get_context("spawn").Pool(workers, _start, (opener, target, dtype)) as pool:
        yield from pool.imap_unordered(_work, batches(jobs, size))


def collect(
    jobs: Sequence[Job],
    folder: Path,
    target: str = "meadow",
    workers: int | None = None,
    opener: Opener = open_pair,
    weights: str | None = None,
) -> Iterator[Sample]:
    """The jobs' pictures: those stored in `folder` first, then the missing ones, each appended as soon as it is decoded.

    A kill loses at most the LANES pictures that each worker was at. Progress and time left go to standard error.

    Args:
        workers: processes of one thread each; None: one a core, or one where there is a GPU.
        opener: how a worker gets the pair; a module's function, since workers are fresh processes.
        weights: the target's fingerprint, where it is known.

    Raises:
        SettingsError: at once, settings that cannot be run.
        ValueError: the folder holds pictures made with other settings, weights or another target, or a job is there twice.
    """
    wanted = {(job.label, job.prompt, job.seed): job for job in jobs}
    if len(wanted) != len(jobs):
        raise ValueError("Two jobs have the same label, prompt and seed.")
    labels: dict[str, dict[str, Any]] = {}
    for job in jobs:
        shared = _shared(_settings(job))
        if labels.setdefault(job.label, shared) != shared:
            raise ValueError(f"The label {job.label!r} stands for two different settings.")
    stored: list[Sample] = []
    for label, shared in labels.items():
        header, samples = read_label(path := label_path(folder, label))
        if header is not None:
            _check(path, header, shared)
        stored += [s for s in samples if (s.label, s.prompt, s.seed) in wanted]
    have = {(s.label, s.prompt, s.seed) for s in stored}
    missing = [job for key, job in wanted.items() if key not in have]
    dtype = collection(folder, target, opener, weights)["dtype"]
    yield from stored
    if not missing:
        return
    workers = workers or (os.cpu_count() or 1 if best_device() == "cpu" else 1)
    with ExitStack() as stack:
        files, bar = {}, stack.enter_context(progress(len(missing), "pictures"))
        decoded = (one for batch in _decoded(missing, opener, target, dtype, min(workers, len(missing))) for one in batch)
        for one in decoded:
            if one.label not in files:
                files[one.label] = stack.enter_context(label_path(folder, one.label).open("a", encoding="utf-8"))
                if not files[one.label].tell():
                    print(json.dumps(labels[one.label], ensure_ascii=False, allow_nan=False), file=files[one.label])
            print(json.dumps(asdict(one), ensure_ascii=False, allow_nan=False), file=files[one.label], flush=True)
            bar.update()
            yield one


def jobs(lanes: Sequence[tuple], prompts: Sequence[str], settings: dict[str, Any]) -> list[Job]:
    """Every variant on the same prompts and seeds, interleaved, so that a run cut short covers them evenly."""
    return [
        Job(label, method, tuple((settings | dict(own)).items()), prompt, seed)
        for seed, prompt in enumerate(prompts)
        for label, method, own in lanes
    ]
