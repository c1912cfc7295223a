"""`python -m coolsd train …`: from a folder of pictures with a CSV to a pair that can be loaded."""

import argparse
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any


def _say(skipped: Counter, done: str) -> None:
    notes = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
    print(f"{done}{f' (skipped: {notes})' if notes else ''}", file=sys.stderr)


def captions(args: argparse.Namespace) -> None:
    """Write a caption CSV from labels and pictures."""
    from .captions import write_captions
    from .data import read_rows

    _say(write_captions(args.images, read_rows(args.csv), args.out), f"captions written to {args.out}")


def encode(args: argparse.Namespace) -> None:
    """Write the tokens of all pictures."""
    from ..models.families import load_vq
    from .data import read_rows
    from .encode import encode_to

    tokenizer = load_vq(args.tokenizer, args.grid)
    _say(encode_to(args.out, args.images, read_rows(args.csv), tokenizer, args.variants), f"tokens written to {args.out}")


def _recipe(kind: type, args: argparse.Namespace) -> Any:
    return kind(**{f.name: getattr(args, f.name) for f in fields(kind)})


def target(args: argparse.Namespace) -> None:
    """Train a target and write it beside its text table and tokenizer."""
    import torch

    from ..models.families import load_vq
    from ..models.llamagen import LlamaGenConfig
    from ..models.text import TextTable
    from .export import export_target
    from .target import TargetRecipe, Trainee, deepen, train_target
    from .tokens import TokenData

    recipe = _recipe(TargetRecipe, args)
    torch.manual_seed(recipe.seed)
    codebook = load_vq(args.pair / "vq", args.grid).codebook
    text = TextTable.load(args.pair, args.caption_tokens)
    config = LlamaGenConfig(args.dim, args.layers, args.heads, args.ffn, len(codebook), text.table.shape[1], args.caption_tokens, args.grid)
    trainee = Trainee(config, codebook)
    if args.grow and not args.checkpoint.exists():
        shallow = torch.load(args.grow, weights_only=True)["trainee"]
        layers = 1 + max(int(name.split(".")[2]) for name in shallow if name.startswith("model.layers."))
        small = Trainee(LlamaGenConfig(**{**vars(config), "layers": layers}), codebook)
        small.load_state_dict(shallow)
        trainee = deepen(small, config, codebook)
    data = [TokenData(args.tokens, args.csv, split, text) for split in ("train", "valid")]
    train_target(trainee, *data, recipe, args.checkpoint, compiled=not args.eager)
    export_target(trainee.folded(), config, args.pair)


def drafter(args: argparse.Namespace) -> None:
    """Train a drafter for a pair's target and write it into the pair's folder."""
    import torch

    from ..models.eagle import Eagle, EagleConfig
    from ..models.families import load_meadow
    from .drafter import DrafterRecipe, train_drafter
    from .export import export_drafter
    from .tokens import TokenData

    recipe = _recipe(DrafterRecipe, args)
    torch.manual_seed(recipe.seed)
    pair = load_meadow(args.pair)
    c = pair.target_model.config
    config = EagleConfig(c.dim, c.heads, c.ffn, c.vocab, c.caption_tokens, c.grid)
    model = Eagle(config)
    model.embed_tokens.weight.data = pair.target_model.tok_embeddings.weight.detach().float().clone()
    data = TokenData(args.tokens, args.csv, "train", pair.text)
    train_drafter(model, pair.target_model.float(), data.batches(recipe.batch, recipe.seed, drop=0.0), recipe, args.checkpoint)
    export_drafter(model.state_dict(), config, args.pair / "drafter")


def _add_recipe(parser: argparse.ArgumentParser, defaults: Any) -> None:
    for field in fields(defaults):
        value = getattr(defaults, field.name)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(value), default=value, help=f"default {value}")


def add_commands(parser: argparse.ArgumentParser) -> None:
    """The steps, in the order in which they are run."""
    from .drafter import DrafterRecipe
    from .target import TargetRecipe

    steps = parser.add_subparsers(dest="step", required=True)
    first = steps.add_parser("captions", help="captions from labels and measured colours")
    second = steps.add_parser("encode", help="pictures to tokens")
    for step in (first, second):
        step.add_argument("--images", type=Path, required=True, help="folder or zip of pictures")
        step.add_argument("--csv", type=Path, required=True, help="CSV with columns file, and label or caption, and split")
        step.add_argument("--out", type=Path, required=True)
    second.add_argument("--tokenizer", type=Path, required=True, help="folder of a JanusVQVAE")
    second.add_argument("--grid", type=int, default=16, help="tokens a side (default 16)")
    second.add_argument("--variants", type=int, default=3, help="flips and crops of each picture (default 3)")
    third = steps.add_parser("target", help="a LlamaGen-format target on tokens and captions")
    fourth = steps.add_parser("drafter", help="an EAGLE-1 drafter for a pair's target")
    for step, recipe in ((third, TargetRecipe()), (fourth, DrafterRecipe())):
        step.add_argument("--tokens", type=Path, required=True, help="folder written by `train encode`")
        step.add_argument("--csv", type=Path, required=True, help="CSV written by `train captions`")
        step.add_argument("--pair", type=Path, required=True, help="folder of the pair, read and written; holds vq/ and the text table")
        step.add_argument("--checkpoint", type=Path, required=True, help="written on the way; continued from when there")
        _add_recipe(step, recipe)
    for name, value in {"dim": 384, "layers": 12, "heads": 6, "ffn": 1024, "caption-tokens": 24, "grid": 16}.items():
        third.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    third.add_argument("--grow", type=Path, help="checkpoint of a shallower target to start from")
    third.add_argument("--eager", action="store_true", help="without torch.compile")
    for step, run in ((first, captions), (second, encode), (third, target), (fourth, drafter)):
        step.set_defaults(run=run)
