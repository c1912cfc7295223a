"""`python -m coolsd eval coco`: the paper's table for any target and any methods, on one process or on many."""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ... import METHODS, load
from ...data.pictures import attempt, opener, square, stamper
from ...data.store import digest, fingerprint, progress, save_json, save_text
from ...models.loading import best_device, forced_threads
from ...models.pair import LoadedPair
from ...models.vq import to_uint8
from ...options import add_pair, add_settings, chosen_settings
from ...settings import SETTINGS
from ..batching import batched
from . import report as reports
from .captions import COUNT, Prompt, mark, read_prompts
from .decode import decode_all, settings_of
from .figures import Measured, table
from .launch import Launch, run, this_launch
from .networks import PREFIX, Clip, FeatureNetwork, Reward, feature_network, kept
from .store import Figures, Group, Variant, groups_of, missing, path_of, read, recipe

BATCH = 16  # pictures decoded together
METHODS_SHOWN = ("ar", "eagle1", "coolsd")
DELTAS = (1.1, 2.0)


@dataclass(frozen=True)
class Plan:
    """What a worker needs to decode: the pair and where pictures go. files: local ones in place of the hub's, by part."""

    target: str
    files: tuple[tuple[str, str], ...]
    device: str
    dtype: str
    batch: int
    threads: int  # of each process, on a CPU
    folder: Path


def _own_device(plan: Plan, launch: Launch) -> str:
    """On a machine with several GPUs each process has its own."""
    if plan.device != "cuda" or launch.ranks == 1:
        return plan.device
    return f"cuda:{launch.local_rank % torch.cuda.device_count()}"


def open_pair(plan: Plan, launch: Launch) -> LoadedPair:
    """The pair, batched. On a CPU the number of threads is fixed, so that sums are taken in the same order wherever it runs."""
    device = _own_device(plan, launch)
    if device == "cpu":
        os.environ["COOLSD_THREADS"] = str(plan.threads)
    pair = load(plan.target, device, plan.dtype, **dict(plan.files))
    if device == "cpu":
        torch.set_num_threads(plan.threads)
    return batched(pair, plan.batch) if plan.batch > 1 else pair


def decode_share(plan: Plan, jobs: list[tuple[Variant, Group]], launch: Launch) -> None:
    """The work of one process; it ends when the process that watches over it has died."""
    watcher = os.getppid()
    pair = open_pair(plan, launch)

    def done(_: Variant, group: Group) -> None:
        bar.update(len(group.prompts))
        if launch.ranks > 1 and os.getppid() != watcher:
            sys.exit("The process that watched over this one is gone.")

    with progress(sum(len(group.prompts) for _, group in jobs), f"pictures, {launch.name}") as bar:
        decode_all(pair, plan.folder, jobs, done)


# ---- what is asked for


def variants_of(args: argparse.Namespace, plan: Plan) -> list[Variant]:
    """The methods, those that relax by δ once for each δ.

    Raises:
        SettingsError: settings that cannot be run.
    """
    common = {name: value for name, value in chosen_settings(args).items() if name not in ("seed", "delta")}
    out = []
    for name in args.methods:
        deltas = args.deltas if "delta" in METHODS[name].uses else [None]
        for delta in deltas:
            label = METHODS[name].title + (f" δ={delta:g}" if delta is not None else "")
            settings = common | ({} if delta is None else {"delta": delta})
            shared = {"target": plan.target, "weights": weights_mark(plan), "dtype": plan.dtype, "device": plan.device.split(":")[0]}
            variant = Variant(label, name, tuple(settings.items()), ())
            checked = settings_of(variant, Prompt(0, "", "x")).to_dict()
            if plan.device == "cpu":
                shared["threads"] = plan.threads
            shared |= {"batch": plan.batch, "settings": {k: v for k, v in checked.items() if k not in ("prompt", "seed")}}
            out.append(replace(variant, shared=tuple(shared.items())))
    return out


