"""Passes of a released target against the memory's bandwidth; with random weights, which take the same time.

At a picture or two at a time a pass is bound by reading the weights: its floor is the bytes it must read, weights and live cache, over
the bandwidth that a big copy reaches here and now.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Generator, Tensor, nn

from ...jacobi import JacobiDrafter
from ...models.catalog import CATALOG
from ...models.checkpoints import LoadError
from ...models.loading import named_device, named_dtype, plan
from ...models.packed import fuse
from ...models.pair import WORDS, LoadedPair
from ...protocols import Draft, Drafter, Target
from ...sampling import draw, to_probs
from ...settings import SETTINGS
from ...trees import chain

CHUNK = 32  # tokens a pass on the way to the middle of the picture
WARM_UP = 3  # calls on a GPU: as it is, recording, replay; elsewhere one
ENOUGH = (3, 20.0)  # a slow machine stops after this many repeats once they took this many seconds
WINDOW = SETTINGS["window"].default  # tokens of a Jacobi pass
COPY = {"cuda": 2**31, "cpu": 2**28}  # bytes of the copy; more than any cache holds


@dataclass(frozen=True)
class PassTime:
    """A pass with its measured and its least time."""

    name: str
    milliseconds: float  # median
    gigabytes: float  # read by one pass: weights and live cache
    floor_ms: float


@dataclass(frozen=True)
class BandwidthReport:
    """What was measured on what."""

    target: str
    layers: int
    device: str
    dtype: str
    bandwidth: float  # GB/s, bytes read and written by a copy
    cached: int  # entries of a row of the target's cache
    parts: list[PassTime]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


# ---- pairs


def random_pair(name: str, device: str, dtype: torch.dtype, layers: int | None = None) -> LoadedPair:
    """A released target with a drafter of its sizes and random weights.

    Args:
        layers: of the target; None: all.

    Raises:
        LoadError: not a released target.
    """
    names = [name for name, spec in CATALOG.items() if spec.random]
    if name not in names:
        raise LoadError(f"There are no sizes for {name!r}. Choose one of: {', '.join(names)}.")
    return CATALOG[name].random(build=partial(_filled, device=device, dtype=dtype), layers=layers)


def _filled(network: type[nn.Module], sizes: Any, device: str, dtype: torch.dtype) -> nn.Module:
    with torch.device("meta"):
        model = network(sizes).to(dtype)
    model = model.to_empty(device=device).eval().requires_grad_(False)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.normal_(std=0.02)
    return model


# ---- time


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Median seconds of a call that has been warmed up; of fewer repeats, see ENOUGH, where it takes long."""
    for _ in range(WARM_UP if device.type == "cuda" else 1):
        call()
    times: list[float] = []
    while len(times) < repeats and (len(times) < ENOUGH[0] or sum(times) < ENOUGH[1]):
        _wait(device)
        began = perf_counter()
        call()
        _wait(device)
        times.append(perf_counter() - began)
    return median(times)


