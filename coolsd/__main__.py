"""The command line: generate a picture, measure speed, train, evaluate. `python -m coolsd COMMAND --help` lists the options."""

import argparse
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from . import METHODS, validate
from .data.store import progress
from .decoding import decode, finished
from .exports import format_of, save_picture
from .methods import metered
from .models.prompt_domain import notice
from .options import Words, add_pair, add_settings, check_files, chosen_pair, chosen_settings, use_threads


def generate_command(args: argparse.Namespace) -> None:
    """Decode one picture, with progress on standard error; what was decoded by Ctrl-C is written too."""
    settings = validate(METHODS, **chosen_settings(args))
    check_files(args.out, args.json)
    if args.out:
        format_of(args.out)
    pair = chosen_pair(args)
    if remark := notice(pair, settings.prompt):
        print(remark, file=sys.stderr)
    total = min(pair.grid[0] * pair.grid[1], settings.max_tokens or sys.maxsize)
    rounds, interrupted = [], False
    with progress(total, f"{METHODS[settings.method].title}, tokens") as bar:
        try:
            for event in decode(pair, settings):
                rounds.append(event)
                bar.set_postfix_str(f"{len(rounds)} target calls", refresh=False)
                bar.update(len(event.tokens))
        except KeyboardInterrupt:
            interrupted = True
    run = finished(pair, settings, rounds)
    if args.json and rounds:
        run.to_json(args.json)
    if args.out and rounds:
        save_picture(pair.picture(run.tokens), run, args.out)
    s = run.stats
    parts = ", ".join(f"{part} {getattr(s, f'{part}_seconds'):.2f}" for part in ("draft", "target", "verify", "other"))
    print(f"{s.tokens} tokens, {s.target_calls} target calls, accept length {s.accept_length:.2f}, {s.seconds:.2f} s ({parts})")
    meaning = " (exactly the target's distribution)" if METHODS[settings.method].lossless else ""
    print(f"bias spent a token: {metered(settings)}{s.bias_per_token:.4f}{meaning}")
    if interrupted:
        raise KeyboardInterrupt


def targets_command(_: argparse.Namespace) -> None:
    """List the targets: which run here, and what the others lack."""
    from .models.catalog import target_statuses

    for target in target_statuses().values():
        print(f"{target.name}: {target.title}; {'cannot run here yet' if target.missing else 'runs here'}")
        for line in (*target.missing, *target.advice):
            print(f"  {line}")


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
    from .show.command import add_command as add_show
    from .show.record import add_command as add_record

    stored = add_record(commands)
    add_show(commands)
    from .evaluation.speed.cli import add_command

    many = add_command(commands)
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
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as set while importing
        signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("coolsd").setLevel(logging.INFO)  # memory plans, downloads, licences
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks δ must not end a run
    try:
        use_threads(getattr(args, "threads", None))
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has read enough, as in `| head`; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