def weights_mark(plan: Plan) -> str:
    """Changes with the weights: contents of a pair on this disk; name of the hub's, and name, size and time of local files."""
    folder = Path(plan.target)
    parts = [fingerprint(str(folder.resolve()) if folder.is_dir() else plan.target)]
    for what, path in plan.files:
        files = sorted(Path(path).rglob("*")) if Path(path).is_dir() else [Path(path)]
        parts += [f"{what} {file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files if file.is_file()]
        parts += [f"{what} {path}"] if not Path(path).exists() else []
    return digest("\n".join(parts), digits=12)


def plan_of(args: argparse.Namespace) -> Plan:
    """What workers need of a command line, with its defaults."""
    device = args.device or best_device()
    dtype = args.dtype or ("float32" if device == "cpu" else "bfloat16")
    return Plan(args.target, tuple(args.files), device, dtype, args.batch, forced_threads() or 1, args.folder)


def _refuse(args: argparse.Namespace) -> None:
    if args.batch < 1:
        raise ValueError(f"{args.batch} pictures at once is no batch. Give --batch 1 or more.")
    if args.limit is not None and args.limit < 2:
        raise ValueError(f"{args.limit} prompts give no interval. Give --limit 2 or more.")
    if hasattr(args, "max_tokens") or hasattr(args, "seed") or hasattr(args, "delta"):
        raise ValueError("Pictures are whole, their seeds are fixed by prompt, and δ is given by --deltas: leave out the single settings.")
    if (args.features is None) != (args.images is None):
        raise ValueError("FID and KID need both the photos and a network: give --images and --features, or neither.")


# ---- looking at what is stored


def _stored(plan: Plan, variant: Variant, groups: Sequence[Group], prompts: Sequence[Prompt]) -> list[Figures]:
    group_of = {p.index: group for group in groups for p in group.prompts}
    return [read(path_of(plan.folder, variant, p), recipe(variant, group_of[p.index], p)) for p in prompts]


def _pictures(paths: Sequence[Path]) -> Iterator[Image.Image]:
    for path in paths:
        with Image.open(path) as picture:
            yield picture.convert("RGB")


def photo_features(images: Path, prompts: Sequence[Prompt], network: FeatureNetwork, side: int, folder: Path) -> torch.Tensor:
    """Features (N, D) of the prompts' photos: the middle square, made as large as the pictures, 8 bits.

    Raises:
        ValueError: a photo is missing or cannot be read.
    """
    open_picture, stamp = opener(images), stamper(images)

    def photo(prompt: Prompt) -> Image.Image:
        picture = attempt(open_picture, prompt.photo)
        if isinstance(picture, str):
            raise ValueError(f"The photo {prompt.photo} is {picture} in {images}. FID and KID need one of every prompt.")
        return Image.fromarray(to_uint8(square(picture, side)))

    key = [network.mark, str(side), str(images.resolve()), *(f"{p.photo} {stamp(p.photo)}" for p in prompts)]
    path = folder / f"photos_{digest(*key, digits=16)}.npz"
    return kept(path, key, lambda: network(photo(prompt) for prompt in prompts))


def measure(args: argparse.Namespace, plan: Plan, variants: Sequence[Variant], groups: Sequence[Group], prompts: list[Prompt]) -> list:
    """Rows of the table, from stored pictures."""
    network = feature_network(args.features, plan.device) if args.features else None
    judges: dict[str, Any] = {"clip": Clip(args.clip, plan.device)} if args.clip else {}
    if args.reward and Reward.available():
        judges["reward"] = Reward()
    texts, measured = [prompt.text for prompt in prompts], []
    for variant in variants:
        paths = [path_of(plan.folder, variant, prompt) for prompt in prompts]
        marks = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in paths]
        place = plan.folder / variant.folder

        def looked_at(name: str, judge: Any, *more: Any, marks: list[str] = marks, place: Path = place, paths: list[Path] = paths):
            key = [judge.mark, *marks, *texts]
            return kept(place / f"{name}_{digest(*key, digits=16)}.npz", key, lambda: judge(_pictures(paths), *more))

        features = looked_at("features", network) if network else None
        scores = {name: looked_at(name, judge, texts) for name, judge in judges.items()}
        measured.append(Measured(variant.label, variant.method, _stored(plan, variant, groups, prompts), features, scores))
    photos = None
    if network:
        side = next(_pictures([path_of(plan.folder, variants[0], prompts[0])])).width
        photos = photo_features(args.images, prompts, network, side, plan.folder)
    return table(measured, photos, plan.batch)


def _note(args: argparse.Namespace, plan: Plan) -> str:
    """What the columns mean here, and what was left out."""
    parts = [
        f"Brackets: 95 % intervals; the same prompts and seeds for all methods. Seconds: {plan.batch} pictures at once on {plan.device} in "
        f"{plan.dtype}, with the metering of KL that plain AR has not; `bench` times one picture at a time. Bias a token: total variation."
    ]
    parts.append(
        f"FID and KID: {Path(args.features).name}, photos cut to a square of the pictures' size, resized as clean-fid does."
        if args.features
        else "FID and KID not measured: give --images and --features."
    )
    parts.append(
        f"CLIP: cosine of {Path(args.clip).name}, '{PREFIX.strip()}' before the caption."
        if args.clip
        else "CLIP not measured: give --clip."
    )
    if not Reward.available():
        parts.append("ImageReward is not installed.")
    return " ".join(parts)


