"""`python -m coolsd show FILE`: a run or a comparison in the terminal, and as picture, GIF, CSV or JSON for slides and classes."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from .. import bundle, load
from ..options import check_files
from ..scene import LANES
from ..trace import Run, to_text
from . import account, drawings


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    show = commands.add_parser("show", help="show a run that was written as JSON, and export it for slides")
    show.add_argument("file", type=Path, help="JSON that `generate --json`, `record` or the page wrote")
    show.add_argument("--lane", choices=LANES, help="of a comparison, only this lane")
    show.add_argument("--round", type=int, metavar="N", help="everything about one round, in place of the table of rounds")
    show.add_argument("--png", type=Path, help=f"write the lanes with their numbers, {drawings.WIDTH} pixels wide")
    show.add_argument("--gif", type=Path, help="write the race, each lane on its own clock")
    show.add_argument("--csv", type=Path, help="write the rounds, a line each")
    show.add_argument("--json", type=Path, help="write the runs again, in the present schema")
    show.set_defaults(run=show_command)


def show_command(args: argparse.Namespace) -> None:
    """Print the account, then write what was asked for."""
    check_files(args.png, args.gif, args.csv, args.json)
    lanes = bundle.read(args.file).lanes
    if args.lane:
        if args.lane not in lanes:
            raise ValueError(f"{args.file.name} has no lane {args.lane!r}. It has: {', '.join(lanes)}.")
        lanes = {args.lane: lanes[args.lane]}
    for i, run in enumerate(lanes.values()):
        lines = account.rounds(run) if args.round is None else account.one_round(run, args.round)
        print("\n" * (i > 0) + "\n".join([*account.summary(run), "", *lines]))
    if args.round is None:
        print(f"\n{account.KEY}")
    export(lanes, args)


def export(lanes: Mapping[str, Run], args: argparse.Namespace) -> None:
    """Write the files that were asked for; pictures that do not lie beside the runs are decoded, for which their target is loaded."""
    if args.png or args.gif:
        _decode_missing(lanes)
    if args.png:
        drawings.sheet(lanes).save(args.png, "PNG")
    if args.gif:
        args.gif.write_bytes(drawings.gif(lanes))
    if args.csv:
        args.csv.write_text(account.to_csv(lanes), encoding="utf-8")
    if args.json:
        single = lanes.get("run") or (next(iter(lanes.values())) if len(lanes) == 1 else None)
        plain = single.to_dict() if single else bundle.to_plain(bundle.Bundle(dict(lanes)))
        args.json.write_text(to_text(plain), encoding="utf-8")


def _decode_missing(lanes: Mapping[str, Run]) -> None:
    pairs = {}
    for run in lanes.values():
        if run.image is None:
            pair = pairs[run.target] = pairs.get(run.target) or load(run.target)
            run.image = pair.picture(run.tokens)
