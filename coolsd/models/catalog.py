"""Names to loaded pairs. A pair is loaded once a process; each picture opens sessions of its own on it."""

import platform
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from PIL import Image
from transformers import JanusVQVAE
from transformers.utils import logging as transformers_logging

from .eagle import Eagle, EagleDrafter
from .llamagen import LlamaGen
from .protocols import chain
from .target import LlamaGenTarget
from .text import Conditioning, TextTable
from .tokenizer import ImageTokenizer
from .weights import LoadError, check_pair, drafter_config, fill, first_file, read_state, target_config

__all__ = ["CATALOG", "LlamaGenPair", "LoadError", "load"]

ASSETS = Path(__file__).resolve().parents[2] / "assets"
MEADOW_TOKENS = 24  # condition tokens
GAIN = 1.15  # how much faster bfloat16 must be to be chosen over float32


@dataclass
class LlamaGenPair:
    """A LlamaGen-format target with its drafter and tokenizers; implements protocols.Pair."""

    name: str
    target_model: LlamaGen
    drafter_model: Eagle | None
    tokenizer: ImageTokenizer
    text: Callable[[str], Conditioning]
    environment: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._target_rope = self.target_model.rope()
        self._drafter_rope = None if self.drafter_model is None else self.drafter_model.rope()

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of image tokens."""
        return (self.target_model.config.grid,) * 2

    def begin(self, cfg_scale: float) -> tuple[LlamaGenTarget, EagleDrafter | None]:
        """Fresh sessions for one picture."""
        target = LlamaGenTarget(self.target_model, self.text, cfg_scale, self._target_rope)
        if self.drafter_model is None:
            return target, None
        return target, EagleDrafter(self.drafter_model, self.target_model.output, cfg_scale, self._drafter_rope)

    def picture(self, tokens: list[int]) -> Image.Image:
        """The picture so far, transparent where no token is yet."""
        return self.tokenizer.picture(tokens)

    def to(self, device: str, dtype: torch.dtype) -> "LlamaGenPair":
        """Move target and drafter; the picture decoder stays float32."""
        for model in (self.target_model, self.drafter_model):
            if model is not None:
                model.to(device, dtype).eval().requires_grad_(False)
        self.tokenizer.vqvae.to(device)
        self.__post_init__()
        return self


def load_vq(folder: Path, grid: int) -> ImageTokenizer:
    """A JanusVQVAE folder: config.json and model.safetensors."""
    first_file(folder, ("config.json",))
    state = read_state(folder / "model.safetensors")
    config = JanusVQVAE.config_class.from_pretrained(folder)
    vqvae = fill(JanusVQVAE(config), state, "picture tokenizer")
    return ImageTokenizer(vqvae.float().to(memory_format=torch.channels_last), grid)


def load_meadow(folder: Path | None = None) -> LlamaGenPair:
    """The embedded pair, or one in the same layout: config.json, target, drafter/, vq/, text table and tokenizer."""
    folder = ASSETS / "meadow" if folder is None else Path(folder)
    config = target_config(folder)
    with torch.device("meta"):
        target = LlamaGen(config)
    fill(target, read_state(folder / "target.safetensors"), "target")
    drafter = None
    if (folder / "drafter").exists():
        sizes = drafter_config(folder / "drafter", config)
        check_pair(config, sizes)
        with torch.device("meta"):
            drafter = Eagle(sizes)
        fill(drafter, read_state(first_file(folder / "drafter", ("model.safetensors", "pytorch_model.bin"))), "drafter")
    text = TextTable.load(folder, config.caption_tokens)
    return LlamaGenPair("meadow", target, drafter, load_vq(folder / "vq", config.grid), text)


CATALOG: dict[str, Callable[..., LlamaGenPair]] = {"meadow": load_meadow}


def best_device() -> str:
    """cuda, else mps, else cpu."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def pass_seconds(pair: LlamaGenPair, repeats: int = 8) -> float:
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


def choose_on_cpu(pair: LlamaGenPair, dtype: torch.dtype | None) -> dict[str, Any]:
    """Set the faster dtype and thread count by measuring; float32 unless bfloat16 gains clearly. Returns what was measured."""
    most = torch.get_num_threads()
    dtypes = [dtype] if dtype else [torch.float32, torch.bfloat16]
    seconds: dict[tuple[torch.dtype, int], float] = {}
    for candidate in dtypes:
        pair.to("cpu", candidate)
        for threads in sorted({most, max(1, most // 2)}):
            torch.set_num_threads(threads)
            seconds[candidate, threads] = pass_seconds(pair)
    chosen = min(seconds, key=lambda c: seconds[c] * (1.0 if c[0] == torch.bfloat16 else 1 / GAIN))
    torch.set_num_threads(chosen[1])
    pair.to("cpu", chosen[0])
    measured = {f"{str(d).removeprefix('torch.')}, {n} threads": round(1000 * s / 2, 2) for (d, n), s in seconds.items()}
    return {"dtype": str(chosen[0]).removeprefix("torch."), "threads": chosen[1], "pass_ms": measured}


_pairs: dict[tuple, LlamaGenPair] = {}
_lock = threading.Lock()


def load(name: str = "meadow", device: str | None = None, dtype: Any = None, **paths: Any) -> LlamaGenPair:
    """A pair by name; see coolsd.load. Loaded once for the same arguments.

    Args:
        dtype: a torch dtype or its name; None measures on a CPU and takes bfloat16 elsewhere.
        paths: for meadow, `folder`: another folder in the same layout.

    Raises:
        LoadError: unknown name, or files that are missing or do not fit.
    """
    if name not in CATALOG:
        raise LoadError(f"There is no target called {name!r}. Known: {', '.join(CATALOG)}.")
    if isinstance(dtype, str):
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise LoadError(f"{dtype!r} is not a dtype. Use float32, bfloat16 or float16.")
        dtype = getattr(torch, dtype)
    key = (name, device, dtype, tuple(sorted((k, str(v)) for k, v in paths.items())))
    with _lock:
        if key not in _pairs:
            transformers_logging.disable_progress_bar()
            pair = CATALOG[name](**paths)
            device = device or best_device()
            if device == "cpu":
                choice = choose_on_cpu(pair, dtype)
            else:
                dtype = dtype or torch.bfloat16
                pair.to(device, dtype)
                choice = {"dtype": str(dtype).removeprefix("torch."), "threads": torch.get_num_threads()}
            pair.environment = {"device": device, **choice, "torch": torch.__version__, "python": platform.python_version()}
            _pairs[key] = pair
        return _pairs[key]
