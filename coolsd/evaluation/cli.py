"""`python -m coolsd eval …`: how good a pair and its methods are. Every command can be stopped and resumed."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..models.checkpoints import ASSETS
from ..options import add_threads
from .study import Study

DRAFT_LENGTH = 5
CACHE = Path.home() / ".cache" / "coolsd" / "eval"


def _command(args: argparse.Namespace) -> str:
    """What was typed, without where things lie on this machine."""
    from .prompts import DEFAULTS

    words = ["python -m coolsd eval", args.what]
    words += ["--images PHOTOS --csv captions.csv"] if args.what != schedules.__name__ else []
    counts = ("pictures", "prompts", "seeds", "recorded_length")
    words += [f"{_flag(name)} {getattr(args, name)}" for name in counts if getattr(args, name, None)]
    for name, usual in (DEFAULTS | {"draft_length": DRAFT_LENGTH}).items():
        value = getattr(args, name, None)
        if value not in (None, usual):
            values = value if isinstance(value, list) else [value]  # lists in a sweep
            words.append(f"{_flag(name)} {' '.join(f'{value:g}' for value in values)}")
    return " ".join([*words, *(["--quick"] if args.quick else [])])


def _write(args: argparse.Namespace, name: str, report: dict[str, Any], section: Callable[[dict[str, Any]], str] | None = None) -> None:
    """The figures as JSON, and the model card's section where there is a card."""
    from ..data.store import save_json
    from .quality.cards import replace_section

    path = args.out / f"{name}.json"
    save_json(path, report)
    if section:
        replace_section(args.out / "README.md", f"eval {args.what}", section(report))
    print(f"figures written to {path}", file=sys.stderr)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    from .prompts import DEFAULTS

    return {name: getattr(args, name) for name in (*DEFAULTS, "draft_length") if hasattr(args, name)}


def _study(args: argparse.Namespace, out: Path = ASSETS / "meadow") -> Study:
    """What all commands work with. A quick run writes beside its pictures by default, so that it never replaces real figures."""
    from ..data.features import JUDGE, LOSS, efficientnet
    from .photos import Networks, read_photos

    images, captions = getattr(args, "images", None), getattr(args, "csv", None)
    if (images is None) != (captions is None):
        raise ValueError("KID needs both the photos and their captions: give --images and --csv, or neither.")
    if 0 < (getattr(args, "pictures", None) or 4) < 4:
        raise ValueError("Fewer than 4 pictures have no standard error. Give --pictures 4 or more.")
    args.out = args.out or (args.folder / "quick" if args.quick else out)
    target = str(Path(args.target).resolve()) if Path(args.target).is_dir() else args.target
    photos = (images, read_photos(captions), Networks(efficientnet(LOSS), efficientnet(JUDGE))) if images else ()
    return Study(args.folder, *photos, target=target, workers=args.workers)


def meadow(args: argparse.Namespace) -> None:
    """Tokenizer, target, and whether pictures show what the prompt names."""
    from .quality.cards import pair_section
    from .quality.pair import QUICK, Size, evaluate
    from .quality.sheets import save_sheet

    study = _study(args)
    size = QUICK if args.quick else Size()
    size = replace(size, seeds=args.seeds or size.seeds)
    report, sheets = evaluate(study, size, _settings(args))
    report = {"command": _command(args)} | report
    _write(args, "eval", report, pair_section)
    for name, picture in sheets.items():
        save_sheet(picture, args.out / f"{name}.jpg")
    print(pair_section(report))


def decoders(args: argparse.Namespace) -> None:
    """Decoders of the same codes side by side."""
    from ..models.vq import load_vq
    from .quality.cards import decoders_section
    from .quality.decoders import evaluate
    from .quality.pair import QUICK

    study = _study(args)
    tokenizers = {name: load_vq(Path(folder), args.grid) for name, folder in args.vq}
    args.pictures = 160 if args.pictures is None else args.pictures
    report = evaluate(study, tokenizers, args.pictures, _settings(args), QUICK.photos if args.quick else None)
    report = {"command": f"{_command(args)} --vq {' '.join(f'{name}=FOLDER' for name in tokenizers)}"} | report
    _write(args, "decoders", report, decoders_section)
    print(decoders_section(report))


