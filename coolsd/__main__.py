"""The command line: generate a picture, measure speed, train, evaluate. `python -m coolsd COMMAND --help` lists the options."""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from . import METHODS, Run, Settings, generate, load, omega, stream, validate
from .exports import format_of, save_picture
from .models.world import notice
from .settings import CHOICES, OPTIONAL, TREES

TUNED = ("eagle1", "coolsd")
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


def chosen_pair(args: argparse.Namespace) -> Any:
    """The pair named on the command line."""
    return load(args.target, args.device, args.dtype, **dict(args.files))


def check_files(*paths: Path | None) -> None:
    """Refuse what could not be written at the end of a long run."""
    for path in paths:
        if path and path.is_dir():
            raise ValueError(f"{path} is a folder. Give the name of a file.")
        if path and not path.parent.is_dir():
            raise ValueError(f"There is no folder {path.parent} to write {path.name} to. Make it first.")


def generate_command(args: argparse.Namespace) -> None:
    """Decode one picture, with progress on standard error."""
    settings = validate(METHODS, **chosen_settings(args))
    check_files(args.out, args.json)
    if args.out:
        format_of(args.out)
    pair = chosen_pair(args)
    if told := notice(pair, settings.prompt):
        print(told, file=sys.stderr)
    total = min(pair.grid[0] * pair.grid[1], settings.max_tokens or sys.maxsize)
    rounds = []
    for event in stream(pair, **settings.to_dict()):
        rounds.append(event)
        done = event.start + len(event.tokens)
        print(f"\r{METHODS[settings.method].title}: {done}/{total} tokens, {len(rounds)} target calls", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    run = Run(settings, pair.name, tuple(pair.grid), tuple(omega(settings).tolist()), rounds, dict(pair.environment))
    s = run.stats
    parts = ", ".join(f"{part} {getattr(s, f'{part}_seconds'):.2f}" for part in ("draft", "target", "verify", "other"))
    print(f"{s.tokens} tokens, {s.target_calls} target calls, accept length {s.accept_length:.2f}, {s.seconds:.2f} s ({parts})")
    meaning = " (0: exactly the target's distribution)" if METHODS[settings.method].lossless else ""
    print(f"bias spent {s.bias_spent:.3f} in the picture, {s.bias_per_token:.4f} a token{meaning}")
    if args.json:
        run.to_json(args.json)
    if args.out:
        save_picture(pair.picture(run.tokens), run, args.out)


def targets_command(_: argparse.Namespace) -> None:
    """List the targets: which run here, and what the others lack."""
    from .models.targets import offers

    for offer in offers().values():
        print(f"{offer.name}: {offer.title}; {'cannot run here yet' if offer.missing else 'runs here'}")
        for line in (*offer.missing, *offer.advice):
            print(f"  {line}")


def record_command(args: argparse.Namespace) -> None:
    """Record a comparison for the page: the reference and the relaxed lane, and what a plain AR token costs beside them."""
    from statistics import median

    from .exports import RECORDED, Comparison, save

    settings = chosen_settings(args)
    prompt = settings.pop("prompt")
    validate(METHODS, prompt=prompt, **settings)
    pair = chosen_pair(args)
    for method in ("ar", args.reference, args.relaxed):
        generate(pair, prompt, method, **settings | {"max_tokens": 32})
    seconds = [r.seconds for r in generate(pair, prompt, "ar", **settings).rounds[2:]]
    runs = [generate(pair, prompt, method, **settings) for method in (args.reference, args.relaxed)]
    print(save(Comparison(*runs, ar_token_seconds=median(seconds)), args.folder or RECORDED, args.name))


def bench_command(args: argparse.Namespace) -> None:
    """Time the methods in turns; a table, and JSON on request."""
    from .evaluation import bench, tuned

    common = chosen_settings(args)
    validate(METHODS, prompt="x", **common)
    check_files(args.json, args.tuned)
    if args.seeds < 1:
        raise ValueError(f"{args.seeds} seeds measure nothing. Give --seeds 1 or more.")
    if args.tune:
        tune_command(args, common)
        return
    if args.random_weights:
        floor_command(args)
        return
    pair = chosen_pair(args)
    print(json.dumps(dict(pair.environment)), file=sys.stderr)
    methods = args.methods or list(METHODS)
    found: dict[bench.Lane, str] = {}
    if not args.tree_cost:
        found = tuned.lanes(args.tuned or tuned.STORE, tuned.place(pair, args.target, args.files, common), methods)
    lanes = bench.TREE_COST if args.tree_cost else [*(lane for lane in bench.LANES if lane.method in methods), *found]
    results: dict[bench.Lane, list] = {}
    for lane, stats in bench.turns(pair, lanes, bench.PROMPTS, args.seeds, common):
        results.setdefault(lane, []).append(stats)
        print(f"{lane.label}: {stats.seconds:.2f} s", file=sys.stderr)
    rows = bench.summarise(results)
    print(bench.table(rows))
    report = bench.report(pair, rows, common | {"seeds": args.seeds, "prompts": bench.PROMPTS})
    if args.tree_cost:
        report["tree_cost"] = bench.tree_cost(*results.values())
        print(", ".join(f"{what}: tree is {ratio:.3f} × chain" for what, ratio in report["tree_cost"].items()))
    elif found:
        report["tuned"] = {lane.label: source for lane, source in found.items()}
        print("\n".join(f"{label}: {source}" for label, source in report["tuned"].items()))
    else:
        print("no tuned draft shapes for this pair, machine and settings yet: the same command with --tune finds and keeps them")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


def floor_command(args: argparse.Namespace) -> None:
    """Time the passes of a released size against the memory's bandwidth; JSON on request."""
    from .evaluation import floor

    if args.layers is not None and args.layers < 1:
        raise ValueError(f"{args.layers} layers are no model. Give --layers 1 or more, or leave it out.")
    found = floor.measure(args.random_weights, args.device, args.dtype, args.layers)
    print(floor.table(found))
    if args.json:
        args.json.write_text(json.dumps(found.to_dict(), indent=1))


def tune_command(args: argparse.Namespace, common: dict[str, Any]) -> None:
    """Time draft shapes of each method, name the fastest and keep them for `bench`; JSON on request."""
    from .evaluation import bench, tune, tuned

    methods = args.methods or TUNED
    tune.check(methods, common)
    pair = chosen_pair(args)
    found = []
    for label, result in tune.tune(pair, methods, bench.PROMPTS[:2], args.seeds, common):
        if isinstance(result, tune.Tuned):
            found.append(result)
            print(tune.summary(result))
        else:
            print(f"{label}: {result.seconds:.2f} s", file=sys.stderr)
    path = args.tuned or tuned.STORE
    tuned.store(path, tuned.place(pair, args.target, args.files, common), found, common)
    print(f"kept in {path}: `bench` with these settings lists them now")
    if args.json:
        rows = [row for result in found for row in result.rows]
        report = bench.report(pair, rows, common | {"seeds": args.seeds, "prompts": bench.PROMPTS[:2]})
        args.json.write_text(json.dumps(report | {"tuned": {result.method: result.to_dict() for result in found}}, indent=1))


def build_parser() -> argparse.ArgumentParser:
    """All commands and options."""
    parser = argparse.ArgumentParser(prog="python -m coolsd", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("generate", help="decode one picture")
    one.add_argument("prompt", nargs="+", action=Words, help="what to draw")
    one.add_argument("--method", default="coolsd", choices=list(METHODS))
    one.add_argument("--out", type=Path, help="write the picture, as .png, .jpg or .webp, with all settings in its metadata")
    one.add_argument("--json", type=Path, help="write the run: settings, statistics and every round")
    one.set_defaults(run=generate_command)
    commands.add_parser("targets", help="which models run here, and what the others lack").set_defaults(run=targets_command)
    stored = commands.add_parser("record", help="record a comparison that the page shows before anything is pressed")
    stored.add_argument("prompt", nargs="+", action=Words, help="what to draw")
    stored.add_argument("--name", required=True, help="file name; the page shows the first in alphabetical order")
    stored.add_argument("--folder", type=Path, help="default assets/runs")
    stored.add_argument("--reference", default="eagle1", choices=list(METHODS))
    stored.add_argument("--relaxed", default="coolsd", choices=list(METHODS))
    stored.set_defaults(run=record_command)
    many = commands.add_parser("bench", help="measure speed, the methods taking turns")
    many.add_argument("--seeds", type=int, default=2, help="seeds a prompt (default 2)")
    many.add_argument("--methods", nargs="*", choices=list(METHODS), help="only these")
    only = many.add_mutually_exclusive_group()
    only.add_argument(
        "--tune", action="store_true", help="find and keep the fastest draft shape of each method (of --methods; else eagle1 and coolsd)"
    )
    many.add_argument("--tuned", type=Path, metavar="FILE", help="where these shapes are kept (default ~/.cache/coolsd/tuned.json)")
    only.add_argument(
        "--random-weights", metavar="NAME", help="passes of llamagen-256, llamagen-512 or lumina-768 against memory bandwidth"
    )
    many.add_argument("--layers", type=int, help="with --random-weights: layers of the target (default all)")
    only.add_argument("--tree-cost", action="store_true", help="a tree against a chain of as many tokens")
    many.add_argument("--json", type=Path, help="write the figures as JSON")
    many.set_defaults(run=bench_command)
    from .training.cli import add_commands

    add_commands(commands.add_parser("train", help="train a pair on your own pictures"))
    from .evaluation.cli import add_commands as add_evaluations

    add_evaluations(commands.add_parser("eval", help="measure how good a pair and its methods are"))
    for command in (one, stored, many):
        add_settings(command)
        add_pair(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; bad input ends with a message that says what to do, and code 2."""
    args = build_parser().parse_args(arguments)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("coolsd").setLevel(logging.INFO)  # memory plans, downloads, licences
    try:
        args.run(args)
    except (ValueError, OSError) as error:
        named = isinstance(error, OSError) and error.filename
        print(f"coolsd: {error.filename}: {error.strerror}" if named else f"coolsd: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
