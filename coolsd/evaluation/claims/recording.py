"""Lossless runs with all rows of every round, in a compact form: what schedules are evaluated on.

A recording belongs to one prompt, seed and settings and to the weights whose folder it lies in; each is a file, written as soon as it is
recorded, so that a stopped collection can be resumed. Rows are sparse (codes that neither p nor q can emit are left out) and float16.
"""

import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ... import stream
from ...data.store import digest, progress, save_arrays
from ...protocols import Draft, Drafter, Pair, Step, Target, ToProbs
from ...trees import Shape
from ..batching import map_of
from ..samples import LANES

LENGTH = 10  # draft positions recorded: shorter drafts are read off the same rows
SCALE = 2.0**14  # keeps float16 out of its subnormal range down to probabilities of 4e-9


@dataclass(frozen=True)
class Recording:
    """The R rounds of a picture that drafted L tokens, all L looked at whatever was accepted; M codes a row.

    The last few tokens of a picture, whose rounds draft less, are left out.
    """

    prompt: str
    seed: int
    p: Tensor  # (R, L, M) float32 target rows of the drafted tokens, normalised, over the codes of each place; 0 behind these
    q: Tensor  # (R, L, M) float32 draft rows over the same codes
    place: Tensor  # (R, L) int64: where among the M the drafted token is
    accepted: Tensor  # (R,) int64 drafts that the lossless run accepted
    surprise: Tensor  # (R,) float64: Σ of log p(x) + H(p) over the tokens emitted, nats; 0 on average

    @property
    def ratio(self) -> Tensor:
        """p/q of the drafted tokens, (R, L) float64."""
        p, q = (rows.gather(-1, self.place[..., None])[..., 0].double() for rows in (self.p, self.q))
        return p / q


# ---- watching a run


class _WatchedDrafter:
    """Remembers the draft of the round, and how logits become rows."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter
        self.draft: Draft | None = None
        self.to_probs: ToProbs | None = None

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        self.drafter.observe(hidden, tokens)

    def propose(self, shape: Shape, to_probs: ToProbs, generator: Generator) -> Draft:
        self.draft, self.to_probs = self.drafter.propose(shape, to_probs, generator), to_probs
        return self.draft

    def review(self, p: Tensor, draft: Draft, accepted: int, generator: Generator) -> None:
        self.drafter.review(p, draft, accepted, generator)


class _WatchedTarget:
    """Hands over the rows of each pass that verifies a draft."""

    def __init__(self, target: Target, drafter: _WatchedDrafter, keep: Callable[[Draft, Tensor], None]):
        self.target, self.drafter, self.keep_rows = target, drafter, keep

    def prefill(self, prompt: str) -> Step:
        return self.target.prefill(prompt)

    def extend(self, tokens: Tensor, parents: tuple[int, ...]) -> Step:
        step = self.target.extend(tokens, parents)
        if self.drafter.draft is not None:
            self.keep_rows(self.drafter.draft, self.drafter.to_probs(step.logits))
            self.drafter.draft = None
        return step

    def keep(self, path: list[int]) -> None:
        self.target.keep(path)


class WatchedPair:
    """A pair that decodes as ever, and hands the draft and the target rows (L + 1, V) of each round to `keep`."""

    def __init__(self, pair: Pair, keep: Callable[[Draft, Tensor], None]):
        self.pair, self.keep = pair, keep
        self.name, self.grid, self.environment = pair.name, pair.grid, pair.environment

    @property
    def codebook(self) -> Tensor:
        """As the pair's."""
        return self.pair.codebook

    def begin(self, cfg_scale: float) -> tuple[Target, Drafter | None]:
        """Watched sessions."""
        target, drafter = self.pair.begin(cfg_scale)
        if drafter is None:
            return target, None
        watched = _WatchedDrafter(drafter)
        return _WatchedTarget(target, watched, self.keep), watched

    def picture(self, tokens: list[int]) -> object:
        """As the pair's."""
        return self.pair.picture(tokens)

    def free(self) -> None:
        """As the pair's."""
        self.pair.free()


# ---- the compact form