def bandwidth(device: torch.device, repeats: int = 10) -> float:
    """Bytes a second that a big copy reads and writes."""
    source = torch.zeros(COPY.get(device.type, COPY["cpu"]) // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device, repeats)


def weight_bytes(module: nn.Module) -> int:
    """Bytes of the layers that a pass reads: not of tables of which it looks up a few rows, the text's own layers, or a head."""
    skipped = ("embed_tokens", "tok_embeddings", "generation_embeddings", "cls_embedding", "lm_head", "output", "generation_head")
    return sum(p.nbytes for name, p in module.named_parameters() if not any(word in name for word in skipped))


def cache_bytes(session: Any) -> int:
    """Bytes of the committed entries, of all layers and rows."""
    keys = session.cache.keys
    return 2 * keys[..., : session.cache.committed, :].numel() * keys.element_size()


def to_the_middle(target: Target, drafter: Drafter, count: int, device: torch.device) -> Tensor:
    """Feed both sessions `count` codes; returns one more, which they have not seen."""
    codes = torch.arange(count + 1, device=device) % 1000
    drafter.observe(target.prefill("0 " * WORDS).hidden, codes[:1])
    for start in range(0, count, CHUNK):
        stop = min(count, start + CHUNK)
        hidden = target.extend(codes[start:stop], chain(stop - start)).hidden
        target.keep(list(range(stop - start)))
        drafter.observe(hidden, codes[start + 1 : stop + 1])
    return codes[-1:]


def jacobi_round(target: Target, window: Tensor, codes: int, rows: Callable[[Tensor], Tensor], generator: Generator) -> Callable[[], Any]:
    """What a round of Jacobi drafting takes besides verification: a pass over the window (W,), its rows, and the next window."""
    slots = len(window) - 1
    drafter, p = JacobiDrafter(slots, slots, "maximal", "repeat"), torch.full((slots, codes), 1 / codes, device=window.device)
    drafter.observe(p[None], window)
    draft = Draft(window[1:], p, chain(slots), 0)

    def call() -> None:
        drafter.review(rows(target.extend(window, chain(slots + 1)).logits), draft, 0, generator)
        drafter.propose(chain(slots), rows, generator).tokens.tolist()

    return call


@torch.inference_mode()
def measure(
    name: str, device: str | None = None, dtype: str | None = None, layers: int | None = None, draft: int = 5, repeats: int = 30
) -> BandwidthReport:
    """Build a released size with random weights and time its passes in the middle of a picture, with guidance.

    Args:
        dtype: bfloat16 unless given. layers: of the target, to try it where all do not fit. draft: tokens of the chain.

    Raises:
        LoadError: an unknown name, or too little memory on the GPU.
    """
    where, kind = torch.device(named_device(device)), named_dtype(dtype or "bfloat16")
    if name in CATALOG and layers is None:
        plan(CATALOG[name], str(where), {})
    speed = bandwidth(where)
    pair = random_pair(name, str(where), kind, layers)
    fuse(pair.target_model, pair.drafter_model)
    pair.pack()
    target, drafter = pair.begin(4.0)
    code = to_the_middle(target, drafter, pair.side**2 // 2, where)
    generator, fed = torch.Generator().manual_seed(0), code.repeat(draft + 1)
    rows = partial(to_probs, top_k=1000)

    def ar_step() -> None:
        draw(rows(target.extend(code, chain(1)).logits), generator).tolist()

    heading = sum(part[: drafter.entries.codes].nbytes for part in pair.head.parameters())  # of Lumina's the rows of image codes only
    whole = weight_bytes(pair.target_model) + heading + cache_bytes(target)
    drafting = weight_bytes(pair.drafter_model) + heading + cache_bytes(drafter.entries)
    calls = [
        ("AR step", ar_step, whole, 1),
        ("draft step", lambda: drafter.propose(chain(draft), rows, generator).tokens.tolist(), drafting, draft),
        (f"verify pass of {draft + 1}", lambda: target.extend(fed, chain(draft + 1)), whole, 1),
        (f"Jacobi round of {WINDOW}", jacobi_round(target, code.repeat(WINDOW), drafter.entries.codes, rows, generator), whole, 1),
    ]
    parts = [PassTime(label, 1e3 * seconds(call, where, repeats) / n, size / 1e9, 1e3 * size / speed) for label, call, size, n in calls]
    hardware = torch.cuda.get_device_name(where) if where.type == "cuda" else where.type
    return BandwidthReport(name, pair.target_model.config.layers, hardware, str(kind), speed / 1e9, target.cache.committed, parts)


def table(report: BandwidthReport) -> str:
    """The figures as plain text."""
    lines = [
        f"{report.target}, random weights, {report.layers} layers, {report.dtype} on {report.device}; "
        f"a copy moves {report.bandwidth:.0f} GB/s; {report.cached} entries in the cache, two branches",
        f"{'':18}{'ms':>9}{'GB read':>10}{'floor ms':>10}{'× floor':>9}",
    ]
    for part in report.parts:
        times = part.milliseconds / part.floor_ms
        lines.append(f"{part.name:18}{part.milliseconds:>9.3f}{part.gigabytes:>10.3f}{part.floor_ms:>10.3f}{times:>9.2f}")
    return "\n".join(lines)
