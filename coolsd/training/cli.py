"""`python -m coolsd train …`: from a folder of pictures with a CSV to a pair that can be loaded."""

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any


def _say(skipped: Mapping[str, str], done: str) -> None:
    notes = ", ".join(f"{count} {reason}" for reason, count in Counter(skipped.values()).items())
    print(f"{done}{f' (skipped: {notes})' if notes else ''}", file=sys.stderr)


def captions(args: argparse.Namespace) -> None:
    """Write a caption CSV from labels and pictures."""
    from ..data.captions import write_captions
    from ..data.pictures import read_records

    _say(write_captions(args.images, read_records(args.csv), args.out), f"captions written to {args.out}")


def checksums(args: argparse.Namespace) -> None:
    """Write the checksums of a pair's files, which loading compares."""
    from ..models.checkpoints import read_json
    from ..models.checksums import write

    read_json(args.pair / "config.json")
    print(f"checksums written to {write(args.pair)}", file=sys.stderr)


def words(args: argparse.Namespace) -> None:
    """Write the domain of a pair into its folder, so that prompts outside it can be recognised."""
    from .words import write_words

    domain = write_words(args.csv, args.pair, args.about, args.examples, args.also, args.without)
    print(f"{len(domain.words)} words written to {args.pair}", file=sys.stderr)


def encode(args: argparse.Namespace) -> None:
    """Write the tokens of all pictures."""
    from ..data.pictures import read_records
    from ..models.vq import load_vq
    from .encode import encode_to

    tokenizer = load_vq(args.tokenizer, args.grid)
    _say(encode_to(args.out, args.images, read_records(args.csv), tokenizer, args.variants), f"tokens written to {args.out}")


def tokenizer(args: argparse.Namespace) -> None:
    """Train a picture tokenizer, or the decoder of one, and write it as a JanusVQVAE folder."""
    import torch

    from ..data.pictures import read_records
    from ..models.vq import load_vq
    from .export import export_vq
    from .loop import this_process
    from .perceptual import perceptual
    from .tokenizer import DECODER_ONLY, FULL, TokenizerData, fresh, train_tokenizer

    if args.decoder_only and not args.start:
        raise ValueError("--decoder-only needs --start FOLDER, the tokenizer whose codes stay.")
    base = DECODER_ONLY if args.decoder_only else FULL
    recipe = _recipe(base, args)
    torch.manual_seed(recipe.seed)
    here = this_process()
    vqvae = load_vq(args.start, args.grid).vqvae if args.start else fresh(args.grid, args.codes, args.channels, args.multipliers)
    done, skipped = train_tokenizer(
        vqvae,
        TokenizerData(args.images, read_records(args.csv), args.grid, args.tokens, args.workers),
        recipe,
        args.checkpoint,
        here,
        args.decoder_only,
        perceptual(here.device) if recipe.perceptual else None,
    )
    if here.rank == 0:
        export_vq(done.vqvae, args.out)
        _say(skipped, f"tokenizer written to {args.out}")


def _recipe(base: Any, args: argparse.Namespace) -> Any:
    """`base` with what is given on the command line."""
    return replace(base, **{f.name: getattr(args, f.name) for f in fields(base) if hasattr(args, f.name)})


def target(args: argparse.Namespace) -> None:
    """Train a target and write it beside its text table and tokenizer."""
    import torch

    from ..models.checkpoints import ASSETS
    from ..models.llamagen.network import LlamaGenConfig
    from ..models.llamagen.text_table import TextTable
    from ..models.vq import load_vq
    from .export import export_target
    from .loop import this_process
    from .target import TargetRecipe, Trainee, continued, grown, train_target
    from .tokens import Photos, TokenData

    recipe, here = _recipe(TargetRecipe(), args), this_process()
    torch.manual_seed(recipe.seed)
    codebook = load_vq(args.pair / "vq", args.grid).codebook
    for name in ("text_table.safetensors", "text_tokenizer.json"):
        if here.rank == 0 and not (args.pair / name).exists():
            shutil.copy(ASSETS / "meadow" / name, args.pair / name)
    here.wait()
    text = TextTable.load(args.pair, args.caption_tokens)
    config = LlamaGenConfig(args.dim, args.layers, args.heads, args.ffn, len(codebook), text.table.shape[1], args.caption_tokens, args.grid)
    fresh = not args.checkpoint.exists()
    if args.grow and fresh:
        trainee = grown(args.grow, config, codebook)
    elif args.start and fresh:
        trainee = continued(args.start, config, codebook)
    else:
        trainee = Trainee(config, codebook)
    data = [TokenData(Photos(args.tokens, args.csv, split), text) for split in ("train", "valid")]
    train_target(trainee, *data, recipe, args.checkpoint, not args.eager, here)
    if here.rank == 0:
        export_target(trainee.folded(), config, args.pair)


