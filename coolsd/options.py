"""Options that several commands share: the settings of a run, the pair, and files to write."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Settings, load
from .settings import CHOICES, OPTIONAL, TREES

if TYPE_CHECKING:
    from .models.pair import LoadedPair

HELP = {
    "delta": "δ, total relaxation: the mean of ω",
    "nu": "ν, annealing rate",
    "mu": "μ, normaliser, or 'auto' (mean-normalised)",
    "draft_length": "tokens drafted a round, in a chain",
    "tree": f"draft shape: {', '.join(TREES)}, or its nodes like [[0], [1], [0, 0]]",
    "siblings": "where ω relaxes a tree: salvage the first sibling when all are rejected, or at every one",
    "weight": "the target's share in diverse, 1 is lossless",
    "neighbours": "nearest codes LANTERN may borrow from, or 'auto' (1000; LANTERN++ 10)",
    "distance": "between code vectors, for LANTERN's neighbours",
    "budget": "LANTERN: most probability a code may borrow",
    "cap": "λ of LANTERN++: most a code's probability may grow, as a factor",
    "temperature": "0 is greedy",
    "top_k": "codes kept, 0 for all",
    "top_p": "mass kept, 1 for all",
    "cfg_scale": "guidance scale, 1 for none",
    "seed": "random seed",
    "max_tokens": "stop after this many tokens",
}
UNSET = {"mu": "auto", "neighbours": "auto", "max_tokens": "the whole picture"}


def _number(text: str) -> float | int:
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _number_or_auto(text: str) -> float | int | None:
    return None if text.lower() in ("auto", "none") else _number(text)


class Words(argparse.Action):
    """A prompt whose words came one by one, as without quotes, or in one piece."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, " ".join(values))


def add_settings(parser: argparse.ArgumentParser) -> None:
    """One option for every setting but prompt and method."""
    for field in fields(Settings):
        if field.name in HELP:
            option = f"--{field.name.replace('_', '-')}"
            number = _number_or_auto if field.name in OPTIONAL else _number
            kind = {"type": str if isinstance(field.default, str) else number, "choices": CHOICES.get(field.name)}
            default = UNSET[field.name] if field.default is None else field.default
            parser.add_argument(option, **kind, default=argparse.SUPPRESS, help=f"{HELP[field.name]} (default {default})")
    parser.add_argument(
        "--clamp", action="store_true", default=argparse.SUPPRESS, help="raise every ω below 1 to 1 (ours, not the paper's)"
    )


def _part(text: str) -> tuple[str, str]:
    what, _, path = text.partition("=")
    if not what or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not PART=PATH, for example drafter=my/drafter")
    return what, path


def add_pair(parser: argparse.ArgumentParser) -> None:
    """Which target, where, and from which files."""
    parser.add_argument("--target", default="meadow", help="name of the pair, or folder of one of your own (default meadow)")
    parser.add_argument(
        "--files",
        type=_part,
        action="append",
        default=[],
        metavar="PART=PATH",
        help="local files for a part (target, drafter, vq or text) in place of the hub's, or drafter=none; may be repeated",
    )
    parser.add_argument("--device", help="cpu, cuda or mps (default: the best there is)")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16 (default: measured)")


def chosen_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings given on the command line."""
    return {f.name: getattr(args, f.name) for f in fields(Settings) if hasattr(args, f.name)}


def chosen_pair(args: argparse.Namespace) -> "LoadedPair":
    """The pair named on the command line."""
    return load(args.target, args.device, args.dtype, **dict(args.files))


def check_files(*paths: Path | None) -> None:
    """Refuse what could not be written at the end of a long run."""
    for path in paths:
        if path and path.is_dir():
            raise ValueError(f"{path} is a folder. Give the name of a file.")
        if path and not path.parent.is_dir():
            raise ValueError(f"There is no folder {path.parent} to write {path.name} to. Make it first.")
