"""The targets by name: files, memory, settings; which of them run here, and exactly what the others lack.

Loads nothing: a family is imported when one of its pairs is built, since transformers takes seconds to import.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .checkpoints import LoadError
from .hub import HubFiles, local, missing_line
from .janus.network import PRO_7B, JanusConfig
from .llamagen.network import LlamaGenConfig

if TYPE_CHECKING:
    from .pair import LoadedPair

FORM = "TARGET.PART=PATH, for example llamagen-256.target=weights/t2i_XL_stage1_256.pt"
SELF_DRAFTING = (
    "It runs with Jacobi drafting (SJD, coupled, COOL-SD), for which it is its own drafter, or as plain AR. A drafter would add Eagle-1, "
    "COOL-SD and the other methods that need one: `python -m coolsd train drafter` makes it, and `--files drafter=PATH` names it."
)
Files = Mapping[str, Mapping[str, str]]  # local paths by target and part, as `load` takes them


@dataclass(frozen=True)
class TargetSpec:
    """A target by name.

    Args:
        build: from one path a part. memory: what a GPU must hold, in GB (bfloat16; two branches of cache), by part.
        random: the same sizes without weights, for `bench --random-weights`; None: not offered.
        settings: what its authors sampled with: what page, command line, training and evaluation start from.
        note: what a person should know before choosing it.
        length: codes of a picture, with what the format puts between them. pass_seconds: of one pass on a GPU, estimated.
    """

    title: str
    build: Callable[..., "LoadedPair"]
    parts: tuple[HubFiles, ...] = ()
    memory: dict[str, float] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)
    note: str = ""
    random: Callable[..., "LoadedPair"] | None = None
    length: int = 1024
    pass_seconds: float = 0.05

    @property
    def part_names(self) -> tuple[str, ...]:
        """What local files can be named for."""
        return tuple(dict.fromkeys((*(part.what for part in self.parts), "drafter"))) if self.parts else ("folder",)

    def needs(self, drafter: str | Path | None = None) -> dict[str, float]:
        """GB of memory by part. drafter: as for `load`; None stands for the catalog's, where there is one."""
        drafts = drafter != "none" and (drafter is not None or any(part.what == "drafter" for part in self.parts))
        return {what: size for what, size in self.memory.items() if drafts or what != "drafter"}

    def gigabytes(self, drafter: str | Path | None = None) -> float:
        """Memory it needs in all; drafter as for `needs`."""
        return sum(self.needs(drafter).values())


META_LICENCE = "Weights derived from Meta's Chameleon: research licence, non-commercial."
XL_VQ = HubFiles("vq", "peizesun/llamagen_t2i", ("vq_ds16_t2i.pt",), 0.29)
T5 = HubFiles("text", "google/flan-t5-xl", ("config.json", "tokenizer.json", "model*.safetensors*"), 11.1)


def _loader(family: str, function: str, *fixed: Any) -> Callable[..., "LoadedPair"]:
    """A function of a family's `load` module with its first arguments, imported when it is first called."""

    def build(**paths: Any) -> "LoadedPair":
        return getattr(import_module(f".{family}.load", __package__), function)(*fixed, **paths)

    return build