def quality(args: argparse.Namespace) -> None:
    """Each method against the valid photos and against AR."""
    from .quality.cards import quality_section
    from .quality.methods import evaluate

    study = _study(args)
    args.pictures = args.pictures or (4 if args.quick else 500)
    report = {"command": _command(args)} | evaluate(study, args.pictures, _settings(args))
    _write(args, "quality", report, quality_section)
    print("\n".join(report["verdicts"]))


def sweep(args: argparse.Namespace) -> None:
    """Defaults by quality and speed."""
    from .quality.cards import defaults_section
    from .quality.defaults import DRAFT_LENGTHS, GRID, evaluate
    from .quality.pair import QUICK, Size

    study = _study(args)
    base = {name: values[:1] for name, values in GRID.items()} | {"cfg_scale": GRID["cfg_scale"][1:3]} if args.quick else GRID
    grid = {name: tuple(getattr(args, name) or values) for name, values in base.items()}
    lengths = (2, 5) if args.quick else DRAFT_LENGTHS
    args.pictures = args.pictures or (4 if args.quick else 48)
    kinds = (QUICK if args.quick else Size()).a_kind
    report = {"command": _command(args)} | evaluate(study, args.pictures, kinds, grid, lengths)
    _write(args, "sweep", report, defaults_section)
    print(json.dumps(report["suggested"], allow_nan=False))


def claims(args: argparse.Namespace) -> None:
    """What the paper claims, judged on this pair."""
    from .claims.names import lines
    from .claims.plots import write_html
    from .claims.sweep import QUICK, Size, evaluate

    study = _study(args, ASSETS)
    size = QUICK if args.quick else Size()
    size = replace(size, seeds=args.seeds or size.seeds)
    result = evaluate(study, size, _settings(args), args.quick)
    _write(args, "claims", result)
    write_html(result, args.folder / "claims.html")
    print("\n".join([*lines(result), f"Intervals: {result['interval']}."]))


def schedules(args: argparse.Namespace) -> None:
    """Every schedule on the rows of the same lossless runs."""
    from ..data.store import save_json
    from ..trace import plain
    from .claims.evidence import QUICK, Size, evaluate, words
    from .claims.pictured import as_evidence, thumbnails

    own = args.target == "meadow"
    study = _study(args, ASSETS if own else args.folder / Path(args.target).name)
    size = QUICK if args.quick else Size()
    sizes = {"seeds": args.seeds, "prompts": args.prompts, "recorded": args.recorded_length, "checked": args.checks}
    size = replace(size, length=args.draft_length, **{name: value for name, value in sizes.items() if value is not None})
    settings = {name: value for name, value in _settings(args).items() if name != "draft_length"}
    report = {"command": _command(args)} | evaluate(study, size, settings)
    if lengths := report.pop("frontiers", None):
        stored = {name: report[name] for name in ("command", "target", "weights", "settings")} | {"lengths": lengths}
        save_json((args.out / "meadow" if own and args.out == ASSETS else args.out) / "fitted.json", stored)
    report = plain(report)
    _write(args, "schedules", report)
    pictures = {} if args.quick else thumbnails(study, report)
    save_json(args.out / "evidence.json", plain(as_evidence(report, pictures).to_dict()))
    print("\n".join(words(report)))


def named_folder(text: str) -> tuple[str, str]:
    """NAME=FOLDER; a folder alone is its own name."""
    name, _, folder = text.rpartition("=")
    return name or folder, folder


Option = tuple[str, dict[str, Any]]  # a flag, and what argparse takes of it


@dataclass(frozen=True)
class Evaluation:
    """A command, and what is its own; its name is the function's.

    photos: whether it needs them, or None where it has no use for them. out: where its figures go by default.
    """

    run: Callable[[argparse.Namespace], None]
    about: str
    options: tuple[Option, ...]
    photos: bool | None = True
    out: str = "assets/meadow"