def command_line(args: argparse.Namespace) -> str:
    """What was typed, without where things lie on this machine."""
    words = [f"python -m coolsd eval coco --target {Path(args.target).name} --captions {args.captions.name}"]
    words.append(f"--methods {' '.join(args.methods)} --deltas {' '.join(f'{delta:g}' for delta in args.deltas)}")
    words += [f"--features {Path(args.features).name} --images PHOTOS"] if args.features else []
    words += [f"--clip {Path(args.clip).name}"] if args.clip else []
    words += [f"--{name} {getattr(args, name)}" for name, usual in (("batch", BATCH), ("limit", None)) if getattr(args, name) != usual]
    for name, value in ((name, getattr(args, name)) for name in SETTINGS if hasattr(args, name)):
        words.append(f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}")
    return " ".join(words)


def coco(args: argparse.Namespace) -> None:
    """Decode what is missing, each process its share; then the first one measures and writes."""
    _refuse(args)
    plan, every = plan_of(args), read_prompts(args.captions, args.prompts)
    variants = variants_of(args, plan)
    groups, prompts = groups_of(every, args.batch, args.limit), every[: args.limit]
    launch = this_launch()
    jobs = missing(plan.folder, variants, groups)
    launch.wait()  # nobody writes before everybody has looked, so that all split the same list
    deaths = run(decode_share, plan, jobs, launch)
    if launch.rank:
        return
    if lacking := missing(plan.folder, variants, groups):
        lost = sum(len(group.prompts) for _, group in lacking)
        raise ValueError(
            f"{'; '.join(deaths) or 'Pictures were removed'}. {lost} pictures are missing: start again, what is stored is kept."
        )
    rows = measure(args, plan, variants, groups, prompts)
    report = {
        "command": command_line(args),
        "date": time.strftime("%Y-%m-%d"),
        "target": Path(args.target).name,
        "captions": args.captions.name,
        "prompts": len(prompts),
        "of": len(every),
        "prompts_mark": mark(prompts),
        "weights": weights_mark(plan),
        "device": plan.device,
        "dtype": plan.dtype,
        "settings": {variant.label: dict(variant.settings) for variant in variants},
        "note": _note(args, plan),
        "rows": [asdict(row) for row in rows],
    }
    write_all(args.out or plan.folder, report, rows)


def write_all(out: Path, report: dict[str, Any], rows: list) -> None:
    """Table, figures, evidence and Pareto figure; the table is shown too."""
    text = reports.markdown(report, rows)
    save_text(out / "coco.md", text)
    save_json(out / "coco.json", report)
    save_json(out / "coco.evidence.json", reports.evidence(report, rows))
    reports.write_figure(out / "coco.html", reports.figure(report, rows))
    print(text)
    print(f"table, figures, evidence and Pareto figure written to {out}/coco.*", file=sys.stderr)


def add_command(whats: Any, folder: Path) -> None:
    """The parser of `eval coco`, among the other evaluations'."""
    command = whats.add_parser("coco", help="the paper's table: FID, KID, CLIP, ImageReward, accept length, seconds, bias, KL (MS-COCO)")
    command.add_argument("--captions", type=Path, required=True, help="captions_val2017.json, or a CSV written by `train captions`")
    command.add_argument("--images", type=Path, help="folder or zip of the photos, for FID and KID")
    command.add_argument(
        "--features", help="network of FID and KID: efficientnet-lite0 or -lite2, a TorchScript Inception, OWNER/REPO/FILE"
    )
    command.add_argument("--clip", help="CLIP for the CLIP score: a folder or a name on the hub, as openai/clip-vit-base-patch32")
    command.add_argument("--no-reward", dest="reward", action="store_false", help="leave ImageReward out where it is installed")
    command.add_argument("--methods", nargs="+", choices=list(METHODS), default=METHODS_SHOWN, help=f"default {' '.join(METHODS_SHOWN)}")
    command.add_argument("--deltas", nargs="+", type=float, default=DELTAS, help="of methods that relax by δ (default 1.1 2)")
    command.add_argument("--prompts", type=int, default=COUNT, help=f"photos drawn from the file, one caption each (default {COUNT})")
    command.add_argument("--limit", type=int, help="a quick look at the first of them, labelled so")
    command.add_argument("--batch", type=int, default=BATCH, help=f"pictures decoded together (default {BATCH})")
    command.add_argument("--folder", type=Path, default=folder, help=f"where pictures are kept, seen by all machines (default {folder})")
    command.add_argument("--out", type=Path, help="where table and figures go (default: --folder)")
    add_settings(command)
    add_pair(command)
    command.set_defaults(run=coco)