@dataclass
class _Sparse:
    """Rounds of one picture, the rows of all one behind the other."""

    codes: list[np.ndarray]
    p: list[np.ndarray]
    q: list[np.ndarray]
    counts: list[np.ndarray]  # (L,) codes of each row
    drafted: list[np.ndarray]  # (L,) codes
    accepted: list[int]
    surprise: list[float]

    @classmethod
    def empty(cls) -> "_Sparse":
        return cls([], [], [], [], [], [], [])

    def add(self, draft: Draft, rows: Tensor, tokens: Sequence[int]) -> None:
        """A round: its draft, target rows (L + 1, V), and the tokens it emitted."""
        p, q = rows[:-1].float().cpu(), draft.q.float().cpu()
        present = (p > 0) | (q > 0)
        width = np.uint16 if p.shape[1] <= 2**16 else np.int32
        self.codes.append(present.nonzero()[:, 1].numpy().astype(width))
        for store, dense in ((self.p, p), (self.q, q)):
            store.append((dense[present] * SCALE).half().numpy())
        self.counts.append(present.sum(-1).numpy().astype(np.int32))
        self.drafted.append(draft.tokens.cpu().numpy().astype(width))
        self.accepted.append(len(tokens) - 1)
        self.surprise.append(float(surprise(rows[: len(tokens)].cpu(), torch.tensor(tokens)).sum()))

    def arrays(self) -> dict[str, np.ndarray]:
        parts = {name: np.concatenate(getattr(self, name)) for name in ("codes", "p", "q")}
        parts |= {name: np.stack(getattr(self, name)) for name in ("counts", "drafted")}
        return parts | {"accepted": np.array(self.accepted), "surprise": np.array(self.surprise)}


def surprise(rows: Tensor, tokens: Tensor) -> Tensor:
    """log p(x) + H(p) of tokens (T,) under the rows (T, V) they were drawn from, nats, (T,) float64.

    Its mean is 0 for any method that draws from p, whatever came before: the differences form a martingale. It scatters far less than
    log p itself, which also varies with how predictable a picture is.
    """
    rows = rows.double()
    return rows.gather(-1, tokens[:, None])[:, 0].log() + torch.special.entr(rows).sum(-1)


def record(pair: Pair, prompt: str, seed: int, length: int, settings: dict[str, Any]) -> dict[str, np.ndarray]:
    """Decode one picture with Eagle-1 drafting `length` tokens a round; its rounds in the compact form."""
    latest: list[tuple[Draft, Tensor]] = []

    def keep(draft: Draft, rows: Tensor) -> None:
        latest[:] = [(draft, rows)]

    sparse = _Sparse.empty()
    for event in stream(WatchedPair(pair, keep), prompt, "eagle1", seed=seed, tree="chain", draft_length=length, **settings):
        if event.drafted == length:
            sparse.add(*latest[0], event.tokens)
    if not sparse.counts:
        raise ValueError(f"No round of {pair.name} drafts {length} tokens: the picture is too short. Give a smaller --recorded-length.")
    return sparse.arrays()


def unpack(prompt: str, seed: int, arrays: dict[str, np.ndarray]) -> Recording:
    """A recording from its compact form."""
    counts = torch.from_numpy(arrays["counts"]).long()
    present = torch.arange(int(counts.max())) < counts[..., None]

    def padded(name: str, fill: float = 0.0) -> Tensor:
        flat = torch.from_numpy(arrays[name].astype(np.float32))
        return torch.full(present.shape, fill).masked_scatter(present, flat)

    p, q = (padded(name) for name in ("p", "q"))
    drafted = torch.from_numpy(arrays["drafted"].astype(np.float32))
    place = (padded("codes", -1.0) == drafted[..., None]).to(torch.uint8).argmax(-1)
    p, q = (rows / rows.sum(-1, keepdim=True) for rows in (p, q))
    return Recording(prompt, seed, p, q, place, torch.from_numpy(arrays["accepted"]), torch.from_numpy(arrays["surprise"]))


# ---- on disk


def _file(folder: Path, key: dict[str, Any]) -> Path:
    return folder / f"{digest(json.dumps(key, sort_keys=True, allow_nan=False), digits=16)}.npz"


def _read(path: Path, key: dict[str, Any]) -> Recording | None:
    """None where the file is missing or damaged: it is recorded again."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return unpack(key["prompt"], key["seed"], arrays) if json.loads(str(arrays["key"])) == key else None
    except (FileNotFoundError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def recordings(
    pair: Callable[[], Pair], folder: Path, jobs: Sequence[tuple[str, int]], length: int, settings: dict[str, Any]
) -> list[Recording]:
    """The recording of each (prompt, seed), in order: read from `folder`, or recorded and stored there.

    Args:
        pair: opens the pair; called only where something is missing.
        folder: of one target with its weights.
        settings: cfg_scale, top_k, temperature, …
    """
    keys = [{"prompt": prompt, "seed": seed, "length": length, **settings} for prompt, seed in jobs]
    stored = [_read(_file(folder, key), key) for key in keys]
    missing = [i for i, one in enumerate(stored) if one is None]
    if not missing:
        return stored
    folder.mkdir(parents=True, exist_ok=True)
    opened = pair()

    def one(i: int) -> None:
        key = keys[i]
        arrays = record(opened, key["prompt"], key["seed"], length, settings)
        save_arrays(_file(folder, key), key=json.dumps(key, allow_nan=False), **arrays)
        stored[i] = unpack(key["prompt"], key["seed"], arrays)

    with progress(len(missing), "lossless runs recorded") as bar:
        for start in range(0, len(missing), LANES):
            part = missing[start : start + LANES]
            list(map_of(opened)(one, part))
            bar.update(len(part))
    return stored