def _number(flag: str, about: str, **more: Any) -> Option:
    return flag, {"type": int, "help": about} | more


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _evaluations() -> tuple[Evaluation, ...]:
    """The table of commands."""
    from .prompts import DEFAULTS
    from .quality.defaults import GRID

    one = tuple((_flag(name), {"type": type(value), "default": value, "help": f"default {value:g}"}) for name, value in DEFAULTS.items())
    usual = {name: ", ".join(f"{value:g}" for value in values) for name, values in GRID.items()}
    several = tuple(
        (_flag(name), {"type": type(values[0]), "nargs": "+", "help": f"values to try (default {usual[name]})"})
        for name, values in GRID.items()
    )
    seeds = "pictures of each prompt (default {})"
    pictures = "of each method or setting (default {})"
    length = _number("--draft-length", f"default {DRAFT_LENGTH}", default=DRAFT_LENGTH)
    vq = ("--vq", {"type": named_folder, "nargs": "+", "required": True, "help": "NAME=FOLDER of JanusVQVAEs"})
    grid = _number("--grid", "tokens a side (default 16)", default=16)
    painted = _number("--pictures", "painted by the pair and decoded by each, 0 for none (default 160)")
    rows = (
        _number("--prompts", "of the fixed ones, the independent units of all intervals (default all 30)"),
        _number("--recorded-length", "draft positions recorded, for any draft length up to it (default 10)"),
        _number("--checks", "prompts of the real runs held against the predictions (default 12, 0: none)"),
    )
    return (
        Evaluation(meadow, "tokenizer, target, and whether pictures show what was asked for", (_number("--seeds", seeds.format(4)), *one)),
        Evaluation(decoders, "picture tokenizers side by side: PSNR and KID of reconstructions", (vq, grid, painted, *one)),
        Evaluation(
            quality,
            "what each method costs in quality: KID, log-probability",
            (_number("--pictures", pictures.format(500)), *one, length),
        ),
        Evaluation(
            sweep,
            "choose guidance, top-k, temperature and draft length by measuring",
            (_number("--pictures", pictures.format(48)), *several),
        ),
        Evaluation(
            claims,
            "what the paper claims, judged on this pair (photos add KID)",
            (_number("--seeds", seeds.format(2)), *one, length),
            photos=False,
            out="assets",
        ),
        Evaluation(
            schedules,
            "every schedule on the rows of the same lossless runs: accept length, bias, KL, with intervals",
            (_number("--seeds", seeds.format(1)), *one, *rows, length),
            photos=None,
            out="assets",
        ),
    )


def add_commands(parser: argparse.ArgumentParser) -> None:
    """The evaluations."""
    whats = parser.add_subparsers(dest="what", required=True)
    for evaluation in _evaluations():
        command = whats.add_parser(evaluation.run.__name__, help=evaluation.about)
        if evaluation.photos is not None:
            command.add_argument("--images", type=Path, required=evaluation.photos, help="folder or zip of the photos")
            command.add_argument("--csv", type=Path, required=evaluation.photos, help="CSV written by `train captions`")
        command.add_argument(
            "--folder", type=Path, default=CACHE, help="where pictures and features are kept (default ~/.cache/coolsd/eval)"
        )
        command.add_argument("--target", default="meadow", help="name of the pair, or a folder in meadow's layout (default meadow)")
        command.add_argument("--out", type=Path, help=f"where the figures go (default {evaluation.out}; with --quick: quick/ in --folder)")
        add_threads(command)
        command.add_argument("--workers", type=int, help=f"processes that decode (default one a core, here {os.cpu_count()})")
        command.add_argument("--quick", action="store_true", help="a look in a few minutes, not a measurement")
        for flag, more in evaluation.options:
            command.add_argument(flag, **more)
        command.set_defaults(run=evaluation.run)
    from .coco.command import add_command

    add_command(whats, CACHE / "coco")
