"""The command `bench`: methods against each other, draft shapes, and passes against the memory's bandwidth."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ... import METHODS, validate
from ...data.store import save_json
from ...models.catalog import CATALOG
from ...options import check_files, chosen_pair, chosen_settings

TUNED = ("eagle1", "coolsd")


def bench_command(args: argparse.Namespace) -> None:
    """Time the methods, interleaved; a table, and JSON on request."""
    from . import bench

    common = chosen_settings(args)
    validate(METHODS, prompt="x", **common)
    for window in args.windows:
        validate(METHODS, prompt="x", window=window)
    check_files(args.json)
    if args.seeds < 1:
        raise ValueError(f"{args.seeds} seeds measure nothing. Give --seeds 1 or more.")
    if args.tune:
        tune_command(args, common)
        return
    if args.random_weights:
        bandwidth_command(args)
        return
    if args.batch:
        throughput_command(args, common)
        return
    pair = chosen_pair(args)
    print(json.dumps(dict(pair.environment), allow_nan=False), file=sys.stderr)
    methods = args.methods or list(METHODS)
    variants = bench.TREE_COST if args.tree_cost else bench.variants_of((name for name in METHODS if name in methods), args.windows)
    results: dict[bench.Variant, list] = {}
    for variant, stats in bench.turns(pair, variants, bench.PROMPTS, args.seeds, common):
        results.setdefault(variant, []).append(stats)
        print(f"{variant.label}: {stats.seconds:.2f} s", file=sys.stderr)
    rows = bench.summarise(results)
    print(bench.table(rows))
    report = bench.report(pair, rows, common | {"seeds": args.seeds, "prompts": bench.PROMPTS})
    if args.tree_cost:
        report["tree_cost"] = bench.tree_cost(*results.values())
        print(", ".join(f"{what}: tree is {ratio:.3f} × chain" for what, ratio in report["tree_cost"].items()))
    if args.json:
        save_json(args.json, report)


def throughput_command(args: argparse.Namespace, common: dict[str, Any]) -> None:
    """Time batches of pictures; JSON on request."""
    from . import bench, throughput

    if least := [size for size in args.batch if size < 1]:
        raise ValueError(f"{least[0]} pictures at once is no batch. Give --batch 1 or more.")
    pair = chosen_pair(args)
    print(json.dumps(dict(pair.environment), allow_nan=False), file=sys.stderr)
    chosen = [bench.Variant(METHODS[name].title, name) for name in args.methods or ("ar", *TUNED)]
    results: dict[tuple[bench.Variant, int], list[float]] = {}
    for variant, size, seconds in throughput.turns(pair, chosen, sorted(set(args.batch)), args.seeds, common):
        results.setdefault((variant, size), []).append(seconds)
        print(f"{variant.label}, {size} at once: {seconds:.2f} s a picture", file=sys.stderr)
    rows = throughput.summarise(results)
    print(throughput.table(rows))
    if args.json:
        plain = {"target": pair.name, "environment": dict(pair.environment), "settings": common | {"seeds": args.seeds}}
        save_json(args.json, plain | {"rows": [asdict(row) for row in rows]})


def bandwidth_command(args: argparse.Namespace) -> None:
    """Time the passes of a released size against the memory's bandwidth; JSON on request."""
    from . import bandwidth

    if args.layers is not None and args.layers < 1:
        raise ValueError(f"{args.layers} layers are no model. Give --layers 1 or more, or leave it out.")
    report = bandwidth.measure(args.random_weights, args.device, args.dtype, args.layers)
    print(bandwidth.table(report))
    if args.json:
        save_json(args.json, report.to_dict())


def tune_command(args: argparse.Namespace, common: dict[str, Any]) -> None:
    """Time draft shapes of each method, and print the fastest as an option to paste; JSON on request."""
    from . import bench, tune

    methods = args.methods or TUNED
    tune.check(methods, common)
    pair = chosen_pair(args)
    results = []
    for label, result in tune.tune(pair, methods, bench.PROMPTS[:2], args.seeds, common):
        if isinstance(result, tune.TuneResult):
            results.append(result)
            print(tune.summary(result))
        else:
            print(f"{label}: {result.seconds:.2f} s", file=sys.stderr)
    if args.json:
        rows = [row for result in results for row in result.rows]
        report = bench.report(pair, rows, common | {"seeds": args.seeds, "prompts": bench.PROMPTS[:2]})
        save_json(args.json, report | {"tuned": {result.method: result.to_dict() for result in results}})


def add_command(commands: Any) -> argparse.ArgumentParser:
    """The parser of `bench`, among the others' (as argparse's add_subparsers returns them)."""
    names = [name for name, spec in CATALOG.items() if spec.random]
    many = commands.add_parser("bench", help="measure speed, the methods taking turns")
    many.add_argument("--seeds", type=int, default=2, help="seeds a prompt (default 2)")
    many.add_argument("--methods", nargs="*", choices=list(METHODS), help="only these")
    only = many.add_mutually_exclusive_group()
    only.add_argument(
        "--tune",
        action="store_true",
        help="find the fastest draft shape of each method (of --methods; else eagle1 and coolsd), as an option to paste",
    )
    only.add_argument("--random-weights", metavar="NAME", help=f"passes of {', '.join(names)} against memory bandwidth")
    many.add_argument("--layers", type=int, help="with --random-weights: layers of the target (default all)")
    only.add_argument("--tree-cost", action="store_true", help="a tree against a chain of as many tokens")
    only.add_argument("--windows", type=int, nargs="+", default=(), metavar="W", help="each Jacobi method once with each window")
    only.add_argument("--batch", type=int, nargs="+", default=(), metavar="B", help="pictures a minute with so many decoded at once")
    many.add_argument("--json", type=Path, help="write the figures as JSON")
    many.set_defaults(run=bench_command)
    return many