def _xl(stage: int, size: int, drafter: str) -> TargetSpec:
    config = LlamaGenConfig(grid=size // 16)
    parts = (
        HubFiles("target", "peizesun/llamagen_t2i", (f"t2i_XL_stage{stage}_{size}.pt",), 3.1),
        HubFiles("drafter", drafter, ("config.json", "*model.*"), 0.18, optional=True),
        XL_VQ,
        T5,
    )
    memory = {"target": 1.56, "drafter": 0.09, "text encoder": 2.45, "picture decoder": 0.29, "cache": 0.17 if stage == 1 else 0.45}
    settings = {"cfg_scale": 7.5, "top_k": 1000}
    build, random = (_loader("llamagen", function, f"llamagen-{size}", config) for function in ("load_llamagen", "random_llamagen"))
    return TargetSpec(
        f"LlamaGen-XL, {size} px", build, parts, memory, settings, random=random, length=config.image_tokens, pass_seconds=0.03
    )


JANUS_LICENCE = "DeepSeek Model License: commercial use too, but not every use."


def _janus(size: str, config: JanusConfig, gigabytes: float, memory: dict[str, float], pass_seconds: float) -> TargetSpec:
    name = f"janus-pro-{size.lower()}"
    names = ("config.json", "generation_config.json", "tokenizer.json", "model*.safetensors*")
    parts = (HubFiles("target", f"deepseek-community/Janus-Pro-{size}", names, gigabytes, JANUS_LICENCE),)
    build, random = (_loader("janus", function, name, config) for function in ("load_janus", "random_janus"))
    title, settings = f"Janus-Pro {size}, 384 px", {"cfg_scale": 5.0, "top_k": 0}
    return TargetSpec(title, build, parts, memory, settings, random=random, length=config.grid**2, pass_seconds=pass_seconds)


CATALOG: dict[str, TargetSpec] = {
    "meadow": TargetSpec(
        "meadow, 128 px",
        _loader("llamagen", "load_meadow"),
        settings={"cfg_scale": 4.0, "top_k": 500},  # its pictures lose stray codes by top-k
        note="Flowers and landscapes; comes with the project.",
        length=256,
        pass_seconds=0.015,
    ),
    "llamagen-256": _xl(1, 256, "jadohu/llamagen_drafter"),
    "llamagen-512": _xl(2, 512, "jadohu/llamagen2_drafter"),
    "lumina-768": TargetSpec(
        "Lumina-mGPT 7B, 768 px",
        _loader("lumina", "load_lumina"),
        (
            HubFiles(
                "target", "Alpha-VLLM/Lumina-mGPT-7B-768", ("config.json", "tokenizer.json", "model*.safetensors*"), 14.03, META_LICENCE
            ),
            HubFiles("vq", "leloy/Anole-7b-v0.1-vqvae-hf", ("model.safetensors",), 0.275, META_LICENCE),
        ),
        {"target": 14.03, "drafter": 1.01, "picture decoder": 0.28, "cache": 2.9},
        {"cfg_scale": 4.0, "top_k": 2000},
        random=_loader("lumina", "random_lumina", "lumina-768"),
        length=2352,
    ),
    "janus-pro-1b": _janus("1B", JanusConfig(), 4.2, {"target": 2.97, "drafter": 0.19, "picture decoder": 0.29, "cache": 0.35}, 0.03),
    "janus-pro-7b": _janus("7B", PRO_7B, 14.8, {"target": 13.18, "drafter": 0.61, "picture decoder": 0.29, "cache": 0.88}, 0.05),
}


def sampling_defaults(name: str | Path) -> dict[str, float]:
    """The settings of a target's own; a folder in meadow's layout has meadow's."""
    return dict(CATALOG.get(str(name), CATALOG["meadow"]).settings)


def check_parts(name: str, parts: Collection[str]) -> None:
    """Refuse a target, or parts of it, that the catalog does not know.

    Raises:
        LoadError: with the names that there are.
    """
    if name not in CATALOG:
        raise LoadError(f"There is no target called {name!r}. Known: {', '.join(CATALOG)}.")
    names = CATALOG[name].part_names
    if unknown := sorted(set(parts) - set(names)):
        raise LoadError(f"{name} has no part called {', '.join(unknown)}. Parts: {', '.join(sorted(names))}.")


def available(name: str, **paths: str | Path | None) -> list[str]:
    """What keeps a target from being used here, one line each; empty when nothing does. Downloads nothing.

    Args:
        paths: as for `load`.
    """
    entry, lines = CATALOG[name], []
    if entry.memory:
        memory = torch.cuda.mem_get_info()[1] / 1e9 if torch.cuda.is_available() else 0.0
        needs = entry.gigabytes(paths.get("drafter"))
        if memory < needs:
            have = f"this one has {memory:.1f} GB" if memory else "none was found"
            lines.append(f"{entry.title} needs a GPU with {needs:.1f} GB; {have}.")
    named = {what: path for what, path in paths.items() if path is not None and (what, path) != ("drafter", "none")}
    lines += [f"{what}: {path} does not exist." for what, path in named.items() if not Path(path).expanduser().exists()]
    lines += [missing_line(part) for part in entry.parts if part.what not in named and not part.optional and local(part) is None]
    return lines


# ---- loading


@dataclass(frozen=True)
class TargetStatus:
    """A target by name.

    Args:
        missing: what keeps it from being used here, one line each; empty when it runs. plan: what memory goes where.
        settings: what its authors sampled with. drafts: whether the catalog knows a drafter for it.
        cache: GB that each picture decoded at the same time takes besides; one is in the plan. parts: what local files can be named for.
    """

    name: str
    title: str
    note: str = ""
    missing: tuple[str, ...] = ()
    plan: str = ""
    settings: dict[str, float] = field(default_factory=dict)
    drafts: bool = True
    cache: float = 0.0
    parts: tuple[str, ...] = ("target", "drafter")

    def plan_for(self, lanes: int) -> str:
        """The plan, with the caches of so many pictures at once."""
        if not self.cache or lanes < 2:
            return self.plan
        more = (lanes - 1) * self.cache
        return f"{self.plan} {lanes} lanes at once take {more:.1f} GB more; where that does not fit they run one after the other."

    @property
    def advice(self) -> list[str]:
        """What to know before choosing it, one line each."""
        return [line for line in (self.note, "" if self.drafts else SELF_DRAFTING, self.plan) if line]


def read_files(entries: Iterable[str]) -> dict[str, dict[str, str]]:
    """Local files from TARGET.PART=PATH each; of two for the same part the later one counts. Whether a path exists, `offers` says.

    Raises:
        ValueError: another form, or a target or part that the catalog does not know.
    """
    files: dict[str, dict[str, str]] = {}
    for entry in entries:
        name, _, path = entry.partition("=")
        target, _, what = name.rpartition(".")
        if not (target and what and path):
            raise ValueError(f"{entry!r} is not {FORM}.")
        files.setdefault(target, {})[what] = path
    if files:
        for target, parts in files.items():
            check_parts(target, parts)
    return files


def target_statuses(files: Files | None = None) -> dict[str, TargetStatus]:
    """The status of every target, computed at each call; downloads nothing, loads nothing.

    Args:
        files: local files in place of the hub's.
    """
    statuses = {}
    for name, entry in CATALOG.items():
        paths = (files or {}).get(name, {})
        needs = entry.needs(paths.get("drafter"))
        plan = f"GPU memory in GB: {', '.join(f'{what} {size:g}' for what, size in needs.items())}; {sum(needs.values()):.1f} in all."
        statuses[name] = TargetStatus(
            name,
            entry.title,
            entry.note,
            tuple(available(name, **paths)),
            plan if needs else "",
            dict(entry.settings),
            drafts=not entry.parts or "drafter" in needs,
            cache=needs.get("cache", 0.0),
            parts=entry.part_names,
        )
    return statuses