def drafter(args: argparse.Namespace) -> None:
    """Train a drafter for the target of a pair, write it as LANTERN does, and say what it gained."""
    import torch

    from ..models.catalog import CATALOG, sampling_defaults
    from ..models.loading import load
    from .drafter import DrafterRecipe, Examples, train_drafter
    from .export import export_drafter
    from .loop import this_process
    from .target_samples import Sampling, accept_lengths, self_generated
    from .tokens import Photos, split_prompts

    named = args.target in CATALOG
    if named and not args.out:
        raise ValueError(f"Where is the drafter of {args.target} to be written? Give --out FOLDER.")
    usual = sampling_defaults(args.target)
    recipe = _recipe(DrafterRecipe(scale=usual["cfg_scale"], top_k=usual["top_k"]), args)
    lines = args.prompts.read_text(encoding="utf-8").splitlines() if args.prompts else []
    prompts, held_out = split_prompts([line.strip() for line in lines if line.strip()], args.csv, recipe.seed)
    if not (args.tokens and args.csv) and not (args.own and prompts):
        raise ValueError("Nothing to learn from. Give --tokens with --csv, or --own N with --prompts or --csv.")
    here, threads = this_process(), torch.get_num_threads()
    parts = {} if args.refine or not named or args.target == "meadow" else {"drafter": "none"}
    pair = load(args.target, str(here.device), args.dtype, **parts)
    if args.refine and pair.drafter_model is None:
        raise ValueError(f"{args.target} has no drafter to refine; leave --refine out.")
    torch.set_num_threads(threads)  # loading may have chosen fewer, which are best for single pictures
    photos = Photos(args.tokens, args.csv, "train") if args.tokens and args.csv else None
    sampling = Sampling(recipe.scale, top_k=recipe.top_k)
    first = here.rank == 0
    before = accept_lengths(pair, held_out, sampling) if first and pair.drafter_model and held_out else {}
    own = []
    if args.own:
        path = args.checkpoint.with_suffix(f".own{here.rank or ''}.pt")
        own = self_generated(pair, prompts[here.rank :: here.ranks], -(-args.own // here.ranks), sampling, recipe.seed + here.rank, path)
    torch.manual_seed(recipe.seed)
    model = pair.empty_drafter()
    if args.refine:
        pair.unpack()
        model.load_state_dict(pair.drafter_model.state_dict())
    model.embed_tokens.requires_grad_(not args.freeze_embeddings)
    train_drafter(model, pair, Examples(photos, own, recipe.sampled, recipe.seed), recipe, args.checkpoint, here)
    if first:
        out = args.out or Path(args.target) / "drafter"
        export_drafter(model.state_dict(), model.config, out)
        print(f"drafter written to {out}", file=sys.stderr)
        trained = model.to(next(pair.target_model.parameters()).dtype).eval().requires_grad_(False)
        after = accept_lengths(replace(pair, drafter_model=trained), held_out, sampling) if held_out else {}
        for method, length in after.items():
            gain = f" (before: {before[method]:.2f})" if method in before else ""
            print(f"accept length of {method}: {length:.2f}{gain}", file=sys.stderr)


def _add_recipe(parser: argparse.ArgumentParser, defaults: Any, decoder_only: Any = None) -> None:
    for field in fields(defaults):
        value = getattr(defaults, field.name)
        alone = getattr(decoder_only, field.name, value)
        default = f"default {value}" + (f", with --decoder-only {alone}" if alone != value else "")
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(value), default=argparse.SUPPRESS, help=default)


def _add_tokenizer(parser: argparse.ArgumentParser) -> None:
    from .tokenizer import DECODER_ONLY, FULL

    parser.add_argument("--checkpoint", type=Path, required=True, help="written on the way; continued from when there")
    parser.add_argument("--start", type=Path, help="folder of a JanusVQVAE to start from; without it, from scratch")
    parser.add_argument("--decoder-only", action="store_true", help="leave encoder and codebook: stored tokens stay valid")
    parser.add_argument("--tokens", type=Path, help="with --decoder-only: codes stored by `train encode` (faster than encoding)")
    parser.add_argument("--workers", type=int, default=1, help="processes that read pictures (default 1)")
    for name, value in {"codes": 4096, "channels": 32}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"from scratch: default {value}")
    levels = [1, 1, 2, 4]
    parser.add_argument("--multipliers", type=int, nargs="+", default=levels, help=f"from scratch: of channels a level, default {levels}")
    _add_recipe(parser, FULL, DECODER_ONLY)


