"""Options that several commands share: the settings of a run, the pair, and files to write."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import load
from .models.catalog import sampling_defaults
from .settings import SETTINGS

if TYPE_CHECKING:
    from .models.pair import LoadedPair


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
    for s in SETTINGS.values():
        option, text = f"--{s.name.replace('_', '-')}", s.description
        if s.kind == "flag":
            parser.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=text)
        elif s.group != "request":
            kind = str if s.choices else _number_or_auto if s.optional else _number
            choices = s.choices if s.kind == "choice" else None
            text += f" (default {f'auto, {s.auto}' if s.optional else s.default})"
            parser.add_argument(option, type=kind, choices=choices, default=argparse.SUPPRESS, help=text)


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
    add_threads(parser)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """How many threads; see use_threads."""
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads, also from COOLSD_THREADS (default: measured)")


def use_threads(count: int | None) -> None:
    """Let pairs be loaded with so many threads, here and in processes that are started; None leaves it to COOLSD_THREADS, or to measuring.

    Raises:
        LoadError: no such number.
    """
    if count is not None:
        os.environ["COOLSD_THREADS"] = str(count)
    from .models.loading import forced_threads

    forced_threads()


def chosen_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings given on the command line, over those of the target's own."""
    return sampling_defaults(args.target) | {name: getattr(args, name) for name in SETTINGS if hasattr(args, name)}


def chosen_pair(args: argparse.Namespace) -> "LoadedPair":
    """The pair named on the command line."""
    return load(args.target, args.device, args.dtype, **dict(args.files))


def check_files(*paths: Path | None) -> None:
    """Refuse what could not be written at the end of a long run."""
    named = [path.resolve() for path in paths if path]
    if twice := [path for path in named if named.count(path) > 1]:
        raise ValueError(f"{twice[0]} is to be written twice. Give each file a name of its own.")
    for path in paths:
        if path and path.is_dir():
            raise ValueError(f"{path} is a folder. Give the name of a file.")
        if path and not path.parent.is_dir():
            raise ValueError(f"There is no folder {path.parent} to write {path.name} to. Make it first.")
        if path and not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{path} cannot be written. Name another place, or change its permissions.")