def _add_drafter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", "--pair", required=True, help="name of a target, or folder of a pair")
    parser.add_argument("--out", type=Path, help="folder to write (default: drafter/ in the pair's folder)")
    parser.add_argument("--tokens", type=Path, help="folder written by `train encode`: learn from photos")
    parser.add_argument("--csv", type=Path, help="CSV written by `train captions`")
    parser.add_argument("--own", type=int, default=0, help="learn from so many pictures that the target paints itself (default 0)")
    parser.add_argument("--prompts", type=Path, help="text file of prompts for these, one a line (default: the CSV's captions)")
    parser.add_argument("--refine", action="store_true", help="start from the drafter that the target has")
    parser.add_argument("--freeze-embeddings", action="store_true", help="leave the target's embeddings as they are; for big vocabularies")
    parser.add_argument("--dtype", help="of the target: float32, bfloat16 or float16 (default: as for decoding)")


def add_commands(parser: argparse.ArgumentParser) -> None:
    """The steps, in the order in which they are run."""
    from .drafter import DrafterRecipe
    from .target import TargetRecipe

    steps = parser.add_subparsers(dest="step", required=True)
    first = steps.add_parser("captions", help="captions from labels and measured colours")
    vq = steps.add_parser("tokenizer", help="a picture tokenizer, or the decoder of one")
    second = steps.add_parser("encode", help="pictures to tokens")
    for step in (first, vq, second):
        step.add_argument("--images", type=Path, required=True, help="folder or zip of pictures")
        step.add_argument("--csv", type=Path, required=True, help="CSV with columns file, and label or caption, and split")
        step.add_argument("--out", type=Path, required=True)
    second.add_argument("--tokenizer", type=Path, required=True, help="folder of a JanusVQVAE")
    for step in (vq, second):
        step.add_argument("--grid", type=int, default=16, help="tokens a side (default 16)")
    _add_tokenizer(vq)
    second.add_argument("--variants", type=int, default=3, help="flips and crops of each picture (default 3)")
    third = steps.add_parser("target", help="a LlamaGen-format target on tokens and captions")
    third.add_argument("--tokens", type=Path, required=True, help="folder written by `train encode`")
    third.add_argument("--csv", type=Path, required=True, help="CSV written by `train captions`")
    third.add_argument(
        "--pair", type=Path, required=True, help="folder of the pair, read and written; holds vq/; meadow's text table if it has none"
    )
    for name, value in {"dim": 384, "layers": 12, "heads": 6, "ffn": 1024, "caption-tokens": 24, "grid": 16}.items():
        third.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    begin = third.add_mutually_exclusive_group()
    begin.add_argument("--grow", type=Path, help="checkpoint of a shallower target, or folder of a pair with one, to start from")
    begin.add_argument("--start", type=Path, help="folder of a pair whose target to start from, of the same sizes")
    third.add_argument("--eager", action="store_true", help="without torch.compile")
    fourth = steps.add_parser("drafter", help="an EAGLE-1 drafter for any target")
    _add_drafter(fourth)
    for step, recipe in ((third, TargetRecipe()), (fourth, DrafterRecipe())):
        step.add_argument("--checkpoint", type=Path, required=True, help="written on the way; continued from when there")
        _add_recipe(step, recipe)
    fifth = steps.add_parser("words", help="the words of a pair's domain, for a notice where a prompt lies outside")
    fifth.add_argument("--csv", type=Path, required=True, help="CSV written by `train captions`")
    fifth.add_argument("--pair", type=Path, required=True, help="folder of the pair; words.json is written there")
    fifth.add_argument("--about", required=True, help="what it paints, for example: flowers and landscapes")
    fifth.add_argument("--examples", nargs="+", required=True, help="prompts it can follow")
    fifth.add_argument("--also", nargs="*", default=[], help="further words to count as its own")
    fifth.add_argument("--without", nargs="*", default=[], help="words not to count")
    sixth = steps.add_parser("checksums", help="of a pair's files, so that damaged ones are noticed; again after replacing one by hand")
    sixth.add_argument("--pair", type=Path, required=True, help="folder of the pair; checksums.json is written there")
    for step, run in (
        (sixth, checksums),
        (fifth, words),
        (first, captions),
        (vq, tokenizer),
        (second, encode),
        (third, target),
        (fourth, drafter),
    ):
        step.set_defaults(run=run)
